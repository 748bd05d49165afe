"""SqliteLog: a log in one file, for one process.

SQLite runs on a thread of its own, so that waiting for the disk never stops the event loop; a batch costs
one hop to it. A write is on the disk (WAL, full sync) before it is answered. A lock beside the file keeps a
second process out, because each process answers reads from its own memory.

Where the disk is full, appends fail at once with the reason, and only deletes and the removal of old history
go on: they have the room of a file that was kept for them (`reserve`).
"""

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import structlog

from koguma.model.resource import Key, Resource
from koguma.store import migrate, row
from koguma.store.contract import Change, Op, StoreUnusable, Unreadable, rfc3339
from koguma.store.log import Decide, LogFull, LogLost, LogSnapshot, too_old, went_back
from koguma.store.reserve import RESERVE_BYTES, Reserve
from koguma.store.row import Row
from koguma.store.sealing import PLAIN, PREFIX_CHARACTERS, Sealing
from koguma.store.worker import Worker

T = TypeVar("T")

_log = structlog.get_logger("koguma.store")

_COLUMNS = ", ".join(Row._fields)
_PLACE = "kind, mesh, zone, namespace, name, core_name, revision"
_ONE = "kind = ? AND mesh = ? AND zone = ? AND namespace = ? AND name = ?"
_SETTINGS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA busy_timeout = 5000",
    "PRAGMA foreign_keys = OFF",
    "PRAGMA secure_delete = ON",  # what was deleted is overwritten, so that no Secret stays in a free page
)
_TAKE_TURN = "UPDATE counter SET revision = ? WHERE id = 1 AND revision = ?"
_APPEND = f"INSERT INTO changes ({_COLUMNS}) VALUES ({', '.join('?' * len(Row._fields))})"  # noqa: S608 - fixed names
_STEPS: dict[str, tuple[str, Callable[[Row], tuple[Any, ...]]]] = {
    Op.CREATE.value: (
        f"INSERT INTO current ({_PLACE}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - fixed names
        lambda of: (*of[6:12], of.revision),
    ),
    Op.UPDATE.value: (
        f"UPDATE current SET core_name = ?, revision = ? WHERE {_ONE}",  # noqa: S608 - fixed names
        lambda of: (of.core_name, of.revision, *of[6:11]),
    ),
    Op.DELETE.value: (
        f"DELETE FROM current WHERE {_ONE}",  # noqa: S608 - fixed names
        lambda of: of[6:11],
    ),
}
_BOUNDS = "SELECT revision, compacted FROM counter WHERE id = 1"
_LOAD = (
    "SELECT p.revision, c.transaction_id, c.time, c.author, c.reason, c.op, p.kind, p.mesh, p.zone,"
    " p.namespace, p.name, p.core_name, CAST(c.body AS BLOB)"
    " FROM current p LEFT JOIN changes c ON c.revision = p.revision"
)
_SELECT = f"SELECT {_COLUMNS.replace('body', 'CAST(body AS BLOB)')} FROM changes"  # noqa: S608 - fixed names
_PIECE = 500  # changes that are removed at a time, so that neither writes nor the disk have to wait for all
_OLD = "(time < ? OR (time < ? AND kind IN ({kinds}))) AND revision NOT IN (SELECT revision FROM current)"


