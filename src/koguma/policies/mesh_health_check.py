"""Whether a host is well: checks that a proxy makes on its own, beside the traffic.

MeshHealthCheck acts on outbound traffic. Each proxy asks every host of a destination at an interval and
sends nothing to those that do not answer well. Which section counts follows from the port's protocol:
`http` for HTTP ports, `grpc` for gRPC ports, `tcp` for the others and where the fitting one is disabled. A
check goes the way of a request: the destination's permissions have to allow it, and its rate limits count it.

```yaml
type: MeshHealthCheck
name: backend-is-well
mesh: default
spec:
  to:
    - targetRef: {kind: MeshService, name: backend}
      default:
        interval: 10s
        timeout: 2s
        unhealthyThreshold: 3
        healthyThreshold: 1
        http:
          path: /health
          expectedStatuses: [200, 204]
          requestHeadersToAdd:
            set: [{name: x-health-check, value: koguma}]
```
"""

import base64
from collections.abc import Iterator
from typing import Annotated, Final

from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data
from koguma.model import columns, target_ref
from koguma.model.kind import POLICY, Deprecation, Kind, Policy, V1Conversion, ValidationContext
from koguma.model.overlay import Overlay, OverlayContext, PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import Base64, Duration, IntOrString, Json, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import fields, headers, spelling
from koguma.policies.parts.fields import Count, HeaderValues


class TcpCheck(Spec):
    """A check by connecting and, where asked for, by what comes back."""

    disabled: Annotated[bool | None, doc("Switch it off.")] = None
    send: Annotated[Base64 | None, doc("What to send, in base64; nothing by default.")] = None
    receive: Annotated[
        tuple[Base64, ...] | None, doc("What must come back, in base64, in this order with gaps allowed.")
    ] = None


class HttpCheck(Spec):
    """A check by a request."""

    disabled: Annotated[bool | None, doc("Switch it off.")] = None
    path: Annotated[str | None, doc("The path to ask for; / by default.")] = None
    request_headers_to_add: Annotated[HeaderValues | None, doc("Headers of the request.")] = None
    expected_statuses: Annotated[
        tuple[int, ...] | None, doc("Status codes of a healthy answer; 200 by default.")
    ] = None


class GrpcCheck(Spec):
    """A check by the gRPC health service."""

    disabled: Annotated[bool | None, doc("Switch it off.")] = None
    service_name: Annotated[str | None, doc("The service to ask about.")] = None
    authority: Annotated[str | None, doc("The :authority header; the cluster's name by default.")] = None


class HealthCheckConf(Spec):
    """How and how often to ask."""

    interval: Annotated[Duration | None, doc("Time between two checks; 1m by default.")] = None
    unhealthy_interval: Annotated[
        Duration | None, doc("The same for a host that is not well; as interval by default.")
    ] = None
    timeout: Annotated[Duration | None, doc("Time to wait for an answer; 15s by default.")] = None
    unhealthy_threshold: Annotated[
        Count | None, doc("Bad answers in a row that make a host unwell; 5 by default.")
    ] = None
    healthy_threshold: Annotated[
        Count | None, doc("Good answers in a row that make a host well; 1 by default.")
    ] = None
    initial_jitter: Annotated[Duration | None, doc("The first check waits up to this long.")] = None
    interval_jitter: Annotated[Duration | None, doc("Added to each interval, up to this long.")] = None
    interval_jitter_percent: Annotated[int | None, doc("The same, as a share of the interval.")] = None
    healthy_panic_threshold: Annotated[
        IntOrString | None, doc("Older place of MeshCircuitBreaker's outlierDetection.healthyPanicThreshold.")
    ] = None
    fail_traffic_on_panic: Annotated[
        bool | None, doc("With too few healthy hosts, refuse requests instead of using all hosts.")
    ] = None
    event_log_path: Annotated[fields.ProxyFile | None, doc("A file for events of the checks.")] = None
    always_log_health_check_failures: Annotated[
        bool | None, doc("Log every bad answer, not only the first.")
    ] = None
    no_traffic_interval: Annotated[
        Duration | None, doc("The interval while no request was sent to the destination; 60s by default.")
    ] = None
    tcp: Annotated[TcpCheck | None, doc("For TCP ports.")] = None
    http: Annotated[HttpCheck | None, doc("For HTTP ports.")] = None
    grpc: Annotated[GrpcCheck | None, doc("For gRPC ports.")] = None
    reuse_connection: Annotated[bool | None, doc("Keep the connection between checks; true by default.")] = (
        None
    )


