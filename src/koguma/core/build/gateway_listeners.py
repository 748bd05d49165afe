"""Gateway listeners: where a built-in gateway takes connections from outside, one listener for each port.

Requests of HTTP are told apart by their host, connections with TLS by their server name (SNI): a filter chain
for each host name. Where there is no certificate for a name, its handshakes are refused, and no others.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from koguma.core import items
from koguma.core.build import (
    added_resources,
    addresses,
    backends,
    cross_mesh,
    encoding,
    gateway_certificates,
    gateway_filters,
    gateway_hosts,
    gateway_overlays,
    inbound_listener,
    logs,
    outbound_listeners,
    overlay_merge,
    skeletons,
)
from koguma.core.build.backends import BackendPort, OriginalDestination
from koguma.core.build.clusters import ClientContext
from koguma.core.build.gateway_certificates import ListenerCertificates
from koguma.core.build.gateway_overlays import RouteTarget
from koguma.core.build.gateway_spec import GatewayPort, ServedListener
from koguma.core.gateways import attached
from koguma.core.incremental import Db, question
from koguma.core.items import Entries
from koguma.core.policy_set import Policies
from koguma.envoy import filters, names, route_settings, server_tls, snapshot
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Failure, Id, XdsResource
from koguma.model import hostname, target_ref
from koguma.model.resource import Key

_LIMITED_HANDSHAKE: Final[Data] = {"transport_socket_connect_timeout": "10s"}
# What Envoy's manual recommends where clients are not trusted: little is held for each of them.
_BUFFER_BYTES: Final = 32 * 1024
_HTTP2: Final[Data] = {
    "allow_connect": True,
    "max_concurrent_streams": 100,
    "initial_stream_window_size": 64 * 1024,
    "initial_connection_window_size": 1024 * 1024,
}


class GatewayChain(msgspec.Struct, frozen=True):
    """A filter chain, what it needs, and what comes beside the listener."""

    data: Data
    needs: tuple[Id, ...] = ()
    resources: tuple[XdsResource | Failure, ...] = ()


@question
def listener(
    db: Db, port: GatewayPort, client: ClientContext, address: str
) -> tuple[XdsResource | Failure, ...]:
    """The listener of a port at an address."""
    name = encoding.kri(db, port.gateway, str(port.number))
    if not name:
        return (encoding.nameless(snapshot.LISTENER, port.gateway),)
    if not addresses.is_ip(address):
        text = f'"{address}" is no IP, and Envoy needs one; write networking.address of the Dataplane'
        return (Failure(snapshot.LISTENER, name, text, str(port.gateway)),)
    closed = cross_mesh.problem(db, port) if port.is_cross_mesh else ""
    if closed:  # a failure of the listener itself would let proxies keep the last one, with CAs of then
        return (Failure("port", name, closed, str(port.gateway)),)
    chains = tuple(_chains(db, port, client, name))
    beside = tuple(each for chain in chains for each in chain.resources)
    tags = {"kuma.io/unified-name": name}
    data = skeletons.listener(name, ((address, port.number),), "INBOUND", tags, skeletons.ListenerBinding())
    data["per_connection_buffer_limit_bytes"] = _BUFFER_BYTES
    if port.listeners[0].listener.has_tls:
        data["listener_filters"] = [inbound_listener.TLS_INSPECTOR]
    data["filter_chains"] = [chain.data for chain in chains]
    needs = dict.fromkeys(id_ for chain in chains for id_ in chain.needs)
    return *beside, encoding.encoded(db, snapshot.LISTENER, name, data, needs, str(port.gateway))


def _chains(db: Db, port: GatewayPort, client: ClientContext, name: str) -> Iterator[GatewayChain]:
    if not port.listeners[0].listener.has_tls:
        yield _plain_chain(db, port, client, name)
        return
    for each in sorted(port.listeners, key=lambda each: hostname.precedence(each.listener.hostname)):
        yield from _tls_chains(db, port, client, name, each)


def _plain_chain(db: Db, port: GatewayPort, client: ClientContext, name: str) -> GatewayChain:
    """The one chain of a port whose clients do not speak TLS; the first listener's policies shape it."""
    first = port.listeners[0]
    if first.listener.is_http:
        return _http_chain(db, first, client, name, port.gateway)
    return _tcp_chain(db, port, port.listeners[0], client, name, _entries(db, port.listeners))


