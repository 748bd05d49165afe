"""Objects of the Gateway API as they are stored: the names of their kinds, their mesh, and their fields.

What is stored has passed the schemas of admission, which may have been those of another version: what does
not fit is read as absent.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from koguma.core import world
from koguma.core.incremental import Db, question
from koguma.model import forms, labels
from koguma.model.gateway_api import references
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

GROUP: Final = references.GROUP
CONTROLLER: Final = references.CONTROLLER

GATEWAY_CLASS: Final = f"GatewayClass.{GROUP}"
GATEWAY: Final = f"Gateway.{GROUP}"
LISTENER_SET: Final = f"ListenerSet.{GROUP}"
HTTP_ROUTE: Final = f"HTTPRoute.{GROUP}"
GRPC_ROUTE: Final = f"GRPCRoute.{GROUP}"
TCP_ROUTE: Final = f"TCPRoute.{GROUP}"
TLS_ROUTE: Final = f"TLSRoute.{GROUP}"
REFERENCE_GRANT: Final = f"ReferenceGrant.{GROUP}"
ROUTES: Final = (HTTP_ROUTE, GRPC_ROUTE, TCP_ROUTE, TLS_ROUTE)

_NAMESPACE: Final = "Namespace.core"
_DEFAULT_MESH: Final = "default"
_NOTHING: Final[Mapping[str, Json]] = {}


def word(stored_kind: str) -> str:
    """A kind as users write it: HTTPRoute."""
    return stored_kind.partition(".")[0]


def mesh_of(db: Db, resource: Resource) -> str:
    """The mesh of an object: its namespace is one of a mesh, or it or its namespace has the label."""
    if resource.namespace.startswith(forms.NO_NAMESPACE_PREFIX):
        return resource.namespace.removeprefix(forms.NO_NAMESPACE_PREFIX)
    own = resource.labels.get(labels.MESH) or resource.annotations.get(labels.MESH)
    return own or namespace_labels(db, resource.namespace).get(labels.MESH) or _DEFAULT_MESH


def is_namespace_of(mesh: str, namespace: str) -> bool:
    """Whether services of a mesh can be in a namespace: not in the reserved namespace of another mesh.

    In keys all reserved namespaces are none, so nothing else keeps those of two meshes apart.
    """
    is_reserved = namespace.startswith(forms.NO_NAMESPACE_PREFIX)
    return not is_reserved or namespace == forms.reserved_namespace(mesh)


@question
def namespace_labels(db: Db, namespace: str) -> Mapping[str, str]:
    """The labels of a namespace, and its annotation of a mesh."""
    resource = world.RESOURCES.get(db, Key(_NAMESPACE, "", "", "", namespace))
    if resource is None:
        return {}
    mesh = resource.annotations.get(labels.MESH)
    return {**({labels.MESH: mesh} if mesh else {}), **resource.labels}


def fields(value: Json) -> Mapping[str, Json]:
    """An object's fields; none where it is no object."""
    return value if isinstance(value, dict) else _NOTHING


def items(value: Json) -> Iterator[tuple[int, Mapping[str, Json]]]:
    """The objects of a list with their indexes."""
    if isinstance(value, list | tuple):
        yield from ((index, each) for index, each in enumerate(value) if isinstance(each, dict))


def text(value: Json) -> str:
    """A text; empty where it is none."""
    return value if isinstance(value, str) else ""


def number(value: Json) -> int | None:
    """A whole number, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
