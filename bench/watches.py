"""watches: 1,000 idle ones, what each costs the server in memory, and how soon all of them have an event.

The bare side is 1,000 chunked responses of the same server that wait for a future. Ours begins with a PUT, so
its time has the durable write in it.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import msgspec

from bench import sample, wire
from bench.figures import Figure, compared, in_turns
from bench.processes import EmptyServer, MeasuredControlPlane, Process

ABOUT = "1,000 idle watches and one event to all, against idle chunked responses of the same server"
_SETTLE_SECONDS = 0.5


class Watched(msgspec.Struct, frozen=True):
    """One round: memory of each watch, and the median time and processor time of an event."""

    kib_each: float
    event_ms: float
    event_cpu_ms: float


class Crowd:
    """Many watches of one server; knows when all have begun, and when all have an event."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        self._listeners: list[wire.Listener] = []
        self._complete: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def open(self, port: int, asked: bytes) -> None:
        """Open all of them, and wait for the first line of each."""
        for _ in range(self._size):
            listener = wire.Listener(asked, self._began, self._event)
            await wire.listening(port, listener)
            self._listeners.append(listener)
        await self.all()

    def expect(self, events: int) -> None:
        """Wait for so many events of each from now on, not for one."""
        self._left = events * self._size

    async def all(self) -> float:
        """When the last one had what all wait for."""
        at = await asyncio.wait_for(self._complete, wire.PATIENCE_SECONDS)
        self._left = self._size
        self._complete = asyncio.get_running_loop().create_future()
        return at

    def close(self) -> None:
        """Leave."""
        for listener in self._listeners:
            listener.transport.close()

    def _began(self) -> None:
        self._event(0, time.perf_counter())

    def _event(self, _revision: int, at: float) -> None:
        self._left -= 1
        if not self._left:
            self._complete.set_result(at)


async def measured(*, quick: bool) -> list[Figure]:
    """The figures; each round starts both servers anew, since memory once taken is not given back."""
    size, events, rounds = (100, 5, 1) if quick else (1_000, 20, 5)
    with tempfile.TemporaryDirectory(prefix="koguma-bench-") as name:
        folder = Path(name)
        _lines(folder)
        a, b = await in_turns(
            rounds, lambda: _ours(folder, size, events), lambda: _bare(folder, size, events)
        )

    def both(field: str) -> tuple[list[float], list[float]]:
        return [getattr(watched, field) for watched in a], [getattr(watched, field) for watched in b]

    return [
        compared(f"{size:,} idle watches", "KiB each", *both("kib_each"), better="less"),
        compared(f"one event to all {size:,}", "ms", *both("event_ms"), better="less"),
        compared(f"one event to all {size:,}", "CPU ms", *both("event_cpu_ms"), better="less"),
    ]


def _lines(folder: Path) -> None:
    """What the empty handler sends: a bookmark, and an event of the size that ours has."""
    shown = sample.body("sample") + b" " * 400  # labels, times and kri
    (folder / "first").write_bytes(b'{"type":"BOOKMARK","revision":1}\n')
    (folder / "event").write_bytes(b'{"type":"MODIFIED","revision":1,"object":%b}\n' % shown)


async def _ours(folder: Path, size: int, events: int) -> Watched:
    with MeasuredControlPlane(folder / "plane") as plane:
        client = await wire.Client(plane.token).connect(plane.port)
        await client.ask(f"{sample.PATH}/sample", "PUT", sample.body("sample"))
        asked = wire.request(f"{sample.PATH}?watch=true&name=sample", plane.token)
        numbers = iter(range(1, 10_000))

        async def cause() -> None:
            body = sample.body("sample", f"{next(numbers)}s")
            await client.ask(f"{sample.PATH}/sample", "PUT", body)

        return await _watched(plane, asked, size, events, cause)


async def _bare(folder: Path, size: int, events: int) -> Watched:
    with EmptyServer("streams", folder) as empty:
        client = await wire.Client().connect(empty.port)

        async def cause() -> None:
            await client.ask("/event")

        return await _watched(empty, wire.request("/watch", "x" * 600), size, events, cause)


async def _watched(
    process: Process, asked: bytes, size: int, events: int, cause: Callable[[], Awaitable[None]]
) -> Watched:
    few = Crowd(2)  # so that what the first watch alone costs is not counted
    await few.open(process.port, asked)
    few.close()
    await cause()
    await asyncio.sleep(_SETTLE_SECONDS)
    before = process.memory_kib
    crowd = Crowd(size)
    await crowd.open(process.port, asked)
    await asyncio.sleep(_SETTLE_SECONDS)
    kib_each = (process.memory_kib - before) / size
    cpu, times = process.cpu_seconds, []
    for _ in range(events):
        started = time.perf_counter()
        await cause()
        times.append(1000 * (await crowd.all() - started))
    cpu_ms = 1000 * (process.cpu_seconds - cpu) / events
    crowd.close()
    return Watched(kib_each, median(times), cpu_ms)
