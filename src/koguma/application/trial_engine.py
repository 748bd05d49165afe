"""Trial engine: computes what problems a dry run would cause, and what a plan says.

It is a second engine, so that a dry run touches nothing that serves proxies. It is loaded at the first dry
run and then follows the store: at each one it gets what has changed since, the dry run's changes are applied,
the question is answered, and the changes are reverted. After a while without dry runs it is unloaded.

The first plan compiles what all proxies get; later ones only what differs. After each plan that is brought
back to what is stored, beside the answer and before the next dry run.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar, cast

import msgspec

from koguma.application.live_engine import ObjectChanges
from koguma.core import pipeline, vips, world
from koguma.core.build import encoding, network
from koguma.core.build.network import NodeMetadata
from koguma.core.incremental import Db
from koguma.core.plan.planner import Planner
from koguma.core.vips import Ranges
from koguma.envoy.encode import Encoder
from koguma.model.errors import Gone
from koguma.model.kind import Kinds
from koguma.model.resource import Key, Resource
from koguma.store.contract import Change
from koguma.store.store import Store
from koguma.store.watch import Watch

T = TypeVar("T")

IDLE_SECONDS_MAX: Final = 120.0  # after the last dry run
_MEMOS_MAX: Final = 200_000


class _Follower(msgspec.Struct):
    """An engine, up to where it has followed the store, and what it keeps for plans once one was asked."""

    db: Db
    watch: Watch
    planner: Planner | None = None


class _LiveInputs(NamedTuple):
    """Inputs of the live engine that do not come from the store: the schema of Envoy, and node metadata."""

    encoder: Encoder | None
    nodes: dict[Key, NodeMetadata]

    @classmethod
    def of(cls, live: Db, nodes_elsewhere: Mapping[Key, NodeMetadata]) -> "_LiveInputs":
        """Those of a database, and the metadata of proxies that are connected to other control planes."""
        nodes = {**nodes_elsewhere, **dict(network.NODE_METADATA.items(live))}
        return cls(encoding.ENCODER.get(live, "envoy"), nodes)

    def copy_to(self, db: Db) -> None:
        """Set them in another database."""
        with db.change() as change:
            if self.encoder is not None:
                change.set(encoding.ENCODER, "envoy", self.encoder)
            for key, node in self.nodes.items():
                if network.NODE_METADATA.get(db, key) != node:
                    change.set(network.NODE_METADATA, key, node)


class TrialEngine:
    """Answers one dry run at a time; others wait."""

    def __init__(self, ranges: Ranges = vips.DEFAULT) -> None:
        self._lock = asyncio.Lock()
        self._ranges = ranges
        self._follower: _Follower | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self.nodes_elsewhere: Callable[[], Mapping[Key, NodeMetadata]] = dict  # at other control planes

    async def ask(
        self,
        live: Db,
        store: Store,
        changes: Sequence[Change],
        ask: Callable[[Db], T],
        *,
        compiles: bool = False,
    ) -> T:
        """The answer of `ask` with these changes applied; kinds and control plane are those of `live`.

        `compiles` where it asks what Envoys get, for which more is needed than what is stored.
        """
        load, tried = _loader(live), ObjectChanges.of(changes)
        inputs = _LiveInputs.of(live, self.nodes_elsewhere()) if compiles else None
        async with self._lock:
            follow = await self._up_to_date(store, load)
            reverted = tried.reverted(store.state.get)

            def answered_in_thread() -> T:
                follower = follow()
                if inputs is not None:
                    inputs.copy_to(follower.db)
                pipeline.take(follower.db, *tried)
                answer = ask(follower.db)
                pipeline.take(follower.db, *reverted)
                self._keep(follower)
                return answer

            # In a thread, since it may have to load the engine; all that it reads is immutable.
            answer = await asyncio.to_thread(answered_in_thread)
            self._restart_idle_timer()
            return answer

    async def plan(self, live: Db, store: Store, ask: Callable[[Planner], T]) -> T:
        """The answer of `ask`, whose planner knows what is stored; others wait until that is so again."""
        load, inputs = _loader(live), _LiveInputs.of(live, self.nodes_elsewhere())
        loop, answered = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        await self._lock.acquire()
        try:
            follow = await self._up_to_date(store, load)
        except BaseException:
            self._lock.release()
            raise

        def answer_in_thread() -> None:
            follower = follow()
            inputs.copy_to(follower.db)
            if follower.planner is None:
                follower.planner = Planner(follower.db, self._ranges)
            else:
                follower.planner.refresh()
            answer = ask(follower.planner)
            loop.call_soon_threadsafe(_resolve, answered, answer)
            follower.planner.refresh()
            self._keep(follower)

        running = loop.run_in_executor(None, answer_in_thread)
        running.add_done_callback(lambda done: self._end_plan(done, answered))
        return cast("T", await answered)

    def _end_plan(self, running: "asyncio.Future[None]", answered: "asyncio.Future[T]") -> None:
        self._lock.release()
        error = None if running.cancelled() else running.exception()
        if not answered.done():
            answered.set_exception(error or asyncio.CancelledError())
        self._restart_idle_timer()

    async def _up_to_date(
        self, store: Store, load: Callable[[Iterable[Resource]], Db]
    ) -> Callable[[], _Follower]:
        """What brings the engine up to date with the store, to be called in a thread."""
        # Taken away until all is well: after an error or a cancellation a new one is loaded.
        follower, self._follower = self._follower, None
        missed: Sequence[ObjectChanges] = ()
        if follower is not None:
            try:
                missed = await _missed(follower.watch, store)
            except Gone:
                follower = None
        if follower is None:
            stored, watch = list(store.state.all()), store.watch(None, store.state.revision, of_one_log=True)
            return lambda: _Follower(load(stored), watch)

        def followed() -> _Follower:
            for batch in missed:
                pipeline.take(follower.db, *batch)
            return follower

        return followed

    def _keep(self, follower: _Follower) -> None:
        if follower.db.n_memos > _MEMOS_MAX:
            follower.db.collect()
        self._follower = follower

    def _restart_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_SECONDS_MAX, self._unload)

    def _unload(self) -> None:
        if not self._lock.locked():
            self._follower = None


def _loader(live: Db) -> Callable[[Iterable[Resource]], Db]:
    """Loads an engine with the kinds and control plane of another."""
    kinds, control_plane = Kinds(kind for _, kind in world.KINDS.items(live)), world.control_plane(live)
    return lambda stored: pipeline.load(kinds, control_plane, stored)


def _resolve(answered: "asyncio.Future[T]", answer: T) -> None:
    if not answered.done():  # nobody may wait any more
        answered.set_result(answer)


async def _missed(watch: Watch, store: Store) -> list[ObjectChanges]:
    """The changes of a store that an engine has not seen; raises Gone where they are no longer kept."""
    missed = []
    while watch.is_replaced or watch.position < store.state.revision:
        missed.append(ObjectChanges.of(await watch.next_batch(0)))
    return missed
