"""Egress: what the Envoy of a zone egress gets: one listener with a filter chain for each external port.

A caller is a proxy of a mesh: it shows its certificate, and asks for a port of an external service by server
name (SNI). The chain of that port ends the caller's TLS with the egress's identity in that mesh, asks who may
call (permissions), and sends calls on to the real endpoints, as a sidecar does without an egress.
Certificates, routes, permissions and clusters are sent apart from the listener; and Envoy keeps the
connections of chains that a new version does not change.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from koguma.core import world
from koguma.core.build import (
    added_resources,
    clusters,
    encoding,
    external,
    inbound,
    inbound_listener,
    internals,
    logs,
    network,
    outbound_rules,
    overlay_merge,
    overlays,
    skeletons,
    tls,
    zone_egress,
    zone_listener,
)
from koguma.core.build.clusters import ClientContext, ClusterSpec
from koguma.core.build.inbound_listener import InboundSpec
from koguma.core.build.network import InboundNetworking
from koguma.core.build.overlays import OutboundOverlays, PolicyOverlays
from koguma.core.incremental import Db, question
from koguma.core.match import Traits
from koguma.core.world import Port
from koguma.envoy import names, snapshot
from koguma.envoy import routes as envoy_routes
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Bundle, Failure, Id, XdsResource
from koguma.model.overlay import MachineAccess, OverlayContext
from koguma.model.resource import Key

_HOST_KEPT: Final[Data] = {"name": names.EGRESS_HOST, "string_match": {"exact": names.EGRESS_HOST_KEPT}}


class EgressContext(msgspec.Struct, frozen=True, cache_hash=True):
    """What of an egress, beside its address, decides its chains in one mesh; equal for egresses alike."""

    traits: Traits
    section: str  # of its inbound, as policies see it
    log_pipe: str
    machine: MachineAccess


class EgressChain(msgspec.Struct, frozen=True):
    """The filter chain of a port, with all that it needs; without data where it cannot be built."""

    data: Data | None
    needs: tuple[Id, ...]
    resources: tuple[XdsResource | Failure, ...]


@question
def bundles(db: Db, egress: Key) -> tuple[Bundle, ...] | None:
    """Everything that an egress gets but certificates; None where it, or some mesh, cannot be read."""
    resource = world.RESOURCES.get(db, egress)
    if resource is None or any(key.kind == "Mesh" for key in world.UNREADABLE.keys(db)):
        return None  # it keeps its last configuration: whether such a mesh has mTLS is unknown
    contexts = [context for mesh in zone_egress.meshes(db) if (context := _context(db, egress, mesh))]
    of_meshes = tuple(_mesh(db, context) for context in contexts)
    built = (*_listener(db, egress, contexts), *internals.of_zone_proxy(db, egress))
    return (*of_meshes, encoding.bundled(built))


def identities(db: Db, egress: Key) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The identities of an egress, by mesh: only where a chain uses them, since others are never fetched."""
    for mesh in zone_egress.meshes(db):
        context = _context(db, egress, mesh)
        if context is not None and any(built.data is not None for built in _chains(db, context)):
            yield mesh, zone_egress.uris(mesh, egress.zone)


def _context(db: Db, egress: Key, mesh: str) -> EgressContext | None:
    traits, node = zone_egress.traits(db, egress, mesh), network.node_metadata(db, egress)
    if traits is None or not zone_egress.services(db, mesh):
        return None
    (section, _), *_ = traits.inbounds
    pipe, machine = network.log_pipe(db, egress, node), network.machine(db, node)
    return EgressContext(traits, section, pipe, machine)


def _chains(db: Db, context: EgressContext) -> Iterator[EgressChain]:
    for service, section in zone_egress.services(db, context.traits.mesh):
        yield chain(db, context, service, section)


@question
def _mesh(db: Db, context: EgressContext) -> Bundle:
    """What egresses get for one mesh apart from their listener; one value for all that are alike."""
    return encoding.bundled(each for built in _chains(db, context) for each in built.resources)


def _listener(db: Db, egress: Key, contexts: list[EgressContext]) -> Iterator[XdsResource | Failure]:
    """The listener with the chains of all meshes."""
    chains = [built for context in contexts for built in _chains(db, context)]
    present = [built.data for built in chains if built.data is not None]
    needs = dict.fromkeys(id_ for built in chains if built.data is not None for id_ in built.needs)
    return zone_listener.built(db, egress, present, needs)


@question
def chain(db: Db, context: EgressContext, service: Key, section: str) -> EgressChain:
    """The filter chain for callers of one port, with its cluster, routes and permissions."""
    port, name = world.port(db, service, section), encoding.kri(db, service, section)
    if port is None or not name:
        return EgressChain(None, (), (encoding.nameless(snapshot.CLUSTER, service),) if port else ())
    server_name = tls.server_name(db, service, section)
    if not server_name:
        failure = Failure(snapshot.CLUSTER, name, clusters.NO_SERVER_NAME, str(service))
        return EgressChain(None, (), (failure,) if zone_egress.is_used(db, service.mesh) else ())
    outgoing = _outgoing(db, context, service, port, name)
    cluster = _cluster(db, context, service, section, outgoing.cluster)
    if not any(isinstance(each, XdsResource) and each.id == (snapshot.CLUSTER, name) for each in cluster):
        return EgressChain(None, (), cluster)
    return _built(db, context, service, port, server_name, outgoing, cluster)


