"""Storage migration: every stored object as a write of today would store it, each once, by its set.

What a write of today would store differently was written by an older version, or in an older storage
version of a custom resource. Endpoints do not matter: an object is stored once, however many serve it. The
rewritten objects of a step and how far it came are one transaction, so that a migration that was killed goes
on where it was. Where nothing is outdated, nothing is written.
"""

import asyncio
import base64
import binascii
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap
from koguma.application.context import Context
from koguma.kube import pruning
from koguma.kube.custom import endpoints as custom_endpoints
from koguma.kube.kinds import core, parts
from koguma.kube.kinds.custom_definitions import DEFINITION
from koguma.kube.registry import StorageSet
from koguma.model import pruning as fields
from koguma.model.errors import BadRequest, KogumaError
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.store.contract import Delete, Operation, Put, Transaction

STEP_SIZE: Final = 500  # objects that are looked at in one step
PROGRESS: Final = "koguma-storage-migration"
_REASON: Final = "storage migration"


class MigratedSet(msgspec.Struct, frozen=True, rename="camel"):
    """How far the migration of one set is."""

    resource_id: str = msgspec.field(name="resourceID")
    resource: str  # as in messages: `meshtimeouts.kuma.io`
    version: str
    total: int = 0
    done: int = 0
    outdated: int | None = None  # of the objects that are left; a step does not count them


class MigrationProgress(msgspec.Struct, frozen=True):
    """How far a migration is."""

    sets: tuple[MigratedSet, ...]
    rewritten: int = 0  # by this step
    next: str = ""  # where the next step goes on; empty at the end
    failed: Mapping[str, str] = {}  # why objects of a resource stay as they are, by resource


class _Cursor(msgspec.Struct, frozen=True):
    """The last object that was looked at: the id of its set, its mesh and its core name."""

    set: str = ""
    name: tuple[str, str] = ("", "")


_END: Final = _Cursor("~")  # after every id, which is a hexadecimal number


async def progress(context: Context) -> MigrationProgress:
    """How far the migration is, and what is left to do; nothing is written."""
    cursor = _cursor(context)
    left = [_left(_objects(context, each), each, cursor) for each in _sets(context)]

    def count() -> list[int]:
        return [sum(outdated(context, resource) is not None for resource in of_set) for of_set in left]

    counts = await asyncio.to_thread(count)  # many objects take a while
    sets = zip(_shown(context, cursor), counts, strict=False)
    return MigrationProgress(tuple(msgspec.structs.replace(shown, outdated=n) for shown, n in sets))


def _shown(context: Context, cursor: _Cursor) -> tuple[MigratedSet, ...]:
    return tuple(_migrated(context, each, cursor) for each in _sets(context))


async def step(context: Context, author: str, after: str) -> MigrationProgress:
    """Look at the next objects, and rewrite the outdated ones.

    `after` is the `next` of the step before; without it, it goes on after what was rewritten last.
    """

    async def attempt() -> MigrationProgress:
        start = _read(after) if after else _cursor(context)
        batch = _next(context, start)
        rewritten, failed = await _rewritten(context, batch)
        operations: list[Operation] = [Put(new, new.revision, is_migration=True) for new in rewritten]
        is_last = len(batch) < STEP_SIZE
        end = start if is_last else _place(context, batch[-1])
        if is_last:
            operations += (*_ended(context), *_trimmed(context, {new.key for new in rewritten}))
        elif rewritten:
            operations.append(_recorded(context, end))
        if operations:
            await context.store.write(Transaction(tuple(operations), author or SYSTEM, _REASON))
        return MigrationProgress(
            _shown(context, _END if is_last else end),
            len(rewritten),
            "" if is_last else _written(end),
            failed,
        )

    return await compare_and_swap.retried(attempt, "an object")


def outdated(context: Context, resource: Resource) -> Resource | None:
    """The object as a write of today would store it; None where that is how it is stored."""
    kind = context.catalog.kind(resource.kind)
    if kind is None:
        return None
    if custom_endpoints.is_custom(kind):
        return _custom(context, resource)
    spec, status = pruning.stored_spec(kind, resource.spec), resource.status
    if kind.status is not None and status is not None:
        status = fields.pruner(kind.status)(status)
    if spec is resource.spec and status is resource.status:
        return None
    return msgspec.structs.replace(resource, spec=spec, status=status)


def _custom(context: Context, resource: Resource) -> Resource | None:
    """A custom object that is not in the storage version of its definition, said to be in it."""
    endpoint = context.catalog.custom(resource.kind)
    if endpoint is None or resource.stored_version == endpoint.set.version:
        return None
    return msgspec.structs.replace(resource, stored_version=endpoint.set.version)


