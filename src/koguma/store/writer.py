"""Writer: turns transactions into appends, many at a time.

There is one append at a time. What arrives while it is under way forms the next batch (group
commit), so fifty clients share one sync of the disk. Each transaction is decided on its own: one that is
refused tells its caller and leaves no trace. If another control plane wrote first, or the connection broke,
the batch is decided again on what is now true.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import structlog

from koguma.model.errors import Gone, StoreFull, Unavailable
from koguma.store import row
from koguma.store.contract import Change, Op, Transaction
from koguma.store.evaluate import NewUid, StagedState, evaluate
from koguma.store.log import Log, LogFull, LogLost, LogUnreachable
from koguma.store.mirror import RETRY_SECONDS_MAX, Mirror
from koguma.store.row import Row

BATCH_MAX = 512
BATCH_BYTES_MAX = 8_000_000  # what is over it goes with the next append
RETRY_SECONDS_MIN = 0.05

_logger = structlog.get_logger("koguma.store")


class Member:
    """One transaction of a batch, and who waits for its answer. A caller who left changes nothing."""

    __slots__ = ("answered", "deadline", "decided", "future", "sent", "transaction", "written")

    def __init__(
        self, transaction: Transaction, future: asyncio.Future[tuple[Change, ...]], deadline: float
    ) -> None:
        self.transaction = transaction
        self.future = future
        self.deadline = deadline
        self.decided: tuple[Change, ...] = ()
        self.written: tuple[Change, ...] = ()  # those of them that are changes
        self.sent = False  # the log may have it
        self.answered = False

    def succeed(self, changes: tuple[Change, ...]) -> None:
        """It is in the log."""
        self.answered = True
        if not self.future.done():
            self.future.set_result(changes)

    def fail(self, error: Exception) -> None:
        """It is not in the log, or nobody knows, as the error says."""
        self.answered = True
        if not self.future.done():
            self.future.set_exception(error)


class Plan:
    """What a batch would do on top of one revision."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.rows: list[Row] = []
        self.bytes = 0
        self.accepted: list[Member] = []
        self.refused: list[tuple[Member, Exception]] = []

    @property
    def is_doubtful(self) -> bool:
        """Whether a part of it only reads, which the log's own check of the revision does not cover."""
        return bool(self.refused) or any(not member.written for member in self.accepted)


