"""Backends: where a route's requests go, as clusters.

A reference is looked up from the route's place. A port that is not named is the only one, or the one that the
request was going to. What leads nowhere keeps its weight, so that its share of requests fails and is seen.
"""

import msgspec

from koguma.core import world
from koguma.core.build import encoding
from koguma.core.incremental import Db
from koguma.core.world import Destination, Pairs, Port, pairs
from koguma.envoy.routes import Backend, Split
from koguma.model import tags
from koguma.model.resource import Key
from koguma.model.schema import Json


class Meant(msgspec.Struct, frozen=True):
    """A destination's port that a reference means, maybe only some of its endpoints."""

    destination: Key
    section: str
    subset: Pairs = ()


class Going(msgspec.Struct, frozen=True):
    """Where a request was going."""

    destination: Key
    section: str
    is_http: bool = True
    subset: Pairs = ()  # the tags of the endpoints that were asked for


def split(db: Db, refs: Json, origin: Key, going: Going) -> tuple[Split, tuple[Meant, ...]]:
    """The backends of a route, and the clusters that they need; without any, where the request was going."""
    if not refs:
        meant = Meant(going.destination, going.section, going.subset)
        return Split((_backend(db, meant, 1),), 0), (meant,)
    found, unresolved = [], 0
    for ref in refs:
        weight = 1 if ref.get("weight") is None else ref["weight"]
        one = resolved(db, ref, origin, going)
        if one is None:
            unresolved += weight
        elif weight:
            found.append((one, weight))
    backends = tuple(_backend(db, one, weight) for one, weight in found)
    return Split(backends, unresolved), tuple(one for one, _ in found)


def _backend(db: Db, meant: Meant, weight: int) -> Backend:
    return Backend(
        encoding.kri(db, meant.destination, meant.section),
        weight,
        meant.subset,
        meant.destination.kind == "MeshExternalService",
    )


def resolved(db: Db, ref: Json, origin: Key, going: Going) -> Meant | None:
    """What a reference means; None where it leads nowhere, or where requests cannot go."""
    kind, subset = ref.get("kind") or "", pairs(ref.get("tags"))
    if kind == "MeshServiceSubset":
        kind = "MeshService"
    namespace = ref.get("namespace") or origin.namespace
    wanted = pairs(ref.get("labels"))
    keys = world.referenced(db, origin.mesh, kind, ref.get("name") or "", namespace, origin.zone, wanted)
    if not keys and ref.get("name") and kind == going.destination.kind and not wanted:
        # A route of Global, or of another namespace, may name the very service that it is about.
        keys = (going.destination,) if going.destination.name == ref["name"] else ()
    for key in _nearest(keys, going):
        target = world.destination(db, key)
        port = _port(target, ref, going) if target else None
        if port is not None and _can_take(db, key, port, going):
            return Meant(key, port.section, tuple(p for p in subset if p[0] != tags.SERVICE))
    return None


def _can_take(db: Db, key: Key, port: Port, going: Going) -> bool:
    """Whether a port understands what it would get, and has a name by which Envoy can know it."""
    is_understood = not going.is_http or port.protocol in world.HTTP_PROTOCOLS
    return is_understood and bool(encoding.kri(db, key, port.section))


def _nearest(keys: tuple[Key, ...], going: Going) -> list[Key]:
    return sorted(keys, key=lambda key: (key.zone != going.destination.zone, key))


def _port(target: Destination, ref: Json, going: Going) -> Port | None:
    word = str(ref.get("sectionName") or ref.get("port") or "")
    if word:
        return target.port(word)
    if len(target.ports) == 1:
        return target.ports[0]
    return target.port(going.section)
