"""Passthrough matches: the filter chains that let a proxy call named destinations outside the mesh.

Envoy chooses a filter chain step by step and never goes back: first by port, then by the most specific
address range, then by server name, transport and application protocol. So a match for all ports has to be
repeated at every port that another match names, and a match for a range in every smaller range: otherwise the
more specific step would hide it. Whatever no chain matches goes to the listener's default filter chain.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from koguma.core.build import skeletons
from koguma.core.build.clusters import HTTP_OPTIONS
from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

HTTP_PROTOCOLS: Final = ("http", "http2", "grpc")
_ALL_PORTS: Final = 0
_ANY_DOMAIN: Final = "*"
_IDLE_TIMEOUT: Final = "3600s"
_DENIED: Final = {
    "status": 503,
    "body": {"inline_string": "a policy of the mesh does not let this proxy call that host\n"},
}
_HTTP2: Final = {
    HTTP_OPTIONS: proto_json.typed(HTTP_OPTIONS, explicit_http_config={"http2_protocol_options": {}})
}
_TLS_INSPECTOR: Final = proto_json.extension(
    "envoy.filters.listener.tls_inspector", "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"
)
_HTTP_INSPECTOR: Final = proto_json.extension(
    "envoy.filters.listener.http_inspector",
    "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector",
)


class PassthroughMatch(msgspec.Struct, frozen=True, order=True):
    """A destination outside the mesh that a proxy may call."""

    protocol: str
    value: str  # as written
    port: int = _ALL_PORTS
    domain: str = ""  # may begin with `*.`, or be `*`

    @property
    def name(self) -> str:
        """Of its cluster; the colons of IPv6 addresses would split names of statistics."""
        return f"meshpassthrough_{self.protocol}_{self.value.replace(':', '-')}_{self.port or '*'}"

    @property
    def network(self) -> Network | None:
        """Its address range; None for a domain."""
        return None if self.domain else ipaddress.ip_network(self.value, strict=False)


def original_dst_clusters(matches: Sequence[PassthroughMatch]) -> Iterator[Data]:
    """A cluster for each match, which calls the original destination of a connection."""
    for match in matches:
        cluster: Data = {
            "name": match.name,
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "connect_timeout": "5s",
        }
        if match.protocol in ("http2", "grpc"):
            cluster["typed_extension_protocol_options"] = _HTTP2
        yield cluster


def of_family(matches: Sequence[PassthroughMatch], family: int) -> tuple[PassthroughMatch, ...]:
    """The matches that connections of an IP version can have, each once, in order."""
    networks = {match: match.network for match in matches}
    return tuple(sorted(match for match, of in networks.items() if of is None or of.version == family))


def listener_filters(matches: Sequence[PassthroughMatch]) -> Iterator[Data]:
    """The inspectors that tell the matched protocols apart.

    They wait for the client's first bytes, so they are off at ports where the server speaks first (MySQL).
    """
    ports = sorted({match.port for match in matches if match.protocol == "mysql"})
    ranges = [{"destination_port_range": {"start": port, "end": port + 1}} for port in ports]
    disabled = ranges[0] if len(ranges) == 1 else {"or_match": {"rules": ranges}}
    off = {"filter_disabled": disabled} if ranges else {}
    if any(match.protocol == "tls" for match in matches):
        yield {**_TLS_INSPECTOR, **off}
    if any(match.protocol in HTTP_PROTOCOLS for match in matches):
        yield {**_HTTP_INSPECTOR, **off}


def filter_chains(
    name: str, matches: Sequence[PassthroughMatch], closed_ports: Sequence[int]
) -> Iterator[Data]:
    """The filter chains of a listener for these matches, all of one IP version."""
    ports = {match.port for match in matches if match.port != _ALL_PORTS and match.port not in closed_ports}
    for port in (_ALL_PORTS, *sorted(ports)):
        at_port = [match for match in matches if match.port in (_ALL_PORTS, port)]
        networks = {network for match in at_port if (network := match.network) is not None}
        for network in (None, *sorted(networks, key=str)):
            criteria: Data = {"destination_port": port} if port else {}
            if network is not None:
                prefix = {"address_prefix": str(network.network_address), "prefix_len": network.prefixlen}
                criteria["prefix_ranges"] = [prefix]
            yield from _chains(name, criteria, [match for match in at_port if _covers(match, network)])


def _covers(match: PassthroughMatch, network: Network | None) -> bool:
    """Whether a match allows all addresses of a range."""
    own = match.network
    return own is None or (network is not None and network.subnet_of(own))  # type: ignore[arg-type]


def _chains(name: str, criteria: Data, matches: Sequence[PassthroughMatch]) -> Iterator[Data]:
    """The chains of one port and one address range."""
    best = sorted(matches, key=_specificity, reverse=True)
    tcp = [match for match in best if match.protocol in ("tcp", "mysql")]
    http = [match for match in best if match.protocol in HTTP_PROTOCOLS]
    by_server_name: dict[str, PassthroughMatch] = {}
    for match in best:
        if match.protocol == "tls":
            by_server_name.setdefault("" if match.domain in ("", _ANY_DOMAIN) else match.domain, match)
    for server_name, match in sorted(by_server_name.items()):
        names = {"server_names": [server_name]} if server_name else {}
        yield _tcp_chain(name, {**criteria, "transport_protocol": "tls", **names}, match)
    if http:
        versions = ["http/1.0", "http/1.1", "h2c"]
        is_http = {"transport_protocol": "raw_buffer", "application_protocols": versions}
        yield {
            "filter_chain_match": {**criteria, **is_http},
            "filters": _http_filters(name, http, tcp[0] if tcp else None),
        }
    if tcp:
        yield _tcp_chain(name, criteria, tcp[0])


def _specificity(match: PassthroughMatch) -> tuple[int, bool, PassthroughMatch]:
    network = match.network
    return (network.prefixlen if network else -1, match.port != _ALL_PORTS, match)


def _tcp_chain(name: str, criteria: Data, match: PassthroughMatch) -> Data:
    proxy = skeletons.tcp_proxy(name, {"cluster": match.name}, _IDLE_TIMEOUT)
    return {"filter_chain_match": criteria, "filters": skeletons.chain({"tcp": proxy})}


def _http_filters(
    name: str, matches: Sequence[PassthroughMatch], otherwise: PassthroughMatch | None
) -> list[Data]:
    """An HTTP connection manager that routes by host; unmatched hosts go to `otherwise`, or get 503."""
    by_domain: dict[str, PassthroughMatch] = {}
    for match in matches:
        by_domain.setdefault(match.domain or _ANY_DOMAIN, match)
    if otherwise is not None:
        by_domain.setdefault(_ANY_DOMAIN, otherwise)
    hosts = [
        {"name": match.name, "domains": [domain], "routes": [_route(match)]}
        for domain, match in sorted(by_domain.items())
    ]
    if _ANY_DOMAIN not in by_domain:
        route = {"match": {"prefix": "/"}, "direct_response": _DENIED}
        hosts.append({"name": skeletons.NOWHERE, "domains": [_ANY_DOMAIN], "routes": [route]})
    hcm = {
        "stat_prefix": name,
        "route_config": {"name": name, "ignore_port_in_host_matching": True, "virtual_hosts": hosts},
        "internal_address_config": skeletons.hcm(name)["internal_address_config"],
        "server_header_transformation": "PASS_THROUGH",
        "upgrade_configs": [{"upgrade_type": "websocket"}],
    }
    return skeletons.chain({"hcm": hcm, "http_filters": skeletons.http_filters("http")})


def _route(match: PassthroughMatch) -> Data:
    # The application decides how long it waits: without this Envoy would after 15 seconds.
    return {"match": {"prefix": "/"}, "route": {"cluster": match.name, "timeout": "0s"}}
