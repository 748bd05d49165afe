"""Objects of the Gateway API as a control plane stores what kubectl applied."""

from collections.abc import Mapping
from typing import Any

from koguma.core.gateway_api import objects
from koguma.model.resource import Resource

CLASS = "koguma"
CONTROLLER = objects.CONTROLLER


def stored(kind: str, name: str, spec: Mapping[str, Any], namespace: str = "shop", **fields: Any) -> Resource:
    """An object of one of Kubernetes' own kinds, under the name that its kind is stored as."""
    return Resource(
        kind=kind,
        namespace=namespace,
        name=name,
        core_name=f"{name}.{namespace}" if namespace else name,
        spec=spec,
        **{"creation_time": "2026-01-01T00:00:00Z", **fields},
    )


def gateway_class(name: str = CLASS, controller: str = objects.CONTROLLER) -> Resource:
    return stored(objects.GATEWAY_CLASS, name, {"controllerName": controller}, namespace="")


def listener(name: str = "http", port: int = 8080, protocol: str = "HTTP", **fields: Any) -> dict[str, Any]:
    return {"name": name, "port": port, "protocol": protocol, **fields}


def gateway(
    name: str = "edge", *listeners: Mapping[str, Any], namespace: str = "shop", **fields: Any
) -> Resource:
    spec = {"gatewayClassName": CLASS, "listeners": list(listeners) or [listener()], **fields}
    return stored(objects.GATEWAY, name, spec, namespace)


def backend(name: str = "backend", port: int = 80, **fields: Any) -> dict[str, Any]:
    return {"name": name, "port": port, **fields}


def rule(path: str = "", *backends: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A rule of an HTTPRoute for all paths below one, and for any path without."""
    matches = {"matches": [{"path": {"type": "PathPrefix", "value": path}}]} if path else {}
    return {**matches, "backendRefs": list(backends) or [backend()], **fields}


EDGE = {"name": "edge"}
SERVICE = {"group": "", "kind": "Service", "name": "backend"}


def route(
    name: str = "web",
    *rules: Mapping[str, Any],
    parent: Mapping[str, Any] = EDGE,
    kind: str = objects.HTTP_ROUTE,
    namespace: str = "shop",
    created: str = "2026-01-01T00:00:00Z",
    **spec: Any,
) -> Resource:
    """A route with one parent; without rules, with one for every request."""
    written = {"parentRefs": [dict(parent)], "rules": list(rules) or [rule()], **spec}
    return stored(kind, name, written, namespace, creation_time=created)


def grant(
    kind: str = "HTTPRoute",
    from_: str = "shop",
    to: str = "Service",
    name: str = "",
    namespace: str = "other",
) -> Resource:
    """Objects of a kind and namespace may refer to those of another kind in this one."""
    referent = {"group": "", "kind": to, **({"name": name} if name else {})}
    spec = {"from": [{"group": objects.GROUP, "kind": kind, "namespace": from_}], "to": [referent]}
    return stored(objects.REFERENCE_GRANT, "grant", spec, namespace)


def extension(name: str) -> dict[str, Any]:
    """The filter of a rule that names a RouteFilter."""
    ref = {"group": "kuma.io", "kind": "RouteFilter", "name": name}
    return {"type": "ExtensionRef", "extensionRef": ref}


def route_filter(
    name: str, spec: Mapping[str, Any], namespace: str = "shop", mesh: str = "default", zone: str = "east"
) -> Resource:
    """A filter of ours, for routes of its namespace."""
    core_name = f"{name}.{namespace}" if namespace else name
    return Resource(
        kind="RouteFilter",
        mesh=mesh,
        zone=zone,
        namespace=namespace,
        name=name,
        core_name=core_name,
        spec=spec,
        creation_time="2026-01-01T00:00:00Z",
    )