def _built(
    db: Db,
    context: EgressContext,
    service: Key,
    port: Port,
    server_name: str,
    outgoing: OutboundOverlays,
    cluster: tuple[XdsResource | Failure, ...],
) -> EgressChain:
    spec = _inbound_spec(db, service, port)
    where = _where(context, spec, service, by_server_name=zone_egress.allows_by_server_name(db, service.mesh))
    arriving = overlays.inbound_of(db, context.traits, context.section, where)
    parts = logs.with_logs(overlay_merge.with_overlays(_skeleton(spec), arriving.overlays))
    built: list[XdsResource | Failure] = [
        *cluster,
        *arriving.failures,
        *added_resources.clusters(db, parts, str(service)),
        *inbound_listener.extensions(db, spec, parts, has_mtls=True),
    ]
    if spec.is_http:
        limit = external.body_bytes_max(db, service, port.section)
        built.append(_routes(db, spec, arriving, outgoing, limit))
    needs = [(snapshot.CLUSTER, spec.name), *added_resources.needed(parts), *tls.secrets(service.mesh)]
    needs += [each.id for each in built if each.type in (snapshot.ROUTES, snapshot.EXTENSION)]
    by_server_name = {"transport_protocol": "tls", "server_names": [server_name]}
    secured = inbound_listener.secured_chain(spec, parts)
    data = {"name": spec.name, "filter_chain_match": by_server_name, **secured}
    return EgressChain(data, tuple(needs), tuple(built))


def _inbound_spec(db: Db, service: Key, port: Port) -> InboundSpec:
    """The chain as an inbound of its own, named by the external service."""
    name = encoding.kri(db, service, port.section)
    protocol = port.protocol if port.protocol in world.HTTP_PROTOCOLS else "tcp"
    fields = InboundNetworking(
        section=name,
        name="",
        address="",
        reached_at="",
        port=port.number,
        service_address="",
        service_port=port.number,
        protocol=protocol,
        tags=(),
        is_ready=True,
    )
    return InboundSpec(service, fields, name, is_transparent=False)


def _where(
    context: EgressContext, spec: InboundSpec, service: Key, *, by_server_name: bool
) -> OverlayContext:
    """What the hooks of policies get to know about a chain."""
    return OverlayContext(
        spec.inbound.protocol,
        service.mesh,
        context.traits.zone,
        spec.name,
        service=service.name,
        log_pipe=context.log_pipe,
        machine=context.machine,
        allows_by_server_name=by_server_name,
    )


def _skeleton(spec: InboundSpec) -> overlay_merge.Parts:
    if not spec.is_http:
        target = {"cluster": spec.name}
        return {"tcp": skeletons.tcp_proxy(spec.name, target, skeletons.INBOUND_IDLE_TIMEOUT)}
    hcm = {
        **skeletons.inbound_hcm(spec.name),
        "forward_client_cert_details": "SANITIZE",  # identities of the mesh are nobody's business outside
    }
    return {"hcm": hcm, "http_filters": skeletons.http_filters(spec.inbound.protocol)}


def _routes(
    db: Db, spec: InboundSpec, arriving: PolicyOverlays, outgoing: OutboundOverlays, body_bytes_max: int
) -> XdsResource | Failure:
    """The routes to the real endpoints; which of them, by a hash of the request, is decided here too."""
    hashes = [part for part in outgoing.listener.part("route_action") if "hash_policy" in part]
    by_hash = tuple({"route_action": {"hash_policy": part["hash_policy"]}} for part in hashes)
    held = ({"route": {"request_body_buffer_limit": body_bytes_max}},) if body_bytes_max else ()
    together = PolicyOverlays((*held, *arriving.overlays, *by_hash))
    config = inbound.route_configuration(spec.name, _default_routes(spec), together)
    # Addresses of the mesh are nobody's business outside; Envoy 1.40 appends them whatever the listener says.
    removed = [*config["request_headers_to_remove"], names.EGRESS_HOST, "x-forwarded-for"]
    config["request_headers_to_remove"] = removed
    needs = ((snapshot.CLUSTER, spec.name),)
    return encoding.encoded(db, snapshot.ROUTES, spec.name, config, needs, str(spec.proxy))


def _default_routes(spec: InboundSpec) -> list[Data]:
    """All requests go to the service, with the host of the endpoint unless a route of the caller set one."""
    found: list[Data] = []
    for is_kept in (True, False):
        backend = envoy_routes.Backend(spec.name, 1, auto_host_rewrite=not is_kept)
        split = envoy_routes.BackendSplit((backend,), 0)
        for route in envoy_routes.routes(names.ROUTE_DEFAULT, {}, [], split, lambda _ref: None):
            kept = {"headers": [_HOST_KEPT]} if is_kept else {}
            found.append({**route, "match": {**route["match"], **kept}})
    return found


def _outgoing(db: Db, context: EgressContext, service: Key, port: Port, name: str) -> OutboundOverlays:
    """What policies that select the egress say about calls to a port."""
    proxy_class = zone_egress.proxy_class(db, context.traits)
    of_port = outbound_rules.finder(db, proxy_class)(((service, port.section),))
    entries = (*of_port.of(service, port.section).entries, *of_port.whole)
    confs = overlays.merged_confs(db, entries, service.mesh)
    return overlays.outbound(db, confs, _client(context).where(port.protocol, name))


def _client(context: EgressContext) -> ClientContext:
    return ClientContext(
        context.traits.mesh,
        context.traits.zone,
        log_pipe=context.log_pipe,
        machine=context.machine,
        is_egress=True,
    )


def _cluster(
    db: Db, context: EgressContext, service: Key, section: str, policy_overlays: PolicyOverlays
) -> tuple[XdsResource | Failure, ...]:
    return clusters.cluster(db, ClusterSpec(service, section, policy_overlays, _client(context)))
