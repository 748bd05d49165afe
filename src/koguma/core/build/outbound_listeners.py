"""Outbound listeners: the listener of a destination's port, with its filter chain and routes.

Routes are sent as a RouteConfiguration of their own (RDS), so that a changed rule closes no connection. A
port that speaks HTTP gets the rules of MeshHTTPRoutes, or, where only a MeshTCPRoute is attached to it, that
one; any other port gets MeshTCPRoutes.
"""

from collections.abc import Iterable

import msgspec

from koguma.core import items, rules, world
from koguma.core.build import (
    added_resources,
    backends,
    encoding,
    external,
    logs,
    outbound_routes,
    outbound_shards,
    overlay_merge,
    overlays,
    skeletons,
)
from koguma.core.build.backends import BackendPort, OriginalDestination
from koguma.core.build.clusters import ClientContext
from koguma.core.build.outbound_clusters import Required, RequiredCluster
from koguma.core.build.outbound_rules import ShardRules
from koguma.core.build.overlays import PolicyOverlays
from koguma.core.build.skeletons import ListenerBinding
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.items import ByKind, Entries
from koguma.core.rules import PortRules
from koguma.core.world import Pairs
from koguma.envoy import names, route_settings, snapshot
from koguma.envoy import routes as envoy_routes
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Bundle, Failure, Id, XdsResource
from koguma.model import target_ref
from koguma.model.overlay import OverlayContext
from koguma.model.resource import Key

Addresses = tuple[tuple[str, int], ...]

_TCP_IDLE_TIMEOUT = "3600s"


class OutboundPort(msgspec.Struct, frozen=True, cache_hash=True):
    """A destination's port, and the local addresses on which it, or a subset of its endpoints, is called."""

    destination: Key
    section: str
    addresses: Addresses
    subset: Pairs = ()
    is_matched: bool = (
        False  # whether it is called by domains or addresses of its own too (redirected_chains)
    )


class ListenerSpec(msgspec.Struct, frozen=True):
    """All that decides the listener of a destination's port but its addresses.

    Equal for all proxies for which policies say the same, which then share the listener.
    """

    destination: Key
    section: str
    protocol: str  # tcp also where a port speaks HTTP and only MeshTCPRoutes are attached to it
    overlays: PolicyOverlays
    route_overlays: tuple[tuple[Key, PolicyOverlays], ...]
    http_entries: Entries
    tcp_entries: Entries
    subset: Pairs = ()  # the tags that endpoints must have, where a Dataplane's outbound asks for some
    reads_machine: bool = True  # whether direct responses may be files and variables of the proxy's machine


class PortHandling(msgspec.Struct, frozen=True):
    """How calls to a port are handled: its filter chain, routes where that is HTTP, and their backends."""

    name: str
    parts: overlay_merge.Parts
    routes: tuple[Data, ...]
    failures: tuple[Failure, ...]
    backends: tuple[BackendPort, ...]


class OutboundListener(msgspec.Struct, frozen=True):
    """A listener with its routes, and the backends that they need."""

    resources: tuple[XdsResource | Failure, ...]
    backends: tuple[BackendPort, ...]


class ListenerShard(msgspec.Struct, frozen=True):
    """The listeners and routes of some ports, and the clusters that these need, by shard number."""

    bundle: Bundle
    required: tuple[tuple[int, Required], ...]
    matched: tuple[ListenerSpec, ...] = ()  # the ports that are called by domains or addresses of their own


