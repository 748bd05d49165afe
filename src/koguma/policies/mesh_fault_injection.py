"""What if it breaks: faults on purpose, to see how callers take them.

MeshFaultInjection acts on HTTP traffic that arrives at sidecars (`rules`, or the older `from`) and on
traffic that a built-in gateway sends on (`to`). A share of requests is answered with an error, delayed, or
answered slowly. Several faults in a list are tried one after the other. A caller that several `rules` are for
meets the faults of them all; where policies have rules for the very same callers, the most important policy's
faults hold. In `from` the most important entry that fits a caller holds.

```yaml
type: MeshFaultInjection
name: web-sees-a-slow-backend
mesh: default
spec:
  targetRef: {kind: Dataplane, labels: {app: backend}}
  rules:
    - matches:
        - spiffeID: {type: Exact, value: "spiffe://default/web"}
      default:
        http:
          - delay: {value: 2s, percentage: "12.5"}
          - abort: {httpStatus: 503, percentage: 5}
          - responseBandwidth: {limit: 50 kbps, percentage: 10}
```
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import product
from typing import Annotated, Final

import msgspec

from koguma.envoy import by_caller, filters, proto_json
from koguma.envoy.callers import Caller
from koguma.envoy.proto_json import Data
from koguma.model import columns, duration, target_ref
from koguma.model.client_match import ClientMatch
from koguma.model.kind import POLICY, Deprecation, Kind, Policy, V1Conversion, ValidationContext
from koguma.model.overlay import InboundEntry, Overlay, OverlayContext, PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import Duration, IntOrString, Json, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import calling, fields, spelling


class Abort(Spec):
    """Answer instead of the service."""

    http_status: Annotated[int, doc("The status code of the answer.")]
    percentage: Annotated[IntOrString, doc("Share of requests; a number, or text with decimals.")]


class Delay(Spec):
    """Wait before passing the request on."""

    value: Annotated[Duration, doc("How long.")]
    percentage: Annotated[IntOrString, doc("Share of requests; a number, or text with decimals.")]


class ResponseBandwidth(Spec):
    """Answer slowly."""

    limit: Annotated[str, doc("The speed, such as 10kbps, 5 Mbps or 1Gbps; 1kbps is 1 KiB in a second.")]
    percentage: Annotated[IntOrString, doc("Share of requests; a number, or text with decimals.")]


class Fault(Spec):
    """Faults that are tried together."""

    abort: Annotated[Abort | None, doc("Answer instead of the service.")] = None
    delay: Annotated[Delay | None, doc("Wait before passing the request on.")] = None
    response_bandwidth: Annotated[ResponseBandwidth | None, doc("Answer slowly.")] = None


class FaultConf(Spec):
    """Which faults."""

    http: Annotated[tuple[Fault, ...] | None, doc("Faults of HTTP requests.")] = None


class FaultTo(Spec):
    """Faults of what a gateway sends on."""

    target_ref: Annotated[TargetRef, doc("The destination; only kind Mesh.")]
    default: Annotated[FaultConf, doc("The faults.")] = FaultConf()


class FaultFrom(Spec):
    """Faults for calls from some clients; `rules` is the newer form."""

    target_ref: Annotated[TargetRef, doc("The clients.")]
    default: Annotated[FaultConf, doc("The faults.")] = FaultConf()


class FaultRule(Spec):
    """Faults for calls that arrive."""

    default: Annotated[FaultConf, doc("The faults.")] = FaultConf()
    matches: Annotated[tuple[ClientMatch, ...], doc("Only calls that fit one of these; all by default.")] = ()


class MeshFaultInjectionSpec(Spec):
    """Which proxies, and the faults that they make."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies that this acts on; all of the mesh by default.")
    ] = None
    to: Annotated[tuple[FaultTo, ...], doc("Traffic that gateways send on.")] = ()
    from_: Annotated[tuple[FaultFrom, ...], doc("Inbound traffic, older form.")] = msgspec.field(
        name="from", default=()
    )
    rules: Annotated[tuple[FaultRule, ...], doc("Inbound traffic.")] = ()


_NO_FROM_ON_GATEWAYS: Final = (
    f"{fields.MUST_NOT_BE_DEFINED} when the scope includes a Gateway, select only proxyType Sidecar or select"
    " only gateways and use spec.to"
)
_NO_TO_ON_SIDECARS: Final = (
    f"{fields.MUST_NOT_BE_DEFINED}; spec.to is for what gateways send on, faults in what a sidecar receives"
    " go into spec.rules"
)
_BANDWIDTH = re.compile(r"\d+\s?[kMG]bps", re.ASCII)


