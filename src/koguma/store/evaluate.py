"""Decide: what a transaction does to a state, or why it must not.

This is the only place with rules about writing, and it has no side effects: it reads a state and returns
changes. A `StagedState` overlays changes that are not yet in the log, so that several transactions of one
batch can be evaluated on top of each other.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Protocol, assert_never

from msgspec.structs import replace

from koguma.model.errors import AlreadyExists, Conflict, NotFound
from koguma.model.resource import Key, Resource, is_same
from koguma.store.contract import (
    Change,
    Delete,
    DeleteMesh,
    Ensure,
    Op,
    Operation,
    Put,
    Require,
    RequireAbsent,
    RequireEmpty,
    Requirement,
    RequireNone,
    Transaction,
    Unreadable,
    rfc3339,
)
from koguma.store.state import Entry

NewUid = Callable[[], str]


class View(Protocol):
    """What a decision reads: a State, or a StagedState over one."""

    revision: int

    def entry(self, key: Key) -> Entry | None:
        """What is stored under a key."""

    def holder(self, kind: str, mesh: str, core_name: str) -> Key | None:
        """Who has a core name."""

    def stored_keys(self) -> Iterator[Key]:
        """The keys of everything that is stored."""


class StagedState:
    """Changes laid over a view, which stays as it is."""

    def __init__(self, below: View) -> None:
        self.revision = below.revision
        self._below = below
        self._entries: dict[Key, Resource | None] = {}
        self._names: dict[tuple[str, str, str], Key | None] = {}

    def entry(self, key: Key) -> Entry | None:
        """What is stored under a key."""
        return self._entries[key] if key in self._entries else self._below.entry(key)

    def holder(self, kind: str, mesh: str, core_name: str) -> Key | None:
        """Who has a core name."""
        name = (kind, mesh, core_name)
        return self._names[name] if name in self._names else self._below.holder(*name)

    def stored_keys(self) -> Iterator[Key]:
        """The keys of everything that is stored."""
        yield from (key for key in self._below.stored_keys() if key not in self._entries)
        yield from (key for key, entry in self._entries.items() if entry is not None)

    def apply(self, change: Change, key: Key) -> None:
        """Lay one more change over it; `key` is that of its resource."""
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


def evaluate(view: View, transaction: Transaction, now: datetime, new_uid: NewUid) -> tuple[Change, ...]:
    """One answer for each operation that acts, with the next revisions; raises where one must not."""
    decision = _Decision(view, transaction, now, new_uid)
    return tuple(change for operation in transaction.ops for change in decision.changes(operation))


class _Decision:
    """One transaction being decided."""

    def __init__(self, view: View, transaction: Transaction, now: datetime, new_uid: NewUid) -> None:
        self._draft = StagedState(view)
        self._transaction = transaction
        self._time = rfc3339(now)
        self._new_uid = new_uid

    def changes(self, operation: Operation) -> Iterator[Change]:
        """What one operation does, on top of those before it."""
        match operation:
            case Put():
                yield self._put(operation)
            case Delete():
                yield self._delete(operation)
            case Ensure(resource=resource):
                if self._draft.entry(resource.key) is None:
                    yield self._put(Put(resource, 0))
            case DeleteMesh(mesh=mesh):
                for key in sorted(key for key in self._draft.stored_keys() if key.mesh == mesh):
                    yield self._delete(Delete(key))
            case requirement:
                self._check(requirement)

    def _check(self, requirement: Requirement) -> None:
        draft = self._draft
        match requirement:
            case Require(key=key, missing=error):
                holds = draft.entry(key) is not None
            case RequireAbsent(key=key, error=error):
                holds = draft.entry(key) is None
            case RequireEmpty(namespace=namespace, error=error):
                holds = all(key.namespace != namespace for key in draft.stored_keys())
            case RequireNone(kind=kind, mesh=mesh, error=error):
                holds = all((key.kind, key.mesh) != (kind, mesh) for key in draft.stored_keys())
            case unknown:
                assert_never(unknown)
        if not holds:
            raise error

    def _put(self, put: Put) -> Change:
        wanted, key = put.resource, put.resource.key
        stored = self._draft.entry(key)
        _check_expected(key, stored, put.expect)
        holder = self._draft.holder(key.kind, key.mesh, wanted.core_name)
        if holder is not None and holder != key:
            raise AlreadyExists(f'{key} cannot be stored: its name "{wanted.core_name}" is taken by {holder}')
        if isinstance(stored, Resource):
            if _same(stored, wanted):
                return self._change(Op.UNCHANGED, stored)
            return self._next(Op.UPDATE, key, self._successor(stored, wanted))
        op = Op.CREATE if stored is None else Op.UPDATE
        return self._next(op, key, self._newcomer(wanted))

    def _delete(self, delete: Delete) -> Change:
        stored = self._draft.entry(delete.key)
        if stored is None:
            raise NotFound(f"{delete.key} does not exist")
        _check_expected(delete.key, stored, delete.expect)
        last = stored if isinstance(stored, Resource) else _names(stored)
        return self._next(Op.DELETE, delete.key, replace(last, revision=self._draft.revision + 1))

    def _successor(self, stored: Resource, wanted: Resource) -> Resource:
        return replace(
            wanted,
            revision=self._draft.revision + 1,
            uid=stored.uid,
            creation_time=stored.creation_time,
            modification_time=self._time,
            generation=stored.generation + _is_new_generation(stored, wanted),
        )

    def _newcomer(self, wanted: Resource) -> Resource:
        return replace(
            wanted,
            revision=self._draft.revision + 1,
            uid=self._new_uid(),
            creation_time=self._time,
            modification_time=self._time,
            generation=1,
        )

    def _next(self, op: Op, key: Key, resource: Resource) -> Change:
        change = self._change(op, resource)
        self._draft.apply(change, key)
        return change

    def _change(self, op: Op, resource: Resource) -> Change:
        by = self._transaction
        return Change(resource.revision, op, resource, self._time, by.author, by.reason, by.id)


def _is_new_generation(stored: Resource, wanted: Resource) -> bool:
    """Whether what is wanted of the object differs; that it is to go counts too."""
    ends = bool(wanted.meta.deletion_timestamp) and not stored.meta.deletion_timestamp
    return ends or not is_same(stored.spec, wanted.spec)


def _check_expected(key: Key, stored: Entry | None, expect: int | None) -> None:
    if expect is None:
        return
    if stored is None:
        if expect:
            raise NotFound(f"{key} does not exist; revision {expect} of it was expected")
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


def _same(stored: Resource, wanted: Resource) -> bool:
    """Whether a write would change nothing."""
    return (
        stored.core_name == wanted.core_name
        and stored.labels == wanted.labels
        and stored.annotations == wanted.annotations
        and is_same(stored.spec, wanted.spec)
        and is_same(stored.status, wanted.status)
        and stored.meta == wanted.meta
    )


def _names(broken: Unreadable) -> Resource:
    kind, mesh, zone, namespace, name = broken.key
    return Resource(
        kind=kind, mesh=mesh, zone=zone, namespace=namespace, name=name, core_name=broken.core_name
    )
