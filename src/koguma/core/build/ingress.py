"""Ingress: what the Envoy of a zone ingress gets: one listener with a filter chain for each port.

A caller in another zone names a port by server name (SNI). The chain of that port passes its bytes on to the
proxies of this zone that serve it. TLS is ended there and not here: an ingress has no certificate, and the
permissions of the service hold for callers of other zones too.
"""

from collections.abc import Iterator
from typing import Final

from koguma.core import world
from koguma.core.build import (
    clusters,
    encoding,
    endpoints,
    internals,
    locality,
    skeletons,
    tls,
    zone_egress,
    zone_ingress,
    zone_listener,
)
from koguma.core.incremental import Db, question
from koguma.envoy import snapshot
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Bundle, Failure, XdsResource
from koguma.model.resource import Key

_CONNECT_ATTEMPTS: Final = 3  # to other endpoints, where one takes no connections


@question
def bundles(db: Db, ingress: Key) -> tuple[Bundle, ...] | None:
    """Everything that an ingress gets; None where it, or some mesh, cannot be read."""
    resource = world.RESOURCES.get(db, ingress)
    if resource is None or any(key.kind == "Mesh" for key in world.UNREADABLE.keys(db)):
        return None  # it keeps its last configuration: whether such a mesh has mTLS is unknown
    of_meshes = tuple(_mesh(db, mesh) for mesh in zone_egress.meshes(db))
    built = (*_listener(db, ingress), *internals.of_zone_proxy(db, ingress))
    return (*of_meshes, encoding.bundled(built))


@question
def _mesh(db: Db, mesh: str) -> Bundle:
    """What ingresses get for one mesh apart from their listener: one value for all of them."""
    return encoding.bundled(
        each for service, section in zone_ingress.services(db, mesh) for each in _port(db, service, section)
    )


@question
def _port(db: Db, service: Key, section: str) -> tuple[XdsResource | Failure, ...]:
    """The cluster of a port with its endpoints; a failure where it has no name that Envoy can know."""
    name, origin = encoding.kri(db, service, section), str(service)
    if not name:
        return (encoding.nameless(snapshot.CLUSTER, service),)
    if not tls.server_name(db, service, section):
        return (Failure(snapshot.CLUSTER, name, clusters.NO_SERVER_NAME, origin),)
    needs = ((snapshot.ENDPOINTS, name),)
    cluster = encoding.encoded(db, snapshot.CLUSTER, name, clusters.of_ingress(name), needs, origin)
    own = endpoints.of_zone(db, service, section)
    data = locality.assignment(name, own, world.control_plane(db).zone, (), None)
    return cluster, encoding.encoded(db, snapshot.ENDPOINTS, name, data, origin=origin)


def _listener(db: Db, ingress: Key) -> Iterator[XdsResource | Failure]:
    """The listener with a chain for each port that the zone serves."""
    chains = {
        kri: _chain(kri, server_name)
        for mesh in zone_egress.meshes(db)
        for service, section in zone_ingress.services(db, mesh)
        if (kri := encoding.kri(db, service, section))
        and (server_name := tls.server_name(db, service, section))
    }
    needs = [(snapshot.CLUSTER, kri) for kri in chains]
    return zone_listener.built(db, ingress, list(chains.values()), needs)


def _chain(name: str, server_name: str) -> Data:
    target = {"cluster": name, "max_connect_attempts": _CONNECT_ATTEMPTS}
    passed_on = {"tcp": skeletons.tcp_proxy(name, target, skeletons.INBOUND_IDLE_TIMEOUT)}
    match = {"transport_protocol": "tls", "server_names": [server_name]}
    return {"name": name, "filter_chain_match": match, "filters": skeletons.chain(passed_on)}
