"""Planner: what a change of objects would do to all proxies of a database.

The database is taken to the other side of the change and back. There, the watcher of snapshots says which
proxies get something else; for these alone both sides are put into words. What proxies share is compared once
(`scopes`, `envoy_changes`), so the cost follows the change and not the number of proxies.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from koguma.core import loading, problems, vips, world
from koguma.core.build import encoding, network
from koguma.core.build.network import NodeMetadata
from koguma.core.build.snapshot_watcher import SnapshotWatcher
from koguma.core.incremental import Db
from koguma.core.lint import visibility
from koguma.core.plan import consequences, object_changes, risks
from koguma.core.plan.envoy_changes import SnapshotDifferences
from koguma.core.plan.groups import Groups, Touched
from koguma.core.plan.model import ObjectChange, Plan, PlannedProblem, ProxyGroup
from koguma.core.plan.object_changes import ObjectSides
from koguma.core.plan.reader import PlanReader
from koguma.core.plan.scopes import ChangeSide
from koguma.core.vips import Ranges
from koguma.envoy.snapshot import Snapshot
from koguma.model.derived import DerivedResource
from koguma.model.resource import Key, Resource

PROXY_KINDS: Final = ("Dataplane", "ZoneEgress", "ZoneIngress")


class PlannedChange(NamedTuple):
    """Objects to be written, and keys of those to be deleted."""

    written: tuple[Resource, ...]
    gone: tuple[Key, ...]

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of all of them."""
        return (*(resource.key for resource in self.written), *self.gone)

    def followed_by(self, later: "PlannedChange") -> "PlannedChange":
        """Both as one change."""
        keys = frozenset(later.keys)
        kept = (resource for resource in self.written if resource.key not in keys)
        gone = (key for key in self.gone if key not in keys)
        return PlannedChange((*kept, *later.written), (*gone, *later.gone))

    def corrected_by(self, whole: "PlannedChange") -> frozenset[Key]:
        """The objects that are other than this change wants them, once the whole has happened."""
        specs = {each.key: each.spec for each in whole.written}
        wanted = ((each.key, each.spec) for each in self.written)
        return frozenset(
            (
                *(key for key in self.gone if key in specs),
                *(key for key, spec in wanted if specs.get(key) != spec),
            )
        )


class _Stored:
    """Objects as they were when they were first kept; those that could not be read have a reason."""

    def __init__(self) -> None:
        self.objects: dict[Key, Resource | None] = {}
        self.unreadable: dict[Key, str] = {}

    def keep(self, db: Db, keys: Iterable[Key]) -> None:
        """Keep objects, of which the database has not been changed yet."""
        for key in keys:
            if key not in self.objects:
                resource = world.RESOURCES.get(db, key)
                self.objects[key] = None if isinstance(resource, DerivedResource) else resource
                reason = world.UNREADABLE.get(db, key)
                if reason is not None:
                    self.unreadable[key] = reason

    def as_change(self) -> PlannedChange:
        """The change that brings them back."""
        return PlannedChange(
            tuple(resource for resource in self.objects.values() if resource is not None),
            tuple(key for key, resource in self.objects.items() if resource is None),
        )


