"""MemoryLog: a log that lasts as long as the process, for dry runs and tests.

It keeps rows as the databases do, so an object goes through the same encoding everywhere. Several
stores may share one, as several control planes share a database.
"""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import datetime

from koguma.model.resource import Key, Resource
from koguma.store import row
from koguma.store.contract import Change, Op, Unreadable, rfc3339
from koguma.store.log import Decide, LogSnapshot, too_old, went_back
from koguma.store.row import Row
from koguma.store.sealing import PLAIN, PREFIX_CHARACTERS, Sealing


class MemoryLog:
    """Rows in a dict. Nothing here waits, so every method is atomic."""

    def __init__(self, *, shared: bool = False, sealing: Sealing = PLAIN) -> None:
        self._sealing = sealing
        self.shared = shared
        self.revision = 0
        self.compacted = 0
        self.rows: dict[int, Row] = {}
        self.current: dict[Key, int] = {}
        self._written = asyncio.Event()

    async def open(self) -> None:
        """Get the keys, and store what is there as it is to be stored."""
        prefixes = {at: _prefix(one) for at, one in self.rows.items() if one.kind in self._sealing.kinds}
        self._sealing.begin(prefixes.values(), "the store in memory")
        for at, prefix in prefixes.items():
            if not self._sealing.is_as_it_should_be(prefix):
                self.rows[at] = self._sealing.again(self.rows[at])

    async def close(self) -> None:
        """Nothing to do; what was written stays, for the next store that opens it."""

    async def load(self) -> LogSnapshot:
        """What is current."""
        found = [
            row.entry(self.rows[revision], self._sealing.opened) for revision in sorted(self.current.values())
        ]
        return LogSnapshot(
            self.revision,
            self.compacted,
            tuple(entry for entry in found if isinstance(entry, Resource)),
            tuple(entry for entry in found if isinstance(entry, Unreadable)),
        )

    async def since(self, revision: int, limit: int | None = None) -> list[Change]:
        """The changes after a revision, oldest first."""
        if revision < self.compacted:
            raise too_old(revision, self.compacted)
        last = self.revision if limit is None else min(self.revision, revision + limit)
        return [row.decoded(self.rows[at], self._sealing.opened) for at in range(revision + 1, last + 1)]

    async def append(self, expected: int, rows: Sequence[Row]) -> bool:
        """Add rows, if `expected` is the newest revision."""
        if expected != self.revision:
            return False
        for one in self._sealing.sealed(rows):
            self.rows[one.revision] = one
            if one.op == Op.DELETE.value:
                del self.current[one.key]
            else:
                self.current[one.key] = one.revision
            self.revision = one.revision
        self._written.set()
        self._written = asyncio.Event()  # the next wait is for the next append
        return True

    async def append_in_turn(self, after: int, decide: Decide) -> None:
        """Give `decide` what others wrote, and append what it returns."""
        rows = decide(await self.since(after))
        if rows and not await self.append(rows[0].revision - 1, rows):
            raise went_back(after)

    async def history(self, key: Key, limit: int) -> list[Change]:
        """The changes of one object, newest first."""
        found = [one for _, one in sorted(self.rows.items(), reverse=True) if one.key == key]
        return [row.decoded(one, self._sealing.opened) for one in found[:limit]]

    async def change_at(self, revision: int) -> Change | None:
        """One change."""
        one = self.rows.get(revision)
        return row.decoded(one, self._sealing.opened) if one else None

    async def compact(self, before: datetime, short_before: datetime, short_kinds: Collection[str]) -> int:
        """Forget old changes that are not current."""
        ends, short_ends = rfc3339(before), rfc3339(short_before)
        current = set(self.current.values())
        old = [
            one.revision
            for one in self.rows.values()
            if one.revision not in current
            and (one.time < ends or (one.kind in short_kinds and one.time < short_ends))
        ]
        for revision in old:
            del self.rows[revision]
        self.compacted = max([self.compacted, *old])
        return self.compacted

    async def has_room(self) -> bool:
        """Memory is not kept account of."""
        return True

    async def wait_hint(self, timeout: float) -> None:  # noqa: ASYNC109 - a hint may simply not come
        """Return after the next append, or when the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._written.wait()

    async def ping(self) -> None:
        """It always answers."""


def _prefix(one: Row) -> str:
    return one.body[:PREFIX_CHARACTERS].decode(errors="replace")
