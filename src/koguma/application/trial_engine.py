"""Trial engine: computes what problems a dry run would cause.

It is a second engine, so that a dry run touches nothing that serves proxies. It is loaded at the first dry
run and then follows the store: at each one it gets what has changed since, the dry run's changes are applied,
the question is answered, and the changes are reverted. After a while without dry runs it is unloaded.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from koguma.application.live_engine import ObjectChanges
from koguma.core import pipeline, world
from koguma.core.incremental import Db
from koguma.model.errors import Gone
from koguma.model.kind import Kinds
from koguma.store.contract import Change
from koguma.store.store import Store
from koguma.store.watch import Watch

T = TypeVar("T")

IDLE_SECONDS_MAX: Final = 120.0  # after the last dry run
_MEMOS_MAX: Final = 200_000


class _Follower(NamedTuple):
    """An engine, and up to where it has followed the store."""

    db: Db
    watch: Watch


class TrialEngine:
    """Answers one dry run at a time; others wait."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._follower: _Follower | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    async def ask(self, live: Db, store: Store, changes: Sequence[Change], ask: Callable[[Db], T]) -> T:
        """The answer of `ask` with these changes applied; kinds and control plane are those of `live`."""
        kinds, control_plane = Kinds(kind for _, kind in world.KINDS.items(live)), world.control_plane(live)
        tried = ObjectChanges.of(changes)
        async with self._lock:
            # Taken away until all is well: after an error or a cancellation a new one is loaded.
            follower, self._follower = self._follower, None
            missed: Sequence[ObjectChanges] = ()
            if follower is not None:
                try:
                    missed = await _missed(follower.watch, store)
                except Gone:
                    follower = None
            stored = list(store.state.all()) if follower is None else ()
            watch = store.watch(None, store.state.revision) if follower is None else follower.watch
            reverted = tried.reverted(store.state.get)

            def answered_in_thread() -> T:
                db = follower.db if follower is not None else pipeline.load(kinds, control_plane, stored)
                for batch in (*missed, tried):
                    pipeline.take(db, *batch)
                answer = ask(db)
                pipeline.take(db, *reverted)
                if db.n_memos > _MEMOS_MAX:
                    db.collect()
                self._follower = _Follower(db, watch)
                return answer

            # In a thread, since it may have to load the engine; all that it reads is immutable.
            answer = await asyncio.to_thread(answered_in_thread)
            self._restart_idle_timer()
            return answer

    def _restart_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_SECONDS_MAX, self._unload)

    def _unload(self) -> None:
        if not self._lock.locked():
            self._follower = None


async def _missed(watch: Watch, store: Store) -> list[ObjectChanges]:
    """The changes of a store that an engine has not seen; raises Gone where they are no longer kept."""
    missed = []
    while watch.position < store.state.revision:
        missed.append(ObjectChanges.of(await watch.next_batch(0)))
    return missed
