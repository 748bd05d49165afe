"""Batches: transactions that are written with one append, and the callers that wait for them."""

import asyncio

from koguma.store.contract import Change, Op, Transaction
from koguma.store.row import Row


class PendingWrite:
    """One transaction and the future of its caller. A caller that was cancelled changes nothing."""

    __slots__ = ("changes", "deadline", "future", "is_answered", "may_be_logged", "results", "transaction")

    def __init__(
        self, transaction: Transaction, future: asyncio.Future[tuple[Change, ...]], deadline: float
    ) -> None:
        self.transaction = transaction
        self.future = future
        self.deadline = deadline
        self.results: tuple[Change, ...] = ()  # of the last evaluation
        self.changes: tuple[Change, ...] = ()  # the results without UNCHANGED, which has no revision
        self.may_be_logged = False  # it was sent to the log
        self.is_answered = False

    @property
    def needs_room(self) -> bool:
        """Whether it stores something, rather than only delete."""
        return any(change.op is not Op.DELETE for change in self.changes)

    def succeed(self, results: tuple[Change, ...]) -> None:
        """The transaction is in the log."""
        self.is_answered = True
        if not self.future.done():
            self.future.set_result(results)

    def fail(self, error: Exception) -> None:
        """The transaction is not in the log, or that is unknown, as the error says."""
        self.is_answered = True
        if not self.future.done():
            self.future.set_exception(error)

    def succeed_as_logged(self, logged: tuple[Change, ...]) -> None:
        """An earlier attempt has written it: answer with the changes in the log."""
        if len(self.changes) != len(logged):
            self.succeed(logged)
            return
        changes = iter(logged)
        self.succeed(tuple(result if result.op is Op.UNCHANGED else next(changes) for result in self.results))


class Batch:
    """The evaluation of several transactions on top of one revision."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.rows: list[Row] = []
        self.bytes = 0
        self.accepted: list[PendingWrite] = []
        self.rejected: list[tuple[PendingWrite, Exception]] = []

    @property
    def may_be_stale(self) -> bool:
        """Whether some result writes nothing, so that the log's check of the revision does not cover it."""
        return bool(self.rejected) or any(not write.changes for write in self.accepted)


def logged_changes(results: tuple[Change, ...]) -> tuple[Change, ...]:
    """The results that go into the log."""
    return tuple(result for result in results if result.op is not Op.UNCHANGED)
