"""The xDS server: admits proxies, keeps one stream for each, and ends streams.

It moves bytes. The `XdsGate` says who a proxy is and what it should have; the session of a stream decides
what to send when. So nothing here waits for a compile, and a session knows nothing of gRPC.
"""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import grpc
import msgspec
import structlog
from google.protobuf.message import DecodeError

from koguma.envoy.encode import Encoder
from koguma.envoy.schema import Schema
from koguma.model.errors import BadRequest, KogumaError, Unavailable
from koguma.model.redacted import Redacted
from koguma.model.violation import cut
from koguma.xds import health, peek
from koguma.xds.contract import ConnectRequest, HdsGate, XdsGate
from koguma.xds.health import HealthReader, HealthSession
from koguma.xds.health_stream import HealthStream
from koguma.xds.hello import ID_LENGTH_MAX, End, end_of, hello_of, token_in
from koguma.xds.messages import (
    NODE_BYTES_MAX,
    NODE_TOO_LARGE,
    DeltaReader,
    Node,
    SotwReader,
    delta_bytes,
    sotw_bytes,
)
from koguma.xds.pace import Pace
from koguma.xds.protocol.session import DeltaSession
from koguma.xds.sotw import SotwSession
from koguma.xds.stream import Form, Stream, Terms

SERVICE: Final = "envoy.service.discovery.v3.AggregatedDiscoveryService"
_STOPPING: Final = "the control plane is stopping"
_TAKEN_OVER: Final = "a newer stream of the same proxy took its place"
REVIEW_SECONDS: Final = 1.0
_REVIEWED_AT_ONCE: Final = 500
_READ_AT_ONCE_BYTES: Final = 16 * 1024
_TYPE_URL_MAX: Final = 256  # characters that are logged
_UNKNOWN_TYPES_MAX: Final = 100  # that are remembered, so that each is logged once

_First = TypeVar("_First")

_log = structlog.get_logger("koguma.xds")


class Limits(msgspec.Struct, frozen=True):
    """What a proxy may do, and how long things may take."""

    drain_seconds: float = 30.0  # that something stays after nobody refers to it any more
    streams_max: int = 10_000
    streams_of_one_max: int = 100  # on one connection
    message_bytes_max: int = 16 * 1024 * 1024  # of a proxy that names the versions of all that it has
    metadata_bytes_max: int = 32 * 1024
    ahead_bytes: int = 256 * 1024  # that a proxy may send before they are read
    row_seconds: int = 600  # that a stream waits for its turn to be heard at all
    hello_seconds: float = 10.0  # for the first request of a stream
    farewell_seconds: float = 1.0  # for a proxy to take a message when its stream is to end
    patience_seconds: float = 1.0  # that a slow proxy keeps others waiting
    answer_seconds: float = 0.25  # that a new one does, which has yet to answer
    places: int = 128  # streams that write at a time
    places_for_new: int = 16


