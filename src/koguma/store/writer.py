"""Writer: turns transactions into appends, many at a time.

There is one append at a time. Transactions that arrive meanwhile form the next batch (group commit), so fifty
clients share one sync of the disk. Each transaction is evaluated by itself: one that fails raises for its
caller and leaves no trace. If another control plane wrote first, or the connection broke, the batch is
evaluated again on the newer state.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import structlog

from koguma.model.errors import Gone, StoreFull, StoreLost, Unavailable
from koguma.store import row
from koguma.store.batch import Batch, PendingWrite, logged_changes
from koguma.store.contract import Change, Transaction
from koguma.store.evaluate import NewUid, StagedState, evaluate
from koguma.store.log import Log, LogFull, LogLost, LogUnreachable
from koguma.store.replica import RETRY_SECONDS_MAX, Replica
from koguma.store.row import Row

BATCH_MAX = 512
BATCH_BYTES_MAX = 8_000_000  # the rest goes with the next append
RETRY_SECONDS_MIN = 0.05

_logger = structlog.get_logger("koguma.store")


class Writer:
    """The queue of transactions and the task that empties it."""

    def __init__(
        self, log: Log, replica: Replica, clock: Callable[[], datetime], new_uid: NewUid, timeout: float
    ) -> None:
        self._log = log
        self._replica = replica
        self._clock = clock
        self._new_uid = new_uid
        self._timeout = timeout
        self._queue: deque[PendingWrite] = deque()
        self._has_work = asyncio.Event()
        self._is_closing = False
        self.writes = 0
        self.batches = 0
        self.conflicts = 0
        self.lost = 0
        self.unwritable = ""  # why the log took no append, until it takes one
        self.full = ""  # why nothing more can be stored, while that is so
        self.became_full = asyncio.Event()  # cleared by the compaction

    def submit(self, transaction: Transaction) -> asyncio.Future[tuple[Change, ...]]:
        """Queue a transaction; the future gets its changes."""
        if self._is_closing:
            raise Unavailable("the store is closed; nothing was written")
        future: asyncio.Future[tuple[Change, ...]] = asyncio.get_running_loop().create_future()
        self._queue.append(PendingWrite(transaction, future, time.monotonic() + self._timeout))
        self._has_work.set()
        return future

    def finish(self) -> None:
        """Take no more transactions; `run` returns when the queue is empty."""
        self._is_closing = True
        self._has_work.set()

    async def run(self) -> None:
        """Write batch after batch, until `finish`."""
        while self._queue or not self._is_closing:
            if not self._queue:
                self._has_work.clear()
                await self._has_work.wait()
                continue
            size = min(len(self._queue), BATCH_MAX)
            await self._write_all([self._queue.popleft() for _ in range(size)])

    async def _write_all(self, writes: list[PendingWrite]) -> None:
        """Attempt until every write is answered."""
        while writes := self._unanswered(writes):
            try:
                try:
                    await self._attempt(writes)
                except LogFull as full:
                    self._fail_those_that_need_room(writes, full)
                except (LogLost, Gone) as lost:
                    await self._recover(writes, lost)
            except Exception as error:  # noqa: BLE001 - no error may stop the writes of others
                if len(writes) == 1:
                    writes[0].fail(error)
                for write in writes:
                    await self._write_all([write])

    async def _attempt(self, writes: list[PendingWrite]) -> None:
        batch = self._evaluated(writes)
        if batch.may_be_stale and self._log.shared:
            await self._replica.catch_up()
            writes = self._unanswered(writes)
            batch = self._evaluated(writes)
        if not batch.rows:
            self._answer(batch)
            return
        sent_before = [write for write in batch.accepted if write.may_be_logged]
        self._mark_sent(batch)
        try:
            is_appended = await self._log.append(batch.revision, batch.rows)
        except (LogUnreachable, LogFull):
            self._mark_unsent([write for write in batch.accepted if write not in sent_before])
            raise
        if is_appended:
            self._answer(batch)
        else:
            self.conflicts += 1
            await self._attempt_locked(writes)

    async def _attempt_locked(self, writes: list[PendingWrite]) -> None:
        """Append under the log's lock, so that other writers cannot win again and again."""
        batch = Batch(0)

        def rows_after(others: list[Change]) -> Sequence[Row]:
            nonlocal batch
            self._replica.apply(others)
            batch = self._evaluated(self._unanswered(writes))
            self._mark_sent(batch)
            return batch.rows

        await self._log.append_locked(self._replica.state.revision, rows_after)
        self._answer(batch)

    def _evaluated(self, writes: Sequence[PendingWrite]) -> Batch:
        staged = StagedState(self._replica.state)
        now = self._clock()
        batch = Batch(staged.revision)
        for write in writes:
            if batch.bytes > BATCH_BYTES_MAX:
                break
            try:
                results = evaluate(staged, write.transaction, now, self._new_uid)
                changes = logged_changes(results)
                rows = [row.encoded(change) for change in changes]
            except Exception as error:  # noqa: BLE001 - rejected, or a bug: its caller gets the error
                batch.rejected.append((write, error))
                continue
            write.results, write.changes = results, changes
            batch.accepted.append(write)
            batch.rows += rows
            batch.bytes += sum(len(each.body) for each in rows)
            for change in changes:
                staged.apply(change, change.resource.key)
        return batch

    def _mark_sent(self, batch: Batch) -> None:
        for write in batch.accepted:
            write.may_be_logged = True
            self._replica.unconfirmed.setdefault(write.transaction.id, [])

    def _mark_unsent(self, writes: Iterable[PendingWrite]) -> None:
        for write in writes:
            write.may_be_logged = False
            self._replica.unconfirmed.pop(write.transaction.id, None)

    def _answer(self, batch: Batch) -> None:
        self._replica.apply([change for write in batch.accepted for change in write.changes])
        self.batches += bool(batch.rows)
        if batch.rows:
            self.is_writable()
        if self.full and any(write.needs_room for write in batch.accepted):
            self.has_room()
        for write in batch.accepted:
            self._replica.unconfirmed.pop(write.transaction.id, None)
            self.writes += 1
            write.succeed(write.results)
        for write, error in batch.rejected:
            self._replica.unconfirmed.pop(write.transaction.id, None)
            write.fail(error)

    def _unanswered(self, writes: Sequence[PendingWrite]) -> list[PendingWrite]:
        """The writes that are still to do: neither found in the log nor timed out."""
        for write in writes:
            logged = self._replica.unconfirmed.get(write.transaction.id)
            if logged and not write.is_answered:
                del self._replica.unconfirmed[write.transaction.id]
                self.writes += 1
                write.succeed_as_logged(tuple(logged))
        self._expire(writes)
        return [write for write in writes if not write.is_answered]

    def _expire(self, writes: Sequence[PendingWrite]) -> None:
        now = time.monotonic()
        for write in writes:
            if not write.is_answered and now > write.deadline:
                self._replica.unconfirmed.pop(write.transaction.id, None)
                write.fail(StoreLost(_TIMED_OUT[write.may_be_logged].format(self._timeout)))

    def _fail_those_that_need_room(self, writes: Sequence[PendingWrite], full: LogFull) -> None:
        """Fail at once what cannot be stored. Writes that only delete are attempted again without it."""
        if not self.full:
            _logger.warning("store is full", reason=str(full))
            self.became_full.set()
        self.full = str(full)
        needing_room = [write for write in writes if write.needs_room]
        for write in needing_room or writes:
            write.fail(StoreFull(f"nothing was written: {full}"))

    def has_room(self) -> None:
        """Note that the store is no longer full."""
        if self.full:
            self.full = ""
            _logger.info("store has room again")

    def is_writable(self) -> None:
        """Note that the log takes appends."""
        if self.unwritable:
            self.unwritable = ""
            _logger.info("store takes writes again")

    def _fail_unsent(self, writes: Iterable[PendingWrite], lost: LogUnreachable) -> None:
        """Fail at once what an unreachable log surely does not have; the others have to wait."""
        for write in writes:
            if not write.is_answered and not write.may_be_logged:
                text = f"the store cannot be reached ({lost}); nothing was written: retry later"
                write.fail(StoreLost(text))

    async def _recover(self, writes: Sequence[PendingWrite], lost: LogLost | Gone) -> None:
        """The connection broke: wait until the log can be read again and shows what it has."""
        pause = RETRY_SECONDS_MIN
        refresh = self._replica.load if isinstance(lost, Gone) else self._replica.catch_up
        if not self.unwritable:
            _logger.warning("store lost while writing", transactions=len(writes), reason=str(lost))
        self.unwritable = str(lost)
        self.lost += 1
        # What another reader of the log has seen meanwhile is not believed: it may not be on the standbys.
        while not all(write.is_answered for write in writes):
            if isinstance(lost, LogUnreachable):
                self._fail_unsent((*writes, *self._queue), lost)
                if all(write.is_answered for write in writes):
                    return
            await asyncio.sleep(pause)
            self._expire((*writes, *self._queue))
            pause = min(2 * pause, RETRY_SECONDS_MAX)
            try:
                await refresh()
            except LogLost as again:
                self.lost += 1
                lost = again
            else:
                return


_TIMED_OUT = {
    True: "the store did not answer within {:g} s; the write may have happened: read before you retry",
    False: "the store did not answer within {:g} s; nothing was written: retry later",
}
