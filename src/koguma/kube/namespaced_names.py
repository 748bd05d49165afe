"""Namespaced names: under which namespace and name the Kubernetes form shows an object, and how to find one.

An object with a namespace is shown there. One without appears in the reserved namespace of its mesh, one that
another control plane wrote in the system namespace, under the core name by which the plain form knows it. A
namespace and a name identify one object of a kind, whatever its mesh.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from koguma.model import forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind
from koguma.model.resource import Key, Resource


class NamespacedName(NamedTuple):
    """A namespace (empty for cluster-scoped objects) and a name, as Kubernetes' `types.NamespacedName`."""

    namespace: str
    name: str


def is_native(kind: Kind) -> bool:
    """Whether it is one of Kubernetes' own kinds."""
    return bool(kind.set_name)


def is_namespaced(kind: Kind) -> bool:
    """Whether the Kubernetes form shows it in namespaces; a mesh's own are, so that names are unique."""
    return kind.namespaced or (kind.is_mesh_scoped and not is_native(kind))


def namespaced_name(resource: Resource, kind: Kind, control_plane: ControlPlaneInfo) -> NamespacedName:
    """Under which namespace and name an object is shown."""
    if is_native(kind):
        return NamespacedName(resource.namespace, resource.name)
    if not is_namespaced(kind):
        return NamespacedName("", resource.core_name)
    if is_foreign(resource, control_plane):
        return NamespacedName(control_plane.system_namespace, resource.core_name)
    return NamespacedName(resource.namespace or forms.reserved_namespace(resource.mesh), resource.name)


def is_foreign(resource: Resource, control_plane: ControlPlaneInfo) -> bool:
    """Whether another control plane wrote it, and it came here by sync."""
    if control_plane.is_global:
        return bool(resource.zone)
    return (bool(resource.zone) and resource.zone != control_plane.zone) or (
        control_plane.federated and resource.origin == "global"
    )


def mesh_of(namespace: str) -> str | None:
    """The mesh whose reserved namespace this is; None for all other namespaces."""
    if not namespace.startswith(forms.NO_NAMESPACE_PREFIX):
        return None
    return namespace.removeprefix(forms.NO_NAMESPACE_PREFIX)


class LookupKeys(NamedTuple):
    """Where an object may be stored: under one of these keys, or by a core name in one of these meshes."""

    keys: tuple[Key, ...]
    names: tuple[tuple[str, str], ...]  # mesh, core name


def lookup_keys(
    kind: Kind, name: NamespacedName, zone: str, meshes: Iterable[str], control_plane: ControlPlaneInfo
) -> LookupKeys:
    """Where an object of that name may be stored; `zone` is that of objects written here.

    The caller compares the namespaced name of what it finds, since several names may lead to a key.
    """
    if is_native(kind):
        return LookupKeys((Key(kind.stored_as, "", "", name.namespace, name.name),), ())
    if not is_namespaced(kind):
        return LookupKeys((), (("", name.name),))
    reserved = mesh_of(name.namespace)
    if reserved is not None:
        return LookupKeys((), ((reserved if kind.is_mesh_scoped else "", name.name),))
    scopes = tuple(meshes) if kind.is_mesh_scoped else ("",)
    keys = tuple(Key(kind.stored_as, mesh, zone, name.namespace, name.name) for mesh in scopes)
    is_system = name.namespace == control_plane.system_namespace
    return LookupKeys(keys, tuple((mesh, name.name) for mesh in scopes) if is_system else ())


def sorted_by_namespaced_name(
    resources: Iterable[Resource], kind: Kind, control_plane: ControlPlaneInfo
) -> Iterator[tuple[NamespacedName, Resource]]:
    """Objects in the order of their namespaces and names."""
    placed = [(namespaced_name(resource, kind, control_plane), resource) for resource in resources]
    placed.sort(key=_name_of)
    return iter(placed)


def _name_of(pair: tuple[NamespacedName, Resource]) -> NamespacedName:
    return pair[0]
