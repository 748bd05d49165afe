"""Skeletons: the parts of listeners that inbounds and outbounds share, before policies change them."""

from collections.abc import Iterable
from typing import Final

import msgspec

from koguma.core.build import overlay_merge
from koguma.envoy import filters, proto_json
from koguma.envoy.proto_json import Data
from koguma.model.schema import Json

_HCM_TYPE: Final = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_TCP_TYPE: Final = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
_ROUTER: Final = proto_json.typed("envoy.extensions.filters.http.router.v3.Router")
_GRPC_STATS: Final = proto_json.typed(
    "envoy.extensions.filters.http.grpc_stats.v3.FilterConfig",
    emit_filter_state=False,
    stats_for_all_methods=True,
)
_LOOPBACK: Final = [
    {"address_prefix": "127.0.0.1", "prefix_len": 32},
    {"address_prefix": "::1", "prefix_len": 128},
]

# By default Envoy listens with SO_REUSEPORT, and the kernel spreads the connections of a port over all
# processes that do so: another proxy on the machine would silently take connections of this one. Without it
# the second proxy gets "Address already in use". The workers of one Envoy share the socket either way.
EXCLUSIVE: Final[Data] = {"enable_reuse_port": False}

INBOUND_IDLE_TIMEOUT: Final = "7200s"
# A client that sends the headers of a request very slowly would hold a connection for as long as it likes
# (slowloris). A MeshTimeout may set another value.
_HEADERS_TIMEOUT: Final = "10s"

# A cluster that does not exist: Envoy closes connections that are routed to it.
NOWHERE: Final = "_kuma_no_destination"


class ListenerBinding(msgspec.Struct, frozen=True):
    """Whether Envoy binds a listener's addresses itself, and whether other processes may bind them too.

    Envoy refuses a change of `is_shared` for a listener that it has, so it depends only on what is constant
    while an Envoy runs.
    """

    is_bound: bool = True
    is_shared: bool = False


def hcm(name: str) -> Data:
    """An HTTP connection manager whose routes are sent apart (RDS)."""
    return {
        "stat_prefix": name,
        "rds": rds(name),
        "normalize_path": True,
        "internal_address_config": {"cidr_ranges": _LOOPBACK},
        "http2_protocol_options": {"allow_connect": True},
        "upgrade_configs": [{"upgrade_type": "websocket"}],
    }


# Nobody in front of an edge is trusted: what clients write into `x-forwarded-for` is kept, followed by the
# address that they came from, and their `x-envoy-*` headers are removed.
_AT_THE_EDGE: Final[Data] = {"use_remote_address": True, "internal_address_config": {}}
_BEHIND_THE_EDGE: Final[Data] = {"original_ip_detection_extensions": [proto_json.NO_PROXY_IN_FRONT]}


def inbound_hcm(name: str, *, is_edge: bool = False) -> Data:
    """The HTTP connection manager of an inbound or of a gateway, whose callers are not trusted."""
    return {
        **hcm(name),
        **(_AT_THE_EDGE if is_edge else _BEHIND_THE_EDGE),
        # Kuma's defaults, without any MeshTimeout; with Envoy's, idle connections are closed after an hour.
        "common_http_protocol_options": {"idle_timeout": INBOUND_IDLE_TIMEOUT},
        "stream_idle_timeout": "3600s",
        "request_headers_timeout": _HEADERS_TIMEOUT,
    }


def rds(name: str) -> Data:
    """The RDS source of a route configuration."""
    return {"route_config_name": name, "config_source": proto_json.ADS}


def http_filters(protocol: str) -> Data:
    """The HTTP filters that a listener has in any case."""
    grpc = {filters.GRPC_STATS: _GRPC_STATS} if protocol == "grpc" else {}
    return {**grpc, filters.ROUTER: _ROUTER}


def tcp_proxy(name: str, target: Json, idle_timeout: str) -> Data:
    """A TcpProxy to a cluster, or to weighted clusters."""
    return {"stat_prefix": name, "idle_timeout": idle_timeout, **target}


def chain(parts: overlay_merge.Parts, whole: Data | None = None) -> list[Data]:
    """The network filters of a filter chain, from the parts of a skeleton.

    `whole` are filters with their own configuration source: HTTP filters where the protocol is HTTP.
    """
    configs = dict(parts.get("network_filters") or {})
    if "hcm" not in parts:
        configs[filters.TCP_PROXY] = proto_json.typed(_TCP_TYPE, **parts["tcp"])
        return filters.network_chain(configs, whole)
    http = filters.http_chain(parts["http_filters"], whole)
    configs[filters.HCM] = proto_json.typed(_HCM_TYPE, **parts["hcm"], http_filters=http)
    return filters.network_chain(configs)


def listener(
    name: str, addresses: Iterable[tuple[str, int]], direction: str, tags: Json, binding: ListenerBinding
) -> Data:
    """A listener without filter chains; of several addresses the first is the listener's own."""
    first, *more = [proto_json.address(ip, port) for ip, port in addresses]
    data: Data = {
        "name": name,
        "stat_prefix": name,
        "address": first,
        "traffic_direction": direction,
        "metadata": {"filter_metadata": {"io.kuma.tags": tags}},
    }
    if more:
        data["additional_addresses"] = [{"address": each} for each in more]
    if not binding.is_bound:
        return {**data, "bind_to_port": False}
    return data if binding.is_shared else {**data, **EXCLUSIVE}
