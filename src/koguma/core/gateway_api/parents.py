"""Parents: what a route is attached to, for each of its parentRefs.

A parent is a Gateway, whose listeners serve the route, or (for use inside a mesh) a Service, whose callers'
proxies do. The route of a Service's own namespace is for all callers (producer), a route elsewhere only for
callers of its namespace (consumer).
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from koguma.core import world
from koguma.core.gateway_api import attachment, objects
from koguma.core.gateway_api.attachment import NO_MATCHING_PARENT, NOT_ALLOWED, RouteListener
from koguma.core.incremental import Db, question
from koguma.core.role import PolicyRole
from koguma.model import forms, hostname
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

# A host of a listener is for routes of one of these kinds only, as the Gateway API has it.
_EXCLUDES: Final = {objects.HTTP_ROUTE: objects.GRPC_ROUTE, objects.GRPC_ROUTE: objects.HTTP_ROUTE}


class RouteParent(NamedTuple):
    """One parent of a route that is ours; `reason` is why the route is not attached to it, or empty."""

    number: int  # of the parentRef
    mesh: str
    target: Key  # the MeshGateway, or the MeshService
    listeners: tuple[RouteListener, ...] = ()  # of the gateway
    port: int | None = None  # of the service, if only one is meant
    role: PolicyRole = PolicyRole.SYSTEM
    reason: str = ""
    message: str = ""


@question
def of(db: Db, route: Key) -> tuple[RouteParent, ...]:
    """The parents of a route that are ours, without listeners that an older route of another kind has."""
    found = _attached(db, route)
    other_kind = _EXCLUDES.get(route.kind)
    rivals = world.BY_KIND_EVERYWHERE.keys(db, other_kind) if other_kind else ()
    older = [rival for rival in rivals if _age(db, rival) < _age(db, route)]
    return tuple(_without_taken(db, route, parent, older) for parent in found) if older else found


def _age(db: Db, route: Key) -> tuple[str, str, str]:
    resource = world.RESOURCES.get(db, route)
    return resource.creation_time if resource else "", route.namespace, route.name


def _without_taken(db: Db, route: Key, parent: RouteParent, older: Sequence[Key]) -> RouteParent:
    """A parent without the listeners on which an older route of the other kind has a host in common."""
    own = _hostnames(db, route)
    left = tuple(
        listener
        for listener in parent.listeners
        if not any(_has(db, rival, parent.target, listener, own) for rival in older)
    )
    if left or not parent.listeners:
        return parent._replace(listeners=left)
    message = "an older route of another kind (HTTPRoute or GRPCRoute) has the same hosts on these listeners"
    return parent._replace(listeners=(), reason=NOT_ALLOWED, message=message)


def _has(db: Db, rival: Key, gateway: Key, listener: RouteListener, own: Sequence[str]) -> bool:
    is_there = any(each.target == gateway and listener in each.listeners for each in _attached(db, rival))
    if not is_there:
        return False
    ours, theirs = (hostname.intersection(listener.hostname, each) for each in (own, _hostnames(db, rival)))
    return any(hostname.matches(one, other) for one in ours for other in theirs)


def _hostnames(db: Db, route: Key) -> tuple[str, ...]:
    resource = world.RESOURCES.get(db, route)
    return hostnames_of(objects.fields(resource.spec)) if resource else ()


@question
def _attached(db: Db, route: Key) -> tuple[RouteParent, ...]:
    """The parents of a route that are ours, as if no other route were there."""
    resource = world.RESOURCES.get(db, route)
    if resource is None:
        return ()
    spec = objects.fields(resource.spec)
    hostnames = hostnames_of(spec)
    found = (
        _parent(db, resource, index, ref, hostnames) for index, ref in objects.items(spec.get("parentRefs"))
    )
    return tuple(each for each in found if each is not None)


def hostnames_of(spec: Mapping[str, Json]) -> tuple[str, ...]:
    """The host names of a route, in the normal form."""
    written = spec.get("hostnames")
    names = written if isinstance(written, list | tuple) else ()
    return tuple(hostname.normal(each) for each in names if isinstance(each, str))


def _parent(
    db: Db, route: Resource, index: int, ref: Mapping[str, Json], hostnames: Sequence[str]
) -> RouteParent | None:
    group = objects.text(ref.get("group", objects.GROUP))
    match group, objects.text(ref.get("kind")) or "Gateway":
        case (objects.GROUP, "Gateway" | "ListenerSet"):
            found = attachment.attachment(db, route, ref, hostnames)
            if found is None:
                return None
            return RouteParent(
                index,
                found.mesh,
                found.gateway,
                listeners=found.listeners,
                reason=found.reason,
                message=found.message,
            )
        case ("", "Service"):
            return _service(db, route, index, ref)
        case _:
            return None


def _service(db: Db, route: Resource, index: int, ref: Mapping[str, Json]) -> RouteParent:
    mesh, zone = objects.mesh_of(db, route), world.control_plane(db).zone
    namespace = objects.text(ref.get("namespace")) or route.namespace
    key = Key("MeshService", mesh, zone, forms.key_namespace(namespace), objects.text(ref.get("name")))
    port = objects.number(ref.get("port"))
    role = PolicyRole.PRODUCER if namespace == route.namespace else PolicyRole.CONSUMER
    found = RouteParent(index, mesh, key, port=port, role=role)
    target = world.destination(db, key) if objects.is_namespace_of(mesh, namespace) else None
    if target is None:
        message = f"there is no Service {namespace}/{key.name} in mesh {mesh}"
        return found._replace(reason=NO_MATCHING_PARENT, message=message)
    if port is not None and target.port(str(port)) is None:
        has = ", ".join(str(each.number) for each in target.ports) or "none"
        message = f"Service {namespace}/{key.name} has no port {port}; its ports are: {has}"
        return found._replace(reason=NO_MATCHING_PARENT, message=message)
    return found
