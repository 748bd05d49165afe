"""TargetRef: how a policy points at proxies, at destinations and at clients.

The kinds of Kuma 2.13 with all their fields, and MeshTCPRoute beside MeshHTTPRoute. Each policy says
which kinds it takes where; the table of which field goes with which kind is the same for all.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Final, Literal

from koguma.model import tags as tag_rules
from koguma.model.schema import Spec, doc
from koguma.model.violation import Violation, child

RefKind = Literal[
    "Mesh",
    "MeshSubset",
    "MeshGateway",
    "MeshService",
    "MeshExternalService",
    "MeshMultiZoneService",
    "MeshServiceSubset",
    "MeshHTTPRoute",
    "MeshTCPRoute",
    "Dataplane",
]

# Which proxies a policy acts on. Kuma 2.13 marks the last four as deprecated.
# The routes: policies that the engine itself reads, since others refer to them.
HTTP_ROUTE: Final = "MeshHTTPRoute"
TCP_ROUTE: Final = "MeshTCPRoute"
ROUTE_FILTER: Final = "RouteFilter"  # one filter of a rule, which routes of the Gateway API name
GATEWAY_ROUTE: Final = "MeshGatewayHTTPRoute"

PROXIES: Final = ("Mesh", "Dataplane", "MeshSubset", "MeshGateway", "MeshService", "MeshServiceSubset")
# The same for a policy in a namespace other than the system one.
NAMESPACED_PROXIES: Final = ("Mesh", "Dataplane", "MeshSubset", "MeshService", "MeshServiceSubset")
ROUTES: Final = (HTTP_ROUTE, TCP_ROUTE)
DESTINATIONS: Final = ("MeshService", "MeshExternalService", "MeshMultiZoneService")
CLIENTS: Final = ("Mesh", "MeshSubset", "MeshService", "MeshServiceSubset")


class TargetRef(Spec):
    """A reference from a policy to what it acts on."""

    kind: Annotated[RefKind, doc("What is referenced.")]
    name: Annotated[str | None, doc("Name of the referenced resource.")] = None
    namespace: Annotated[
        str | None, doc("Namespace of the referenced resource; the policy's own by default.")
    ] = None
    labels: Annotated[Mapping[str, str] | None, doc("Select resources by labels instead of by name.")] = None
    section_name: Annotated[
        str | None, doc("One part of it: the name of a port, inbound or listener, or its number.")
    ] = None
    tags: Annotated[Mapping[str, str] | None, doc("Select proxies or endpoints by tags.")] = None
    mesh: Annotated[str | None, doc("Reserved for references into another mesh.")] = None
    proxy_types: Annotated[
        tuple[Literal["Sidecar", "Gateway"], ...] | None, doc("Only proxies of these types.")
    ] = None


class BackendRef(TargetRef):
    """Where a route sends a share of the requests."""

    weight: Annotated[int, doc("Share of the traffic; 1 by default.", ge=0)] | None = None
    port: Annotated[int, doc("Port number of the destination.", ge=0, le=4294967295)] | None = None


MESH: Final = TargetRef(kind="Mesh")

_NAME = re.compile(r"[0-9a-z.\-_]*")
_NAME_MESSAGE = "invalid characters: must consist of lower case alphanumeric characters, '-', '.' and '_'."

# Which fields go with which kind; `kind` itself always does.
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "Mesh": frozenset({"proxyTypes"}),
    "MeshSubset": frozenset({"tags", "proxyTypes"}),
    "Dataplane": frozenset({"name", "namespace", "labels", "sectionName"}),
    "MeshService": frozenset({"name", "namespace", "labels", "sectionName"}),
    "MeshExternalService": frozenset({"name", "namespace", "labels"}),
    "MeshMultiZoneService": frozenset({"name", "namespace", "labels", "sectionName"}),
    "MeshServiceSubset": frozenset({"name", "tags"}),
    "MeshGateway": frozenset({"name", "tags", "sectionName"}),
    "MeshHTTPRoute": frozenset({"name", "namespace", "labels"}),
    "MeshTCPRoute": frozenset({"name", "namespace", "labels"}),
}
_NEEDS_NAME: Final = frozenset(
    {
        "MeshService",
        "MeshExternalService",
        "MeshMultiZoneService",
        "MeshServiceSubset",
        "MeshGateway",
        *ROUTES,
    }
)


def violations(
    ref: TargetRef,
    path: str,
    allowed: Collection[str],
    *,
    sections: bool = True,
    gateway_tags: bool = True,
) -> Iterator[Violation]:
    """What is wrong with a reference where the policy takes the `allowed` kinds.

    `sections`: whether a Dataplane may be narrowed to one inbound here (inbound policies only).
    `gateway_tags`: whether a MeshGateway may be narrowed to listeners, by tags or by a section.
    """
    if ref.kind not in allowed:
        yield Violation(
            child(path, "kind"), f"value '{ref.kind}' is not supported; {_instead(allowed)}", "kind"
        )
        return
    yield from _field_violations(ref, path, gateway_tags=gateway_tags)
    if ref.kind == "Dataplane" and ref.section_name and not sections:
        yield Violation(child(path, "sectionName"), "can only be used with inbound policies", "forbidden")


def _instead(allowed: Collection[str]) -> str:
    *most, last = allowed
    return f"use {', '.join(most)} or {last} here" if most else f"use {last} here"


def _field_violations(ref: TargetRef, path: str, *, gateway_tags: bool) -> Iterator[Violation]:
    legal = _FIELDS[ref.kind]
    if ref.kind == "Mesh" and ref.name:
        yield Violation(child(path, "name"), "using name with kind Mesh is not yet supported", "forbidden")
    elif ref.name and "name" not in legal:
        yield _must_not(path, "name", ref.kind)
    elif ref.name and not _NAME.fullmatch(ref.name):
        yield Violation(child(path, "name"), _NAME_MESSAGE, "name")
    elif not ref.name and not ref.labels and ref.kind in _NEEDS_NAME:
        yield Violation(child(path, "name"), f"must be set with kind {ref.kind}", "required")
    for field, value in (
        ("namespace", ref.namespace),
        ("mesh", ref.mesh),
        ("sectionName", ref.section_name),
        ("labels", ref.labels),
        ("tags", ref.tags),
    ):
        if value and field not in legal:
            yield _must_not(path, field, ref.kind)
    if ref.labels and "labels" in legal and (ref.name or ref.namespace):
        words = "name" if ref.kind == "MeshExternalService" else "name and namespace"
        yield Violation(child(path, "labels"), f"either labels or {words} must be specified", "exclusive")
    yield from _tag_violations(ref, path, gateway_tags=gateway_tags)
    yield from _proxy_type_violations(ref, path)


def _tag_violations(ref: TargetRef, path: str, *, gateway_tags: bool) -> Iterator[Violation]:
    at = child(path, "tags")
    if ref.tags and ref.kind == "MeshSubset":
        yield from tag_rules.violations(ref.tags, at)
    elif ref.kind == "MeshGateway" and not gateway_tags:
        for field, value in (("tags", ref.tags), ("sectionName", ref.section_name)):
            if value:
                yield _must_not(path, field, ref.kind)
    elif ref.tags and ref.kind in ("MeshServiceSubset", "MeshGateway"):
        yield from tag_rules.violations(ref.tags, at, selector=True)


def _proxy_type_violations(ref: TargetRef, path: str) -> Iterator[Violation]:
    at = child(path, "proxyTypes")
    if ref.proxy_types is None:
        return
    if "proxyTypes" not in _FIELDS[ref.kind]:
        if ref.proxy_types:
            yield _must_not(path, "proxyTypes", ref.kind)
    elif not ref.proxy_types:
        yield Violation(at, "must be undefined or have at least one element", "required")


def _must_not(path: str, field: str, kind: str) -> Violation:
    return Violation(child(path, field), f"must not be set with kind {kind}", "forbidden")


def is_gateway(ref: TargetRef | None) -> bool:
    """Whether a top-level reference is to a gateway, whose listeners have no clients of the mesh."""
    return ref is not None and ref.kind == "MeshGateway"


def includes_gateways(ref: TargetRef) -> bool:
    """Whether the selected proxies can be gateways."""
    match ref.kind:
        case "Mesh" | "MeshSubset":
            return not ref.proxy_types or "Gateway" in ref.proxy_types
        case kind:
            return kind in ("MeshGateway", *ROUTES)


def warnings(ref: TargetRef | None) -> Iterator[str]:
    """Deprecation notes for a top-level reference, in Kuma's words."""
    match ref:
        case TargetRef(kind="MeshService" | "MeshServiceSubset" | "MeshSubset" as kind):
            yield f"{kind} value for 'targetRef.kind' is deprecated, use Dataplane with labels instead"
        case TargetRef(kind="MeshHTTPRoute" | "MeshTCPRoute" as kind):
            yield f"{kind} value for 'targetRef.kind' is deprecated, use {kind} in spec.to[].targetRef"
        case _:
            return