def _tls_chains(
    db: Db, port: GatewayPort, client: ClientContext, name: str, served: ServedListener
) -> Iterator[GatewayChain]:
    """The chains of a listener, by server name; without one in the hello only that of `*` is left.

    Requests are told apart by their host later. Connections are not, so that each host has a chain.
    """
    own, chain_name = served.listener, names.on_host(name, served.listener.hostname)
    if own.is_cross_mesh:
        server_names = cross_mesh.server_names(port, own) if own.hostname != hostname.ANY else []
        chain = _http_chain(db, served, client, chain_name, port.gateway)
        named = _matched(chain_name, server_names)
        secured = {**named, **chain.data, **cross_mesh.transport(port), **_LIMITED_HANDSHAKE}
        yield GatewayChain(secured, (*chain.needs, *cross_mesh.needs(port, own)), chain.resources)
        return
    certificates = gateway_certificates.of(db, port.gateway, own.section) if own.ends_tls else None
    failures = tuple(_failures(certificates, chain_name, port.gateway)) if certificates else ()
    if certificates and not certificates.secrets:
        refusing = {**_matched(chain_name, _server_names(own.hostname)), "filters": [server_tls.REFUSAL]}
        yield GatewayChain(refusing, (), failures)
    elif own.is_http:
        chain = _http_chain(db, served, client, chain_name, port.gateway)
        yield _secured(chain, own.hostname, chain_name, certificates, server_tls.HTTP_ALPN, failures)
    else:
        for host, entries in _tls_hosts(db, port, served):
            host_name = names.on_host(name, host)
            chain = _tcp_chain(db, port, served, client, host_name, entries)
            yield _secured(chain, host, host_name, certificates, (), failures)


def _matched(name: str, server_names: list[str]) -> Data:
    match = {"transport_protocol": "tls", **({"server_names": server_names} if server_names else {})}
    return {"name": name, "filter_chain_match": match}


def _server_names(host: str) -> list[str]:
    return [host] if host != hostname.ANY else []


def _secured(
    chain: GatewayChain,
    host: str,
    name: str,
    certificates: ListenerCertificates | None,
    alpn: tuple[str, ...],
    failures: tuple[Failure, ...],
) -> GatewayChain:
    """The chain of a host name; without certificates, TLS is passed through."""
    data = {**_matched(name, _server_names(host)), **chain.data}
    if certificates is None:
        return GatewayChain(data, chain.needs, chain.resources)
    data["transport_socket"] = server_tls.socket(certificates.secrets, alpn)
    data |= _LIMITED_HANDSHAKE
    secrets = ((snapshot.SECRET, secret) for secret in certificates.secrets)
    return GatewayChain(data, (*chain.needs, *secrets), (*chain.resources, *failures))


def _failures(certificates: ListenerCertificates, name: str, gateway: Key) -> Iterator[Failure]:
    for problem in certificates.problems:
        yield Failure("certificate", name, f"{problem.path}: {problem}", str(gateway))
    if certificates.problem and not certificates.problems:
        yield Failure("certificate", name, certificates.problem, str(gateway))


def _http_chain(
    db: Db, served: ServedListener, client: ClientContext, name: str, gateway: Key
) -> GatewayChain:
    admits_meshes = served.listener.is_cross_mesh
    where = client.where("http", names.resource(name), is_gateway=True, admits_meshes=admits_meshes)
    of_listener = gateway_overlays.of(db, served.acting, where)
    of_routes = {
        encoding.kri(db, key, ""): gateway_overlays.of_route(db, served.acting, where, RouteTarget(key))
        for key in gateway_overlays.named_routes(db, served.acting)
    }
    # Filters that act where a route says so are there in any case: a new route changes no listener.
    http_filters = {**route_settings.FILTERS, **skeletons.http_filters("http")}
    skeleton = {"hcm": _hcm(name), "http_filters": http_filters}
    parts = overlay_merge.with_overlays(skeleton, of_listener.overlays)
    parts = logs.with_logs(parts, of_routes)
    needs = ((snapshot.ROUTES, name), *added_resources.needed(parts))
    beside = (*of_listener.failures, *added_resources.clusters(db, parts))
    on_routes = gateway_filters.on_listener((of_listener, *of_routes.values()))
    if admits_meshes:
        section = served.listener.section
        beside = (*beside, inbound_listener.permission(db, section, parts, gateway))
        parts = inbound_listener.with_denials(parts)
        on_routes = {**on_routes, filters.RBAC: inbound_listener.permission_filter(section)}
    return GatewayChain({"filters": skeletons.chain(parts, on_routes)}, needs, beside)


