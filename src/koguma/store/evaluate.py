"""Evaluate: the changes that a transaction makes to a state, or the error why it must not.

This is the only place with rules about writing, and it has no side effects: it reads a state and returns
changes. A `StagedState` overlays changes that are not yet in the log, so that several transactions of one
batch can be evaluated on top of each other.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import assert_never

from msgspec.structs import replace

from koguma.model.errors import AlreadyExists, Conflict, GoneMeanwhile, NotFound
from koguma.model.resource import Key, Resource, is_same
from koguma.store.contract import (
    Change,
    Delete,
    DeleteMesh,
    DeleteZone,
    Ensure,
    Op,
    Operation,
    Place,
    Put,
    Require,
    RequireAbsent,
    RequireEmpty,
    Requirement,
    RequireNone,
    RequireOfChanges,
    Restore,
    StateView,
    Transaction,
    Unreadable,
    rfc3339,
)
from koguma.store.state import Entry

NewUid = Callable[[], str]


class StagedState:
    """A state with changes that are not in the log yet. The state below stays unchanged."""

    def __init__(self, below: StateView) -> None:
        self.revision = below.revision
        self._below = below
        self._entries: dict[Key, Resource | None] = {}
        self._names: dict[tuple[str, str, str], Key | None] = {}

    def entry(self, key: Key) -> Entry | None:
        """The object under a key, readable or not."""
        return self._entries[key] if key in self._entries else self._below.entry(key)

    def key_named(self, kind: str, mesh: str, core_name: str) -> Key | None:
        """The key of the object with a core name."""
        name = (kind, mesh, core_name)
        return self._names[name] if name in self._names else self._below.key_named(*name)

    def stored_keys(self) -> Iterator[Key]:
        """The keys of all stored objects."""
        yield from (key for key in self._below.stored_keys() if key not in self._entries)
        yield from (key for key, entry in self._entries.items() if entry is not None)

    def resources(self, kind: str) -> Iterator[Resource]:
        """The readable objects of a kind, in any order."""
        yield from (each for each in self._below.resources(kind) if each.key not in self._entries)
        yield from (each for key, each in self._entries.items() if key.kind == kind and each is not None)

    def counts(self, kind: str) -> Mapping[Place, int]:
        """The number of objects of a kind, readable or not, in each place that has some."""
        counts: Counter[Place] = Counter(self._below.counts(kind))
        for key, entry in self._entries.items():
            if key.kind == kind:
                was_there = self._below.entry(key) is not None
                counts[Place(key.mesh, key.zone, key.namespace)] += (entry is not None) - was_there
        return +counts

    def apply(self, change: Change, key: Key) -> None:
        """Add a change; `key` is that of its resource, since computing it again would be slow."""
        resource = change.resource
        before = self.entry(key)
        if before is not None:
            self._names[key.kind, key.mesh, before.core_name] = None
        if change.op is Op.DELETE:
            self._entries[key] = None
        else:
            self._entries[key] = resource
            self._names[key.kind, key.mesh, resource.core_name] = key
        self.revision = change.revision


def evaluate(view: StateView, transaction: Transaction, now: datetime, new_uid: NewUid) -> tuple[Change, ...]:
    """One change for each Put and Delete, with the next revisions; raises if an operation fails."""
    evaluation = _Evaluation(view, transaction, now, new_uid)
    for operation in transaction.ops:
        evaluation.results += evaluation.changes(operation)
    return tuple(evaluation.results)


class _Evaluation:
    """The evaluation of one transaction."""

    def __init__(self, view: StateView, transaction: Transaction, now: datetime, new_uid: NewUid) -> None:
        self.results: list[Change] = []
        self._below = view
        self._staged = StagedState(view)
        self._transaction = transaction
        self._time = rfc3339(now)
        self._new_uid = new_uid

    def changes(self, operation: Operation) -> Iterator[Change]:
        """The changes of one operation, on top of those before it."""
        match operation:
            case Put():
                yield self._put(operation)
            case Delete():
                yield self._delete(operation)
            case Ensure(resource=resource):
                if self._staged.entry(resource.key) is None:
                    yield self._put(Put(resource, 0))
            case Restore(resource=resource):
                yield from self._restore(resource)
            case DeleteMesh(mesh=mesh):
                for key in sorted(key for key in self._staged.stored_keys() if key.mesh == mesh):
                    yield self._delete(Delete(key))
            case DeleteZone(zone=zone):
                for key in sorted(key for key in self._staged.stored_keys() if key.zone == zone):
                    yield self._delete(Delete(key))
            case requirement:
                self._check(requirement)

    def _check(self, requirement: Requirement) -> None:
        staged = self._staged
        match requirement:
            case Require(key=key, missing=error):
                holds = staged.entry(key) is not None
            case RequireAbsent(key=key, error=error):
                holds = staged.entry(key) is None
            case RequireEmpty(namespace=namespace, error=error):
                holds = all(key.namespace != namespace for key in staged.stored_keys())
            case RequireNone(kind=kind, mesh=mesh, error=error):
                holds = all((key.kind, key.mesh) != (kind, mesh) for key in staged.stored_keys())
            case RequireOfChanges(check=check):
                check(self._below, self.results)
                return
            case unknown:
                assert_never(unknown)
        if not holds:
            raise error

    def _put(self, put: Put) -> Change:
        new, key = put.resource, put.resource.key
        stored = self._staged.entry(key)
        _check_revision(key, stored, put.expect)
        holder = self._staged.key_named(key.kind, key.mesh, new.core_name)
        if holder is not None and holder != key:
            raise AlreadyExists(f'{key} cannot be stored: its name "{new.core_name}" is taken by {holder}')
        if isinstance(stored, Resource):
            is_as_old = not put.is_received or new.creation_time in ("", stored.creation_time)
            if is_as_old and _is_unchanged(stored, new):
                return self._change(Op.UNCHANGED, stored)
            updated = self._updated(stored, new)
            if put.is_received:
                updated = replace(updated, creation_time=new.creation_time or stored.creation_time)
            if put.is_migration:
                updated = replace(
                    updated, generation=stored.generation, modification_time=stored.modification_time
                )
            return self._staged_change(Op.UPDATE, key, updated)
        op = Op.CREATE if stored is None else Op.UPDATE
        created = self._created(new)
        if put.is_received:
            created = replace(created, creation_time=new.creation_time or created.creation_time)
        return self._staged_change(op, key, created)

    def _restore(self, resource: Resource) -> Iterator[Change]:
        key = resource.key
        holder = self._staged.key_named(key.kind, key.mesh, resource.core_name)
        if holder is not None and holder != key:
            yield self._delete(Delete(holder))
        stored = self._staged.entry(key)
        if isinstance(stored, Resource) and _is_same_object(stored, resource):
            yield self._change(Op.UNCHANGED, stored)
        else:
            op = Op.CREATE if stored is None else Op.UPDATE
            yield self._staged_change(op, key, replace(resource, revision=self._staged.revision + 1))

    def _delete(self, delete: Delete) -> Change:
        stored = self._staged.entry(delete.key)
        if stored is None:
            error = NotFound if delete.expect is None else GoneMeanwhile
            raise error(f"{delete.key} does not exist")
        _check_revision(delete.key, stored, delete.expect)
        last = stored if isinstance(stored, Resource) else _without_body(stored)
        return self._staged_change(Op.DELETE, delete.key, replace(last, revision=self._staged.revision + 1))

    def _updated(self, stored: Resource, new: Resource) -> Resource:
        return replace(
            new,
            revision=self._staged.revision + 1,
            uid=stored.uid,
            creation_time=stored.creation_time,
            modification_time=self._time,
            generation=stored.generation + _is_new_generation(stored, new),
        )

    def _created(self, new: Resource) -> Resource:
        return replace(
            new,
            revision=self._staged.revision + 1,
            uid=self._new_uid(),
            creation_time=self._time,
            modification_time=self._time,
            generation=1,
        )

    def _staged_change(self, op: Op, key: Key, resource: Resource) -> Change:
        change = self._change(op, resource)
        self._staged.apply(change, key)
        return change

    def _change(self, op: Op, resource: Resource) -> Change:
        transaction = self._transaction
        return Change(
            resource.revision,
            op,
            resource,
            self._time,
            transaction.author,
            transaction.reason,
            transaction.id,
        )


def _is_new_generation(stored: Resource, new: Resource) -> bool:
    """Whether the spec changes, or the deletion begins (as in Kubernetes)."""
    is_deletion = bool(new.meta.deletion_timestamp) and not stored.meta.deletion_timestamp
    return is_deletion or not is_same(stored.spec, new.spec)


def _check_revision(key: Key, stored: Entry | None, expect: int | None) -> None:
    if expect is None:
        return
    if stored is None:
        if expect:
            raise GoneMeanwhile(f"{key} does not exist; revision {expect} of it was expected")
    elif expect == 0:
        raise AlreadyExists(
            f'{key} cannot be created: {stored.key} is stored already, named "{stored.core_name}",'
            f" at revision {stored.revision}"
        )
    elif expect != stored.revision:
        raise Conflict(
            f"{key} was changed by somebody else: revision {expect} was expected, {stored.revision} is"
            " stored; read it again and retry"
        )


def _is_same_object(stored: Resource, other: Resource) -> bool:
    """Whether two objects are equal in all but their revision."""
    return _is_unchanged(stored, other) and (
        (stored.uid, stored.creation_time, stored.modification_time, stored.generation)
        == (other.uid, other.creation_time, other.modification_time, other.generation)
    )


def _is_unchanged(stored: Resource, new: Resource) -> bool:
    """Whether a write would change nothing: a write in a newer storage version does."""
    return (
        stored.core_name == new.core_name
        and stored.labels == new.labels
        and stored.annotations == new.annotations
        and is_same(stored.spec, new.spec)
        and is_same(stored.status, new.status)
        and stored.meta == new.meta
        and stored.stored_version == new.stored_version
    )


def _without_body(unreadable: Unreadable) -> Resource:
    kind, mesh, zone, namespace, name = unreadable.key
    return Resource(
        kind=kind, mesh=mesh, zone=zone, namespace=namespace, name=name, core_name=unreadable.core_name
    )
