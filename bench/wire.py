"""Wire: clients for the measurements, as little HTTP/1.1 as will do, so that the server is measured."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import cast

import msgspec

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_EVENT = re.compile(rb'"type":"(?:ADDED|MODIFIED)",(?:"revision":)?(\d*)')  # in both forms
_TAIL = 64  # more than what _EVENT can match
_NO_BODY = b" 304 "
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
PATIENCE_SECONDS = 30.0


def request(
    path: str,
    token: str = "",
    method: str = "GET",
    body: bytes = b"",
    headers: Mapping[str, str] = _NO_HEADERS,
) -> bytes:
    """The bytes of a request; a body is JSON unless the headers say what else it is."""
    fields = {"Host": "localhost"}
    if token:
        fields["Authorization"] = f"Bearer {token}"
    if body:
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**fields, **headers}.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


class Answer(msgspec.Struct, frozen=True):
    """A response, and when its last byte came."""

    status: int
    head: bytes
    body: bytes
    at: float


class Exchange(asyncio.Protocol):
    """A connection that is kept; one request at a time. `answered` is called with each whole answer."""

    def __init__(self, answered: Callable[["Exchange", Answer], None]) -> None:
        self._answered = answered
        self._parts: list[bytes] = []
        self._missing = 0
        self.sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)

    def send(self, data: bytes) -> None:
        """Send a request."""
        self.sent_at = time.perf_counter()
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Collect the bytes of a response."""
        if not self._parts:
            self._missing = _size(data)
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return
        at = time.perf_counter()
        whole = b"".join(self._parts)
        self._parts.clear()
        head, _, body = whole.partition(b"\r\n\r\n")
        self._answered(self, Answer(int(head[9:12]), head, body, at))


def _size(data: bytes) -> int:
    """How long the answer is that begins with these bytes; our servers send the head in one piece."""
    end = data.find(b"\r\n\r\n")
    assert end >= 0, data[:200]
    if data[8:13] == _NO_BODY:
        return end + 4
    length = _LENGTH.search(data)
    assert length is not None, data[:200]
    return end + 4 + int(length[1])


class Client:
    """One kept connection, asked for one thing after another."""

    def __init__(self, token: str = "") -> None:
        self._token = token
        self._exchange = Exchange(self._answered)
        self._answer: asyncio.Future[Answer] | None = None

    async def connect(self, port: int) -> "Client":
        """Open the connection."""
        await _connected(port, self._exchange)
        return self

    async def ask(
        self, path: str, method: str = "GET", body: bytes = b"", headers: Mapping[str, str] = _NO_HEADERS
    ) -> Answer:
        """One request; anything but success is an error in the measurement."""
        self._answer = asyncio.get_running_loop().create_future()
        self._exchange.send(request(path, self._token, method, body, headers))
        answer = await asyncio.wait_for(self._answer, PATIENCE_SECONDS)
        assert answer.status < 300, (answer.status, answer.body[:500])
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._exchange.transport.close()

    def _answered(self, _: Exchange, answer: Answer) -> None:
        assert self._answer
        self._answer.set_result(answer)


class Load(msgspec.Struct, frozen=True):
    """What a server did under load."""

    seconds: float
    latencies: tuple[float, ...]

    @property
    def per_second(self) -> float:
        """Requests answered in a second."""
        return len(self.latencies) / self.seconds


async def load(port: int, request_bytes: bytes, connections: int, seconds: float, status: int = 200) -> Load:
    """Ask for the same thing again and again over some connections, each waiting for its answer."""
    latencies: list[float] = []
    finished: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    running = connections
    ends_at = 0.0

    def answered(exchange: Exchange, answer: Answer) -> None:
        nonlocal running
        assert answer.status == status, (answer.status, answer.body[:500])
        latencies.append(answer.at - exchange.sent_at)
        if answer.at < ends_at:
            exchange.send(request_bytes)
            return
        running -= 1
        if not running:
            finished.set_result(answer.at)

    exchanges = [await _connected(port, Exchange(answered)) for _ in range(connections)]
    started = time.perf_counter()
    ends_at = started + seconds
    for exchange in exchanges:
        exchange.send(request_bytes)
    ended = await asyncio.wait_for(finished, seconds + PATIENCE_SECONDS)
    for exchange in exchanges:
        exchange.transport.close()
    return Load(ended - started, tuple(latencies))


class Listener(asyncio.Protocol):
    """An open watch: reports its first line and, for each event, the revision and the time."""

    def __init__(
        self, request_bytes: bytes, began: Callable[[], None], event: Callable[[int, float], None]
    ) -> None:
        self._request = request_bytes
        self._began = began
        self._event = event
        self._tail = b""
        self._is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the watch."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Find events, also where one is cut in two pieces."""
        at = time.perf_counter()
        received = self._tail + data
        end = 0
        if not self._is_open:
            end = received.find(b'"BOOKMARK"')
            if end < 0:
                self._tail = received
                return
            self._is_open = True
            self._began()
        for event in _EVENT.finditer(received, end):
            end = event.end()
            self._event(int(event[1] or 0), at)
        self._tail = received[max(end, len(received) - _TAIL) :]


async def _connected(port: int, protocol: Exchange) -> Exchange:
    await asyncio.get_running_loop().create_connection(lambda: protocol, "127.0.0.1", port)
    return protocol


async def listening(port: int, listener: Listener) -> None:
    """Open a watch."""
    await asyncio.get_running_loop().create_connection(lambda: listener, "127.0.0.1", port)
