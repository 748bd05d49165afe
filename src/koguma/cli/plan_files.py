"""Plan of files: what files would change in a mesh that other files describe, without a server.

Both sides are loaded as a control plane would load them, and the objects that it generates are part of both.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from koguma.cli import offline
from koguma.cli.failures import CommandFailure
from koguma.cli.offline import LoadedFiles
from koguma.core import problems, world
from koguma.core.build import encoding
from koguma.core.incremental import Db
from koguma.core.plan import consequences
from koguma.core.plan.model import Plan
from koguma.core.plan.planner import PlannedChange, Planner
from koguma.core.plan.reader import PlanReader
from koguma.envoy import schema
from koguma.envoy.encode import Encoder
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.documents import Document
from koguma.model.nearest import nearest
from koguma.model.resource import Key, Resource


class FileChange(NamedTuple):
    """Files with objects to be written, and names of objects to be deleted."""

    documents: Sequence[Document]
    deleted: Sequence[Mapping[str, str]]
    prune: bool = False


def planned(
    base: Sequence[Document],
    change: FileChange,
    control_plane: ControlPlaneInfo,
    beneath: Iterable[Resource] = (),
    *,
    envoy_fields: bool,
) -> Plan:
    """What a change of files would do to the mesh that other files describe, over objects of a server."""
    encoder = Encoder(schema.load(schema.find_envoy()))
    now = datetime.now(UTC)
    before = offline.require_valid(offline.load(base, control_plane, beneath))
    stored = _stored(before.db)
    consequences.follow(before.db, stored, now)
    stored = _stored(before.db)
    gone = _gone(before, stored, change)
    kept = [resource for key, resource in stored.items() if key not in gone]
    after = offline.require_valid(offline.load(change.documents, control_plane, kept))
    before.db.set(encoding.ENCODER, "envoy", encoder)
    written = tuple(each for each in world.stored(after.db) if not _is_same(stored.get(each.key), each))
    left = frozenset(_stored(after.db))
    planned_change = PlannedChange(written, tuple(key for key in stored if key not in left))
    requested = frozenset((*after.documents, *gone))
    plan = Planner(before.db).plan(planned_change, now, PlanReader(envoy_fields=envoy_fields), requested)
    return _with_warnings(plan, after)


def _stored(db: Db) -> dict[Key, Resource]:
    return {resource.key: resource for resource in world.stored(db)}


def _is_same(before: Resource | None, after: Resource) -> bool:
    if before is None:
        return False
    one, other = ((each.spec, each.labels, each.annotations, each.status) for each in (before, after))
    return one == other


def _gone(before: LoadedFiles, stored: Mapping[Key, Resource], change: FileChange) -> frozenset[Key]:
    """The objects that a change deletes: by name, and with `prune` those that the new files do not have."""
    gone = {_named(stored.values(), name) for name in change.deleted}
    if change.deleted or change.prune:
        written = offline.load(change.documents, world.control_plane(before.db), stored.values()).documents
        for key in sorted(gone & written.keys()):
            raise CommandFailure(f"{key} is to be deleted, and is among the objects to be written, too")
        if change.prune:
            gone |= {key for key in before.documents if key not in written}
    return frozenset((*gone, *_inside(stored, gone)))


def _inside(stored: Iterable[Key], gone: Collection[Key]) -> Iterator[Key]:
    """The objects that go with their meshes, which must have no Dataplanes then."""
    meshes = {key.name for key in gone if key.kind == "Mesh"}
    for key in stored:
        if key.mesh in meshes and key not in gone:
            if key.kind == "Dataplane":
                raise CommandFailure(
                    f'unable to delete mesh "{key.mesh}", there are still some dataplanes attached: {key}'
                )
            yield key


def _named(stored: Iterable[Resource], name: Mapping[str, str]) -> Key:
    kind = offline.known_kinds().word(name["type"]).name
    of_kind = [each for each in stored if each.kind == kind and each.mesh in ("", name["mesh"])]
    for resource in of_kind:
        if name["name"] == resource.core_name:
            return resource.key
    of_name = [resource for resource in of_kind if name["name"] == resource.name]
    if len(of_name) == 1:
        return of_name[0].key
    if of_name:
        choice = " or ".join(sorted(resource.core_name for resource in of_name))
        raise CommandFailure(f'there are {len(of_name)} {kind}s "{name["name"]}"; name {choice}')
    near = nearest(name["name"], [resource.core_name for resource in of_kind])
    hint = f'; did you mean "{near}"?' if near else ""
    raise CommandFailure(f'there is no {kind} "{name["name"]}" in what the change is planned for{hint}')


def _with_warnings(plan: Plan, after: LoadedFiles) -> Plan:
    """The plan with the warnings that apply would print."""
    texts: dict[tuple[str, str, str], list[str]] = {}
    for key, text in _warnings(after):
        resource = world.RESOURCES.get(after.db, key)
        if resource is not None:
            texts.setdefault((key.kind, key.mesh, resource.core_name), []).append(text)
    changed = (
        msgspec.structs.replace(each, warnings=tuple(texts.get((each.type, each.mesh, each.name), ())))
        for each in plan.objects
    )
    return msgspec.structs.replace(plan, objects=tuple(changed))


def _warnings(after: LoadedFiles) -> Iterator[tuple[Key, str]]:
    yield from after.warnings
    now = datetime.now(UTC)
    for key in after.documents:
        for problem in problems.of_object(after.db, key, now):
            if problem.code not in (problems.ADVICE, problems.DEPRECATED_ROUTE):
                yield key, problem.text
