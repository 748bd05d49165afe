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
# After a change for many proxies the next one waits until this one had time to reach them: a change that
# comes alone does not wait, and changes that come together are compiled together. While proxies join, each of
# them changes something for all others, so that is done in larger steps.
PAUSE_SECONDS_PER_PROXY: Final = 0.00025
PAUSE_SECONDS_PER_PROXY_JOINING: Final = 0.002
PAUSE_SECONDS_MAX: Final = 5.0
JOINING_SECONDS: Final = 1.0  # that proxies count as joining after one did

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
        self._pause_until = 0.0
        self._joined_at = 0.0
        self._renews_engine = False  # after a round that failed

    def join(self, connection: ConnectedProxy) -> None:
        """Compile for a proxy that has connected."""
        self._joining[connection.key] = connection
        self._leaving.discard(connection.key)
        self._wake.set()

    def leave(self, key: Key) -> None:
        """A proxy has disconnected."""
        self._joining.pop(key, None)
        self._leaving.add(key)
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
            changes = store.watch(None, store.state.revision)
            self._wake.set()
            try:
                while True:
                    await changes.next_batch(None)
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
        self._wake.clear()

    async def _round(self) -> None:
        joining = [self._joining.pop(key) for key in list(self._joining)[:JOINS_PER_ROUND]]
        if self._joining:
            self._wake.set()
        leaving, self._leaving = self._leaving, set()
        rejecting, self._rejecting = self._rejecting, set()
        with_changes = self._is_pause_over()
        request = CompileRequest(
            {each.key: ProxyInputs(each.node, each.identity_tags) for each in joining},
            frozenset(leaving),
            with_changes,
        )
        try:
            results, revision = await self._engine.beside(partial(self._compiler.compile, request=request))
            await self._blame(rejecting)
        except Exception:  # they join and leave in another round
            unserved = {each.key: each for each in joining if self._roster.is_current(each)}
            self._joining = {**unserved, **self._joining}
            self._leaving |= {key for key in leaving if key not in self._roster}
            self._rejecting |= rejecting
            raise
        self._start_pause(len(results) if with_changes else 0, has_joined=bool(joining))
        self._note(results)
        await self._offers.push(revision, {*results, *rejecting, *self._certificates.changed()})
        if with_changes:  # not before: a proxy that is not behind counts as having this revision
            self.revision = revision

    def _is_pause_over(self) -> bool:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._pause_until:
            return True
        # Whatever woke us may have been a change, which is then looked at.
        loop.call_later(self._pause_until - loop.time() + 0.001, self._wake.set)
        return False

    def _start_pause(self, n_changed: int, *, has_joined: bool) -> None:
        """Let a change reach the proxies before the next one is compiled; then there is another round."""
        loop = asyncio.get_running_loop()
        if has_joined:
            self._joined_at = loop.time()
        if n_changed:
            is_joining = loop.time() - self._joined_at <= JOINING_SECONDS
            seconds = PAUSE_SECONDS_PER_PROXY_JOINING if is_joining else PAUSE_SECONDS_PER_PROXY
            self._pause_until = loop.time() + min(n_changed * seconds, PAUSE_SECONDS_MAX)
            loop.call_at(self._pause_until, self._wake.set)

    def _note(self, results: CompileResult) -> None:
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
