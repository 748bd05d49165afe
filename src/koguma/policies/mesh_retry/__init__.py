"""How often a proxy tries again: connections, HTTP requests, gRPC calls.

MeshRetry acts on outbound traffic. The port's protocol decides which section counts: `tcp`, `http` (also for
http2) or `grpc`. `numRetries: 0` switches retries off. On a MeshHTTPRoute (`to[].targetRef.kind`) the `http`
and `grpc` sections act, on a MeshTCPRoute the `tcp` section.

`http.retryOn` takes `5xx`, `GatewayError`, `Reset`, `Retriable4xx`, `ConnectFailure`, `EnvoyRatelimited`,
`RefusedStream`, `Http3PostConnectFailure`, a status code such as `"503"`, and `HttpMethodGet` and its like,
which narrow retries to requests with one of these methods.

```yaml
type: MeshRetry
name: backend-may-be-asked-again
mesh: default
spec:
  to:
    - targetRef: {kind: MeshService, name: backend}
      default:
        http:
          numRetries: 3
          perTryTimeout: 2s
          backOff: {baseInterval: 25ms, maxInterval: 250ms}
          retryOn: [GatewayError, ConnectFailure, "429", HttpMethodGet]
```
"""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Annotated, Final, Literal

from koguma.model import columns, duration, target_ref
from koguma.model.kind import (
    POLICY,
    DefaultPolicy,
    Deprecation,
    Kind,
    Policy,
    V1Conversion,
    ValidationContext,
)
from koguma.model.overlay import PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import Duration, Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.mesh_retry import overlay
from koguma.policies.parts import fields, outbound_targets, route_matches, spelling
from koguma.policies.parts.route_matches import HttpHeaderMatch

_CONDITIONS: Final = (
    "5xx",
    "GatewayError",
    "Reset",
    "Retriable4xx",
    "ConnectFailure",
    "EnvoyRatelimited",
    "RefusedStream",
    "Http3PostConnectFailure",
)
_METHODS: Final = ("Connect", "Delete", "Get", "Head", "Options", "Patch", "Post", "Put", "Trace")
HTTP_RETRY_ON: Final = frozenset(
    {
        *_CONDITIONS,
        *(f"HttpMethod{method}" for method in _METHODS),
        *(str(status.value) for status in HTTPStatus),
    }
)
GrpcRetryOn = Literal["Canceled", "DeadlineExceeded", "Internal", "ResourceExhausted", "Unavailable"]
_INT32_MAX: Final = 2**31 - 1


class RetryBackOff(Spec):
    """How long to wait between tries: longer each time."""

    base_interval: Annotated[Duration | None, doc("The shortest wait; 25ms by default.")] = None
    max_interval: Annotated[Duration | None, doc("The longest wait; ten times the shortest by default.")] = (
        None
    )


class RetryResetHeader(Spec):
    """A response header that says when to try again."""

    name: Annotated[fields.HeaderName, doc("The header's name.")]
    format: Annotated[Literal["Seconds", "UnixTimestamp"], doc("How it tells the time.")]


class RetryRateLimitedBackOff(Spec):
    """How long to wait where the response itself says it."""

    reset_headers: Annotated[
        tuple[RetryResetHeader, ...] | None, doc("Headers to look for; the first that can be read counts.")
    ] = None
    max_interval: Annotated[Duration | None, doc("The longest wait; 300s by default.")] = None


class RetryHostSelection(Spec):
    """Which endpoints a further try leaves out."""

    predicate: Annotated[
        Literal["OmitPreviousHosts", "OmitHostsWithTags", "OmitPreviousPriorities"],
        doc("Those tried before, those with some tags, or the priorities tried before."),
    ]
    tags: Annotated[Mapping[str, str] | None, doc("The tags, for OmitHostsWithTags.")] = None
    update_frequency: Annotated[
        int, doc("After how many tries, for OmitPreviousPriorities.", ge=-_INT32_MAX, le=_INT32_MAX)
    ] = 2


class RetryTcp(Spec):
    """Tries of TCP connections."""

    max_connect_attempt: Annotated[fields.Count | None, doc("Tries before giving up.")] = None


class RetryGrpc(Spec):
    """Tries of gRPC calls."""

    num_retries: Annotated[fields.Count | None, doc("Further tries; 1 by default, 0 for none.")] = None
    per_try_timeout: Annotated[Duration | None, doc("How long one try may take; 0s for no limit.")] = None
    back_off: Annotated[RetryBackOff | None, doc("How long to wait between tries.")] = None
    rate_limited_back_off: Annotated[
        RetryRateLimitedBackOff | None, doc("How long to wait where the response says it.")
    ] = None
    retry_on: Annotated[tuple[GrpcRetryOn, ...] | None, doc("The gRPC statuses that are tried again.")] = None


