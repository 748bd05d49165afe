"""The tables of proxies' states: what every store does, run on memory, SQLite and PostgreSQL."""

import pytest

from koguma.model.resource import Key
from koguma.store.proxy_states import LEFT, InstanceRow, StateRow

pytestmark = pytest.mark.slow


def key(name: str) -> Key:
    return Key("Dataplane", "default", "zone", "", name)


def row(instance: str, beat: int, version: int = 0, data: bytes = b"{}") -> InstanceRow:
    return InstanceRow(instance, beat, version or beat, 7, data)


def state(name: str, version: int, data: bytes = b'{"a":1}') -> StateRow:
    return StateRow(key(name), version, data)


@pytest.fixture
async def table(opened):
    return (await opened()).log.proxy_states


async def test_nothing_is_known_at_first(table):
    assert await table.instances() == []
    assert await table.states("a", -1) == []


async def test_a_reader_gets_the_rows_of_later_flushes_alone(table):
    await table.begin(row("a", 1), [state("x", 1), state("y", 1)])
    assert await table.instances() == [row("a", 1)]
    assert sorted(await table.states("a", -1)) == [state("x", 1), state("y", 1)]
    assert await table.write(row("a", 2), 1, [state("y", 2, b'{"a":2}'), state("z", 2)], ())
    assert sorted(await table.states("a", 1)) == [state("y", 2, b'{"a":2}'), state("z", 2)]
    assert await table.states("a", 2) == []
    assert sorted(await table.states("a", 0)) == [state("x", 1), state("y", 2, b'{"a":2}'), state("z", 2)]


async def test_a_flush_without_states_is_a_sign_of_life(table):
    await table.begin(row("a", 1), [state("x", 1)])
    assert await table.write(row("a", 2, data='{"a":"ü"}'.encode()), 1, (), ())
    assert await table.instances() == [row("a", 2, data='{"a":"ü"}'.encode())]


async def test_rows_of_forgotten_proxies_are_removed(table):
    await table.begin(row("a", 1), [state("x", 1), state("y", 1)])
    await table.begin(row("b", 1), [state("x", 1)])
    assert await table.write(row("a", 2), 1, [state("z", 2)], [key("x"), key("never")])
    assert sorted(await table.states("a", -1)) == [state("y", 1), state("z", 2)]
    assert await table.states("b", -1) == [state("x", 1)]


async def test_a_writer_whose_row_is_gone_or_old_writes_nothing(table):
    assert not await table.write(row("a", 2), 1, [state("x", 2)], ())
    await table.begin(row("a", 1), [])
    assert not await table.write(row("a", 5), 4, [state("x", 5)], ()), "flush 4 was lost"
    assert await table.states("a", -1) == []
    assert await table.instances() == [row("a", 1)]
    assert await table.write(row("a", 5), 1, [], ())
    assert await table.write(row("a", 6), 4, [], ()), "a flush of which nobody heard was written after all"


async def test_beginning_anew_removes_what_was_there(table):
    await table.begin(row("a", 1), [state("x", 1), state("y", 1)])
    await table.begin(row("b", 1), [state("x", 1)])
    await table.begin(row("a", 9), [state("y", 9)])
    assert await table.states("a", -1) == [state("y", 9)]
    assert sorted(await table.instances()) == [row("a", 9), row("b", 1)]
    assert await table.states("b", -1) == [state("x", 1)]


async def test_one_that_stops_says_so_and_its_rows_stay(table):
    await table.begin(row("a", 3), [state("x", 3)])
    await table.leave("a")
    await table.leave("never")
    assert await table.instances() == [row("a", 3)._replace(beat=LEFT)]
    assert await table.states("a", -1) == [state("x", 3)]
    assert not await table.write(row("a", 4), 3, [], ())


async def test_rows_of_one_that_is_gone_are_removed_unless_it_lives(table):
    await table.begin(row("a", 3), [state("x", 3)])
    await table.begin(row("b", 3), [state("x", 3)])
    await table.remove("a", 2)
    assert len(await table.instances()) == 2
    await table.remove("a", 3)
    await table.remove("a", 3)
    assert await table.instances() == [row("b", 3)]
    assert await table.states("a", -1) == []
    assert await table.states("b", -1) == [state("x", 3)]


async def test_thousands_of_rows_are_one_flush(table):
    many = [state(f"x-{number}", 1) for number in range(5_000)]
    await table.begin(row("a", 1), many)
    assert len(await table.states("a", 0)) == 5_000
    assert await table.write(row("a", 2), 1, [each._replace(version=2) for each in many], ())
    assert len(await table.states("a", 1)) == 5_000
