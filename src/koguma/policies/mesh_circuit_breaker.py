"""When to stop calling: limits of connections and requests, and hosts that are left out after failures.

MeshCircuitBreaker acts on outbound traffic (`to`) and on inbound traffic (`rules`, or the older `from`).
`connectionLimits` refuse what goes beyond them at once, without waiting. `outlierDetection` watches the
answers and leaves a failing host out for a while; only the detectors that are named are active. Unless
`maxEjectionPercent` says how many hosts may be left out at a time, a tenth of them may, but always one.

```yaml
type: MeshCircuitBreaker
name: spare-backend
mesh: default
spec:
  to:
    - targetRef: {kind: MeshService, name: backend}
      default:
        connectionLimits: {maxConnections: 100, maxPendingRequests: 50}
        outlierDetection:
          interval: 5s
          baseEjectionTime: 30s
          maxEjectionPercent: 50
          detectors:
            totalFailures: {consecutive: 5}
            successRate: {minimumHosts: 3, requestVolume: 20, standardDeviationFactor: "1.9"}
```
"""

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data
from koguma.model import columns, target_ref
from koguma.model.kind import POLICY, DefaultPolicy, Kind, Policy, ValidationContext
from koguma.model.overlay import InboundEntry, Overlay, OverlayContext, PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import Duration, IntOrString, Json, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import fields, spelling
from koguma.policies.parts.fields import Count


class ConnectionLimits(Spec):
    """What goes beyond these is refused at once."""

    max_connections: Annotated[Count | None, doc("Connections at a time.")] = None
    max_connection_pools: Annotated[Count | None, doc("Connection pools at a time.")] = None
    max_pending_requests: Annotated[Count | None, doc("Requests that wait for a connection.")] = None
    max_retries: Annotated[Count | None, doc("Retries at a time.")] = None
    max_requests: Annotated[Count | None, doc("Requests at a time; not for TCP.")] = None


class FailuresInRow(Spec):
    """Failures one after the other."""

    consecutive: Annotated[Count | None, doc("How many in a row leave the host out.")] = None


class SuccessRate(Spec):
    """A host that succeeds less often than the others."""

    minimum_hosts: Annotated[Count | None, doc("Compare only if so many hosts have enough requests.")] = None
    request_volume: Annotated[Count | None, doc("Requests in one interval that are enough.")] = None
    standard_deviation_factor: Annotated[
        IntOrString | None, doc("Standard deviations below the mean; a number, or text with decimals.")
    ] = None


class FailurePercentage(Spec):
    """A host that fails too often, whatever the others do."""

    minimum_hosts: Annotated[Count | None, doc("Look only if there are so many hosts.")] = None
    request_volume: Annotated[Count | None, doc("Requests in one interval that are enough.")] = None
    threshold: Annotated[Count | None, doc("Percent of failures that leave the host out.")] = None


class Detectors(Spec):
    """Signs of a failing host. Only those that are named are watched."""

    total_failures: Annotated[FailuresInRow | None, doc("Any error: 5xx, or a failed connection.")] = None
    gateway_failures: Annotated[FailuresInRow | None, doc("502, 503 and 504.")] = None
    local_origin_failures: Annotated[
        FailuresInRow | None, doc("Errors before an answer; needs splitExternalAndLocalErrors.")
    ] = None
    success_rate: Annotated[SuccessRate | None, doc("Compared with the other hosts.")] = None
    failure_percentage: Annotated[FailurePercentage | None, doc("Compared with a fixed share.")] = None


class OutlierDetection(Spec):
    """Leaves failing hosts out for a while."""

    disabled: Annotated[bool | None, doc("Switch it off.")] = None
    interval: Annotated[Duration | None, doc("Time between two looks at the hosts.")] = None
    base_ejection_time: Annotated[
        Duration | None, doc("How long a host is left out; longer each time it happens.")
    ] = None
    max_ejection_percent: Annotated[Count | None, doc("Most hosts left out at a time, in percent.")] = None
    split_external_and_local_errors: Annotated[
        bool | None, doc("Count errors before an answer apart from errors in answers.")
    ] = None
    detectors: Annotated[Detectors | None, doc("What is watched.")] = None
    healthy_panic_threshold: Annotated[
        IntOrString | None, doc("Below this percent of healthy hosts all are used; 0 switches that off.")
    ] = None


