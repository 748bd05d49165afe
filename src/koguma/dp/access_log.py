"""Access log: lines that Envoy writes to a pipe, forwarded to TCP collectors (MeshAccessLog's Tcp backend).

Each line of the pipe is a JSON object with an address and a message; a message that is not a string is sent
as JSON. While a collector is unreachable its lines are queued; when the queue is full the oldest lines are
dropped and counted. Envoy never waits for a collector.
"""

import asyncio
import contextlib
import fcntl
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import structlog

from koguma.runtime.background import Background

_QUEUE_BYTES_MAX: Final = 4 * 1024 * 1024  # for each address
_PIPE_BYTES: Final = 1024 * 1024
_READ_BYTES: Final = 256 * 1024
_BATCH_BYTES: Final = 4 * _READ_BYTES  # more than one read, else a burst would fill the queue
_LINE_BYTES_MAX: Final = 1024 * 1024
_RETRY_SECONDS: Final = (0.2, 15.0)
_CONNECT_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 1.0
_FLUSH_SECONDS: Final = 2.0  # for the lines that are queued when the agent stops

_log = structlog.get_logger("koguma.dp")


class _PipeLine(msgspec.Struct):
    address: str
    message: msgspec.Raw


_DECODER: Final = msgspec.json.Decoder(_PipeLine)


class LineQueue:
    """Lines that wait to be sent to one address, and how many were dropped because it was full."""

    def __init__(self, bytes_max: int = _QUEUE_BYTES_MAX) -> None:
        self.dropped = 0
        self.not_empty = asyncio.Event()
        self.emptied = asyncio.Event()
        self._bytes_max = bytes_max
        self._lines: deque[bytes] = deque()
        self._size = 0

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: bytes) -> None:
        """Append a line; the oldest lines are dropped where the queue is full."""
        self._lines.append(line)
        self._size += len(line)
        self.emptied.clear()
        while self._size > self._bytes_max:
            self._size -= len(self._lines.popleft())
            self.dropped += 1
        self.not_empty.set()

    def take(self) -> list[bytes]:
        """Remove and return the oldest lines, as many as one batch holds."""
        batch: list[bytes] = []
        size = 0
        while self._lines and size < _BATCH_BYTES:
            batch.append(self._lines.popleft())
            size += len(batch[-1])
        self._size -= size
        if not self._lines:
            self.not_empty.clear()
            self.emptied.set()
        return batch

    def put_back(self, lines: list[bytes]) -> None:
        """Put lines that could not be sent back to the front."""
        self.emptied.clear()
        self._lines.extendleft(reversed(lines))
        self._size += sum(map(len, lines))
        self.not_empty.set()


class LogSender:
    """Sends lines to one address, over one connection that is opened again when it is lost."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.queue = LineQueue()
        self.sent = 0
        self._is_lost = False

    async def run(self) -> None:
        """Connect whenever the queue has lines, until cancelled."""
        pause, pause_max = _RETRY_SECONDS
        while True:
            await self.queue.not_empty.wait()
            sent_before = self.sent
            try:
                await self._send()
            except (OSError, TimeoutError, ValueError) as error:
                self._log_failure(error)
            pause = _RETRY_SECONDS[0] if self.sent > sent_before else min(pause * 2, pause_max)
            await asyncio.sleep(pause)

    async def _send(self) -> None:
        """Send until the collector closes the connection; OSError where it cannot be reached."""
        host, _, port = self.address.rpartition(":")
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        closed = asyncio.create_task(_wait_closed(reader))
        try:
            while not closed.done():
                not_empty = asyncio.create_task(self.queue.not_empty.wait())
                try:
                    await asyncio.wait((not_empty, closed), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    not_empty.cancel()
                if not closed.done():
                    await self._send_batch(writer)
        finally:
            closed.cancel()
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await writer.wait_closed()

    async def _send_batch(self, writer: asyncio.StreamWriter) -> None:
        batch = self.queue.take()
        try:
            writer.write(b"".join(batch))
            await writer.drain()
        except OSError:
            self.queue.put_back(batch)
            raise
        self.sent += len(batch)
        if self._is_lost:
            self._is_lost = False
            _log.info(
                "access log reaches its collector again", address=self.address, dropped=self.queue.dropped
            )

    def _log_failure(self, error: Exception) -> None:
        if not self._is_lost:
            self._is_lost = True
            why = str(error) or type(error).__name__
            _log.warning("access log does not reach its collector", address=self.address, why=why)


async def _wait_closed(reader: asyncio.StreamReader) -> None:
    """Wait until the collector closes the connection; what it sends is ignored."""
    with contextlib.suppress(OSError):
        while await reader.read(4096):
            pass


class AccessLogForwarder:
    """Reads the pipe, and queues each line for the sender of its address."""

    def __init__(self) -> None:
        self.senders: dict[str, LogSender] = {}
        self.unreadable = 0
        self._sending = Background()
        self._pipe = -1
        self._rest = b""

    def start(self, path: Path) -> None:
        """Create the pipe, and read it from now on."""
        path.unlink(missing_ok=True)  # left by an agent that was killed
        os.mkfifo(path, 0o600)
        # Open for reading and writing: a reader alone would see end-of-file whenever Envoy closes the pipe.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        with contextlib.suppress(OSError, AttributeError):  # a smaller pipe works too
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        asyncio.get_running_loop().add_reader(self._pipe, self._read)

    async def stop(self) -> None:
        """Send the lines that are queued, for a limited time, and stop."""
        if self._pipe < 0:
            return
        self._read()
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)
        self._pipe = -1
        flushes = [sender.queue.emptied.wait() for sender in self.senders.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await asyncio.gather(*flushes)
        await self._sending.stop()

    def _read(self) -> None:
        try:
            chunk = os.read(self._pipe, _READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self.take(line)
        if len(self._rest) > _LINE_BYTES_MAX:
            self._rest = b""
            self.unreadable += 1

    def take(self, line: bytes) -> None:
        """Queue one line of the pipe for its address."""
        try:
            entry = _DECODER.decode(line)
            message = _text(entry.message)
        except msgspec.MsgspecError:
            self.unreadable += 1
            return
        sender = self.senders.get(entry.address)
        if sender is None:
            sender = self.senders[entry.address] = LogSender(entry.address)
            name = f"access log to {entry.address}"
            self._sending.forever(name, sender.run)
        sender.queue.add(message)

    def samples(self) -> Iterator[tuple[str, str, int]]:
        """The counters of all senders: name, address, value."""
        for address, sender in sorted(self.senders.items()):
            yield "koguma_access_log_sent_total", address, sender.sent
            yield "koguma_access_log_dropped_total", address, sender.queue.dropped


def _text(message: msgspec.Raw) -> bytes:
    """A message as it is sent: a string without its quotes, anything else as JSON."""
    raw = bytes(message)
    text = msgspec.json.decode(raw, type=str).encode() if raw.startswith(b'"') else raw
    return text if text.endswith(b"\n") else text + b"\n"
