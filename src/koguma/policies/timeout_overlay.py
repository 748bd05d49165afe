"""What limits mean to Envoy: MeshTimeout's fields, each at the places where Envoy counts it.

Limits for some callers only are further routes, tried first, that look at who calls. A route cannot see a
certificate, so a filter writes down whose it is and has the route looked up again.
"""

from collections.abc import Iterator
from typing import Final

from koguma.envoy import callers, words
from koguma.envoy.callers import Caller
from koguma.envoy.words import Data
from koguma.model import duration
from koguma.model.overlay import Overlay, Ruled, Where
from koguma.model.schema import Json
from koguma.policies import calling

CALLER_FILTER: Final = "envoy.filters.http.set_filter_state"

_COMMON: Final = "common_http_protocol_options"
_Place = tuple[str, tuple[str, ...]]  # a part, and the path of a field in it

_CONNECT: Final[_Place] = ("cluster", ("connect_timeout",))
_ROUTE_LIMITS: Final[dict[tuple[str, ...], tuple[_Place, ...]]] = {
    ("http", "requestTimeout"): (("route_action", ("timeout",)),),
    ("http", "streamIdleTimeout"): (
        ("route_action", ("idle_timeout",)),
        ("hcm", ("stream_idle_timeout",)),
    ),
}
_HTTP_LIMITS: Final[dict[tuple[str, ...], tuple[_Place, ...]]] = {
    ("connectionTimeout",): (_CONNECT,),
    ("idleTimeout",): (("http_options", (_COMMON, "idle_timeout")),),
    **_ROUTE_LIMITS,
    ("http", "maxStreamDuration"): (
        ("http_options", (_COMMON, "max_stream_duration")),
        ("hcm", (_COMMON, "max_stream_duration")),
    ),
    ("http", "maxConnectionDuration"): (
        ("http_options", (_COMMON, "max_connection_duration")),
        ("hcm", (_COMMON, "max_connection_duration")),
    ),
    ("http", "requestHeadersTimeout"): (("hcm", ("request_headers_timeout",)),),
}
_TCP_LIMITS: Final[dict[tuple[str, ...], tuple[_Place, ...]]] = {
    ("connectionTimeout",): (_CONNECT,),
    ("idleTimeout",): (("tcp", ("idle_timeout",)),),
}


def outbound(conf: Json, where: Where) -> Overlay:
    """The limits of calls to others."""
    if not where.is_http:
        return _laid_out(conf, _TCP_LIMITS)
    overlay = _laid_out(conf, _HTTP_LIMITS)
    if conf.get("idleTimeout") is not None:
        # Idle time is limited at the cluster. The listener's own limit is switched off, so that only one of
        # the two counts.
        _put(overlay, "hcm", (_COMMON, "idle_timeout"), "0s")
    return overlay


def inbound(conf: Json, ruled: tuple[Ruled, ...], where: Where) -> Overlay:
    """The limits of calls that arrive: for everybody, and for some."""
    overlay = dict(outbound(conf, where))
    if where.is_http and (found := list(_for_some(ruled))):
        overlay["callers"] = found
        overlay["http_filters"] = {CALLER_FILTER: _caller_filter()}
    return overlay


def _laid_out(conf: Json, limits: dict[tuple[str, ...], tuple[_Place, ...]]) -> Data:
    overlay: Data = {}
    for field, places in limits.items():
        value = _value(conf, field)
        if value is None:
            continue
        for part, path in places:
            # Zero would close every connection after its first request; absent is Envoy's word for no limit.
            if path[-1] != "max_connection_duration" or duration.nanoseconds(value):
                _put(overlay, part, path, words.seconds(value))
    return overlay


def _value(conf: Json, field: tuple[str, ...]) -> str | None:
    for name in field:
        conf = (conf or {}).get(name)
    return conf if isinstance(conf, str) else None


def _put(overlay: Data, part: str, path: tuple[str, ...], value: Json) -> None:
    place = overlay.setdefault(part, {})
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = value


def _for_some(ruled: tuple[Ruled, ...]) -> Iterator[Data]:
    """What holds for some callers only, most specific first, with what wider entries say to the same."""
    ordered = sorted((each for each in ruled if not each.for_everybody), key=calling.specificity)
    distinct = {(each.spiffe_id, each.sni): each for each in ordered}
    for one in reversed(distinct.values()):
        action: Data = {}
        for each in ordered:
            if calling.covers(each, one):
                action |= _laid_out(each.conf, _ROUTE_LIMITS).get("route_action", {})
        if action:
            yield {"match": _match(calling.of_entry(one)), "route_action": action}


_URIS_KEY: Final = "koguma.caller"
_SERVER_NAME_KEY: Final = "koguma.server_name"


def _match(caller: Caller) -> Data:
    found = [
        {"key": _URIS_KEY, "string_match": {"safe_regex": {"regex": uri.pattern}}} for uri in caller.uris
    ]
    if caller.server_name:
        found.append({"key": _SERVER_NAME_KEY, "string_match": {"exact": caller.server_name}})
    return {"filter_state": found}


def _caller_filter() -> Data:
    values = [
        {
            "object_key": key,
            "factory_key": "envoy.string",
            "format_string": {"text_format_source": {"inline_string": text}},
        }
        for key, text in ((_URIS_KEY, callers.URIS), (_SERVER_NAME_KEY, callers.SERVER_NAME))
    ]
    return words.typed(
        "envoy.extensions.filters.http.set_filter_state.v3.Config",
        on_request_headers=values,
        clear_route_cache=True,
    )
