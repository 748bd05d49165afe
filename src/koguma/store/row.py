"""Row: one change as every log keeps it, with the object's body as JSON.

The key and names are columns of their own, so that they are known even if the body cannot be read. A body may
be encrypted (`sealing`); the reader of a row passes the function that opens resource.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import intern
from typing import Any, NamedTuple

import msgspec

from koguma.model.errors import BadRequest
from koguma.model.resource import NO_META, Key, Meta, Resource
from koguma.model.schema import Json
from koguma.store.contract import Change, Op, Unreadable


class Row(NamedTuple):
    """The columns of the table `changes`, in their order."""

    revision: int
    transaction_id: str
    time: str
    author: str
    reason: str
    op: str
    kind: str
    mesh: str
    zone: str
    namespace: str
    name: str
    core_name: str
    body: bytes

    @property
    def key(self) -> Key:
        """The key of the changed object."""
        return Key(self.kind, self.mesh, self.zone, self.namespace, self.name)


Opened = Callable[[Row], Row]  # decrypts the body of a row; ValueError where it cannot


class _Body(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """The fields of a resource that are not columns."""

    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Json
    status: Json
    creation_time: str
    modification_time: str
    generation: int
    meta: Meta = NO_META
    stored_as: str = ""  # version of the schema of the spec; empty: the kind's first one


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Body).decode
_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)


def encoded(change: Change) -> Row:
    """The row of a change. Rejects what no database can store, so that only its own writer gets the error."""
    resource = change.resource
    head = (change.transaction, change.time, change.author, change.reason, change.op.value)
    names = (
        resource.kind,
        resource.mesh,
        resource.zone,
        resource.namespace,
        resource.name,
        resource.core_name,
    )
    text = "".join((*head, *names))
    try:
        text.encode()
        body = _encode(
            _Body(
                resource.uid,
                resource.labels,
                resource.annotations,
                resource.spec,
                resource.status,
                resource.creation_time,
                resource.modification_time,
                resource.generation,
                resource.meta,
                resource.stored_version,
            )
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"{resource.key} cannot be stored: {error}") from error
    if "\0" in text:
        raise BadRequest(
            f"{resource.key} cannot be stored: a name, author or reason contains a NUL character"
        )
    return Row(change.revision, *head, *names, body)


def decoded(values: Iterable[Any], opened: Opened) -> Change:
    """The change of a row; with an error where the body cannot be read."""
    row = Row._make(values)
    error = ""
    try:
        resource = _resource(opened(row))
    except _UNREADABLE as cause:
        error = _error(row, cause)
        resource = _without_body(row)
    return Change(
        row.revision, Op(row.op), resource, row.time, row.author, row.reason, row.transaction_id, error
    )


def keyed(values: Sequence[Any], opened: Opened) -> tuple[Key, Change | None]:
    """The key of an object in the first columns, and the change in the others; None where they are empty."""
    n_key = len(Key._fields)
    key, stored = Key._make(values[:n_key]), values[n_key:]
    return key, decoded(stored, opened) if stored[0] is not None else None


def entry(values: Iterable[Any], opened: Opened) -> Resource | Unreadable:
    """The current object of a row; unreadable where the body is None, because its change is missing."""
    row = Row._make(values)
    try:
        return _resource(opened(row))
    except _UNREADABLE as cause:
        return Unreadable(row.key, row.core_name, row.revision, _error(row, cause))


def _error(row: Row, cause: Exception) -> str:
    return f"the body stored at revision {row.revision} cannot be read: {cause}"


def _resource(row: Row) -> Resource:
    body = _decode(row.body)
    if body.stored_as and not _is_custom(row.kind):
        raise ValueError(f'it was written in version "{body.stored_as}", which is not known here any more')
    name = row.name
    return Resource(
        kind=intern(row.kind),  # thousands of objects share these strings
        mesh=intern(row.mesh),
        zone=intern(row.zone),
        namespace=intern(row.namespace),
        name=name,
        core_name=name if row.core_name == name else row.core_name,
        uid=body.uid,
        labels=body.labels,
        annotations=body.annotations,
        spec=body.spec,
        status=body.status,
        creation_time=body.creation_time,
        modification_time=body.modification_time,
        generation=body.generation,
        revision=row.revision,
        meta=body.meta,
        stored_version=intern(body.stored_as),
    )


def _is_custom(kind: str) -> bool:
    """Whether objects are of a custom resource, `plural.group`, whose definition knows its versions."""
    return "." in kind and kind[0].islower()


def _without_body(row: Row) -> Resource:
    return Resource(
        kind=row.kind,
        mesh=row.mesh,
        zone=row.zone,
        namespace=row.namespace,
        name=row.name,
        core_name=row.core_name,
        revision=row.revision,
    )
