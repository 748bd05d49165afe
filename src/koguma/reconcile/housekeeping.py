"""Housekeeping: namespaces that come and go, and objects that go with their owners.

These are the namespace controller and the garbage collector of Kubernetes, in one: foreground and background
deletion, orphans, finalizers.
"""

from collections.abc import Iterable, Sequence
from typing import Final, assert_never

import msgspec
import structlog

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap, kube_admission, namespaces
from koguma.application.context import Context
from koguma.application.namespaces import NAMESPACE
from koguma.core.identity import DEFAULT_NAMESPACE
from koguma.kube import namespace_conditions, namespaced_names
from koguma.kube.kinds.core import FINALIZER  # ours, on every namespace: its content goes before it does
from koguma.kube.namespace_conditions import RemainingObject
from koguma.kube.owner_graph import (
    FOREGROUND,
    CollectionStep,
    DeleteDependent,
    OwnerGraph,
    RemoveFinalizer,
    RemoveOwnerReference,
)
from koguma.model import forms
from koguma.model.errors import (
    Conflict,
    Forbidden,
    Invalid,
    KogumaError,
    Unavailable,
)
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.reconcile.custom_definitions import DefinitionKeeper
from koguma.reconcile.following import follow
from koguma.runtime.clock import now
from koguma.store.contract import (
    Change,
    Delete,
    Ensure,
    Op,
    Operation,
    Put,
    RequireEmpty,
    Transaction,
    rfc3339,
)
from koguma.store.watch import Watch

RETRY_SECONDS: Final = 1.0
_REASON: Final = "housekeeping"

_log = structlog.get_logger("koguma.housekeeping")


