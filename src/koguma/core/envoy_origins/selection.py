"""Selection: the policies that select a proxy, and what they set for it; of a zone egress, in all meshes."""

from collections.abc import Iterator

from koguma.core import match
from koguma.core.build import zone_egress
from koguma.core.incremental import Db
from koguma.core.plan.scopes import ChangeSide, Part, Setters
from koguma.model.resource import Key


def policies(db: Db, proxy: Key, kind: str) -> Iterator[Key]:
    """The policies of a kind that select a proxy; none selects a zone ingress."""
    for traits in _traits(db, proxy):
        yield from (each.policy for each in match.matched(db, kind, traits))


def setters(db: Db, proxy: Key) -> set[Setters]:
    """The entries of policies that set something for a proxy together."""
    return {each for part in _parts(db, proxy) for each in part.setters.values()}


def _traits(db: Db, proxy: Key) -> Iterator[match.Traits]:
    """What selectors see of a proxy; of a zone egress, in each mesh that it serves."""
    if proxy.kind == "Dataplane":
        found = [match.traits(db, proxy)]
    else:
        meshes = zone_egress.meshes(db) if proxy.kind == zone_egress.KIND else ()
        found = [zone_egress.traits(db, proxy, mesh) for mesh in meshes]
    return filter(None, found)


def _parts(db: Db, proxy: Key) -> Iterator[Part]:
    side = ChangeSide(db)
    if proxy.kind != "Dataplane":
        yield from (part for traits in _traits(db, proxy) for part in side.of_egress(traits))
    elif (found := side.of(proxy)) is not None:
        yield from found.parts