async def _rewritten(context: Context, batch: Sequence[Resource]) -> tuple[list[Resource], Mapping[str, str]]:
    """The outdated objects as a write of today would store them, and why others stay as they are.

    A webhook may have to convert them. Where it fails for one object, the others of its set are left alone:
    each would wait as long for the same answer.
    """
    rewritten: list[Resource] = []
    failed: dict[str, str] = {}
    for resource in batch:
        new = outdated(context, resource)
        if new is None or resource.kind in failed:
            continue
        if new.stored_version != resource.stored_version:
            try:
                new = await context.in_storage_version(resource)
            except KogumaError as error:
                failed[resource.kind] = f"{resource.key}: {error.detail}"
                continue
        rewritten.append(new)
    return rewritten, failed


def _sets(context: Context) -> Iterator[StorageSet]:
    """The sets that have objects, by id: the order in which they are migrated."""
    listed = {each.id: each for each in context.catalog.registry.sets if each.kind is not None}
    for set_id in sorted(listed):
        if context.state.listed(listed[set_id].stored_as):
            yield listed[set_id]


def _objects(context: Context, of: StorageSet) -> Sequence[Resource]:
    """The objects of a set, in the order in which they are migrated: by mesh and core name."""
    return context.state.listed(of.stored_as)


def _name(resource: Resource) -> tuple[str, str]:
    return resource.mesh, resource.core_name


def _next(context: Context, after: _Cursor) -> list[Resource]:
    """The next objects after a place, from as many sets as it takes."""
    batch: list[Resource] = []
    for each in _sets(context):
        if each.id < after.set:
            continue
        left = STEP_SIZE - len(batch)
        batch += _left(_objects(context, each), each, after)[:left]
        if len(batch) == STEP_SIZE:
            break
    return batch


def _left(objects: Sequence[Resource], of: StorageSet, after: _Cursor) -> Sequence[Resource]:
    if of.id < after.set:
        return ()
    if of.id > after.set:
        return objects
    return objects[bisect_right(objects, after.name, key=_name) :]


def _migrated(context: Context, of: StorageSet, cursor: _Cursor) -> MigratedSet:
    objects = _objects(context, of)
    left = _left(objects, of, cursor)
    return MigratedSet(
        of.id,
        context.catalog.stored(of.stored_as).qualified,
        of.version,
        total=len(objects),
        done=len(objects) - len(left),
    )


def _progress_key(context: Context) -> Key:
    return Key(core.CONFIG_MAP.stored_as, "", "", context.control_plane.system_namespace, PROGRESS)


def _cursor(context: Context) -> _Cursor:
    """Where a migration that was not finished goes on; the beginning where there is none."""
    stored = context.state.get(_progress_key(context))
    data: Mapping[str, Json] = parts.as_map(stored.spec.get("data")) if stored else {}
    try:
        return msgspec.json.decode(data.get("cursor") or "{}", type=_Cursor)
    except (msgspec.MsgspecError, TypeError):
        return _Cursor()


def _place(context: Context, last: Resource) -> _Cursor:
    return _Cursor(context.catalog.stored(last.kind).set.id, _name(last))


def _written(cursor: _Cursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode()


def _read(text: str) -> _Cursor:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=_Cursor)
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        raise BadRequest('query parameter "after" is not the `next` of another answer') from None


def _recorded(context: Context, cursor: _Cursor) -> Operation:
    """How far it came."""
    key = _progress_key(context)
    before = context.state.entry(key)
    record = Resource(
        kind=key.kind,
        namespace=key.namespace,
        name=key.name,
        core_name=f"{key.name}.{key.namespace}",
        spec={"data": {"cursor": msgspec.json.encode(cursor).decode()}},
    )
    return Put(record, before.revision if before else 0)


def _ended(context: Context) -> Iterator[Operation]:
    """Nothing is left of a migration that came to its end."""
    before = context.state.entry(_progress_key(context))
    if before is not None:
        yield Delete(before.key, before.revision)


def _trimmed(context: Context, rewritten: Collection[Key]) -> Iterator[Operation]:
    """Definitions without the versions in which no object is stored any more.

    `rewritten` are the objects that the same transaction brings into the storage version.
    """
    for definition in context.state.listed(DEFINITION.stored_as):
        status = parts.as_map(definition.status)
        version = context.catalog.storage_version(definition.name)
        storage = version.rpartition("/")[2]
        if not storage or status.get("storedVersions") == [storage]:
            continue
        objects = context.state.listed(definition.name)
        if all(each.stored_version == version or each.key in rewritten for each in objects):
            trimmed = msgspec.structs.replace(definition, status={**status, "storedVersions": [storage]})
            yield Put(trimmed, definition.revision)
