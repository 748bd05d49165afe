"""What retries mean to Envoy: MeshRetry's sections as a route's RetryPolicy, or a TCP proxy's attempts."""

from collections.abc import Iterator
from typing import Final

from koguma.envoy import proto_json, route_matches
from koguma.envoy.proto_json import Data
from koguma.model import duration
from koguma.model.overlay import Overlay, OverlayContext
from koguma.model.schema import Json

_CONDITIONS: Final = {
    "5xx": "5xx",
    "GatewayError": "gateway-error",
    "Reset": "reset",
    "Retriable4xx": "retriable-4xx",
    "ConnectFailure": "connect-failure",
    "EnvoyRatelimited": "envoy-ratelimited",
    "RefusedStream": "refused-stream",
    "Http3PostConnectFailure": "http3-post-connect-failure",
}
_HTTP_DEFAULT: Final = ("gateway-error", "connect-failure", "refused-stream")
_GRPC_DEFAULT: Final = (
    "cancelled",
    "connect-failure",
    "gateway-error",
    "refused-stream",
    "reset",
    "resource-exhausted",
    "unavailable",
)
# A call that never reached its service is UNAVAILABLE to the caller, but to Envoy it has no gRPC status yet.
_GRPC_CONDITIONS: Final = {
    "Canceled": ("cancelled",),
    "DeadlineExceeded": ("deadline-exceeded",),
    "Internal": ("internal",),
    "ResourceExhausted": ("resource-exhausted",),
    "Unavailable": ("unavailable", "connect-failure", "refused-stream"),
}
_METHOD: Final = "HttpMethod"
_BASE_INTERVAL: Final = "25ms"
_PREDICATES: Final = "envoy.extensions.retry.host"


def outbound(conf: Json, context: OverlayContext) -> Overlay:
    """The retries of calls to others; the port's protocol says which section counts."""
    if not context.is_http:
        attempts = (conf.get("tcp") or {}).get("maxConnectAttempt")
        return {} if attempts is None else {"tcp": {"max_connect_attempts": attempts}}
    section = conf.get("grpc" if context.protocol == "grpc" else "http")
    if not section:
        return {}
    if section.get("numRetries") == 0:
        return {"route_action": {"retry_policy": {"num_retries": 0}}}
    policy = _grpc(section) if context.protocol == "grpc" else _http(section)
    return {"route_action": {"retry_policy": policy}}


def _grpc(section: Json) -> Data:
    chosen = [word for each in section.get("retryOn") or () for word in _GRPC_CONDITIONS[each]]
    return {"retry_on": ",".join(chosen or _GRPC_DEFAULT), **_tries(section)}


def _http(section: Json) -> Data:
    items = section.get("retryOn") or ()
    statuses = [int(each) for each in items if each not in _CONDITIONS and each.isdigit()]
    methods = [each.removeprefix(_METHOD).upper() for each in items if each.startswith(_METHOD)]
    conditions = [_CONDITIONS[each] for each in items if each in _CONDITIONS]
    if statuses:
        conditions.append("retriable-status-codes")
    response_headers = [route_matches.header(each) for each in section.get("retriableResponseHeaders") or ()]
    if response_headers:
        conditions += [] if conditions else _HTTP_DEFAULT
        conditions.append("retriable-headers")  # without this word Envoy does not look at them
    policy: Data = {"retry_on": ",".join(conditions or _HTTP_DEFAULT), **_tries(section)}
    for name, value in (
        ("retriable_status_codes", statuses),
        ("retriable_headers", response_headers),
        ("retriable_request_headers", list(_request_headers(section, methods))),
    ):
        if value:
            policy[name] = value
    return policy | _host_selection(section)


def _request_headers(section: Json, methods: list[str]) -> Iterator[Data]:
    for method in methods:
        yield {"name": ":method", "string_match": {"exact": method}}
    for each in section.get("retriableRequestHeaders") or ():
        yield route_matches.header(each)


def _tries(section: Json) -> Data:
    """What HTTP and gRPC have in common."""
    policy: Data = {}
    if section.get("numRetries") is not None:
        policy["num_retries"] = section["numRetries"]
    if section.get("perTryTimeout") is not None:
        policy["per_try_timeout"] = proto_json.seconds(section["perTryTimeout"])
    if section.get("backOff"):
        policy["retry_back_off"] = _back_off(section["backOff"])
    if (section.get("rateLimitedBackOff") or {}).get("resetHeaders"):
        policy["rate_limited_retry_back_off"] = _rate_limited(section["rateLimitedBackOff"])
    return policy


def _back_off(back_off: Json) -> Data:
    """The two ends of a wait; several policies may have set them, so they are put in order."""
    longest = back_off.get("maxInterval")
    shortest = back_off.get("baseInterval") or min(
        (each for each in (_BASE_INTERVAL, longest) if each), key=duration.nanoseconds
    )
    config = {"base_interval": proto_json.seconds(shortest)}
    if longest:
        config["max_interval"] = proto_json.seconds(max(shortest, longest, key=duration.nanoseconds))
    return config


def _rate_limited(back_off: Json) -> Data:
    formats = {"Seconds": "SECONDS", "UnixTimestamp": "UNIX_TIMESTAMP"}
    headers = [{"name": each["name"], "format": formats[each["format"]]} for each in back_off["resetHeaders"]]
    config: Data = {"reset_headers": headers}
    if back_off.get("maxInterval"):
        config["max_interval"] = proto_json.seconds(back_off["maxInterval"])
    return config


def _host_selection(section: Json) -> Data:
    selection: Data = {}
    for each in section.get("hostSelection") or ():
        match each["predicate"]:
            case "OmitPreviousPriorities":
                selection["retry_priority"] = proto_json.extension(
                    "envoy.retry_priorities.previous_priorities",
                    "envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
                    update_frequency=each.get("updateFrequency") or 2,
                )
            case predicate:
                selection.setdefault("retry_host_predicate", []).append(_host_predicate(predicate, each))
    if section.get("hostSelectionMaxAttempts") is not None:
        selection["host_selection_retry_max_attempts"] = section["hostSelectionMaxAttempts"]
    return selection


def _host_predicate(predicate: str, selection: Json) -> Data:
    if predicate == "OmitPreviousHosts":
        return proto_json.extension(
            "envoy.retry_host_predicates.previous_hosts",
            f"{_PREDICATES}.previous_hosts.v3.PreviousHostsPredicate",
        )
    return proto_json.extension(
        "envoy.retry_host_predicates.omit_host_metadata",
        f"{_PREDICATES}.omit_host_metadata.v3.OmitHostMetadataConfig",
        metadata_match={"filter_metadata": {"envoy.lb": dict(selection.get("tags") or {})}},
    )
