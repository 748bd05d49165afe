"""Attachment: which listeners of a Gateway take a route, and why others do not.

A route names its parents. A listener takes it if the reference does not exclude it (section name, port), if
its `allowedRoutes` allow the route's kind and namespace, and if their host names have one in common. Of a
Gateway that does not exist, or whose class is not ours, nothing is said.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from koguma.core import world
from koguma.core.gateway_api import objects
from koguma.core.incremental import Db, question
from koguma.model import derived, hostname
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

NO_MATCHING_PARENT: Final = "NoMatchingParent"
NOT_ALLOWED: Final = "NotAllowedByListeners"
NO_MATCHING_HOSTNAME: Final = "NoMatchingListenerHostname"

_HTTP: Final = (objects.HTTP_ROUTE, objects.GRPC_ROUTE)
# The kinds of routes that a listener can take, by its protocol.
ROUTES_BY_PROTOCOL: Final[Mapping[str, tuple[str, ...]]] = {
    "HTTP": _HTTP,
    "HTTPS": _HTTP,
    "TLS": (objects.TLS_ROUTE, objects.TCP_ROUTE),
    "TCP": (objects.TCP_ROUTE,),
}


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


class Attachment(NamedTuple):
    """Where a route is attached; without listeners, why nowhere."""

    mesh: str
    gateway: Key
    listeners: tuple[RouteListener, ...]
    reason: str = ""
    message: str = ""


@question
def parent(db: Db, gateway: Key) -> RouteGateway | None:
    """A Gateway by its stored key, if it is there and its class is ours."""
    resource = world.RESOURCES.get(db, gateway)
    if resource is None or not is_ours(db, resource):
        return None
    mesh, zone = objects.mesh_of(db, resource), world.control_plane(db).zone
    listeners = tuple(_listeners(objects.fields(resource.spec)))
    return RouteGateway(mesh, derived.key("MeshGateway", mesh, zone, gateway), gateway.namespace, listeners)


def is_ours(db: Db, gateway: Resource) -> bool:
    """Whether a Gateway's class names our controller."""
    name = objects.text(objects.fields(gateway.spec).get("gatewayClassName"))
    gateway_class = world.RESOURCES.get(db, Key(objects.GATEWAY_CLASS, "", "", "", name))
    spec = objects.fields(gateway_class.spec) if gateway_class else {}
    return spec.get("controllerName") == objects.CONTROLLER


def _listeners(spec: Mapping[str, Json]) -> Iterator[RouteListener]:
    for _, written in objects.items(spec.get("listeners")):
        allowed = objects.fields(written.get("allowedRoutes"))
        namespaces = objects.fields(allowed.get("namespaces"))
        protocol = objects.text(written.get("protocol"))
        name = objects.text(written.get("name"))
        yield RouteListener(
            name=name,
            section=name,
            port=objects.number(written.get("port")) or 0,
            protocol=protocol,
            hostname=hostname.normal(objects.text(written.get("hostname"))),
            kinds=tuple(_kinds(allowed, protocol)),
            namespaces=objects.text(namespaces.get("from")) or "Same",
            selector=namespaces.get("selector"),
        )


def _kinds(allowed: Mapping[str, Json], protocol: str) -> Iterator[str]:
    possible = ROUTES_BY_PROTOCOL.get(protocol, ())
    written = [each for _, each in objects.items(allowed.get("kinds"))]
    for kind in possible:
        named = [
            each
            for each in written
            if f"{objects.text(each.get('kind'))}.{each.get('group') or objects.GROUP}" == kind
        ]
        if named or not written:
            yield kind


def attachment(
    db: Db, route: Resource, ref: Mapping[str, Json], hostnames: Sequence[str]
) -> Attachment | None:
    """Where a route is attached by one of its parentRefs to a Gateway; None where that is not ours."""
    namespace = objects.text(ref.get("namespace")) or route.namespace
    key = Key(objects.GATEWAY, "", "", namespace, objects.text(ref.get("name")))
    found = parent(db, key)
    if found is None:
        return None

    def refused(reason: str, message: str) -> Attachment:
        return Attachment(found.mesh, found.gateway, (), reason, message)

    referred = [each for each in found.listeners if _is_referred(ref, each)]
    if not referred:
        return refused(NO_MATCHING_PARENT, f"{key} has no listener with this sectionName and port")
    allowing = [each for each in referred if _allows(db, found, each, route)]
    if not allowing:
        what = f"{objects.word(route.kind)}s of namespace {route.namespace}"
        return refused(NOT_ALLOWED, f"no listener of {key} that is referred to allows {what}")
    fitting = tuple(each for each in allowing if hostname.intersection(each.hostname, hostnames))
    if not fitting:
        return refused(NO_MATCHING_HOSTNAME, f"no listener of {key} has a host name in common with the route")
    return Attachment(found.mesh, found.gateway, fitting)


def _is_referred(ref: Mapping[str, Json], listener: RouteListener) -> bool:
    section, port = objects.text(ref.get("sectionName")), objects.number(ref.get("port"))
    return section in ("", listener.name) and port in (None, listener.port)


def _allows(db: Db, found: RouteGateway, listener: RouteListener, route: Resource) -> bool:
    if route.kind not in listener.kinds:
        return False
    match listener.namespaces:
        case "All":
            return True
        case "Selector":
            return _selects(listener.selector, objects.namespace_labels(db, route.namespace))
        case "None":
            return False
        case _:
            return route.namespace == found.namespace


def _selects(selector: Json, labels: Mapping[str, str]) -> bool:
    """Whether a Kubernetes label selector selects these labels; an empty one selects all."""
    written = objects.fields(selector)
    equal = objects.fields(written.get("matchLabels"))
    return all(labels.get(name) == value for name, value in equal.items()) and all(
        _holds(expression, labels) for _, expression in objects.items(written.get("matchExpressions"))
    )


def _holds(expression: Mapping[str, Json], labels: Mapping[str, str]) -> bool:
    name, values = objects.text(expression.get("key")), expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return labels.get(name) in values
        case "NotIn":
            return labels.get(name) not in values
        case "Exists":
            return name in labels
        case "DoesNotExist":
            return name not in labels
        case _:
            return False
