"""What is particular to PostgreSQL: several control planes on one database."""

import asyncio
from contextlib import suppress

import pytest
from store_cases import (
    PostgresBackend,
    changes_after,
    contents,
    deletes,
    key,
    make_resource,
    puts,
    seen,
    transaction_of,
)

from koguma.model.errors import AlreadyExists, Conflict, Gone, Unavailable
from koguma.store import Delete, Put, Store, StoreUnusable, Transaction, open_store, postgres, replica
from koguma.store.postgres import PostgresLog
from koguma.store.row import Row

pytestmark = pytest.mark.slow


@pytest.fixture(params=["direct", "pooled"])
def backend(request, postgres):
    url = postgres.database()
    yield PostgresBackend(
        postgres, url, request.getfixturevalue("pgbouncer") if request.param == "pooled" else None
    )
    postgres.drop(url)


@pytest.fixture
async def two(opened) -> tuple[Store, Store]:
    return await opened(), await opened()


async def test_a_write_to_one_is_seen_by_a_watch_on_the_other_in_order(two) -> None:
    one, other = two
    watching = asyncio.create_task(seen(other, 120))
    for number in range(60):
        await one.write(puts(make_resource(f"n-{number}"), make_resource("again", number)))
    assert await watching == list(range(1, 121))
    assert contents(one) == contents(other)


@pytest.mark.parametrize("backend", ["direct"], indirect=True)  # behind a pooler it is the next poll
async def test_news_come_long_before_the_next_poll(two, monkeypatch) -> None:
    one, other = two
    watch = other.watch(None, 0)
    for number in range(15):
        await one.write(puts(make_resource("a", number)))
        assert await watch.next_batch(60)
        # From the second time on, when notifications are listened to, nobody polls.
        monkeypatch.setattr(postgres, "POLL_SECONDS", 3600.0)
        monkeypatch.setattr(replica, "HINT_SECONDS", 3600.0)


@pytest.mark.parametrize("rows_per_write", [1, 3])
async def test_writers_on_both_sides_make_consecutive_revisions(two, rows_per_write) -> None:
    async def write(store: Store, name: str) -> list[int]:
        found = await asyncio.gather(
            *(
                store.write(puts(*(make_resource(f"{name}-{number}-{row}") for row in range(rows_per_write))))
                for number in range(200)
            )
        )
        return [change.revision for changes in found for change in changes]

    watching = [asyncio.create_task(seen(store, 400 * rows_per_write)) for store in two]
    found = await asyncio.gather(*(write(store, name) for store, name in zip(two, "ab", strict=True)))
    consecutive = list(range(1, 400 * rows_per_write + 1))
    assert sorted(found[0] + found[1]) == consecutive
    assert [await watch for watch in watching] == [consecutive, consecutive]
    assert contents(two[0]) == contents(two[1])


async def test_writers_that_fight_over_one_object_all_get_their_turn(two) -> None:
    async def count_up(store: Store) -> None:
        done = 0
        while done < 25:
            stored = store.state.get(key("counter"))
            value, revision = (stored.spec["value"], stored.revision) if stored else (0, 0)
            with suppress(Conflict, AlreadyExists):  # the point
                await store.write(puts(make_resource("counter", value + 1), expect=revision))
                done += 1

    await asyncio.gather(*map(count_up, two))
    assert two[0].conflicts + two[1].conflicts > 0
    await two[0].ping()
    assert max(store.state.get(key("counter")).spec["value"] for store in two) == 50


async def test_a_long_absence_is_caught_up_page_by_page(opened, backend) -> None:
    store = await opened()
    await store.write(puts(*(make_resource(f"n-{number}") for number in range(4_100))))
    log = backend.log()
    await log.open()
    assert [change.revision for change in await log.since(50)] == list(range(51, 4_101))
    assert [change.revision for change in await log.since(50, 2)] == [51, 52]
    await log.close()


async def test_a_reader_that_is_cancelled_does_not_harm_the_next(store) -> None:
    await store.write(puts(make_resource("a")))
    for pause in (0, 0.001, 0.002):
        reader = asyncio.create_task(store.history(key("a")))
        await asyncio.sleep(pause)
        reader.cancel()
        await asyncio.wait([reader])
        assert len(await store.history(key("a"))) == 1


