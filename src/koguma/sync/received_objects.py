"""Received objects: stores what the other side of a connection sends, and says why it refuses something.

An object that is odd is refused by itself: the others of its batch are stored. What is the other side's
business is taken as it is; a zone keeps its own status of it, and whatever it had noted beside it. A Mesh
goes with all that is in it, as everywhere, and stays while Dataplanes of this side are in it.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from koguma.application.context import Context
from koguma.model import labels, names
from koguma.model.errors import Conflict, KogumaError, Unavailable
from koguma.model.kind import Kind, ValidationContext
from koguma.model.resource import Key, Resource
from koguma.model.schema import UNKNOWN
from koguma.model.violation import Violation, cut
from koguma.store.contract import Change, Delete, DeleteMesh, Operation, Put, RequireNone, Transaction
from koguma.sync import mapping
from koguma.sync.protocol import sums
from koguma.sync.protocol.messages import REASON_MAX, Refusal, SyncedObject
from koguma.sync.protocol.subscriber import Delivery

_VIOLATIONS_MAX: Final = 5  # that a reason names
_MESH: Final = "Mesh"
_STEP: Final = 50  # objects that are read between two turns of the event loop
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z)?")

# Why the other side may not send this object; empty where it may.
Objection = Callable[[Resource, Kind], str]


class _RefusedObject(Exception):
    """Why an object is not stored."""


class _MeshInUse(Conflict):
    """Why a Mesh is not deleted."""


class _Removal(NamedTuple):
    """What deletes an object."""

    key: Key
    operations: tuple[Operation, ...]


class ReceivedObjects:
    """Stores what one peer sends; `author` is who the revisions are by."""

    def __init__(
        self,
        context: Context,
        author: str,
        objection: Objection,
        *,
        keeps_status: bool,
        objects_max: int,
        beside: Callable[[Delivery], Sequence[Operation]] = lambda _delivery: (),
        is_checked: Callable[[Kind], bool] = lambda _kind: False,
    ) -> None:
        self._context = context
        self._author = author
        self._objection = objection
        self._keeps_status = keeps_status
        self._objects_max = objects_max
        self._beside = beside
        self._is_checked = is_checked  # whether the peer has checked specs of a kind by the same rules

    async def store(self, delivery: Delivery, n_held: int) -> list[Refusal]:
        """Store a delivery; returns what was refused. Unavailable where the store does not answer."""
        accepted, refused = await self._accepted(delivery, n_held)
        removals = self._removals(delivery)
        operations = [*_operations(removals), *map(self._put, accepted), *self._beside(delivery)]
        try:
            await self._write(operations)
        except Unavailable:
            raise
        except KogumaError:
            refused += [refusal async for refusal in self._one_by_one(delivery, removals, accepted)]
        return refused

    async def preview(self, delivery: Delivery) -> tuple[list[Change], list[Refusal]]:
        """The changes that a delivery would make now, and what would be refused; nothing is written."""
        accepted, refused = await self._accepted(delivery, 0)
        removals, preview = self._removals(delivery), self._context.store.preview
        operations = [*_operations(removals), *map(self._put, accepted)]
        try:
            return [*preview(Transaction(tuple(operations), self._author))], refused
        except KogumaError:
            changes: list[Change] = []
        for removal in removals:
            try:
                changes += preview(Transaction(removal.operations, self._author))
            except _MeshInUse as error:
                refused.append(_kept(removal, error))
        sent = {each.key: each for each in delivery.objects}
        for resource in accepted:
            try:
                changes += preview(Transaction((self._put(resource),), self._author))
            except KogumaError as error:
                refused.append(_refusal(sent[resource.key], error.detail))
        return changes, refused

    async def _accepted(self, delivery: Delivery, n_held: int) -> tuple[list[Resource], list[Refusal]]:
        """The objects of a delivery that may be stored, and why others may not."""
        refused: list[Refusal] = []
        accepted: list[Resource] = []
        room = self._objects_max - n_held + len(delivery.removed)
        for number, sent in enumerate(delivery.objects):
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
            try:
                if is_new := self._context.state.entry(sent.key) is None:
                    self._check_room(room)
                accepted.append(self._read(sent))
                room -= is_new
            except _RefusedObject as reason:
                refused.append(_refusal(sent, str(reason)))
        return accepted, refused

    def _removals(self, delivery: Delivery) -> list[_Removal]:
        """What a delivery deletes that is there: a Mesh after what the other side deletes in it."""
        stored = (key for key in delivery.removed if self._context.state.entry(key) is not None)
        return [_Removal(key, _deletion(key)) for key in sorted(stored, key=lambda key: key.kind == _MESH)]

    async def _one_by_one(
        self, delivery: Delivery, removals: Sequence[_Removal], accepted: Sequence[Resource]
    ) -> AsyncIterator[Refusal]:
        """Store each object by itself, since one of them cannot be stored."""
        sent = {each.key: each for each in delivery.objects}
        for removal in removals:
            try:
                await self._write(removal.operations)
            except Unavailable:
                raise
            except _MeshInUse as error:
                yield _kept(removal, error)
            except KogumaError:
                continue  # it is gone already, or its owner here changed it: the next comparison tells
        await self._write(self._beside(delivery))
        for resource in accepted:
            try:
                await self._write([self._put(resource)])
            except Unavailable:
                raise
            except KogumaError as error:
                yield _refusal(sent[resource.key], error.detail)

    async def _write(self, operations: Sequence[Operation]) -> None:
        if operations:
            await self._context.store.write(Transaction(tuple(operations), self._author))

    def _put(self, resource: Resource) -> Put:
        stored = self._context.state.get(resource.key)
        if stored is not None:
            resource = msgspec.structs.replace(
                resource,
                status=stored.status if self._keeps_status else resource.status,
                annotations=stored.annotations,
                meta=stored.meta,
            )
        return Put(resource, is_received=True)

    def _check_room(self, room: int) -> None:
        if room <= 0:
            raise _RefusedObject(f"there are {self._objects_max} of its objects already, which is the limit")

    def _read(self, sent: SyncedObject) -> Resource:
        try:
            resource = mapping.received(sent.content)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise _RefusedObject(f"its content cannot be read: {error}") from None
        if resource.key != sent.key:
            raise _RefusedObject(f"its content is that of {resource.key}")
        kind = self._context.kinds.get(resource.kind)
        if kind is None:
            raise _RefusedObject(f"this control plane has no kind {cut(resource.kind, 100)}")
        objection = self._objection(resource, kind)
        if objection:
            raise _RefusedObject(objection)
        problems = list(self._problems(resource, kind))
        if problems:
            more = f"; and {len(problems) - _VIOLATIONS_MAX} more" if len(problems) > _VIOLATIONS_MAX else ""
            raise _RefusedObject("; ".join(problems[:_VIOLATIONS_MAX]) + more)
        return resource

    def _problems(self, resource: Resource, kind: Kind) -> Iterable[str]:
        about = ValidationContext(
            name=resource.name,
            mesh=resource.mesh,
            namespace=resource.namespace,
            control_plane=self._context.control_plane,
        )
        of_spec = () if self._is_checked(kind) else kind.violations(resource.spec, about)
        for violation in (*_identity_violations(resource, kind), *of_spec):
            if violation.rule != UNKNOWN:  # the other side may be of a newer version
                yield f"{violation.field}: {violation.message}"


def _identity_violations(resource: Resource, kind: Kind) -> Iterator[Violation]:
    """What could not be the key, the labels or the time of a stored object."""
    yield from names.identifier(resource.name, "name")
    if kind.is_mesh_scoped != bool(resource.mesh) or (
        resource.mesh and not names.is_dns1035_label(resource.mesh)
    ):
        yield Violation("mesh", f'"{cut(resource.mesh, 100)}" cannot be its mesh', "name")
    if resource.namespace and not names.is_dns_label(resource.namespace):
        yield Violation("namespace", f'"{cut(resource.namespace, 100)}" cannot be a namespace', "name")
    if resource.zone and not names.is_dns1035_label(resource.zone):
        yield Violation("zone", f'"{cut(resource.zone, 100)}" cannot be a zone', "name")
    # The name that its writer gave it may be longer than Kubernetes lets the value of a label be.
    yield from labels.syntax(
        {key: resource.labels[key] for key in resource.labels if key != labels.DISPLAY_NAME}
    )
    if not _TIME.fullmatch(resource.creation_time):
        yield Violation("creationTime", f'"{cut(resource.creation_time, 100)}" is no time', "time")


def _refusal(sent: SyncedObject, reason: str) -> Refusal:
    return Refusal(sent.key, sums.content_hash(sent.content), cut(reason, REASON_MAX))


def _deletion(key: Key) -> tuple[Operation, ...]:
    if key.kind != _MESH:
        return (Delete(key),)
    text = "it stays while Dataplanes of this side are in it, and goes with the next connection after that"
    return RequireNone("Dataplane", key.name, _MeshInUse(text)), DeleteMesh(key.name), Delete(key)


def _operations(removals: Iterable[_Removal]) -> Iterator[Operation]:
    return (operation for removal in removals for operation in removal.operations)


def _kept(removal: _Removal, error: _MeshInUse) -> Refusal:
    return Refusal(removal.key, b"", error.detail)
