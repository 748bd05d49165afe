"""Access log: lines that Envoy writes for somebody else's ears, read from a pipe and sent to TCP addresses.

Each line of the pipe is a JSON object with an address and a message; a message that is no text is sent as the
JSON that it is. A collector that is away loses nothing at once: lines wait, and when there are too many the
oldest are dropped and counted. Envoy never waits for a collector.
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

_WAITING_BYTES_MAX: Final = 4 * 1024 * 1024  # for each address
_PIPE_BYTES: Final = 1024 * 1024
_READ_BYTES: Final = 256 * 1024
_BATCH_BYTES: Final = 4 * _READ_BYTES  # more than is read in a round, else a burst would fill what waits
_LINE_BYTES_MAX: Final = 1024 * 1024
_RETRY_SECONDS: Final = (0.2, 15.0)
_CONNECT_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 2.0  # for what is left at the end

_log = structlog.get_logger("koguma.dp")


class _Line(msgspec.Struct):
    address: str
    message: msgspec.Raw


_DECODER: Final = msgspec.json.Decoder(_Line)


class Lines:
    """Lines that wait to be sent, and how many were dropped because too many did."""

    def __init__(self, bytes_max: int = _WAITING_BYTES_MAX) -> None:
        self.dropped = 0
        self.arrived = asyncio.Event()
        self.all_taken = asyncio.Event()
        self._bytes_max = bytes_max
        self._waiting: deque[bytes] = deque()
        self._size = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, line: bytes) -> None:
        """Let a line wait; the oldest go where there are too many."""
        self._waiting.append(line)
        self._size += len(line)
        self.all_taken.clear()
        while self._size > self._bytes_max:
            self._size -= len(self._waiting.popleft())
            self.dropped += 1
        self.arrived.set()

    def take(self) -> list[bytes]:
        """The oldest lines, as many as are sent at once."""
        found: list[bytes] = []
        size = 0
        while self._waiting and size < _BATCH_BYTES:
            found.append(self._waiting.popleft())
            size += len(found[-1])
        self._size -= size
        if not self._waiting:
            self.arrived.clear()
            self.all_taken.set()
        return found

    def put_back(self, lines: list[bytes]) -> None:
        """Let lines wait again that could not be sent."""
        self.all_taken.clear()
        self._waiting.extendleft(reversed(lines))
        self._size += sum(map(len, lines))
        self.arrived.set()


class Sender:
    """Sends lines to one address for as long as `run` runs, over a connection that it opens again if lost."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.lines = Lines()
        self.sent = 0
        self._is_lost = False

    async def run(self) -> None:
        """Connect whenever there is something to send."""
        pause, longest = _RETRY_SECONDS
        while True:
            await self.lines.arrived.wait()
            before = self.sent
            try:
                await self._send()
            except (OSError, TimeoutError, ValueError) as error:
                self._tell(error)
            pause = _RETRY_SECONDS[0] if self.sent > before else min(pause * 2, longest)
            await asyncio.sleep(pause)

    async def _send(self) -> None:
        """Send until the other side closes; OSError where it is away."""
        host, _, port = self.address.rpartition(":")
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        closed = asyncio.create_task(_ended(reader))
        try:
            while not closed.done():
                arrived = asyncio.create_task(self.lines.arrived.wait())
                try:
                    await asyncio.wait((arrived, closed), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    arrived.cancel()
                if not closed.done():
                    await self._send_some(writer)
        finally:
            closed.cancel()
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await writer.wait_closed()

    async def _send_some(self, writer: asyncio.StreamWriter) -> None:
        batch = self.lines.take()
        try:
            writer.write(b"".join(batch))
            await writer.drain()
        except OSError:
            self.lines.put_back(batch)
            raise
        self.sent += len(batch)
        if self._is_lost:
            self._is_lost = False
            _log.info("lines reach their collector again", address=self.address, dropped=self.lines.dropped)

    def _tell(self, error: Exception) -> None:
        if not self._is_lost:
            self._is_lost = True
            why = str(error) or type(error).__name__
            _log.warning("lines wait for their collector", address=self.address, why=why)


async def _ended(reader: asyncio.StreamReader) -> None:
    """Wait until the other side closes; what it says is passed over."""
    with contextlib.suppress(OSError):
        while await reader.read(4096):
            pass


class AccessLog:
    """Reads the pipe and gives each line to the sender for its address."""

    def __init__(self) -> None:
        self.senders: dict[str, Sender] = {}
        self.unreadable = 0
        self._sending = Background()
        self._pipe = -1
        self._rest = b""

    def start(self, path: Path) -> None:
        """Make the pipe and read it from now on."""
        path.unlink(missing_ok=True)  # of one that was killed
        os.mkfifo(path, 0o600)
        # Open for both: as a reader alone we would see an end whenever Envoy closes it.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        with contextlib.suppress(OSError, AttributeError):  # a smaller pipe works too
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        asyncio.get_running_loop().add_reader(self._pipe, self._read)

    async def stop(self) -> None:
        """Send what is left, for as long as that is reasonable."""
        if self._pipe < 0:
            return
        self._read()
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)
        self._pipe = -1
        sending = [sender.lines.all_taken.wait() for sender in self.senders.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                await asyncio.gather(*sending)
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
        """Give one line of the pipe to whom it is for."""
        try:
            found = _DECODER.decode(line)
            message = _text(found.message)
        except msgspec.MsgspecError:
            self.unreadable += 1
            return
        sender = self.senders.get(found.address)
        if sender is None:
            sender = self.senders[found.address] = Sender(found.address)
            name = f"access log to {found.address}"
            self._sending.forever(name, sender.run)
        sender.lines.add(message)

    def samples(self) -> Iterator[tuple[str, str, int]]:
        """What to count: a name, the address, and how many."""
        for address, sender in sorted(self.senders.items()):
            yield "koguma_access_log_sent_total", address, sender.sent
            yield "koguma_access_log_dropped_total", address, sender.lines.dropped


def _text(message: msgspec.Raw) -> bytes:
    """A message as it is sent: a text without its quotes, anything else as JSON."""
    raw = bytes(message)
    text = msgspec.json.decode(raw, type=str).encode() if raw.startswith(b'"') else raw
    return text if text.endswith(b"\n") else text + b"\n"