class SqliteLog:
    """A log in the file at `path`."""

    shared = False

    def __init__(
        self, path: str | Path, reserve_bytes: int = RESERVE_BYTES, sealing: Sealing = PLAIN
    ) -> None:
        self.path = Path(path)
        self._sealing = sealing
        self._reserve = Reserve(self.path, reserve_bytes)
        self._worker = Worker("koguma-sqlite")
        self._closed = False
        self._lock_file: int | None = None
        self._db: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        return f"SqliteLog({str(self.path)!r})"

    async def open(self) -> None:
        """Take the file for this process and bring its tables up to date."""
        await self._run(self._open)

    async def close(self) -> None:
        """Close the file and let others have it."""
        if not self._closed:
            self._closed = True
            await self._run(self._close)
            self._worker.stop()

    async def load(self) -> LogSnapshot:
        """What is current."""
        return await self._run(self._load)

    async def since(self, revision: int, limit: int | None = None) -> list[Change]:
        """The changes after a revision, oldest first."""
        return await self._run(lambda: self._since(revision, limit))

    async def append(self, expected: int, rows: Sequence[Row]) -> bool:
        """Add rows, if `expected` is the newest revision."""
        return await self._run(lambda: self._append(expected, rows))

    async def append_in_turn(self, after: int, decide: Decide) -> None:
        """Nobody else can write, so a turn is a read and an append."""
        news = await self.since(after)
        rows = decide(news)
        if rows and not await self.append(rows[0].revision - 1, rows):
            raise went_back(after)

    async def history(self, key: Key, limit: int) -> list[Change]:
        """The changes of one object, newest first."""
        return await self._changes(f"{_SELECT} WHERE {_ONE} ORDER BY revision DESC LIMIT ?", (*key, limit))

    async def change_at(self, revision: int) -> Change | None:
        """One change."""
        return next(iter(await self._changes(f"{_SELECT} WHERE revision = ?", (revision,))), None)

    async def compact(self, before: datetime, short_before: datetime, short_kinds: Collection[str]) -> int:
        """Forget old changes that are not current."""
        ends = rfc3339(before), rfc3339(short_before)
        old = await self._run(lambda: self._old(*ends, sorted(short_kinds)))
        for piece in _pieces(old, self._reserve.size // 8):
            await self._run(partial(self._with_reserve, partial(self._forget, piece)))
        return (await self._run(self._bounds))[1]

    async def has_room(self) -> bool:
        """Whether the reserve is whole again and the disk has a little more than it."""
        return await self._run(lambda: self._keeps_reserve() and not self._reserve.is_disk_full())

    async def wait_hint(self, timeout: float) -> None:  # noqa: ASYNC109 - no hint ever comes
        """There is no other writer; this only sleeps."""
        await asyncio.sleep(timeout)

    async def ping(self) -> None:
        """Read something."""
        await self._run(lambda: self._connection.execute("SELECT 1").fetchone())

    # What follows runs on SQLite's thread.

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await self._worker.run(work)
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise  # a mistake of ours, which no retry would mend
        except sqlite3.Error as error:
            raise LogLost(f"{self.path}: {error}") from error

    async def _changes(self, query: str, values: tuple[Any, ...]) -> list[Change]:
        return await self._run(
            lambda: [
                row.decoded(found, self._sealing.opened) for found in self._connection.execute(query, values)
            ]
        )

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise LogLost(f"{self.path} is closed")
        return self._db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = self._connection
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_file = _locked(self.path)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            _refuse_other_names(self.path)
            self._reserve.fill()
            self._with_reserve(self._begin)
            self._seal_as_it_should_be()
        except (sqlite3.DatabaseError, OSError) as error:
            self._close()
            raise StoreUnusable(f"{self.path} cannot be used as a store: {error}") from error
        except (StoreUnusable, LogFull):
            self._close()
            raise

    def _begin(self) -> None:
        if self._db is not None:  # of an attempt that failed for lack of room
            self._db.close()
        self._db = sqlite3.connect(self.path, isolation_level=None)
        for setting in _SETTINGS:
            self._db.execute(setting)
        self._migrate()

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _migrate(self) -> None:
        with self._transaction() as db:
            db.execute(migrate.VERSIONS_TABLE)
            version = db.execute(migrate.NEWEST).fetchone()[0]
            for step in migrate.pending("sqlite", version, str(self.path)):
                db.execute(
                    "INSERT INTO schema_version (version, name) VALUES (?, ?)", (step.version, step.name)
                )
                for statement in step.statements:
                    db.execute(statement)

    def _seal_as_it_should_be(self) -> None:
        """Get the keys, and write anew what is stored in another form than it is to be, history included."""
        kinds = self._sealing.kinds
        among = f"kind IN ({', '.join('?' * len(kinds))})"
        query = (
            f"SELECT revision, substr(CAST(body AS TEXT), 1, {PREFIX_CHARACTERS}) FROM changes WHERE {among}"  # noqa: S608 - placeholders only
        )
        stored: list[tuple[int, str]] = self._connection.execute(query, kinds).fetchall()
        self._sealing.begin((prefix for _, prefix in stored), str(self.path))
        wrong = [revision for revision, prefix in stored if not self._sealing.is_as_it_should_be(prefix)]
        if not wrong:
            return
        with self._transaction() as db:
            for revision in wrong:
                values = db.execute(f"{_SELECT} WHERE revision = ?", (revision,)).fetchone()
                body = self._sealing.again(values).body
                db.execute("UPDATE changes SET body = ? WHERE revision = ?", (body, revision))
        _log.info("Secrets are stored anew", revisions=len(wrong), encrypted=bool(self._sealing.prefix))
        try:  # pages that were freed before may still have what was in them
            self._connection.execute("VACUUM")
        except sqlite3.OperationalError as error:
            _log.warning("old pages of the store are not overwritten", reason=str(error), file=str(self.path))
        self._empty_wal()

    def _load(self) -> LogSnapshot:
        db = self._connection
        revision, compacted = self._bounds()
        found = [row.entry(values, self._sealing.opened) for values in db.execute(_LOAD)]
        resources = tuple(entry for entry in found if isinstance(entry, Resource))
        unreadable = tuple(entry for entry in found if isinstance(entry, Unreadable))
        return LogSnapshot(revision, compacted, resources, unreadable)

    def _since(self, revision: int, limit: int | None) -> list[Change]:
        db = self._connection
        _, compacted = self._bounds()
        if revision < compacted:
            raise too_old(revision, compacted)
        query = f"{_SELECT} WHERE revision > ? ORDER BY revision LIMIT ?"
        found = db.execute(query, (revision, -1 if limit is None else limit))
        return [row.decoded(values, self._sealing.opened) for values in found]

    def _bounds(self) -> tuple[int, int]:
        revision, compacted = self._connection.execute(_BOUNDS).fetchone()
        return revision, compacted

    def _append(self, expected: int, rows: Sequence[Row]) -> bool:
        if all(one.op == Op.DELETE.value for one in rows):
            return self._with_reserve(lambda: self._append_rows(expected, rows))
        if not self._keeps_reserve():  # else new objects would use up the room that deletes need
            raise self._full()
        try:
            return self._append_rows(expected, rows)
        except sqlite3.OperationalError as error:
            if self._is_full(error):
                raise self._full() from error
            raise

    def _append_rows(self, expected: int, rows: Sequence[Row]) -> bool:
        with self._transaction() as db:
            if db.execute(_TAKE_TURN, (rows[-1].revision, expected)).rowcount == 0:
                return False
            db.executemany(_APPEND, self._sealing.sealed(rows))
            for op, same in groupby(rows, attrgetter("op")):
                statement, values = _STEPS[op]
                db.executemany(statement, [values(one) for one in same])
        return True

    def _old(self, before: str, short_before: str, short_kinds: list[str]) -> list[tuple[int, int]]:
        """The changes that may be forgotten, oldest first: revision and size."""
        old = _OLD.format(kinds=", ".join("?" * len(short_kinds)))
        query = f"SELECT revision, length(body) FROM changes WHERE {old} ORDER BY revision"  # noqa: S608 - placeholders only
        return self._connection.execute(query, (before, short_before, *short_kinds)).fetchall()

    def _forget(self, revisions: Sequence[int]) -> None:
        with self._transaction() as db:
            db.executemany("DELETE FROM changes WHERE revision = ?", [(revision,) for revision in revisions])
            db.execute("UPDATE counter SET compacted = max(compacted, ?) WHERE id = 1", (revisions[-1],))

    # Where the disk is full.

    def _with_reserve(self, work: Callable[[], T]) -> T:
        """Do something that makes room; where there is none, with that of the reserve."""
        try:
            done = work()
        except sqlite3.OperationalError as error:
            if not self._is_full(error):
                raise
            if not self._reserve.give_back():
                raise self._full() from error
            self._empty_wal()
            try:
                done = work()
            except sqlite3.OperationalError as again:
                raise (self._full() if self._is_full(again) else again) from again
        if not self._reserve.is_whole:
            self._empty_wal()
        return done

    def _empty_wal(self) -> None:
        """Bring what was written into the database, so that the next write finds the room it took."""
        if self._db is None:
            return
        with suppress(sqlite3.OperationalError):  # then later
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def _keeps_reserve(self) -> bool:
        """Whether what deletes may need is there: as a file, or as free pages inside of the database."""
        return self._reserve.fill() or self._free_bytes() >= self._reserve.size

    def _free_bytes(self) -> int:
        free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("freelist_count", "page_size")
        )
        return int(free) * int(size)

    def _is_full(self, error: sqlite3.OperationalError) -> bool:
        code = error.sqlite_errorcode & 0xFF  # the rest says in which operation
        return code == sqlite3.SQLITE_FULL or (
            code == sqlite3.SQLITE_IOERR and self._reserve.is_disk_full()  # as a quota is told
        )

    def _full(self) -> LogFull:
        left = self._reserve.bytes_left // 1024
        return LogFull(
            f"the disk of {self.path} is full ({left} KB are left); make room on that file system or enlarge"
            " it. Deletes still work, and so does the removal of old revisions: a shorter --history helps"
        )


def _pieces(old: Sequence[tuple[int, int]], bytes_max: int) -> Iterator[list[int]]:
    """Revisions by groups whose removal fits into a part of the reserve."""
    piece: list[int] = []
    left = bytes_max
    for revision, size in old:
        if piece and (len(piece) == _PIECE or size > left):
            yield piece
            piece, left = [], bytes_max
        piece.append(revision)
        left -= size
    if piece:
        yield piece


def _refuse_other_names(path: Path) -> None:
    """A file with several names would have a lock and a write-ahead log for each, and be destroyed by two."""
    n_names = path.stat().st_nlink
    if n_names > 1:
        raise StoreUnusable(
            f"{path} has {n_names} names in its file system (hard links), and another process may use it by"
            f" one of them; remove the others, which `find -samefile {path}` lists, or copy the file"
        )


def _locked(path: Path) -> int:
    """Take the lock beside the file itself, wherever a symbolic link to it is, or say who has it."""
    real = path.resolve()
    lock = real.with_name(f"{real.name}.lock")
    file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(file, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(file)
        raise StoreUnusable(
            f"{path} is in use by process {holder}; stop it first, or use another file"
        ) from None
    with suppress(OSError):  # on a full disk the lock holds, and only the number is missing
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    return file
