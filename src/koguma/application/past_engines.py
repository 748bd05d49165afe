"""Past engines: what was stored at a past revision, and an engine of its own for questions about it.

Each is loaded beside the live one, so that questions about the past touch nothing that serves proxies. A few
stay loaded for the next question, and are dropped after a while without one. Work on them runs in a thread,
one at a time: it compiles from scratch what it is asked.

What proxies said when they connected is stored nowhere, so that the answers are for the proxies of today.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from koguma.core import pipeline, world
from koguma.core.build import encoding, network
from koguma.core.build.network import NodeMetadata
from koguma.core.incremental import Db
from koguma.kube.kinds import NATIVE_KINDS
from koguma.model.internal_kinds import INTERNAL_KINDS
from koguma.model.kind import Kinds
from koguma.model.resource import Key
from koguma.store.state import State
from koguma.store.store import Store

T = TypeVar("T")

LOADED_MAX: Final = 2
IDLE_SECONDS_MAX: Final = 120.0  # after the last question


def short_kinds(kinds: Kinds) -> frozenset[str]:
    """The kinds of which superseded objects are kept for the watch window only, as Secrets."""
    named = (kind.stored_as for kind in (*kinds, *NATIVE_KINDS) if kind.short_history)
    return frozenset(named) | INTERNAL_KINDS


class PastEngine:
    """The objects as of one revision, and an engine that is loaded with the first question."""

    def __init__(self, state: State, live: Db, nodes_elsewhere: Mapping[Key, NodeMetadata]) -> None:
        self.state = state
        self._kinds = Kinds(kind for _, kind in world.KINDS.items(live))
        self._control_plane = world.control_plane(live)
        self._encoders = tuple(encoding.ENCODER.items(live))
        self._nodes = {**nodes_elsewhere, **dict(network.NODE_METADATA.items(live))}
        self._db: Db | None = None
        self._lock = asyncio.Lock()

    async def ask(self, work: Callable[[Db], T]) -> T:
        """The result of some work on the engine, in a thread."""
        async with self._lock:
            running = asyncio.get_running_loop().run_in_executor(None, self._answered, work)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.wait({running})  # until then nobody else may use the engine
                raise

    def _answered(self, work: Callable[[Db], T]) -> T:
        if self._db is None:
            self._db = self._loaded()
        return work(self._db)

    def _loaded(self) -> Db:
        db = pipeline.load(self._kinds, self._control_plane, self.state.all())
        with db.change() as change:
            for name, encoder in self._encoders:
                change.set(encoding.ENCODER, name, encoder)
            for key, node in self._nodes.items():
                change.set(network.NODE_METADATA, key, node)
        return db


class PastEngines:
    """The past revisions that were asked about lately."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()  # one is read at a time
        self._loaded: dict[int, PastEngine] = {}  # the last one that was asked for stands last
        self._idle_timer: asyncio.TimerHandle | None = None
        self.nodes_elsewhere: Callable[[], Mapping[Key, NodeMetadata]] = dict  # at other control planes
        self.counting = asyncio.Lock()  # held by who compiles many proxies as of the past

    async def at(self, store: Store, live: Db, revision: int) -> PastEngine:
        """What was stored at a revision; Gone where that is no longer kept, NotFound where it is to come."""
        async with self._lock:
            await store.check_kept(revision)
            past = self._loaded.pop(revision, None)
            if past is None:
                kinds = Kinds(kind for _, kind in world.KINDS.items(live))
                state = await store.state_at(revision, short_kinds(kinds))
                past = PastEngine(state, live, self.nodes_elsewhere())
            self._loaded[revision] = past
            while len(self._loaded) > LOADED_MAX:
                del self._loaded[next(iter(self._loaded))]
            self._restart_idle_timer()
            return past

    def _restart_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_SECONDS_MAX, self._loaded.clear)
