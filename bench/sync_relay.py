"""Relay: a TCP port between a zone and Global that counts bytes, and cuts connections when it is told to."""

import asyncio
import time
from contextlib import suppress
from typing import Final, Self

_CHUNK: Final = 1 << 18
_LOOK_SECONDS: Final = 0.01
_PING_BYTES: Final = 50  # what keeps a connection alive is smaller, whatever else is said is larger


class Relay:
    """Passes connections on to a port; holds new ones until it is released."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._released = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.released_at = 0.0
        self.reset()

    def reset(self) -> None:
        """Count from here on."""
        self.n_bytes = {"up": 0, "down": 0}
        self.last_at = self.accepted_at = 0.0

    @property
    def total(self) -> int:
        """Bytes in both directions."""
        return sum(self.n_bytes.values())

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._released.set()
        while self._tasks:
            self.cut()
            await asyncio.sleep(_LOOK_SECONDS)

    def release(self) -> None:
        """Let connections through."""
        self.released_at = time.monotonic()
        self._released.set()

    def hold(self) -> None:
        """Hold connections that come from now on."""
        self._released.clear()

    def cut(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def quiet(self, seconds: float, at_least: int, patience: float) -> float:
        """Wait until so many bytes went through, and then nothing more; returns when the last ones went."""
        give_up_at = time.monotonic() + patience
        while self.total < at_least or time.monotonic() - self.last_at < seconds:
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"{self.total:,} of {at_least:,} bytes after {patience:g} s")
            await asyncio.sleep(_LOOK_SECONDS)
        return self.last_at

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await self._released.wait()
        self.accepted_at = time.monotonic()
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, back}
        await asyncio.gather(self._pass(reader, back, "up"), self._pass(there, writer, "down"))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                self.n_bytes[way] += len(chunk)
                if len(chunk) > _PING_BYTES:
                    self.last_at = time.monotonic()
                writer.write(chunk)
                await writer.drain()
        writer.close()