class RetryHttp(Spec):
    """Tries of HTTP requests."""

    num_retries: Annotated[fields.Count | None, doc("Further tries; 1 by default, 0 for none.")] = None
    per_try_timeout: Annotated[Duration | None, doc("How long one try may take; 0s for no limit.")] = None
    back_off: Annotated[RetryBackOff | None, doc("How long to wait between tries.")] = None
    rate_limited_back_off: Annotated[
        RetryRateLimitedBackOff | None, doc("How long to wait where the response says it.")
    ] = None
    retry_on: Annotated[
        tuple[str, ...] | None, doc("What is tried again: conditions, status codes, and which methods.")
    ] = None
    retriable_response_headers: Annotated[
        tuple[HttpHeaderMatch, ...] | None, doc("Try again if the response has any of these headers.")
    ] = None
    retriable_request_headers: Annotated[
        tuple[HttpHeaderMatch, ...] | None, doc("Try again only requests with any of these headers.")
    ] = None
    host_selection: Annotated[
        tuple[RetryHostSelection, ...] | None, doc("Which endpoints a further try leaves out.")
    ] = None
    host_selection_max_attempts: Annotated[
        int | None, doc("How often another endpoint is looked for; once by default.", ge=0, le=2**63 - 1)
    ] = None


class RetryConf(Spec):
    """Tries per protocol."""

    tcp: Annotated[RetryTcp | None, doc("Tries of TCP connections.")] = None
    http: Annotated[RetryHttp | None, doc("Tries of HTTP requests.")] = None
    grpc: Annotated[RetryGrpc | None, doc("Tries of gRPC calls.")] = None


class RetryTo(Spec):
    """Tries towards one destination."""

    target_ref: Annotated[TargetRef, doc("The destination, or a route to it.")]
    default: Annotated[RetryConf, doc("Tries per protocol.")] = RetryConf()


class MeshRetrySpec(Spec):
    """Which proxies, and how often they try again."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies that this acts on; all of the mesh by default.")
    ] = None
    to: Annotated[tuple[RetryTo, ...], doc("Destinations and their tries.")] = ()


_headers_reading: Final = spelling.each(route_matches.header_reading)
_reset_reading: Final = spelling.field("rateLimitedBackOff", spelling.field("resetHeaders", _headers_reading))
_http_reading: Final = spelling.chain(
    _reset_reading,
    spelling.field("retryOn", spelling.each(spelling.word("5XX", "5xx"))),
    spelling.field("retriableResponseHeaders", _headers_reading),
    spelling.field("retriableRequestHeaders", _headers_reading),
)
_conf_reading: Final = spelling.chain(
    spelling.field("http", _http_reading), spelling.field("grpc", _reset_reading)
)
clean: Final = spelling.chain(
    spelling.refs, spelling.field("to", spelling.each(spelling.field("default", _conf_reading)))
)


def validate(spec: MeshRetrySpec, context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages at the field's own path, and what Envoy refuses beyond that."""
    top = spec.target_ref or target_ref.MESH
    yield from target_ref.violations(
        top, "spec.targetRef", outbound_targets.proxy_kinds(context), sections=False
    )
    if not spec.to:
        yield Violation("spec.to", "needs at least one item", "required")
    yield from fields.entries("spec.to", spec.to, outbound_targets.target_kinds(top), _conf)


def _conf(conf: RetryConf, path: str) -> Iterator[Violation]:
    if conf == RetryConf():
        yield Violation(path, "at least one of the 'tcp', 'http', 'grpc' must be specified", "required")
    if conf.tcp is not None:
        at = child(path, "tcp")
        if conf.tcp == RetryTcp():
            yield Violation(at, fields.MUST_NOT_BE_EMPTY, "required")
        yield from fields.positive(conf.tcp.max_connect_attempt, child(at, "maxConnectAttempt"))
    if conf.http is not None:
        yield from _http(conf.http, child(path, "http"))
    if conf.grpc is not None:
        if conf.grpc == RetryGrpc():
            yield Violation(child(path, "grpc"), fields.MUST_NOT_BE_EMPTY, "required")
        yield from _tries(conf.grpc, child(path, "grpc"))


def _http(http: RetryHttp, path: str) -> Iterator[Violation]:
    if http == RetryHttp():
        yield Violation(path, fields.MUST_NOT_BE_EMPTY, "required")
    yield from _tries(http, path)
    for index, word in enumerate(http.retry_on or ()):
        if word not in HTTP_RETRY_ON:
            yield Violation(item(child(path, "retryOn"), index), f"unknown item '{word}'", "enum")
    for field, headers in (
        ("retriableResponseHeaders", http.retriable_response_headers),
        ("retriableRequestHeaders", http.retriable_request_headers),
    ):
        yield from route_matches.header_violations(headers or (), child(path, field))
    yield from _host_selection(http.host_selection or (), child(path, "hostSelection"))


