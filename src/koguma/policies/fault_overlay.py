"""What faults mean to Envoy: MeshFaultInjection's entries as fault filters, for whom they are.

A filter of Envoy's has at most one fault of each sort, and delays before it aborts, so a list of faults
becomes as few filters as keep its order.
"""

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import product
from typing import Final

from koguma.envoy import by_caller, filters, words
from koguma.envoy.callers import Caller
from koguma.envoy.words import Data
from koguma.model import duration
from koguma.model.overlay import Overlay, Ruled, Where
from koguma.model.schema import Json
from koguma.policies import calling

STATUS_MIN: Final = 200  # what is less is no answer, and Envoy takes none of it

_TYPE: Final = "envoy.extensions.filters.http.fault.v3.HTTPFault"
_Faults = tuple[Data, ...]  # each with the name of its policy and what it does
_Row = tuple[Caller, _Faults]


def inbound(_conf: Json, ruled: tuple[Ruled, ...], where: Where) -> Overlay:
    """The faults of calls that arrive at one inbound."""
    if not where.is_http:
        return {}
    written = [each for each in ruled if each.conf.get("http") is not None]
    by_identity = _by_identity([each for each in written if not _is_older(each)])
    by_tags = _by_tags([each for each in written if _is_older(each)], where.mesh)
    rows = [(caller, _folded(faults)) for caller, faults in _both(list(by_identity), list(by_tags))]
    n_filters = max((len(faults) for _, faults in rows), default=0)
    made = {
        filters.numbered(filters.FAULT, index + 1): by_caller.per_route(_filters(rows, index))
        for index in range(n_filters)
    }
    return {"on_routes": made} if made else {}


def _is_older(ruled: Ruled) -> bool:
    return ruled.path.startswith("spec.from")


def _filters(rows: Iterable[_Row], index: int) -> Iterator[tuple[Caller, Data]]:
    """One filter for each row; whoever has fewer faults than others gets one that does nothing."""
    for caller, faults in rows:
        yield caller, faults[index] if index < len(faults) else words.extension(filters.FAULT, _TYPE)


def _by_identity(ruled: list[Ruled]) -> Iterator[_Row]:
    """Most specific callers first, each with the faults of all entries that are for them."""
    distinct = {(each.spiffe_id, each.sni): each for each in ruled}  # the most important of equals
    ordered = sorted(distinct.values(), key=calling.specificity, reverse=True)
    for one in ordered:
        covering = [each for each in ordered if calling.covers(each, one)]
        yield calling.of_entry(one), tuple(fault for each in covering for fault in _faults(each))


def _by_tags(ruled: list[Ruled], mesh: str) -> Iterator[_Row]:
    """The most important first: it holds, even where another names the caller more closely."""
    for each in reversed(ruled):
        yield calling.of_tags(each.tags, mesh), tuple(_faults(each))


def _both(first: list[_Row], second: list[_Row]) -> list[_Row]:
    if not first or not second:
        return first or second
    nobody_left: _Row = (Caller(), ())
    return [
        (Caller((*one.uris, *other.uris), one.server_name), (*faults, *more))
        for (one, faults), (other, more) in product([*first, nobody_left], [*second, nobody_left])
    ]


def _faults(ruled: Ruled) -> Iterator[Data]:
    name = ruled.kri or str(ruled.origin)
    for fault in ruled.conf["http"]:
        if config := _config(fault):
            yield words.extension(name, _TYPE, **config)


def _config(fault: Json) -> Data:
    delay, abort, slow = fault.get("delay"), fault.get("abort"), fault.get("responseBandwidth")
    made: Data = {}
    if delay and duration.nanoseconds(delay["value"]) > 0:
        made["delay"] = {"fixed_delay": words.seconds(delay["value"]), "percentage": _share(delay)}
    if abort and abort["httpStatus"] >= STATUS_MIN:
        made["abort"] = {"http_status": abort["httpStatus"], "percentage": _share(abort)}
    if slow:
        limit = {"limit_kbps": max(1, _speed(slow["limit"]))}
        made["response_rate_limit"] = {"fixed_limit": limit, "percentage": _share(slow)}
    return made


_SPEED: Final = re.compile(r"(\d+)\s?([kMG])bps", re.ASCII)
_UNITS: Final = {"k": 1, "M": 1_000, "G": 1_000_000}


def _speed(limit: str) -> int:
    found = _SPEED.fullmatch(limit)
    assert found is not None, limit
    return int(found[1]) * _UNITS[found[2]]


def _share(fault: Json) -> Data:
    """A percentage as Envoy takes it: a whole number of hundredths, or of millionths."""
    percent = Decimal(fault["percentage"])
    if percent == percent.to_integral_value():
        return {"numerator": int(percent), "denominator": "HUNDRED"}
    return {"numerator": round(percent * 10_000), "denominator": "MILLION"}


_SORTS: Final = ("delay", "abort", "response_rate_limit")


def _folded(faults: _Faults) -> _Faults:
    """As few filters as keep the order of the faults."""
    made: list[Data] = []
    for fault in faults:
        if made and _goes_with(made[-1]["typed_config"], fault["typed_config"]):
            made[-1] = {**made[-1], "typed_config": made[-1]["typed_config"] | fault["typed_config"]}
        else:
            made.append(fault)
    return tuple(made)


def _goes_with(before: Data, after: Data) -> bool:
    is_free = not any(sort in before and sort in after for sort in _SORTS)
    return is_free and not ("abort" in before and "delay" in after)
