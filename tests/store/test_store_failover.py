"""A database that fails over: a primary and a standby that follows it, both named in the address."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from store_cases import Clock, contents, make_resource, puts

from koguma.application.live_engine import LiveEngine
from koguma.core import world
from koguma.core.incremental import Db
from koguma.kinds import KINDS
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import Conflict, Unavailable
from koguma.model.kind import Kinds
from koguma.store import Store
from koguma.store import postgres_hosts as hosts
from koguma.store.postgres import PostgresLog
from tests import waiting
from tests.postgres import Server

SETTLED = 60.0


@pytest.fixture
def primary() -> Iterator[Server]:
    server = Server()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def standby(primary) -> Iterator[Server]:
    server = Server(standby_of=primary)
    server.start()
    yield server
    server.remove()


@pytest.fixture
def url(primary, standby) -> str:
    """The address of a database on both, of which the standby has everything."""
    address = primary.database()
    waiting.until(lambda: standby.has(address.rpartition("/")[2]), "the database on the standby")
    return address.replace(primary.host, f"{standby.host},{primary.host}")


@pytest.fixture
async def opened(url):
    stores: list[Store] = []

    async def open_one(address: str = url, **more) -> Store:
        store = Store(PostgresLog(address), Clock(), **more)
        await store.open()
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        await store.close()


class Client:
    """Creates one object after the other, and remembers which of them were acknowledged."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self.acknowledged: list[str] = []
        self.is_ending = False

    async def run(self) -> None:
        for number in itertools.count():
            if self.is_ending:
                return
            name = f"{self.name}-{number}"
            try:
                await self.store.write(puts(make_resource(name), expect=0))
            except Unavailable:
                await asyncio.sleep(0.02)
            else:
                self.acknowledged.append(name)


def names(store: Store) -> list[str]:
    return sorted(resource.name for resource in store.state.all())


async def until(condition) -> None:
    async with asyncio.timeout(SETTLED):
        while not condition():  # noqa: ASYNC110 - the condition is of other processes
            await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("is_pooled", [False, True], ids=["direct", "pooled"])
async def test_no_acknowledged_write_is_lost_or_doubled_when_the_primary_dies(
    primary, standby, opened, url, pooler, is_pooled
):
    primary.wait_for_standbys(needed=True)
    if is_pooled:
        for server in (primary, standby):
            url = url.replace(server.host, pooler(server.url).host)
    stores = [await opened(url), await opened(url)]
    clients = [Client(store, f"{index}-{n}") for index, store in enumerate(stores) for n in range(4)]
    running = [asyncio.create_task(client.run()) for client in clients]
    await until(lambda: all(len(client.acknowledged) > 20 for client in clients))
    primary.stop(at_once=True)
    await asyncio.sleep(0.5)  # nobody takes writes
    before = [len(client.acknowledged) for client in clients]
    assert all(store.state.revision for store in stores)  # reads go on
    standby.promote()
    await until(
        lambda: all(len(client.acknowledged) > n + 20 for client, n in zip(clients, before, strict=True))
    )
    for client in clients:
        client.is_ending = True
    await asyncio.gather(*running)
    await until(lambda: stores[0].state.revision == stores[1].state.revision)
    assert contents(stores[0]) == contents(stores[1])
    acknowledged = [name for client in clients for name in client.acknowledged]
    assert set(acknowledged) <= set(names(stores[0]))
    fresh = await opened(url)
    assert contents(fresh) == contents(stores[0])
    changes = await fresh.log.since(0)
    assert [change.revision for change in changes] == list(range(1, fresh.state.revision + 1))
    assert sorted(change.resource.name for change in changes) == names(fresh)  # each was created once


WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.mark.slow
async def test_a_commit_that_no_standby_has_is_not_acknowledged(primary, standby, opened, url):
    primary.wait_for_standbys(needed=True)
    store, other = await opened(write_timeout=2.0), await opened()
    await store.write(puts(make_resource("first")))
    standby.stop()
    writing = asyncio.create_task(store.write(puts(make_resource("alone"))))
    await until(lambda: primary.fetch(WAITING, url_of(url, primary)))
    primary.execute(f"SELECT pg_cancel_backend(pid) FROM ({WAITING}) AS waiting")
    await until(lambda: "alone" in names(other))  # it stands on the primary, and others may see it
    with pytest.raises(Unavailable, match="the write may have happened"):
        await writing
    standby.start()
    await store.write(puts(make_resource("after")))
    assert names(store) == ["after", "alone", "first"]


def stored_in(db: Db) -> list[str]:
    """The names of the objects that an engine has."""
    return sorted(key.name for key, _ in world.RESOURCES.items(db))


@pytest.mark.slow
async def test_a_standby_that_lacked_writes_is_read_from_the_start(primary, standby, opened, url):
    store = await opened()
    await store.write(puts(make_resource("kept")))
    on_standby = url_of(url, standby)
    await until(lambda: standby.fetch("SELECT to_regclass('counter')", on_standby)[0][0])
    await until(lambda: standby.fetch("SELECT revision FROM counter", on_standby)[0][0] == 1)
    standby.stop()
    for number in range(3):
        await store.write(puts(make_resource(f"lost-{number}")))
    engine = LiveEngine(store, Kinds(KINDS), ControlPlaneInfo())
    assert len(stored_in(await engine.database())) == 4
    primary.stop(at_once=True)
    standby.start()
    standby.promote()
    other = await opened(url_of(url, standby))
    for number in range(3):  # they get the numbers of those that were lost
        await other.write(puts(make_resource(f"new-{number}")))
    await until(lambda: contents(store) == contents(other))
    assert names(store) == ["kept", "new-0", "new-1", "new-2"]
    assert stored_in(await engine.database()) == names(store)
    with pytest.raises(Conflict):
        await store.write(puts(make_resource("new-0"), expect=1))
    await store.write(puts(make_resource("last")))
    await until(lambda: contents(store) == contents(other))


@pytest.mark.slow
async def test_another_history_behind_the_same_pooler_is_noticed(primary, standby, opened, url, pooler):
    """The connections to the pooler stay, so that no new connection gives a reason to look."""
    bouncer = pooler(primary.url)
    store = await opened(bouncer.in_front_of(url))
    await store.write(puts(make_resource("kept")))
    on_standby = url_of(url, standby)
    await until(lambda: standby.fetch("SELECT to_regclass('counter')", on_standby)[0][0])
    await until(lambda: standby.fetch("SELECT revision FROM counter", on_standby)[0][0] == 1)
    standby.promote()
    other = await opened(on_standby)
    for number in range(3):
        await store.write(puts(make_resource(f"lost-{number}")))
        await other.write(puts(make_resource(f"new-{number}")))
    bouncer.lead_to(standby.url)
    await until(lambda: contents(store) == contents(other))
    assert names(store) == ["kept", "new-0", "new-1", "new-2"]
    await store.write(puts(make_resource("last")))
    await until(lambda: contents(store) == contents(other))


async def test_a_store_that_takes_no_writes_is_named(primary, standby, url):
    primary.stop()
    with pytest.raises(Unavailable) as caught:
        await Store(PostgresLog(url), Clock()).open()
    assert f"{standby.host}: takes no writes, as a standby does" in str(caught.value)
    assert f"{primary.host}: " in str(caught.value)


def url_of(url: str, server: Server) -> str:
    return next(address for host, address in hosts.addresses(url).items() if host == server.host)


def test_hosts_are_told_apart_whatever_else_an_address_has():
    found = hosts.addresses("postgresql://me:a,b%40c@one:1,[::1]:2,three/db?sslmode=require")
    assert found == {
        "one:1": "postgresql://me:a,b%40c@one:1/db?sslmode=require",
        "[::1]:2": "postgresql://me:a,b%40c@[::1]:2/db?sslmode=require",
        "three": "postgresql://me:a,b%40c@three/db?sslmode=require",
    }
    assert hosts.addresses("postgresql:///db?host=/run") == {"": "postgresql:///db?host=/run"}