async def test_mixed_batches_are_written_like_any_other(opened) -> None:
    store = await opened()
    await store.write(puts(*(make_resource(f"n-{number}") for number in range(20))))
    await asyncio.gather(
        *(store.write(deletes(key(f"n-{number}"))) for number in range(10)),
        *(store.write(puts(make_resource(f"n-{number}", 2))) for number in range(10, 20)),
        *(
            store.write(transaction_of(Delete(key(f"n-{number}")), Put(make_resource(f"n-{number}", 3))))
            for number in range(15, 20)
        ),
    )
    await store.close()
    values = {one.name: resource.spec["value"] for one, resource in contents(await opened()).items()}
    assert values == {f"n-{number}": 2 if number < 15 else 3 for number in range(10, 20)}


async def test_two_control_planes_may_start_on_an_empty_database_at_once(backend) -> None:
    stores = await asyncio.gather(*(open_store(backend.store_url) for _ in range(4)))
    await asyncio.gather(*(store.write(puts(make_resource(f"n-{n}"))) for n, store in enumerate(stores)))
    assert len(await changes_after(stores[0], 0)) >= 1
    for store in stores:
        await store.close()


async def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    with pytest.raises(Unavailable) as refusal:
        await open_store("postgresql://joe:hunter2@127.0.0.1:1/koguma")
    assert "postgresql://joe:*****@127.0.0.1:1/koguma" in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    "url",
    ["postgresql://joe:hun/ter2@db/x", "postgresql://joe:hunter2@db:port/x", "postgresql://joe:ter2@db[/x"],
)
async def test_an_address_that_cannot_be_read_keeps_its_password(url) -> None:
    with pytest.raises((StoreUnusable, Unavailable)) as refusal:
        await open_store(url)
    assert "joe:*****@db" in str(refusal.value)
    assert "ter2" not in f"{refusal.value!r} {PostgresLog(url)!r}"


async def test_a_database_that_does_not_exist_is_said_so(backend) -> None:
    with pytest.raises((StoreUnusable, Unavailable), match="does not exist"):
        await open_store(backend.store_url + "_nowhere")


async def test_a_database_with_a_later_format_is_refused_and_says_what_it_needs(backend) -> None:
    await (await open_store(backend.store_url)).close()
    backend.server.execute("INSERT INTO schema_version VALUES (99, 'from_the_future')", backend.url)
    await (await open_store(backend.store_url)).close()
    backend.server.execute("UPDATE store_format SET format = 99, needs = '7.0.0'", backend.url)
    with pytest.raises(StoreUnusable, match=r"store format 99, which Koguma 7\.0\.0 and later can read"):
        await open_store(backend.store_url)


async def test_a_restored_backup_is_read_anew(opened, backend) -> None:
    store = await opened()
    for number in range(4):
        await store.write(puts(make_resource(f"n-{number}")))
    for statement in (
        "DELETE FROM changes WHERE revision > 2",
        "DELETE FROM current WHERE revision > 2",
        "UPDATE counter SET revision = 2",
    ):
        backend.server.execute(statement, backend.url)
    [change] = await store.write(Transaction((Put(make_resource("after")),), "tester"))
    assert change.revision == 3
    assert sorted(one.name for one in contents(store)) == ["after", "n-0", "n-1"]


async def test_an_append_to_another_history_is_not_taken(opened, backend) -> None:
    """After a failover that lost writes, the newest revision may have the same number and be another one."""
    store = await opened()
    await store.write(puts(make_resource("a")))
    await store.close()
    log = backend.log()
    await log.open()
    await log.load()
    columns = ", ".join(Row._fields)
    [stored] = backend.server.fetch(f"SELECT {columns} FROM changes", backend.url)
    row = Row(*stored)._replace(revision=2, name="b", core_name="b")
    backend.server.execute("UPDATE changes SET transaction_id = 'another'", backend.url)
    assert not await log.append(1, [row])
    with pytest.raises(Gone):
        await log.since(1)
    with pytest.raises(Gone):
        await log.append_locked(1, lambda _changes: [row])
    await log.load()
    assert await log.append(1, [row])
    await log.close()