def _tries(section: RetryHttp | RetryGrpc, path: str) -> Iterator[Violation]:
    yield from fields.not_negative_duration(section.per_try_timeout, child(path, "perTryTimeout"))
    if section.back_off is not None:
        yield from _back_off(section.back_off, child(path, "backOff"))
    if section.rate_limited_back_off is not None:
        yield from _rate_limited(section.rate_limited_back_off, child(path, "rateLimitedBackOff"))


def _back_off(back_off: RetryBackOff, path: str) -> Iterator[Violation]:
    if back_off == RetryBackOff():
        yield Violation(path, fields.MUST_NOT_BE_EMPTY, "required")
    yield from fields.positive_duration(back_off.base_interval, child(path, "baseInterval"))
    yield from fields.positive_duration(back_off.max_interval, child(path, "maxInterval"))
    if back_off.base_interval is not None and back_off.max_interval is not None:
        longest = duration.nanoseconds(back_off.max_interval)
        if 0 < longest < duration.nanoseconds(back_off.base_interval):
            yield Violation(child(path, "maxInterval"), "must not be less than baseInterval", "range")


def _rate_limited(back_off: RetryRateLimitedBackOff, path: str) -> Iterator[Violation]:
    if not back_off.reset_headers:
        yield Violation(child(path, "resetHeaders"), fields.MUST_BE_DEFINED, "required")
    if back_off.max_interval is not None and duration.nanoseconds(back_off.max_interval) <= 0:
        yield Violation(child(path, "maxInterval"), "must be defined and greater than zero", "range")


def _host_selection(predicates: tuple[RetryHostSelection, ...], path: str) -> Iterator[Violation]:
    priorities = 0
    for index, each in enumerate(predicates):
        at = item(path, index)
        if each.predicate == "OmitHostsWithTags" and each.tags is None:
            yield Violation(child(at, "tags"), fields.MUST_BE_DEFINED, "required")
        if each.predicate == "OmitPreviousPriorities":
            priorities += 1
            if priorities > 1:
                message = f"{each.predicate} must only be specified once"
                yield Violation(child(at, "predicate"), message, "unique")
            if each.update_frequency <= 0:
                message = "must be defined and greater than zero"
                yield Violation(child(at, "updateFrequency"), message, "range")


def warn(spec: MeshRetrySpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations, and sections that cannot act where they stand."""
    yield from target_ref.warnings(spec.target_ref)
    for index, entry in enumerate(spec.to):
        conf, kind = entry.default, entry.target_ref.kind
        idle = {"MeshHTTPRoute": ("tcp",), "MeshTCPRoute": ("http", "grpc")}.get(kind, ())
        for name, section in (("tcp", conf.tcp), ("http", conf.http), ("grpc", conf.grpc)):
            if section is not None and name in idle:
                yield f"spec.to[{index}].default.{name} has no effect on a {kind}"
        if conf.http is not None:
            at = f"spec.to[{index}].default.http"
            for field, headers in (
                ("retriableResponseHeaders", conf.http.retriable_response_headers),
                ("retriableRequestHeaders", conf.http.retriable_request_headers),
            ):
                yield from route_matches.header_warnings(headers or (), child(at, field))


_V1: Final = V1Conversion(lacks=(Deprecation("spec.to[].default.http.retryOn[]", "write 5xx", value="5XX"),))


_HTTP_DEFAULT: Final = {
    "numRetries": 5,
    "perTryTimeout": "16s",
    "backOff": {"baseInterval": "25ms", "maxInterval": "250ms"},
}
_CONF_DEFAULT: Final = {"tcp": {"maxConnectAttempt": 5}, "http": _HTTP_DEFAULT, "grpc": _HTTP_DEFAULT}
_DEFAULTS: Final = (
    DefaultPolicy(
        "mesh-retry-all",
        {"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "Mesh"}, "default": _CONF_DEFAULT}]},
    ),
)


KIND = Kind(
    name="MeshRetry",
    plural="meshretries",
    short="mr",
    display=("Mesh Retry", "Mesh Retries"),
    doc=__doc__,
    spec=MeshRetrySpec,
    columns=columns.OUTBOUND,
    sync=POLICY,
    policy=Policy(
        phase=Phase.RETRIES,
        has_to=True,
        hooks=PolicyHooks(outbound=overlay.outbound),
        mesh_defaults=_DEFAULTS,
        set_by_rules=(
            ("http.perTryTimeout", "timeouts.backendRequest"),
            ("grpc.perTryTimeout", "timeouts.backendRequest"),
            ("http", "retry"),
            ("grpc", "retry"),
        ),
    ),
    clean=clean,
    v1=_V1,
    validate=validate,
    warn=warn,
)
