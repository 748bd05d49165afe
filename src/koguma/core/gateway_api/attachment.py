"""Attachment: which listeners of a Gateway take a route, and why others do not.

A route names its parents. A listener takes it if the reference does not exclude it (section name, port), if
its `allowedRoutes` allow the route's kind and namespace, and if their host names have one in common. Of a
Gateway that does not exist, or whose class is not ours, nothing is said.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from koguma.core import world
from koguma.core.gateway_api import listeners, objects, selectors
from koguma.core.gateway_api.listeners import GatewayApiListener
from koguma.core.incremental import Db, question
from koguma.model import derived, hostname
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

NO_MATCHING_PARENT: Final = "NoMatchingParent"
NOT_ALLOWED: Final = "NotAllowedByListeners"
NO_MATCHING_HOSTNAME: Final = "NoMatchingListenerHostname"


class RouteListener(msgspec.Struct, frozen=True):
    """A listener as routes see it."""

    name: str  # as routes write it in sectionName
    section: str  # its name in the MeshGateway
    port: int
    protocol: str
    hostname: str  # in the normal form
    kinds: tuple[str, ...]  # of routes, as they are stored
    namespaces: str  # Same, All, Selector or None
    selector: Json = None


class RouteGateway(NamedTuple):
    """A Gateway that is ours."""

    mesh: str
    gateway: Key  # of the MeshGateway
    namespace: str
    listeners: tuple[RouteListener, ...]


class RouteAttachment(NamedTuple):
    """Where a route is attached; without listeners, why nowhere."""

    mesh: str
    gateway: Key
    listeners: tuple[RouteListener, ...]
    reason: str = ""
    message: str = ""


@question
def parent(db: Db, owner: Key) -> RouteGateway | None:
    """A Gateway or ListenerSet by its stored key, if it is there and the Gateway's class is ours."""
    gateway = gateway_key(db, owner)
    resource = world.RESOURCES.get(db, gateway) if gateway else None
    if gateway is None or resource is None or not is_ours(db, resource):
        return None
    mesh, zone = objects.mesh_of(db, resource), world.control_plane(db).zone
    own = tuple(_listener(each) for each in listeners.of(db, gateway) if each.owner == owner)
    return RouteGateway(mesh, derived.key("MeshGateway", mesh, zone, gateway), owner.namespace, own)


def gateway_key(db: Db, owner: Key) -> Key | None:
    """The Gateway itself, or that of a ListenerSet."""
    if owner.kind == objects.GATEWAY:
        return owner
    resource = world.RESOURCES.get(db, owner)
    return listeners.parent_of(resource) if resource else None


def _listener(listener: GatewayApiListener) -> RouteListener:
    return RouteListener(
        name=listener.name,
        section=listener.section,
        port=listener.port,
        protocol=listener.protocol,
        hostname=listener.hostname,
        kinds=listener.kinds,
        namespaces=listener.namespaces,
        selector=listener.selector,
    )


def is_ours(db: Db, gateway: Resource) -> bool:
    """Whether a Gateway's class names our controller."""
    name = objects.text(objects.fields(gateway.spec).get("gatewayClassName"))
    gateway_class = world.RESOURCES.get(db, Key(objects.GATEWAY_CLASS, "", "", "", name))
    spec = objects.fields(gateway_class.spec) if gateway_class else {}
    return spec.get("controllerName") == objects.CONTROLLER


def attachment(
    db: Db, route: Resource, ref: Mapping[str, Json], hostnames: Sequence[str]
) -> RouteAttachment | None:
    """Where a route is attached by a parentRef to a Gateway or ListenerSet; None where that is not ours."""
    namespace = objects.text(ref.get("namespace")) or route.namespace
    kind = objects.text(ref.get("kind")) or objects.word(objects.GATEWAY)
    key = Key(f"{kind}.{objects.GROUP}", "", "", namespace, objects.text(ref.get("name")))
    found = parent(db, key)
    if found is None:
        return None

    named = f"{kind} {namespace}/{key.name}"

    def refused(reason: str, message: str) -> RouteAttachment:
        return RouteAttachment(found.mesh, found.gateway, (), reason, message)

    referred = [each for each in found.listeners if _is_referred(ref, each)]
    if not referred:
        return refused(NO_MATCHING_PARENT, f"{named} has no listener with this sectionName and port")
    allowing = [each for each in referred if _allows(db, found, each, route)]
    if not allowing:
        what = f"{objects.word(route.kind)}s of namespace {route.namespace}"
        return refused(NOT_ALLOWED, f"no listener of {named} that is referred to allows {what}")
    fitting = tuple(each for each in allowing if hostname.intersection(each.hostname, hostnames))
    if not fitting:
        return refused(
            NO_MATCHING_HOSTNAME, f"no listener of {named} has a host name in common with the route"
        )
    return RouteAttachment(found.mesh, found.gateway, fitting)


def _is_referred(ref: Mapping[str, Json], listener: RouteListener) -> bool:
    section, port = objects.text(ref.get("sectionName")), objects.number(ref.get("port"))
    return section in ("", listener.name) and port in (None, listener.port)


def _allows(db: Db, found: RouteGateway, listener: RouteListener, route: Resource) -> bool:
    if route.kind not in listener.kinds:
        return False
    from_, selector = listener.namespaces, listener.selector
    return selectors.allows(db, from_, selector, found.namespace, route.namespace)
