"""Filters: one ordered table of HTTP filters, and one of network filters, with the reason for each place.

Whoever adds a filter gives its configuration by name; where it stands is decided here alone.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from koguma.envoy.words import Data

ROUTER: Final = "envoy.filters.http.router"
RBAC: Final = "envoy.filters.http.rbac"
GRPC_STATS: Final = "envoy.filters.http.grpc_stats"
NETWORK_RBAC: Final = "envoy.filters.network.rbac"
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
    Place(
        "envoy.filters.http.local_ratelimit", "what is too much is refused before it is delayed or worked on"
    ),
    Place("envoy.filters.http.fault", "faults hit what would have been served"),
    Place(GRPC_STATS, "counts what is served, as the service sees it"),
    Place("envoy.filters.http.lua", "scripts see the request as it will be sent"),
    Place(ROUTER, "sends the request; nothing comes after it"),
)

NETWORK: Final = (
    Place(NETWORK_RBAC, "who may not call is cut off at the first byte"),
    Place("envoy.filters.network.local_ratelimit", "too many connections are refused before they are used"),
    Place(HCM, "understands requests; ends the chain"),
    Place(TCP_PROXY, "carries bytes; ends the chain"),
)

_HTTP_ORDER: Final = {place.name: index for index, place in enumerate(HTTP)}
_NETWORK_ORDER: Final = {place.name: index for index, place in enumerate(NETWORK)}


def http_chain(configs: Mapping[str, Any], discovered: Mapping[str, Data] | None = None) -> list[Data]:
    """HTTP filters in order: those with a configuration here, and those that come by themselves."""
    found = {name: {"name": name, "typed_config": config} for name, config in configs.items()}
    found |= discovered or {}
    return [found[name] for name in _sorted(found, _HTTP_ORDER, _HTTP_ORDER[ROUTER])]


def network_chain(configs: Mapping[str, Any]) -> list[Data]:
    """Network filters in order."""
    last = _NETWORK_ORDER[HCM]
    return [{"name": name, "typed_config": configs[name]} for name in _sorted(configs, _NETWORK_ORDER, last)]


def _sorted(names: Iterable[str], order: Mapping[str, int], unknown: int) -> list[str]:
    # A filter that the table does not know, of another package, stands just before the last one.
    return sorted(names, key=lambda name: (order.get(name, unknown - 0.5), name))
