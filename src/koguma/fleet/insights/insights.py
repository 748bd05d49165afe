"""Insights: the objects of all insight kinds, computed from the store and the states of proxies when read."""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Final, Protocol

import msgspec

from koguma.fleet.insights import global_insight, proxy_insight, zone_insight
from koguma.fleet.insights.global_insight import OnlineCount
from koguma.fleet.insights.mesh_insight import MeshCounts, totals
from koguma.fleet.insights.service_insight import ServiceCounts
from koguma.fleet.proxy_state import InstanceState, ProxyState
from koguma.fleet.zone_state import ZoneState
from koguma.kinds import insights as kinds_of_insights
from koguma.model import labels
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind, Kinds
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.store.state import State

FRESH_SECONDS: Final = 1.0  # for so long, proxies of a mesh are not counted again
_COUNTED_AT_ONCE: Final = 100  # proxies, which takes some milliseconds
_SERVICE: Final = kinds_of_insights.SERVICE.name
_MESH: Final = kinds_of_insights.MESH.name
_ZONE: Final = kinds_of_insights.ZONE.name
_DATAPLANE: Final = kinds_of_insights.DATAPLANE.name
# Of which kind there is one insight for each object.
SUBJECTS: Final = {
    _DATAPLANE: "Dataplane",
    _MESH: "Mesh",
    _ZONE: "Zone",
    kinds_of_insights.ZONE_INGRESS.name: "ZoneIngress",
    kinds_of_insights.ZONE_EGRESS.name: "ZoneEgress",
}
_BY_SUBJECT: Final = {subject: insight for insight, subject in SUBJECTS.items()}


class FleetStates(Protocol):
    """What insights need of the states of all proxies."""

    def of(self, key: Key) -> ProxyState | None:
        """The state of a proxy."""

    def instances(self) -> tuple[InstanceState, ...]:
        """The control planes of this store."""

    def zone(self, name: str) -> tuple[ZoneState, ...]:
        """The connections of a zone to Global, the newest last."""

    @property
    def problem(self) -> str:
        """Why the states may be old; empty where they are not."""


