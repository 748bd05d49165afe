"""SqliteLog: a log in an SQLite file, for one process.

SQLite runs on a thread of its own, so that waiting for the disk never blocks the event loop; a batch costs
one call to that thread. A write is on the disk (WAL, full sync) before it succeeds.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import structlog

from koguma.model.resource import Key, Resource
from koguma.store import migrate, past_queries, row, store_format
from koguma.store.contract import Change, Op, Unreadable, rfc3339
from koguma.store.disk_reserve import RESERVE_BYTES
from koguma.store.log import ChangesByKey, LogSnapshot, RowsAfter, log_replaced, too_old
from koguma.store.past_queries import ChangeFilter, HistoryBounds, KindChoice, PastQuery
from koguma.store.proxy_states import ProxyStateTable
from koguma.store.row import Row
from koguma.store.sealing import PLAIN, PREFIX_CHARACTERS, Sealing
from koguma.store.sqlite_database import SqliteDatabase
from koguma.store.sqlite_proxy_states import SqliteProxyStates

_log = structlog.get_logger("koguma.store")

_COLUMNS = ", ".join(Row._fields)
_CURRENT_COLUMNS = "kind, mesh, zone, namespace, name, core_name, revision"
_BY_KEY = "kind = ? AND mesh = ? AND zone = ? AND namespace = ? AND name = ?"
_SWAP_REVISION = "UPDATE counter SET revision = ? WHERE id = 1 AND revision = ?"
_APPEND = f"INSERT INTO changes ({_COLUMNS}) VALUES ({', '.join('?' * len(Row._fields))})"  # noqa: S608 - fixed names
# By operation: how a row changes the table of current revisions.
_CURRENT: dict[str, tuple[str, Callable[[Row], tuple[Any, ...]]]] = {
    Op.CREATE.value: (
        f"INSERT INTO current ({_CURRENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - fixed names
        lambda row: (*row[6:12], row.revision),
    ),
    Op.UPDATE.value: (
        f"UPDATE current SET core_name = ?, revision = ? WHERE {_BY_KEY}",  # noqa: S608 - fixed names
        lambda row: (row.core_name, row.revision, *row[6:11]),
    ),
    Op.DELETE.value: (
        f"DELETE FROM current WHERE {_BY_KEY}",  # noqa: S608 - fixed names
        lambda row: row[6:11],
    ),
}
_BOUNDS = "SELECT revision, compacted FROM counter WHERE id = 1"
_TRANSACTION_AT = "SELECT transaction_id FROM changes WHERE revision = ?"
_LOAD = (
    "SELECT p.revision, c.transaction_id, c.time, c.author, c.reason, c.op, p.kind, p.mesh, p.zone,"
    " p.namespace, p.name, p.core_name, CAST(c.body AS BLOB)"
    " FROM current p LEFT JOIN changes c ON c.revision = p.revision"
)
_SELECT = f"SELECT {_COLUMNS.replace('body', 'CAST(body AS BLOB)')} FROM changes"  # noqa: S608 - fixed names
_COMPACTED_AT_ONCE = 500  # changes, so that neither writes nor the disk have to wait for all
_BODY = "CAST({} AS BLOB)"


class SqliteLog:
    """A log in the file at `path`."""

    shared = False
    connection_summary = ""

    def __init__(
        self, path: str | Path, reserve_bytes: int = RESERVE_BYTES, sealing: Sealing = PLAIN
    ) -> None:
        self.path = Path(path)
        self._sealing = sealing
        self._database = SqliteDatabase(self.path, reserve_bytes)
        self.proxy_states: ProxyStateTable = SqliteProxyStates(self._database)

    def __repr__(self) -> str:
        return f"SqliteLog({str(self.path)!r})"

    async def open(self) -> None:
        """Lock and open the file, and migrate its tables."""
        await self._database.run(lambda: self._database.open(self._migrate, self._reseal))

    async def close(self) -> None:
        """Close the file and release its lock."""
        await self._database.close()

    async def load(self) -> LogSnapshot:
        """The current objects."""
        return await self._database.run(self._load)

    async def since(self, revision: int, limit: int | None = None) -> list[Change]:
        """The changes after a revision, oldest first."""
        return await self._database.run(lambda: self._since(revision, limit))

    async def append(self, expected: int, rows: Sequence[Row]) -> bool:
        """Append rows, if `expected` is the newest revision."""
        return await self._database.run(lambda: self._append(expected, rows))

    async def append_locked(self, after: int, rows_after: RowsAfter) -> None:
        """Read, then append. There is no other writer to lock out."""
        changes = await self.since(after)
        rows = rows_after(changes)
        if rows and not await self.append(rows[0].revision - 1, rows):
            raise log_replaced(after)

    async def history(self, key: Key, limit: int) -> list[Change]:
        """The changes of one object, newest first."""
        return await self._changes(f"{_SELECT} WHERE {_BY_KEY} ORDER BY revision DESC LIMIT ?", (*key, limit))

    async def change_at(self, revision: int) -> Change | None:
        """The change of a revision."""
        return next(iter(await self._changes(f"{_SELECT} WHERE revision = ?", (revision,))), None)

    async def history_bounds(self) -> HistoryBounds:
        """The newest revision, and the oldest ones at which objects are known."""
        return HistoryBounds(*(await self._past(PastQuery(past_queries.BOUNDS, ())))[0])

    async def changes(self, chosen: ChangeFilter, after: int, before: int, limit: int) -> list[Change]:
        """The kept changes between two revisions, both left out, newest first."""
        rows = await self._past(past_queries.changes(_BODY, chosen, after, before, limit))
        return [row.decoded(values, self._sealing.opened) for values in rows]

    async def as_of(
        self, revision: int, low: int, high: int, chosen: KindChoice, limit: int | None = None
    ) -> ChangesByKey:
        """Of each object that changed in between: its last change at a revision, or None."""
        rows = await self._past(past_queries.as_of(_BODY, revision, low, high, chosen, limit))
        return dict(row.keyed(values, self._sealing.opened) for values in rows)

    async def revision_at(self, time: str) -> int:
        """The newest revision at a time."""
        rows = await self._past(PastQuery(past_queries.LAST_UNTIL, (time,)))
        return int(rows[0][0]) if rows else 0

    async def _past(self, query: PastQuery) -> list[tuple[Any, ...]]:
        """Read on a connection of its own, in a thread of its own: writes must not wait for old revisions."""
        return await asyncio.to_thread(self._database.read_beside, *query)

    async def compact(self, before: datetime, short_before: datetime, short_kinds: Collection[str]) -> int:
        """Remove changes that were superseded before a time."""
        run, reserved = self._database.run, self._database.with_reserve
        limits = (rfc3339(before), rfc3339(short_before), KindChoice(tuple(sorted(short_kinds))))
        old = await run(lambda: reserved(lambda: self._old(*limits)))
        for revisions in _chunks(old, self._database.reserve.size // 8):
            await run(partial(reserved, partial(self._remove, revisions)))
        return (await run(self._bounds))[1]

    async def has_room(self) -> bool:
        """Whether the disk has space for the whole reserve and a little more."""
        database = self._database
        return await database.run(lambda: database.has_reserve() and not database.reserve.is_disk_full())

    async def wait_hint(self, timeout: float) -> None:  # noqa: ASYNC109 - no hint ever comes
        """Sleep: there is no other writer."""
        await asyncio.sleep(timeout)

    async def ping(self) -> None:
        """Run a trivial query."""
        await self._database.run(lambda: self._database.connection.execute("SELECT 1").fetchone())

    async def _changes(self, query: str, values: tuple[Any, ...]) -> list[Change]:
        return await self._database.run(
            lambda: [
                row.decoded(stored, self._sealing.opened)
                for stored in self._database.connection.execute(query, values)
            ]
        )

    # What follows runs on the thread of the database.

    def _migrate(self) -> None:
        with self._database.transaction() as db:
            db.execute(store_format.TABLE)
            store_format.is_noted(db.execute(store_format.READ).fetchone(), str(self.path))
            db.execute(migrate.VERSIONS_TABLE)
            version = db.execute(migrate.NEWEST).fetchone()[0]
            for migration in migrate.pending("sqlite", version):
                db.execute(
                    "INSERT INTO schema_version (version, name) VALUES (?, ?)",
                    (migration.version, migration.name),
                )
                for statement in migration.statements:
                    db.execute(statement)
            db.execute(store_format.WRITE)

    def _reseal(self) -> None:
        """Load the keys, and rewrite bodies that are not encrypted as configured, history included."""
        kinds = self._sealing.kinds
        among = f"kind IN ({', '.join('?' * len(kinds))})"
        query = (
            f"SELECT revision, substr(CAST(body AS TEXT), 1, {PREFIX_CHARACTERS}) FROM changes WHERE {among}"  # noqa: S608 - placeholders only
        )
        stored: list[tuple[int, str]] = self._database.connection.execute(query, kinds).fetchall()
        self._sealing.load_keys((prefix for _, prefix in stored), str(self.path))
        outdated = [revision for revision, prefix in stored if not self._sealing.is_current(prefix)]
        if not outdated:
            return
        with self._database.transaction() as db:
            for revision in outdated:
                values = db.execute(f"{_SELECT} WHERE revision = ?", (revision,)).fetchone()
                body = self._sealing.resealed(values).body
                db.execute("UPDATE changes SET body = ? WHERE revision = ?", (body, revision))
        encrypted = bool(self._sealing.prefix)
        _log.info("Secrets are stored anew", revisions=len(outdated), encrypted=encrypted)
        try:  # pages that were freed earlier may still hold the old bodies
            self._database.connection.execute("VACUUM")
        except sqlite3.OperationalError as error:
            _log.warning("old pages of the store are not overwritten", reason=str(error), file=str(self.path))
        self._database.checkpoint()

    def _load(self) -> LogSnapshot:
        revision, compacted = self._bounds()
        stored = self._database.connection.execute(_LOAD)
        entries = [row.entry(values, self._sealing.opened) for values in stored]
        resources = tuple(entry for entry in entries if isinstance(entry, Resource))
        unreadable = tuple(entry for entry in entries if isinstance(entry, Unreadable))
        newest = self._database.connection.execute(_TRANSACTION_AT, (revision,)).fetchone()
        return LogSnapshot(revision, compacted, resources, unreadable, newest[0] if newest else "")

    def _since(self, revision: int, limit: int | None) -> list[Change]:
        _, compacted = self._bounds()
        if revision < compacted:
            raise too_old(revision, compacted)
        query = f"{_SELECT} WHERE revision > ? ORDER BY revision LIMIT ?"
        stored = self._database.connection.execute(query, (revision, -1 if limit is None else limit))
        return [row.decoded(values, self._sealing.opened) for values in stored]

    def _bounds(self) -> tuple[int, int]:
        """The newest revision, and the one up to which changes may have been compacted away."""
        revision, compacted = self._database.connection.execute(_BOUNDS).fetchone()
        return revision, compacted

    def _append(self, expected: int, rows: Sequence[Row]) -> bool:
        database = self._database
        if all(each.op == Op.DELETE.value for each in rows):
            return database.with_reserve(lambda: self._append_rows(expected, rows))
        if not database.has_reserve():  # else new objects would use up the space that deletes need
            raise database.full_error()
        try:
            return self._append_rows(expected, rows)
        except sqlite3.OperationalError as error:
            if database.is_full(error):
                raise database.full_error() from error
            raise

    def _append_rows(self, expected: int, rows: Sequence[Row]) -> bool:
        with self._database.transaction() as db:
            if db.execute(_SWAP_REVISION, (rows[-1].revision, expected)).rowcount == 0:
                return False
            db.executemany(_APPEND, self._sealing.sealed(rows))
            for op, same_op in groupby(rows, attrgetter("op")):
                statement, values = _CURRENT[op]
                db.executemany(statement, [values(each) for each in same_op])
        return True

    def _old(self, before: str, short_before: str, short: KindChoice) -> list[tuple[int, int]]:
        """The changes to remove, oldest first: revision and size. What is known of the past begins later."""
        select = "SELECT c.revision, length(c.body) FROM changes c"
        boundary, short_boundary = self._last_before(before), self._last_before(short_before)
        short_boundary = max(boundary, short_boundary)
        others = short._replace(are_excluded=True)
        with self._database.transaction() as db:
            old: list[tuple[int, int]] = db.execute(
                *past_queries.superseded(select, boundary, others)
            ).fetchall()
            old_short: list[tuple[int, int]] = db.execute(
                *past_queries.superseded(select, short_boundary, short)
            ).fetchall()
            if old:
                db.execute(past_queries.RAISE_OLDEST, (boundary, boundary))
            if old_short:
                db.execute(past_queries.RAISE_OLDEST_SHORT, (short_boundary, short_boundary))
        return sorted((*old, *old_short))

    def _last_before(self, time: str) -> int:
        found = self._database.connection.execute(past_queries.LAST_BEFORE, (time,)).fetchone()
        return int(found[0]) if found else 0

    def _remove(self, revisions: Sequence[int]) -> None:
        with self._database.transaction() as db:
            db.executemany("DELETE FROM changes WHERE revision = ?", [(revision,) for revision in revisions])
            db.execute("UPDATE counter SET compacted = max(compacted, ?) WHERE id = 1", (revisions[-1],))


def _chunks(old: Sequence[tuple[int, int]], bytes_max: int) -> Iterator[list[int]]:
    """Revisions in chunks whose removal fits into a part of the reserve."""
    chunk: list[int] = []
    left = bytes_max
    for revision, size in old:
        if chunk and (len(chunk) == _COMPACTED_AT_ONCE or size > left):
            yield chunk
            chunk, left = [], bytes_max
        chunk.append(revision)
        left -= size
    if chunk:
        yield chunk