@question
def listeners(
    db: Db,
    shard_rules: ShardRules,
    ports: Group[OutboundPort],
    client: ClientContext,
    binding: ListenerBinding,
) -> ListenerShard:
    """The listeners of some ports, with their routes."""
    built: list[XdsResource | Failure] = []
    required: dict[int, dict[RequiredCluster, None]] = {}
    matched: dict[ListenerSpec, None] = {}
    for port in ports:
        port_rules = shard_rules.of(port.destination, port.section)
        spec = _listener_spec(db, port_rules, shard_rules.whole, client, port.subset)
        outbound = listener(db, spec, port.addresses, binding)
        built += outbound.resources
        if port.is_matched:
            matched[spec] = None
        for backend in outbound.backends:
            keys = tuple(name for name, _ in backend.subset)
            cluster = RequiredCluster(backend.destination, backend.section, keys)
            required.setdefault(outbound_shards.shard_number(backend.destination), {})[cluster] = None
    by_shard = tuple((number, Group(clusters)) for number, clusters in required.items())
    return ListenerShard(encoding.bundled(built), by_shard, tuple(matched))


def _listener_spec(
    db: Db, port: PortRules, whole: ByKind, client: ClientContext, subset: Pairs
) -> ListenerSpec:
    """A listener's spec; `whole` are entries about whole proxies that act on outbound traffic."""
    protocol = rules.protocol(db, port)
    where = client.where(protocol, encoding.kri(db, port.destination, port.section))
    route_kind = target_ref.TCP_ROUTE if protocol == "tcp" else target_ref.HTTP_ROUTE
    route_overlays = tuple(
        (route.key, _overlays(db, (*entries, *whole), where))
        for route, entries in port.routes
        if route.key.kind == route_kind
    )
    return ListenerSpec(
        port.destination,
        port.section,
        protocol,
        _overlays(db, (*port.entries, *whole), where),
        route_overlays,
        port.http,
        port.tcp,
        subset,
        client.machine.reads_data,
    )


def _overlays(db: Db, entries: ByKind, where: OverlayContext) -> PolicyOverlays:
    return overlays.outbound(db, overlays.merged_confs(db, entries, where.mesh), where).listener


@question
def listener(db: Db, spec: ListenerSpec, addresses: Addresses, binding: ListenerBinding) -> OutboundListener:
    """The listener of a port on local addresses, with its routes; without addresses only what it needs."""
    # How calls are handled is no question of its own: most ports are called on one set of addresses only.
    port_handling = handling(db, spec)
    if port_handling is None:
        has_port = world.port(db, spec.destination, spec.section) is not None
        nameless = (encoding.nameless(snapshot.LISTENER, spec.destination),) if has_port else ()
        return OutboundListener(nameless, ())
    if not addresses:
        return OutboundListener(port_handling.failures, port_handling.backends)
    if external.is_passthrough(db, spec.destination):
        name, origin = port_handling.name, str(spec.destination)
        return OutboundListener((Failure(snapshot.LISTENER, name, external.LOOP, origin),), ())
    return OutboundListener(
        _with_listener(db, spec, addresses, port_handling, binding), port_handling.backends
    )


def _with_listener(
    db: Db, spec: ListenerSpec, addresses: Addresses, port_handling: PortHandling, binding: ListenerBinding
) -> tuple[XdsResource | Failure, ...]:
    name, parts, origin = port_handling.name, port_handling.parts, str(spec.destination)
    data = skeletons.listener(name, addresses, "OUTBOUND", {"kuma.io/unified-name": name}, binding)
    data["filter_chains"] = [{"filters": skeletons.chain(parts)}]
    needs = cluster_ids(db, port_handling.backends)
    routes: tuple[XdsResource | Failure, ...] = ()
    if spec.protocol != "tcp":
        host = envoy_routes.virtual_host(name, port_handling.routes)
        config = envoy_routes.route_configuration(name, [host])
        routes = (encoding.encoded(db, snapshot.ROUTES, name, config, needs, origin),)
        needs = ((snapshot.ROUTES, name),)
    needs = (*needs, *added_resources.needed(parts))
    resource = encoding.encoded(db, snapshot.LISTENER, name, data, needs, origin)
    return *added_resources.clusters(db, parts), *routes, *port_handling.failures, resource


def _name(db: Db, spec: ListenerSpec) -> str:
    """The name of a listener and its routes; empty where the stored names make no identifier."""
    name = encoding.kri(db, spec.destination, spec.section)
    return names.subset(name, spec.subset) if name and spec.subset else name


