"""Writers of one object take turns; the queue of each object is limited, and empty ones are forgotten."""

import asyncio

import pytest

from koguma.application.write_queue import WriteQueue
from koguma.model.errors import Unavailable


async def held(queue, *name):
    """A writer that has its turn; ends when it is told to."""
    has_turn, may_end = asyncio.Event(), asyncio.Event()

    async def write():
        async with queue.turn(*name):
            has_turn.set()
            await may_end.wait()

    task = asyncio.create_task(write())
    await has_turn.wait()
    return task, may_end


async def test_writers_of_one_object_come_one_after_the_other_and_others_do_not_wait():
    queue, order = WriteQueue(), []
    task, may_end = await held(queue, "ConfigMap", "a")

    async def write(number):
        async with queue.turn("ConfigMap", "a"):
            order.append(number)

    writers = [asyncio.create_task(write(number)) for number in range(5)]
    async with queue.turn("ConfigMap", "b"):
        assert order == []
    may_end.set()
    await asyncio.gather(task, *writers)
    assert order == [0, 1, 2, 3, 4]
    assert len(queue) == 0


async def test_a_queue_that_is_full_refuses_and_says_that_nothing_was_written():
    queue = WriteQueue(waiting_max=1)
    task, may_end = await held(queue, "ConfigMap", "a")
    waiting = asyncio.create_task(held(queue, "ConfigMap", "a"))
    for _ in range(2):  # it starts a task, which joins the queue
        await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="too many writes of ConfigMap a wait; nothing was written"):
        async with queue.turn("ConfigMap", "a"):
            pass
    may_end.set()
    await task
    second, its_end = await waiting
    its_end.set()
    await second
    assert len(queue) == 0


async def test_nobody_waits_for_ever_and_who_leaves_is_forgotten():
    queue = WriteQueue(wait_seconds_max=0.01)
    task, may_end = await held(queue, "ConfigMap", "a")
    async with queue.turn("ConfigMap", "a"):  # without a turn: compare-and-swap decides
        assert not task.done()
    assert len(queue) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not may_end.is_set()
    assert len(queue) == 0
    async with queue.turn("ConfigMap", "a"):
        assert len(queue) == 1


async def test_who_is_cancelled_while_waiting_takes_no_turn():
    queue = WriteQueue()
    task, may_end = await held(queue, "ConfigMap", "a")
    waiting = asyncio.create_task(queue.turn("ConfigMap", "a").__aenter__())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    may_end.set()
    await task
    assert len(queue) == 0
