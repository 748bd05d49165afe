"""Shared host names: names that several services of a mesh claim, of which one answers."""

from collections.abc import Iterable, Iterator

from koguma.core import cross_mesh_services, hostnames, world
from koguma.core.hostnames import HostnameCollision
from koguma.core.incremental import Db
from koguma.core.lint.problem import SHARED_HOSTNAME, Problem
from koguma.core.vips import ITSELF
from koguma.model.resource import Key
from koguma.model.violation import child, item


def of_destination(db: Db, key: Key) -> Iterator[Problem]:
    """The names that a destination and another one claim, whichever of the two has it."""
    return _problems(db, hostnames.collisions(db, key.mesh).get(key, ()))


def of_generator(db: Db, generator: Key) -> Iterator[Problem]:
    """The names that a HostnameGenerator gives, and that another destination has or loses by it."""
    resource = world.RESOURCES.get(db, generator)
    if resource is None:
        return
    for mesh in world.BY_KIND.keys(db, ("Mesh", "")):
        by_destination = hostnames.collisions(db, mesh.name).values()
        found = dict.fromkeys(each for listed in by_destination for each in listed)
        own = (each for each in found if resource.core_name in (each.generator, each.holder_generator))
        yield from _problems(db, own)


def _problems(db: Db, collisions: Iterable[HostnameCollision]) -> Iterator[Problem]:
    for collision in collisions:
        given = f" (by the HostnameGenerator {collision.generator})" if collision.generator else ""
        loser, holder = _shown(db, collision.loser), _shown(db, collision.holder)
        message = (
            f'{loser} and {holder} claim the host name "{collision.hostname}"{given}: it leads to {holder};'
            " choose another name for one of them"
        )
        yield Problem(
            SHARED_HOSTNAME, message, (collision.loser, collision.holder), path=_path(db, collision)
        )


def _shown(db: Db, destination: Key) -> str:
    source = cross_mesh_services.gateway(db, destination)
    if source is not None:
        return f'{source.kind} "{source.name}" of mesh "{source.mesh}"'
    return f'{destination.kind} "{destination.name}"'


def _path(db: Db, collision: HostnameCollision) -> str:
    """Where the name is written; empty where a generator gives it."""
    resource = world.RESOURCES.get(db, collision.loser)
    if resource is None or collision.slot == ITSELF:
        return ""
    matches = world.external_matches(resource.spec)
    index = next((i for i, match in enumerate(matches) if match.get("value") == collision.slot), 0)
    return child(item("spec.match", index), "value")
