"""PostgresLog: a log in PostgreSQL, for many control planes.

An append is one statement that swaps the counter from the expected revision to the new one, and writes
nothing if the counter has moved; so revisions become visible in order and without gaps. Changes of others are
found by polling; LISTEN and NOTIFY only make that faster. The SQL is plain, so that CockroachDB and
YugabyteDB take it too; where there is no LISTEN, polling remains.
"""

import asyncio
import secrets
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import asyncpg
import structlog

from koguma.model.errors import Unavailable
from koguma.model.redacted import masked_url
from koguma.model.resource import Key, Resource
from koguma.store import past_queries, postgres_history, postgres_migration, row
from koguma.store.contract import Change, Op, StoreUnusable, Unreadable, rfc3339
from koguma.store.log import ChangesByKey, LogLost, LogSnapshot, RowsAfter, log_replaced, too_old
from koguma.store.notifications import Notifications
from koguma.store.past_queries import ChangeFilter, HistoryBounds, KindChoice, PastQuery, numbered
from koguma.store.postgres_appends import Appends
from koguma.store.postgres_connection import PostgresConnection, StaleConnection
from koguma.store.postgres_history import KnownHistory
from koguma.store.postgres_hosts import one_line
from koguma.store.postgres_pooling import Connection
from koguma.store.postgres_proxy_states import PostgresProxyStates
from koguma.store.proxy_states import ProxyStateTable
from koguma.store.row import Row
from koguma.store.sealing import PLAIN, PREFIX_CHARACTERS, Sealing

_log = structlog.get_logger("koguma.store")

POLL_SECONDS = 0.25
LONG_SECONDS = 600.0  # for compaction, and to read everything

_COLUMNS = ", ".join(Row._fields)
_KEY = "kind, mesh, zone, namespace, name"
_TYPES = ("bigint", *["text"] * (len(Row._fields) - 1), "bool")
_DELETE = Op.DELETE.value
_PAGE = 2_000


def _rows(first: int) -> str:
    """The rows of an append as a table: one array per column, and whether a row is the last of its object."""
    arrays = ", ".join(f"${first + at}::{kind}[]" for at, kind in enumerate(_TYPES))
    return f"rows AS (SELECT * FROM unnest({arrays}) AS g ({_COLUMNS}, is_last))"


# The statements are put together from fixed names; values are always parameters.
# ruff: noqa: S608
# The revision to append to must be the newest one and, where it is known ($3), of the same transaction.
_SWAP_REVISION = (
    "UPDATE counter SET revision = $2 WHERE id = 1 AND revision = $1 AND NOT EXISTS (SELECT 1 FROM changes"
    " WHERE changes.revision = $1 AND transaction_id <> $3) RETURNING revision AS newest"
)
_INSERT_CHANGES = f"INSERT INTO changes ({_COLUMNS}) SELECT {_COLUMNS} FROM rows"
_INSERT_CURRENT = (
    f"INSERT INTO current ({_KEY}, core_name, revision) SELECT {_KEY}, core_name, revision FROM rows"
)
_ON_CONFLICT = (
    f"ON CONFLICT ({_KEY}) DO UPDATE SET core_name = excluded.core_name, revision = excluded.revision"
)
_SAME_KEY = " AND ".join(f"current.{name} = rows.{name}" for name in _KEY.split(", "))

# The common case: a batch that only puts, or only deletes, in one statement.
_APPEND_PUTS = f"""
WITH swap AS ({_SWAP_REVISION}), {_rows(4)}, logged AS ({_INSERT_CHANGES}, swap),
stored AS ({_INSERT_CURRENT}, swap WHERE is_last {_ON_CONFLICT})
SELECT newest FROM swap
"""
_APPEND_DELETES = f"""
WITH swap AS ({_SWAP_REVISION}), {_rows(4)}, logged AS ({_INSERT_CHANGES}, swap),
removed AS (DELETE FROM current USING rows, swap WHERE {_SAME_KEY})
SELECT newest FROM swap
"""
# The general case, as statements in a transaction: all touched objects are deleted, and those that remain are
# inserted again. So a core name may move from one object to another in any order.
_APPEND_STATEMENTS = (
    f"WITH {_rows(1)} {_INSERT_CHANGES}",
    f"WITH {_rows(1)} DELETE FROM current USING rows WHERE {_SAME_KEY}",
    f"WITH {_rows(1)} {_INSERT_CURRENT} WHERE is_last AND op <> '{_DELETE}'",
)