class Planner:
    """Answers what changes of a database would do; it keeps the snapshots of all its proxies."""

    def __init__(self, db: Db, ranges: Ranges = vips.DEFAULT) -> None:
        self._db = db
        self._ranges = ranges
        self._watcher = SnapshotWatcher(db)
        self._watched: dict[Key, None] = {}
        self._assumed: dict[Key, NodeMetadata] = {}  # of proxies that have not said anything of themselves
        self.refresh()

    def refresh(self) -> None:
        """Follow the database, after it was changed, and after each plan."""
        proxies = dict.fromkeys(_proxies(self._db))
        self._assume(proxies)
        for key in [key for key in self._watched if key not in proxies]:
            self._watcher.remove(key)
        for key in [key for key in proxies if key not in self._watched]:
            self._watcher.add(key)
        self._watched = proxies
        self._watcher.changed()

    def _assume(self, proxies: Iterable[Key]) -> None:
        """Let proxies that are not connected say of themselves what they most likely will."""
        with self._db.change() as change:
            for key in proxies:
                known = network.NODE_METADATA.get(self._db, key)
                net = network.networking(self._db, key) if key.kind == "Dataplane" else None
                if net is None or (known is not None and known != self._assumed.get(key)):
                    continue
                likely: NodeMetadata = network.likely_node_metadata(net)
                if known != likely:
                    self._assumed[key] = likely
                    change.set(network.NODE_METADATA, key, likely)

    def plan(
        self,
        change: PlannedChange,
        now: datetime,
        reader: PlanReader = PlanReader(),  # noqa: B008 - immutable
        requested: frozenset[Key] | None = None,
    ) -> Plan:
        """What a change would do. The database stays as it is.

        Objects of the change that are not `requested` are shown as written by the control plane. Call
        `refresh` afterwards, at any time before the next plan.
        """
        stored = _Stored()
        meshes = sorted({key.mesh or key.name for key in change.keys if key.mesh or key.kind == "Mesh"})
        before, is_partial = _problems(self._db, meshes, now), _is_partial(self._db, reader)
        known, derived = {key: self._snapshot(key) for key in self._watched}, _derived(self._db)
        whole = self._take_with_consequences(change, stored, now)
        snapshots = SnapshotDifferences()
        differing = [each for each in self._touched(known, whole) if reader.visible.may_see(each.proxy)]
        touched = [each for each in differing if snapshots.of(each.before, each.after)]
        total = sum(map(reader.visible.may_see, self._watched))
        after = _problems(self._db, meshes, now)
        new_problems, gone_problems = _told(after - before, reader), _told(before - after, reader)
        policies = frozenset((*whole.keys, *_differing(derived, _derived(self._db))))
        encoder = encoding.ENCODER.get(self._db, "envoy")
        groups = Groups(encoder, snapshots, policies, reader.visible.may_see, reader.name_of)
        groups.take_after(ChangeSide(self._db), touched)
        self._take_back(stored)  # `refresh` compiles again what all proxies get
        groups.take_before(ChangeSide(self._db), touched)
        self._take(whole)  # once more, and only what differs is asked
        groups.resolve_after(self._db)
        grouped = groups.grouped(envoy_fields=reader.envoy_fields)
        named = frozenset(change.keys if requested is None else requested)
        objects = self._described(whole, stored, grouped, named, change.corrected_by(whole), reader)
        self._take_back(stored)
        return Plan(
            total=total,
            changed=len(touched),
            groups=grouped,
            objects=objects,
            risks=risks.of(grouped, new_problems, _failures(differing), is_partial=is_partial),
            new_problems=new_problems,
            gone_problems=gone_problems,
            is_partial=is_partial,
            bytes_before=groups.bytes_before,
            bytes_after=groups.bytes_after,
        )

    def _take_with_consequences(
        self, change: PlannedChange, stored: "_Stored", now: datetime
    ) -> PlannedChange:
        """Take a change, and what the control plane writes because of it; both as one change."""
        stored.keep(self._db, change.keys)
        self._take(change)
        whole = change
        for step in consequences.steps(change.keys, self._ranges, now):
            later = PlannedChange(*step(self._db))
            stored.keep(self._db, later.keys)
            self._take(later)
            whole = whole.followed_by(later)
        return whole

    def _touched(self, before: Mapping[Key, Snapshot | None], change: PlannedChange) -> Iterator[Touched]:
        """The proxies whose snapshots differ, now that the database has the change."""
        keys = (key for key in change.keys if key.kind in PROXY_KINDS)
        added = [key for key in _here(self._db, keys) if key not in self._watched]
        for key in added:
            self._watcher.add(key)
        changed = [*dict.fromkeys((*self._watcher.changed(), *added))]
        for key in changed:
            yield Touched(key, before.get(key), self._snapshot(key))
        for key in added:
            self._watcher.remove(key)

    def _described(
        self,
        change: PlannedChange,
        stored: "_Stored",
        groups: tuple[ProxyGroup, ...],
        requested: frozenset[Key],
        corrected: frozenset[Key],
        reader: PlanReader,
    ) -> tuple[ObjectChange, ...]:
        sides = (
            ObjectSides(
                key,
                stored.objects.get(key),
                world.RESOURCES.get(self._db, key),
                is_corrected=key in corrected,
            )
            for key in change.keys
            if reader.visible.may_see(key)
        )
        return object_changes.described(self._db, sides, requested, groups, reader)

    def _take(self, change: PlannedChange) -> None:
        loading.take(self._db, *change)
        self._assume(key for key in change.keys if key.kind in PROXY_KINDS)

    def _take_back(self, stored: "_Stored") -> None:
        self._take(stored.as_change())
        with self._db.change() as change:
            for key, reason in stored.unreadable.items():
                change.set(world.UNREADABLE, key, reason)

    def _snapshot(self, key: Key) -> Snapshot | None:
        try:
            return self._watcher.of(key)
        except Exception:  # noqa: BLE001 - what cannot be compiled is no reason to show nothing of the others
            return None


