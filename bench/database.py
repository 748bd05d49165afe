"""database: what a control plane costs its PostgreSQL: space, WAL, connections, the time of a failover."""

import asyncio
import importlib
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench import databases, sample
from bench.figures import Figure, compared
from bench.processes import MeasuredControlPlane
from koguma.model.errors import Unavailable
from koguma.model.resource import Resource
from koguma.store import Put, Store, Transaction
from koguma.store.postgres import PostgresLog

ABOUT = "what a control plane costs its PostgreSQL; objects have a body of about 1.7 KB"
_WAL = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint"
_SIZE = """
SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
"""
_CONNECTIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'koguma' AND datname = current_database()"
)


async def measured(*, quick: bool) -> list[Figure]:
    """The figures of one server, and of a primary that dies."""
    n_objects = 100 if quick else 1_000
    with databases.postgres() as server:
        return [
            *await _of_objects(server, n_objects),
            *_at_rest(server, 2.0 if quick else 20.0),
            *await _of_writes(server, 50 if quick else 500),
            await _of_a_failover(server, rounds=1 if quick else 3),
        ]


@asynccontextmanager
async def _store(url: str) -> AsyncIterator[Store]:
    store = Store(PostgresLog(url))
    await store.open()
    yield store
    await store.close()


def _put(name: str, value: str = "5s") -> Transaction:
    resource = Resource(
        kind="MeshTimeout", mesh=sample.MESH, name=name, core_name=name, spec=sample.spec(value)
    )
    return Transaction((Put(resource),), "bench", "")


def _number(server: Any, query: str, url: str) -> int:
    return int(server.fetch(query, url)[0][0])


async def _of_objects(server: Any, n_objects: int) -> list[Figure]:
    url = server.database()
    async with _store(url) as store:
        empty, began_at = _number(server, _SIZE, url), _number(server, _WAL, url)
        for number in range(n_objects):
            await store.write(_put(f"n-{number}"))
        alone_at = _number(server, _WAL, url)
        await asyncio.gather(*(store.write(_put(f"n-{number}", "6s")) for number in range(n_objects)))
        together_at = _number(server, _WAL, url)
        size = _number(server, _SIZE, url)
    server.drop(url)
    per_object = 1_000 * (size - empty) / n_objects / 2  # each has two revisions
    return [
        compared("1,000 revisions of objects, with indexes", "MB", [per_object / 1e6], better="less"),
        compared(
            "WAL of a write that comes alone", "KB", [(alone_at - began_at) / n_objects / 1e3], better="less"
        ),
        compared(
            "WAL of a write among many", "KB", [(together_at - alone_at) / n_objects / 1e3], better="less"
        ),
    ]


def _at_rest(server: Any, seconds: float) -> list[Figure]:
    url = server.database()
    with (
        tempfile.TemporaryDirectory(prefix="koguma-bench-") as name,
        MeasuredControlPlane(Path(name) / "a", url),
    ):
        time.sleep(3)  # what a first start writes
        began_at = _number(server, _WAL, url)
        time.sleep(seconds)
        per_second = (_number(server, _WAL, url) - began_at) / seconds
        n_connections = _number(server, _CONNECTIONS, url)
    server.drop(url)
    return [
        compared("WAL of a control plane at rest", "KB/s", [per_second / 1e3], better="less"),
        compared("connections of a control plane", "", [n_connections], better="less"),
    ]


async def _of_writes(server: Any, n_writes: int) -> list[Figure]:
    """One client that waits for each answer, direct and behind a pooler."""
    pooler = importlib.import_module("pgbouncer").PgBouncer(server.url)
    pooler.start()
    try:
        url = server.database()
        figures = []
        for what, address in (("direct", url), ("behind PgBouncer", pooler.in_front_of(url))):
            async with _store(address) as store:
                delays = []
                for number in range(n_writes):
                    began_at = time.perf_counter()
                    await store.write(_put("again", f"{number}s"))
                    delays.append(1e3 * (time.perf_counter() - began_at))
            figures.append(compared(f"a write, {what}", "ms", [median(delays)], better="less"))
        return figures
    finally:
        pooler.remove()


async def _of_a_failover(server: Any, rounds: int) -> Figure:
    """From the moment that the standby takes writes to the first answer of a client that keeps trying."""
    seconds = []
    for _ in range(rounds):
        primary = type(server)()
        primary.start()
        standby = type(server)(standby_of=primary)
        standby.start()
        try:
            url = primary.database().replace(primary.host, f"{primary.host},{standby.host}")
            primary.wait_for_standbys(needed=True)
            async with _store(url) as store:
                await store.write(_put("before"))
                primary.stop(at_once=True)
                trying = asyncio.create_task(_first_answer(store))
                await asyncio.sleep(2)
                await asyncio.to_thread(standby.promote)
                promoted_at = time.perf_counter()
                seconds.append(max(0.0, await trying - promoted_at))
        finally:
            primary.remove()
            standby.remove()
    return compared("from a promotion to the next write", "s", seconds, better="less")


async def _first_answer(store: Store) -> float:
    while True:
        try:
            await store.write(_put("after"))
        except Unavailable:
            await asyncio.sleep(0.05)
        else:
            return time.perf_counter()