class BreakerConf(Spec):
    """When to stop calling."""

    connection_limits: Annotated[ConnectionLimits | None, doc("What goes beyond is refused.")] = None
    outlier_detection: Annotated[OutlierDetection | None, doc("Failing hosts are left out.")] = None


class BreakerTo(Spec):
    """For calls to one destination."""

    target_ref: Annotated[TargetRef, doc("The destination.")]
    default: Annotated[BreakerConf, doc("When to stop calling it.")] = BreakerConf()


class BreakerFrom(Spec):
    """For calls from some clients; `rules` is the newer form."""

    target_ref: Annotated[TargetRef, doc("The clients; only kind Mesh.")]
    default: Annotated[BreakerConf, doc("When to stop taking calls.")] = BreakerConf()


class BreakerRule(Spec):
    """For calls that arrive."""

    default: Annotated[BreakerConf, doc("When to stop taking calls.")] = BreakerConf()


class MeshCircuitBreakerSpec(Spec):
    """Which proxies, and when they stop calling or taking calls."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies that this acts on; all of the mesh by default.")
    ] = None
    to: Annotated[tuple[BreakerTo, ...], doc("Outbound traffic.")] = ()
    from_: Annotated[tuple[BreakerFrom, ...], doc("Inbound traffic, older form.")] = msgspec.field(
        name="from", default=()
    )
    rules: Annotated[tuple[BreakerRule, ...], doc("Inbound traffic.")] = ()


_TO_KINDS = ("Mesh", *target_ref.DESTINATIONS)
_EXTERNAL_NEEDS_MESH = (
    "kind MeshExternalService is only allowed with targetRef.kind: Mesh as it is configured on the Zone"
    " Egress and shared by all clients in the mesh"
)


def validate(spec: MeshCircuitBreakerSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages; but an external service is a destination as any other."""
    top = spec.target_ref or target_ref.MESH
    inbound = bool(spec.from_ or spec.rules)
    yield from target_ref.violations(top, "spec.targetRef", target_ref.PROXIES, sections=inbound)
    if not (spec.to or inbound):
        yield Violation("spec", "at least one of 'from', 'to' or 'rules' has to be defined", "required")
    if spec.from_ and spec.rules:
        yield Violation("spec", fields.FROM_BESIDE_RULES, "exclusive")
    yield from fields.entries("spec.to", spec.to, _TO_KINDS, _conf)
    for index, entry in enumerate(spec.to):
        if entry.target_ref.kind == "MeshExternalService" and top.kind != "Mesh":
            at = child(item("spec.to", index), "targetRef.kind")
            yield Violation(at, _EXTERNAL_NEEDS_MESH, "kind")
    yield from fields.entries("spec.from", spec.from_, ("Mesh",), _conf)
    for index, rule in enumerate(spec.rules):
        yield from _conf(rule.default, child(item("spec.rules", index), "default"))


def _conf(conf: BreakerConf, path: str) -> Iterator[Violation]:
    if conf.connection_limits is None and conf.outlier_detection is None:
        message = "at least one of: 'connectionLimits' or 'outlierDetection' should be configured"
        yield Violation(path, message, "required")
    if conf.connection_limits is not None:
        yield from _limits(conf.connection_limits, child(path, "connectionLimits"))
    if conf.outlier_detection is not None:
        yield from _outliers(conf.outlier_detection, child(path, "outlierDetection"))


