"""Push rounds: the loop that keeps every connected proxy's offer as new as the store.

A round compiles for the proxies that joined and for those that a change touches, and offers each what it is
to have. A proxy whose configuration a change does not touch is not looked at.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Final

import structlog

from koguma.application.context import Context
from koguma.application.live_engine import LiveEngine
from koguma.core.build.snapshot import SharedSpec
from koguma.envoy.snapshot import Failure
from koguma.fleet.announcements import Announcements
from koguma.fleet.certificates import Certificates
from koguma.fleet.compiler import (
    CompiledProxy,
    CompileError,
    CompileRequest,
    CompileResult,
    ProxyInputs,
    SnapshotCompiler,
)
from koguma.fleet.connected_proxy import ConnectedProxy
from koguma.fleet.offers import Offers
from koguma.fleet.roster import Roster
from koguma.model.errors import Unavailable
from koguma.model.resource import Key
from koguma.store.unavailable import log_unavailable

JOINS_PER_ROUND: Final = 32  # so that requests of people wait for milliseconds only
PREPARED_SECONDS_MAX: Final = 3.0
RETRY_SECONDS: Final = 1.0

_log = structlog.get_logger("koguma.fleet")


class PushRounds:
    """Runs rounds: who joins, leaves or rejected something is queued here until the next one."""

    def __init__(
        self,
        context: Context,
        engine: LiveEngine,
        compiler: SnapshotCompiler,
        roster: Roster,
        offers: Offers,
        certificates: Certificates,
        clock: Callable[[], datetime],
    ) -> None:
        self.revision = 0  # of the store, that every proxy which is not behind has
        self.n_failed = 0
        self._context = context
        self._engine = engine
        self._compiler = compiler
        self._roster = roster
        self._offers = offers
        self._certificates = certificates
        self._clock = clock
        self._joining: dict[Key, ConnectedProxy] = {}
        self._leaving: set[Key] = set()
        self._rejecting: set[Key] = set()  # until the policies that may have caused it are known
        self._wake = asyncio.Event()
        self._announcements = Announcements()
        self._look_again: asyncio.TimerHandle | None = None  # at changes that wait
        self._renews_engine = False  # after a round that failed

    def join(self, connection: ConnectedProxy) -> None:
        """Compile for a proxy that has connected."""
        self._joining[connection.key] = connection
        self._leaving.discard(connection.key)
        self._announcements.join(connection.key, asyncio.get_running_loop().time())
        self._wake.set()

    def synced(self, key: Key) -> None:
        """A proxy has acknowledged all that it was offered."""
        if self._announcements.settle(key, asyncio.get_running_loop().time()):
            self._wake.set()  # what waited for the crowd to end goes out

    def leave(self, key: Key) -> None:
        """A proxy has disconnected."""
        self._joining.pop(key, None)
        self._leaving.add(key)
        self._announcements.leave(key)
        self._wake.set()

    def rejected(self, key: Key) -> None:
        """A proxy rejected something: offer what it acknowledged last, and find the policy that caused it."""
        self._rejecting.add(key)
        self._wake.set()

    def wake(self) -> None:
        """Run a round soon."""
        self._wake.set()

    async def prepare(self) -> None:
        """Compile what known proxies share before they are let in.

        After a restart they connect all at once. It ends after a while: the rest is compiled as they come.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + PREPARED_SECONDS_MAX
        known = iter([dataplane.key for dataplane in self._context.state.listed("Dataplane")])
        specs: set[SharedSpec] = set()
        while (batch := list(islice(known, JOINS_PER_ROUND))) and loop.time() < end:
            await self._engine.beside(partial(self._compiler.prepare, proxies=batch, specs=specs))

    async def run(self) -> None:
        """Run rounds until cancelled."""
        listener = self._context.background.forever("news for proxies", self._listen)
        try:
            while True:
                await self._wait()
                try:
                    if self._renews_engine:
                        await self._engine.renew()
                        self._renews_engine = False
                    await self._round()
                except Unavailable as error:
                    log_unavailable(_log, "proxies wait for the store", error)
                except Exception as error:  # noqa: BLE001 - a mistake of ours in one round must not leave all stale for ever
                    _log.exception("proxies could not be served; all are looked at again")
                    self.n_failed += 1
                    self._context.background.failed("push round", error)
                    self._renews_engine = True
                else:
                    continue
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()
        finally:
            listener.cancel()

    async def _listen(self) -> None:
        """Wake the loop on every change of the store; the engine reads what it was."""
        store = self._context.store
        while True:
            changes = store.watch(None, store.state.revision, of_one_log=True)
            self._announcements.hurry()
            self._wake.set()
            try:
                while True:
                    batch = await changes.next_batch(None)
                    self._announcements.note(batch, store.replaced, asyncio.get_running_loop().time())
                    self._wake.set()
            except Exception as error:  # noqa: BLE001 - whatever it is, proxies must not go stale for it
                _log.warning("the watch of the store was interrupted", reason=str(error))
                await asyncio.sleep(0.2)

    async def _wait(self) -> None:
        due = self._certificates.due()
        seconds = None if due is None else max((due - self._clock()).total_seconds(), 0.0)
        with contextlib.suppress(TimeoutError):  # then certificates are due
            async with asyncio.timeout(seconds):  # wait_for would not always end when it is cancelled
                await self._wake.wait()
        if len(self._joining) < JOINS_PER_ROUND:
            await asyncio.sleep(self._announcements.gathering_seconds())
        self._wake.clear()

    async def _round(self) -> None:
        joining = [self._joining.pop(key) for key in list(self._joining)[:JOINS_PER_ROUND]]
        if self._joining:
            self._wake.set()
        leaving, self._leaving = self._leaving, set()
        rejecting, self._rejecting = self._rejecting, set()
        with_changes = self._may_announce()
        request = CompileRequest(
            {each.key: ProxyInputs(each.node, each.identity_tags) for each in joining},
            frozenset(leaving),
            with_changes,
        )
        try:
            results, revision = await self._engine.beside(partial(self._compiler.compile, request=request))
            await self._blame(rejecting)
        except Exception:  # they join and leave in another round
            self._announcements.hurry()
            unserved = {each.key: each for each in joining if self._roster.is_current(each)}
            self._joining = {**unserved, **self._joining}
            self._leaving |= {key for key in leaving if key not in self._roster}
            self._rejecting |= rejecting
            raise
        if with_changes:
            now = asyncio.get_running_loop().time()
            self._announcements.finish(now, len(results) - len(joining), len(self._roster))
        self._note(results, revision)
        # What is pushed again without a look at changes is as old as the last look at them.
        looked_at = revision if with_changes else self.revision
        await self._offers.push(looked_at, {*results, *rejecting, *self._certificates.changed()})
        if with_changes:  # not before: a proxy that is not behind counts as having this revision
            self.revision = revision

    def _may_announce(self) -> bool:
        """Whether changes go out with this round; else there is another one in time."""
        loop, announcements = asyncio.get_running_loop(), self._announcements
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        due_at = announcements.due_at(loop.time(), len(self._roster))
        if due_at > loop.time():
            self._look_again = loop.call_at(due_at, self._wake.set)
            return False
        announcements.begin()
        return True

    def _note(self, results: CompileResult, revision: int) -> None:
        """Hand results to the connections; one that left meanwhile has none."""
        for key, result in results.items():
            connection = self._roster.get(key)
            match result:
                case CompileError(error=error):
                    self._report(key, error)
                    if connection is not None:
                        text = f"{type(error).__name__}: {error}"
                        connection.build_failure = Failure("proxy", key.name, text, str(key))
                case CompiledProxy() if connection is not None:
                    connection.snapshot, connection.spiffe_ids = result.snapshot, result.spiffe_ids
                    connection.snapshot_revision = revision
                    connection.identities = result.identities
                    connection.build_failure = None if result.snapshot is not None else _unread(connection)

    def _report(self, key: Key, error: Exception) -> None:
        _log.error(
            "the configuration of a proxy cannot be built; it gets nothing new",
            proxy=str(key),
            exc_info=error,
        )
        self._context.background.failed("configuration of a proxy", error)

    async def _blame(self, rejecting: Iterable[Key]) -> None:
        """Name the policies that had changed what proxies rejected."""
        if rejecting:
            keys = sorted(rejecting)
            suspects, _ = await self._engine.beside(partial(self._compiler.suspects, proxies=keys))
            for key, policies in suspects.items():
                self._offers.quarantine.blame(key, policies)


def _unread(connection: ConnectedProxy) -> Failure:
    """Why a proxy gets nothing whose Dataplane (or ZoneEgress) or Mesh the engine does not have."""
    mesh = "its Mesh" if connection.key.mesh else "some Mesh"
    text = f"its {connection.key.kind} or {mesh} is gone, or cannot be read as it is stored; write it again"
    return Failure("proxy", connection.proxy.core_name, text, str(connection.key))
