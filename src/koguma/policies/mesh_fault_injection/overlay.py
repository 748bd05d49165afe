"""What faults mean to Envoy: on an inbound by caller, on a built-in gateway by host name and route."""

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import product
from typing import Final

from koguma.envoy import by_caller, filters, proto_json
from koguma.envoy.callers import Caller
from koguma.envoy.proto_json import Data
from koguma.model import duration
from koguma.model.overlay import InboundEntry, Overlay, OverlayContext
from koguma.model.schema import Json
from koguma.policies.parts import calling

ABORT_STATUS_MIN: Final = 200  # Envoy refuses a lower status in an abort

_TYPE: Final = "envoy.extensions.filters.http.fault.v3.HTTPFault"
_Faults = tuple[Data, ...]  # each with the name of its policy and what it does
_Row = tuple[Caller, _Faults]


def inbound(_conf: Json, entries: tuple[InboundEntry, ...], context: OverlayContext) -> Overlay:
    """The faults of calls that arrive at one inbound."""
    if not context.is_http:
        return {}
    with_faults = [entry for entry in entries if entry.conf.get("http") is not None]
    by_identity = _by_identity([entry for entry in with_faults if not _is_older(entry)])
    by_tags = _by_tags([entry for entry in with_faults if _is_older(entry)], context.mesh)
    rows = [(caller, _folded(faults)) for caller, faults in _combined(list(by_identity), list(by_tags))]
    n_filters = max((len(faults) for _, faults in rows), default=0)
    configs = {
        filters.numbered_key(filters.FAULT, index + 1): by_caller.per_route(_filters(rows, index))
        for index in range(n_filters)
    }
    return {"on_routes": configs} if configs else {}


def gateway(conf: Json, context: OverlayContext) -> Overlay:
    """The faults of what a built-in gateway sends on."""
    if not context.is_http:
        return {}
    faults = _folded(
        tuple(
            proto_json.extension(filters.FAULT, _TYPE, **config)
            for fault in conf.get("http") or ()
            if (config := _config(fault))
        )
    )
    configs = {
        filters.numbered_key(filters.FAULT, index + 1): by_caller.per_route(((Caller(), fault),))
        for index, fault in enumerate(faults)
    }
    return {"on_routes": configs} if configs else {}


def _is_older(entry: InboundEntry) -> bool:
    return entry.path.startswith("spec.from")


def _filters(rows: Iterable[_Row], index: int) -> Iterator[tuple[Caller, Data]]:
    """One filter for each row; a caller with fewer faults than others gets one that does nothing."""
    for caller, faults in rows:
        yield caller, faults[index] if index < len(faults) else proto_json.extension(filters.FAULT, _TYPE)


def _by_identity(entries: list[InboundEntry]) -> Iterator[_Row]:
    """Most specific callers first, each with the faults of all entries that are for them."""
    distinct = {(other.spiffe_id, other.sni): other for other in entries}  # the most important of equals
    ordered = sorted(distinct.values(), key=calling.specificity, reverse=True)
    for entry in ordered:
        covering = [other for other in ordered if calling.covers(other, entry)]
        yield calling.of_entry(entry), tuple(fault for other in covering for fault in _faults(other))


def _by_tags(entries: list[InboundEntry], mesh: str) -> Iterator[_Row]:
    """The most important first: it holds, even where another names the caller more closely."""
    for entry in reversed(entries):
        yield calling.of_tags(entry.tags, mesh), tuple(_faults(entry))


def _combined(first: list[_Row], second: list[_Row]) -> list[_Row]:
    if not first or not second:
        return first or second
    nobody_left: _Row = (Caller(), ())
    return [
        (Caller((*by_identity.uris, *by_tags.uris), by_identity.server_name), (*faults, *further_faults))
        for (by_identity, faults), (by_tags, further_faults) in product(
            [*first, nobody_left], [*second, nobody_left]
        )
    ]


def _faults(entry: InboundEntry) -> Iterator[Data]:
    name = entry.kri or str(entry.origin)
    for fault in entry.conf["http"]:
        if config := _config(fault):
            yield proto_json.extension(name, _TYPE, **config)


def _config(fault: Json) -> Data:
    delay, abort, slow = fault.get("delay"), fault.get("abort"), fault.get("responseBandwidth")
    config: Data = {}
    if delay and duration.nanoseconds(delay["value"]) > 0:
        config["delay"] = {"fixed_delay": proto_json.seconds(delay["value"]), "percentage": _share(delay)}
    if abort and abort["httpStatus"] >= ABORT_STATUS_MIN:
        config["abort"] = {"http_status": abort["httpStatus"], "percentage": _share(abort)}
    if slow:
        limit = {"limit_kbps": max(1, _speed(slow["limit"]))}
        config["response_rate_limit"] = {"fixed_limit": limit, "percentage": _share(slow)}
    return config


_SPEED: Final = re.compile(r"(\d+)\s?([kMG])bps", re.ASCII)
_UNITS: Final = {"k": 1, "M": 1_000, "G": 1_000_000}


def _speed(limit: str) -> int:
    match = _SPEED.fullmatch(limit)
    assert match is not None, limit
    return int(match[1]) * _UNITS[match[2]]


def _share(fault: Json) -> Data:
    """A percentage as Envoy takes it: a whole number of hundredths, or of millionths."""
    percent = Decimal(fault["percentage"])
    if percent == percent.to_integral_value():
        return {"numerator": int(percent), "denominator": "HUNDRED"}
    return {"numerator": round(percent * 10_000), "denominator": "MILLION"}


_SORTS: Final = ("delay", "abort", "response_rate_limit")


def _folded(faults: _Faults) -> _Faults:
    """As few filters as keep the order of the faults.

    One fault filter of Envoy's has at most one fault of each sort, and delays before it aborts.
    """
    folded: list[Data] = []
    for fault in faults:
        if folded and _goes_with(folded[-1]["typed_config"], fault["typed_config"]):
            folded[-1] = {**folded[-1], "typed_config": folded[-1]["typed_config"] | fault["typed_config"]}
        else:
            folded.append(fault)
    return tuple(folded)


def _goes_with(before: Data, after: Data) -> bool:
    is_free = not any(sort in before and sort in after for sort in _SORTS)
    return is_free and not ("abort" in before and "delay" in after)
