"""Trial engine: computes what problems a dry run would cause.

It is a second engine, so that a dry run touches nothing that serves proxies. It is loaded at the first dry
run and brought up to date at each one: the changes are applied, the question is answered, and the changes are
reverted. After a while without dry runs it is unloaded.
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

IDLE_SECONDS_MAX: Final = 120.0  # after the last dry run
_MEMOS_MAX: Final = 200_000

Objects = Mapping[Key, Resource]


class TrialEngine:
    """Answers one dry run at a time; others wait."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._db: Db | None = None
        self._loaded: Objects = {}
        self._idle_timer: asyncio.TimerHandle | None = None

    async def ask(
        self, live: Db, stored: Sequence[Resource], changes: Sequence[Change], ask: Callable[[Db], T]
    ) -> T:
        """The answer of `ask` with these changes applied; kinds and control plane are those of `live`."""
        kinds, control_plane = Kinds(kind for _, kind in world.KINDS.items(live)), world.control_plane(live)
        objects = {resource.key: resource for resource in stored}
        async with self._lock:
            # In a thread, since its time grows with the mesh; all that it reads is immutable.
            answer = await asyncio.to_thread(
                self._answer_in_thread, kinds, control_plane, objects, changes, ask
            )
            self._restart_idle_timer()
            return answer

    def _answer_in_thread(
        self,
        kinds: Kinds,
        control_plane: ControlPlaneInfo,
        objects: Objects,
        changes: Sequence[Change],
        ask: Callable[[Db], T],
    ) -> T:
        db, self._db = self._db, None  # dropped on an exception, so that the next call loads a new one
        if db is None:
            db = pipeline.load(kinds, control_plane, objects.values())
        else:
            _replace_objects(db, self._loaded, objects)
        after = dict(objects)
        for change in changes:
            if change.op is Op.DELETE:
                after.pop(change.resource.key, None)
            else:
                after[change.resource.key] = change.resource
        _replace_objects(db, objects, after)
        answer = ask(db)
        _replace_objects(db, after, objects)
        if db.n_memos > _MEMOS_MAX:
            db.collect()
        self._db, self._loaded = db, objects
        return answer

    def _restart_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_SECONDS_MAX, self._unload)

    def _unload(self) -> None:
        if not self._lock.locked():
            self._db, self._loaded = None, {}


def _replace_objects(db: Db, before: Objects, after: Objects) -> None:
    """Replace the objects of an engine; those that are identical are not touched."""
    written = [resource for key, resource in after.items() if before.get(key) is not resource]
    pipeline.take(db, written, [key for key in before if key not in after])
