"""Redirected chains: the filter chains for calls to domains and addresses that have no listener of their own.

The kernel redirects all calls to one listener. Of those to no virtual address, some are matched: by a
MeshExternalService, which says where they go, or by a MeshPassthrough, which lets them pass.

Envoy chooses a filter chain step by step and never goes back: first by port, then by the most specific
address range, then by server name, transport and application protocol. So a match for all ports has to be
repeated at every port that another match names, and a match for a range in every smaller range: otherwise the
more specific step would hide it. Whatever no chain matches goes to the listener's default filter chain.

All HTTP of one port and range has one filter chain, in which the host of a request decides. What acts before
a host is known, such as a time limit for request headers, holds where all services of the chain agree on it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from koguma.core.build import overlay_merge, skeletons
from koguma.core.build.overlay_merge import Parts
from koguma.envoy import access_logs, filters, proto_json, route_settings, snapshot
from koguma.envoy import routes as envoy_routes
from koguma.envoy.external import SAME_HEADER_CASE
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Id
from koguma.model import ip_range
from koguma.model.ip_range import IpRange
from koguma.model.schema import Json

HTTP_PROTOCOLS: Final = ("http", "http2", "grpc")
ALL_PORTS: Final = 0
ANY_DOMAIN: Final = "*"
_CLIENT_FIRST: Final = (80, 443, 8080, 8443, 9092, 9093, 50051)
_HTTP_VERSIONS: Final = ("http/1.0", "http/1.1", "h2c")
_ROUTER_TYPE: Final = "envoy.extensions.filters.http.router.v3.Router"
_DENIED: Final = {
    "status": 503,
    "body": {"inline_string": "the mesh does not let this proxy call that host\n"},
}
_TLS_INSPECTOR: Final = proto_json.extension(
    "envoy.filters.listener.tls_inspector", "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"
)
_HTTP_INSPECTOR: Final = proto_json.extension(
    "envoy.filters.listener.http_inspector",
    "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector",
)


class ChainTarget(msgspec.Struct, frozen=True, eq=False):
    """Where matched calls go, and what policies say about them."""

    name: str  # of a virtual host
    tcp: Parts  # of a filter chain without HTTP
    routes: Sequence[Data]  # of HTTP
    needs: tuple[Id, ...]
    http: Parts = {}  # what policies add to an HTTP connection manager
    is_service: bool = False  # a MeshExternalService goes before a policy that lets the same calls pass


class ChainMatch(msgspec.Struct, frozen=True, eq=False):
    """Calls that a target takes: to a domain, or to addresses."""

    target: ChainTarget
    protocol: str
    port: int = ALL_PORTS
    domain: str = ""  # may begin with `*.`, or be `*`
    addresses: IpRange | None = None

    @property
    def precedence(self) -> tuple[int, bool, bool, str]:
        """Of several matches for the same calls, the smallest one acts."""
        size = -self.addresses.prefixlen if self.addresses is not None else 1
        return size, self.port == ALL_PORTS, not self.target.is_service, self.target.name


class RedirectedChains(msgspec.Struct, frozen=True):
    """Filter chains, the route configurations of those with HTTP, and what the chains themselves need."""

    chains: tuple[Data, ...]
    route_configs: tuple[tuple[Data, tuple[Id, ...]], ...]  # each with what it needs
    needs: tuple[Id, ...]
    clusters: Mapping[str, Data]  # that policies add


def of_family(matches: Iterable[ChainMatch], family: int) -> tuple[ChainMatch, ...]:
    """The matches that connections of an IP version can have, in order of precedence."""
    possible = (match for match in matches if match.addresses is None or match.addresses.version == family)
    return tuple(sorted(possible, key=lambda match: match.precedence))


def listener_filters(matches: Sequence[ChainMatch]) -> Iterator[Data]:
    """The inspectors that tell the matched protocols apart.

    They wait for the client's first bytes. So they are off where the server speaks first (MySQL), and on only
    where they have to be, and at the usual ports of HTTP and TLS: a change of the ports replaces the whole
    listener, which closes all of its connections after the drain time.
    """
    server_first = {match.port for match in matches if match.protocol == "mysql"}
    ports = {match.port for match in matches if match.protocol in (*HTTP_PROTOCOLS, "tls")}
    if ALL_PORTS in ports:
        off = {"filter_disabled": _any_port(server_first)} if server_first else {}
    else:
        off = {"filter_disabled": {"not_match": _any_port({*ports, *_CLIENT_FIRST} - server_first)}}
    for inspector in (_TLS_INSPECTOR, _HTTP_INSPECTOR) if ports else ():
        yield {**inspector, **off}


def _any_port(ports: Iterable[int]) -> Data:
    ranges = [{"destination_port_range": {"start": port, "end": port + 1}} for port in sorted(ports)]
    return ranges[0] if len(ranges) == 1 else {"or_match": {"rules": ranges}}


def built(
    name: str, matches: Sequence[ChainMatch], otherwise: ChainTarget | None, closed_ports: Sequence[int]
) -> RedirectedChains:
    """The chains of a listener for matches of one IP version, given in order of precedence.

    Requests for other hosts than the matched ones go to `otherwise`, or are answered with 503.
    """
    chains: list[Data] = []
    route_configs: dict[str, tuple[Data, tuple[Id, ...]]] = {}
    needs: dict[Id, None] = {}
    clusters: dict[str, Data] = {}
    for cell in _cells(matches, closed_ports):
        tcp = next((match.target for match in cell.matches if match.protocol in ("tcp", "mysql")), None)
        for server_name, target in _by_server_name(cell.matches):
            names = {"server_names": [server_name]} if server_name else {}
            chains.append(_chain({**cell.criteria, "transport_protocol": "tls", **names}, target.tcp))
            needs |= dict.fromkeys(target.needs)
            clusters |= target.tcp.get("clusters") or {}
        http = [match for match in cell.matches if match.protocol in HTTP_PROTOCOLS]
        if http:
            hosts = _hosts(http, tcp or otherwise)
            config_name = _route_config_name(name, cell.port, hosts.get(ANY_DOMAIN), otherwise)
            parts = _http_parts(name, config_name, http, hosts)
            is_http = {"transport_protocol": "raw_buffer", "application_protocols": list(_HTTP_VERSIONS)}
            chains.append(_chain({**cell.criteria, **is_http}, parts))
            if config_name not in route_configs:
                route_configs[config_name] = _route_config(config_name, hosts)
            needs[snapshot.ROUTES, config_name] = None
            clusters |= parts.get("clusters") or {}
        if tcp is not None:
            chains.append(_chain(cell.criteria, tcp.tcp))
            needs |= dict.fromkeys(tcp.needs)
            clusters |= tcp.tcp.get("clusters") or {}
    needs |= dict.fromkeys((snapshot.CLUSTER, cluster) for cluster in sorted(clusters))
    return RedirectedChains(tuple(chains), tuple(route_configs.values()), tuple(needs), clusters)


class _Cell(msgspec.Struct, frozen=True, eq=False):
    """A port and an address range, between which Envoy chooses first, and all matches that it can have."""

    port: int
    criteria: Data
    matches: Sequence[ChainMatch]


def _cells(matches: Sequence[ChainMatch], closed_ports: Sequence[int]) -> Iterator[_Cell]:
    ports = {match.port for match in matches if match.port not in (ALL_PORTS, *closed_ports)}
    for port in (ALL_PORTS, *sorted(ports)):
        at_port = [match for match in matches if match.port in (ALL_PORTS, port)]
        ranges = {match.addresses for match in at_port if match.addresses is not None}
        for addresses in (None, *sorted(ranges, key=str)):
            criteria: Data = {"destination_port": port} if port else {}
            if addresses is not None:
                prefix = {"address_prefix": str(addresses.network_address), "prefix_len": addresses.prefixlen}
                criteria["prefix_ranges"] = [prefix]
            there = [match for match in at_port if _covers(match, addresses)]
            if there:
                yield _Cell(port, criteria, there)


def _covers(match: ChainMatch, addresses: IpRange | None) -> bool:
    """Whether a match is about all addresses of a range; without one, about all addresses."""
    if match.addresses is None:
        return True
    return addresses is not None and ip_range.covers(match.addresses, addresses)


def _by_server_name(matches: Sequence[ChainMatch]) -> Iterator[tuple[str, ChainTarget]]:
    """The targets of TLS by server name; the empty one stands for all others."""
    targets: dict[str, ChainTarget] = {}
    for match in matches:
        if match.protocol == "tls":
            targets.setdefault("" if match.domain == ANY_DOMAIN else match.domain, match.target)
    return iter(sorted(targets.items()))


def _chain(criteria: Data, parts: Parts) -> Data:
    return {"filter_chain_match": criteria, "filters": skeletons.chain(parts)}


def _http_parts(
    name: str, route_config: str, matches: Sequence[ChainMatch], hosts: Mapping[str, ChainTarget]
) -> Parts:
    """The parts of a chain in which hosts decide. Requests for unknown hosts pass as unchanged as can be."""
    protocol = "grpc" if any(match.protocol == "grpc" for match in matches) else "http"
    parts: Parts = {
        "hcm": {
            "stat_prefix": name,
            "rds": skeletons.rds(route_config),
            "internal_address_config": skeletons.hcm(name)["internal_address_config"],
            "http_protocol_options": {"accept_http_10": True, **SAME_HEADER_CASE},
            "http2_protocol_options": {"allow_connect": True},
            "server_header_transformation": "PASS_THROUGH",
            "generate_request_id": False,
            "proxy_100_continue": True,
            "skip_xff_append": True,
            "upgrade_configs": [{"upgrade_type": "websocket"}],
        },
        "http_filters": {
            **route_settings.required_filters(route for each in hosts.values() for route in each.routes),
            **skeletons.http_filters(protocol),
            filters.ROUTER: proto_json.typed(_ROUTER_TYPE, suppress_envoy_headers=True),
        },
    }
    services = [target for target in dict.fromkeys(hosts.values()) if target.is_service]
    if services:
        parts = overlay_merge.with_overlays(parts, [_agreed([target.http for target in services])])
    if "tracing" in parts["hcm"]:  # a trace is sampled by the request's id
        parts["hcm"] = {**parts["hcm"], "generate_request_id": True}
    logs = [
        access_logs.on_virtual_host(log, target.name)
        for target in services
        for log in (target.http.get("hcm") or {}).get("access_log") or ()
    ]
    if logs:
        parts["hcm"] = {**parts["hcm"], "access_log": logs}
    return parts


def _agreed(all_parts: Sequence[Parts]) -> Parts:
    """What the policies of all services say alike, with all the clusters that they need."""
    names = ("hcm", "http_filters", "network_filters")
    agreed = {name: _common([parts.get(name) or {} for parts in all_parts]) for name in names}
    hcm = [{**(parts.get("hcm") or {}), "access_log": None} for parts in all_parts]
    nested = {
        name: _common([each.get(name) or {} for each in hcm])
        for name in hcm[0]
        if all(isinstance(each.get(name), Mapping) for each in hcm)
    }
    agreed["hcm"] = {**nested, **_common(hcm)}
    del agreed["hcm"]["access_log"]
    clusters = {name: data for parts in all_parts for name, data in (parts.get("clusters") or {}).items()}
    return {name: part for name, part in {**agreed, "clusters": clusters}.items() if part}


def _common(maps: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """The fields that all maps have, with equal values."""
    first, *others = maps
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


def _hosts(matches: Sequence[ChainMatch], otherwise: ChainTarget | None) -> dict[str, ChainTarget]:
    """Where the requests of one chain go, by host, in order."""
    targets: dict[str, ChainTarget] = {}
    for match in matches:
        targets.setdefault(match.domain or ANY_DOMAIN, match.target)
    if otherwise is not None:
        targets.setdefault(ANY_DOMAIN, otherwise)
    return dict(sorted(targets.items()))


def _route_config_name(
    listener: str, port: int, unnamed: ChainTarget | None, otherwise: ChainTarget | None
) -> str:
    """The name of the routes of a chain.

    All chains of a port have the same hosts, and differ only in who gets requests for none of these.
    """
    name = f"{listener}_{port or '*'}"
    return name if unnamed is None or unnamed is otherwise else f"{name}_{unnamed.name}"


def _route_config(name: str, targets: Mapping[str, ChainTarget]) -> tuple[Data, tuple[Id, ...]]:
    """The routes by host, and what they need."""
    domains: dict[ChainTarget, list[str]] = {}
    for domain, target in targets.items():
        domains.setdefault(target, []).append(domain)
    hosts = [envoy_routes.virtual_host(target.name, target.routes, on) for target, on in domains.items()]
    if ANY_DOMAIN not in targets:
        route = {"match": {"prefix": "/"}, "direct_response": _DENIED}
        hosts.append(envoy_routes.virtual_host(skeletons.NOWHERE, [route]))
    config = envoy_routes.route_configuration(name, hosts)
    needs = dict.fromkeys(need for target in domains for need in target.needs)
    return {**config, "ignore_port_in_host_matching": True}, tuple(needs)
