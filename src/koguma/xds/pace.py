"""Pace: how many streams may write at a time, so that a change for all proxies does not starve a new one.

New streams have a lane of their own. A proxy that does not read keeps its place for a moment only; after that
the next one goes, and the slow one has nobody waiting behind it. Who waits is a function that has not been
called yet: thousands may, and cost nothing until it is their turn.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

Work = Callable[[], Coroutine[Any, Any, None]]


class Pace:
    """Places for writers: some for streams that are up to date, some for those that are just beginning."""

    def __init__(self, places: int, places_for_new: int, patience_seconds: float) -> None:
        self._lane = _Lane(places, patience_seconds)
        self._lane_for_new = _Lane(places_for_new, patience_seconds)

    def enter(self, work: Work, *, is_new: bool) -> None:
        """Let a writer begin as soon as there is a place for it, first come first served."""
        (self._lane_for_new if is_new else self._lane).enter(work)


class _Lane:
    """Some places, and those who wait for one."""

    def __init__(self, places: int, patience_seconds: float) -> None:
        self._free = places
        self._patience_seconds = patience_seconds
        self._waiting: deque[Work] = deque()
        self._began: dict[asyncio.Task[None], float] = {}  # who has a place since when, oldest first
        self._slow: set[asyncio.Task[None]] = set()  # who lost it
        self._look: asyncio.TimerHandle | None = None

    def enter(self, work: Work) -> None:
        if self._free:
            self._free -= 1
            self._begin(work)
            return
        self._waiting.append(work)
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(self._patience_seconds, self._pass_slow)

    def _begin(self, work: Work) -> None:
        loop = asyncio.get_running_loop()
        self._began[loop.create_task(self._hold(work))] = loop.time()

    async def _hold(self, work: Work) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await work()
        finally:
            if self._began.pop(task, None) is not None:
                self._next()
            self._slow.discard(task)

    def _next(self) -> None:
        if self._waiting:
            self._begin(self._waiting.popleft())
        else:
            self._free += 1

    def _pass_slow(self) -> None:
        """Give the places of those who are slow to those who wait."""
        self._look = None
        loop = asyncio.get_running_loop()
        late = loop.time() - self._patience_seconds
        for task in [task for task, began in self._began.items() if began <= late]:
            del self._began[task]
            self._slow.add(task)
            self._next()
        if self._waiting:
            oldest = next(iter(self._began.values()), late)
            self._look = loop.call_at(oldest + self._patience_seconds, self._pass_slow)
