"""Origins: for each field of a resource of Envoy, the lines that set it, or the part of Koguma that does.

First each kind of policy is left out as a whole: most fields depend on none. Of a kind on which some field
depends, every written part is left out, or changed, by itself. A field that changes with it was set there;
those that lost to it are read out of the merge (`provenance`). What depends on no policy may depend on the
Mesh, the Dataplane or the service; what is left is always set.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Final

import msgspec

from koguma.core import derivation, match, meta, world
from koguma.core.build import network, snapshot
from koguma.core.envoy_origins import paths, replay, selection
from koguma.core.envoy_origins.parts import WrittenPart, try_parts, with_others
from koguma.core.envoy_origins.paths import FieldPath
from koguma.core.envoy_origins.replay import Replay, with_spec
from koguma.core.envoy_origins.words import part_of_koguma
from koguma.core.incremental import Db
from koguma.core.items import ItemId
from koguma.core.plan.scopes import Setters
from koguma.core.provenance import Viewer
from koguma.envoy.snapshot import TYPES, Id
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

_PARTS_MAX: Final = 2000  # that are tried of one kind
_POLICIES_MAX: Final = 50  # of one kind, whose parts are left out one by one


class FieldOrigin(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Who set a field: a place in an object, with those that lost to it; or a part of Koguma."""

    by: str  # policy, object, koguma
    kri: str = ""
    kind: str = ""
    path: str = ""
    line: int = 0
    value: Json = None
    losers: tuple[Json, ...] = ()
    words: str = ""


class ExplainedLeaf(msgspec.Struct, frozen=True, rename="camel"):
    """A field of a resource, its value, and who set it."""

    path: str
    value: Json
    origins: tuple[FieldOrigin, ...]


def resources(db: Db, proxy: Key) -> tuple[Id, ...]:
    """The resources of a proxy's Envoy, in the order of types and names."""
    found = snapshot.of(db, proxy)
    ids = {resource.id for resource in found} if found is not None else set()
    return tuple(sorted(ids, key=lambda id_: (TYPES.index(id_[0]), id_[1])))


def explained(db: Db, proxy: Key, path: FieldPath) -> tuple[ExplainedLeaf, ...]:
    """The fields at a path or below it, with their origins; raises `paths.NoSuchField`."""
    ids = resources(db, proxy)
    if path.id not in ids:
        of_type = [name for type_, name in ids if type_ == path.type]
        raise paths.missing(f"resource in {path.type}", path.name, of_type)
    data = replay.shown(db, proxy, path.id)
    leaves = paths.flattened(data)
    wanted = paths.below(path.field, leaves)
    if not wanted:
        raise paths.missing("field", path.field, leaves)
    found: dict[str, list[FieldOrigin]] = {}
    setters = cache(partial(selection.setters, db, proxy))
    for part, fields in replay.by_part(proxy, path.id, wanted).items():
        found |= _Origins(db, proxy, Replay(db, proxy, path.id, data, part), fields, setters).found()
    always = FieldOrigin("koguma", words=part_of_koguma(db, proxy, path.id))
    return tuple(
        ExplainedLeaf(str(path._replace(field=leaf)), leaves[leaf], tuple(found.get(leaf, (always,))))
        for leaf in wanted
    )


def answered(proxy: Key, path: FieldPath, db: Db) -> Json:
    """The answer about a path: fields with their origins, or the resources where it names none."""
    assume_node(db, proxy)
    if path.name:
        found = explained(db, proxy, path)
        return {"path": str(path), "fields": [msgspec.to_builtins(each) for each in found]}
    ids = [id_ for id_ in resources(db, proxy) if path.type in ("", id_[0])]
    return {"path": path.type, "resources": [str(FieldPath(*id_)) for id_ in ids]}


def assume_node(db: Db, proxy: Key) -> None:
    """Let a proxy that is not connected say of itself what it most likely will."""
    net = network.networking(db, proxy)
    if net is not None and network.NODE_METADATA.get(db, proxy) is None:
        db.set(network.NODE_METADATA, proxy, network.likely_node_metadata(net))


