"""Derivation: resources that follow from stored objects become inputs of the engine beside them.

A stored HTTPRoute acts as MeshHTTPRoutes. These are computed by a memoised question for each source, after
every change of stored objects and before anything else is asked. So a change converts only the sources that
it concerns, and all that reads resources (build, inspect, lint, dry runs, the proof) sees them like stored
ones. They are never stored, and each knows its source. Their keys are none that users can write; that of an
external service by which another mesh is called (`cross_mesh_services`) can be written, and then what is
stored goes first.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from koguma.core import cross_mesh_services, world
from koguma.core.gateway_api import gateways, objects, routes
from koguma.core.gateways import GATEWAY
from koguma.core.incremental import Db, Watcher, question
from koguma.core.inputs import Input
from koguma.model.derived import DerivedResource
from koguma.model.resource import Key

Derive = Callable[[Db, Key], tuple[DerivedResource, ...]]

# What the objects of a kind become, by the name under which the kind is stored.
SOURCES: Final[Mapping[str, Derive]] = {
    objects.GATEWAY: gateways.derived,
    **dict.fromkeys(objects.ROUTES, routes.derived),
    GATEWAY: cross_mesh_services.derived,
}


@question
def derived(db: Db, source: Key) -> tuple[DerivedResource, ...]:
    """What a stored object becomes; nothing where it is not there."""
    return SOURCES[source.kind](db, source) if world.RESOURCES.get(db, source) is not None else ()


class _Followed:
    """The sources of one database, and the keys of what they became. No question reads it."""

    def __init__(self, db: Db) -> None:
        self.watcher = Watcher(db)
        self.keys: dict[Key, tuple[Key, ...]] = {}


_FOLLOWED: Input[str, _Followed] = Input("followed sources")  # one row, kept with the database


def update(db: Db, touched: Iterable[Key]) -> None:
    """Bring derived resources up to date, after these stored objects were written or deleted."""
    sources = [key for key in touched if key.kind in SOURCES]
    followed = _FOLLOWED.get(db, "")
    if followed is None:
        if not sources:
            return  # as in most meshes: nothing is derived, and nothing is to be watched
        followed = _Followed(db)
        db.set(_FOLLOWED, "", followed)
    changed = {call.args[0]: None for call in followed.watcher.changed_alone()}
    for source in sources:
        if world.RESOURCES.get(db, source) is not None:
            followed.watcher.watch(derived, source)
            changed[source] = None
    _replace(db, followed, changed)
    for source in sources:
        if world.RESOURCES.get(db, source) is None:
            followed.watcher.unwatch(derived, source)
            followed.keys.pop(source, None)


def _replace(db: Db, followed: _Followed, sources: Iterable[Key]) -> None:
    answers = {source: _answer(db, source) for source in sources}
    with db.change() as change:
        for source in answers:  # first, since one source may now have what another one had
            for key in followed.keys.get(source, ()):
                if isinstance(world.RESOURCES.get(db, key), DerivedResource):
                    change.remove(world.RESOURCES, key)
        for source, (resources, problem) in answers.items():
            for resource in resources:
                change.set(world.RESOURCES, resource.key, resource)
            followed.keys[source] = tuple(resource.key for resource in resources)
            if problem:
                change.set(world.UNREADABLE, source, problem)
            elif world.RESOURCES.get(db, source) is not None:  # else loading has said whether it can be read
                change.remove(world.UNREADABLE, source)


def _answer(db: Db, source: Key) -> tuple[tuple[DerivedResource, ...], str]:
    """What a source becomes, or why it cannot be read: data never stops the engine."""
    try:
        return derived(db, source), ""
    except Exception as error:  # noqa: BLE001 - one object's mistake must not hide all others
        return (), str(error) or type(error).__name__


def stored_place(db: Db, key: Key, path: str = "") -> tuple[Key, str]:
    """The stored object and the path in it that a place in any resource comes from."""
    resource = world.RESOURCES.get(db, key)
    if not isinstance(resource, DerivedResource):
        return key, path
    return resource.place(path) if path else (resource.source, "")
