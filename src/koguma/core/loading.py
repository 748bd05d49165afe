"""Loading: stored objects become inputs of the engine, and so do later changes of them.

What follows from them (`derivation`) is brought up to date with each change.

An object whose spec its kind cannot read, such as one that another version has stored, is no resource of the
engine: it acts nowhere, `world.UNREADABLE` says why, and everything else works.
"""

from collections.abc import Iterable, Mapping

from koguma.core import derivation, world
from koguma.core.incremental import Db
from koguma.core.inputs import InputChange
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind, Kinds
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json


def load(kinds: Kinds, control_plane: ControlPlaneInfo, resources: Iterable[Resource]) -> Db:
    """A database that answers questions about these objects."""
    db = Db()
    with db.change() as change:
        for kind in kinds:
            change.set(world.KINDS, kind.name, kind)
        change.set(world.CONTROL_PLANE, "here", control_plane)
        stored = list(resources)
        for resource in stored:
            _put(change, kinds.by_name.get(resource.kind), resource)
    derivation.update(db, (resource.key for resource in stored))
    return db


def take(db: Db, written: Iterable[Resource], deleted: Iterable[Key] = ()) -> None:
    """Apply a change of the store: objects that were written, and the keys of those that were deleted."""
    resources = [(resource, world.KINDS.get(db, resource.kind)) for resource in written]
    gone = tuple(deleted)
    with db.change() as change:
        for resource, kind in resources:
            _put(change, kind, resource)
        for key in gone:
            change.remove(world.RESOURCES, key)
            change.remove(world.UNREADABLE, key)
    derivation.update(db, (*(resource.key for resource, _ in resources), *gone))


def _put(change: InputChange, kind: Kind | None, resource: Resource) -> None:
    problem = unreadable(kind, resource) if kind is not None else ""
    if problem:
        change.set(world.UNREADABLE, resource.key, problem)
        change.remove(world.RESOURCES, resource.key)
    else:
        change.set(world.RESOURCES, resource.key, resource)
        change.remove(world.UNREADABLE, resource.key)


def unreadable(kind: Kind, resource: Resource) -> str:
    """Why a kind cannot read a spec as it is stored; empty where it can."""
    try:
        kind.read(_without_checked(kind, kind.clean(resource.spec)))
    except Exception as error:  # noqa: BLE001 - a kind of another package may raise anything
        return str(error) or type(error).__name__
    return ""


def _without_checked(kind: Kind, spec: Json) -> Json:
    """A spec without the list whose elements the build reads one by one, reporting those it cannot read."""
    checked = kind.policy.hooks.modifications if kind.policy else ""
    conf = spec.get("default") if checked else None
    if not isinstance(conf, Mapping):
        return spec
    rest = {name: value for name, value in conf.items() if name != checked or not isinstance(value, list)}
    return {**spec, "default": rest}
