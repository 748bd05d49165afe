"""Status writer: stores the statuses of services, whenever they change.

What a status says is decided in `core/statuses.py`; here is only when to look, and how often to write.
"""

import time
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap
from koguma.application.context import Context, mesh_key
from koguma.core import statuses, vips, workloads, world
from koguma.core.address_history import AddressHistory
from koguma.core.incremental import Db
from koguma.core.services import ReconcileProblem
from koguma.core.statuses import ConnectedProxies, StatusPlan
from koguma.core.vips import Ranges
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.reconcile import used_addresses
from koguma.reconcile.following import PAUSE_SECONDS, MeshLoop, Pace, changed_meshes, follow
from koguma.store.contract import Change, Op, Put, Transaction
from koguma.store.watch import Watch

COUNT_INTERVAL: Final = timedelta(seconds=1)  # between two counts of the proxies of a service, at least
# How many times longer that is than we worked, since thousands of proxies may connect at once.
COUNT_PAUSE_SHARE: Final = 60
COUNT_PAUSE_SECONDS_MAX: Final = 5.0
NO_ADDRESS_INTERVAL: Final = timedelta(minutes=5)  # until an address that was freed may be free to use
REASON: Final = "status"

_GENERATOR: Final = "HostnameGenerator"
_WATCHED: Final = frozenset({"Dataplane", "Mesh", _GENERATOR, workloads.KIND, *world.DESTINATION_KINDS})
_log = structlog.get_logger("koguma.status")


class WrittenCounts(msgspec.Struct, frozen=True):
    """The counts of a service's proxies that we last wrote, and when."""

    at: datetime
    counts: Json


