"""Backend references: where a route of the Gateway API sends requests, as our routes write it.

A `Service` is the MeshService of its name and namespace; our own kinds may be named too, with group
`kuma.io`. What may not be referred to, or is of another kind, becomes a backend that does not exist, so that
its share of requests is answered with an error and nobody gets more than his weight.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from koguma.core import world
from koguma.core.gateway_api import grants, objects
from koguma.core.gateway_api.grants import ReferenceFrom, ReferenceTo
from koguma.core.incremental import Db
from koguma.core.world import Destination
from koguma.model import forms
from koguma.model.resource import Key
from koguma.model.schema import Json

NO_BACKEND: Final = "Invalid"  # the kind of a reference that finds nothing

REF_NOT_PERMITTED: Final = "RefNotPermitted"
INVALID_KIND: Final = "InvalidKind"
BACKEND_NOT_FOUND: Final = "BackendNotFound"
UNSUPPORTED_PROTOCOL: Final = "UnsupportedProtocol"

OUR_GROUPS: Final = ("kuma.io", "koguma.io")
_SERVICE: Final = ("", "Service")


class RefProblem(NamedTuple):
    """Why a reference leads nowhere: the reason of the condition ResolvedRefs, and a sentence."""

    reason: str
    message: str


class ConvertedBackend(NamedTuple):
    """A reference as our routes write it, and why it cannot be followed where it cannot."""

    ref: Mapping[str, Json]
    problem: RefProblem | None = None


class RouteScope(NamedTuple):
    """Whose references these are: the route, and the mesh in which it acts."""

    route: Key
    mesh: str

    @property
    def namespace(self) -> str:
        """The namespace of what it names without one."""
        return self.route.namespace


def backend(db: Db, scope: RouteScope, ref: Mapping[str, Json], path: str) -> ConvertedBackend:
    """A backendRef of a rule or of a mirror. It reads grants, and nothing of the service itself."""
    group, kind = objects.text(ref.get("group")), objects.text(ref.get("kind")) or _SERVICE[1]
    name = objects.text(ref.get("name"))
    namespace = objects.text(ref.get("namespace")) or scope.namespace
    weight = {"weight": objects.number(ref["weight"])} if ref.get("weight") is not None else {}
    nowhere = {"kind": NO_BACKEND, "name": name, **weight}
    if (group, kind) != _SERVICE and not (group in OUR_GROUPS and kind in world.DESTINATION_KINDS):
        return ConvertedBackend(nowhere, _invalid_kind(path, group, kind))
    source = ReferenceFrom(objects.GROUP, objects.word(scope.route.kind), scope.namespace)
    if not grants.is_permitted(db, source, ReferenceTo(group, kind, namespace, name)):
        message = (
            f"{path}: {kind} {namespace}/{name} is in another namespace, and no ReferenceGrant there lets"
            f" {source.kind}s of namespace {source.namespace} refer to it"
        )
        return ConvertedBackend(nowhere, RefProblem(REF_NOT_PERMITTED, message))
    if not objects.is_namespace_of(scope.mesh, namespace):
        message = f"{path}: there is no {kind} {namespace}/{name} in mesh {scope.mesh}, where the route acts"
        return ConvertedBackend(nowhere, RefProblem(BACKEND_NOT_FOUND, message))
    ours = {"kind": "MeshService" if kind == _SERVICE[1] else kind, "name": name}
    port = objects.number(ref.get("port"))
    return ConvertedBackend(
        {**ours, "namespace": namespace, **({"port": port} if port is not None else {}), **weight}
    )


def _invalid_kind(path: str, group: str, kind: str) -> RefProblem:
    named = f"{kind}.{group}" if group else kind
    message = (
        f"{path}: {named} cannot be a backend; use a Service, or MeshService, MeshMultiZoneService or"
        " MeshExternalService of group kuma.io"
    )
    return RefProblem(INVALID_KIND, message)


def unresolved(
    db: Db, scope: RouteScope, ref: Mapping[str, Json], path: str, protocols: tuple[str, ...]
) -> Iterator[RefProblem]:
    """Why a reference that was converted finds no port that speaks one of the protocols; any where empty."""
    target = _destination(db, scope, ref)
    named = f"{ref['kind']} {ref['namespace']}/{ref['name']}"
    if target is None:
        yield RefProblem(BACKEND_NOT_FOUND, f"{path}: there is no {named} in mesh {scope.mesh}")
        return
    wanted = ref.get("port")
    if wanted is None:
        port = target.ports[0] if len(target.ports) == 1 else None
    else:
        port = target.port(str(wanted))
    if port is None:
        has = ", ".join(each.section for each in target.ports) or "none"
        message = f"{path}: {named} has no port {wanted or 'that is named'}; its ports are: {has}"
        yield RefProblem(BACKEND_NOT_FOUND, message)
    elif protocols and port.protocol not in protocols:
        message = (
            f"{path}: port {port.section} of {named} speaks {port.protocol}; set its appProtocol to one of"
            f" {', '.join(protocols)}"
        )
        yield RefProblem(UNSUPPORTED_PROTOCOL, message)


def _destination(db: Db, scope: RouteScope, ref: Mapping[str, Json]) -> Destination | None:
    zone = world.control_plane(db).zone
    namespace = forms.key_namespace(ref["namespace"])
    keys = (Key(ref["kind"], scope.mesh, place, namespace, ref["name"]) for place in (zone, ""))
    return next((found for key in keys if (found := world.destination(db, key)) is not None), None)
