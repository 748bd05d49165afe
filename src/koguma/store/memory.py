"""MemoryLog: a log in the memory of the process, for dry runs and tests.

It keeps rows as the databases do, so objects are encoded in the same way everywhere. Several stores may share
stored, as several control planes share a database.
"""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice

from koguma.model.resource import Key, Resource
from koguma.store import row
from koguma.store.contract import Change, Op, Unreadable, rfc3339
from koguma.store.log import ChangesByKey, LogSnapshot, RowsAfter, log_replaced, too_old
from koguma.store.past_queries import ChangeFilter, HistoryBounds, KindChoice
from koguma.store.proxy_states import MemoryProxyStates, ProxyStateTable
from koguma.store.row import Row
from koguma.store.sealing import PLAIN, PREFIX_CHARACTERS, Sealing


class MemoryLog:
    """Rows in a dict. Nothing here waits, so every method is atomic."""

    connection_summary = ""

    def __init__(self, *, shared: bool = False, sealing: Sealing = PLAIN) -> None:
        self._sealing = sealing
        self.shared = shared
        self.revision = 0
        self.compacted = 0
        self.oldest = 0
        self.oldest_short = 0
        self.proxy_states: ProxyStateTable = MemoryProxyStates()
        self.rows: dict[int, Row] = {}
        self.current: dict[Key, int] = {}
        self._appended = asyncio.Event()

    async def open(self) -> None:
        """Load the keys, and encrypt or decrypt stored rows as configured."""
        prefixes = {
            at: _prefix(stored) for at, stored in self.rows.items() if stored.kind in self._sealing.kinds
        }
        self._sealing.load_keys(prefixes.values(), "the store in memory")
        for at, prefix in prefixes.items():
            if not self._sealing.is_current(prefix):
                self.rows[at] = self._sealing.resealed(self.rows[at])

    async def close(self) -> None:
        """Nothing to do; the rows stay for the next store that opens it."""

    async def load(self) -> LogSnapshot:
        """The current objects."""
        entries = [
            row.entry(self.rows[revision], self._sealing.opened) for revision in sorted(self.current.values())
        ]
        return LogSnapshot(
            self.revision,
            self.compacted,
            tuple(entry for entry in entries if isinstance(entry, Resource)),
            tuple(entry for entry in entries if isinstance(entry, Unreadable)),
            self.rows[self.revision].transaction_id if self.revision in self.rows else "",
        )

    async def since(self, revision: int, limit: int | None = None) -> list[Change]:
        """The changes after a revision, oldest first."""
        if revision < self.compacted:
            raise too_old(revision, self.compacted)
        last = self.revision if limit is None else min(self.revision, revision + limit)
        return [row.decoded(self.rows[at], self._sealing.opened) for at in range(revision + 1, last + 1)]

    async def append(self, expected: int, rows: Sequence[Row]) -> bool:
        """Append rows, if `expected` is the newest revision."""
        if expected != self.revision:
            return False
        for stored in self._sealing.sealed(rows):
            self.rows[stored.revision] = stored
            if stored.op == Op.DELETE.value:
                del self.current[stored.key]
            else:
                self.current[stored.key] = stored.revision
            self.revision = stored.revision
        self._appended.set()
        self._appended = asyncio.Event()  # the next wait is for the next append
        return True

    async def append_locked(self, after: int, rows_after: RowsAfter) -> None:
        """Nothing here awaits, so other writers need not be locked out."""
        rows = rows_after(await self.since(after))
        if rows and not await self.append(rows[0].revision - 1, rows):
            raise log_replaced(after)

    async def history(self, key: Key, limit: int) -> list[Change]:
        """The changes of stored object, newest first."""
        rows = [stored for _, stored in sorted(self.rows.items(), reverse=True) if stored.key == key]
        return [row.decoded(stored, self._sealing.opened) for stored in rows[:limit]]

    async def change_at(self, revision: int) -> Change | None:
        """The change of a revision."""
        stored = self.rows.get(revision)
        return row.decoded(stored, self._sealing.opened) if stored else None

    async def history_bounds(self) -> HistoryBounds:
        """The newest revision, and the oldest ones at which objects are known."""
        return HistoryBounds(self.revision, self.oldest, self.oldest_short)

    async def changes(self, chosen: ChangeFilter, after: int, before: int, limit: int) -> list[Change]:
        """The kept changes between two revisions, both left out, newest first."""
        rows = (self.rows[at] for at in sorted(self.rows, reverse=True) if after < at < before)
        rows_chosen = (stored for stored in rows if _fits(stored, chosen))
        return [row.decoded(stored, self._sealing.opened) for stored in islice(rows_chosen, limit)]

    async def as_of(
        self, revision: int, low: int, high: int, chosen: KindChoice, limit: int | None = None
    ) -> ChangesByKey:
        """Of each object that changed in between: its last change at a revision, or None."""
        stored_rows = [self.rows[at] for at in sorted(self.rows)]
        changed = {
            stored.key
            for stored in stored_rows
            if low < stored.revision <= high and chosen.includes(stored.kind)
        }
        last = {stored.key: stored for stored in stored_rows if stored.revision <= revision}
        return {
            key: row.decoded(last[key], self._sealing.opened) if key in last else None
            for key in sorted(changed)[:limit]
        }

    async def revision_at(self, time: str) -> int:
        """The newest revision at a time."""
        return max((at for at, stored in self.rows.items() if stored.time <= time), default=0)

    async def compact(self, before: datetime, short_before: datetime, short_kinds: Collection[str]) -> int:
        """Remove changes that were superseded before a time."""
        short = KindChoice(tuple(short_kinds))
        boundary = self._last_before(before)
        old = self._superseded(boundary, short._replace(are_excluded=True))
        short_boundary = max(boundary, self._last_before(short_before))
        old_short = self._superseded(short_boundary, short)
        self.oldest = max(self.oldest, boundary) if old else self.oldest
        self.oldest_short = max(self.oldest_short, short_boundary) if old_short else self.oldest_short
        for revision in (*old, *old_short):
            del self.rows[revision]
        self.compacted = max([self.compacted, *old, *old_short])
        return self.compacted

    def _last_before(self, moment: datetime) -> int:
        limit = rfc3339(moment)
        return max((at for at, stored in self.rows.items() if stored.time < limit), default=0)

    def _superseded(self, boundary: int, chosen: KindChoice) -> list[int]:
        """The changes that were superseded by the boundary, deletions included."""
        old: list[int] = []
        superseded: set[Key] = set()
        for at in sorted((at for at in self.rows if at <= boundary), reverse=True):
            stored = self.rows[at]
            is_old = stored.op == Op.DELETE.value or stored.key in superseded
            superseded.add(stored.key)
            if is_old and chosen.includes(stored.kind):
                old.append(at)
        return old

    async def has_room(self) -> bool:
        """Always: memory is not accounted for."""
        return True

    async def wait_hint(self, timeout: float) -> None:  # noqa: ASYNC109 - reaching it is no error
        """Return after the next append, or at the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._appended.wait()

    async def ping(self) -> None:
        """Always answers."""


def _prefix(stored: Row) -> str:
    return stored.body[:PREFIX_CHARACTERS].decode(errors="replace")


def _fits(stored: Row, chosen: ChangeFilter) -> bool:
    return (
        chosen.author in ("", stored.author)
        and stored.author not in chosen.without_authors
        and chosen.kind in ("", stored.kind)
        and chosen.mesh in (None, stored.mesh)
        and chosen.of_mesh in ("", stored.mesh, stored.core_name if stored.kind == "Mesh" else "")
        and chosen.core_name in ("", stored.core_name)
        and chosen.transaction in ("", stored.transaction_id)
    )
