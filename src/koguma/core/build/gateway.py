"""Gateway: what the Envoy of a built-in gateway gets: its listeners, their routes, and clusters.

All but the listeners, which have an address, is shared by proxies with an equal spec. It has no inbounds and
no outbounds: what it calls are the backends that its routes name, with its own identity, as sidecars do.
"""

from itertools import chain

from koguma.core.build import (
    clusters,
    encoding,
    gateway_certificates,
    gateway_listeners,
    gateway_routes,
    network,
    outbound,
    outbound_shards,
)
from koguma.core.build.clusters import ClientContext
from koguma.core.build.gateway_spec import GatewayPort, GatewaySpec
from koguma.core.build.outbound_clusters import Required, RequiredCluster
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.envoy.snapshot import Bundle
from koguma.model.resource import Key


def listeners(db: Db, proxy: Key, spec: GatewaySpec) -> Bundle:
    """The listeners of a proxy."""
    networking = network.networking(db, proxy)
    address = networking.address if networking else ""
    ports = (gateway_listeners.listener(db, port, spec.client, address) for port in spec.ports)
    return encoding.bundled(chain.from_iterable(ports))


@question
def shared(db: Db, spec: GatewaySpec) -> tuple[Bundle, Bundle]:
    """What all proxies with this spec share: routes with clusters, and the endpoints of these."""
    required = Group(_required(db, port, spec.client) for port in spec.ports)
    called, load_assignments = outbound.called(db, spec.proxy_class, required, spec.client)
    ports = (_served(db, port, spec.client) for port in spec.ports)
    bundle = outbound_shards.joined((*ports, *called))
    endpoints = clusters.assignments(db, load_assignments, spec.client.zone, spec.client.affinity)
    return bundle, endpoints


@question
def _served(db: Db, port: GatewayPort, client: ClientContext) -> Bundle:
    """The routes and certificates of a port, apart from its listener."""
    secrets = (
        gateway_certificates.resources(db, port.gateway, each.listener.section)
        for each in port.listeners
        if each.listener.ends_tls
    )
    routes = (gateway_routes.configuration(db, spec) for spec in gateway_routes.specs(db, port, client))
    return outbound_shards.joined((encoding.bundled(chain.from_iterable(secrets)), *routes))


@question
def _required(db: Db, port: GatewayPort, client: ClientContext) -> tuple[tuple[int, Required], ...]:
    """The clusters that a port requires, by shard number."""
    routes = (gateway_routes.backends(db, spec) for spec in gateway_routes.specs(db, port, client))
    backends = (*chain.from_iterable(routes), *gateway_listeners.tcp_backends(db, port, client))
    required: dict[int, dict[RequiredCluster, None]] = {}
    for backend in dict.fromkeys(backends):
        keys = tuple(name for name, _ in backend.subset)
        cluster = RequiredCluster(backend.destination, backend.section, keys)
        required.setdefault(outbound_shards.shard_number(backend.destination), {})[cluster] = None
    return tuple((number, Group(clusters)) for number, clusters in required.items())


def backends(db: Db, spec: GatewaySpec) -> tuple[RequiredCluster, ...]:
    """The backends that the routes of a gateway name, each once and in order."""
    required = (clusters for port in spec.ports for _, clusters in _required(db, port, spec.client))
    every = {(each.destination, each.section): each for group in required for each in group}
    return tuple(every[key] for key in sorted(every))