_LOCK = "SELECT revision FROM counter WHERE id = 1 FOR UPDATE"
_NO_TIMEOUT = "SET LOCAL statement_timeout = 0"
_BOUNDS = """
SELECT k.revision, k.compacted, c.transaction_id FROM counter k LEFT JOIN changes c ON c.revision = k.revision
WHERE k.id = 1
"""
_LOAD = """
SELECT p.revision, c.transaction_id, c.time, c.author, c.reason, c.op, p.kind, p.mesh, p.zone, p.namespace,
p.name, p.core_name, c.body FROM current p LEFT JOIN changes c ON c.revision = p.revision
"""
_SINCE = f"""
SELECT {_COLUMNS}, compacted, newest, known FROM (SELECT compacted, revision AS newest, (SELECT transaction_id
FROM changes WHERE changes.revision = $3) AS known FROM counter WHERE id = 1) k LEFT JOIN
(SELECT {_COLUMNS} FROM changes WHERE revision > $1 ORDER BY revision LIMIT $2) c ON TRUE ORDER BY revision
"""
_SELECT = f"SELECT {_COLUMNS} FROM changes"
_PREFIXES = "SELECT revision, left(body, $1) AS prefix FROM changes WHERE kind = ANY($2::text[])"
_REWRITE = "UPDATE changes SET body = $2 WHERE revision = $1 AND body = $3"
_BY_KEY = "kind = $1 AND mesh = $2 AND zone = $3 AND namespace = $4 AND name = $5"
_REMOVE = "DELETE FROM changes c"
_LAST_BEFORE = numbered(past_queries.LAST_BEFORE)
# Random data, which cannot be compressed, needs real space; no change has this revision.
_TEST_BYTES = 256 * 1024
_EMPTY_COLUMNS = "'', " * (len(Row._fields) - 2)
_TEST_INSERT = f"INSERT INTO changes ({_COLUMNS}) VALUES (-1, {_EMPTY_COLUMNS}$1)"
_COMPACTED = "UPDATE counter SET compacted = greatest(compacted, $1) WHERE id = 1 RETURNING compacted"


