"""What becomes of memory that was needed for a moment."""

import asyncio
from pathlib import Path

import pytest

from koguma.runtime import garbage_collection


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)


async def _resident_after(seconds: float, wanted_mib: float) -> float:
    for _ in range(int(seconds / 0.05)):
        if _resident_mib() < wanted_mib:
            break
        await asyncio.sleep(0.05)
    return _resident_mib()


async def test_free_memory_goes_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "_INTERVAL_SECONDS", 0.5)
    giving = asyncio.create_task(garbage_collection.return_free_memory())
    await asyncio.sleep(0)
    blocks = [b"x" * 20_000 for _ in range(5_000)]  # too large for Python's pools, too small to be mapped
    pins = blocks[49::50]  # the last one among them, so that the heap cannot simply shrink
    high = _resident_mib()
    del blocks
    kept = _resident_mib()
    left = await _resident_after(10, high - 50)
    giving.cancel()
    assert len(pins) == 100
    assert kept > high - 50
    assert left < high - 50


async def test_memory_that_is_free_only_after_a_look_goes_back_at_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage_collection, "_INTERVAL_SECONDS", 0.3)
    giving = asyncio.create_task(garbage_collection.return_free_memory())
    await asyncio.sleep(0)
    blocks = [b"x" * 20_000 for _ in range(5_000)]
    pins = blocks[49::50]
    high = _resident_mib()
    await asyncio.sleep(0.4)
    del blocks
    left = await _resident_after(10, high - 50)
    giving.cancel()
    assert len(pins) == 100
    assert left < high - 50


async def test_where_the_system_does_not_tell_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "_PAGES", Path("/nonexistent"))
    giving = asyncio.create_task(garbage_collection.return_free_memory())
    await asyncio.wait({giving}, timeout=1)
    assert giving.done()
