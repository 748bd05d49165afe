"""Status keeper: stores what there is to report on services, whenever it changes.

Every control plane of a zone does this, and none leads. A status is written over the revision on which it was
decided, so whoever comes first has done it for all, and the others look again. What is decided is in
`core/statuses.py`; here is only when to look, and how often to write.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

import msgspec
import structlog

from koguma.access.user import SYSTEM
from koguma.application.context import Context, mesh_key
from koguma.core import statuses, vips, workloads, world
from koguma.core.incremental import Db
from koguma.core.services import Problem
from koguma.core.statuses import Proxies
from koguma.core.vips import Marks, Ranges
from koguma.model.errors import Conflict, Gone, NotFound, Unavailable
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.reconcile.services import BATCH, LOOK_SECONDS_MAX, PAUSE_SECONDS, RETRY_SECONDS
from koguma.store.contract import Change, Put, Transaction
from koguma.store.feed import Subscription
from koguma.store.waiting import log_waiting

PACE: Final = timedelta(seconds=1)  # between two counts of the proxies of a service
SHARE: Final = 4  # we rest so many times longer than we work, however large a mesh is
SHARE_OF_COUNTS: Final = 60  # the same where only proxies come and go, which thousands may do at once
COUNT_SECONDS_MAX: Final = 5.0
PAUSE_SECONDS_MAX: Final = 1.0
REASON: Final = "status"

_GENERATOR: Final = "HostnameGenerator"
_WATCHED: Final = frozenset({"Dataplane", "Mesh", _GENERATOR, workloads.KIND, *world.DESTINATION_KINDS})
_log = structlog.get_logger("koguma.status")


class _Told(msgspec.Struct, frozen=True):
    """What we last wrote of a service's proxies, and when."""

    at: datetime
    counts: Json


