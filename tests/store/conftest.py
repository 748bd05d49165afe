"""The backends of a log; the contract is tested with each of them."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from store_cases import Clock, MemoryBackend, PostgresBackend, SqliteBackend

from koguma.store import Store
from tests.pgbouncer import PgBouncer

Opened = Callable[..., Awaitable[Store]]


@pytest.fixture(params=["memory", "sqlite", "postgres", "pgbouncer"])
def backend(request, tmp_path):
    match request.param:
        case "memory":
            yield MemoryBackend()
        case "sqlite":
            yield SqliteBackend(tmp_path / "store.db")
        case _:
            server = request.getfixturevalue("postgres")
            url = server.database()
            pooler = request.getfixturevalue("pgbouncer") if request.param == "pgbouncer" else None
            yield PostgresBackend(server, url, pooler)
            server.drop(url)


@pytest.fixture
def pooler(request):
    """Starts poolers in front of a server, by default the one of this run."""
    poolers: list[PgBouncer] = []

    def start(*args, **more) -> PgBouncer:
        poolers.append(PgBouncer(*args or (request.getfixturevalue("postgres").url,), **more))
        poolers[-1].start()
        return poolers[-1]

    yield start
    for each in poolers:
        each.remove()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def opened(backend, clock) -> AsyncIterator[Opened]:
    """Opens stores on the backend of the test, and closes them at the end."""
    stores: list[Store] = []

    async def open_one(**more) -> Store:
        store = Store(backend.log(), clock, **more)
        await store.open()
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        await store.close()


@pytest.fixture
async def store(opened) -> Store:
    return await opened()
