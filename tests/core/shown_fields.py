"""Where a field of a shown conf stands in what Envoy gets: one row for each field of which that is known."""

from collections.abc import Callable
from typing import Any, NamedTuple

from koguma.envoy import proto_json

OPTIONS = 'typed_extension_protocol_options["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]'
COMMON = "common_http_protocol_options"
THRESHOLDS = "circuit_breakers.thresholds[0]"
OUTLIERS = "outlier_detection"
CHECK = "health_checks[0]"
BUCKET = "typed_config.token_bucket"
TLS = "common_tls_context.tls_params"

ANY = ("http", "http2", "grpc", "tcp")
HTTP = ("http", "http2", "grpc")


class Field(NamedTuple):
    """A field of a kind's conf, values to draw from, and where it stands in Envoy's configuration."""

    kind: str
    path: str
    values: tuple[Any, ...]
    part: str  # cluster, hcm, tcp (the filter), route (its action), extension, tls
    at: str  # in that part
    protocols: tuple[str, ...] = ANY  # of ports where it acts
    envoy: Callable[[Any], Any] = lambda value: value
    when: tuple[str, Any] = ("", None)  # another field, and the value by which this one acts


def _seconds(value: str) -> str:
    return str(proto_json.seconds(value))


def _timeout(path: str, part: str, at: str, protocols: tuple[str, ...] = HTTP) -> Field:
    return Field("MeshTimeout", path, ("3s", "4s", "70s", "2m"), part, at, protocols, _seconds)


def _limit(path: str, at: str) -> Field:
    return Field("MeshCircuitBreaker", f"connectionLimits.{path}", (3, 4, 5), "cluster", f"{THRESHOLDS}.{at}")


def _outlier(path: str, at: str) -> Field:
    return Field("MeshCircuitBreaker", f"outlierDetection.{path}", (3, 4, 5), "cluster", f"{OUTLIERS}.{at}")


def _outlier_time(path: str, at: str) -> Field:
    return _outlier(path, at)._replace(values=("3s", "4s"), envoy=_seconds)


def _retry(section: str, path: str, at: str, *protocols: str) -> Field:
    return Field("MeshRetry", f"{section}.{path}", (1, 2, 3), "route", f"retry_policy.{at}", protocols)


def _retry_time(section: str, path: str, at: str, *protocols: str) -> Field:
    return _retry(section, path, at, *protocols)._replace(values=("3s", "4s"), envoy=_seconds)


def _check(path: str, at: str) -> Field:
    return Field("MeshHealthCheck", path, (3, 4, 5), "cluster", f"{CHECK}.{at}")


def _check_time(path: str, at: str) -> Field:
    return _check(path, at)._replace(values=("3s", "4s"), envoy=_seconds)


def _balancing(path: str, values: tuple[Any, ...], at: str, type_: str) -> Field:
    when = ("loadBalancer.type", type_)
    envoy = str if at.endswith("_size") else int  # as proto JSON writes 64 and 32 bits
    return Field(
        "MeshLoadBalancingStrategy", f"loadBalancer.{path}", values, "cluster", at, envoy=envoy, when=when
    )


_ALGORITHMS = {
    "LeastRequest": "LEAST_REQUEST",
    "RingHash": "RING_HASH",
    "Maglev": "MAGLEV",
    "Random": "RANDOM",
    "RoundRobin": None,  # Envoy's default, which is not written
}
_VERSIONS = {"TLS12": "TLSv1_2", "TLS13": "TLSv1_3"}

