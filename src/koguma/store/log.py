"""Log: the interface of a store backend.

A log keeps changes in the order of their revisions, and a table of the current revision of each object. It
has no rules: an append names the revision that it builds on, and is taken only if that is still the newest
one (compare-and-swap).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from koguma.model.errors import Gone
from koguma.model.resource import Key, Resource
from koguma.store.contract import Change, Unreadable
from koguma.store.past_queries import ChangeFilter, HistoryBounds, KindChoice
from koguma.store.proxy_states import ProxyStateTable
from koguma.store.row import Row


class LogLost(Exception):
    """The log did not answer. Whether it did the work is unknown until it is read again."""


class LogUnreachable(LogLost):
    """The log could not be reached: nothing was sent, so it did nothing."""


class LogFull(LogLost):
    """The log has no room for an append, and did nothing. The message says where, and what helps."""


class LogSnapshot(msgspec.Struct, frozen=True):
    """The current objects, all as of one revision; changes up to `compacted` may be gone.

    `transaction` is that of the revision; empty where its change is not kept.
    """

    revision: int
    compacted: int
    resources: tuple[Resource, ...]
    unreadable: tuple[Unreadable, ...] = ()
    transaction: str = ""


# From the changes that others wrote in between to the rows to append on top of them, possibly none.
RowsAfter = Callable[[list[Change]], Sequence[Row]]
ChangesByKey = Mapping[Key, Change | None]


class Log(Protocol):
    """An append-only log of changes. Every method may raise LogLost."""

    shared: bool  # other processes may write to it, too
    proxy_states: ProxyStateTable  # beside it

    @property
    def connection_summary(self) -> str:
        """What is special about the way to it, for `koguma check`; empty where nothing is."""

    async def open(self) -> None:
        """Connect, and migrate the tables to the newest schema."""

    async def close(self) -> None:
        """Release all resources; idempotent."""

    async def load(self) -> LogSnapshot:
        """The current objects."""

    async def since(self, revision: int, limit: int | None = None) -> list[Change]:
        """The changes after a revision, oldest first; Gone if some of them were compacted away."""

    async def append(self, expected: int, rows: Sequence[Row]) -> bool:
        """Append rows, atomically and durably; False if `expected` is no longer the newest revision."""

    async def append_locked(self, after: int, rows_after: RowsAfter) -> None:
        """Lock out other writers, pass the changes after a revision to `rows_after`, append its result."""

    async def history(self, key: Key, limit: int) -> list[Change]:
        """The changes of one object that are still kept, newest first."""

    async def change_at(self, revision: int) -> Change | None:
        """The change of a revision; None if it does not exist or was compacted away."""

    async def history_bounds(self) -> HistoryBounds:
        """The newest revision, and the oldest ones at which objects are known."""

    async def changes(self, chosen: ChangeFilter, after: int, before: int, limit: int) -> list[Change]:
        """The kept changes between two revisions, both left out, newest first."""

    async def as_of(
        self, revision: int, low: int, high: int, chosen: KindChoice, limit: int | None = None
    ) -> ChangesByKey:
        """Of each object that changed after `low`, until `high`: its last change at `revision`, or None."""

    async def revision_at(self, time: str) -> int:
        """The newest revision at a time; 0 where no change is that old."""

    async def compact(self, before: datetime, short_before: datetime, short_kinds: Collection[str]) -> int:
        """Remove changes that were superseded before a time (compaction); returns the new `compacted`."""

    async def has_room(self) -> bool:
        """Whether a log that was full can take new objects again, as far as that is known without a write."""

    async def wait_hint(self, timeout: float) -> None:  # noqa: ASYNC109 - reaching it is no error
        """Return when another writer may have written, and after `timeout` seconds in any case."""

    async def ping(self) -> None:
        """Return if the log answers, else raise LogLost."""


def too_old(revision: int, compacted: int) -> Gone:
    """The error for changes that were compacted away."""
    return Gone(
        f"changes after revision {revision} are no longer kept; the oldest revision to watch from is"
        f" {compacted}: list again and watch from there"
    )


def log_replaced(revision: int) -> Gone:
    """The error of a log with another history, as after a restored backup: all of it has to be read again."""
    return Gone(f"the log does not follow revision {revision} any more; it was replaced or restored")
