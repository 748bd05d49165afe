"""Live engine: keeps the engine's inputs up to date with the store.

Before each question the engine gets all changes of the store, in revision order and in batches. So it answers
for the revision that the store had when it was asked, never for an older one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from koguma.core import pipeline
from koguma.core.incremental import Db
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import Gone
from koguma.model.kind import Kinds
from koguma.model.resource import Key, Resource
from koguma.store.contract import Change, Op
from koguma.store.store import Store

MEMOS_MAX: Final = 500_000
# Each may leave large answers behind, such as all routes of a gateway as they were. What nobody has asked for
# during so many changes is dropped.
CHANGES_MAX: Final = 100
CHANGES_SHARE_MAX: Final = 0.02  # of the number of answers, since to look through them costs as much

R = TypeVar("R")


class ObjectChanges(NamedTuple):
    """What an engine takes of some changes of a store: objects that were written, and keys of those gone."""

    written: tuple[Resource, ...]
    gone: tuple[Key, ...]

    @classmethod
    def of(cls, changes: Sequence[Change]) -> "ObjectChanges":
        """The last change of each object; one that cannot be read is gone."""
        last = {change.resource.key: change for change in changes}
        is_gone = {key: change.op is Op.DELETE or bool(change.error) for key, change in last.items()}
        written = tuple(change.resource for key, change in last.items() if not is_gone[key])
        return cls(written, tuple(key for key in last if is_gone[key]))

    def reverted(self, stored: Callable[[Key], Resource | None]) -> "ObjectChanges":
        """The changes that bring back what is stored."""
        keys = (*(resource.key for resource in self.written), *self.gone)
        before = {key: stored(key) for key in keys}
        written = tuple(resource for resource in before.values() if resource is not None)
        return ObjectChanges(written, tuple(key for key, resource in before.items() if resource is None))


class LiveEngine:
    """The engine of a control plane, always up to date with the store."""

    def __init__(self, store: Store, kinds: Kinds, control_plane: ControlPlaneInfo) -> None:
        self._store = store
        self._kinds = kinds
        self._control_plane = control_plane
        self._lock = asyncio.Lock()
        # Always the same thread: malloc keeps an arena per thread, and each one holds on to free memory.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._load()

    async def database(self) -> Db:
        """The engine's database, with every change of the store; valid until the caller's next await."""
        async with self._lock:
            await self._catch_up()
        return self._db

    async def beside(self, work: Callable[[Db], R]) -> tuple[R, int]:
        """Run `work` on the database in the engine's thread; gives its result and the revision that it saw.

        Other callers wait for the lock meanwhile, so `work` should take milliseconds, not seconds.
        """
        async with self._lock:
            await self._catch_up()
            revision = self._changes.position
            running = asyncio.get_running_loop().run_in_executor(self._thread, work, self._db)
            try:
                return await asyncio.shield(running), revision
            except asyncio.CancelledError:
                await _ended(running)
                raise

    async def renew(self) -> None:
        """Load the engine again, without any memoised answers."""
        async with self._lock:
            self._load()

    async def _catch_up(self) -> None:
        # After a failover that lost something, the log may have fewer revisions than were read.
        while self._changes.is_replaced or self._changes.position < self._store.state.revision:
            try:
                self._take(await self._changes.next_batch(0))
            except Gone:
                self._load()

    def _load(self) -> None:
        state = self._store.state
        self._changes = self._store.watch(None, state.revision, of_one_log=True)
        self._n_taken = 0  # changes since answers were dropped
        self._db = pipeline.load(self._kinds, self._control_plane, state.all())

    def _take(self, changes: Sequence[Change]) -> None:
        taken = ObjectChanges.of(changes)
        pipeline.take(self._db, *taken)
        self._n_taken += len(taken.written) + len(taken.gone)
        n_memos = self._db.n_memos
        if n_memos > MEMOS_MAX:
            self._db.collect()  # also what is in use is computed again on demand
        elif self._n_taken > max(CHANGES_MAX, CHANGES_SHARE_MAX * n_memos):
            self._db.collect_unused()
        else:
            return
        self._n_taken = 0


async def _ended(running: asyncio.Future[R]) -> None:
    """Wait for the thread, which cannot be cancelled: until then nobody else may use the database."""
    while not running.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({running})
