"""DNS server of the agent: answers for the names of the mesh, and forwards all other queries unchanged.

Names of the mesh are answered from memory and never leave this machine. Other queries go to the machine's
name servers, byte for byte and over the protocol on which they came (UDP or TCP), to one server after the
other. A malformed packet costs at most an error response.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from koguma.dp import dns_message
from koguma.dp.dns_message import BadMessage

upstreams_of = dns_message.upstreams_of

Upstream = tuple[str, int]
Exchange = Callable[[Upstream, bytes], Coroutine[Any, Any, bytes]]  # sends a query, returns the response
Reply = Callable[[bytes], None]

UPSTREAM_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 10.0
FORWARDED_MAX: Final = 256  # each forwarded query has its own socket
CONNECTIONS_MAX: Final = 128
TTL_SECONDS: Final = 30

_TTL_SECONDS_MAX: Final = 2**31 - 1
_LENGTH_BYTES: Final = 2  # before each message on TCP
_BIND_TRIES: Final = 20


class DnsServer:
    """Serves DNS on one port, over UDP and TCP."""

    def __init__(self, upstreams: Sequence[Upstream], *, upstream_seconds: float = UPSTREAM_SECONDS) -> None:
        self._upstreams = tuple(upstreams)
        self._upstream_seconds = upstream_seconds
        self._records: Mapping[dns_message.Name, tuple[dns_message.Address, ...]] = {}
        self._ttl = TTL_SECONDS
        self.has_records = False  # whether `set_records` was ever called
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._forwarded = 0
        self._tcp: list[asyncio.Server] = []
        self._udp: list[asyncio.DatagramTransport] = []

    def set_records(self, records: Mapping[str, Iterable[str]], ttl: int = TTL_SECONDS) -> None:
        """Replace the names that are answered: addresses by host name."""
        self.has_records = True
        self._records, self._ttl = dns_message.records(records), min(max(ttl, 0), _TTL_SECONDS_MAX)

    async def start(self, host: str, port: int) -> int:
        """Listen on a port (0: any free one); returns the port."""
        for _ in range(0 if port else _BIND_TRIES):
            with contextlib.suppress(OSError):  # the port was free for TCP, but not for UDP
                return await self._listen(host, port)
        return await self._listen(host, port)

    async def listen_also(self, host: str, port: int) -> None:
        """Listen on another address too."""
        await self._listen(host, port)

    async def _listen(self, host: str, port: int) -> int:
        tcp = await asyncio.start_server(self._serve, host, port)
        bound = int(tcp.sockets[0].getsockname()[1])
        loop = asyncio.get_running_loop()
        try:
            udp, _ = await loop.create_datagram_endpoint(
                lambda: _UdpListener(self._on_datagram), local_addr=(host, bound)
            )
        except OSError:
            tcp.close()
            raise
        self._tcp.append(tcp)
        self._udp.append(udp)
        # A server that is its own upstream would forward to itself until it has no socket left.
        self._upstreams = tuple(upstream for upstream in self._upstreams if upstream != (host, bound))
        return bound

    async def stop(self) -> None:
        """Close the port; open queries get no response."""
        for udp in self._udp:
            udp.close()
        for tcp in self._tcp:
            tcp.close()
        open_tasks = [*self._tasks, *self._connections]
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
        for tcp in self._tcp:
            await tcp.wait_closed()

    def _on_datagram(self, packet: bytes, reply: Reply) -> None:
        """Handle a packet that came over UDP."""
        if (response := self._local_response(packet, over_udp=True)) is not None:
            reply(response)
            return
        task = asyncio.create_task(self._forward_udp(packet, reply))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward_udp(self, packet: bytes, reply: Reply) -> None:
        reply(await self._upstream_response(packet, _exchange_udp))

    def _local_response(self, packet: bytes, *, over_udp: bool) -> bytes | None:
        """The response to a query for a name of the mesh, or to a malformed packet (empty: do not respond).

        None where the query is to be forwarded.
        """
        try:
            query = dns_message.query(packet)
        except BadMessage as error:
            return error.response
        addresses = self._records.get(query.name)
        if addresses is None:
            return None
        bytes_max = query.udp_bytes if over_udp else dns_message.MESSAGE_BYTES_MAX
        return dns_message.response(query, addresses, self._ttl, bytes_max)

    async def _upstream_response(self, packet: bytes, exchange: Exchange) -> bytes:
        """The response of the first upstream that does not fail; else the last failure."""
        response = dns_message.failure(packet, dns_message.SERVFAIL)
        if self._forwarded >= FORWARDED_MAX:
            return response
        self._forwarded += 1
        try:
            for upstream in self._upstreams:
                with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                    async with asyncio.timeout(self._upstream_seconds):
                        response = await exchange(upstream, packet)
                    if not dns_message.is_failure(response):
                        break
        finally:
            self._forwarded -= 1
        return response

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a TCP connection: one query after the other."""
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._connections) < CONNECTIONS_MAX:
                self._connections.add(task)
                # Only `stop` cancels it. asyncio's streams log a cancelled handler as an error, which would
                # happen whenever the agent stops while a client is connected.
                ends = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError)
                with contextlib.suppress(*ends):
                    await self._serve_queries(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve_queries(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            async with asyncio.timeout(IDLE_SECONDS):
                packet = await _read(reader)
            response = self._local_response(packet, over_udp=False)
            if response is None:
                response = await self._upstream_response(packet, _exchange_tcp)
            if not response:
                return
            async with asyncio.timeout(IDLE_SECONDS):
                await _write(writer, response)


class _UdpListener(asyncio.DatagramProtocol):
    """Passes each packet on with a function that replies to it; replies that cannot be sent are dropped."""

    def __init__(self, on_datagram: Callable[[bytes, Reply], None]) -> None:
        self._on_datagram = on_datagram
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for replies."""
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Pass a packet on."""
        self._on_datagram(data, lambda response: self._send(response, addr))

    def _send(self, response: bytes, client: Any) -> None:
        if response and self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(response, client)


class _UdpExchange(asyncio.DatagramProtocol):
    """Waits for the response to one query."""

    def __init__(self, packet: bytes) -> None:
        self._packet = packet
        self.response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, _addr: Any) -> None:
        """Take the first packet that can be the response; the socket is connected to the upstream alone."""
        if not self.response.done() and dns_message.is_response(data, self._packet):
            self.response.set_result(data)

    def error_received(self, exc: Exception) -> None:
        """Fail at once, as with a closed port, so that the next upstream is tried without a timeout."""
        if not self.response.done():
            self.response.set_exception(exc)


async def _exchange_udp(upstream: Upstream, packet: bytes) -> bytes:
    """Send each query from a new random port, which an attacker cannot guess."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(
        lambda: _UdpExchange(packet), remote_addr=upstream
    )
    try:
        transport.sendto(packet)
        return await protocol.response
    finally:
        transport.close()


async def _exchange_tcp(upstream: Upstream, packet: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*upstream)
    try:
        await _write(writer, packet)
        response = await _read(reader)
        if not dns_message.is_response(response, packet):
            raise ConnectionError("a response to another query")
        return response
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
    return await reader.readexactly(length)


async def _write(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.write(len(message).to_bytes(_LENGTH_BYTES) + message)
    await writer.drain()
