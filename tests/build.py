"""Builders of objects for tests: plain documents as users write them, with the fewest legal fields.

Whatever a test is about it says itself: fields are given by their own names and replace the defaults.
"""

from collections.abc import Mapping
from typing import Any

from koguma.model.resource import Resource

Document = dict[str, Any]

SERVICE_TAG, PROTOCOL_TAG = "kuma.io/service", "kuma.io/protocol"
ANY = {"kind": "Mesh"}  # a targetRef: whatever is in the mesh
# Fields of a document that are no part of the spec of a kind whose spec stands at the top.
_META_FIELDS = ("type", "mesh", "name", "labels", "status")


def document(kind: str, name: str, mesh: str = "default", **fields: Any) -> Document:
    """An object of any kind; without a mesh, of a kind that is in none."""
    return {"type": kind, **({"mesh": mesh} if mesh else {}), "name": name, **fields}


def mesh(name: str = "default", **fields: Any) -> Document:
    return document("Mesh", name, "", **fields)


def builtin_mtls(name: str = "ca", **backend: Any) -> Document:
    """The field `mtls` of a Mesh with one builtin CA."""
    return {"enabledBackend": name, "backends": [{"name": name, "type": "builtin", **backend}]}


def inbound(
    service: str = "web",
    port: int = 10080,
    *,
    protocol: str = "http",
    tags: Mapping[str, str] | None = None,
    **fields: Any,
) -> Document:
    """An inbound of a Dataplane; without a protocol, one that does not say its own."""
    own = {SERVICE_TAG: service, **({PROTOCOL_TAG: protocol} if protocol else {}), **(tags or {})}
    return {"port": port, "tags": own, **fields}


def dataplane(
    name: str = "web-1",
    service: str = "web",
    port: int = 10080,
    *,
    mesh: str = "default",
    labels: Mapping[str, str] | None = None,
    **networking: Any,
) -> Document:
    """A Dataplane with one inbound; what else is given are fields of `networking`."""
    fields = {"address": "127.0.0.1", "inbound": [inbound(service, port)], **networking}
    return document("Dataplane", name, mesh, **({"labels": labels} if labels else {}), networking=fields)


def port(number: int = 80, protocol: str = "http", **fields: Any) -> Document:
    """A port of a MeshService or a MeshMultiZoneService."""
    return {"port": number, "appProtocol": protocol, **fields}


def mesh_service(
    name: str = "backend",
    *ports: Mapping[str, Any],
    mesh: str = "default",
    selector: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Document:
    """A MeshService over the Dataplanes whose service tag is its name; on port 80 unless told otherwise."""
    selected = {"dataplaneTags": {SERVICE_TAG: name}} if selector is None else selector
    spec = {"selector": selected, "ports": list(ports) or [port()]}
    return document("MeshService", name, mesh, spec=spec, **fields)


def multi_zone_service(
    name: str, *ports: Mapping[str, Any], labels: Mapping[str, str], mesh: str = "default", **fields: Any
) -> Document:
    """A MeshMultiZoneService over the MeshServices with these labels."""
    spec = {"selector": {"meshService": {"matchLabels": labels}}, "ports": list(ports) or [port()]}
    return document("MeshMultiZoneService", name, mesh, spec=spec, **fields)


def external_service(
    name: str, number: int = 80, protocol: str = "http", *, mesh: str = "default", **spec: Any
) -> Document:
    """A MeshExternalService on a port; what else is given are fields of its spec."""
    match = {"type": "HostnameGenerator", "port": number, "protocol": protocol}
    return document("MeshExternalService", name, mesh, spec={"match": match, **spec})


def hostname_generator(name: str, template: str, selects: str = "meshService", **spec: Any) -> Document:
    selector = {selects: {"matchLabels": {}}}
    return document("HostnameGenerator", name, "", spec={"selector": selector, "template": template, **spec})


def policy(
    kind: str, name: str, *to: tuple[Mapping[str, Any], Mapping[str, Any]], mesh: str = "default", **spec: Any
) -> Document:
    """A policy with entries of `to`, each a targetRef and a conf; the rest are fields of its spec."""
    entries = [{"targetRef": target, "default": conf} for target, conf in to]
    return document(kind, name, mesh, spec={**spec, **({"to": entries} if to else {})})


def timeout(name: str = "slow", mesh: str = "default", idle: str = "5s", **fields: Any) -> Document:
    """A MeshTimeout that sets the idle timeout of the whole mesh."""
    return {**policy("MeshTimeout", name, (ANY, {"idleTimeout": idle}), mesh=mesh), **fields}


def allow_all(name: str = "all") -> Document:
    """A MeshTrafficPermission by which all proxies of the mesh may call each other."""
    conf = {"allow": [{"spiffeID": {"type": "Prefix", "value": "spiffe://default/"}}]}
    return policy("MeshTrafficPermission", name, rules=[{"default": conf}])


def http_rule(path: str = "/", *, filters: Any = (), backends: Any = ()) -> Document:
    """A rule of a MeshHTTPRoute for all paths below one."""
    default = {
        **({"filters": list(filters)} if filters else {}),
        **({"backendRefs": list(backends)} if backends else {}),
    }
    return {"matches": [{"path": {"type": "PathPrefix", "value": path}}], "default": default}


def response_header(name: str, value: str) -> Document:
    """A filter of a route that sets one header of responses."""
    return {
        "type": "ResponseHeaderModifier",
        "responseHeaderModifier": {"set": [{"name": name, "value": value}]},
    }


def service_ref(name: str, **fields: Any) -> Document:
    """A reference to a MeshService: a targetRef, or with a port a backendRef."""
    return {"kind": "MeshService", "name": name, **fields}


def http_route(
    name: str, *rules: Mapping[str, Any], to: str = "backend", mesh: str = "default", **spec: Any
) -> Document:
    """A MeshHTTPRoute for calls to a MeshService."""
    entry = {"targetRef": service_ref(to), "rules": list(rules)}
    return document("MeshHTTPRoute", name, mesh, spec={**spec, "to": [entry]})


def secret(name: str, data: str = "eA==", mesh: str = "default") -> Document:
    return document("Secret", name, mesh, data=data)


def resource(
    written: Mapping[str, Any], *, zone: str = "east", namespace: str = "", **fields: Any
) -> Resource:
    """The object of a document as a store of a zone has it; nothing is checked or added but its origin."""
    inline = {name: value for name, value in written.items() if name not in _META_FIELDS}
    name = written["name"]
    is_mesh = written["type"] == "Mesh"
    return Resource(
        kind=written["type"],
        mesh=written.get("mesh", ""),
        namespace=namespace,
        name=name,
        core_name=fields.pop("core_name", f"{name}.{namespace}" if namespace else name),
        zone="" if is_mesh else zone,
        labels={**({} if is_mesh else {"kuma.io/origin": "zone"}), **written.get("labels", {})},
        spec=inline.get("spec", inline),
        status=written.get("status"),
        **fields,
    )
