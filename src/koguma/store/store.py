"""Store: the one door to what is stored. Reads come from memory, writes go through the log.

`state` is always as of one revision and has every write of this process that was answered. Nothing
here knows a database; `open_store` picks the log.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TypeVar

import structlog

from koguma.model.errors import StoreFull, Unavailable
from koguma.model.resource import Key, Resource
from koguma.runtime.background import Background
from koguma.runtime.clock import now
from koguma.store import watch
from koguma.store.contract import Change, Transaction
from koguma.store.evaluate import NewUid, evaluate
from koguma.store.log import Log, LogFull, LogLost
from koguma.store.mirror import Mirror
from koguma.store.state import State
from koguma.store.unavailable import log_unavailable
from koguma.store.watch import Watch
from koguma.store.writer import Writer

WRITE_TIMEOUT_SECONDS = 15.0
COMPACTION_SECONDS = 3600.0
ROOM_SECONDS = 2.0  # between two looks whether a full store has room again
RETENTION = timedelta(days=30)
SHORT_RETENTION = timedelta(hours=1)

_logger = structlog.get_logger("koguma.store")


def new_uid() -> str:
    """An identity that no other object ever has: a random UUID (version 4, RFC 9562)."""
    text = os.urandom(16).hex()
    variant = "89ab"[int(text[16], 16) % 4]
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"


T = TypeVar("T")


async def _answer(question: Awaitable[T]) -> T:
    try:
        return await question
    except LogFull as full:
        raise StoreFull(str(full)) from full
    except LogLost as lost:
        raise Unavailable(f"the store does not answer: {lost}") from lost


class Store:
    """Objects, their history, and those who watch them."""

    def __init__(
        self,
        log: Log,
        clock: Callable[[], datetime] = now,
        new_uid: NewUid = new_uid,
        *,
        write_timeout: float = WRITE_TIMEOUT_SECONDS,
        changes_in_memory: int = watch.BUFFER_SIZE,
        background: Background | None = None,
    ) -> None:
        self.log = log
        self._clock = clock
        self._new_uid = new_uid
        self._mirror = Mirror(log, changes_in_memory)
        self._writer = Writer(log, self._mirror, clock, new_uid, write_timeout)
        self._background = background or Background(clock)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def state(self) -> State:
        """What is current. Read it, never change it."""
        return self._mirror.state

    @property
    def writes(self) -> int:
        """Transactions answered with success so far."""
        return self._writer.writes

    @property
    def batches(self) -> int:
        """Appends so far; fewer than writes where clients shared one."""
        return self._writer.batches

    @property
    def conflicts(self) -> int:
        """Batches that were decided again because another control plane wrote first."""
        return self._writer.conflicts

    @property
    def lost(self) -> int:
        """Times that the log did not answer while writing."""
        return self._writer.lost

    @property
    def full(self) -> str:
        """Why nothing more can be stored; empty where there is room."""
        return self._writer.full

    async def open(self) -> None:
        """Open the log, read what is current, and begin to take writes."""
        try:
            await _answer(self.log.open())
            await _answer(self._mirror.load())
        except BaseException:
            await self.log.close()
            raise
        self._tasks.append(self._background.forever("store writer", self._writer.run, may_end=True))
        if self.log.shared:
            self._tasks.append(self._background.forever("store follower", self._mirror.follow))
        self._tasks.append(self._background.forever("room of the store", self._look_for_room))

    async def close(self) -> None:
        """Finish the writes under way, end the watches, let go of the log."""
        self._writer.finish()
        if self._tasks:
            writer, *others = self._tasks
            self._tasks = []
            await writer
            for task in others:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self._mirror.feed.close()
        await self.log.close()

    async def write(self, transaction: Transaction) -> tuple[Change, ...]:
        """Do it, all or nothing; answers after the commit, with one change for each Put and Delete in order.

        A caller that is cancelled only stops waiting: a write that was handed in goes on.
        """
        return await self._writer.submit(transaction)

    def preview(self, transaction: Transaction) -> tuple[Change, ...]:
        """What a write would do now; nothing is written."""
        return evaluate(self.state, transaction, self._clock(), self._new_uid)

    def end_watches(self) -> None:
        """Tell every watcher that it is over; the store itself goes on."""
        self._mirror.feed.close()

    def watch(self, kinds: frozenset[str] | None, after: int) -> Watch:
        """A reader of all changes after a revision, of these kinds or of every kind."""
        return self._mirror.feed.watch(kinds, after)

    def replaced(self, revision: int) -> Resource | None:
        """What a recent change replaced; None where it replaced nothing, or that has left the memory."""
        return self._mirror.feed.replaced(revision)

    async def history(self, key: Key, limit: int = 100) -> list[Change]:
        """The changes of one object that are still kept, newest first."""
        return await _answer(self.log.history(key, limit))

    async def change_at(self, revision: int) -> Change | None:
        """One change, or None where it is not kept."""
        return await _answer(self.log.change_at(revision))

    async def ping(self) -> None:
        """Return if the log answers, else raise Unavailable."""
        await _answer(self.log.ping())

    async def _look_for_room(self) -> None:
        """While the log is full, ask it now and then; else it would be known only by the next write."""
        while True:
            await asyncio.sleep(ROOM_SECONDS)
            with suppress(LogLost):
                if self.full and await self.log.has_room():
                    self._writer.has_room()

    async def compact(
        self,
        short_kinds: Collection[str] = (),
        retention: timedelta = RETENTION,
        short_retention: timedelta = SHORT_RETENTION,
    ) -> int:
        """Forget superseded changes older than their retention; answers where watches may now begin."""
        moment = self._clock()
        compacted = await _answer(self.log.compact(moment - retention, moment - short_retention, short_kinds))
        self.state.compacted = compacted
        return compacted

    async def compact_forever(
        self,
        short_kinds: Collection[str] = (),
        retention: timedelta = RETENTION,
        short_retention: timedelta = SHORT_RETENTION,
        every: float = COMPACTION_SECONDS,
    ) -> None:
        """Compact once an hour and when the store is full, until cancelled; the store's owner runs this."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await self._writer.filled.wait()
            self._writer.filled.clear()
            try:
                compacted = await self.compact(short_kinds, retention, short_retention)
                _logger.info("history compacted", compacted=compacted)
            except Unavailable as error:
                log_unavailable(_logger, "history not compacted", error)
