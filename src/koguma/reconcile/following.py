"""Following the store: the loops under every writer that acts by itself.

`follow` keeps a watch of the store open. `MeshLoop` adds what writers share that work mesh by mesh: a mesh is
looked at when one of its objects changes, when somebody asks for it, and at a date; one that fails is retried
later, and does not hold up the others.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from structlog.typing import FilteringBoundLogger

from koguma.application.context import Context
from koguma.core.services import ReconcileProblem
from koguma.model.errors import Gone, Unavailable
from koguma.store.contract import Change
from koguma.store.store import Store
from koguma.store.unavailable import log_unavailable
from koguma.store.watch import Watch

PAUSE_SECONDS: Final = 0.05  # changes that come together are looked at together
# How many times longer a loop pauses than it worked where changes do not end, however large a mesh is.
PAUSE_SHARE: Final = 20
PAUSE_SECONDS_MAX: Final = 4.0
RETRY_SECONDS: Final = 5.0
WAIT_SECONDS_MAX: Final = 3600.0


class Pace:
    """How long changes are collected before they are looked at: a moment, but longer after long work.

    While thousands of proxies connect, each of them is a change; a change that comes alone does not wait.
    """

    def __init__(self) -> None:
        self._rests_until = 0.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Measure the work in the body."""
        began_at = time.monotonic()
        try:
            yield
        finally:
            now = time.monotonic()
            self._rests_until = now + min(PAUSE_SHARE * (now - began_at), PAUSE_SECONDS_MAX)

    async def pause(self) -> None:
        """Let changes collect."""
        await asyncio.sleep(max(PAUSE_SECONDS, self._rests_until - time.monotonic()))


async def follow(
    store: Store,
    kinds: frozenset[str] | None,
    session: Callable[[Watch], Awaitable[None]],
    log: FilteringBoundLogger,
    retry_seconds: float = RETRY_SECONDS,
) -> None:
    """Run `session` on a watch of some kinds; from the start again where the watch or the store is lost."""
    while True:
        changes = store.watch(kinds, store.state.revision, of_one_log=True)
        try:
            await session(changes)
        except (Gone, Unavailable) as error:
            log_unavailable(log, "everything is looked at again", error)
            await asyncio.sleep(retry_seconds)


def changed_meshes(changes: Iterable[Change]) -> set[str]:
    """The meshes of the objects that changed; a Mesh is its own."""
    return {change.resource.mesh or change.resource.name for change in changes}


class MeshLoop:
    """Calls `reconcile` for the meshes that there is something to do for.

    `about` names the work in logs; `reconcile` writes what one mesh lacks and returns other meshes that have
    to be looked at too.
    """

    def __init__(
        self,
        context: Context,
        clock: Callable[[], datetime],
        about: str,
        log: FilteringBoundLogger,
        reconcile: Callable[[str], Awaitable[Collection[str]]],
    ) -> None:
        self._context = context
        self._clock = clock
        self._about = about
        self._log = log
        self._reconcile = reconcile
        self._due_at: dict[str, datetime] = {}
        self._woken = asyncio.Event()
        self._problems: dict[str, tuple[ReconcileProblem, ...]] = {}

    def meshes(self) -> set[str]:
        """All meshes."""
        return {mesh.name for mesh in self._context.state.listed("Mesh")}

    def due_at(self, mesh: str) -> datetime | None:
        """When a mesh is looked at, even if nothing changes."""
        return self._due_at.get(mesh)

    def schedule(self, mesh: str, at: datetime) -> None:
        """Look at a mesh at a date, or earlier where it is due earlier."""
        self._due_at[mesh] = min(at, self._due_at.get(mesh, at))

    def wake(self) -> None:
        """Look now whether a mesh is due."""
        self._woken.set()

    def clear(self) -> None:
        """No mesh is due any more."""
        self._due_at.clear()

    async def next_changes(self, changes: Watch) -> list[Change]:
        """Wait for changes; none where a mesh is due first, or somebody wakes the loop."""
        reading = asyncio.ensure_future(changes.next_batch(self._seconds_left()))
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait((reading, woken), return_when=asyncio.FIRST_COMPLETED)
            self._woken.clear()
            return reading.result() if reading.done() else []
        finally:
            reading.cancel()
            woken.cancel()
            await asyncio.gather(reading, woken, return_exceptions=True)

    def due(self) -> set[str]:
        """The meshes whose date has come."""
        now = self._clock()
        return {mesh for mesh, at in self._due_at.items() if at <= now}

    async def settle(self, meshes: Iterable[str]) -> None:
        """Write what these meshes lack, and those that they concern; what cannot be done now is retried."""
        pending, done = set(meshes), set[str]()
        while left := pending - done:
            mesh = min(left)
            done.add(mesh)
            self._due_at.pop(mesh, None)
            try:
                pending |= set(await self._reconcile(mesh))
            except Unavailable as error:
                log_unavailable(self._log, f"{self._about} waits for the store", error, mesh=mesh)
            except Exception as error:  # noqa: BLE001 - one mesh must not wait for another
                self._log.exception(f"{self._about} failed for a mesh", mesh=mesh)
                self._context.background.failed(self._about, error)
            else:
                continue
            self._due_at[mesh] = self._clock() + timedelta(seconds=RETRY_SECONDS)

    def _seconds_left(self) -> float | None:
        if not self._due_at:
            return None
        left = (min(self._due_at.values()) - self._clock()).total_seconds()
        return min(max(left, 0.0), WAIT_SECONDS_MAX)

    @property
    def problems(self) -> list[ReconcileProblem]:
        """What was odd when each mesh was last looked at."""
        return [problem for mesh in sorted(self._problems) for problem in self._problems[mesh]]

    def note(self, mesh: str, problems: Sequence[ReconcileProblem]) -> list[ReconcileProblem]:
        """Remember what is odd about a mesh; returns what was not known yet."""
        new = sorted(set(problems) - set(self._problems.get(mesh, ())))
        self._problems[mesh] = tuple(problems)
        return new

    def forget(self, mesh: str) -> None:
        """A mesh is gone."""
        self._problems.pop(mesh, None)
