"""Filters: the order of HTTP filters and of network filters, with the reason for each position.

Filters are given by name with their configuration; their order is decided here alone. A filter that is in a
chain more than once has a key for each further instance, `instance_key(FAULT, "its-own-name")`: the part
before the slash decides its position, the part after it is its name in Envoy and in routes.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from koguma.envoy.proto_json import Data

ROUTER: Final = "envoy.filters.http.router"
RBAC: Final = "envoy.filters.http.rbac"
GRPC_STATS: Final = "envoy.filters.http.grpc_stats"
LOCAL_RATELIMIT: Final = "envoy.filters.http.local_ratelimit"
FAULT: Final = "envoy.filters.http.fault"
CORS: Final = "envoy.filters.http.cors"
STATEFUL_SESSION: Final = "envoy.filters.http.stateful_session"
NETWORK_RBAC: Final = "envoy.filters.network.rbac"
NETWORK_LOCAL_RATELIMIT: Final = "envoy.filters.network.local_ratelimit"
HCM: Final = "envoy.filters.network.http_connection_manager"
TCP_PROXY: Final = "envoy.filters.network.tcp_proxy"


class FilterPosition(NamedTuple):
    """The position of a filter in its chain, and the reason."""

    name: str
    why: str


HTTP: Final = (
    FilterPosition(CORS, "preflights carry no credentials, and browsers must be able to read every refusal"),
    FilterPosition(RBAC, "denied callers cost nothing more than this"),
    FilterPosition("envoy.filters.http.set_filter_state", "sets what later filters and routes read"),
    FilterPosition("envoy.filters.http.jwt_authn", "authenticates the user before anything depends on it"),
    FilterPosition("envoy.filters.http.ext_authz", "the same, by an external server"),
    FilterPosition(LOCAL_RATELIMIT, "excess requests are refused before they are delayed or served"),
    FilterPosition(FAULT, "faults hit requests that would have been served"),
    FilterPosition(GRPC_STATS, "counts the requests that are served"),
    FilterPosition("envoy.filters.http.lua", "scripts see the request as it will be sent"),
    FilterPosition(STATEFUL_SESSION, "chooses the endpoint of a request that is about to be sent"),
    FilterPosition(ROUTER, "sends the request; nothing comes after it"),
)

NETWORK: Final = (
    FilterPosition(NETWORK_RBAC, "denied callers are disconnected at the first byte"),
    FilterPosition(NETWORK_LOCAL_RATELIMIT, "too many connections are refused before they are used"),
    FilterPosition(HCM, "terminal: HTTP"),
    FilterPosition(TCP_PROXY, "terminal: TCP"),
)

_HTTP_ORDER: Final = {position.name: index for index, position in enumerate(HTTP)}
_NETWORK_ORDER: Final = {position.name: index for index, position in enumerate(NETWORK)}


_SEPARATOR: Final = "/"


def instance_key(name: str, own_name: str) -> str:
    """The key of a further instance of a filter; several are in the order of their own names."""
    return f"{name}{_SEPARATOR}{own_name}"


def numbered_key(name: str, number: int) -> str:
    """The key of one of several instances, which act in the order of their numbers."""
    return name if number == 1 else instance_key(name, f"{name}.{number:02}")


# Filters that every inbound listener has, disabled, so that routes can configure them without a change of the
# listener. A policy that needs more instances changes the listener, which acts on new connections only.
RESERVED: Final = (LOCAL_RATELIMIT, *(numbered_key(FAULT, number) for number in (1, 2, 3)))


def name_of(key: str) -> str:
    """The name of a key's filter in Envoy and in routes."""
    name, separator, own_name = key.partition(_SEPARATOR)
    return own_name if separator and (name in _HTTP_ORDER or name in _NETWORK_ORDER) else key


def http_chain(configs: Mapping[str, Any], whole: Mapping[str, Data] | None = None) -> list[Data]:
    """HTTP filters in order: from their configurations by key, and whole ones, which may have none inline."""
    return _chain(configs, whole, _HTTP_ORDER, _HTTP_ORDER[ROUTER])


def network_chain(configs: Mapping[str, Any], whole: Mapping[str, Data] | None = None) -> list[Data]:
    """Network filters in order, likewise."""
    return _chain(configs, whole, _NETWORK_ORDER, _NETWORK_ORDER[HCM])


def _chain(
    configs: Mapping[str, Any], whole: Mapping[str, Data] | None, order: Mapping[str, int], last: int
) -> list[Data]:
    filters = {key: {"name": name_of(key), "typed_config": config} for key, config in configs.items()}
    filters |= whole or {}

    def position(key: str) -> tuple[float, str]:
        # A filter that the table does not have, from another package, comes just before the last one.
        return order.get(key.partition(_SEPARATOR)[0], last - 0.5), key

    return [filters[key] for key in sorted(filters, key=position)]
