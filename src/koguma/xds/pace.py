"""Pace: how many streams may write at a time, so that a change for all proxies does not starve a new one.

New streams have a lane of their own. A proxy that does not read keeps its place for a moment only; after that
the next one goes, and the slow one has nobody waiting behind it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Pace:
    """Places for writers: some for streams that are up to date, some for those that are just beginning."""

    def __init__(self, places: int, places_for_new: int, patience_seconds: float) -> None:
        self._lane = asyncio.Semaphore(places)
        self._lane_for_new = asyncio.Semaphore(places_for_new)
        self._patience_seconds = patience_seconds

    @asynccontextmanager
    async def turn(self, *, is_new: bool) -> AsyncIterator[None]:
        """Wait for a place and keep it, but not longer than patience allows."""
        place = _Place(self._lane_for_new if is_new else self._lane)
        await place.take()
        impatience = asyncio.get_running_loop().call_later(self._patience_seconds, place.leave)
        try:
            yield
        finally:
            impatience.cancel()
            place.leave()


class _Place:
    """A place in a lane, left once however often that is said."""

    def __init__(self, lane: asyncio.Semaphore) -> None:
        self._lane = lane
        self._is_taken = False

    async def take(self) -> None:
        await self._lane.acquire()
        self._is_taken = True

    def leave(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._lane.release()