class PostgresLog:
    """A log in the database at `url`."""

    shared = True

    def __init__(self, url: str, sealing: Sealing = PLAIN) -> None:
        self._url = url
        self._sealing = sealing
        self._reader = PostgresConnection(url)
        self._notifications = Notifications(url)
        self._known = KnownHistory()
        self._appends = Appends(url)
        self._proxy_states = PostgresProxyStates(url)
        self.proxy_states: ProxyStateTable = self._proxy_states

    def __repr__(self) -> str:
        return f"PostgresLog({masked_url(self._url)!r})"

    async def open(self) -> None:
        """Connect, migrate the tables, and start to listen."""
        where = masked_url(self._url)
        try:
            async with self._appends.use() as db:
                await postgres_migration.run(db, where)
                await self._reseal(db, where)
        except LogLost as lost:
            raise Unavailable(f"{where} does not answer ({lost}); is PostgreSQL running there?") from lost
        except asyncpg.PostgresError as error:
            raise StoreUnusable(f"{where} cannot be used as a store: {one_line(error)}") from error
        self._notifications.start()

    async def _reseal(self, db: Connection, where: str) -> None:
        """Load the keys, and rewrite bodies that are not encrypted as configured, history included."""
        sealing = self._sealing
        stored = await db.fetch(_PREFIXES, PREFIX_CHARACTERS, sealing.kinds)
        # In a thread, since a key command may take long.
        await asyncio.to_thread(sealing.load_keys, [record["prefix"] for record in stored], where)
        outdated = [record["revision"] for record in stored if not sealing.is_current(record["prefix"])]
        for revision in outdated:
            values = await db.fetchrow(f"{_SELECT} WHERE revision = $1", revision)
            if values is not None:  # else it was compacted away meanwhile
                body = _text(sealing.resealed(values).body)
                await db.execute(_REWRITE, revision, body, values["body"])
        if outdated:
            _log.info("Secrets are stored anew", revisions=len(outdated), encrypted=bool(sealing.prefix))

    async def close(self) -> None:
        """Close the connections."""
        await self._notifications.close()
        await self._appends.close()
        await self._reader.close()
        await self._proxy_states.close()

    async def load(self) -> LogSnapshot:
        """The current objects, all as of one revision."""
        self._known.forget()
        await self._appends.settle()
        async with self._reader.use() as db, db.transaction(isolation="repeatable_read", readonly=True):
            await db.execute(_NO_TIMEOUT)
            bounds = await db.fetchrow(_BOUNDS)
            entries = [
                row.entry(values, self._sealing.opened)
                for values in await db.fetch(_LOAD, timeout=LONG_SECONDS)
            ]
        assert bounds is not None
        transaction = bounds["transaction_id"] or ""
        self._known.follow(bounds["revision"], transaction)
        resources = tuple(entry for entry in entries if isinstance(entry, Resource))
        unreadable = tuple(entry for entry in entries if isinstance(entry, Unreadable))
        return LogSnapshot(bounds["revision"], bounds["compacted"], resources, unreadable, transaction)

    async def since(self, revision: int, limit: int | None = None) -> list[Change]:
        """The changes after a revision, oldest first."""
        await self._appends.settle()
        async with self._reader.use() as db:
            changes = await self._since(db, revision, limit)
        self._follow(changes)
        return changes

    def _follow(self, changes: Sequence[Change]) -> None:
        if changes:
            self._known.follow(changes[-1].revision, changes[-1].transaction)

    async def append(self, expected: int, rows: Sequence[Row]) -> bool:
        """Append rows, if `expected` is the newest revision."""
        with suppress(StaleConnection):  # nothing was sent
            return await self._append_once(expected, rows)
        return await self._append_once(expected, rows)

    async def _append_once(self, expected: int, rows: Sequence[Row]) -> bool:
        async with self._appends.use() as db:
            try:
                known = self._known.transaction_at(expected)
                is_appended = await _append(db, expected, known, self._sealing.sealed(rows))
            except asyncpg.TransactionRollbackError:  # known not to have happened
                return False
        if is_appended:
            self._appended(rows)
        return is_appended

    async def append_locked(self, after: int, rows_after: RowsAfter) -> None:
        """Lock the row of the counter, so that nobody else writes between reading and appending."""
        async with self._appends.use() as db, db.transaction():
            await db.fetchval(_LOCK)
            changes = await self._since(db, after)
            rows = rows_after(changes)
            sealed = self._sealing.sealed(rows)
            if sealed and not await _append_in_transaction(db, sealed[0].revision - 1, None, sealed):
                raise log_replaced(after)
        self._follow(changes)
        self._appended(rows)

    def _appended(self, rows: Sequence[Row]) -> None:
        if rows:
            self._known.follow(rows[-1].revision, rows[-1].transaction_id)
        self._notifications.send()

    async def history(self, key: Key, limit: int) -> list[Change]:
        """The changes of one object, newest first."""
        return await self._changes(f"{_SELECT} WHERE {_BY_KEY} ORDER BY revision DESC LIMIT $6", *key, limit)

    async def change_at(self, revision: int) -> Change | None:
        """The change of a revision."""
        return next(iter(await self._changes(f"{_SELECT} WHERE revision = $1", revision)), None)

    async def history_bounds(self) -> HistoryBounds:
        """The newest revision, and the oldest ones at which objects are known."""
        return HistoryBounds(*(await self._past(PastQuery(past_queries.BOUNDS, ())))[0])

    async def changes(self, chosen: ChangeFilter, after: int, before: int, limit: int) -> list[Change]:
        """The kept changes between two revisions, both left out, newest first."""
        rows = await self._past(past_queries.changes("{}", chosen, after, before, limit))
        return [row.decoded(values, self._sealing.opened) for values in rows]

    async def as_of(
        self, revision: int, low: int, high: int, chosen: KindChoice, limit: int | None = None
    ) -> ChangesByKey:
        """Of each object that changed in between: its last change at a revision, or None."""
        rows = await self._past(past_queries.as_of("{}", revision, low, high, chosen, limit))
        return dict(row.keyed(tuple(values), self._sealing.opened) for values in rows)

    async def revision_at(self, time: str) -> int:
        """The newest revision at a time."""
        rows = await self._past(PastQuery(past_queries.LAST_UNTIL, (time,)))
        return int(rows[0][0]) if rows else 0

    async def _past(self, query: PastQuery) -> list[Any]:
        """Read on a connection of its own, since it may take long; others wait for the reader's."""
        connection = PostgresConnection(self._url)
        try:
            async with connection.use() as db:
                return list(await db.fetch(numbered(query.text), *query.values))
        finally:
            await connection.close()

    async def compact(self, before: datetime, short_before: datetime, short_kinds: Collection[str]) -> int:
        """Remove changes that were superseded before a time; on a connection of its own: it may take long."""
        connection = PostgresConnection(self._url)
        short = KindChoice(tuple(sorted(short_kinds)))
        try:
            async with connection.use() as db, db.transaction():
                await db.execute(_NO_TIMEOUT)
                boundary = await db.fetchval(_LAST_BEFORE, rfc3339(before)) or 0
                short_boundary = max(boundary, await db.fetchval(_LAST_BEFORE, rfc3339(short_before)) or 0)
                removed = await _remove(db, boundary, short._replace(are_excluded=True), "oldest")
                removed += await _remove(db, short_boundary, short, "oldest_short")
                compacted: int = await db.fetchval(_COMPACTED, max(removed, default=0))
        finally:
            await connection.close()
        return compacted

    async def has_room(self) -> bool:
        """Insert as much as a large object needs, and roll back."""
        async with self._reader.use() as db:
            attempt = db.transaction()
            await attempt.start()
            try:
                await db.execute(_TEST_INSERT, secrets.token_hex(_TEST_BYTES // 2))
            except asyncpg.DiskFullError:
                return False
            finally:
                await attempt.rollback()
        return True

    async def wait_hint(self, timeout: float) -> None:  # noqa: ASYNC109 - reaching it is no error
        """Return after a notification, but never later than the next poll is due."""
        await self._notifications.wait(min(timeout, POLL_SECONDS))

    @property
    def connection_summary(self) -> str:
        """Whether other control planes are followed by notifications or by polling alone."""
        every = f"{POLL_SECONDS:g} s"
        return f"behind a connection pooler: polled every {every}" if self._reader.is_pooled else ""

    async def ping(self) -> None:
        """Run a trivial query."""
        async with self._reader.use() as db:
            await db.fetchval("SELECT 1")

    async def _since(self, db: Connection, revision: int, limit: int | None = None) -> list[Change]:
        """Read page by page, so that no statement takes long; a page that is not full is the last."""
        if limit is not None:
            return await self._page(db, revision, limit)
        changes: list[Change] = []
        while len(page := await self._page(db, revision, _PAGE)) == _PAGE:
            changes += page
            revision = page[-1].revision
        return changes + page

    async def _page(self, db: Connection, revision: int, limit: int) -> list[Change]:
        known = self._known.newest
        records = [tuple(record) for record in await db.fetch(_SINCE, revision, limit, known[0])]
        *_, compacted, newest, transaction = records[0]
        postgres_history.check(known, newest, transaction)
        if revision < compacted:
            raise too_old(revision, compacted)
        opened = self._sealing.opened
        return [row.decoded(values[:-3], opened) for values in records if values[0] is not None]

    async def _changes(self, query: str, *values: Any) -> list[Change]:
        async with self._reader.use() as db:
            return [row.decoded(stored, self._sealing.opened) for stored in await db.fetch(query, *values)]


async def _remove(db: Connection, boundary: int, chosen: KindChoice, oldest: str) -> list[int]:
    """Remove what was superseded by the boundary; what is known of the past begins there then."""
    text, values = past_queries.superseded(_REMOVE, boundary, chosen)
    records = await db.fetch(f"{numbered(text)} RETURNING revision", *values, timeout=LONG_SECONDS)
    if records:
        await db.execute(f"UPDATE counter SET {oldest} = greatest({oldest}, $1) WHERE id = 1", boundary)
    return [record["revision"] for record in records]


async def _append(db: Connection, expected: int, known: str | None, rows: Sequence[Row]) -> bool:
    n_deletes = sum(each.op == _DELETE for each in rows)
    if n_deletes in (0, len(rows)):
        statement = _APPEND_DELETES if n_deletes else _APPEND_PUTS
        with suppress(asyncpg.UniqueViolationError):  # a core name moves to another object
            values = (expected, rows[-1].revision, known, *_arrays(rows))
            return await db.fetchval(statement, *values) is not None
    async with db.transaction():
        return await _append_in_transaction(db, expected, known, rows)


async def _append_in_transaction(
    db: Connection, expected: int, known: str | None, rows: Sequence[Row]
) -> bool:
    if await db.fetchval(_SWAP_REVISION, expected, rows[-1].revision, known) is None:
        return False
    arrays = _arrays(rows)
    for statement in _APPEND_STATEMENTS:
        await db.execute(statement, *arrays)
    return True


def _arrays(rows: Sequence[Row]) -> tuple[Sequence[Any], ...]:
    """The columns of the rows; bodies as text, and whether each row is the last of its object."""
    last = {each[6:11]: each.revision for each in rows}
    *columns, bodies = zip(*rows, strict=True)
    return (
        *columns,
        [_text(body) for body in bodies],
        [last[each[6:11]] == each.revision for each in rows],
    )


def _text(body: bytes | str) -> str:
    return body if isinstance(body, str) else body.decode()
