"""Backup: every stored object as a line of JSON, once, whichever endpoints serve it; and the way back.

A backup is of one revision. Objects are as they are stored, with uid, times, status and managed fields, and
Secrets are not encrypted: so it can be restored on another kind of store, with another key. The first line
says what the file is, the last one how many objects it has and their checksum, so that half a file, or a
damaged one, is never restored. Objects are sorted by key: equal stores give equal lines.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec

from koguma.application.context import Context
from koguma.kube.kinds.custom_definitions import DEFINITION
from koguma.kube.registry import StorageSet
from koguma.model.errors import BadRequest, Invalid
from koguma.model.internal_kinds import INTERNAL_KINDS
from koguma.model.resource import Resource
from koguma.model.violation import Violation
from koguma.store.contract import Delete, Operation, Restore

FORMAT: Final = "koguma-backup"
VERSION: Final = 1


class BackupHead(msgspec.Struct, frozen=True, rename="camel"):
    """The first line: what this is, and how many objects each set has, by its resourceID."""

    format: str
    version: int
    revision: int
    koguma_version: str = ""
    sets: tuple["BackedUpSet", ...] = ()
    unreadable: tuple[str, ...] = ()  # stored objects that cannot be read, and so are not in it


class BackedUpSet(msgspec.Struct, frozen=True):
    """How many objects of one set a backup has."""

    resource_id: str = msgspec.field(name="resourceID")
    kind: str
    objects: int


class BackupEnd(msgspec.Struct, frozen=True):
    """The last line: the number of objects, and the SHA-256 of all lines before it."""

    objects: int
    sha256: str


_object_line = msgspec.json.Decoder(Resource).decode
_encode = msgspec.json.Encoder(order="deterministic").encode


def lines(context: Context) -> Iterator[bytes]:
    """The lines of a backup of the current revision. Objects are immutable, so it stays that revision."""
    state = context.state
    resources = sorted(state.all(), key=lambda resource: resource.key)
    sets = tuple(
        _set(context, kind, len(list(objects)))
        for kind, objects in groupby(resources, key=lambda resource: resource.kind)
    )
    unreadable = tuple(str(key) for key in sorted(state.unreadable))
    return _checked_lines(
        BackupHead(FORMAT, VERSION, state.revision, context.about.version, sets, unreadable), resources
    )


def _set(context: Context, stored_as: str, n_objects: int) -> BackedUpSet:
    """A set; objects of a custom resource stay there when its definition is not served any more."""
    served = next((e.set for e in context.catalog.registry if _is_of(e.set, stored_as)), None)
    return BackedUpSet(served.id if served else "", served.kind_name if served else stored_as, n_objects)


def _is_of(served: StorageSet, stored_as: str) -> bool:
    return served.kind is not None and served.stored_as == stored_as


def _checked_lines(head: BackupHead, resources: Sequence[Resource]) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for value in (head, *resources):
        stored = msgspec.structs.replace(value, revision=0) if isinstance(value, Resource) else value
        line = _encode(stored) + b"\n"
        digest.update(line)
        yield line
    yield _encode(BackupEnd(len(resources), digest.hexdigest())) + b"\n"


def read(data: bytes) -> list[Resource]:
    """The objects of a backup; BadRequest names the line that is wrong."""
    body, _, end_line = data.rstrip(b"\n").rpartition(b"\n")
    body += b"\n"
    head_line, *object_lines = body.splitlines()
    _check_head(head_line)
    try:
        end = msgspec.json.decode(end_line, type=BackupEnd)
    except msgspec.MsgspecError:
        raise BadRequest(
            "the last line of the backup is missing: the file is not complete; export it again"
        ) from None
    if end.objects != len(object_lines) or end.sha256 != hashlib.sha256(body).hexdigest():
        text = f"it should have {end.objects} objects and has {len(object_lines)}"
        raise BadRequest(f"the backup is damaged, its checksum is another one ({text}); use another copy")
    return [_object(index, line) for index, line in enumerate(object_lines, 2)]


def _check_head(line: bytes) -> None:
    try:
        head = msgspec.json.decode(line, type=BackupHead)
    except msgspec.MsgspecError:
        head = BackupHead("", 0, 0)
    if head.format != FORMAT:
        raise BadRequest("this is no backup: the first line is not that of a file of `koguma export`")
    if head.version != VERSION:
        raise BadRequest(
            f"the backup has format version {head.version}, and this Koguma reads version {VERSION}:"
            " a newer release wrote it; import it with that one or a later one"
        )


def _object(number: int, line: bytes) -> Resource:
    try:
        return _object_line(line)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"line {number} of the backup is no stored object: {error}") from None


def restoring(context: Context, resources: Sequence[Resource], *, prune: bool) -> list[Operation]:
    """The operations that restore all objects of a backup, and, to prune, delete what it does not have."""
    known = context.catalog
    defined = {resource.name for resource in resources if resource.kind == DEFINITION.stored_as}
    kinds = {resource.kind for resource in resources} - defined
    unknown = sorted(kind for kind in kinds - INTERNAL_KINDS if known.kind(kind) is None)
    if unknown:
        text = "is a kind that this control plane does not have; install the package that brings it"
        raise Invalid([Violation(kind, text, "kind") for kind in unknown])
    operations: list[Operation] = [Restore(resource) for resource in resources]
    if prune:
        kept = {resource.key for resource in resources}
        names = {(resource.kind, resource.mesh, resource.core_name) for resource in resources}
        for key in sorted(set(context.state.stored_keys()) - kept):
            if key.kind in INTERNAL_KINDS:
                continue  # a backup of an earlier release has none, and the control planes need it
            entry = context.state.entry(key)
            if entry is not None and (key.kind, key.mesh, entry.core_name) not in names:
                operations.append(Delete(key))
    return operations
