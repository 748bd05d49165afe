"""A log that does not answer: nothing is written twice, nothing acknowledged is lost, and waiting ends."""

import asyncio
from collections.abc import Sequence

import pytest
from store_cases import Clock, changes_after, contents, deletes, key, make_resource, puts, transaction_of

from koguma.model.errors import Unavailable
from koguma.store import Op, Put, Store
from koguma.store.contract import Change
from koguma.store.log import LogLost, RowsAfter
from koguma.store.memory import MemoryLog
from koguma.store.row import Row


class FlakyLog(MemoryLog):
    """Loses appends as told: `before` they happen, or `after`, when only the answer is lost."""

    def __init__(self, *losses: str) -> None:
        super().__init__(shared=True)
        self.losses = list(losses)
        self.is_down = False

    async def append(self, expected: int, rows: Sequence[Row]) -> bool:
        loss = self.losses.pop(0) if self.losses else ""
        if loss == "before":
            raise LogLost("the connection was lost")
        done = await super().append(expected, rows)
        if loss == "after":
            raise LogLost("the connection was lost")
        return done

    async def since(self, revision: int, limit: int | None = None) -> list[Change]:
        if self.is_down:
            raise LogLost("nobody answers")
        return await super().since(revision, limit)

    async def append_locked(self, after: int, rows_after: RowsAfter) -> None:
        if self.is_down:
            raise LogLost("nobody answers")
        await super().append_locked(after, rows_after)


async def opened(log: MemoryLog, write_timeout: float = 5) -> Store:
    store = Store(log, Clock(), write_timeout=write_timeout)
    await store.open()
    return store


@pytest.mark.parametrize("losses", [["before"], ["after"], ["before", "after"], ["after", "before", "after"]])
async def test_a_lost_append_is_written_exactly_once(losses) -> None:
    store = await opened(FlakyLog(*losses))
    results = await asyncio.gather(
        store.write(puts(make_resource("a"), expect=0)),
        store.write(puts(make_resource("b"), make_resource("c"), expect=0)),
        store.write(deletes(key("nobody"))),
        return_exceptions=True,
    )
    assert [change.revision for result in results[:2] for change in result] == [1, 2, 3]
    assert [change.resource.name for change in await changes_after(store, 0)] == ["a", "b", "c"]
    assert store.lost >= 1
    await store.close()


async def test_a_write_found_in_the_log_is_answered_like_any_other() -> None:
    log = FlakyLog()
    store = await opened(log)
    await store.write(puts(make_resource("a")))
    log.losses = ["after"]
    unchanged, updated = await store.write(transaction_of(Put(make_resource("a")), Put(make_resource("b"))))
    assert (unchanged.op, updated.op, updated.revision) == (Op.UNCHANGED, Op.CREATE, 2)
    assert updated.resource == store.state.get(key("b"))
    await store.close()


async def test_a_store_that_stays_away_ends_the_wait_and_says_what_may_have_happened() -> None:
    log = FlakyLog("before")
    store = await opened(log, write_timeout=0.2)
    log.is_down = True
    sent = asyncio.create_task(store.write(puts(make_resource("a"))))
    await asyncio.sleep(0.01)
    queued = asyncio.create_task(store.write(puts(make_resource("b"))))
    with pytest.raises(Unavailable, match="may have happened: read before you retry"):
        await sent
    with pytest.raises(Unavailable, match="nothing was written"):
        await queued
    log.is_down = False
    await store.write(puts(make_resource("c")))
    assert sorted(one.name for one in contents(store)) == ["c"]
    await store.close()


async def test_two_stores_on_one_log_take_turns() -> None:
    log = MemoryLog(shared=True)
    one, two = await opened(log), await opened(log)

    async def write(store: Store, name: str) -> list[int]:
        return [(await store.write(puts(make_resource(f"{name}-{n}"))))[0].revision for n in range(50)]

    found = await asyncio.gather(write(one, "one"), write(two, "two"))
    assert sorted(found[0] + found[1]) == list(range(1, 101))
    assert one.conflicts + two.conflicts > 0
    await one.write(puts(make_resource("last")))
    assert [change.revision for change in await two.watch(None, 100).next_batch(5)] == [101]
    assert contents(one) == contents(two)
    await one.close()
    await two.close()


async def test_a_refusal_is_checked_against_what_others_wrote_meanwhile() -> None:
    log = FlakyLog()
    one, two = await opened(log), await opened(log)
    await one.write(puts(make_resource("a")))
    await two.watch(None, 0).next_batch(5)
    await one.write(deletes(key("a")))
    [created] = await two.write(puts(make_resource("a"), expect=0))  # its own memory still has it
    assert (created.op, created.revision) == (Op.CREATE, 3)
    [changed] = await one.write(puts(make_resource("a", 2)))
    [unchanged] = await two.write(puts(make_resource("a", 2)))
    assert (changed.op, unchanged.op) == (Op.UPDATE, Op.UNCHANGED)
    await one.close()
    await two.close()


async def test_a_store_that_was_away_for_longer_than_the_history_reads_all_again() -> None:
    clock = Clock()
    log = FlakyLog()
    one, two = Store(log, clock), await opened(log)
    await one.open()
    await one.write(puts(make_resource("a")))
    watch = two.watch(None, 1)
    await two.watch(None, 0).next_batch(5)
    two._tasks[1].cancel()  # it hears nothing for a while
    await one.write(puts(make_resource("a", 2)))
    await one.write(transaction_of(Put(make_resource("b")), Put(make_resource("a", 3))))
    clock.advance(days=40)
    await one.compact()
    await two.write(puts(make_resource("c")))
    assert contents(two).keys() == contents(one).keys() | {key("c")}
    with pytest.raises(Exception, match="no longer kept"):
        await watch.next_batch(0)
    await one.close()
    await two.close()


async def test_a_log_that_fails_in_any_way_does_not_stop_the_writer() -> None:
    class Broken(FlakyLog):
        async def since(self, revision: int, limit: int | None = None) -> list[Change]:
            if self.is_down:
                raise RuntimeError("this should never happen")
            return await super().since(revision, limit)

    log = Broken("before")
    store = await opened(log)
    log.is_down = True
    with pytest.raises(RuntimeError, match="never"):
        await store.write(puts(make_resource("a")))
    log.is_down = False
    assert len(await store.write(puts(make_resource("b")))) == 1
    await store.close()


async def test_a_mistake_in_one_transaction_does_not_stop_the_others() -> None:
    class Picky(MemoryLog):
        async def append(self, expected: int, rows: Sequence[Row]) -> bool:
            if any(row.name == "poison" for row in rows):
                raise RuntimeError("this cannot be stored")
            return await super().append(expected, rows)

    store = await opened(Picky())
    results = await asyncio.gather(
        *(store.write(puts(make_resource(name))) for name in ("a", "poison", "b")), return_exceptions=True
    )
    assert [type(result) for result in results] == [tuple, RuntimeError, tuple]
    assert [one.name for one in contents(store)] == ["a", "b"]
    await store.close()
