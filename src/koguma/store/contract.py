"""The values that the store takes and returns: transactions of operations, and changes.

A transaction is a list of operations that are applied atomically. Its result is a list of changes, each with
a revision of its own. Revisions are consecutive, and a change is never altered once it is written. Everything
here is a plain value; the rules are in `evaluate`.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, Protocol

import msgspec

from koguma.model.errors import KogumaError
from koguma.model.resource import Key, Resource


class Place(NamedTuple):
    """Where objects are: a key without its kind and its name."""

    mesh: str
    zone: str
    namespace: str


class StoreUnusable(KogumaError):
    """The store cannot be opened as it is configured; an operator has to change something."""


class Put(msgspec.Struct, frozen=True):
    """Store this object if the stored revision is `expect` (compare-and-swap). 0: absent; None: any.

    `is_migration`: it is the stored object in another storage version, so that its generation and times stay.
    `is_received`: another control plane's, which says when it was created.
    """

    resource: Resource
    expect: int | None = None
    is_migration: bool = False
    is_received: bool = False


class Delete(msgspec.Struct, frozen=True):
    """Remove the object if its revision is `expect`; None: any."""

    key: Key
    expect: int | None = None


class Require(msgspec.Struct, frozen=True):
    """The object must exist at this point of the transaction, else `missing` is raised."""

    key: Key
    missing: KogumaError


class RequireNone(msgspec.Struct, frozen=True):
    """No object of this kind may be in this mesh at this point of the transaction, else `error` is raised."""

    kind: str
    mesh: str
    error: KogumaError


class RequireAbsent(msgspec.Struct, frozen=True):
    """No object may have this key at this point of the transaction, else `error` is raised."""

    key: Key
    error: KogumaError


class RequireEmpty(msgspec.Struct, frozen=True):
    """Nothing may be left in this namespace at this point of the transaction, else `error` is raised."""

    namespace: str
    error: KogumaError


class Ensure(msgspec.Struct, frozen=True):
    """Store this object unless one with its key exists, which then stays unchanged."""

    resource: Resource


class Restore(msgspec.Struct, frozen=True):
    """Store this object as it is, with its uid, times and generation, over what has its key or name."""

    resource: Resource


class DeleteMesh(msgspec.Struct, frozen=True):
    """Remove all objects of the mesh, in key order; the Mesh object needs a Delete of its own."""

    mesh: str


class DeleteZone(msgspec.Struct, frozen=True):
    """Remove all objects that came from the zone, in key order; the Zone object needs a Delete of its own."""

    zone: str


class StateView(Protocol):
    """What an evaluation reads: a State, or one with changes that are not in the log yet."""

    revision: int

    def entry(self, key: Key) -> "Resource | Unreadable | None":
        """The object under a key, readable or not."""

    def key_named(self, kind: str, mesh: str, core_name: str) -> Key | None:
        """The key of the object with a core name."""

    def stored_keys(self) -> Iterator[Key]:
        """The keys of all stored objects."""

    def resources(self, kind: str) -> Iterator[Resource]:
        """The readable objects of a kind, in any order."""

    def counts(self, kind: str) -> Mapping[Place, int]:
        """The number of objects of a kind, readable or not, in each place that has some."""


class RequireOfChanges(msgspec.Struct, frozen=True):
    """A rule about all changes of the transaction so far and the state below them; `check` raises its error.

    It is asked again whenever the transaction is evaluated, so that it holds for the state that is committed,
    also where several control planes write.
    """

    check: Callable[[StateView, "Sequence[Change]"], None]


Requirement = Require | RequireNone | RequireAbsent | RequireEmpty | RequireOfChanges
Operation = Put | Delete | Ensure | Restore | DeleteMesh | DeleteZone | Requirement


def new_id() -> str:
    """A unique transaction id."""
    return os.urandom(16).hex()


class Transaction(msgspec.Struct, frozen=True):
    """Operations, applied in order and atomically. Its `id` finds it in the log after a lost connection."""

    ops: tuple[Operation, ...]
    author: str
    reason: str = ""
    id: str = msgspec.field(default_factory=new_id)


class Op(Enum):
    """What happened to an object. UNCHANGED is only a result: it has no revision and is never logged."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    UNCHANGED = "unchanged"


class Change(msgspec.Struct, frozen=True, gc=False):
    """One revision. `resource` is the object after it; for DELETE its last state, with this revision.

    `error` is set where the stored object cannot be read: then `resource` only has its key and name.
    """

    revision: int
    op: Op
    resource: Resource
    time: str
    author: str
    reason: str
    transaction: str
    error: str = ""


class Unreadable(msgspec.Struct, frozen=True):
    """A stored object that cannot be read. It affects no other, and can be deleted or overwritten."""

    key: Key
    core_name: str
    revision: int
    error: str


@lru_cache(maxsize=16)
def rfc3339(moment: datetime) -> str:
    """A time as it is stored: UTC and whole seconds, so that strings sort as times do."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