def validate(spec: MeshFaultInjectionSpec, context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages, at the paths where the fields really stand."""
    top = spec.target_ref or target_ref.MESH
    allowed = target_ref.PROXIES if context.is_system else target_ref.NAMESPACED_PROXIES
    has_inbound = bool(spec.from_ or spec.rules)
    yield from target_ref.violations(top, "spec.targetRef", allowed, sections=has_inbound)
    if spec.from_ and spec.rules:
        yield Violation("spec", fields.FROM_BESIDE_RULES, "exclusive")
    if spec.to and not target_ref.includes_gateways(top):
        yield Violation("spec.to", _NO_TO_ON_SIDECARS, "forbidden")
    if spec.from_ and target_ref.includes_gateways(top):
        yield Violation("spec.from", _NO_FROM_ON_GATEWAYS, "forbidden")
    yield from fields.entries("spec.to", spec.to, ("Mesh",), _conf)
    yield from fields.entries("spec.from", spec.from_, target_ref.CLIENTS, _conf)
    for index, rule in enumerate(spec.rules):
        path = item("spec.rules", index)
        yield from fields.matches(rule.matches, child(path, "matches"))
        yield from _conf(rule.default, child(path, "default"))


def _conf(conf: FaultConf, path: str) -> Iterator[Violation]:
    for index, fault in enumerate(conf.http or ()):
        at = item(child(path, "http"), index)
        if fault.abort is not None:
            yield from fields.status(fault.abort.http_status, child(at, "abort.httpStatus"))
            yield from fields.percent(fault.abort.percentage, child(at, "abort.percentage"))
        if fault.delay is not None:
            yield from _delay(fault.delay, child(at, "delay"))
        if fault.response_bandwidth is not None:
            yield from _bandwidth(fault.response_bandwidth, child(at, "responseBandwidth"))


def _delay(delay: Delay, path: str) -> Iterator[Violation]:
    if duration.nanoseconds(delay.value) < 0:
        yield Violation(child(path, "value"), "must not be negative when defined", "range")
    yield from fields.percent(delay.percentage, child(path, "percentage"))


def _bandwidth(bandwidth: ResponseBandwidth, path: str) -> Iterator[Violation]:
    if not bandwidth.limit:
        yield Violation(child(path, "limit"), fields.MUST_BE_DEFINED, "required")
    elif not _BANDWIDTH.fullmatch(bandwidth.limit):
        yield Violation(child(path, "limit"), "must be in kbps/Mbps/Gbps units", "unit")
    yield from fields.percent(bandwidth.percentage, child(path, "percentage"))


def warn(spec: MeshFaultInjectionSpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations."""
    yield from target_ref.warnings(spec.target_ref)
    if spec.from_:
        yield fields.FROM_IS_DEPRECATED
    lists: list[tuple[str, Sequence[FaultFrom | FaultRule]]] = [("from", spec.from_), ("rules", spec.rules)]
    for field, entries in lists:
        for index, entry in enumerate(entries):
            yield from _unanswerable(entry.default, child(item(f"spec.{field}", index), "default"))


def _unanswerable(conf: FaultConf, path: str) -> Iterator[str]:
    for index, fault in enumerate(conf.http or ()):
        if fault.abort is not None and fault.abort.http_status < _ABORT_STATUS_MIN:
            at = child(item(child(path, "http"), index), "abort.httpStatus")
            yield f"{at}: {fault.abort.http_status} is no answer and has no effect; use one of 200 to 599"


_ABORT_STATUS_MIN: Final = 200  # Envoy refuses a lower status in an abort

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
    if abort and abort["httpStatus"] >= _ABORT_STATUS_MIN:
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


_V1: Final = V1Conversion(
    keeps=(
        Deprecation(
            "spec.from",
            "write spec.rules by identity",
            kept="it names callers by tags, and of its entries one holds, of rules all",
        ),
    )
)


KIND = Kind(
    name="MeshFaultInjection",
    plural="meshfaultinjections",
    short="mfi",
    doc=__doc__,
    spec=MeshFaultInjectionSpec,
    columns=columns.BOTH_WAYS,
    sync=POLICY,
    policy=Policy(
        phase=Phase.FAULT_INJECTION,
        has_to=True,
        has_from=True,
        has_rules=True,
        hooks=PolicyHooks(inbound=inbound),
    ),
    clean=spelling.refs,
    v1=_V1,
    validate=validate,
    warn=warn,
)
