"""The pace of writers that act by themselves."""

import asyncio
import time

from koguma.reconcile.following import PAUSE_SECONDS, PAUSE_SECONDS_MAX, PAUSE_SHARE, Pace


async def seconds_of_pause(pace: Pace) -> float:
    began_at = time.monotonic()
    await pace.pause()
    return time.monotonic() - began_at


async def test_changes_are_collected_for_longer_after_long_work():
    pace = Pace()
    with pace.working():
        await asyncio.sleep(0.02)
        worked_until = time.monotonic()
    await pace.pause()
    assert time.monotonic() - worked_until >= 0.02 * PAUSE_SHARE - 0.01
    assert PAUSE_SECONDS_MAX > 0.02 * PAUSE_SHARE > PAUSE_SECONDS  # else the test shows nothing


async def test_changes_that_come_together_are_collected():
    assert await seconds_of_pause(Pace()) >= PAUSE_SECONDS - 0.01
