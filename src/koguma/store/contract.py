"""The store's words: what a caller asks for, and what a log remembers.

A transaction is a list of operations that happen together or not at all. What it did is a list of
changes, each with a revision of its own; revisions are consecutive, and a change once written is
never altered. Everything here is a plain value; the rules are in `evaluate`.
"""

import os
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache

import msgspec

from koguma.model.errors import KogumaError
from koguma.model.resource import Key, Resource


class StoreUnusable(KogumaError):
    """The store cannot be opened as it is configured; a person has to change something."""


class Put(msgspec.Struct, frozen=True):
    """Store this object. `expect`: None whatever is there, 0 nothing is, n its revision is n."""

    resource: Resource
    expect: int | None = None


class Delete(msgspec.Struct, frozen=True):
    """Remove the object; `expect` is the revision that it must have, where given."""

    key: Key
    expect: int | None = None


class Require(msgspec.Struct, frozen=True):
    """The object must be there at this point of the transaction, else `missing` is raised."""

    key: Key
    missing: KogumaError


class RequireNone(msgspec.Struct, frozen=True):
    """No object of this kind may be in this mesh at this point of the transaction, else `error` is raised."""

    kind: str
    mesh: str
    error: KogumaError


class RequireAbsent(msgspec.Struct, frozen=True):
    """Nothing may be stored under this key at this point of the transaction, else `error` is raised."""

    key: Key
    error: KogumaError


class RequireEmpty(msgspec.Struct, frozen=True):
    """Nothing may be left in this namespace at this point of the transaction, else `error` is raised."""

    namespace: str
    error: KogumaError


class Ensure(msgspec.Struct, frozen=True):
    """Store this object unless one of its key is there; what is there stays as it is."""

    resource: Resource


class DeleteMesh(msgspec.Struct, frozen=True):
    """Remove everything that lives in the mesh, in key order; the Mesh object needs its own Delete."""

    mesh: str


Requirement = Require | RequireNone | RequireAbsent | RequireEmpty
Operation = Put | Delete | Ensure | DeleteMesh | Requirement


def new_id() -> str:
    """A text that no other transaction has."""
    return os.urandom(16).hex()


class Transaction(msgspec.Struct, frozen=True):
    """Operations, done in order, all or none. By its `id` it is found in the log after a lost connection."""

    ops: tuple[Operation, ...]
    author: str
    reason: str = ""
    id: str = msgspec.field(default_factory=new_id)


class Op(Enum):
    """What happened to an object. UNCHANGED is an answer only: it has no revision and is in no log."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    UNCHANGED = "unchanged"


class Change(msgspec.Struct, frozen=True, gc=False):
    """One revision. `resource` is the object after it; for DELETE its last state, with this revision.

    `error` is set where the stored object cannot be read: then `resource` has its names only.
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
    """An object that is stored and cannot be read. It hides no other, and can be deleted or overwritten."""

    key: Key
    core_name: str
    revision: int
    error: str


@lru_cache(maxsize=16)
def rfc3339(moment: datetime) -> str:
    """A time as it is stored: UTC, whole seconds, so that texts sort as times do."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
