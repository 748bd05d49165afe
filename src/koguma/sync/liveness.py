"""Liveness: signs of life of a connection, so that a side whose process hangs counts as gone."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from koguma.model.errors import Unavailable
from koguma.sync.protocol.messages import Alive, Message

LOOK_SECONDS: Final = 1.0  # between two looks whether the other side has given a sign of life
ALIVE_LOOKS: Final = 3  # between two signs of life
SILENT_LOOKS: Final = 10  # without one, after which the other side counts as gone


class Liveness:
    """Gives signs of life, and ends a connection where the other side gives none."""

    def __init__(self, queue: Callable[[Iterator[Message]], None]) -> None:
        self._queue = queue
        self._is_waiting = False  # a sign of life, to be sent
        self._is_reading = False  # this side waits for a message, and is not busy with one
        self._n_received = 0

    async def read(self, incoming: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The messages of the other side, each of which is a sign of life."""
        self._is_reading = True
        async for data in incoming:
            self._is_reading = False
            self._n_received += 1
            yield data
            self._is_reading = True

    async def watch(self) -> None:
        """Raise Unavailable once the other side is silent for too long.

        It counts looks and no time, so that whoever was paused itself takes nobody for gone.
        """
        n_looks = n_silent = n_received = 0
        while n_silent < SILENT_LOOKS:
            await asyncio.sleep(LOOK_SECONDS)
            n_looks += 1
            if n_looks % ALIVE_LOOKS == 0 and not self._is_waiting:
                self._is_waiting = True
                self._queue(self._sign())
            n_silent = n_silent + 1 if self._is_reading and self._n_received == n_received else 0
            n_received = self._n_received
        raise Unavailable(f"it has given no sign of life for {SILENT_LOOKS * LOOK_SECONDS:g} s")

    def _sign(self) -> Iterator[Message]:
        self._is_waiting = False
        yield Alive()