def _limits(limits: ConnectionLimits, path: str) -> Iterator[Violation]:
    yield from fields.positive(limits.max_connections, child(path, "maxConnections"))
    yield from fields.positive(limits.max_connection_pools, child(path, "maxConnectionPools"))
    yield from fields.positive(limits.max_pending_requests, child(path, "maxPendingRequests"))
    yield from fields.positive(limits.max_retries, child(path, "maxRetries"))
    yield from fields.positive(limits.max_requests, child(path, "maxRequests"))


def _outliers(conf: OutlierDetection, path: str) -> Iterator[Violation]:
    yield from fields.positive_duration(conf.interval, child(path, "interval"))
    yield from fields.positive_duration(conf.base_ejection_time, child(path, "baseEjectionTime"))
    yield from fields.percent_whole(conf.max_ejection_percent, child(path, "maxEjectionPercent"))
    at = child(path, "detectors")
    if conf.detectors is None:
        yield Violation(at, fields.MUST_BE_DEFINED, "required")
    elif conf.detectors == Detectors():
        names = "totalFailures, gatewayFailures, localOriginFailures, successRate, failurePercentage"
        yield Violation(at, f"must have at least one defined: {names}", "required")
    else:
        yield from _detectors(conf.detectors, at)
    yield from fields.percent(conf.healthy_panic_threshold, child(path, "healthyPanicThreshold"))


def _detectors(detectors: Detectors, path: str) -> Iterator[Violation]:
    for name, failures in (
        ("totalFailures", detectors.total_failures),
        ("gatewayFailures", detectors.gateway_failures),
        ("localOriginFailures", detectors.local_origin_failures),
    ):
        if failures is not None:
            yield from fields.positive(failures.consecutive, child(child(path, name), "consecutive"))
    if detectors.success_rate is not None:
        yield from _success_rate(detectors.success_rate, child(path, "successRate"))
    if detectors.failure_percentage is not None:
        at = child(path, "failurePercentage")
        yield from fields.positive(detectors.failure_percentage.minimum_hosts, child(at, "minimumHosts"))
        yield from fields.positive(detectors.failure_percentage.request_volume, child(at, "requestVolume"))
        yield from fields.percent_whole(detectors.failure_percentage.threshold, child(at, "threshold"))


def _success_rate(detector: SuccessRate, path: str) -> Iterator[Violation]:
    yield from fields.positive(detector.minimum_hosts, child(path, "minimumHosts"))
    yield from fields.positive(detector.request_volume, child(path, "requestVolume"))
    if detector.standard_deviation_factor is None:
        return
    factor = fields.number(detector.standard_deviation_factor)
    at = child(path, "standardDeviationFactor")
    if factor is None:
        yield Violation(at, "string must be a valid number", "number")
    elif factor <= 0:
        yield Violation(at, "must be greater than 0", "range")


def warn(spec: MeshCircuitBreakerSpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations."""
    yield from target_ref.warnings(spec.target_ref)
    if spec.from_:
        yield fields.FROM_IS_DEPRECATED
    for name, entries in (("from", spec.from_), ("rules", spec.rules)):
        if entries and target_ref.is_gateway(spec.target_ref):
            yield f"spec.{name} {fields.NOT_ON_GATEWAYS}; use spec.to"


_LIMITS: Final = {
    "maxConnections": "max_connections",
    "maxConnectionPools": "max_connection_pools",
    "maxPendingRequests": "max_pending_requests",
    "maxRetries": "max_retries",
    "maxRequests": "max_requests",
}

# What each detector decides by, and which of Envoy's switches it turns. What Envoy counts apart when errors
# are split has a switch of its own.
_DETECTORS: Final[dict[str, tuple[dict[str, str], tuple[str, ...]]]] = {
    "totalFailures": ({"consecutive": "consecutive_5xx"}, ("consecutive_5xx",)),
    "gatewayFailures": ({"consecutive": "consecutive_gateway_failure"}, ("consecutive_gateway_failure",)),
    "localOriginFailures": (
        {"consecutive": "consecutive_local_origin_failure"},
        ("consecutive_local_origin_failure",),
    ),
    "successRate": (
        {"minimumHosts": "success_rate_minimum_hosts", "requestVolume": "success_rate_request_volume"},
        ("success_rate", "local_origin_success_rate"),
    ),
    "failurePercentage": (
        {
            "minimumHosts": "failure_percentage_minimum_hosts",
            "requestVolume": "failure_percentage_request_volume",
            "threshold": "failure_percentage_threshold",
        },
        ("failure_percentage", "failure_percentage_local_origin"),
    ),
}
_THOUSAND: Final = 1000  # Envoy counts standard deviations in thousandths


def outbound(conf: Json, _where: OverlayContext) -> Overlay:
    """The limits of a cluster, and which of its hosts are left out."""
    limits, outliers = conf.get("connectionLimits") or {}, conf.get("outlierDetection") or {}
    # Without it Envoy has no metrics of how much is left of each limit.
    thresholds = {"track_remaining": True, **_renamed(limits, _LIMITS)}
    cluster: Data = {"circuit_breakers": {"thresholds": [thresholds]}}
    if outliers and not outliers.get("disabled"):
        cluster["outlier_detection"] = _outlier_detection(outliers)
    panic = outliers.get("healthyPanicThreshold")
    if panic is not None:
        cluster["common_lb_config"] = {"healthy_panic_threshold": {"value": float(panic)}}
    return {"cluster": cluster}


def inbound(conf: Json, _ruled: tuple[InboundEntry, ...], context: OverlayContext) -> Overlay:
    """The same for the one host that a proxy stands before, whoever calls."""
    return outbound(conf, context) if conf else {}


def _outlier_detection(conf: Json) -> Data:
    detection: Data = {}
    for field, name in (("interval", "interval"), ("baseEjectionTime", "base_ejection_time")):
        if conf.get(field) is not None:
            detection[name] = proto_json.seconds(conf[field])
    if conf.get("maxEjectionPercent") is not None:
        detection["max_ejection_percent"] = conf["maxEjectionPercent"]
    else:
        # A tenth of nine hosts is less than a host, and Envoy would then leave out none.
        detection["always_eject_one_host"] = True
    if conf.get("splitExternalAndLocalErrors") is not None:
        detection["split_external_local_origin_errors"] = conf["splitExternalAndLocalErrors"]
    detectors = conf.get("detectors") or {}
    for name, (values, switches) in _DETECTORS.items():
        detector = detectors.get(name)
        detection |= _renamed(detector or {}, values)
        detection |= {f"enforcing_{switch}": 0 if detector is None else 100 for switch in switches}
    factor = (detectors.get("successRate") or {}).get("standardDeviationFactor")
    if factor is not None:
        detection["success_rate_stdev_factor"] = round(float(factor) * _THOUSAND)
    return detection


def _renamed(section: Json, names: dict[str, str]) -> Data:
    return {name: section[field] for field, name in names.items() if section.get(field) is not None}


_LIMITS_DEFAULT: Final = {
    "maxConnections": 1024,
    "maxPendingRequests": 1024,
    "maxRequests": 1024,
    "maxRetries": 3,
}
_DEFAULTS: Final = (
    DefaultPolicy(
        "mesh-circuit-breaker-all",
        {
            "targetRef": {"kind": "Mesh"},
            "to": [{"targetRef": {"kind": "Mesh"}, "default": {"connectionLimits": _LIMITS_DEFAULT}}],
        },
    ),
)


KIND = Kind(
    name="MeshCircuitBreaker",
    plural="meshcircuitbreakers",
    short="mcb",
    doc=__doc__,
    spec=MeshCircuitBreakerSpec,
    columns=columns.BOTH_WAYS,
    sync=POLICY,
    policy=Policy(
        phase=Phase.CIRCUIT_BREAKERS,
        has_to=True,
        has_from=True,
        has_rules=True,
        from_as_rules=True,
        hooks=PolicyHooks(outbound=outbound, inbound=inbound),
        mesh_defaults=_DEFAULTS,
    ),
    clean=spelling.refs,
    v1=spelling.RULES,
    validate=validate,
    warn=warn,
)
