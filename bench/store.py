"""store: durable writes through `Store.write`, against a bare INSERT + commit of the same bytes.

The bare side is as fast as the library goes: sqlite3 on the calling thread with the same settings (WAL, full
sync), one row and one commit each; asyncpg with an autocommitted INSERT on one connection, or from 50 tasks
over a pool of 16. SQLite has one writer, so with 50 clients too its bare side is one connection, one INSERT
after another.
"""

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Self

import asyncpg
import msgspec

from bench import databases, sample
from bench.figures import Figure, Goal, compared, in_turns, percentile
from koguma.store import Put, Store, Transaction, open_store, row
from koguma.store.evaluate import evaluate
from koguma.store.state import State

ABOUT = "durable writes of a 1.7 KB object: Store.write against a bare INSERT + commit"
POOL = 16
MANY = 50
GOALS = {1: Goal("ratio", 0.40), MANY: Goal("ratio", 0.60)}

Write = Callable[[str], Awaitable[object]]  # one durable write under a new name


class Written(msgspec.Struct, frozen=True):
    """What some clients wrote in one round."""

    seconds: float
    latencies: tuple[float, ...]

    @property
    def per_second(self) -> float:
        """Durable writes in a second."""
        return len(self.latencies) / self.seconds

    @property
    def p99_ms(self) -> float:
        """What one write in a hundred takes longer than."""
        return 1000 * percentile(self.latencies, 0.99)


async def measured(*, quick: bool) -> list[Figure]:
    """The figures of SQLite, then of PostgreSQL; the quick round leaves the latter out."""
    with tempfile.TemporaryDirectory(prefix="koguma-bench-") as folder:
        figures = await _on_sqlite(Path(folder), quick=quick)
    if not quick:
        with databases.postgres() as server:
            figures += await _on_postgres(server.database(), server.database())
    return figures


async def _on_sqlite(folder: Path, *, quick: bool) -> list[Figure]:
    async with _opened(f"sqlite:///{folder / 'ours.db'}") as ours:
        with _Sqlite(folder / "bare.db") as bare:
            figures = await _figures("SQLite", 1, ours, bare.write, quick=quick)
            figures += await _figures("SQLite", MANY, ours, bare.write, quick=quick, bare_clients=1)
    return figures


async def _on_postgres(url: str, bare_url: str) -> list[Figure]:
    pool = await asyncpg.create_pool(bare_url, min_size=POOL, max_size=POOL)
    await pool.execute(_BARE_POSTGRES)
    one = await asyncpg.connect(bare_url)
    body = stored_bytes().decode()

    async def alone(name: str) -> None:
        await one.execute(_INSERT_POSTGRES, name, body)

    async def pooled(name: str) -> None:
        await pool.execute(_INSERT_POSTGRES, name, body)

    async with _opened(url) as ours:
        figures = await _figures("PostgreSQL", 1, ours, alone)
        figures += await _figures("PostgreSQL", MANY, ours, pooled)
    await one.close()
    await pool.close()
    return figures


_BARE_SQLITE = "CREATE TABLE bare (id INTEGER PRIMARY KEY, name TEXT NOT NULL, body BLOB NOT NULL)"
_INSERT_SQLITE = "INSERT INTO bare (name, body) VALUES (?, ?)"
_BARE_POSTGRES = "CREATE TABLE bare (id BIGSERIAL PRIMARY KEY, name TEXT NOT NULL, body TEXT NOT NULL)"
_INSERT_POSTGRES = "INSERT INTO bare (name, body) VALUES ($1, $2)"


class _Sqlite:
    """The library alone: an autocommitted INSERT on the calling thread."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        for setting in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", _BARE_SQLITE):
            self._db.execute(setting)
        self._body = stored_bytes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    async def write(self, name: str) -> None:
        self._db.execute(_INSERT_SQLITE, (name, self._body))


def stored_bytes() -> bytes:
    """The body that the store would write for the sample."""
    transaction = Transaction((Put(sample.resource("timeout-123456"), 0),), "bench")
    (change,) = evaluate(
        State(), transaction, datetime.now(UTC), lambda: "00000000-0000-0000-0000-000000000000"
    )
    return row.encoded(change).body


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Write]:
    store: Store = await open_store(url)

    async def write(name: str) -> None:
        await store.write(Transaction((Put(sample.resource(name), 0),), "bench"))

    try:
        yield write
    finally:
        await store.close()


async def _figures(
    where: str, clients: int, ours: Write, bare: Write, *, quick: bool = False, bare_clients: int = 0
) -> list[Figure]:
    rounds, seconds = (2, 0.15) if quick else (9, 1.0)
    names = (f"timeout-{clients}-{number}" for number in count())

    async def one_round(write: Write, by: int) -> Written:
        return await _written(write, names, by, seconds)

    a, b = await in_turns(
        rounds, lambda: one_round(ours, clients), lambda: one_round(bare, bare_clients or clients)
    )
    what = f"{where}, {clients} client{'s' if clients > 1 else ''}"
    rates = [one.per_second for one in a], [one.per_second for one in b]
    worst = [one.p99_ms for one in a], [one.p99_ms for one in b]
    return [
        compared(what, "writes/s", *rates, goal=GOALS[clients]),
        compared(what, "p99 ms", *worst, better="less"),
    ]


async def _written(write: Write, names: Iterator[str], clients: int, seconds: float) -> Written:
    latencies: list[float] = []
    started = time.perf_counter()
    ends_at = started + seconds

    async def client() -> None:
        while (before := time.perf_counter()) < ends_at:
            await write(next(names))
            latencies.append(time.perf_counter() - before)

    await asyncio.gather(*(client() for _ in range(clients)))
    return Written(time.perf_counter() - started, tuple(latencies))
