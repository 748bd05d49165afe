"""A disk without room: writes are refused at once with the reason, deletes go on, and it ends by itself."""

import asyncio
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest
from store_cases import Clock, contents, deletes, key, make_resource, puts
from structlog.testing import capture_logs

from koguma.model.errors import StoreFull
from koguma.store import Store, StoreUnusable
from koguma.store.sqlite import SqliteLog
from tests.small_disk import SmallDisk, small_disk

RESERVE = 8 * 1024 * 1024
LARGE = "x" * 20_000


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", 14) as found:
        yield found


async def opened(path: Path, clock: Clock | None = None) -> Store:
    store = Store(SqliteLog(path / "store.db", RESERVE), clock or Clock(), write_timeout=600)
    await store.open()
    return store


async def until_full(store: Store, disk: SmallDisk) -> StoreFull:
    """Write until nothing more can be stored; the refusal."""
    disk.fill()
    with pytest.raises(StoreFull) as refusal:
        await write_many(store)
    return refusal.value


async def write_many(store: Store) -> None:
    for number in range(1000):
        await store.write(puts(make_resource(f"more-{number}", LARGE)))


async def until_room(store: Store) -> None:
    """Wait until the store notices by itself; nobody writes meanwhile."""
    async with asyncio.timeout(60):
        while store.full:  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0.01)


async def test_a_write_without_room_is_refused_with_the_place_and_what_helps(disk) -> None:
    store = await opened(disk.path)
    refusal = await until_full(store, disk)  # would wait for ten minutes if it waited for room
    assert refusal.status == 507
    for words in (str(disk.path / "store.db"), "full", "KB are left", "make room", "Deletes still work"):
        assert words in refusal.detail
    assert store.full
    await store.close()


async def test_reads_and_deletes_go_on_without_room(disk) -> None:
    store = await opened(disk.path)
    names = [f"kept-{number}" for number in range(20)]
    await store.write(puts(*(make_resource(name, LARGE) for name in names)))
    await until_full(store, disk)
    for name in names:
        await store.write(deletes(key(name)))
    assert [name for name in names if store.state.get(key(name))] == []
    with pytest.raises(StoreFull):  # what was kept for deletes is not for new objects
        await store.write(puts(make_resource("new")))
    found = contents(store)
    await store.close()
    again = await opened(disk.path)
    assert contents(again) == found
    await again.close()


async def test_a_delete_is_done_beside_a_write_that_has_no_room(disk) -> None:
    store = await opened(disk.path)
    await store.write(puts(make_resource("old", LARGE)))
    await until_full(store, disk)
    results = await asyncio.gather(
        *(store.write(puts(make_resource(f"new-{number}", LARGE))) for number in range(5)),
        store.write(deletes(key("old"))),
        *(store.write(puts(make_resource(f"next-{number}", LARGE))) for number in range(5)),
        return_exceptions=True,
    )
    assert [isinstance(result, StoreFull) for result in results] == [True] * 5 + [False] + [True] * 5
    assert store.state.get(key("old")) is None
    await store.close()


async def test_old_history_can_be_removed_without_room_and_makes_some(disk) -> None:
    clock = Clock()
    store = await opened(disk.path, clock)
    for value in range(70):
        await store.write(puts(make_resource("one", f"{value}{LARGE}")))
    refusal = await until_full(store, disk)
    assert refusal
    clock.advance(hours=2)
    await store.compact(retention=timedelta(hours=1))
    await store.write(puts(make_resource("new", LARGE)))
    assert not store.full
    await store.close()


@pytest.mark.usefixtures("info_logs")
async def test_a_full_disk_is_told_once_when_it_begins_and_once_when_it_ends(disk, monkeypatch) -> None:
    monkeypatch.setattr("koguma.store.store.ROOM_SECONDS", 0.01)
    with capture_logs() as lines:
        store = await opened(disk.path)
        await until_full(store, disk)
        for number in range(100):
            with pytest.raises(StoreFull):
                await store.write(puts(make_resource(f"again-{number}", LARGE)))
        disk.free()
        await until_room(store)
        await store.write(puts(make_resource("new", LARGE)))
        await store.close()
    assert [line["event"] for line in lines] == ["store is full", "store has room again"]


async def test_a_control_plane_starts_and_deletes_on_a_full_disk(disk) -> None:
    store = await opened(disk.path)
    await store.write(puts(make_resource("old", LARGE)))
    await store.close()
    disk.fill()
    store = await opened(disk.path)
    await store.write(deletes(key("old")))
    assert contents(store) == {}
    await store.close()


async def test_a_new_store_on_a_full_disk_says_so(disk) -> None:
    disk.fill()
    with pytest.raises((StoreUnusable, StoreFull), match=r"store\.db.*full|No space left"):
        await opened(disk.path)


async def test_an_error_of_the_disk_that_is_not_about_room_is_not_called_full(tmp_path) -> None:
    log = SqliteLog(tmp_path / "store.db", RESERVE)
    await log.open()
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    assert not log._database.is_full(error)
    await log.close()
    assert log._database.reserve.path.stat().st_size == RESERVE


async def test_a_full_disk_of_postgres_is_refused_at_once_and_ends_by_itself(
    own_postgres, monkeypatch
) -> None:
    monkeypatch.setattr("koguma.store.store.ROOM_SECONDS", 0.05)
    from koguma.store.postgres import PostgresLog

    with small_disk(own_postgres.folder / "small", 24) as disk:
        url = own_postgres.database_on(disk.path)
        try:
            store = Store(PostgresLog(url), Clock(), write_timeout=600)
            await store.open()
            await store.write(puts(make_resource("old")))
            refusal = await until_full(store, disk)
            assert refusal.status == 507
            assert "the disk of the database postgresql://" in refusal.detail
            assert store.full
            disk.free()
            await until_room(store)
            await store.write(puts(make_resource("new", LARGE)))
            await store.close()
        finally:
            own_postgres.drop_with_tablespace(url)
