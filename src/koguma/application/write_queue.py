"""Write queue: writes of one object take turns, so that each is planned on what the one before it stored.

Writers of one object that arrive together would otherwise plan on the same revision. One of them is first,
all others plan again, and so on: work that grows with the square of their number, until the last ones give
up. Writers of other control planes are no part of this queue; they are met by compare-and-swap.

Turns save work and are no lock: whoever waits for long goes on without one. So a webhook that writes the very
object about which it is asked, or one that is slow, holds nobody up for ever.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from koguma.model.errors import Unavailable

WAITING_MAX: Final = 1_000  # writers of one object
WAIT_SECONDS_MAX: Final = 5.0


ObjectName = tuple[str, ...]  # of an object that is there or will be, the same for all writers of one form


class _Turns:
    """The lock of one object, and how many hold it or wait for it."""

    __slots__ = ("lock", "n_writers")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.n_writers = 0


class WriteQueue:
    """Gives turns to writers, by the name of the object. An object that nobody writes costs nothing."""

    def __init__(self, waiting_max: int = WAITING_MAX, wait_seconds_max: float = WAIT_SECONDS_MAX) -> None:
        self._waiting_max = waiting_max
        self._wait_seconds_max = wait_seconds_max
        self._turns: dict[ObjectName, _Turns] = {}

    def __len__(self) -> int:
        """The number of objects that are being written."""
        return len(self._turns)

    @asynccontextmanager
    async def turn(self, *name: str) -> AsyncIterator[None]:
        """Wait for the turn to write an object, and hold it; go on without it where that takes too long."""
        turns = self._turns.setdefault(name, _Turns())
        if turns.n_writers > self._waiting_max:
            raise Unavailable(f"too many writes of {_shown(name)} wait; nothing was written: retry later")
        turns.n_writers += 1
        has_turn = False
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_seconds_max):
                    has_turn = await turns.lock.acquire()
            yield
        finally:
            if has_turn:
                turns.lock.release()
            turns.n_writers -= 1
            if not turns.n_writers:
                del self._turns[name]


def _shown(name: ObjectName) -> str:
    return " ".join(part for part in name if part)
