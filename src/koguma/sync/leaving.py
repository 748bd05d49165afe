"""Leaving: what becomes of the objects that came from Global when a zone takes part in it no more.

They are kept as the zone's own, or removed. Objects of other zones are removed in any case: without Global
nobody says how those zones are. What proxies of the zone need to go on is kept in any case: a Mesh in which
the zone has objects, its Secrets, and keys of tokens.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

import msgspec

from koguma.application.context import Context
from koguma.core import identity
from koguma.model import labels
from koguma.model.kind import Kind
from koguma.model.resource import Resource
from koguma.store.contract import Delete, Operation, Put
from koguma.sync import last_global, mapping

Choice = Literal["keep", "remove"]


class RenamedObject(msgspec.Struct, frozen=True, rename="camel"):
    """An object that is kept under another name than Global gave it, because that one is taken."""

    kind: str
    mesh: str
    was: str
    name: str


class LeavePlan(msgspec.Struct, frozen=True, rename="camel"):
    """What becomes of what came from Global, in numbers by kind."""

    zone: str
    is_connected: bool  # the control plane still takes part in Global: nothing is done
    kept: Mapping[str, int]
    removed: Mapping[str, int]
    of_other_zones: Mapping[str, int]  # among those that are removed
    renamed: tuple[RenamedObject, ...]


def plan(context: Context, choice: Choice) -> tuple[LeavePlan, list[Operation]]:
    """What happens, and the operations that do it."""
    zone = context.control_plane.zone
    kept, removed, of_others = Counter[str](), Counter[str](), Counter[str]()
    renamed: list[RenamedObject] = []
    operations: list[Operation] = []
    used = {resource.mesh for resource, _ in _all(context) if resource.zone == zone and resource.mesh}
    for resource, kind in _all(context):
        if not mapping.came_from_global(resource, kind, zone):
            continue
        of_others[resource.kind] += bool(resource.zone)
        is_needed = choice == "keep" or _is_needed(resource, used)
        if resource.zone or not is_needed:
            removed[resource.kind] += 1
            operations.append(Delete(resource.key, resource.revision))
            continue
        kept[resource.kind] += 1
        own = _own(context, resource, kind)
        if own.name != resource.name:
            renamed.append(RenamedObject(resource.kind, resource.mesh, resource.name, own.core_name))
        operations += _replaced(resource, own)
    if context.state.entry(last_global.KEY) is not None:
        operations.append(Delete(last_global.KEY))
    found = LeavePlan(
        zone=zone,
        is_connected=context.control_plane.federated,
        kept=dict(sorted(kept.items())),
        removed=dict(sorted(removed.items())),
        of_other_zones={kind: number for kind, number in sorted(of_others.items()) if number},
        renamed=tuple(renamed),
    )
    return found, operations


def _is_needed(resource: Resource, used_meshes: Collection[str]) -> bool:
    if resource.kind in ("GlobalSecret", "Config"):
        return True
    mesh = resource.name if resource.kind == "Mesh" else resource.mesh if resource.kind == "Secret" else ""
    return mesh in used_meshes


def _all(context: Context) -> Iterator[tuple[Resource, Kind]]:
    for resource in context.state.all():
        kind = context.kinds.get(resource.kind)
        if kind is not None and kind.computed is None:
            yield resource, kind


def _own(context: Context, resource: Resource, kind: Kind) -> Resource:
    """An object of Global as one of the zone's own; under its hashed name where its own name is taken."""
    zone = identity.local_zone(kind, context.control_plane)
    name = resource.name
    core_name = f"{name}.{resource.namespace}" if resource.namespace else name
    key = resource.key._replace(zone=zone)
    others = (context.state.get(key), context.state.named(resource.kind, resource.mesh, core_name))
    if any(other is not None and other.key != resource.key for other in others):
        name = core_name = resource.core_name
        core_name = f"{name}.{resource.namespace}" if resource.namespace else name
    marked = {**resource.labels, labels.ORIGIN: mapping.ZONE, labels.DISPLAY_NAME: name}
    if zone:
        marked[labels.ZONE] = zone
    ordered = {label: marked[label] for label in sorted(marked)}
    return msgspec.structs.replace(resource, zone=zone, name=name, core_name=core_name, labels=ordered)


def _replaced(resource: Resource, own: Resource) -> Iterator[Operation]:
    if own.key == resource.key:
        yield Put(own, resource.revision)
        return
    yield Delete(resource.key, resource.revision)
    yield Put(msgspec.structs.replace(own, uid="", revision=0), 0)
