"""Filters: one ordered table of HTTP filters, and one of network filters, with the reason for each place.

Whoever adds a filter gives its configuration by name; where it stands is decided here alone. A filter that
stands in a chain more than once has a key for each further instance, `again(FAULT, "its-own-name")`: what
comes before the slash says where it stands, what comes after is the name by which Envoy and routes know it.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from koguma.envoy.proto_json import Data

ROUTER: Final = "envoy.filters.http.router"
RBAC: Final = "envoy.filters.http.rbac"
GRPC_STATS: Final = "envoy.filters.http.grpc_stats"
LOCAL_RATELIMIT: Final = "envoy.filters.http.local_ratelimit"
FAULT: Final = "envoy.filters.http.fault"
NETWORK_RBAC: Final = "envoy.filters.network.rbac"
NETWORK_LOCAL_RATELIMIT: Final = "envoy.filters.network.local_ratelimit"
HCM: Final = "envoy.filters.network.http_connection_manager"
TCP_PROXY: Final = "envoy.filters.network.tcp_proxy"


class Place(NamedTuple):
    """A filter's place in its chain."""

    name: str
    why: str


HTTP: Final = (
    Place(RBAC, "who may not call costs nothing more than this"),
    Place("envoy.filters.http.set_filter_state", "what later filters and routes look at"),
    Place("envoy.filters.http.jwt_authn", "who the user is, before anything is decided by it"),
    Place("envoy.filters.http.ext_authz", "the same, by somebody else"),
    Place(LOCAL_RATELIMIT, "what is too much is refused before it is delayed or worked on"),
    Place(FAULT, "faults hit what would have been served"),
    Place(GRPC_STATS, "counts what is served, as the service sees it"),
    Place("envoy.filters.http.lua", "scripts see the request as it will be sent"),
    Place(ROUTER, "sends the request; nothing comes after it"),
)

NETWORK: Final = (
    Place(NETWORK_RBAC, "who may not call is cut off at the first byte"),
    Place(NETWORK_LOCAL_RATELIMIT, "too many connections are refused before they are used"),
    Place(HCM, "understands requests; ends the chain"),
    Place(TCP_PROXY, "carries bytes; ends the chain"),
)

_HTTP_ORDER: Final = {place.name: index for index, place in enumerate(HTTP)}
_NETWORK_ORDER: Final = {place.name: index for index, place in enumerate(NETWORK)}


_AGAIN: Final = "/"


def again(name: str, own_name: str) -> str:
    """The key of a further instance of a filter; several stand in the order of their own names."""
    return f"{name}{_AGAIN}{own_name}"


def numbered(name: str, number: int) -> str:
    """The key of one of several equal instances, which act in the order of their numbers."""
    return name if number == 1 else again(name, f"{name}.{number:02}")


# Places that a listener for calls that arrive keeps for what comes with the routes. Whoever needs more of
# them changes the listener, and acts on connections that are made from then on.
PLACES: Final = (LOCAL_RATELIMIT, *(numbered(FAULT, number) for number in (1, 2, 3)))


def name_of(key: str) -> str:
    """The name by which Envoy and routes know the filter of a key."""
    name, again_, own_name = key.partition(_AGAIN)
    return own_name if again_ and (name in _HTTP_ORDER or name in _NETWORK_ORDER) else key


def http_chain(configs: Mapping[str, Any], whole: Mapping[str, Data] | None = None) -> list[Data]:
    """HTTP filters in order: those with a configuration here, and whole ones, which have theirs elsewhere."""
    return _chain(configs, whole, _HTTP_ORDER, _HTTP_ORDER[ROUTER])


def network_chain(configs: Mapping[str, Any], whole: Mapping[str, Data] | None = None) -> list[Data]:
    """Network filters in order, likewise."""
    return _chain(configs, whole, _NETWORK_ORDER, _NETWORK_ORDER[HCM])


def _chain(
    configs: Mapping[str, Any], whole: Mapping[str, Data] | None, order: Mapping[str, int], last: int
) -> list[Data]:
    found = {key: {"name": name_of(key), "typed_config": config} for key, config in configs.items()}
    found |= whole or {}

    def place(key: str) -> tuple[float, str]:
        # A filter that the table does not know, of another package, stands just before the last one.
        return order.get(key.partition(_AGAIN)[0], last - 0.5), key

    return [found[key] for key in sorted(found, key=place)]