class StatusWriter:
    """Keeps the statuses of destinations as the mesh is.

    `connected` and `certified` give the Dataplanes of the whole zone that are connected and that have a
    certificate. Where control planes see different ones, each writes its count when that changes and leaves
    the others' alone, so that they do not overwrite each other for ever; the last writer's count stands.
    """

    def __init__(
        self,
        context: Context,
        clock: Callable[[], datetime],
        connected: Callable[[], frozenset[Key]],
        certified: Callable[[], frozenset[Key]],
        ranges: Ranges = vips.DEFAULT,
    ) -> None:
        self.context = context
        self._clock = clock
        self._connected = connected
        self._certified = certified
        self._ranges = ranges
        self._history = AddressHistory(since=clock())
        self._proxies = ConnectedProxies(frozenset(), frozenset())
        self._pace = Pace()
        self._count_interval = COUNT_INTERVAL
        self._loop = MeshLoop(context, clock, "status writer", _log, self._reconcile)
        self._looked_at: dict[str, datetime] = {}
        self._written: dict[str, dict[Key, WrittenCounts]] = {}

    @property
    def problems(self) -> list[ReconcileProblem]:
        """What was odd when each mesh was last looked at."""
        return self._loop.problems

    def recount(self, mesh: str) -> None:
        """Look at a mesh soon: a proxy connected, disconnected, or got a certificate. Cheap."""
        now, interval = self._clock(), self._count_interval
        at = max(now, self._looked_at.get(mesh, now - interval) + interval)
        due_at = self._loop.due_at(mesh)
        if due_at is None or at < due_at:  # thousands come at once, and are counted together
            self._loop.schedule(mesh, at)
            self._loop.wake()

    async def run(self) -> None:
        """Look at every mesh, and then at those where something changes, until cancelled."""
        await follow(self.context.store, _WATCHED, self._follow, _log)

    async def _follow(self, watch: Watch) -> None:
        meshes = self._loop.meshes()
        self._history = AddressHistory(since=self._clock())  # from here on every freed address is seen
        while True:
            began_at = time.monotonic()
            with self._pace.working():
                await self.settle(meshes)
            seconds = time.monotonic() - began_at
            pause = timedelta(seconds=min(COUNT_PAUSE_SHARE * seconds, COUNT_PAUSE_SECONDS_MAX))
            self._count_interval = max(COUNT_INTERVAL, pause)
            changes = await self._loop.next_changes(watch)
            if changes:
                await self._pace.pause()
                changes += await watch.next_batch(0)
            self._mark(changes)
            meshes = self._loop.due() | self._concerned(changes)

    def _concerned(self, changes: Iterable[Change]) -> set[str]:
        if any(change.resource.kind == _GENERATOR for change in changes):
            return self._loop.meshes()
        return changed_meshes(changes)

    async def settle(self, meshes: Iterable[str]) -> None:
        """Write what these meshes lack, and others that claim the same address."""
        if self.context.control_plane.is_global:  # how a service is called is for zones to say
            self._loop.clear()
            return
        await self._loop.settle(meshes)

    def _mark(self, changes: Iterable[Change]) -> None:
        """Remember which addresses were freed, by whomever, so that they are not allocated again soon."""
        freed: set[str] = set()
        for change in changes:
            if change.resource.kind not in world.DESTINATION_KINDS or change.op is Op.CREATE:
                continue
            before = self.context.store.replaced(change.revision)
            if change.op is Op.DELETE:
                freed |= vips.freed(change.resource, None)
            elif before is None:  # it has left the memory: any address may have been freed until now
                self._history = AddressHistory(since=self._clock())
            else:
                freed |= vips.freed(before, change.resource)
        if freed:
            self._history = self._history.freed(freed, self._clock())

    async def _reconcile(self, mesh: str) -> Collection[str]:
        """Write what a mesh lacks; returns the meshes that have to give way to it."""
        db = await self.context.database()
        if self.context.state.get(mesh_key(mesh)) is None:  # all that was in it has gone with it
            self._looked_at.pop(mesh, None)
            self._written.pop(mesh, None)
            self._loop.forget(mesh)
            return ()
        now = self._looked_at[mesh] = self._clock()
        step = await self._plan(db, mesh, now)
        if step is None:  # another control plane allocated addresses; its writes are about to arrive
            self._loop.schedule(mesh, now + timedelta(seconds=PAUSE_SECONDS))
            return ()
        for problem in self._loop.note(mesh, step.problems):
            about = str(problem.about)
            _log.warning("service is odd", about=about, rule=problem.rule, problem=problem.message)
        before = {change.key: world.RESOURCES.get(db, change.key) for change in step.changes}
        await self._write(mesh, [c for c in step.changes if self._is_time(mesh, before[c.key], c, now)], now)
        return step.other_meshes

    async def _plan(self, db: Db, mesh: str, now: datetime) -> StatusPlan | None:
        """What a mesh lacks, once the addresses in it are noted as used; None if another was first."""
        noted = used_addresses.stored(self.context)
        used = vips.first_used(db, self._ranges, noted.used)
        history = msgspec.structs.replace(self._history, used=used)
        step = statuses.plan(db, mesh, self._current_proxies(), self._ranges, history, now)
        if step.changes and step.used != noted.used:
            is_noted = await used_addresses.note(self.context, noted, step.used)
            return step if is_noted else None
        if any(problem.rule == vips.RULE for problem in step.problems):
            self._loop.schedule(mesh, now + NO_ADDRESS_INTERVAL)
        return step

    def _current_proxies(self) -> ConnectedProxies:
        """Which proxies are here; the same value while that does not change, since it keeps its counts."""
        connected, certified = self._connected(), self._certified()
        if connected is not self._proxies.connected or certified != self._proxies.certified:
            self._proxies = ConnectedProxies(connected, certified)
        return self._proxies

    def _is_time(self, mesh: str, before: Resource | None, after: Resource, now: datetime) -> bool:
        """Whether to write this now: counts of proxies are written at intervals, everything else at once."""
        written = self._written.get(mesh, {}).get(after.key)
        if written is None or before is None or not statuses.is_recount(before, after):
            return True
        if written.counts == after.status[statuses.COUNTS]:
            return False  # another control plane counts otherwise, and has seen our count
        if now < written.at + self._count_interval:
            self._loop.schedule(mesh, written.at + self._count_interval)
            return False
        return True

    async def _write(self, mesh: str, changes: Iterable[Resource], now: datetime) -> None:
        known = self._written.get(mesh, {})
        written = self._written[mesh] = {
            key: counts for key, counts in known.items() if self.context.state.get(key)
        }
        async for batch, answers in compare_and_swap.in_batches(self._write_one, changes):
            for resource, is_written in zip(batch, answers, strict=True):
                if is_written and statuses.COUNTS in resource.status:
                    written[resource.key] = WrittenCounts(now, resource.status[statuses.COUNTS])
            n_written = sum(answers)
            _log.debug("statuses written", mesh=mesh, written=n_written, refused=len(answers) - n_written)

    async def _write_one(self, resource: Resource) -> bool:
        transaction = Transaction((Put(resource, resource.revision),), SYSTEM, REASON)
        return await compare_and_swap.written_if_first(self.context.store, transaction)