class _Origins:
    """Finds the origins of some fields of a resource."""

    def __init__(
        self,
        db: Db,
        proxy: Key,
        replay: Replay,
        wanted: frozenset[str],
        setters: Callable[[], Collection[Setters]],
    ) -> None:
        self._db, self._proxy, self._replay, self._wanted = db, proxy, replay, wanted
        self._setters = setters
        self._viewer = Viewer(db, fields=True)
        self._found: dict[str, list[FieldOrigin]] = {}

    def found(self) -> Mapping[str, list[FieldOrigin]]:
        """The origins by field; none of those that are always set."""
        for kind in match.policy_kinds(self._db):
            selecting = selection.policies(self._db, self._proxy, kind)
            of_mesh = (key for key in selecting if self._replay.is_of_mesh(key.mesh))
            policies = [key for key in of_mesh if world.RESOURCES.get(self._db, key) is not None]
            sources = {derivation.stored_place(self._replay.db, key)[0] for key in policies}
            dependent = self._dependent(sources) if sources else frozenset()
            if dependent:
                self._of_kind(kind, sorted(sources), dependent)
        rest = self._wanted - self._found.keys()
        if rest:
            self._of_objects(rest)
        return self._found

    def _dependent(self, policies: Iterable[Key]) -> frozenset[str]:
        """The fields that are others without these policies, or with other values in them."""
        found = [world.RESOURCES.get(self._replay.db, key) for key in policies]
        there = [resource for resource in found if resource is not None]
        others = [with_spec(each, with_others(each.spec)) for each in there]
        return self._without((), [each.key for each in there]) | self._without(others)

    def _without(self, instead: Iterable[Resource], gone: Iterable[Key] = ()) -> frozenset[str]:
        return frozenset(self._replay.without(instead, gone) or ()) & self._wanted

    def _of_kind(self, kind: str, policies: list[Key], dependent: frozenset[str]) -> None:
        """The places of policies of a kind on which fields depend."""
        found = _Places()
        for policy in self._relevant(policies):
            resource = world.RESOURCES.get(self._replay.db, policy)
            if resource is None:
                continue
            try_parts(resource.spec, partial(self._tried, resource, found))
        traced = self._traced(kind)
        for leaf in dependent:
            origins = [self._policy(policy, path, traced) for policy, path in found.of(leaf)]
            if not origins:  # others say the same, so that no line alone makes a difference
                origins = [FieldOrigin("policy", meta.kri(self._db, key), key.kind) for key in policies]
            self._found.setdefault(leaf, []).extend(origins)

    def _tried(
        self, resource: Resource, found: "_Places", part: WrittenPart, *, is_policy: bool = True
    ) -> bool:
        """Whether a part of an object makes a difference to a wanted field, or cannot be tried."""
        if found.n_tried >= _PARTS_MAX:
            return False
        found.n_tried += 1
        changed = self._replay.without([with_spec(resource, part.spec)], must_exist=not is_policy)
        if not part.is_whole:
            found.add(resource.key, part if is_policy else part._replace(is_value=False), changed)
        return changed is None or not self._wanted.isdisjoint(changed)

    def _relevant(self, policies: list[Key]) -> list[Key]:
        """The policies without which some field is another one; most are about other ports."""
        if len(policies) == 1:
            return policies
        alone = [key for key in policies[:_POLICIES_MAX] if self._dependent([key])]
        return alone or policies[:_POLICIES_MAX]

    def _traced(self, kind: str) -> Mapping[tuple[str, str], Json]:
        """Who set the fields of merged confs of a kind, by the object and the path in it."""
        found: dict[tuple[str, str], Json] = {}
        for each in self._setters():
            for origin in self._origins(each) if each.kind == kind else ():
                known = found.get((origin["kri"], origin["path"]))
                if known is None or len(origin["losers"]) > len(known["losers"]):
                    found[origin["kri"], origin["path"]] = origin
        return found

    def _origins(self, setters: Setters) -> Iterator[Json]:
        entries: tuple[ItemId, ...] = setters.entries
        if not setters.makes_rules:
            yield from (self._viewer.conf(entries).origins or {}).values()
            return
        for rule in self._viewer.route_rules(entries):
            yield from (rule.shown.origins or {}).values()

    def _policy(self, policy: Key, path: str, traced: Mapping[tuple[str, str], Json]) -> FieldOrigin:
        kri = meta.kri(self._db, policy)
        known = traced.get((kri, path))
        if known is None:
            line = self._viewer.line(policy, path)
            return FieldOrigin("policy", kri, policy.kind, path, line)
        losers = tuple(known["losers"])
        return FieldOrigin("policy", kri, policy.kind, path, known["line"], known["value"], losers)

    def _of_objects(self, rest: frozenset[str]) -> None:
        """Fields of the Mesh, the Dataplane and the destinations without which these are others."""
        found = _Places()
        replay_db = self._replay.db
        for resource in [each for each in world.stored(replay_db) if self._replay.is_about(replay_db, each)]:
            tried = partial(self._tried, resource, found, is_policy=False)
            try_parts(resource.spec, tried, whole=resource.kind == "Mesh")
        for leaf in rest:
            if places := found.of(leaf):
                self._found[leaf] = [self._object(key, path) for key, path in places]

    def _object(self, key: Key, path: str) -> FieldOrigin:
        kind = world.kind_of(self._db, key.kind)
        shown = path.removeprefix("spec.") if kind.inline else path
        return FieldOrigin("object", meta.kri(self._db, key), key.kind, shown, self._viewer.line(key, shown))


class _Places:
    """Where the values of leaves are written: parts without which, or with others, these are others."""

    def __init__(self) -> None:
        self.n_tried = 0
        self._by_leaf: dict[str, dict[tuple[Key, str], bool]] = {}

    def add(self, key: Key, part: WrittenPart, changed: Mapping[str, bool] | None) -> None:
        """Leaves that a part changes, each with whether it still has a value then.

        With another text or number something may be gone that this does not set: what it referred to.
        """
        for leaf, has_value in (changed or {}).items():
            if has_value or not part.is_value:
                places = self._by_leaf.setdefault(leaf, {})
                places[key, part.path] = places.get((key, part.path), False) or has_value

    def of(self, leaf: str) -> list[tuple[Key, str]]:
        """The places of a leaf: those that give it its value, else those without which there is none."""
        places = self._by_leaf.get(leaf, {})
        valued = [place for place, has_value in places.items() if has_value]
        return _deepest(valued or list(places))


def _deepest(places: list[tuple[Key, str]]) -> list[tuple[Key, str]]:
    """Places without those that are only above another one."""
    return [
        (key, path)
        for key, path in places
        if not any(other == key and below.startswith((f"{path}.", f"{path}[")) for other, below in places)
    ]