class Housekeeper:
    """Keeps namespaces and owned objects in order, until cancelled."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._owners = self._owners_of()
        self._ending: set[str] = set()  # namespaces that are being deleted
        self._definitions = DefinitionKeeper(context, self._write)
        self._retries = False

    async def run(self) -> None:
        """Look at everything, and then at what changes."""
        await follow(self._context.store, None, self._follow, _log, RETRY_SECONDS)

    async def _follow(self, watch: Watch) -> None:
        self._owners = self._owners_of(self._context.state.all())
        await self._fill()
        self._ending = {each.name for each in self._namespaces() if each.meta.deletion_timestamp}
        while True:
            await self._settle()
            for change in await watch.next_batch(RETRY_SECONDS if self._retries else None):
                await self._note(change)

    def _owners_of(self, resources: Iterable[Resource] = ()) -> OwnerGraph:
        return OwnerGraph(resources, self._namespace_of, self._is_hidden)

    def _namespace_of(self, resource: Resource) -> str:
        kind = self._context.catalog.kind(resource.kind)
        return (
            namespaced_names.namespaced_name(resource, kind, self._context.control_plane).namespace
            if kind
            else resource.namespace
        )

    def _is_hidden(self, reference: Json) -> bool:
        """Whether an object that cannot be read has the name of a reference."""
        return any(key.name == reference.get("name") for key in self._context.state.unreadable)

    def _namespaces(self) -> Sequence[Resource]:
        return self._context.state.listed(NAMESPACE)

    async def _fill(self) -> None:
        """Namespaces that are there in any case, and those that stored objects are in."""
        state = self._context.state
        required = {
            DEFAULT_NAMESPACE,
            self._context.control_plane.system_namespace,
            forms.reserved_namespace(""),
        }
        required |= {forms.reserved_namespace(mesh.name) for mesh in state.listed("Mesh")}
        required |= {key.namespace for key in state.stored_keys() if key.namespace}
        missing = sorted(required - {each.name for each in self._namespaces()})
        if missing:
            await self._write([Ensure(namespaces.new_namespace(name)) for name in missing])
        for namespace in self._namespaces():
            if self._is_orphaned(namespace):
                await self._end(namespace)

    def _is_orphaned(self, namespace: Resource) -> bool:
        """Whether it was the reserved one of a mesh that is gone."""
        mesh = namespaced_names.mesh_of(namespace.name)
        if (
            mesh is None
            or namespace.meta.deletion_timestamp
            or namespace.name == forms.reserved_namespace("")
        ):
            return False
        return self._context.state.named("Mesh", "", mesh) is None

    async def _note(self, change: Change) -> None:
        resource = change.resource
        if change.error:
            return
        if change.op is Op.DELETE:
            self._owners.drop(resource)
        else:
            self._owners.take(resource)
        if resource.kind == NAMESPACE:
            ends = change.op is not Op.DELETE and bool(resource.meta.deletion_timestamp)
            (self._ending.add if ends else self._ending.discard)(resource.name)
            mesh = namespaced_names.mesh_of(resource.name)
            if change.op is Op.DELETE and mesh is not None:  # its mesh may be there again
                await self._follow_mesh(mesh)
        elif resource.kind == "Mesh":
            await self._follow_mesh(resource.name)

    async def _follow_mesh(self, mesh: str) -> None:
        namespace = self._context.state.get(namespaces.namespace_key(forms.reserved_namespace(mesh)))
        if namespace is not None and self._is_orphaned(namespace):
            await self._end(namespace)
        elif namespace is None and self._context.state.named("Mesh", "", mesh) is not None:
            await self._write([Ensure(namespaces.new_namespace(forms.reserved_namespace(mesh)))])

    async def _end(self, namespace: Resource) -> None:
        await self._write(kube_admission.deletion(self._context, namespace, namespace.revision))

    async def _settle(self) -> None:
        """Do what is due; what could not be done is tried again after a moment."""
        self._retries = False
        for step in self._owners.due():
            if not await self._do(step):
                self._owners.suspect(step.resource)
                self._retries = True
        self._retries |= not await self._definitions.settle()
        for name in sorted(self._ending):
            namespace = self._context.state.get(namespaces.namespace_key(name))
            if namespace is not None:
                self._retries |= not await self._empty(namespace)

    async def _do(self, step: CollectionStep, failures: list[str] | None = None) -> bool:
        """Whether it is done; `failures` get the reason why it never will be, as things are."""
        try:
            operations = self._operations(step)
        except (Forbidden, Invalid) as error:
            _log.warning("an object cannot be removed", about=str(step.resource.key), reason=str(error))
            if failures is not None:
                failures.append(f"{step.resource.key}: {error}")
            return False
        return await self._write(operations)

    def _operations(self, step: CollectionStep) -> Sequence[Operation]:
        resource = step.resource
        meta = resource.meta
        match step:
            case DeleteDependent(in_foreground=in_foreground):
                if in_foreground and FOREGROUND not in meta.finalizers:
                    meta = msgspec.structs.replace(meta, finalizers=(*meta.finalizers, FOREGROUND))
                return self._removal(msgspec.structs.replace(resource, meta=meta))
            case RemoveFinalizer(finalizer=finalizer):
                left = tuple(each for each in meta.finalizers if each != finalizer)
                meta = msgspec.structs.replace(meta, finalizers=left)
                released = msgspec.structs.replace(resource, meta=meta)
                is_last = not left and resource.kind != NAMESPACE
                return self._removal(released) if is_last else (Put(released, resource.revision),)
            case RemoveOwnerReference(owner=owner):
                kept = tuple(each for each in meta.owner_references if each.get("uid") != owner)
                meta = msgspec.structs.replace(meta, owner_references=kept)
                return (Put(msgspec.structs.replace(resource, meta=meta), resource.revision),)
            case unknown:
                assert_never(unknown)

    def _removal(self, resource: Resource) -> Sequence[Operation]:
        if resource.kind == NAMESPACE:
            namespaces.check_deletable(self._context, resource.name)
        return kube_admission.deletion(self._context, resource, resource.revision)

    async def _empty(self, namespace: Resource) -> bool:
        """Delete what is in a namespace, then the namespace; whether all of that is done."""
        name, state = namespace.name, self._context.state
        failures: list[str] = []
        for resource in self._inside(name):
            if not resource.meta.deletion_timestamp:
                await self._do(DeleteDependent(resource), failures)
        inside_broken = [key for key in state.unreadable if key.namespace == name]
        if inside_broken:
            await self._write([Delete(key) for key in inside_broken])
        if left := self._inside(name):
            return await self._report(namespace, left, failures)
        held = [each for each in (namespace.spec or {}).get("finalizers") or () if each != FINALIZER]
        if held or namespace.meta.finalizers:
            spec = {**(namespace.spec or {}), "finalizers": held}
            return await self._write([Put(msgspec.structs.replace(namespace, spec=spec), namespace.revision)])
        left_over = Conflict(f"namespace {name} is not empty yet")
        return await self._write([RequireEmpty(name, left_over), Delete(namespace.key, namespace.revision)])

    def _inside(self, name: str) -> list[Resource]:
        return [resource for resource in self._context.state.all() if resource.namespace == name]

    async def _report(self, namespace: Resource, left: Sequence[Resource], failures: Sequence[str]) -> bool:
        """Say in the status of a namespace what is still in it; False, since it has to be looked at again."""
        status = namespace.status or {}
        remaining = (RemainingObject(self._resource_of(each), each.meta.finalizers) for each in left)
        conditions = namespace_conditions.conditions(
            status.get("conditions") or (), remaining, failures, rfc3339(now())
        )
        reported = msgspec.structs.replace(namespace, status={**status, "conditions": conditions})
        if reported != namespace:
            await self._write([Put(reported, namespace.revision)])
        return False

    def _resource_of(self, resource: Resource) -> str:
        catalog = self._context.catalog
        if catalog.kind(resource.kind) is None:
            return resource.kind
        endpoint = catalog.stored(resource.kind)
        return f"{endpoint.plural}.{endpoint.group}"

    async def _write(self, operations: Sequence[Operation]) -> bool:
        """Whether it is done; somebody else may have been first, or something holds it."""
        try:
            transaction = Transaction(tuple(operations), SYSTEM, _REASON)
            return await compare_and_swap.written_if_first(self._context.store, transaction)
        except Invalid as error:
            _log.warning("an object cannot be removed", reason=str(error))
            return False
        except KogumaError as error:
            if isinstance(error, Unavailable):
                raise
            _log.warning("housekeeping waits", reason=error.detail)
            return False