OUTBOUND = (
    _timeout("connectionTimeout", "cluster", "connect_timeout", ANY),
    _timeout("idleTimeout", "cluster", f"{OPTIONS}.{COMMON}.idle_timeout"),
    _timeout("idleTimeout", "tcp", "idle_timeout", ("tcp",)),
    _timeout("http.requestTimeout", "route", "timeout"),
    _timeout("http.streamIdleTimeout", "route", "idle_timeout"),
    _timeout("http.streamIdleTimeout", "hcm", "stream_idle_timeout"),
    _timeout("http.maxStreamDuration", "cluster", f"{OPTIONS}.{COMMON}.max_stream_duration"),
    _timeout("http.maxStreamDuration", "hcm", f"{COMMON}.max_stream_duration"),
    _timeout("http.maxConnectionDuration", "cluster", f"{OPTIONS}.{COMMON}.max_connection_duration"),
    _timeout("http.maxConnectionDuration", "hcm", f"{COMMON}.max_connection_duration"),
    _timeout("http.requestHeadersTimeout", "hcm", "request_headers_timeout"),
    _limit("maxConnections", "max_connections"),
    _limit("maxConnectionPools", "max_connection_pools"),
    _limit("maxPendingRequests", "max_pending_requests"),
    _limit("maxRetries", "max_retries"),
    _limit("maxRequests", "max_requests"),
    _outlier("maxEjectionPercent", "max_ejection_percent"),
    _outlier("detectors.totalFailures.consecutive", "consecutive_5xx"),
    _outlier("detectors.gatewayFailures.consecutive", "consecutive_gateway_failure"),
    _outlier("detectors.localOriginFailures.consecutive", "consecutive_local_origin_failure"),
    _outlier("detectors.successRate.minimumHosts", "success_rate_minimum_hosts"),
    _outlier("detectors.successRate.requestVolume", "success_rate_request_volume"),
    _outlier_time("interval", "interval"),
    _outlier_time("baseEjectionTime", "base_ejection_time"),
    _retry("http", "numRetries", "num_retries", "http", "http2"),
    _retry("grpc", "numRetries", "num_retries", "grpc"),
    _retry_time("http", "perTryTimeout", "per_try_timeout", "http", "http2"),
    _retry_time("grpc", "perTryTimeout", "per_try_timeout", "grpc"),
    _retry_time("http", "backOff.baseInterval", "retry_back_off.base_interval", "http", "http2"),
    Field("MeshRetry", "tcp.maxConnectAttempt", (3, 4, 5), "tcp", "max_connect_attempts", ("tcp",)),
    _check_time("interval", "interval"),
    _check_time("timeout", "timeout"),
    _check_time("noTrafficInterval", "no_traffic_interval"),
    _check("unhealthyThreshold", "unhealthy_threshold"),
    _check("healthyThreshold", "healthy_threshold"),
    _check("http.path", "http_health_check.path")._replace(values=("/a", "/b"), protocols=("http", "http2")),
    _check("grpc.serviceName", "grpc_health_check.service_name")._replace(
        values=("a", "b"), protocols=("grpc",)
    ),
    Field(
        "MeshLoadBalancingStrategy",
        "loadBalancer.type",
        tuple(_ALGORITHMS),
        "cluster",
        "lb_policy",
        envoy=_ALGORITHMS.__getitem__,
    ),
    _balancing("leastRequest.choiceCount", (3, 4), "least_request_lb_config.choice_count", "LeastRequest"),
    _balancing(
        "ringHash.minRingSize", (128, 256), "ring_hash_lb_config.minimum_ring_size", "RingHash"
    )._replace(
        envoy=str  # as proto JSON writes 64 bits
    ),
    _balancing("maglev.tableSize", (11, 13), "maglev_lb_config.table_size", "Maglev"),
)

INBOUND = (
    *(row for row in OUTBOUND if row.kind in ("MeshTimeout", "MeshCircuitBreaker")),
    Field(
        "MeshRateLimit",
        "local.tcp.connectionRate.num",
        (3, 4, 5),
        "extension",
        f"{BUCKET}.max_tokens",
        ("tcp",),
    ),
    Field(
        "MeshRateLimit",
        "local.tcp.connectionRate.interval",
        ("3s", "4s"),
        "extension",
        f"{BUCKET}.fill_interval",
        ("tcp",),
        _seconds,
    ),
    Field(
        "MeshTLS",
        "tlsVersion.min",
        tuple(_VERSIONS),
        "tls",
        f"{TLS}.tls_minimum_protocol_version",
        envoy=_VERSIONS.__getitem__,
    ),
)

WHOLE = (
    Field("MeshTrace", "sampling.overall", (3, 40), "hcm", "tracing.overall_sampling.value", HTTP, float),
    Field("MeshTrace", "sampling.random", (3, 40), "hcm", "tracing.random_sampling.value", HTTP, float),
    Field("MeshTrace", "sampling.client", (3, 40), "hcm", "tracing.client_sampling.value", HTTP, float),
)
