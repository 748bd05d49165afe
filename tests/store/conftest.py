"""The places where a log can live; the contract is tested in each of them."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from store_cases import Clock, InFile, InMemory, InPostgres

from koguma.store import Store

Opened = Callable[..., Awaitable[Store]]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request, tmp_path):
    match request.param:
        case "memory":
            yield InMemory()
        case "sqlite":
            yield InFile(tmp_path / "store.db")
        case _:
            server = request.getfixturevalue("postgres")
            url = server.database()
            yield InPostgres(server, url)
            server.drop(url)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def opened(place, clock) -> AsyncIterator[Opened]:
    """Opens stores on the test's place, and closes those that are left at the end."""
    stores: list[Store] = []

    async def open_one(**more) -> Store:
        store = Store(place.log(), clock, **more)
        await store.open()
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        await store.close()


@pytest.fixture
async def store(opened) -> Store:
    return await opened()
