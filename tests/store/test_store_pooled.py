"""Behind a connection pooler: what is found out about it, and what is not left behind on its connections.

The contract of the store, outages and failovers are tested behind one too (`conftest.py`,
`test_store_postgres.py`, `test_store_failover.py`).
"""

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest
from store_cases import Clock, contents, deletes, key, make_resource, puts

from koguma.store import Store, StoreUnusable
from koguma.store.postgres import PostgresLog
from koguma.store.postgres_hosts import connect
from koguma.store.postgres_pooling import is_pooled

pytestmark = pytest.mark.slow

LISTENERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
)


@pytest.fixture
def url(postgres) -> Iterator[str]:
    url = postgres.database()
    yield url
    postgres.drop(url)


@pytest.fixture
async def opened(url):
    stores: list[Store] = []

    async def open_one(address: str = url) -> Store:
        store = Store(PostgresLog(address), Clock())
        await store.open()
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        await store.close()


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition is of other processes
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("ignored", ["", "statement_timeout, idle_in_transaction_session_timeout"])
async def test_a_pooler_is_noticed_whether_or_not_it_refuses_settings(postgres, pooler, url, opened, ignored):
    store = await opened(pooler(ignored=ignored).in_front_of(url))
    await store.write(puts(make_resource("a")))
    await store.ping()
    assert store.log.connection_summary == "behind a connection pooler: polled every 0.25 s"
    assert postgres.fetch(LISTENERS, url)[0][0] == 0


async def test_a_direct_connection_is_no_pooler(postgres, url, opened):
    store = await opened()
    await until(lambda: postgres.fetch(LISTENERS, url)[0][0] == 1)
    assert store.log.connection_summary == ""


async def test_in_session_mode_the_address_says_so_and_there_are_notifications(postgres, pooler, url, opened):
    address = pooler(pool_mode="session", pool_size=10).in_front_of(url)
    store, other = [await opened(f"{address}?pool_mode=session") for _ in range(2)]
    await until(lambda: postgres.fetch(LISTENERS, url)[0][0] == 2)
    await store.write(puts(make_resource("a")))
    await until(lambda: contents(other) == contents(store))
    assert store.log.connection_summary == ""
    db = await connect(f"{address}?pool_mode=session")
    assert await db.fetchval("SHOW statement_timeout") == "5s"
    await db.close()


async def test_a_pooler_in_session_mode_needs_no_word(pooler, url, opened):
    address = pooler(pool_mode="session", pool_size=10).in_front_of(url)
    store, other = await opened(address), await opened(address)
    await store.write(puts(make_resource("a")))
    await until(lambda: contents(other) == contents(store))


async def test_an_unknown_mode_is_refused():
    with pytest.raises(
        StoreUnusable, match=r"pool_mode=statement in .*@db/x.* is none of session, transaction"
    ):
        await Store(PostgresLog("postgresql://me:secret@db/x?pool_mode=statement"), Clock()).open()


async def test_the_mode_may_stand_anywhere_in_the_address(pooler, url):
    address = pooler().in_front_of(url)
    for options in (
        "pool_mode=transaction",
        "pool_mode=transaction&sslmode=disable",
        "sslmode=disable&pool_mode=transaction",
    ):
        db = await connect(f"{address}?{options}")
        assert is_pooled(db)
        await db.close()


async def test_nothing_of_a_session_is_left_on_the_servers_connections(pooler, url, opened):
    address = pooler(pool_size=3).in_front_of(url)
    stores = [await opened(address) for _ in range(3)]
    for number in range(10):  # at once, so that there are several connections
        await asyncio.gather(
            *(store.write(puts(make_resource(f"n-{at}", number))) for at, store in enumerate(stores))
        )
    await stores[0].write(deletes(key("n-0")))
    await stores[0].compact()
    await until(lambda: contents(stores[1]) == contents(stores[0]) == contents(stores[2]))
    db = await connect(address)
    pids = set()
    for _ in range(12):  # each transaction has another connection to the server
        async with db.transaction():
            pids.add(await db.fetchval("SELECT pg_backend_pid()"))
            assert await db.fetchval("SELECT count(*) FROM pg_prepared_statements") == 0
            assert await db.fetchval("SELECT count(*) FROM pg_listening_channels()") == 0
            assert await db.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
            assert await db.fetchval("SHOW statement_timeout") == "5s"
            assert await db.fetchval("SHOW idle_in_transaction_session_timeout") == "5s"
    await db.close()
    assert len(pids) > 1
    plain = await asyncpg.connect(address, statement_cache_size=0)
    assert await plain.fetchval("SHOW statement_timeout") == "0"  # the limits end with their transaction
    await plain.close()


@pytest.mark.expected_errors("unexpected connection_lost")
async def test_writers_go_on_after_the_pooler_was_killed(pooler, url, opened):
    bouncer = pooler()
    stores = [await opened(bouncer.in_front_of(url)) for _ in range(2)]
    await stores[0].write(puts(make_resource("before")))
    bouncer.stop()
    bouncer.start()
    await stores[0].write(puts(make_resource("after")))
    await until(lambda: contents(stores[1]) == contents(stores[0]))
    assert sorted(one.name for one in contents(stores[1])) == ["after", "before"]
