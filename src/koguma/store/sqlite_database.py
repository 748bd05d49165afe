"""SqliteDatabase: an SQLite file that belongs to this process, and a full disk under it.

All methods but `run` and `close` run on the thread of the database. A lock file keeps a second process out,
because each process answers reads from its own memory.

On a full disk appends fail at once with the reason; only deletes and compaction go on, in the space of a file
that was kept for them (`disk_reserve`).
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from koguma.store.contract import StoreUnusable
from koguma.store.disk_reserve import DiskReserve
from koguma.store.log import LogFull, LogLost
from koguma.store.worker import Worker

T = TypeVar("T")

_SETTINGS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA busy_timeout = 5000",
    "PRAGMA foreign_keys = OFF",
    "PRAGMA secure_delete = ON",  # deleted data is overwritten, so that no Secret stays in a free page
)


class SqliteDatabase:
    """The file at `path` and its connection."""

    def __init__(self, path: Path, reserve_bytes: int) -> None:
        self.path = path
        self.reserve = DiskReserve(path, reserve_bytes)
        self._worker = Worker("koguma-sqlite")
        self._is_closed = False
        self._lock_file: int | None = None
        self._db: sqlite3.Connection | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function on the thread of the database."""
        try:
            return await self._worker.run(work)
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise  # a bug of ours, which no retry would fix
        except sqlite3.Error as error:
            raise LogLost(f"{self.path}: {error}") from error

    async def close(self) -> None:
        """Close the file and release its lock; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            await self.run(self._close)
            self._worker.stop()

    def read_beside(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Read on another connection, on whatever thread this is called."""
        if self._db is None:
            raise LogLost(f"{self.path} is closed")
        try:
            address = f"{self.path.resolve().as_uri()}?mode=ro"
            with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as db:
                db.execute("PRAGMA busy_timeout = 5000")
                return db.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            raise LogLost(f"{self.path}: {error}") from error

    def open(self, migrate: Callable[[], None], prepare: Callable[[], None]) -> None:
        """Lock, open and migrate the file, then prepare it; StoreUnusable if it is no usable database."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_file = _locked(self.path)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            _refuse_hard_links(self.path)
            self.reserve.allocate()
            self.with_reserve(lambda: self._connect(migrate))
            prepare()
        except (sqlite3.DatabaseError, OSError) as error:
            self._close()
            raise StoreUnusable(f"{self.path} cannot be used as a store: {error}") from error
        except (StoreUnusable, LogFull):
            self._close()
            raise

    def _connect(self, migrate: Callable[[], None]) -> None:
        if self._db is not None:  # of an attempt that failed on a full disk
            self._db.close()
        self._db = sqlite3.connect(self.path, isolation_level=None)
        for setting in _SETTINGS:
            self._db.execute(setting)
        migrate()

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    @property
    def connection(self) -> sqlite3.Connection:
        """The open connection, or LogLost."""
        if self._db is None:
            raise LogLost(f"{self.path} is closed")
        return self._db

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction, rolled back on an error."""
        db = self.connection
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    # On a full disk.

    def with_reserve(self, work: Callable[[], T]) -> T:
        """Do work that makes room; on a full disk in the space of the reserve."""
        try:
            result = work()
        except sqlite3.OperationalError as error:
            if not self.is_full(error):
                raise
            if not self.reserve.release():
                raise self.full_error() from error
            self.checkpoint()
            try:
                result = work()
            except sqlite3.OperationalError as again:
                raise (self.full_error() if self.is_full(again) else again) from again
        if not self.reserve.is_allocated:
            self.checkpoint()
        return result

    def checkpoint(self) -> None:
        """Move the write-ahead log into the database, so that the next write can use its space."""
        if self._db is None:
            return
        with suppress(sqlite3.OperationalError):  # then a later checkpoint does it
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def has_reserve(self) -> bool:
        """Whether the space that deletes may need exists: as a file, or as free pages in the database."""
        return self.reserve.allocate() or self._free_bytes() >= self.reserve.size

    def _free_bytes(self) -> int:
        n_pages, page_size = (
            self.connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("freelist_count", "page_size")
        )
        return int(n_pages) * int(page_size)

    def is_full(self, error: sqlite3.OperationalError) -> bool:
        """Whether an error means that the disk, or a quota, is full."""
        code = error.sqlite_errorcode & 0xFF  # the other bits say in which operation
        return code == sqlite3.SQLITE_FULL or (
            code == sqlite3.SQLITE_IOERR and self.reserve.is_disk_full()  # reported so for a quota
        )

    def full_error(self) -> LogFull:
        """The error for a full disk."""
        left = self.reserve.bytes_left // 1024
        return LogFull(
            f"the disk of {self.path} is full ({left} KB are left); make room on that file system or enlarge"
            " it. Deletes still work, and so does the removal of old revisions: a shorter --history helps"
        )


def _refuse_hard_links(path: Path) -> None:
    """A file with several names would have a lock and a write-ahead log for each; two users destroy it."""
    n_links = path.stat().st_nlink
    if n_links > 1:
        raise StoreUnusable(
            f"{path} has {n_links} names in its file system (hard links), and another process may use it by"
            f" one of them; remove the others, which `find -samefile {path}` lists, or copy the file"
        )


def _locked(path: Path) -> int:
    """Lock the file beside the real path, behind symbolic links; the error names the process that has it."""
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
    with suppress(OSError):  # on a full disk the lock holds, and only the process id is missing
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    return file