class HealthCheckTo(Spec):
    """Checks of one destination's hosts."""

    target_ref: Annotated[TargetRef, doc("The destination.")]
    default: Annotated[HealthCheckConf, doc("How and how often to ask.")] = HealthCheckConf()


class MeshHealthCheckSpec(Spec):
    """Which proxies, and how they check the hosts that they call."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies that this acts on; all of the mesh by default.")
    ] = None
    to: Annotated[tuple[HealthCheckTo, ...], doc("The destinations.")] = ()


_TO_KINDS = ("Mesh", *target_ref.DESTINATIONS)


def validate(spec: MeshHealthCheckSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    top = spec.target_ref or target_ref.MESH
    yield from target_ref.violations(top, "spec.targetRef", target_ref.PROXIES, sections=False)
    yield from fields.entries("spec.to", spec.to, _TO_KINDS, _conf)


def _conf(conf: HealthCheckConf, path: str) -> Iterator[Violation]:
    yield from _times(conf, path)
    for name, threshold in (
        ("unhealthyThreshold", conf.unhealthy_threshold),
        ("healthyThreshold", conf.healthy_threshold),
    ):
        if threshold is not None and threshold <= 0:
            yield Violation(child(path, name), "must be greater than zero when defined", "range")
    yield from fields.percent_whole(conf.interval_jitter_percent, child(path, "intervalJitterPercent"))
    yield from fields.percent(conf.healthy_panic_threshold, child(path, "healthyPanicThreshold"))
    if conf.event_log_path is not None and not fields.is_path(conf.event_log_path):
        yield Violation(child(path, "eventLogPath"), "must be a valid path when defined", "path")
    if conf.http is not None:
        yield from _http(conf.http, child(path, "http"))
    if conf.http is None and conf.tcp is None and conf.grpc is None:
        yield Violation(path, "must have at least one defined: http, tcp, grpc", "required")


def _times(conf: HealthCheckConf, path: str) -> Iterator[Violation]:
    for name, value in (
        ("interval", conf.interval),
        ("unhealthyInterval", conf.unhealthy_interval),
        ("timeout", conf.timeout),
        ("initialJitter", conf.initial_jitter),
        ("intervalJitter", conf.interval_jitter),
        ("noTrafficInterval", conf.no_traffic_interval),
    ):
        yield from fields.positive_duration(value, child(path, name))


def _http(check: HttpCheck, path: str) -> Iterator[Violation]:
    if check.path == "":
        yield Violation(child(path, "path"), fields.MUST_BE_DEFINED, "required")
    for index, status in enumerate(check.expected_statuses or ()):
        yield from fields.status(status, item(child(path, "expectedStatuses"), index))


def warn(spec: MeshHealthCheckSpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations."""
    yield from target_ref.warnings(spec.target_ref)
    for index, entry in enumerate(spec.to):
        if entry.default.healthy_panic_threshold is not None:
            yield (
                f"spec.to[{index}].default.healthyPanicThreshold is deprecated, use MeshCircuitBreaker's"
                " outlierDetection.healthyPanicThreshold"
            )


# Envoy requires all of these.
_DEFAULTS: Final = {"interval": "1m", "timeout": "15s", "unhealthyThreshold": 5, "healthyThreshold": 1}
_TIMES: Final = {
    "interval": "interval",
    "unhealthyInterval": "unhealthy_interval",
    "timeout": "timeout",
    "initialJitter": "initial_jitter",
    "intervalJitter": "interval_jitter",
    "noTrafficInterval": "no_traffic_interval",
}
_VALUES: Final = {
    "unhealthyThreshold": "unhealthy_threshold",
    "healthyThreshold": "healthy_threshold",
    "intervalJitterPercent": "interval_jitter_percent",
    "alwaysLogHealthCheckFailures": "always_log_health_check_failures",
    "reuseConnection": "reuse_connection",
}


