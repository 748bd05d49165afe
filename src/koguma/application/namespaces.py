"""Namespaces: which there are, which nobody may make or remove, and what a new object needs of its own.

The first write into a namespace makes it, whichever form it comes in. Those called `mesh-<mesh>` come and go
with their mesh.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from koguma.application.context import Context
from koguma.core.identity import DEFAULT_NAMESPACE
from koguma.kube import namespaced_names, native
from koguma.kube.kinds import core
from koguma.model import forms
from koguma.model.errors import Forbidden, NotFound
from koguma.model.resource import Key, Resource
from koguma.model.violation import Violation
from koguma.store.contract import Ensure, Operation

NAMESPACE: Final = core.NAMESPACE.stored_as
TERMINATING: Final = "Terminating"


def key_of(name: str) -> Key:
    """Where a Namespace is stored."""
    return Key(NAMESPACE, "", "", "", name)


def resource_of(name: str) -> Resource:
    """A Namespace as the first write into it makes it."""
    kind = core.NAMESPACE
    return Resource(
        kind=NAMESPACE,
        name=name,
        core_name=name,
        labels=native.added_labels(kind, name),
        spec=native.prepared(kind, {}),
        status=native.first_status(kind),
    )


def ended(namespace: Resource) -> Resource:
    """A Namespace that is to go as soon as nothing is left in it."""
    status = {**(namespace.status or {}), "phase": TERMINATING}
    return msgspec.structs.replace(namespace, status=status)


def needed(context: Context, name: str, what: str) -> Iterator[Operation]:
    """The namespace of a new object, unless that is on its way out; `what` names the object for people."""
    if not name:
        return
    stored = context.state.get(key_of(name))
    if stored is not None and stored.meta.deletion_timestamp:
        text = f"unable to create new content in namespace {name} because it is being terminated"
        cause = Violation("metadata.namespace", f"namespace {name} is being terminated", "terminating")
        raise Forbidden(f"{what} is forbidden: {text}", violations=[cause])
    mesh = namespaced_names.mesh_of(name)
    if mesh is not None and mesh not in reserved(context):
        text = f'namespaces "{name}" not found: there is no mesh "{mesh}"'
        raise NotFound(text, violations=[Violation("metadata.namespace", text, "missing")])
    yield Ensure(resource_of(name))  # also where it is there: it may be gone a moment later


def reserved(context: Context) -> set[str]:
    """What may stand behind `mesh-`: every mesh, and the word for objects of none."""
    everywhere = namespaced_names.mesh_of(forms.reserved_namespace("")) or ""
    return {everywhere, *(mesh.name for mesh in context.state.listed("Mesh"))}


def check_new(context: Context, name: str) -> None:
    """Raise Forbidden where a namespace is not for people to make."""
    mesh = namespaced_names.mesh_of(name)
    if mesh is not None and mesh not in reserved(context):
        text = f'names that begin with "{forms.NO_NAMESPACE_PREFIX}" are for meshes'
        hint = f'it comes with the mesh "{mesh}"; make that, or choose another name'
        raise Forbidden(f'namespaces "{name}" is forbidden: {text}; {hint}')


def check_removal(context: Context, name: str) -> None:
    """Raise Forbidden where a namespace may not be deleted."""
    if name in (DEFAULT_NAMESPACE, context.control_plane.system_namespace):
        raise Forbidden(f'namespaces "{name}" is forbidden: this namespace may not be deleted')
    mesh = namespaced_names.mesh_of(name)
    if mesh is not None:
        raise Forbidden(f'namespaces "{name}" is forbidden: it goes with the mesh "{mesh}"; delete that')