def _hcm(name: str) -> Data:
    """The connection manager of a listener whose clients are not trusted."""
    return {
        **skeletons.inbound_hcm(name, is_edge=True),
        "http2_protocol_options": _HTTP2,
        "common_http_protocol_options": {
            "idle_timeout": skeletons.INBOUND_IDLE_TIMEOUT,
            # Many programs read `a_b` and `a-b` as one header, and so would take what a client adds for ours.
            "headers_with_underscores_action": "REJECT_REQUEST",
        },
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
        "strip_trailing_host_dot": True,
    }


def _tcp_chain(
    db: Db, port: GatewayPort, served: ServedListener, client: ClientContext, name: str, entries: Entries
) -> GatewayChain:
    where = client.where("tcp", names.resource(name), is_gateway=True)
    target, backend_ports, route = _split(db, port, entries, client)
    backend = backend_ports[0] if len(backend_ports) == 1 else None
    policy_overlays = gateway_overlays.of_route(db, served.acting, where, RouteTarget(route, backend))
    skeleton = {"tcp": skeletons.tcp_proxy(name, target, skeletons.INBOUND_IDLE_TIMEOUT)}
    parts = logs.with_logs(overlay_merge.with_overlays(skeleton, policy_overlays.overlays))
    parts["network_filters"] = {**(parts.get("network_filters") or {}), **(parts.get("extensions") or {})}
    needs = (*outbound_listeners.cluster_ids(db, backend_ports), *added_resources.needed(parts))
    beside = (*policy_overlays.failures, *added_resources.clusters(db, parts))
    return GatewayChain({"filters": skeletons.chain(parts)}, needs, beside)


def tcp_backends(db: Db, port: GatewayPort, client: ClientContext) -> tuple[BackendPort, ...]:
    """The backends that the TCP and TLS chains of a port need."""
    if port.listeners[0].listener.is_http:
        return ()
    groups = [_entries(db, port.listeners)]
    if port.protocol == "TLS":
        groups = [entries for served in port.listeners for _, entries in _tls_hosts(db, port, served)]
    return tuple(dict.fromkeys(each for entries in groups for each in _split(db, port, entries, client)[1]))


def _entries(db: Db, served: tuple[ServedListener, ...]) -> Entries:
    """The entries of routes for connections to some listeners, in ascending precedence."""
    policies = Policies.of(sorted({key for each in served for key in each.of(target_ref.TCP_ROUTE)}))
    return tuple(route.entry for route in reversed(attached(db, policies).members))


def _tls_hosts(db: Db, port: GatewayPort, served: ServedListener) -> Iterator[tuple[str, Entries]]:
    """The host names that a TLS listener tells apart, each with the entries of its routes."""
    routes = served.of(target_ref.TCP_ROUTE)
    for host in gateway_hosts.served(db, served.listener, routes, port.hostnames):
        yield host.hostname, tuple(entry for _, group in reversed(host.routes) for entry in group)


def _split(
    db: Db, port: GatewayPort, entries: Entries, client: ClientContext
) -> tuple[Data, tuple[BackendPort, ...], Key | None]:
    """Where connections go, and the route that says so; without one they are closed."""
    conf = items.conf(db, entries) if entries else {}
    origin = entries[-1].policy if entries else None
    original = OriginalDestination(
        Key(port.gateway.kind, port.gateway.mesh, client.zone, "", port.gateway.name), "", is_http=False
    )
    split, backend_ports = backends.split(db, conf.get("backendRefs"), origin or port.gateway, original)
    return outbound_listeners.tcp_target(split), backend_ports, origin
