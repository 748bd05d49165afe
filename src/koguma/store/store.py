"""Store: the interface to all stored objects. Reads come from memory, writes go through the log.

`state` is always as of one revision and includes every successful write of this process. Nothing here knows a
database; `open_store` chooses the log.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TypeVar

import structlog

from koguma.model.errors import Gone, NotFound, StoreFull, StoreLost, Unavailable
from koguma.model.resource import Key, Resource
from koguma.runtime.background import Background
from koguma.runtime.clock import now
from koguma.store import watch
from koguma.store.contract import Change, Op, Transaction, Unreadable, rfc3339
from koguma.store.evaluate import NewUid, evaluate
from koguma.store.log import ChangesByKey, Log, LogFull, LogLost, LogSnapshot
from koguma.store.past_queries import ChangeFilter, HistoryBounds, KindChoice
from koguma.store.replica import Replica
from koguma.store.state import State
from koguma.store.unavailable import log_unavailable
from koguma.store.watch import Watch
from koguma.store.writer import Writer

WRITE_TIMEOUT_SECONDS = 15.0
COMPACTION_SECONDS = 3600.0
COMPACTION_SECONDS_MIN = 1.0
ROOM_SECONDS = 2.0  # between two checks whether a full store has room again
RETENTION = timedelta(days=30)
SHORT_RETENTION = timedelta(hours=1)

_logger = structlog.get_logger("koguma.store")


def new_uid() -> str:
    """A random UUID (version 4, RFC 9562)."""
    text = os.urandom(16).hex()
    variant = "89ab"[int(text[16], 16) % 4]
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"


T = TypeVar("T")


def _rewound(snapshot: LogSnapshot, replaced: ChangesByKey) -> LogSnapshot:
    """The objects of a snapshot, some of them as they were."""
    then = {key: change for key, change in replaced.items() if change and change.op is not Op.DELETE}
    readable = tuple(change.resource for change in then.values() if not change.error)
    broken = tuple(
        Unreadable(key, change.resource.core_name, change.revision, change.error)
        for key, change in then.items()
        if change.error
    )
    return LogSnapshot(
        snapshot.revision,
        snapshot.compacted,
        (*(each for each in snapshot.resources if each.key not in replaced), *readable),
        (*(each for each in snapshot.unreadable if each.key not in replaced), *broken),
    )


async def _translated(result: Awaitable[T]) -> T:
    """The result of a log, with its errors as those of the API."""
    try:
        return await result
    except LogFull as full:
        raise StoreFull(str(full)) from full
    except LogLost as lost:
        raise StoreLost(f"the store does not answer: {lost}") from lost


class Store:
    """Objects, their history, and watches on them."""

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
        self._replica = Replica(log, changes_in_memory)
        self._writer = Writer(log, self._replica, clock, new_uid, write_timeout)
        self._background = background or Background(clock)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def state(self) -> State:
        """The current objects. Never change it."""
        return self._replica.state

    @property
    def writes(self) -> int:
        """The number of successful transactions."""
        return self._writer.writes

    @property
    def batches(self) -> int:
        """The number of appends; less than `writes` where transactions shared one."""
        return self._writer.batches

    @property
    def conflicts(self) -> int:
        """The number of batches that were evaluated again because another control plane wrote first."""
        return self._writer.conflicts

    @property
    def lost(self) -> int:
        """How often the log did not answer while writing."""
        return self._writer.lost

    @property
    def full(self) -> str:
        """Why nothing more can be stored; empty where there is room."""
        return self._writer.full

    @property
    def unwritable(self) -> str:
        """Why the database takes no writes, as the last one found; empty where it does."""
        return self._writer.unwritable

    async def open(self) -> None:
        """Open the log, load the current objects, and start to take writes."""
        try:
            await _translated(self.log.open())
            await _translated(self._replica.load())
        except BaseException:
            await self.log.close()
            raise
        self._tasks.append(self._background.forever("store writer", self._writer.run, may_end=True))
        if self.log.shared:
            self._tasks.append(self._background.forever("store follower", self._replica.follow))
        self._tasks.append(self._background.forever("room of the store", self._check_room))

    async def close(self) -> None:
        """Finish pending writes, end the watches, and close the log."""
        self._writer.finish()
        if self._tasks:
            writer, *others = self._tasks
            self._tasks = []
            await writer
            for task in others:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self._replica.buffer.close()
        await self.log.close()

    async def write(self, transaction: Transaction) -> tuple[Change, ...]:
        """Apply a transaction atomically; returns after the commit, with one change for each Put and Delete.

        A caller that is cancelled only stops waiting: a submitted write goes on.
        """
        return await self._writer.submit(transaction)

    def preview(self, transaction: Transaction) -> tuple[Change, ...]:
        """The changes that a write would make now; nothing is written."""
        return evaluate(self.state, transaction, self._clock(), self._new_uid)

    def end_watches(self) -> None:
        """End all watches; the store itself stays open."""
        self._replica.buffer.close()

    def watch(self, kinds: frozenset[str] | None, after: int, *, of_one_log: bool = False) -> Watch:
        """A watch on all changes after a revision, of these kinds or of every kind.

        `of_one_log`: it raises Gone when all is read again, since the log may be a restored one.
        """
        return self._replica.buffer.watch(kinds, after, of_one_log=of_one_log)

    def replaced(self, revision: int) -> Resource | None:
        """The object that a recent change replaced; None if there was none or it has left the memory."""
        return self._replica.buffer.replaced(revision)

    async def history(self, key: Key, limit: int = 100) -> list[Change]:
        """The changes of one object that are still kept, newest first."""
        return await _translated(self.log.history(key, limit))

    async def change_at(self, revision: int) -> Change | None:
        """The change of a revision; None if it is not kept."""
        return await _translated(self.log.change_at(revision))

    async def history_bounds(self) -> HistoryBounds:
        """The newest revision, and the oldest ones at which objects are known."""
        return await _translated(self.log.history_bounds())

    async def changes(self, chosen: ChangeFilter, after: int, before: int, limit: int) -> list[Change]:
        """The kept changes between two revisions, both left out, newest first."""
        return await _translated(self.log.changes(chosen, after, before, limit))

    async def changed_between(
        self, revision: int, low: int, high: int, limit: int | None = None
    ) -> ChangesByKey:
        """Of each object that changed after `low`, until `high`: its last change at `revision`, or None."""
        every = KindChoice((), are_excluded=True)
        return await _translated(self.log.as_of(revision, low, high, every, limit))

    async def revision_at(self, moment: datetime) -> int:
        """The newest revision at a time; 0 where no change is that old."""
        return await _translated(self.log.revision_at(rfc3339(moment)))

    async def state_at(self, revision: int, short_kinds: Collection[str] = ()) -> State:
        """The objects as of a revision; Gone where that is older than the history that is kept.

        The history of some kinds is short: of these, the oldest objects that are kept. What has changed
        since is read from the log, all others are the current ones; so a recent state is read quickly.
        """
        stored, unreadable = list(self.state.all()), dict(self.state.unreadable)
        newest, compacted = self.state.revision, self.state.compacted
        if not 0 <= revision <= newest:
            raise NotFound(f"there is no revision {revision}; the newest is {newest}")
        short = KindChoice(tuple(short_kinds))
        bounds = await self.history_bounds()
        short_at = min(newest, max(revision, bounds.oldest_short))
        replaced = {
            **await _translated(
                self.log.as_of(revision, revision, newest, short._replace(are_excluded=True))
            ),
            **await _translated(self.log.as_of(short_at, short_at, newest, short)),
        }
        await self.check_kept(revision)  # after reading: a compaction may have removed some meanwhile
        snapshot = await asyncio.to_thread(
            _rewound, LogSnapshot(revision, compacted, tuple(stored), tuple(unreadable.values())), replaced
        )
        return await asyncio.to_thread(State, snapshot)

    async def check_kept(self, revision: int) -> None:
        """Raise Gone where the objects of a revision are no longer all kept."""
        oldest = (await self.history_bounds()).oldest
        if revision < oldest:
            change = await self.change_at(oldest)
            since = f", of {change.time}" if change else ""
            raise Gone(
                f"what was stored at revision {revision} is no longer kept in full; the oldest revision to"
                f" ask for is {oldest}{since} (--history says how long they are kept)"
            )

    async def ping(self) -> None:
        """Return if the log answers, else raise Unavailable."""
        await _translated(self.log.ping())

    async def _check_room(self) -> None:
        """While nothing can be written, check regularly; else only the next write would notice the end."""
        while True:
            await asyncio.sleep(ROOM_SECONDS)
            with suppress(LogLost):
                if (self.full or self.unwritable) and await self.log.has_room():
                    self._writer.has_room()
                    self._writer.is_writable()

    async def compact(
        self,
        short_kinds: Collection[str] = (),
        retention: timedelta = RETENTION,
        short_retention: timedelta = SHORT_RETENTION,
    ) -> int:
        """Remove superseded changes older than their retention; returns the oldest revision to watch from."""
        moment = self._clock()
        compacted = await _translated(
            self.log.compact(moment - retention, moment - short_retention, short_kinds)
        )
        self.state.compacted = compacted
        return compacted

    async def compact_forever(
        self,
        short_kinds: Collection[str] = (),
        retention: timedelta = RETENTION,
        short_retention: timedelta = SHORT_RETENTION,
    ) -> None:
        """Compact regularly and when the store becomes full, until cancelled; run by the owner.

        That is every hour, or as often as a shorter retention needs to take effect.
        """
        short_retention = min(short_retention, retention)
        every = min(COMPACTION_SECONDS, max(COMPACTION_SECONDS_MIN, retention.total_seconds() / 4))
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await self._writer.became_full.wait()
            self._writer.became_full.clear()
            before = self.state.compacted
            try:
                compacted = await self.compact(short_kinds, retention, short_retention)
                if compacted != before:
                    _logger.info("history compacted", compacted=compacted)
            except Unavailable as error:
                log_unavailable(_logger, "history not compacted", error)
