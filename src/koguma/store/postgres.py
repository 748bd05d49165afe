"""PostgresLog: a log in PostgreSQL, for many control planes.

An append is one statement that moves the counter on from the revision that was expected, and writes
nothing if it has moved already; so revisions become visible in their order and without gaps. Polling tells
what others wrote; LISTEN and NOTIFY only say when to look. The SQL is plain, so that CockroachDB and
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
from koguma.store import migrate, row
from koguma.store.contract import Change, Op, StoreUnusable, Unreadable, rfc3339
from koguma.store.link import Connection, Link, words
from koguma.store.log import Decide, LogLost, LogSnapshot, too_old, went_back
from koguma.store.notices import Notices
from koguma.store.row import Opened, Row
from koguma.store.sealing import PLAIN, PREFIX_CHARACTERS, Sealing

_log = structlog.get_logger("koguma.store")

POLL_SECONDS = 0.25
LONG_SECONDS = 600.0  # for migrations and compaction

_COLUMNS = ", ".join(Row._fields)
_KEY = "kind, mesh, zone, namespace, name"
_TYPES = ("bigint", *["text"] * (len(Row._fields) - 1), "bool")
_DELETE = Op.DELETE.value
_PAGE = 2_000


def _given(first: int) -> str:
    """The rows of an append: one array per column, and whether each row is the last of its object."""
    arrays = ", ".join(f"${first + at}::{kind}[]" for at, kind in enumerate(_TYPES))
    return f"given AS (SELECT * FROM unnest({arrays}) AS g ({_COLUMNS}, is_last))"


# The statements are put together from fixed names; values are always parameters.
# ruff: noqa: S608
_TAKE_TURN = "UPDATE counter SET revision = $2 WHERE id = 1 AND revision = $1 RETURNING revision AS newest"
_LOG = f"INSERT INTO changes ({_COLUMNS}) SELECT {_COLUMNS} FROM given"
_PLACE = f"INSERT INTO current ({_KEY}, core_name, revision) SELECT {_KEY}, core_name, revision FROM given"
_REPLACE = f"ON CONFLICT ({_KEY}) DO UPDATE SET core_name = excluded.core_name, revision = excluded.revision"
_SAME = " AND ".join(f"current.{name} = given.{name}" for name in _KEY.split(", "))

# The common case: a batch that only puts, or only deletes, in one statement.
_APPEND_PUTS = f"""
WITH turn AS ({_TAKE_TURN}), {_given(3)}, logged AS ({_LOG}, turn),
placed AS ({_PLACE}, turn WHERE is_last {_REPLACE})
SELECT newest FROM turn
"""
_APPEND_DELETES = f"""
WITH turn AS ({_TAKE_TURN}), {_given(3)}, logged AS ({_LOG}, turn),
removed AS (DELETE FROM current USING given, turn WHERE {_SAME})
SELECT newest FROM turn
"""
# The general case, in steps inside a transaction: what is touched goes, and what remains of it comes back. So
# core names may change hands in any order.
_STEPS = (
    f"WITH {_given(1)} {_LOG}",
    f"WITH {_given(1)} DELETE FROM current USING given WHERE {_SAME}",
    f"WITH {_given(1)} {_PLACE} WHERE is_last AND op <> '{_DELETE}'",
)

_LOCK = "SELECT revision FROM counter WHERE id = 1 FOR UPDATE"
_NO_TIMEOUT = "SET LOCAL statement_timeout = 0"
_BOUNDS = "SELECT revision, compacted FROM counter WHERE id = 1"
_LOAD = """
SELECT p.revision, c.transaction_id, c.time, c.author, c.reason, c.op, p.kind, p.mesh, p.zone, p.namespace,
p.name, p.core_name, c.body FROM current p LEFT JOIN changes c ON c.revision = p.revision
"""
_SINCE = f"""
SELECT {_COLUMNS}, compacted FROM (SELECT compacted FROM counter WHERE id = 1) k LEFT JOIN
(SELECT {_COLUMNS} FROM changes WHERE revision > $1 ORDER BY revision LIMIT $2) c ON TRUE ORDER BY revision
"""
_SELECT = f"SELECT {_COLUMNS} FROM changes"
_PREFIXES = "SELECT revision, left(body, $1) AS prefix FROM changes WHERE kind = ANY($2::text[])"
_REWRITE = "UPDATE changes SET body = $2 WHERE revision = $1 AND body = $3"
_OF_ONE = "kind = $1 AND mesh = $2 AND zone = $3 AND namespace = $4 AND name = $5"
_FORGET = """
DELETE FROM changes WHERE (time < $1 OR (time < $2 AND kind = ANY($3::text[])))
AND revision NOT IN (SELECT revision FROM current) RETURNING revision
"""
# What cannot be compressed has to be given room; the revision is one that no change has.
_ROOM_BYTES = 256 * 1024
_NO_WORDS = "'', " * (len(Row._fields) - 2)
_TRY_ROOM = f"INSERT INTO changes ({_COLUMNS}) VALUES (-1, {_NO_WORDS}$1)"
_COMPACTED = "UPDATE counter SET compacted = greatest(compacted, $1) WHERE id = 1 RETURNING compacted"


class PostgresLog:
    """A log in the database at `url`."""

    shared = True

    def __init__(self, url: str, sealing: Sealing = PLAIN) -> None:
        self._url = url
        self._sealing = sealing
        self._writer = Link(url)
        self._reader = Link(url)
        self._notices = Notices(url)

    def __repr__(self) -> str:
        return f"PostgresLog({masked_url(self._url)!r})"

    async def open(self) -> None:
        """Connect, bring the tables up to date, and begin to listen."""
        where = masked_url(self._url)
        try:
            async with self._writer.use() as db:
                await _migrate(db, where)
                await self._seal_as_it_should_be(db, where)
        except LogLost as lost:
            raise Unavailable(f"{where} does not answer ({lost}); is PostgreSQL running there?") from lost
        except asyncpg.PostgresError as error:
            raise StoreUnusable(f"{where} cannot be used as a store: {words(error)}") from error
        self._notices.start()

    async def _seal_as_it_should_be(self, db: Connection, where: str) -> None:
        """Get the keys, and write anew what is stored in another form than it is to be, history included."""
        sealing = self._sealing
        stored = await db.fetch(_PREFIXES, PREFIX_CHARACTERS, sealing.kinds)
        # On a thread, since a key command may take its time.
        await asyncio.to_thread(sealing.begin, [found["prefix"] for found in stored], where)
        wrong = [one["revision"] for one in stored if not sealing.is_as_it_should_be(one["prefix"])]
        for revision in wrong:
            values = await db.fetchrow(f"{_SELECT} WHERE revision = $1", revision)
            if values is not None:  # else it was compacted away meanwhile
                body = _text(sealing.again(values).body)
                await db.execute(_REWRITE, revision, body, values["body"])
        if wrong:
            _log.info("Secrets are stored anew", revisions=len(wrong), encrypted=bool(sealing.prefix))

    async def close(self) -> None:
        """Let go of the connections."""
        await self._notices.close()
        await self._writer.close()
        await self._reader.close()

    async def load(self) -> LogSnapshot:
        """What is current, all of one moment."""
        async with self._reader.use() as db, db.transaction(isolation="repeatable_read", readonly=True):
            await db.execute(_NO_TIMEOUT)
            bounds = await db.fetchrow(_BOUNDS)
            found = [
                row.entry(values, self._sealing.opened)
                for values in await db.fetch(_LOAD, timeout=LONG_SECONDS)
            ]
        assert bounds is not None
        resources = tuple(entry for entry in found if isinstance(entry, Resource))
        unreadable = tuple(entry for entry in found if isinstance(entry, Unreadable))
        return LogSnapshot(bounds["revision"], bounds["compacted"], resources, unreadable)

    async def since(self, revision: int, limit: int | None = None) -> list[Change]:
        """The changes after a revision, oldest first."""
        async with self._reader.use() as db:
            return await _since(db, revision, limit, self._sealing.opened)

    async def append(self, expected: int, rows: Sequence[Row]) -> bool:
        """Add rows, if `expected` is the newest revision."""
        async with self._writer.use() as db:
            try:
                done = await _append(db, expected, self._sealing.sealed(rows))
            except asyncpg.TransactionRollbackError:  # known not to have happened
                return False
        if done:
            self._notices.send()
        return done

    async def append_in_turn(self, after: int, decide: Decide) -> None:
        """Hold the counter's row, so that nobody else writes between reading and appending."""
        async with self._writer.use() as db, db.transaction():
            await db.fetchval(_LOCK)
            rows = decide(await _since(db, after, None, self._sealing.opened))
            rows = self._sealing.sealed(rows)
            if rows and not await _append_in_steps(db, rows[0].revision - 1, rows):
                raise went_back(after)
        self._notices.send()

    async def history(self, key: Key, limit: int) -> list[Change]:
        """The changes of one object, newest first."""
        return await self._changes(f"{_SELECT} WHERE {_OF_ONE} ORDER BY revision DESC LIMIT $6", *key, limit)

    async def change_at(self, revision: int) -> Change | None:
        """One change."""
        return next(iter(await self._changes(f"{_SELECT} WHERE revision = $1", revision)), None)

    async def compact(self, before: datetime, short_before: datetime, short_kinds: Collection[str]) -> int:
        """Forget old changes that are not current; on a connection of its own, since it may take long."""
        link = Link(self._url)
        values = (rfc3339(before), rfc3339(short_before), sorted(short_kinds))
        try:
            async with link.use() as db, db.transaction():
                await db.execute(_NO_TIMEOUT)
                gone = await db.fetch(_FORGET, *values, timeout=LONG_SECONDS)
                newest = max((found["revision"] for found in gone), default=0)
                compacted: int = await db.fetchval(_COMPACTED, newest)
        finally:
            await link.close()
        return compacted

    async def has_room(self) -> bool:
        """Insert as much as a large object needs, and take it back."""
        async with self._reader.use() as db:
            attempt = db.transaction()
            await attempt.start()
            try:
                await db.execute(_TRY_ROOM, secrets.token_hex(_ROOM_BYTES // 2))
            except asyncpg.DiskFullError:
                return False
            finally:
                await attempt.rollback()
        return True

    async def wait_hint(self, timeout: float) -> None:  # noqa: ASYNC109 - a hint may simply not come
        """Return after a notification, but never later than the next poll is due."""
        await self._notices.wait(min(timeout, POLL_SECONDS))

    async def ping(self) -> None:
        """Ask the server for something small."""
        async with self._reader.use() as db:
            await db.fetchval("SELECT 1")

    async def _changes(self, query: str, *values: Any) -> list[Change]:
        async with self._reader.use() as db:
            return [row.decoded(found, self._sealing.opened) for found in await db.fetch(query, *values)]


async def _since(db: Connection, revision: int, limit: int | None, opened: Opened) -> list[Change]:
    """Page by page, so that no statement takes long; a page that is not full ends at one moment's newest."""
    if limit is not None:
        return await _page(db, revision, limit, opened)
    changes: list[Change] = []
    while len(page := await _page(db, revision, _PAGE, opened)) == _PAGE:
        changes += page
        revision = page[-1].revision
    return changes + page


async def _page(db: Connection, revision: int, limit: int, opened: Opened) -> list[Change]:
    found = await db.fetch(_SINCE, revision, limit)
    compacted = found[0]["compacted"]
    if revision < compacted:
        raise too_old(revision, compacted)
    return [row.decoded(values[:-1], opened) for values in map(tuple, found) if values[0] is not None]


async def _append(db: Connection, expected: int, rows: Sequence[Row]) -> bool:
    deletes = sum(one.op == _DELETE for one in rows)
    if deletes in (0, len(rows)):
        statement = _APPEND_DELETES if deletes else _APPEND_PUTS
        with suppress(asyncpg.UniqueViolationError):  # a core name changes hands
            return await db.fetchval(statement, expected, rows[-1].revision, *_arrays(rows)) is not None
    async with db.transaction():
        return await _append_in_steps(db, expected, rows)


async def _append_in_steps(db: Connection, expected: int, rows: Sequence[Row]) -> bool:
    if await db.fetchval(_TAKE_TURN, expected, rows[-1].revision) is None:
        return False
    arrays = _arrays(rows)
    for step in _STEPS:
        await db.execute(step, *arrays)
    return True


def _arrays(rows: Sequence[Row]) -> tuple[Sequence[Any], ...]:
    """The columns of the rows; bodies as text, and whether each row is the last of its object."""
    last = {one[6:11]: one.revision for one in rows}
    *columns, bodies = zip(*rows, strict=True)
    return (
        *columns,
        [_text(body) for body in bodies],
        [last[one[6:11]] == one.revision for one in rows],
    )


def _text(body: bytes | str) -> str:
    return body if isinstance(body, str) else body.decode()


async def _migrate(db: Connection, where: str) -> None:
    """Run what is pending. Several control planes may start at once: one is first, the others look again."""
    for attempt in range(20):
        try:
            version = await db.fetchval(migrate.NEWEST)
        except asyncpg.UndefinedTableError:
            version = None
        steps = migrate.pending("postgres", version, where)
        if not steps:
            return
        with suppress(asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.SerializationError):
            await _run(db, steps)
        await asyncio.sleep(0.05 * attempt)
    raise LogLost("another control plane keeps changing the tables")


async def _run(db: Connection, steps: Sequence[migrate.Migration]) -> None:
    async with db.transaction():
        await db.execute(_NO_TIMEOUT)
        await db.execute(migrate.VERSIONS_TABLE)
        for step in steps:  # the number first: who writes it second waits here, and then fails
            await db.execute("INSERT INTO schema_version VALUES ($1, $2)", step.version, step.name)
            for statement in step.statements:
                await db.execute(statement, timeout=LONG_SECONDS)