class StatusKeeper:
    """Keeps the statuses of destinations as the mesh is.

    `connected` and `certified` tell the Dataplanes of the whole zone that are connected and that have a
    certificate. Where control planes see different ones, each writes its count when that changes and leaves
    the others' alone, so that they do not quarrel; the count is then that of whoever wrote last.
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
        self._marks: Marks = {}  # none before the first look
        self._proxies = Proxies(frozenset(), frozenset())
        self._pace = PACE
        self._poked = asyncio.Event()
        self._due_at: dict[str, datetime] = {}  # by mesh: when to look, even if nothing changes
        self._looked_at: dict[str, datetime] = {}
        self._told: dict[str, dict[Key, _Told]] = {}
        self._problems: dict[str, tuple[Problem, ...]] = {}

    @property
    def problems(self) -> list[Problem]:
        """What was odd when each mesh was last looked at."""
        return [problem for mesh in sorted(self._problems) for problem in self._problems[mesh]]

    def poke(self, mesh: str) -> None:
        """Look at a mesh soon: a proxy came or went, or got a certificate. Cheap; call it on the loop."""
        now = self._clock()
        at = max(now, self._looked_at.get(mesh, now - self._pace) + self._pace)
        due = self._due_at.get(mesh)
        if due is None or at < due:  # thousands come at once, and are counted together
            self._look_at(mesh, at)
            self._poked.set()

    async def run(self) -> None:
        """Look at every mesh, and then at those where something changes, until cancelled."""
        store = self.context.store
        while True:
            news = store.watch(_WATCHED, store.state.revision)
            touched = self._meshes()
            try:
                await self._database()  # from here on the marks follow the news
                while True:
                    began_at = time.monotonic()
                    await self.settle(touched)
                    seconds = time.monotonic() - began_at
                    self._pace = max(
                        PACE, timedelta(seconds=min(SHARE_OF_COUNTS * seconds, COUNT_SECONDS_MAX))
                    )
                    touched = await self._touched(news, SHARE * seconds)
            except (Gone, Unavailable) as error:
                log_waiting(_log, "statuses are looked at again from the start", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def settle(self, meshes: Iterable[str]) -> None:
        """Write what these meshes lack, and others that quarrel with them over an address."""
        if self.context.place.is_global:  # how a service is called is for zones to say
            self._due_at.clear()
            return
        todo, done = set(meshes), set[str]()
        while left := todo - done:
            mesh = min(left)
            done.add(mesh)
            try:
                todo |= await self._settle(mesh)
            except Unavailable as error:
                log_waiting(_log, "statuses wait for the store", error, mesh=mesh)
            except Exception as error:  # noqa: BLE001 - the statuses of one mesh must not wait for those of another
                _log.exception("statuses of a mesh cannot be told", mesh=mesh)
                self.context.background.failed("status keeper", error)
            else:
                continue
            self._due_at[mesh] = self._clock() + timedelta(seconds=RETRY_SECONDS)

    def _meshes(self) -> set[str]:
        return {mesh.name for mesh in self.context.state.listed("Mesh")}

    def _look_at(self, mesh: str, at: datetime) -> None:
        self._due_at[mesh] = min(at, self._due_at.get(mesh, at))

    async def _touched(self, news: Subscription, pause_seconds: float) -> set[str]:
        """The meshes that there is something to do for; what happens during the pause comes along."""
        changes = await self._next(news)
        if changes:
            await asyncio.sleep(min(max(pause_seconds, PAUSE_SECONDS), PAUSE_SECONDS_MAX))
            changes += await news.next_batch(0)
        self._follow(changes)
        now = self._clock()
        due = {mesh for mesh, at in self._due_at.items() if at <= now}
        if any(change.resource.kind == _GENERATOR for change in changes):
            return due | self._meshes()
        return due | {change.resource.mesh or change.resource.name for change in changes}

    async def _next(self, news: Subscription) -> list[Change]:
        """Changes; none where somebody pokes first, or a mesh is due."""
        reading = asyncio.ensure_future(news.next_batch(self._seconds_left()))
        poked = asyncio.ensure_future(self._poked.wait())
        try:
            await asyncio.wait((reading, poked), return_when=asyncio.FIRST_COMPLETED)
            self._poked.clear()
            return reading.result() if reading.done() else []
        finally:
            for each in (reading, poked):
                each.cancel()
            await asyncio.gather(reading, poked, return_exceptions=True)

    def _seconds_left(self) -> float | None:
        if not self._due_at:
            return None
        left = (min(self._due_at.values()) - self._clock()).total_seconds()
        return min(max(left, 0.0), LOOK_SECONDS_MAX)

    def _follow(self, changes: Iterable[Change]) -> None:
        """Remember addresses that others gave or freed, so that they are not given again soon."""
        for change in changes if self._marks else ():
            self._marks = vips.seen(self._marks, self._ranges, change.resource)

    async def _database(self) -> Db:
        db = await self.context.database()
        if not self._marks:
            self._marks = vips.first_marks(db, self._ranges)
        return db

    async def _settle(self, mesh: str) -> frozenset[str]:
        """Write what a mesh lacks; gives the meshes that have to give way to it."""
        db = await self._database()
        self._due_at.pop(mesh, None)
        if self.context.state.get(mesh_key(mesh)) is None:  # all that was in it has gone with it
            for memory in (self._looked_at, self._told, self._problems):
                memory.pop(mesh, None)
            return frozenset()
        now = self._looked_at[mesh] = self._clock()
        step = statuses.step(db, mesh, self._seen(), self._ranges, self._marks)
        self._marks = step.marks
        self._note(mesh, step.problems)
        before = {change.key: world.RESOURCES.get(db, change.key) for change in step.changes}
        await self._write(mesh, [c for c in step.changes if self._is_time(mesh, before[c.key], c, now)], now)
        return step.elsewhere

    def _seen(self) -> Proxies:
        """Which proxies are here; the same value while none came or went, since it remembers its counts."""
        connected, certified = self._connected(), self._certified()
        if connected is not self._proxies.connected or certified != self._proxies.certified:
            self._proxies = Proxies(connected, certified)
        return self._proxies

    def _is_time(self, mesh: str, before: Resource | None, after: Resource, now: datetime) -> bool:
        """Whether to write this now. Proxies are counted at a pace, everything else is told at once."""
        told = self._told.get(mesh, {}).get(after.key)
        if told is None or before is None or not statuses.is_recount(before, after):
            return True
        if told.counts == after.status[statuses.COUNTS]:
            return False  # another control plane counts otherwise, and has been told our count
        if now < told.at + PACE:
            self._look_at(mesh, told.at + PACE)
            return False
        return True

    async def _write(self, mesh: str, changes: Iterable[Resource], now: datetime) -> None:
        told = {key: old for key, old in self._told.get(mesh, {}).items() if self.context.state.get(key)}
        self._told[mesh] = told
        left = iter(changes)
        while batch := list(islice(left, BATCH)):
            answers = await asyncio.gather(*map(self._write_one, batch))
            for resource, is_written in zip(batch, answers, strict=True):
                if is_written and statuses.COUNTS in resource.status:
                    told[resource.key] = _Told(now, resource.status[statuses.COUNTS])
            _log.debug("statuses written", mesh=mesh, written=sum(answers), refused=answers.count(False))

    async def _write_one(self, resource: Resource) -> bool:
        transaction = Transaction((Put(resource, resource.revision),), SYSTEM, REASON)
        try:
            await self.context.store.write(transaction)
        except (Conflict, NotFound):
            return False  # somebody else was first; that was a change too, so we look again
        return True

    def _note(self, mesh: str, problems: tuple[Problem, ...]) -> None:
        for problem in sorted(set(problems) - set(self._problems.get(mesh, ()))):
            _log.warning(
                "service is odd", about=str(problem.about), rule=problem.rule, problem=problem.message
            )
        self._problems[mesh] = problems
