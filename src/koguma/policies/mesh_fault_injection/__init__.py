"""What if it breaks: faults on purpose, to see how callers take them.

MeshFaultInjection acts on HTTP traffic that arrives at sidecars (`rules`, or the older `from`) and on
traffic that a built-in gateway sends on (`to`). A share of requests is answered with an error, delayed, or
answered slowly. Several faults in a list are tried one after the other. A caller that several `rules` are for
meets the faults of them all; where policies have rules for the very same callers, the most important policy's
faults hold. In `from` the most important entry that fits a caller holds. What one MeshHTTPRoute of a gateway
sends on can have faults of its own, in place of those for kind Mesh.

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
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import msgspec

from koguma.model import columns, duration, target_ref
from koguma.model.client_match import ClientMatch
from koguma.model.kind import POLICY, Deprecation, Kind, Policy, V1Conversion, ValidationContext
from koguma.model.overlay import PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import Duration, IntOrString, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.mesh_fault_injection import overlay
from koguma.policies.parts import fields, outbound_targets, spelling


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

    target_ref: Annotated[TargetRef, doc("Mesh, or a MeshHTTPRoute of the gateway.")]
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
    yield from fields.entries("spec.to", spec.to, outbound_targets.gateway_kinds(top), _conf)
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
    if spec.rules and target_ref.is_gateway(spec.target_ref):
        yield f"spec.rules {fields.NOT_ON_GATEWAYS}; use spec.to"
    lists: list[tuple[str, Sequence[FaultTo | FaultFrom | FaultRule]]] = [
        ("to", spec.to),
        ("from", spec.from_),
        ("rules", spec.rules),
    ]
    for field, entries in lists:
        for index, entry in enumerate(entries):
            yield from _unanswerable(entry.default, child(item(f"spec.{field}", index), "default"))


def _unanswerable(conf: FaultConf, path: str) -> Iterator[str]:
    for index, fault in enumerate(conf.http or ()):
        if fault.abort is not None and fault.abort.http_status < overlay.ABORT_STATUS_MIN:
            at = child(item(child(path, "http"), index), "abort.httpStatus")
            yield f"{at}: {fault.abort.http_status} is no answer and has no effect; use one of 200 to 599"


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
        hooks=PolicyHooks(inbound=overlay.inbound, gateway=overlay.gateway),
    ),
    clean=spelling.refs,
    v1=_V1,
    validate=validate,
    warn=warn,
)
