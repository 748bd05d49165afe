"""Backends: the clusters that a route's `backendRefs` lead to.

A reference is resolved from the route's namespace and zone. Where it names no port, the only port of the
service is meant, or the one that the request was addressed to. A reference that resolves to nothing keeps its
weight, so that its share of requests fails and the mistake is seen. So does one with a filter that Envoy
cannot apply to a single backend.
"""

import msgspec

from koguma.core import cross_mesh_services, world
from koguma.core.build import encoding, external
from koguma.core.incremental import Db
from koguma.core.world import Destination, Pairs, Port, pairs
from koguma.envoy import route_filters
from koguma.envoy.routes import Backend, BackendSplit
from koguma.model import tags
from koguma.model.resource import Key
from koguma.model.schema import Json


class BackendPort(msgspec.Struct, frozen=True):
    """A destination's port that a `backendRef` resolves to; with a subset, some of its endpoints only."""

    destination: Key
    section: str
    subset: Pairs = ()


class OriginalDestination(msgspec.Struct, frozen=True):
    """The destination's port that a request was addressed to, before routes act on it.

    A request from outside was addressed to a gateway, which is no destination: it stands for where it is.
    """

    destination: Key
    section: str
    is_http: bool = True
    subset: Pairs = ()  # the tags that the caller's outbound asks of endpoints

    @property
    def is_gateway(self) -> bool:
        """Whether it came from outside, and was going nowhere."""
        return self.destination.kind not in world.DESTINATION_KINDS


def split(
    db: Db, refs: Json, origin: Key, original: OriginalDestination
) -> tuple[BackendSplit, tuple[BackendPort, ...]]:
    """The weighted backends of a route, and the ports whose clusters they need.

    Without references requests go to their original destination, if they had any.
    """
    if not refs and original.is_gateway:
        return BackendSplit((), 1), ()
    if not refs:
        port = BackendPort(original.destination, original.section, original.subset)
        if not original.is_http and not _takes_connections(db, port.destination, port.section):
            return BackendSplit((), 1), ()
        return BackendSplit((_backend(db, port, 1),), 0), (port,)
    weighted, unresolved = [], 0
    for ref in refs:
        weight = 1 if ref.get("weight") is None else ref["weight"]
        backend_port = resolved(db, ref, origin, original)
        filters = ref.get("filters") or ()
        if backend_port is None or not route_filters.are_known(filters, route_filters.BACKEND_TYPES):
            unresolved += weight
        elif weight:
            weighted.append((backend_port, weight, filters))
    backends = tuple(_backend(db, port, weight, filters) for port, weight, filters in weighted)
    return BackendSplit(backends, unresolved), tuple(port for port, _, _ in weighted)


def _backend(db: Db, port: BackendPort, weight: int, filters: Json = ()) -> Backend:
    return Backend(
        encoding.kri(db, port.destination, port.section),
        weight,
        port.subset,
        _has_own_host(db, port.destination),
        filters,
    )


def _has_own_host(db: Db, destination: Key) -> bool:
    """Whether requests to a destination are for a host of its own, whatever they named."""
    if destination.kind != "MeshExternalService" or external.is_passthrough(db, destination):
        return False
    is_gateway = cross_mesh_services.gateway(db, destination) is not None
    return not is_gateway or cross_mesh_services.has_own_host(db, destination)


def resolved(db: Db, ref: Json, origin: Key, original: OriginalDestination) -> BackendPort | None:
    """The port that a reference resolves to; None where there is none, or none that can take the requests."""
    kind, subset = ref.get("kind") or "", pairs(ref.get("tags"))
    if kind == "MeshServiceSubset":
        kind = "MeshService"
    namespace = ref.get("namespace") or origin.namespace
    labels = pairs(ref.get("labels"))
    keys = world.referenced(db, origin.mesh, kind, ref.get("name") or "", namespace, origin.zone, labels)
    if not keys and ref.get("name") and kind == original.destination.kind and not labels:
        # A route from Global, or from another namespace, may name the very service that it is attached to.
        keys = (original.destination,) if original.destination.name == ref["name"] else ()
    for key in _nearest_first(keys, original):
        destination = world.destination(db, key)
        port = _port(destination, ref, original) if destination else None
        if port is not None and _can_take(db, key, port, original):
            return BackendPort(key, port.section, tuple(p for p in subset if p[0] != tags.SERVICE))
    return None


def _can_take(db: Db, key: Key, port: Port, original: OriginalDestination) -> bool:
    """Whether a port speaks HTTP where requests are routed, and has a name that Envoy can use.

    An external service that sends calls on to where they were addressed can take no calls to others: they
    would come back to this very proxy.
    """
    if key != original.destination and external.is_passthrough(db, key):
        return False
    if original.is_http:
        # What a gateway takes as HTTP it may send on to a service that does not say that it speaks it.
        is_untold = original.is_gateway and key.kind != "MeshExternalService"
        speaks_protocol = is_untold or port.protocol in world.HTTP_PROTOCOLS
    else:
        speaks_protocol = _takes_connections(db, key, port.section)
    return speaks_protocol and bool(encoding.kri(db, key, port.section))


def _takes_connections(db: Db, key: Key, section: str) -> bool:
    """Whether a port can be called by connections alone, as MeshTCPRoutes do.

    A plugin that speaks only HTTP acts by filters on requests. Without these, what it hides from its callers
    would be called as it is.
    """
    return key.kind != "MeshExternalService" or external.takes_connections(db, key, section)


def _nearest_first(keys: tuple[Key, ...], original: OriginalDestination) -> list[Key]:
    return sorted(keys, key=lambda key: (key.zone != original.destination.zone, key))


def _port(destination: Destination, ref: Json, original: OriginalDestination) -> Port | None:
    section = str(ref.get("sectionName") or ref.get("port") or "")
    if section:
        return destination.port(section)
    if len(destination.ports) == 1:
        return destination.ports[0]
    return destination.port(original.section)
