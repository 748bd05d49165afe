"""Namespaces: how they come into being, and which ones users may not create or delete.

The first write into a namespace creates it, in either form. A client of the Kubernetes form that did not
notice that a namespace was deleted does not bring it back, though: for a while its writes get a 404, as they
would from Kubernetes. Namespaces called `mesh-<mesh>` are created and deleted with their mesh.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
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
from koguma.store.contract import Ensure, Op, Operation, Require, rfc3339

NAMESPACE: Final = core.NAMESPACE.stored_as
TERMINATING: Final = "Terminating"
# Longer than the slowest back-off of usual controllers (16 minutes), which write from what they remember.
DELETED_FOR: Final = timedelta(hours=1)


def namespace_key(name: str) -> Key:
    """The key of a Namespace in the store."""
    return Key(NAMESPACE, "", "", "", name)


def new_namespace(name: str) -> Resource:
    """A Namespace as the first write into it creates it."""
    kind = core.NAMESPACE
    return Resource(
        kind=NAMESPACE,
        name=name,
        core_name=name,
        labels=native.added_labels(kind, name),
        spec=native.stored_spec(kind, {}),
        status=native.first_status(kind),
    )


def terminating(namespace: Resource) -> Resource:
    """A Namespace that is deleted as soon as it is empty."""
    status = {**(namespace.status or {}), "phase": TERMINATING}
    return msgspec.structs.replace(namespace, status=status)


def required_namespace(context: Context, name: str, what: str) -> Iterator[Operation]:
    """Create the namespace of a new object where it is missing; `what` names the object in errors.

    Raises Forbidden where the namespace is being deleted.
    """
    if not name:
        return
    stored = context.state.get(namespace_key(name))
    if stored is not None and stored.meta.deletion_timestamp:
        text = f"unable to create new content in namespace {name} because it is being terminated"
        cause = Violation("metadata.namespace", f"namespace {name} is being terminated", "terminating")
        raise Forbidden(f"{what} is forbidden: {text}", violations=[cause])
    mesh = namespaced_names.mesh_of(name)
    if mesh is not None and mesh not in mesh_suffixes(context):
        text = f'namespaces "{name}" not found: there is no mesh "{mesh}"'
        raise NotFound(text, violations=[Violation("metadata.namespace", text, "missing")])
    yield Ensure(new_namespace(name))  # also where it exists: it may be deleted before this is committed


def still_there(context: Context, name: str) -> Iterator[Operation]:
    """For a new object of the Kubernetes form: its namespace must not be deleted before this is committed."""
    if context.state.get(namespace_key(name)) is not None:
        yield Require(namespace_key(name), _not_found(name))


async def check_not_deleted(context: Context, name: str, now: datetime) -> None:
    """Raise NotFound where a namespace does not exist and was deleted a short time ago.

    The log of the store knows it, so that all control planes agree, and after a restart too. A log that
    keeps its history for a shorter time forgets it earlier.
    """
    is_missing = bool(name) and context.state.get(namespace_key(name)) is None
    if not is_missing or namespaced_names.mesh_of(name) is not None:
        return
    for last in await context.store.history(namespace_key(name), 1):
        if last.op is Op.DELETE and last.time > rfc3339(now - DELETED_FOR):
            raise _not_found(name, f": it was deleted at {last.time}; create it before you write into it")


def _not_found(name: str, hint: str = "") -> NotFound:
    text = f'namespaces "{name}" not found{hint}'
    return NotFound(text, violations=[Violation("metadata.namespace", text, "missing")])


def mesh_suffixes(context: Context) -> set[str]:
    """What may follow `mesh-` in a namespace's name: every mesh, and the word for objects of no mesh."""
    everywhere = namespaced_names.mesh_of(forms.reserved_namespace("")) or ""
    return {everywhere, *(mesh.name for mesh in context.state.listed("Mesh"))}


def check_new(context: Context, name: str) -> None:
    """Raise Forbidden where users may not create a namespace of this name."""
    mesh = namespaced_names.mesh_of(name)
    if mesh is not None and mesh not in mesh_suffixes(context):
        text = f'names that begin with "{forms.NO_NAMESPACE_PREFIX}" are for meshes'
        hint = f'it comes with the mesh "{mesh}"; make that, or choose another name'
        raise Forbidden(f'namespaces "{name}" is forbidden: {text}; {hint}')


def check_deletable(context: Context, name: str) -> None:
    """Raise Forbidden where a namespace may not be deleted."""
    if name in (DEFAULT_NAMESPACE, context.control_plane.system_namespace):
        raise Forbidden(f'namespaces "{name}" is forbidden: this namespace may not be deleted')
    mesh = namespaced_names.mesh_of(name)
    if mesh is not None:
        raise Forbidden(f'namespaces "{name}" is forbidden: it goes with the mesh "{mesh}"; delete that')
