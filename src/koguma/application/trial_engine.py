"""Trial engine: answers what would be odd after a change that is only tried.

It is an engine of its own, so that a dry run touches nothing that serves proxies. It is loaded at the first
dry run, follows the store from one to the next, takes a change in, answers, and takes it back. It goes when
nobody has tried anything for a while.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from koguma.core import pipeline, world
from koguma.core.incremental import Db
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kinds
from koguma.model.resource import Key, Resource
from koguma.store.contract import Change, Op

T = TypeVar("T")

KEPT_SECONDS: Final = 120.0  # after the last dry run
_MEMOS_MAX: Final = 200_000

Objects = Mapping[Key, Resource]


class TrialEngine:
    """One trial at a time; others wait for it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._db: Db | None = None
        self._holds: Objects = {}
        self._end: asyncio.TimerHandle | None = None

    async def ask(
        self, live: Db, there: Sequence[Resource], tried: Sequence[Change], ask: Callable[[Db], T]
    ) -> T:
        """What `ask` finds when these objects have been changed so; kinds and place are those of `live`."""
        kinds, control_plane = Kinds(kind for _, kind in world.KINDS.items(live)), world.control_plane(live)
        objects = {each.key: each for each in there}
        async with self._lock:
            # Beside the loop, since it grows with the mesh; what it reads are values that nobody changes.
            answer = await asyncio.to_thread(self._asked, kinds, control_plane, objects, tried, ask)
            self._keep_for_a_while()
            return answer

    def _asked(
        self,
        kinds: Kinds,
        control_plane: ControlPlaneInfo,
        objects: Objects,
        tried: Sequence[Change],
        ask: Callable[[Db], T],
    ) -> T:
        db, self._db = self._db, None  # lost where something fails, so that the next one begins anew
        if db is None:
            db = pipeline.load(kinds, control_plane, objects.values())
        else:
            _move(db, self._holds, objects)
        after = dict(objects)
        for change in tried:
            if change.op is Op.DELETE:
                after.pop(change.resource.key, None)
            else:
                after[change.resource.key] = change.resource
        _move(db, objects, after)
        answer = ask(db)
        _move(db, after, objects)
        if db.n_memos > _MEMOS_MAX:
            db.collect()
        self._db, self._holds = db, objects
        return answer

    def _keep_for_a_while(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._forget)

    def _forget(self) -> None:
        if not self._lock.locked():
            self._db, self._holds = None, {}


def _move(db: Db, before: Objects, after: Objects) -> None:
    """Let a database hold other objects; those that are the same are not touched."""
    written = [each for key, each in after.items() if before.get(key) is not each]
    pipeline.take(db, written, [key for key in before if key not in after])
