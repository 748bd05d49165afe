"""Outages of PostgreSQL, direct and behind a pooler: what was answered is kept, and writing goes on."""

import asyncio
import time

import asyncpg
import pytest
from store_cases import PostgresBackend, changes_after, contents, deletes, key, make_resource, puts, seen

from koguma.model.errors import Unavailable
from koguma.store import Store, Transaction

pytestmark = pytest.mark.slow


@pytest.fixture(params=["direct", "pooled"])
def backend(request, own_postgres):
    url = own_postgres.database()
    pooler = request.getfixturevalue("pooler")(own_postgres.url) if request.param == "pooled" else None
    yield PostgresBackend(own_postgres, url, pooler)
    own_postgres.drop(url)


@pytest.fixture
async def two(opened) -> tuple[Store, Store]:
    return await opened(), await opened()


@pytest.mark.parametrize(
    "seconds", [pytest.param(2, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.soak)]
)
@pytest.mark.expected_errors("unexpected connection_lost")
async def test_an_outage_loses_nothing_that_was_answered_and_both_recover(
    two, backend, own_postgres, opened, seconds
) -> None:
    acknowledged: set[str] = set()
    stopping = asyncio.Event()

    async def write(store: Store, lane: str) -> None:
        number = 0
        while not stopping.is_set():
            number += 1
            names = [f"{lane}-{number}-{part}" for part in "xyz"]
            await written(store, puts(*map(make_resource, names), expect=0))
            acknowledged.update(names)

    lanes = [
        asyncio.create_task(write(store, f"{side}{lane}"))
        for side, store in zip("ab", two, strict=True)
        for lane in range(4)
    ]
    await asyncio.sleep(0.3)
    await asyncio.to_thread(own_postgres.stop)
    before = len(acknowledged)
    with pytest.raises(Unavailable):
        await two[0].ping()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(own_postgres.start)
    back = time.monotonic()
    while len(acknowledged) < before + 200:
        assert time.monotonic() < back + 60, "writes did not go on"
        await asyncio.sleep(0.05)
    stopping.set()
    await asyncio.gather(*lanes)
    third = await opened()
    assert acknowledged == {one.name for one in contents(third)}
    revisions = [change.revision for change in await changes_after(third, 0)]
    assert revisions == list(range(1, third.state.revision + 1))
    if backend.store_url == backend.url:  # a pooler may let writes wait instead
        assert all(store.lost for store in two)
    for store in two:
        await seen(store, third.state.revision)
        assert contents(store) == contents(third)


async def written(store: Store, transaction: Transaction) -> None:
    """Write as a client does who believes the answer: what was not written is written again."""
    while True:
        try:
            await store.write(transaction)
        except Unavailable as error:
            if "nothing was written: retry later" not in str(error):
                raise
            await asyncio.sleep(0.05)
        else:
            return


@pytest.fixture
async def stopped(own_postgres):
    """Stops the server, which runs again at the end."""

    async def stop(*, at_once: bool = False) -> None:
        await asyncio.to_thread(own_postgres.stop, at_once=at_once)

    yield stop
    await asyncio.to_thread(own_postgres.start)


LONG_SECONDS = 3600.0  # nobody waits that long: whoever is answered is answered before


async def test_a_write_that_cannot_be_sent_is_refused_at_once_and_was_not_written(
    own_postgres, opened, stopped
) -> None:
    store = await opened(write_timeout=LONG_SECONDS)
    await store.write(puts(make_resource("a")))
    await stopped()
    for transaction in (
        puts(make_resource("b")),
        puts(make_resource("a", 2)),
        puts(make_resource("a")),
        deletes(key("a")),
    ):
        with pytest.raises(Unavailable, match=r"cannot be reached .*; nothing was written: retry later"):
            await store.write(transaction)
    await asyncio.to_thread(own_postgres.start)
    await written(store, puts(make_resource("b"), expect=0))
    assert [one.name for one in contents(await opened())] == ["a", "b"]
    await stopped()


async def test_a_write_whose_answer_was_lost_may_have_happened(backend, opened, stopped) -> None:
    store = await opened(write_timeout=1)
    other = await asyncpg.connect(backend.url)
    in_the_way = other.transaction()
    await in_the_way.start()
    await other.execute("SELECT revision FROM counter WHERE id = 1 FOR UPDATE")
    sent = asyncio.create_task(store.write(puts(make_resource("a"))))
    while not await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
        await other.execute("SELECT pg_sleep(0.01)")
    queued = asyncio.create_task(store.write(puts(make_resource("b"))))
    await asyncio.sleep(0)
    await stopped(at_once=True)
    with pytest.raises(Unavailable, match="nothing was written: retry later"):
        await queued
    with pytest.raises(Unavailable, match="the write may have happened: read before you retry"):
        await sent
    other.terminate()
