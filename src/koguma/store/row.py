"""Row: one change as every log keeps it, with the object's body as JSON text.

The names stand in columns, so that a body which cannot be read still says whose it is. A body may be sealed
(`sealing`); whoever reads rows says how it is opened.
"""

from collections.abc import Callable, Iterable, Mapping
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
        """Whose change it is."""
        return Key(self.kind, self.mesh, self.zone, self.namespace, self.name)


Opened = Callable[[Row], Row]  # the same row with its body as it was encoded; ValueError where that cannot be


class _Body(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """What a resource has beside its names and its revision."""

    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Json
    status: Json
    creation_time: str
    modification_time: str
    generation: int
    meta: Meta = NO_META
    stored_as: str = ""  # the version in which the spec is written; empty: the first one


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Body).decode
_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)


def encoded(change: Change) -> Row:
    """The row of a change; refuses what no database could keep, so that only its own writer is told."""
    it = change.resource
    head = (change.transaction, change.time, change.author, change.reason, change.op.value)
    names = (it.kind, it.mesh, it.zone, it.namespace, it.name, it.core_name)
    words = "".join((*head, *names))
    try:
        words.encode()
        body = _encode(
            _Body(
                it.uid,
                it.labels,
                it.annotations,
                it.spec,
                it.status,
                it.creation_time,
                it.modification_time,
                it.generation,
                it.meta,
            )
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"{it.key} cannot be stored: {error}") from error
    if "\0" in words:
        raise BadRequest(f"{it.key} cannot be stored: a name, author or reason contains a NUL character")
    return Row(change.revision, *head, *names, body)


def decoded(values: Iterable[Any], opened: Opened) -> Change:
    """The change of a row; where the body cannot be read, the change says so."""
    of = Row._make(values)
    error = ""
    try:
        resource = _resource(opened(of))
    except _UNREADABLE as cause:
        error = _error(of, cause)
        resource = _names(of)
    return Change(of.revision, Op(of.op), resource, of.time, of.author, of.reason, of.transaction_id, error)


def entry(values: Iterable[Any], opened: Opened) -> Resource | Unreadable:
    """The object that a row of the current state holds; the body is None where its change is gone."""
    of = Row._make(values)
    try:
        return _resource(opened(of))
    except _UNREADABLE as cause:
        return Unreadable(of.key, of.core_name, of.revision, _error(of, cause))


def _error(of: Row, cause: Exception) -> str:
    return f"the body stored at revision {of.revision} cannot be read: {cause}"


def _resource(of: Row) -> Resource:
    body = _decode(of.body)
    if body.stored_as:
        raise ValueError(f'it was written in version "{body.stored_as}", which is not known here any more')
    name = of.name
    return Resource(
        kind=intern(of.kind),  # thousands of objects share these words
        mesh=intern(of.mesh),
        zone=intern(of.zone),
        namespace=intern(of.namespace),
        name=name,
        core_name=name if of.core_name == name else of.core_name,
        uid=body.uid,
        labels=body.labels,
        annotations=body.annotations,
        spec=body.spec,
        status=body.status,
        creation_time=body.creation_time,
        modification_time=body.modification_time,
        generation=body.generation,
        revision=of.revision,
        meta=body.meta,
    )


def _names(of: Row) -> Resource:
    return Resource(
        kind=of.kind,
        mesh=of.mesh,
        zone=of.zone,
        namespace=of.namespace,
        name=of.name,
        core_name=of.core_name,
        revision=of.revision,
    )