class Writer:
    """The queue of transactions and the task that empties it."""

    def __init__(
        self, log: Log, mirror: Mirror, clock: Callable[[], datetime], new_uid: NewUid, timeout: float
    ) -> None:
        self._log = log
        self._mirror = mirror
        self._clock = clock
        self._new_uid = new_uid
        self._timeout = timeout
        self._queue: deque[Member] = deque()
        self._work = asyncio.Event()
        self._closing = False
        self.writes = 0
        self.batches = 0
        self.conflicts = 0
        self.lost = 0
        self.full = ""  # why nothing more can be stored, while that is so
        self.filled = asyncio.Event()  # since it last was looked at

    def submit(self, transaction: Transaction) -> asyncio.Future[tuple[Change, ...]]:
        """Put a transaction in the queue; the future gets its answer."""
        if self._closing:
            raise Unavailable("the store is closed; nothing was written")
        future: asyncio.Future[tuple[Change, ...]] = asyncio.get_running_loop().create_future()
        self._queue.append(Member(transaction, future, time.monotonic() + self._timeout))
        self._work.set()
        return future

    def finish(self) -> None:
        """Take no more; `run` returns when the queue is empty."""
        self._closing = True
        self._work.set()

    async def run(self) -> None:
        """Write batch after batch until told to finish."""
        while self._queue or not self._closing:
            if not self._queue:
                self._work.clear()
                await self._work.wait()
                continue
            size = min(len(self._queue), BATCH_MAX)
            await self._settle([self._queue.popleft() for _ in range(size)])

    async def _settle(self, members: list[Member]) -> None:
        """Attempt until every member has its answer."""
        while members := self._unanswered(members):
            try:
                try:
                    await self._attempt(members)
                except LogFull as full:
                    self._refuse_growth(members, full)
                except (LogLost, Gone) as lost:
                    await self._recover(members, lost)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the others' writes
                if len(members) == 1:
                    members[0].fail(error)
                for member in members:
                    await self._settle([member])

    async def _attempt(self, members: list[Member]) -> None:
        plan = self._plan(members)
        if plan.is_doubtful and self._log.shared:
            await self._mirror.catch_up()
            members = self._unanswered(members)
            plan = self._plan(members)
        if not plan.rows:
            self._answer(plan)
            return
        before = [member for member in plan.accepted if member.sent]
        self._mark_sent(plan)
        try:
            is_written = await self._log.append(plan.revision, plan.rows)
        except (LogUnreachable, LogFull):
            self._mark_unsent([member for member in plan.accepted if member not in before])
            raise
        if is_written:
            self._answer(plan)
        else:
            self.conflicts += 1
            await self._attempt_in_turn(members)

    async def _attempt_in_turn(self, members: list[Member]) -> None:
        """Others are writing too: wait for our turn, so that we cannot lose again and again."""
        plan = Plan(0)

        def on_top(news: list[Change]) -> Sequence[Row]:
            nonlocal plan
            self._mirror.take(news)
            plan = self._plan(self._unanswered(members))
            self._mark_sent(plan)
            return plan.rows

        await self._log.append_in_turn(self._mirror.state.revision, on_top)
        self._answer(plan)

    def _plan(self, members: Sequence[Member]) -> Plan:
        draft = StagedState(self._mirror.state)
        now = self._clock()
        plan = Plan(draft.revision)
        for member in members:
            if plan.bytes > BATCH_BYTES_MAX:
                break
            try:
                decided = evaluate(draft, member.transaction, now, self._new_uid)
                written = _written(decided)
                rows = [row.encoded(change) for change in written]
            except Exception as error:  # noqa: BLE001 - a refusal, or a mistake of ours: its caller is told
                plan.refused.append((member, error))
                continue
            member.decided, member.written = decided, written
            plan.accepted.append(member)
            plan.rows += rows
            plan.bytes += sum(len(one.body) for one in rows)
            for change in written:
                draft.apply(change, change.resource.key)
        return plan

    def _mark_sent(self, plan: Plan) -> None:
        for member in plan.accepted:
            member.sent = True
            self._mirror.awaited.setdefault(member.transaction.id, [])

    def _mark_unsent(self, members: Iterable[Member]) -> None:
        for member in members:
            member.sent = False
            self._mirror.awaited.pop(member.transaction.id, None)

    def _answer(self, plan: Plan) -> None:
        self._mirror.take([change for member in plan.accepted for change in member.written])
        self.batches += bool(plan.rows)
        if self.full and any(_grows(member) for member in plan.accepted):
            self.has_room()
        for member in plan.accepted:
            self._mirror.awaited.pop(member.transaction.id, None)
            self.writes += 1
            member.succeed(member.decided)
        for member, error in plan.refused:
            self._mirror.awaited.pop(member.transaction.id, None)
            member.fail(error)

    def _unanswered(self, members: Sequence[Member]) -> list[Member]:
        """Those still to be written: not those that turned up in the log, nor those whose time is over."""
        for member in members:
            found = self._mirror.awaited.get(member.transaction.id)
            if found and not member.answered:
                del self._mirror.awaited[member.transaction.id]
                self.writes += 1
                member.succeed(_as_found(member.decided, tuple(found)))
        self._expire(members)
        return [member for member in members if not member.answered]

    def _expire(self, members: Sequence[Member]) -> None:
        now = time.monotonic()
        for member in members:
            if not member.answered and now > member.deadline:
                self._mirror.awaited.pop(member.transaction.id, None)
                member.fail(Unavailable(_TIMED_OUT[member.sent].format(self._timeout)))

    def _refuse_growth(self, members: Sequence[Member], full: LogFull) -> None:
        """There is no room: nobody waits for some. What only deletes is tried again by itself."""
        if not self.full:
            _logger.warning("store is full", reason=str(full))
            self.filled.set()
        self.full = str(full)
        growing = [member for member in members if _grows(member)]
        for member in growing or members:
            member.fail(StoreFull(f"nothing was written: {full}"))

    def has_room(self) -> None:
        """Something was stored, or could be."""
        if self.full:
            self.full = ""
            _logger.info("store has room again")

    def _refuse_unsent(self, members: Iterable[Member], lost: LogUnreachable) -> None:
        """Nobody need wait for a log that cannot be reached, but those whose writes it may have."""
        for member in members:
            if not member.answered and not member.sent:
                text = f"the store cannot be reached ({lost}); nothing was written: retry later"
                member.fail(Unavailable(text))

    async def _recover(self, members: Sequence[Member], lost: LogLost | Gone) -> None:
        """The connection broke: wait until the log can be read again; then we know what it has."""
        pause = RETRY_SECONDS_MIN
        refresh = self._mirror.load if isinstance(lost, Gone) else self._mirror.catch_up
        _logger.warning("store lost while writing", transactions=len(members), reason=str(lost))
        self.lost += 1
        while members := self._unanswered(members):
            if isinstance(lost, LogUnreachable):
                self._refuse_unsent((*members, *self._queue), lost)
                if all(member.answered for member in members):
                    return
            await asyncio.sleep(pause)
            self._expire(self._queue)
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


def _written(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    return tuple(change for change in changes if change.op is not Op.UNCHANGED)


def _grows(member: Member) -> bool:
    """Whether it stores something, rather than only delete."""
    return any(change.op is not Op.DELETE for change in member.written)


def _as_found(decided: tuple[Change, ...], found: tuple[Change, ...]) -> tuple[Change, ...]:
    """The answer of a transaction that an earlier attempt had written: what the log says, in place."""
    if len(_written(decided)) != len(found):
        return found
    logged = iter(found)
    return tuple(change if change.op is Op.UNCHANGED else next(logged) for change in decided)