class XdsServer:
    """Aggregated discovery for Envoys, in both forms; with a door for it, health discovery too."""

    def __init__(
        self,
        door: XdsGate,
        schema: Schema,
        clock: Callable[[], float],
        limits: Limits | None = None,
        health_door: HdsGate | None = None,
    ) -> None:
        self._door = door
        self._health_door = health_door
        self._health_reader = HealthReader(schema)
        self._encode_checks = health.encoder_of(Encoder(schema))
        self._health_streams: dict[tuple[str, str], HealthStream] = {}
        self._clock = clock
        self._limits = limits or Limits()
        drain_seconds = self._limits.drain_seconds
        self._delta = Form(
            "delta", DeltaReader(schema).read, lambda: DeltaSession(drain_seconds), delta_bytes, peek.DELTA
        )
        self._sotw = Form(
            "sotw",
            SotwReader(schema).read,
            lambda: SotwSession(DeltaSession(drain_seconds)),
            sotw_bytes,
            peek.SOTW,
        )
        pace = Pace(
            self._limits.places,
            self._limits.places_for_new,
            self._limits.patience_seconds,
            self._limits.answer_seconds,
        )
        # The log as it is configured now, so that the one of a stream costs little.
        log = _log.bind()
        self._terms = Terms(pace, clock, self._limits.farewell_seconds, self._note_unknown_type, log)
        self._servers: list[grpc.aio.Server] = []
        self._streams: dict[tuple[str, str], Stream[Any, Any]] = {}
        self._unknown_types: set[str] = set()
        self._arriving: set[asyncio.Timeout] = set()  # streams that have not said anything yet
        self._arrivals = asyncio.Lock()
        self._is_started = False
        self._is_stopping = False

    async def listen(
        self, host: str, port: int, certificate_pem: str = "", key_pem: Redacted | None = None
    ) -> int:
        """Listen on one more port (0: any free one), and say which; without a key on a unix socket only.

        A host that begins with `unix:` is the path of a socket.
        """
        server = self._server()
        address = (
            host if host.startswith("unix:") else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        )
        try:
            if key_pem is not None:
                pair = (key_pem.reveal().encode(), certificate_pem.encode())
                bound = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
            else:
                assert host.startswith("unix:"), "a token does not travel in the clear"
                bound = server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        self._servers.append(server)
        if self._is_started:
            await server.start()
        return bound

    async def start(self) -> None:
        """Let proxies in."""
        self._is_started = True
        for server in self._servers:
            await server.start()

    async def review(self) -> None:
        """End streams of proxies that may not stay, looking at all of them once a second, until cancelled."""
        while True:
            await asyncio.sleep(REVIEW_SECONDS)
            reviewed: list[Stream[Any, Any] | HealthStream] = [
                *self._streams.values(),
                *self._health_streams.values(),
            ]
            for number, stream in enumerate(reviewed, 1):
                try:
                    stream.check_access()
                except KogumaError as error:
                    end = end_of(error)
                    stream.end(end.code, end.text)
                if number % _REVIEWED_AT_ONCE == 0:
                    await asyncio.sleep(0)  # others do not wait for thousands of them

    async def stop(self, grace: float) -> None:
        """Let nobody in any more and end all streams; their proxies look for another control plane."""
        self._is_stopping = True
        for waiting in list(self._arriving):
            with contextlib.suppress(RuntimeError):  # it has just come to its end by itself
                waiting.reschedule(asyncio.get_running_loop().time())
        for stream in list(self._streams.values()):
            stream.end(grpc.StatusCode.UNAVAILABLE, _STOPPING)
        for reporting in list(self._health_streams.values()):
            reporting.end(grpc.StatusCode.UNAVAILABLE, _STOPPING)
        await asyncio.gather(*(server.stop(grace) for server in self._servers))

    def _server(self) -> grpc.aio.Server:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "DeltaAggregatedResources": grpc.stream_stream_rpc_method_handler(
                partial(self._serve, self._delta)
            ),
            "StreamAggregatedResources": grpc.stream_stream_rpc_method_handler(
                partial(self._serve, self._sotw)
            ),
        }
        server = grpc.aio.server(
            options=_options(self._limits), maximum_concurrent_rpcs=self._limits.streams_max
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        if self._health_door is not None:
            checked: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
                health.METHOD: grpc.stream_stream_rpc_method_handler(self._serve_health)
            }
            found = grpc.method_handlers_generic_handler(health.SERVICE, checked)
            server.add_generic_rpc_handlers((found,))
        return server

    async def _serve_health(self, _requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """A stream of a proxy that checks the health of applications."""
        try:
            stream = await self._let_check(context)
        except KogumaError as error:
            end = end_of(error)
            _log.info("proxy may not report health", peer=context.peer(), code=end.code.name, text=end.text)
        else:
            if (older := self._health_streams.get(stream.id)) is not None:
                older.end(grpc.StatusCode.ABORTED, _TAKEN_OVER)
            self._health_streams[stream.id] = stream
            try:
                end = await stream.run()
            finally:
                if self._health_streams.get(stream.id) is stream:
                    del self._health_streams[stream.id]
        if end.code is not grpc.StatusCode.OK:
            await context.abort(end.code, end.text)

    async def _let_check(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> HealthStream:
        door = self._health_door
        assert door is not None
        token = token_in(context.invocation_metadata() or ())
        refusal, data = _refusal(door, token), await self._first(context)
        await self._turn()
        if refusal is not None:
            await door.connect(_unread_hello(data, peek.HEALTH, token, context.peer()) or _raised(refusal))
            raise refusal  # whoever was let in nevertheless has become valid meanwhile, and comes again
        first = await _read_first(self._health_reader.read, data, peek.HEALTH)
        hello = hello_of(first.node, token, context.peer())
        proxy = await door.connect(hello)
        if self._is_stopping:
            raise Unavailable(_STOPPING)
        return HealthStream(context, self._health_reader, HealthSession(self._encode_checks), proxy, hello)

    async def _serve(
        self, form: Form[Any, Any], _requests: object, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        try:
            stream = await self._let_in(context, form)
        except KogumaError as error:
            end = end_of(error)
            # The door has told operators once; here it would come with every knock, each few seconds.
            _log.debug("proxy not let in", peer=context.peer(), code=end.code.name, text=end.text)
        else:
            end = await self._attend(stream)
            if stream.is_deaf:
                raise asyncio.CancelledError  # gRPC cannot say anything while a message is being written
        if end.code is not grpc.StatusCode.OK:
            await context.abort(end.code, end.text)

    async def _let_in(
        self, context: grpc.aio.ServicerContext[bytes, bytes], form: Form[Any, Any]
    ) -> Stream[Any, Any]:
        """Hear who it is, and whether it may come in. What it said first lives no longer than this."""
        try:
            token = token_in(context.invocation_metadata() or ())
            refusal, data = _refusal(self._door, token), await self._first(context)
            await self._turn()
            if refusal is None:
                first = await _read_first(form.read, data, form.id_path)
                hello = hello_of(first.node, token, context.peer())
            else:
                hello = _unread_hello(data, form.id_path, token, context.peer()) or _raised(refusal)
        except KogumaError as error:  # nobody whom the door could name
            _log.info("stream ended before it said who it is", peer=context.peer(), text=str(error))
            raise
        line = await self._door.connect(hello)
        if refusal is not None:  # it has become valid meanwhile, and comes again with all that it has to say
            await line.close()
            raise refusal
        stream = Stream(form, context, line, hello, first, self._terms)
        stream.log.info("proxy connected", form=form.name, envoy=hello.version)
        return stream

    async def _turn(self) -> None:
        """Let one new stream after the other be looked at, and everybody else between any two of them."""
        async with self._arrivals:
            await asyncio.sleep(0)

    async def _first(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> Any:
        """The first request, which says who it is; a stream that says nothing is not waited for."""
        waiting = asyncio.timeout(0 if self._is_stopping else self._limits.hello_seconds)
        self._arriving.add(waiting)
        try:
            async with waiting:
                data = await context.read()
        except TimeoutError:
            data = None
        finally:
            self._arriving.discard(waiting)
        if self._is_stopping:
            raise Unavailable(_STOPPING)
        if data is None:
            raise BadRequest(f"no request within {self._limits.hello_seconds:g} seconds")
        return data

    async def _attend(self, stream: Stream[Any, Any]) -> End:
        """Everything between the first request of a stream and its end."""
        began = self._clock()
        self._make_room(stream)
        end = End(grpc.StatusCode.CANCELLED)
        try:
            end = await stream.run()
        finally:
            if self._streams.get(stream.id) is stream:
                del self._streams[stream.id]
            seconds = round(self._clock() - began, 3)
            stream.log.info("proxy disconnected", code=end.code.name, text=end.text, seconds=seconds)
            await stream.line.close()
        return end

    def _make_room(self, stream: Stream[Any, Any]) -> None:
        """Give the stream its room, in place of an older one of the same proxy."""
        if (older := self._streams.get(stream.id)) is not None:
            older.end(grpc.StatusCode.ABORTED, _TAKEN_OVER)
        self._streams[stream.id] = stream
        if self._is_stopping:
            stream.end(grpc.StatusCode.UNAVAILABLE, _STOPPING)

    def _note_unknown_type(self, type_url: str) -> None:
        type_url = cut(type_url, _TYPE_URL_MAX)
        if type_url not in self._unknown_types and len(self._unknown_types) < _UNKNOWN_TYPES_MAX:
            self._unknown_types.add(type_url)
            _log.warning("proxies ask for a type that is not served", type_url=type_url)


def _refusal(door: XdsGate | HdsGate, token: str) -> KogumaError | None:
    """Why a token does not hold, before anything is read; None where it does."""
    try:
        door.authenticate(token)
    except KogumaError as error:
        return error
    return None


def _raised(error: KogumaError) -> NoReturn:
    raise error


def _unread_hello(data: Any, path: tuple[int, ...], token: str, peer: str) -> ConnectRequest | None:
    """Who sent a message that nobody reads; None where it does not say so."""
    found = "" if data is grpc.aio.EOF else peek.node_id(data, path, ID_LENGTH_MAX + 1)
    return hello_of(Node(found, "", {}), token, peer) if found else None


async def _read_first(read: Callable[[bytes], _First], data: Any, id_path: tuple[int, ...]) -> _First:
    """What a stream begins with; a large message is read beside the loop, so that others do not wait."""
    if data is grpc.aio.EOF:
        raise BadRequest("the stream ended without a request")
    if peek.node_size(data, id_path) > NODE_BYTES_MAX:
        raise BadRequest(NODE_TOO_LARGE)
    try:
        return read(data) if len(data) <= _READ_AT_ONCE_BYTES else await asyncio.to_thread(read, data)
    except DecodeError as error:
        raise BadRequest(f"the request cannot be read: {error}") from error


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # two servers on one port would each get some of the proxies
        ("grpc.max_receive_message_length", limits.message_bytes_max),
        # An Envoy has two or three on its connection. Whoever opens and resets more waits for them to end.
        ("grpc.max_concurrent_streams", limits.streams_of_one_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", limits.metadata_bytes_max),
        ("grpc.absolute_max_metadata_size", limits.metadata_bytes_max),
        # When all proxies come at once, after a restart, they wait in a row; gRPC would send some away.
        ("grpc.server.max_pending_requests", limits.streams_max),
        ("grpc.server.max_pending_requests_hard_limit", limits.streams_max),
        ("grpc.server_max_unrequested_time_in_server", limits.row_seconds),
        # That the machine of an idle proxy was switched off is found out by a ping.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # What a proxy says when it comes back, the versions of all that it has, comes without waiting for us;
        # and nobody measures for each how much that could be.
        ("grpc.http2.lookahead_bytes", limits.ahead_bytes),
        ("grpc.http2.bdp_probe", 0),
        # However often an Envoy pings, which its owner decides, it is not sent away for that.
        ("grpc.http2.max_ping_strikes", 0),
    ]
