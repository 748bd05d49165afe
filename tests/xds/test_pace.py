"""Places for writers: new streams have their own, and nobody keeps one for long."""

import asyncio

from koguma.xds.pace import Pace


async def test_a_full_lane_does_not_stop_a_new_stream():
    pace = Pace(places=1, places_for_new=1, patience_seconds=60)
    async with pace.turn(is_new=False), asyncio.timeout(1), pace.turn(is_new=True):
        pass


async def test_those_who_write_take_turns():
    pace = Pace(places=2, places_for_new=1, patience_seconds=60)
    at_once, most = 0, 0

    async def write() -> None:
        nonlocal at_once, most
        async with pace.turn(is_new=False):
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1

    await asyncio.gather(*(write() for _ in range(20)))
    assert most == 2


async def test_a_slow_one_is_passed_and_gives_its_place_back_once():
    pace = Pace(places=1, places_for_new=1, patience_seconds=0.01)
    async with asyncio.timeout(1):
        async with pace.turn(is_new=False), pace.turn(is_new=False):
            pass
    patient = Pace(places=1, places_for_new=1, patience_seconds=60)
    for _ in range(2):
        async with patient.turn(is_new=False):
            pass
    async with patient.turn(is_new=False):
        second = asyncio.create_task(anext(aiter_turn(patient)))
        await asyncio.sleep(0.01)
        assert not second.done()
        second.cancel()


async def aiter_turn(pace: Pace):
    async with pace.turn(is_new=False):
        yield
