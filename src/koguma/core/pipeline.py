"""Pipeline: the engine from one end to the other. Start reading here.

`world` says who is there, `match` which policies select whom, `rules` what they say together. Inputs come in
through `load` and `take`; everything else is a question that can be asked at any time.
"""

from collections.abc import Iterable

from koguma.core import world
from koguma.core.incremental import Db
from koguma.model.kind import Kinds
from koguma.model.place import Place
from koguma.model.resource import Key, Resource


def load(kinds: Kinds, place: Place, resources: Iterable[Resource]) -> Db:
    """A database of questions about these objects."""
    db = Db()
    with db.change() as change:
        for kind in kinds:
            change.set(world.KINDS, kind.name, kind)
        change.set(world.PLACE, "here", place)
        for resource in resources:
            change.set(world.RESOURCES, resource.key, resource)
    return db


def take(db: Db, written: Iterable[Resource], gone: Iterable[Key] = ()) -> None:
    """Let objects change: those that were written, and the keys of those that are gone."""
    with db.change() as change:
        for resource in written:
            change.set(world.RESOURCES, resource.key, resource)
        for key in gone:
            change.remove(world.RESOURCES, key)
