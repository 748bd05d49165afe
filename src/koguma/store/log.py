"""Log: what a store backend has to do, and no more.

A log keeps changes in the order of their revisions, beside a small table of what is current. It
decides nothing: a writer says which revision it built on, and the log takes the changes only if that is
still the newest one.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from koguma.model.errors import Gone
from koguma.model.resource import Key, Resource
from koguma.store.contract import Change, Unreadable
from koguma.store.row import Row


class LogLost(Exception):
    """The log did not answer. Whether it did what was asked is unknown until it is read again."""


class LogUnreachable(LogLost):
    """The log could not even be asked: nothing was sent, so it did nothing."""


class LogFull(LogLost):
    """The log has no room for what was to be appended; it did nothing. The text says where and what helps."""


class LogSnapshot(msgspec.Struct, frozen=True):
    """The current state, all at one revision; changes up to `compacted` may be gone."""

    revision: int
    compacted: int
    resources: tuple[Resource, ...]
    unreadable: tuple[Unreadable, ...] = ()


# Given what others wrote in between, the rows to append on top of it; maybe none.
Decide = Callable[[list[Change]], Sequence[Row]]


class Log(Protocol):
    """An append-only log of changes. Every method may raise LogLost."""

    shared: bool  # other processes may write to it too

    async def open(self) -> None:
        """Connect, and bring the tables to the newest form."""

    async def close(self) -> None:
        """Let go of everything; safe to call twice."""

    async def load(self) -> LogSnapshot:
        """What is current."""

    async def since(self, revision: int, limit: int | None = None) -> list[Change]:
        """The changes after a revision, oldest first; Gone if some of them were compacted away."""

    async def append(self, expected: int, rows: Sequence[Row]) -> bool:
        """Add rows, all or none, durably; False if `expected` is not the newest revision any more."""

    async def append_in_turn(self, after: int, decide: Decide) -> None:
        """Keep other writers out, give `decide` what they wrote after a revision, append what it returns."""

    async def history(self, key: Key, limit: int) -> list[Change]:
        """The changes of one object that are still kept, newest first."""

    async def change_at(self, revision: int) -> Change | None:
        """One change, or None where there is none or it was compacted away."""

    async def compact(self, before: datetime, short_before: datetime, short_kinds: Collection[str]) -> int:
        """Forget changes older than that which are not current; answers the new `compacted`."""

    async def has_room(self) -> bool:
        """Whether a log that was full takes new objects again, as far as it can tell without a write."""

    async def wait_hint(self, timeout: float) -> None:  # noqa: ASYNC109 - a hint may simply not come
        """Return when another writer may have written, and after `timeout` seconds in any case."""

    async def ping(self) -> None:
        """Return if the log answers."""


def too_old(revision: int, compacted: int) -> Gone:
    """The answer to who asks for changes that are no longer kept."""
    return Gone(
        f"changes after revision {revision} are no longer kept; the oldest revision to watch from is"
        f" {compacted}: list again and watch from there"
    )


def went_back(revision: int) -> Gone:
    """The answer of a log that is not where it was, as after a restored backup: it has to be read anew."""
    return Gone(f"the log does not follow revision {revision} any more; it was replaced or restored")