def cluster_ids(db: Db, backend_ports: Iterable[BackendPort]) -> tuple[Id, ...]:
    """The clusters of these backends."""
    clusters = {encoding.kri(db, port.destination, port.section) for port in backend_ports}
    return tuple((snapshot.CLUSTER, name) for name in sorted(clusters))


def handling(db: Db, spec: ListenerSpec) -> PortHandling | None:
    """How calls to a port are handled; None where it is not there, or has no name that Envoy can use."""
    name = _name(db, spec)
    if not name or world.port(db, spec.destination, spec.section) is None:
        return None
    return _of_connections(db, spec, name) if spec.protocol == "tcp" else _of_requests(db, spec, name)


def _of_connections(db: Db, spec: ListenerSpec, name: str) -> PortHandling:
    conf = items.conf(db, spec.tcp_entries) if spec.tcp_entries else {}
    origin = spec.tcp_entries[-1].policy if spec.tcp_entries else spec.destination
    original = OriginalDestination(spec.destination, spec.section, is_http=False, subset=spec.subset)
    split, backend_ports = backends.split(db, conf.get("backendRefs"), origin, original)
    policy_overlays = dict(spec.route_overlays).get(origin, spec.overlays)
    skeleton = {"tcp": skeletons.tcp_proxy(name, tcp_target(split), _TCP_IDLE_TIMEOUT)}
    parts = logs.with_logs(overlay_merge.with_overlays(skeleton, policy_overlays.overlays))
    return PortHandling(name, parts, (), policy_overlays.failures, backend_ports)


def tcp_target(split: envoy_routes.BackendSplit) -> Data:
    """The cluster of a TcpProxy, or its weighted clusters.

    The share of references that resolve to nothing goes to a cluster that does not exist, where Envoy closes
    the connection.
    """
    shares = [
        ({"name": backend.cluster, **_tcp_subset(backend)}, backend.weight) for backend in split.backends
    ]
    if split.unresolved or not shares:
        shares.append(({"name": skeletons.NOWHERE}, split.unresolved or 1))
    if len(shares) == 1:
        only = dict(shares[0][0])
        return {"cluster": only.pop("name"), **only}
    return {"weighted_clusters": {"clusters": [{**cluster, "weight": weight} for cluster, weight in shares]}}


def _tcp_subset(backend: envoy_routes.Backend) -> Data:
    if not backend.subset:
        return {}
    return {"metadata_match": {"filter_metadata": {"envoy.lb": dict(backend.subset)}}}


def _of_requests(db: Db, spec: ListenerSpec, name: str) -> PortHandling:
    route_overlays = dict(spec.route_overlays)
    skeleton = {"hcm": skeletons.hcm(name), "http_filters": skeletons.http_filters(spec.protocol)}
    parts = overlay_merge.with_overlays(skeleton, spec.overlays.overlays)
    original = OriginalDestination(spec.destination, spec.section, subset=spec.subset)
    routes, backend_ports = outbound_routes.routes(
        db, original, spec.http_entries, spec.overlays, route_overlays
    )
    refused: tuple[Failure, ...] = ()
    if not spec.reads_machine:
        routes, refused = outbound_routes.without_machine_data(routes)
    failures = dict.fromkeys(
        failure for each in (spec.overlays, *route_overlays.values()) for failure in each.failures
    )
    parts = logs.with_logs(parts, overlays_by_route_name(db, spec))
    if required := route_settings.required_filters(routes):
        parts = {**parts, "http_filters": {**required, **parts["http_filters"]}}
    return PortHandling(name, parts, tuple(routes), (*failures, *refused), backend_ports)


def overlays_by_route_name(db: Db, spec: ListenerSpec) -> dict[str, PolicyOverlays]:
    """What policies say about the routes to a port, by the name of the route in Envoy."""
    return {encoding.kri(db, key, ""): overlays for key, overlays in spec.route_overlays}