def outbound(conf: Json, context: OverlayContext) -> Overlay:
    """How the hosts of a cluster are asked, and what happens when few of them are well."""
    cluster: Data = {}
    problems: Data = {}
    path = conf.get("eventLogPath")
    if path and not context.machine.may_write(path):
        problems["eventLogPath"] = context.machine.refusal(path)
        conf = {name: part for name, part in conf.items() if name != "eventLogPath"}
    checker = _checker(conf, context)
    if checker:
        cluster["health_checks"] = [{**_common({**_DEFAULTS, **conf}), **checker}]
    balancing: Data = {}
    if conf.get("healthyPanicThreshold") is not None:
        balancing["healthy_panic_threshold"] = {"value": float(conf["healthyPanicThreshold"])}
    if conf.get("failTrafficOnPanic") is not None:
        balancing["zone_aware_lb_config"] = {"fail_traffic_on_panic": conf["failTrafficOnPanic"]}
    if balancing:
        cluster["common_lb_config"] = balancing
    return {**({"cluster": cluster} if cluster else {}), **({"problems": problems} if problems else {})}


def _common(conf: Json) -> Data:
    config: Data = {
        name: proto_json.seconds(conf[field]) for field, name in _TIMES.items() if conf.get(field)
    }
    config |= {name: conf[field] for field, name in _VALUES.items() if conf.get(field) is not None}
    if conf.get("eventLogPath"):
        sink = proto_json.extension(
            "envoy.health_check.event_sinks.file",
            "envoy.extensions.health_check.event_sinks.file.v3.HealthCheckEventFileSink",
            event_log_path=conf["eventLogPath"],
        )
        config["event_logger"] = [sink]
    return config


def _checker(conf: Json, context: OverlayContext) -> Data:
    """The section for a port's protocol; where that one is disabled, connecting is enough."""
    fitting = "grpc" if context.protocol == "grpc" else "http" if context.is_http else "tcp"
    section, tcp = conf.get(fitting), conf.get("tcp")
    if section is not None and not section.get("disabled"):
        match fitting:
            case "grpc":
                return {"grpc_health_check": _grpc(section)}
            case "http":
                return {"http_health_check": _request(section, context.protocol)}
    if section is not None and tcp is not None and not tcp.get("disabled"):
        return {"tcp_health_check": _tcp(tcp)}
    return {}


def _request(check: Json, protocol: str) -> Data:
    config: Data = {"path": check.get("path") or "/"}
    if protocol == "http2":
        config["codec_client_type"] = "HTTP2"
    if added := headers.added(check.get("requestHeadersToAdd") or {}):
        config["request_headers_to_add"] = added
    if statuses := check.get("expectedStatuses"):
        config["expected_statuses"] = [{"start": each, "end": each + 1} for each in statuses]
    return config


def _grpc(check: Json) -> Data:
    config = {"service_name": check.get("serviceName"), "authority": check.get("authority")}
    return {name: value for name, value in config.items() if value}


def _tcp(check: Json) -> Data:
    config: Data = {}
    if check.get("send"):
        config["send"] = _payload(check["send"])
    if check.get("receive"):
        config["receive"] = [_payload(each) for each in check["receive"] if each]
    return config


def _payload(text: str) -> Data:
    return {"text": base64.b64decode(text).hex()}


def sets_panic_threshold(spec: Json) -> bool:
    """Whether it has the threshold that belongs to MeshCircuitBreaker by now."""
    confs = ((entry.get("default") or {}) for entry in spec.get("to") or ())
    return any(conf.get("healthyPanicThreshold") is not None for conf in confs)


_V1: Final = V1Conversion(
    keeps=(
        Deprecation(
            "spec.to[].default.healthyPanicThreshold",
            "write it in MeshCircuitBreaker's outlierDetection",
            kept="it is an object of its own",
        ),
    )
)


KIND = Kind(
    name="MeshHealthCheck",
    plural="meshhealthchecks",
    short="mhc",
    doc=__doc__,
    spec=MeshHealthCheckSpec,
    columns=columns.OUTBOUND,
    sync=POLICY,
    policy=Policy(
        phase=Phase.HEALTH_CHECKS,
        has_to=True,
        hooks=PolicyHooks(outbound=outbound),
        sets_shared_field=sets_panic_threshold,
    ),
    clean=spelling.refs,
    v1=_V1,
    validate=validate,
    warn=warn,
)
