"""Connections: how long a client may hold one without sending a request, or without reading its answer.

aiohttp limits how long an answered connection stays idle, but gives headers that arrive one byte at a time
("slowloris") the same long limit, and it does not count connections. Both limits are here. A connection whose
request headers do not arrive in time is closed, as by Go's `ReadHeaderTimeout`. Where one address has too
many connections, the one that is idle for the longest time is closed. Requests under way (watches, long
answers, large bodies) are never touched, unless their client has stopped reading for a minute: whoever
sends requests and reads nothing would hold a connection forever, without having to say who it is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from aiohttp import web

CONNECTIONS_PER_ADDRESS_MAX: Final = 512
HEADER_SECONDS_MAX: Final = 10.0  # from the first byte; on a new connection, from its start
UNREAD_SECONDS_MAX: Final = 60.0  # while the buffers towards a client are full

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_TIMED_OUT: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class LimitedServer(web.Server):
    """aiohttp's server, whose connections have these limits."""

    def __init__(self, handler: Handle, **options: Any) -> None:
        super().__init__(handler, **options)
        self._by_address: dict[str, dict[LimitedConnection, None]] = {}  # least recently used first

    def __call__(self) -> "LimitedConnection":
        """A protocol for one more connection."""
        return LimitedConnection(self, loop=self._loop, **self._kwargs)

    def opened(self, connection: "LimitedConnection", address: str) -> None:
        """Count a connection; close the one that is idle for the longest time, where there are too many."""
        connections = self._by_address.setdefault(address, {})
        connections[connection] = None
        if len(connections) > CONNECTIONS_PER_ADDRESS_MAX:
            idle = next((other for other in connections if other.is_idle), None)
            if idle is not None:
                idle.force_close()

    def used(self, connection: "LimitedConnection", address: str) -> None:
        """Note that a connection has sent a request."""
        connections = self._by_address[address]
        connections[connection] = connections.pop(connection)

    def closed(self, connection: "LimitedConnection", address: str) -> None:
        """Forget a connection."""
        connections = self._by_address.get(address, {})
        connections.pop(connection, None)
        if not connections:
            self._by_address.pop(address, None)


class LimitedConnection(web.RequestHandler):
    """One connection: aiohttp's protocol, with a deadline for the headers of each request."""

    __slots__ = ("_address", "_deadline", "_limits", "_socket", "_unread_deadline")

    def __init__(self, server: LimitedServer, **options: Any) -> None:
        super().__init__(server, **options)
        self._limits = server
        self._address = ""  # stays empty on a unix socket, which only our own user can open
        self._deadline: asyncio.TimerHandle | None = None
        self._unread_deadline: asyncio.TimerHandle | None = None
        self._socket: asyncio.WriteTransport | None = None  # `transport` is None as soon as it is closing

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request: none is under way, and none has arrived completely."""
        return self._waiter is not None and not self._waiter.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the first request's headers have their deadline from here."""
        super().connection_made(transport)
        self._socket = cast("asyncio.WriteTransport", transport)  # uvloop's are of no class of asyncio's
        self._start_deadline()
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        if self._address:
            self._limits.opened(self, self._address)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; headers that are not complete after it have a deadline."""
        before = self._request_count
        super().data_received(data)
        if self._request_count != before:
            self._stop_deadline()
            if self._address and self.transport is not None:
                self._limits.used(self, self._address)
        elif self._deadline is None and self.is_idle:
            self._start_deadline()

    def pause_writing(self) -> None:
        """Wait for the client to read: the buffers are full, and it has a deadline for that."""
        super().pause_writing()
        self._start_unread_deadline()

    def resume_writing(self) -> None:
        """Go on: the client has read enough."""
        self._stop_unread_deadline()
        super().resume_writing()

    def force_close(self) -> None:
        """Close, which takes until the client has read what is on its way; that has a deadline too."""
        super().force_close()
        self._start_unread_deadline()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        self._socket = None
        self._stop_deadline()
        self._stop_unread_deadline()
        self._limits.closed(self, self._address)
        super().connection_lost(exc)

    def _start_deadline(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(HEADER_SECONDS_MAX, self._time_out)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _start_unread_deadline(self) -> None:
        if self._unread_deadline is None and self._socket is not None:
            loop = asyncio.get_running_loop()
            self._unread_deadline = loop.call_later(UNREAD_SECONDS_MAX, self._abort)

    def _stop_unread_deadline(self) -> None:
        if self._unread_deadline is not None:
            self._unread_deadline.cancel()
            self._unread_deadline = None

    def _abort(self) -> None:
        """Close without sending what is left: a plain close would wait for the client to read it."""
        self._unread_deadline = None
        if self._socket is not None:
            self._socket.abort()

    def _time_out(self) -> None:
        self._deadline = None
        if self.is_idle and self.transport is not None:
            self.transport.write(_TIMED_OUT)
            self.force_close()
