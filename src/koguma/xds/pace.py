"""Pace: how many streams may write at a time, so that a change for all proxies does not starve a new one.

New streams have a lane of their own. A proxy that does not read keeps its place for a moment only; after that
the next one goes, and the slow one has nobody waiting behind it.
"""

import asyncio
from collections import deque


class Pace:
    """Places for writers: some for streams that are up to date, some for those that are just beginning."""

    def __init__(self, places: int, places_for_new: int, patience_seconds: float) -> None:
        self._lane = _Lane(places)
        self._lane_for_new = _Lane(places_for_new)
        self._patience_seconds = patience_seconds

    def turn(self, *, is_new: bool) -> "_Turn":
        """Wait for a place and keep it, but not longer than patience allows."""
        return _Turn(self._lane_for_new if is_new else self._lane, self._patience_seconds)


class _Lane:
    """Some places, and those who wait for one, first come first served.

    Asyncio's own semaphore looks at all who wait each time that one of them is let through, which is too much
    where thousands do.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # the place was given, and nobody took it
            raise

    def release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class _Turn:
    """A place in a lane while it is entered, or until patience ends; left once."""

    __slots__ = ("_impatience", "_is_taken", "_lane", "_patience_seconds")

    def __init__(self, lane: _Lane, patience_seconds: float) -> None:
        self._lane = lane
        self._patience_seconds = patience_seconds
        self._is_taken = False

    async def __aenter__(self) -> None:
        await self._lane.acquire()
        self._is_taken = True
        self._impatience = asyncio.get_running_loop().call_later(self._patience_seconds, self._leave)

    async def __aexit__(self, *_: object) -> None:
        self._impatience.cancel()
        self._leave()

    def _leave(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._lane.release()
