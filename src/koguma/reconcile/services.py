"""Service generator: the MeshServices and Workloads that follow from the Dataplanes."""

from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from typing import Final, assert_never

import structlog

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap, transactions
from koguma.application.context import Context, mesh_key
from koguma.core import services, workloads
from koguma.core.incremental import Db
from koguma.core.services import ReconcileProblem
from koguma.model.errors import Invalid, NotFound
from koguma.model.resource import Key, Resource
from koguma.reconcile.following import MeshLoop, Pace, changed_meshes, follow
from koguma.store.contract import Operation, Put, Require, Transaction
from koguma.store.watch import Watch

_WATCHED: Final = frozenset({"Dataplane", "Mesh", "MeshService", workloads.KIND})
_log = structlog.get_logger("koguma.services")


class ServiceGenerator:
    """Keeps the MeshServices and Workloads that are made from Dataplanes as the Dataplanes are.

    Every control plane of a zone does this; the first one to write has done it for all.
    """

    def __init__(
        self, context: Context, clock: Callable[[], datetime], grace: timedelta = services.GRACE
    ) -> None:
        self.context = context
        self._clock = clock
        self._grace = grace
        self._loop = MeshLoop(context, clock, "service generator", _log, self._reconcile)
        self._service_problems: dict[str, tuple[ReconcileProblem, ...]] = {}
        self._pace = Pace()
        # By mesh: what was required and stored when there was nothing to do, now or later.
        self._settled: dict[str, tuple[services.DesiredServices, tuple[Resource, ...]]] = {}

    @property
    def problems(self) -> list[ReconcileProblem]:
        """What was odd when each mesh was last looked at."""
        return self._loop.problems

    async def run(self) -> None:
        """Look at every mesh, and then at those where something changes, until cancelled."""
        await follow(self.context.store, _WATCHED, self._follow, _log)

    async def _follow(self, watch: Watch) -> None:
        meshes = self._loop.meshes()
        while True:
            with self._pace.working():
                await self.settle(meshes)
            changes = await self._loop.next_changes(watch)
            if changes:
                await self._pace.pause()
                changes += await watch.next_batch(0)
            meshes = self._loop.due() | changed_meshes(changes)

    async def settle(self, meshes: Iterable[str]) -> None:
        """Write what these meshes lack."""
        await self._loop.settle(meshes)

    async def _reconcile(self, mesh: str) -> Collection[str]:
        db = await self.context.database()
        if self.context.state.get(mesh_key(mesh)) is None:  # all that was in it has gone with it
            self._service_problems.pop(mesh, None)
            self._settled.pop(mesh, None)
            self._loop.forget(mesh)
            return ()
        # Everything is asked before anything is written: a write lets the database change.
        required = workloads.desired(db, mesh)
        changes = workloads.plan(required, workloads.stored(db, mesh), self.context.control_plane.zone)
        await self._reconcile_services(db, mesh)
        workload_problems = (*required.problems, *await self._write(mesh, changes))
        self._note(mesh, (*self._service_problems.get(mesh, ()), *workload_problems))
        return ()

    async def _reconcile_services(self, db: Db, mesh: str) -> None:
        required, stored = services.desired(db, mesh), services.stored(db, mesh)
        settled = self._settled.pop(mesh, None)
        if settled is not None and settled[0] is required and services.are_alike(settled[1], stored):
            self._settled[mesh] = required, stored
            return
        step = services.plan(required, stored, self._clock(), self._grace)
        if step.due_at is not None:
            self._loop.schedule(mesh, step.due_at)
        elif not step.changes:
            self._settled[mesh] = required, stored
        self._service_problems[mesh] = (*step.problems, *await self._write(mesh, step.changes))

    async def _write(self, mesh: str, changes: Iterable[services.ServiceChange]) -> list[ReconcileProblem]:
        """Write changes; returns those that can never be written as they are."""
        refused: list[ReconcileProblem] = []
        async for batch, problems in compare_and_swap.in_batches(self._write_one, changes):
            refused += [problem for problem in problems if problem is not None]
            kinds = sorted({_key(change).kind for change in batch})
            _log.info("objects generated", mesh=mesh, kinds=kinds, changes=len(batch), refused=len(refused))
        return refused

    async def _write_one(self, change: services.ServiceChange) -> ReconcileProblem | None:
        try:
            transaction = Transaction(self._operations(change), SYSTEM, "generated from dataplanes")
            await compare_and_swap.written_if_first(self.context.store, transaction)
        except Invalid as error:
            return ReconcileProblem(_key(change), "invalid", f"cannot be made: {error}")
        return None

    def _operations(self, change: services.ServiceChange) -> tuple[Operation, ...]:
        match change:
            case services.CreateObject(key=key, document=document):
                made = transactions.control_plane_object(self.context, document)
                return Require(mesh_key(key.mesh), NotFound()), Put(made, 0)
            case services.ReplaceObject(resource=resource):
                return (Put(resource, resource.revision),)
            case services.DeleteObject(resource=resource):
                return tuple(transactions.delete(self.context, resource, resource.revision))
            case unknown:
                assert_never(unknown)

    def _note(self, mesh: str, problems: tuple[ReconcileProblem, ...]) -> None:
        for problem in self._loop.note(mesh, problems):
            log = _log.info if problem.rule == services.HAND_MADE else _log.warning
            log("service is odd", about=str(problem.about), rule=problem.rule, problem=problem.message)


def _key(change: services.ServiceChange) -> Key:
    return change.key if isinstance(change, services.CreateObject) else change.resource.key
