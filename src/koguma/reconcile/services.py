"""Service generator: the MeshServices and Workloads that follow from the Dataplanes.

Every control plane of a zone does this, and none leads. A change is written over the revision on which it was
decided, so whoever comes first has done it for all, and the others look again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, assert_never

import structlog

from koguma.access.user import SYSTEM
from koguma.application import transactions
from koguma.application.context import Context, mesh_key
from koguma.core import services, workloads
from koguma.core.incremental import Db
from koguma.core.services import Problem
from koguma.model.errors import AlreadyExists, Conflict, Gone, Invalid, NotFound, Unavailable
from koguma.model.resource import Key, Resource
from koguma.store.contract import Change, Operation, Put, Require, Transaction
from koguma.store.waiting import log_waiting

PAUSE_SECONDS: Final = 0.05  # what changes together is looked at together
RETRY_SECONDS: Final = 5.0
LOOK_SECONDS_MAX: Final = 3600.0
BATCH: Final = 256  # writes at a time; the store commits them together

_WATCHED: Final = frozenset({"Dataplane", "Mesh", "MeshService", workloads.KIND})
_log = structlog.get_logger("koguma.services")


class ServiceGenerator:
    """Keeps the MeshServices and Workloads that are made from Dataplanes as the Dataplanes are.

    Every control plane of a zone does this, and none leads. A change is written over the revision on which it
    was decided, so whoever comes first has done it for all, and the others look again.
    """

    def __init__(
        self, context: Context, clock: Callable[[], datetime], grace: timedelta = services.GRACE
    ) -> None:
        self.context = context
        self._clock = clock
        self._grace = grace
        self._due_at: dict[str, datetime] = {}  # by mesh: when to look, even if nothing changes
        self._problems: dict[str, tuple[Problem, ...]] = {}
        self._workload_problems: dict[str, tuple[Problem, ...]] = {}
        # By mesh: what was wanted and stored when there was nothing to do, now or later.
        self._settled: dict[str, tuple[services.Wanted, tuple[Resource, ...]]] = {}

    @property
    def problems(self) -> list[Problem]:
        """What was odd when each mesh was last looked at."""
        memories = self._problems, self._workload_problems
        return [problem for memory in memories for mesh in sorted(memory) for problem in memory[mesh]]

    async def run(self) -> None:
        """Look at every mesh, and then at those where something changes, until cancelled."""
        store = self.context.store
        while True:
            news = store.watch(_WATCHED, store.state.revision)
            touched = {mesh.name for mesh in store.state.listed("Mesh")}
            try:
                while True:
                    await self.settle(touched)
                    touched = await self._touched(news.next_batch)
            except (Gone, Unavailable) as error:
                log_waiting(_log, "services are looked at again from the start", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def settle(self, meshes: Iterable[str]) -> None:
        """Write what these meshes lack; one that cannot be served now is tried again later."""
        for mesh in sorted(meshes):
            try:
                await self._settle(mesh)
            except Unavailable as error:
                log_waiting(_log, "services wait for the store", error, mesh=mesh)
            except Exception as error:  # noqa: BLE001 - the services of one mesh must not wait for those of another
                _log.exception("services of a mesh cannot be generated", mesh=mesh)
                self.context.background.failed("service generator", error)
            else:
                continue
            self._due_at[mesh] = self._clock() + timedelta(seconds=RETRY_SECONDS)

    async def _touched(self, next_batch: Callable[[float | None], Awaitable[list[Change]]]) -> set[str]:
        """The meshes that there is something to do for; returns when there is one."""
        changes = await next_batch(self._seconds_left())
        if changes:
            await asyncio.sleep(PAUSE_SECONDS)
            changes += await next_batch(0)
        now = self._clock()
        due = {mesh for mesh, at in self._due_at.items() if at <= now}
        return due | {change.resource.mesh or change.resource.name for change in changes}

    def _seconds_left(self) -> float | None:
        if not self._due_at:
            return None
        left = (min(self._due_at.values()) - self._clock()).total_seconds()
        return min(max(left, 0.0), LOOK_SECONDS_MAX)

    async def _settle(self, mesh: str) -> None:
        db = await self.context.database()
        self._due_at.pop(mesh, None)
        if self.context.state.get(mesh_key(mesh)) is None:  # all that was in it has gone with it
            for memory in (self._problems, self._workload_problems, self._settled):
                memory.pop(mesh, None)
            return
        # Everything is asked before anything is written: a write lets the database change.
        named = workloads.wanted(db, mesh)
        left = workloads.step(named, workloads.stored(db, mesh), self.context.place.zone)
        await self._settle_services(db, mesh)
        self._note(self._workload_problems, mesh, (*named.problems, *await self._write(mesh, left)))

    async def _settle_services(self, db: Db, mesh: str) -> None:
        wanted, stored = services.wanted(db, mesh), services.stored(db, mesh)
        settled = self._settled.pop(mesh, None)
        if settled is not None and settled[0] is wanted and services.are_alike(settled[1], stored):
            self._settled[mesh] = wanted, stored
            return
        step = services.step(wanted, stored, self._clock(), self._grace)
        if step.due_at is not None:
            self._due_at[mesh] = step.due_at
        elif not step.changes:
            self._settled[mesh] = wanted, stored
        self._note(self._problems, mesh, (*step.problems, *await self._write(mesh, step.changes)))

    async def _write(self, mesh: str, changes: Iterable[services.Change]) -> list[Problem]:
        """Write changes, each one for itself; gives those that can never be written as they are."""
        left = iter(changes)
        refused: list[Problem] = []
        while batch := list(islice(left, BATCH)):
            answers = await asyncio.gather(*map(self._write_one, batch))
            refused += [answer for answer in answers if answer is not None]
            kinds = sorted({_key(change).kind for change in batch})
            _log.info("objects generated", mesh=mesh, kinds=kinds, changes=len(batch), refused=len(refused))
        return refused

    async def _write_one(self, change: services.Change) -> Problem | None:
        try:
            operations = self._operations(change)
            await self.context.store.write(Transaction(operations, SYSTEM, "generated from dataplanes"))
        except Invalid as error:
            return Problem(_key(change), "invalid", f"cannot be made: {error}")
        except (AlreadyExists, Conflict, NotFound):
            return None  # somebody else was first; that was a change too, so we look again
        return None

    def _operations(self, change: services.Change) -> tuple[Operation, ...]:
        match change:
            case services.Create(key=key, document=document):
                made = transactions.made_here(self.context, document)
                return Require(mesh_key(key.mesh), NotFound()), Put(made, 0)
            case services.Replace(resource=resource):
                return (Put(resource, resource.revision),)
            case services.Remove(resource=resource):
                return tuple(transactions.delete(self.context, resource, resource.revision))
            case unknown:
                assert_never(unknown)

    def _note(self, memory: dict[str, tuple[Problem, ...]], mesh: str, problems: tuple[Problem, ...]) -> None:
        for problem in sorted(set(problems) - set(memory.get(mesh, ()))):
            log = _log.info if problem.rule == services.HAND_MADE else _log.warning
            log("service is odd", about=str(problem.about), rule=problem.rule, problem=problem.message)
        memory[mesh] = problems


def _key(change: services.Change) -> Key:
    return change.key if isinstance(change, services.Create) else change.resource.key