def _proxies(db: Db) -> Iterator[Key]:
    """The proxies that this control plane configures."""
    for kind in PROXY_KINDS:
        yield from _here(db, world.BY_KIND_EVERYWHERE.keys(db, kind))


def _here(db: Db, proxies: Iterable[Key]) -> Iterator[Key]:
    zone = world.control_plane(db).zone
    return (key for key in proxies if key.zone in ("", zone))


def _derived(db: Db) -> Mapping[Key, Resource]:
    return {key: each for key, each in world.RESOURCES.items(db) if isinstance(each, DerivedResource)}


def _differing(before: Mapping[Key, Resource], after: Mapping[Key, Resource]) -> Iterator[Key]:
    return (key for key in {**before, **after} if before.get(key) != after.get(key))


def _problems(db: Db, meshes: Iterable[str], now: datetime) -> frozenset[problems.Problem]:
    return frozenset(problem for mesh in meshes for problem in problems.of_mesh(db, mesh, now))


def _told(found: Iterable[problems.Problem], reader: PlanReader) -> tuple[PlannedProblem, ...]:
    """The problems that tell a reader nothing that he may not read."""
    return tuple(_planned(each) for each in _in_order(found) if visibility.may_tell(each, reader.visible))


def _is_partial(db: Db, reader: PlanReader) -> bool:
    """Whether there may be proxies that a reader does not see, by his rights alone."""
    meshes = [key.name for key in world.BY_KIND.keys(db, ("Mesh", ""))]
    places = [(kind, mesh) for kind in PROXY_KINDS for mesh in (meshes if kind == "Dataplane" else [""])]
    return not all(reader.visible.sees_all(*place) for place in places)


def _in_order(found: Iterable[problems.Problem]) -> list[problems.Problem]:
    return sorted(found, key=lambda each: (each.code, each.objects, each.path, each.message))


def _planned(problem: problems.Problem) -> PlannedProblem:
    return PlannedProblem(
        problem.code, problem.message, tuple(map(str, problem.objects)), problem.path, problem.severity
    )


def _failures(differing: Iterable[Touched]) -> Iterator[str]:
    """What cannot be built after the change and could before; what fails alike is said once."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}  # resources and proxies by the reason
    for each in differing:
        known = frozenset(each.before.failures if each.before is not None else ())
        for failure in each.after.failures if each.after is not None else ():
            if failure not in known:
                names, proxies = found.setdefault(failure.text, ({}, {}))
                names[f"{failure.type} {failure.name}"] = proxies[each.proxy.name] = None
    for text, (names, proxies) in found.items():
        yield f"{_counted(names)} of {_counted(proxies)} cannot be built: {text}"


def _counted(names: Iterable[str]) -> str:
    first, *others = sorted(names)
    return f"{first} and {len(others)} more" if others else first