class Insights:
    """The insights of one store. `states` is None until there are any."""

    def __init__(
        self,
        kinds: Kinds,
        control_plane: ControlPlaneInfo,
        state: Callable[[], State],
        states: Callable[[], FleetStates | None],
        clock: Callable[[], float],
    ) -> None:
        self._kinds = kinds
        self._control_plane = control_plane
        self._state = state
        self._states = states
        self._clock = clock
        self._turn = asyncio.Lock()
        self._counts: dict[str, tuple[float, MeshCounts]] = {}  # by mesh: when they were made
        # By kind: the subjects as the store listed them, and an insight without a spec for each.
        self._bare: dict[str, tuple[object, tuple[Resource, ...]]] = {}

    @property
    def problem(self) -> str:
        """Why insights may be old; empty where they are not."""
        states = self._states()
        return states.problem if states is not None else ""

    # Objects.

    async def prepare(self, kind: str, mesh: str | None) -> None:
        """Count the proxies of a mesh, or of all, where insights of that kind are about such counts."""
        if kind in (_SERVICE, _MESH):
            await self.count(self._mesh_names() if mesh is None else [mesh])

    def listed(self, kind: str, mesh: str | None = None) -> Sequence[Resource]:
        """The insights of a kind, in all meshes or in one, sorted by mesh and core name."""
        if kind == _SERVICE:
            meshes = self._mesh_names() if mesh is None else [mesh]
            return [insight for each in meshes for insight in self._services(each)]
        bare = self._bare_insights(kind)
        if mesh is None:
            return bare
        low = bisect_left(bare, mesh, key=_mesh_of)
        return bare[low : bisect_right(bare, mesh, lo=low, key=_mesh_of)]

    def named(self, kind: str, mesh: str, core_name: str) -> Resource | None:
        """The insight with a core name."""
        if kind == _SERVICE:
            counts = self.mesh_counts(mesh).services.get(core_name)
            return _service(mesh, core_name, counts, self._state()) if counts is not None else None
        subject = self._state().named(SUBJECTS[kind], mesh, core_name)
        return None if subject is None else _bare(kind, subject)

    def filled(self, resource: Resource) -> Resource:
        """An insight with its spec."""
        if resource.kind == _SERVICE:
            return resource
        key = resource.key._replace(kind=SUBJECTS[resource.kind])
        spec = self.spec(key, resource.core_name)
        return msgspec.structs.replace(resource, spec=spec)

    def spec(self, subject: Key, core_name: str) -> dict[str, Json]:
        """What is known of a Dataplane, a Mesh, a Zone or a zone proxy: the spec of its insight."""
        match _BY_SUBJECT[subject.kind]:
            case kind if kind == _DATAPLANE:
                return proxy_insight.of_dataplane(self._proxy(subject))
            case kind if kind == _MESH:
                return self._mesh(core_name)
            case kind if kind == _ZONE:
                return self._zone(core_name)
            case _:
                return proxy_insight.of_zone_proxy(self._proxy(subject))

    def _bare_insights(self, kind: str) -> tuple[Resource, ...]:
        subjects = self._state().listed(SUBJECTS[kind])
        known = self._bare.get(kind)
        if known is None or known[0] is not subjects:
            known = self._bare[kind] = subjects, tuple(_bare(kind, subject) for subject in subjects)
        return known[1]

    def _services(self, mesh: str) -> Sequence[Resource]:
        services, state = self.mesh_counts(mesh).services, self._state()
        return [_service(mesh, name, counts, state) for name, counts in services.items()]

    def _mesh(self, mesh: str) -> dict[str, Json]:
        counted = [kind for kind in self._counted_kinds() if kind.is_mesh_scoped]
        numbers = {kind.name: self.n_objects(kind, mesh) for kind in counted}
        policies = {kind.name: numbers[kind.name] for kind in counted if kind.policy is not None}
        return self.mesh_counts(mesh).spec(policies, numbers)

    def _zone(self, name: str) -> dict[str, Json]:
        if self._control_plane.is_global:
            return zone_insight.on_global(self._connections(name))
        return zone_insight.of_zone(name, self._control_plane, self._instances())

    def connection(self, zone: str, version: str, now: datetime) -> dict[str, Json]:
        """How a zone is, for people; empty where this is not Global, whose version this is."""
        if not self._control_plane.is_global:
            return {}
        return zone_insight.summary(self._connections(zone), version, now)

    def _connections(self, zone: str) -> tuple[ZoneState, ...]:
        states = self._states()
        return states.zone(zone) if states is not None else ()

    def _proxy(self, key: Key) -> ProxyState | None:
        states = self._states()
        return states.of(key) if states is not None else None

    def _instances(self) -> tuple[InstanceState, ...]:
        states = self._states()
        return states.instances() if states is not None else ()

    # Numbers.

    async def count(self, meshes: Collection[str]) -> None:
        """Count the proxies of some meshes, where that was not done a moment ago; in small steps."""
        async with self._turn:  # who waits finds it done
            self._counts = {mesh: found for mesh, found in self._counts.items() if self._is_fresh(found[0])}
            for mesh in meshes:
                if mesh not in self._counts:
                    counts = await self._counted(mesh)
                    self._counts[mesh] = self._clock(), counts

    async def _counted(self, mesh: str) -> MeshCounts:
        counts, dataplanes = MeshCounts(), self._state().listed("Dataplane", mesh)
        for start in range(0, len(dataplanes), _COUNTED_AT_ONCE):
            self._add(counts, dataplanes[start : start + _COUNTED_AT_ONCE])
            await asyncio.sleep(0)
        return counts

    def _add(self, counts: MeshCounts, dataplanes: Iterable[Resource]) -> None:
        for dataplane in dataplanes:
            counts.add(dataplane, self._proxy(dataplane.key))

    def _is_fresh(self, counted_at: float) -> bool:
        return self._clock() - counted_at < FRESH_SECONDS

    def mesh_counts(self, mesh: str) -> MeshCounts:
        """The proxies and services of a mesh; counted now where nobody has prepared it."""
        if mesh in self._counts:
            return self._counts[mesh][1]
        counts = MeshCounts()
        self._add(counts, self._state().listed("Dataplane", mesh))
        return counts

    def _mesh_names(self) -> list[str]:
        return [mesh.name for mesh in self._state().listed("Mesh")]

    def _counted_kinds(self) -> list[Kind]:
        """The kinds whose objects are counted: not what is computed, nor what only administrators see."""
        return [kind for kind in self._kinds if not (kind.read_only or kind.admin_only)]

    def n_objects(self, kind: Kind, mesh: str) -> int:
        """How many objects of a kind a mesh has; for other kinds `mesh` is empty."""
        places = self._state().counts(kind.stored_as)
        return sum(number for place, number in places.items() if place.mesh == mesh)

    async def in_numbers(
        self, meshes: Collection[str], may_list: Callable[[Kind, str], bool], now: datetime
    ) -> dict[str, Json]:
        """The global insight over some meshes, with the objects that somebody may list."""
        numbers: dict[str, int] = {}
        for kind in self._counted_kinds():
            places = [mesh for mesh in (meshes if kind.is_mesh_scoped else ("",)) if may_list(kind, mesh)]
            numbers[kind.name] = sum(self.n_objects(kind, mesh) for mesh in places)
        zones = {
            word: self._online(kind) if may_list(self._kinds[kind], "") else OnlineCount()
            for word, kind in _ZONE_PARTS.items()
        }
        policies = sum(number for name, number in numbers.items() if self._kinds[name].policy is not None)
        await self.count(meshes)
        counts = [self.mesh_counts(mesh) for mesh in meshes]
        return global_insight.global_insight(counts, policies, numbers, zones, now)

    def _online(self, kind: str) -> OnlineCount:
        subjects = self._state().listed(kind)
        online = sum(zone_insight.is_online(self.spec(each.key, each.core_name)) for each in subjects)
        return OnlineCount(online, len(subjects))

    def totals(self, may_list: Callable[[Kind, str], bool], now: datetime) -> dict[str, Json]:
        """How many objects of each kind outside of meshes there are, of those that somebody may list."""
        kinds = [kind for kind in self._kinds if not (kind.is_mesh_scoped or kind.read_only)]
        numbers = {kind.name: self.n_objects(kind, "") for kind in kinds if may_list(kind, "")}
        return {
            "type": "GlobalInsights",
            "creationTime": proxy_insight.timestamp(now),
            "resources": totals(numbers),
        }


_ZONE_PARTS: Final = {"controlPlanes": "Zone", "zoneIngresses": "ZoneIngress", "zoneEgresses": "ZoneEgress"}


def _mesh_of(resource: Resource) -> str:
    return resource.mesh


def _bare(kind: str, subject: Resource) -> Resource:
    """The insight of an object, without its spec."""
    return Resource(
        kind=kind,
        mesh=subject.mesh,
        zone=subject.zone,
        namespace=subject.namespace,
        name=subject.name,
        core_name=subject.core_name,
        labels=subject.labels,
        creation_time=subject.creation_time,
        modification_time=subject.modification_time,
    )


def _service(mesh: str, name: str, counts: ServiceCounts, state: State) -> Resource:
    stored = state.named("Mesh", "", mesh)
    return Resource(
        kind=_SERVICE,
        mesh=mesh,
        name=name,
        core_name=name,
        labels={labels.MESH: mesh},
        spec=counts.spec,
        creation_time=stored.creation_time if stored is not None else "",
        modification_time=stored.modification_time if stored is not None else "",
    )
