"""DNS server beside a service: answers for the names of the mesh, and hands all else on untouched.

Names of the mesh are answered from memory and never leave this machine. Everything else goes to the machine's
name servers, byte for byte: over UDP what came over UDP, over TCP what came over TCP, to one server after the
other. Whatever a packet holds, it costs at most an answer that says no.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from koguma.dp import dns_message
from koguma.dp.dns_message import BadMessage

upstreams_of = dns_message.upstreams_of

Upstream = tuple[str, int]
Ask = Callable[[Upstream, bytes], Coroutine[Any, Any, bytes]]
Reply = Callable[[bytes], None]

UPSTREAM_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 10.0
FORWARDED_MAX: Final = 256  # each has a socket of its own
CONNECTIONS_MAX: Final = 128
TTL_SECONDS: Final = 30

_TTL_SECONDS_MAX: Final = 2**31 - 1
_LENGTH_BYTES: Final = 2  # before each message on TCP
_BIND_TRIES: Final = 20


class DnsServer:
    """One port, UDP and TCP."""

    def __init__(self, upstreams: Sequence[Upstream], *, upstream_seconds: float = UPSTREAM_SECONDS) -> None:
        self._upstreams = tuple(upstreams)
        self._upstream_seconds = upstream_seconds
        self._records: Mapping[dns_message.Name, tuple[dns_message.Address, ...]] = {}
        self._ttl = TTL_SECONDS
        self.is_filled = False  # whether it was ever told which names to answer for
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._forwarded = 0
        self._tcp: list[asyncio.Server] = []
        self._udp: list[asyncio.DatagramTransport] = []

    def set_records(self, records: Mapping[str, Iterable[str]], ttl: int = TTL_SECONDS) -> None:
        """Answer for these names, and for no others, from now on: addresses by host name."""
        self.is_filled = True
        self._records, self._ttl = dns_message.records(records), min(max(ttl, 0), _TTL_SECONDS_MAX)

    async def start(self, host: str, port: int) -> int:
        """Listen on a port (0: any free one), and say which."""
        for _ in range(0 if port else _BIND_TRIES):
            with contextlib.suppress(OSError):  # free for TCP, and taken for UDP
                return await self._listen(host, port)
        return await self._listen(host, port)

    async def also(self, host: str, port: int) -> None:
        """Listen on a port of another address too."""
        await self._listen(host, port)

    async def _listen(self, host: str, port: int) -> int:
        tcp = await asyncio.start_server(self._serve, host, port)
        bound = int(tcp.sockets[0].getsockname()[1])
        loop = asyncio.get_running_loop()
        try:
            udp, _ = await loop.create_datagram_endpoint(
                lambda: _Listener(self._heard), local_addr=(host, bound)
            )
        except OSError:
            tcp.close()
            raise
        self._tcp.append(tcp)
        self._udp.append(udp)
        # A server that is its own name server would ask itself until it has no socket left.
        self._upstreams = tuple(each for each in self._upstreams if each != (host, bound))
        return bound

    async def stop(self) -> None:
        """Let go of the port; queries under way get no answer."""
        for udp in self._udp:
            udp.close()
        for tcp in self._tcp:
            tcp.close()
        under_way = [*self._tasks, *self._connections]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for tcp in self._tcp:
            await tcp.wait_closed()

    def _heard(self, packet: bytes, reply: Reply) -> None:
        """A packet came over UDP."""
        if (ready := self._known(packet, over_udp=True)) is not None:
            reply(ready)
            return
        task = asyncio.create_task(self._forward_udp(packet, reply))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward_udp(self, packet: bytes, reply: Reply) -> None:
        reply(await self._forwarded_answer(packet, _ask_udp))

    def _known(self, packet: bytes, *, over_udp: bool) -> bytes | None:
        """The answer that needs nobody else (empty: none is given); None where an upstream must be asked."""
        try:
            asked = dns_message.query(packet)
        except BadMessage as error:
            return error.answer
        addresses = self._records.get(asked.name)
        if addresses is None:
            return None
        bytes_max = asked.udp_bytes if over_udp else dns_message.MESSAGE_BYTES_MAX
        return dns_message.response(asked, addresses, self._ttl, bytes_max)

    async def _forwarded_answer(self, packet: bytes, ask: Ask) -> bytes:
        """What the first upstream says that can help; if none can, what the last one said."""
        answer = dns_message.failure(packet, dns_message.SERVFAIL)
        if self._forwarded >= FORWARDED_MAX:
            return answer
        self._forwarded += 1
        try:
            for upstream in self._upstreams:
                with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                    async with asyncio.timeout(self._upstream_seconds):
                        answer = await ask(upstream, packet)
                    if not dns_message.is_refusal(answer):
                        break
        finally:
            self._forwarded -= 1
        return answer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection came over TCP: one query after the other."""
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._connections) < CONNECTIONS_MAX:
                self._connections.add(task)
                # Only `stop` cancels it. A handler that ends cancelled is an error for asyncio's streams, and
                # would be logged as one whenever a proxy ends while somebody is connected.
                ends = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError)
                with contextlib.suppress(*ends):
                    await self._converse(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            async with asyncio.timeout(IDLE_SECONDS):
                packet = await _read(reader)
            answer = self._known(packet, over_udp=False)
            if answer is None:
                answer = await self._forwarded_answer(packet, _ask_tcp)
            if not answer:
                return
            async with asyncio.timeout(IDLE_SECONDS):
                await _write(writer, answer)


class _Listener(asyncio.DatagramProtocol):
    """Hands on what comes; that an answer could not be delivered is its sender's trouble."""

    def __init__(self, heard: Callable[[bytes, Reply], None]) -> None:
        self._heard = heard
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what answers go out by."""
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Hand on a packet, and how to answer it."""
        self._heard(data, lambda answer: self._send(answer, addr))

    def _send(self, answer: bytes, sender: Any) -> None:
        if answer and self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(answer, sender)


class _Reply(asyncio.DatagramProtocol):
    """Waits for the answer to one packet."""

    def __init__(self, packet: bytes) -> None:
        self._packet = packet
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, _addr: Any) -> None:
        """Take the first that can be the answer; the socket is connected, so only the upstream is heard."""
        if not self.answer.done() and dns_message.answers(data, self._packet):
            self.answer.set_result(data)

    def error_received(self, exc: Exception) -> None:
        """Nobody is there: the next upstream need not wait."""
        if not self.answer.done():
            self.answer.set_exception(exc)


async def _ask_udp(upstream: Upstream, packet: bytes) -> bytes:
    """Ask from a port of its own, which nobody can guess."""
    loop = asyncio.get_running_loop()
    transport, reply = await loop.create_datagram_endpoint(lambda: _Reply(packet), remote_addr=upstream)
    try:
        transport.sendto(packet)
        return await reply.answer
    finally:
        transport.close()


async def _ask_tcp(upstream: Upstream, packet: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*upstream)
    try:
        await _write(writer, packet)
        answer = await _read(reader)
        if not dns_message.answers(answer, packet):
            raise ConnectionError("an answer to something else")
        return answer
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
    return await reader.readexactly(length)


async def _write(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.write(len(message).to_bytes(_LENGTH_BYTES) + message)
    await writer.drain()
