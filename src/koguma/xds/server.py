"""The xDS server: aggregated discovery and health discovery over gRPC.

It moves bytes. The gate says who a proxy is and what it should have; the session of a stream decides what to
send when. So nothing here waits for a compile, and a session knows nothing of gRPC.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import grpc
import structlog

from koguma.envoy.encode import Encoder
from koguma.envoy.schema import Schema
from koguma.model.errors import KogumaError, Unavailable
from koguma.model.redacted import Redacted
from koguma.model.violation import cut
from koguma.xds import hds, unparsed_node
from koguma.xds.admission import STOPPING, ServicerContext, StreamAdmission
from koguma.xds.connect_request import GrpcStatus, status_of
from koguma.xds.contract import HdsGate, XdsGate
from koguma.xds.hds import HdsDecoder, HdsSession
from koguma.xds.hds_stream import HdsStream
from koguma.xds.limits import XdsLimits, grpc_options
from koguma.xds.messages import (
    DeltaRequestDecoder,
    SotwRequestDecoder,
    encode_delta_response,
    encode_sotw_response,
)
from koguma.xds.protocol.session import DeltaSession
from koguma.xds.sotw import SotwSession
from koguma.xds.stream import StreamContext, XdsStream
from koguma.xds.variant import XdsVariant
from koguma.xds.write_scheduler import WriteScheduler

SERVICE: Final = "envoy.service.discovery.v3.AggregatedDiscoveryService"
_MOVING: Final = "another control plane has fewer proxies; connect to that one"
_JITTER: Final = 0.25  # of the age of a stream
_REPLACED: Final = "a newer stream of the same proxy took its place"
REVIEW_SECONDS: Final = 1.0
_REVIEW_BATCH: Final = 500
ENDING_SECONDS_MAX: Final = 2.0  # in which all streams end when the server stops
_ENDS_AT_ONCE: Final = 20
_TYPE_URL_MAX: Final = 256  # characters that are logged
_UNKNOWN_TYPES_MAX: Final = 100  # that are remembered, so that each is logged once

_log = structlog.get_logger("koguma.xds")


class XdsServer:
    """Aggregated discovery in both variants; with a gate for it, health discovery too."""

    def __init__(
        self,
        gate: XdsGate,
        schema: Schema,
        clock: Callable[[], float],
        limits: XdsLimits | None = None,
        hds_gate: HdsGate | None = None,
    ) -> None:
        self._gate = gate
        self._hds_gate = hds_gate
        self._hds_decoder = HdsDecoder(schema)
        self._encode_checks = hds.check_encoder(Encoder(schema))
        self._clock = clock
        self._limits = limits or XdsLimits()
        self._admission = StreamAdmission(self._limits.first_request_seconds)
        self._delta = _delta_variant(schema, self._limits.drain_seconds)
        self._sotw = _sotw_variant(schema, self._limits.drain_seconds)
        scheduler = WriteScheduler(
            self._limits.write_slots,
            self._limits.write_slots_for_new,
            self._limits.write_seconds_max,
            self._limits.ack_seconds_max,
        )
        # Bound once to the current logging configuration: then binding the one of a stream is cheap.
        log = _log.bind()
        self._context = StreamContext(
            scheduler, clock, self._limits.last_write_seconds, self._log_unknown_type, log
        )
        self._servers: list[grpc.aio.Server] = []
        self._streams: dict[tuple[str, str, str], XdsStream[Any, Any]] = {}
        self._hds_streams: dict[tuple[str, str, str], HdsStream] = {}
        self._unknown_types: set[str] = set()
        self._is_started = False

    async def listen(
        self, host: str, port: int, certificate_pem: str = "", key_pem: Redacted | None = None
    ) -> int:
        """Listen on one more port (0: any free one) and return it; without a key on a unix socket only.

        A host that begins with `unix:` is the path of a socket.
        """
        server = self._grpc_server()
        address = (
            host if host.startswith("unix:") else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        )
        try:
            if key_pem is not None:
                pair = (key_pem.reveal().encode(), certificate_pem.encode())
                bound = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
            else:
                assert host.startswith("unix:"), "tokens are never sent unencrypted over TCP"
                bound = server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        self._servers.append(server)
        if self._is_started:
            await server.start()
        return bound

    async def start(self) -> None:
        """Accept proxies."""
        self._is_started = True
        for server in self._servers:
            await server.start()

    async def review(self) -> None:
        """End the streams of proxies that lost their access; checks all every second, until cancelled."""
        while True:
            await asyncio.sleep(REVIEW_SECONDS)
            streams: list[XdsStream[Any, Any] | HdsStream] = [
                *self._streams.values(),
                *self._hds_streams.values(),
            ]
            for number, stream in enumerate(streams, 1):
                try:
                    stream.check_access()
                except KogumaError as error:
                    status = status_of(error)
                    stream.end(status.code, status.details)
                if number % _REVIEW_BATCH == 0:
                    await asyncio.sleep(0)  # other tasks do not wait for thousands of checks

    def end_old(self, count: int, age_seconds: float) -> int:
        """End the streams of some proxies, which connect to another control plane; says how many.

        Each has an age of its own around the given one, so that not all come of age in one moment.
        """
        now, ended = self._clock(), 0
        for stream in list(self._streams.values()):
            if ended == count:
                break
            jitter = _JITTER * (2 * (hash((stream.id, stream.started_at)) % 1000) / 1000 - 1)
            if now - stream.started_at >= age_seconds * (1 + jitter):
                ended += 1
                for each in (stream, self._hds_streams.get(stream.id)):
                    if each is not None:
                        each.end(grpc.StatusCode.UNAVAILABLE, _MOVING)
        return ended

    async def stop(self, grace: float) -> None:
        """Accept nobody any more and end all streams; the proxies connect to another control plane.

        Streams end one after the other, so that the others do not get all proxies in one moment.
        """
        self._admission.stop()
        streams: list[XdsStream[Any, Any] | HdsStream] = [
            *self._hds_streams.values(),
            *self._streams.values(),
        ]
        pause = min(1 / self._limits.ends_a_second, ENDING_SECONDS_MAX / max(len(streams), 1))
        last = grace + pause * len(streams)
        await asyncio.gather(_end_all(streams, pause), *(server.stop(last) for server in self._servers))

    def _grpc_server(self) -> grpc.aio.Server:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "DeltaAggregatedResources": grpc.stream_stream_rpc_method_handler(
                partial(self._serve, self._delta)
            ),
            "StreamAggregatedResources": grpc.stream_stream_rpc_method_handler(
                partial(self._serve, self._sotw)
            ),
        }
        server = grpc.aio.server(
            options=grpc_options(self._limits), maximum_concurrent_rpcs=self._limits.streams_max
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        if self._hds_gate is not None:
            hds_handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
                hds.METHOD: grpc.stream_stream_rpc_method_handler(partial(self._serve_hds, self._hds_gate))
            }
            handler = grpc.method_handlers_generic_handler(hds.SERVICE, hds_handlers)
            server.add_generic_rpc_handlers((handler,))
        return server

    # Aggregated discovery.

    async def _serve(
        self, variant: XdsVariant[Any, Any], _requests: object, context: ServicerContext
    ) -> None:
        try:
            stream = await self._admit(context, variant)
        except KogumaError as error:
            status = status_of(error)
            # Debug only: the gate has told operators once, and the proxy retries every few seconds.
            _log.debug("proxy not admitted", peer=context.peer(), code=status.code.name, text=status.details)
        else:
            status = await self._run(stream)
            if stream.is_cut_off:
                raise asyncio.CancelledError  # gRPC cannot send a status while a message is being written
        if status.code is not grpc.StatusCode.OK:
            await context.abort(status.code, status.details)

    async def _admit(self, context: ServicerContext, variant: XdsVariant[Any, Any]) -> XdsStream[Any, Any]:
        """Authorize a new stream. Its first request is released with the stream's first step."""
        try:
            new = await self._admission.receive(self._gate, context)
            if new.auth_error is None:
                first = await new.parsed(variant.decode, variant.id_path)
                request = new.connect_request(first.node, is_delta=variant is self._delta)
            else:
                request = new.unparsed_connect_request(variant.id_path)
        except KogumaError as error:  # there is no proxy that the gate could name
            _log.info("stream ended before it identified itself", peer=context.peer(), text=str(error))
            raise
        connection = await self._gate.connect(request)
        if new.auth_error is not None:
            # The token has become valid just now. The request is not parsed, so the proxy has to reconnect.
            await connection.close()
            raise new.auth_error
        stream = XdsStream(variant, context, connection, request, first, self._context)
        stream.log.info("proxy connected", variant=variant.name, envoy=request.version)
        return stream

    async def _run(self, stream: XdsStream[Any, Any]) -> GrpcStatus:
        """Run an admitted stream to its end."""
        self._register(stream)
        status = GrpcStatus(grpc.StatusCode.CANCELLED)
        try:
            status = await stream.run()
        finally:
            if self._streams.get(stream.id) is stream:
                del self._streams[stream.id]
            seconds = round(self._clock() - stream.started_at, 3)
            stream.log.info("proxy disconnected", code=status.code.name, text=status.details, seconds=seconds)
            await stream.connection.close()
        return status

    def _register(self, stream: XdsStream[Any, Any]) -> None:
        """Register a stream, and end an older one of the same proxy."""
        if (older := self._streams.get(stream.id)) is not None:
            older.end(grpc.StatusCode.ABORTED, _REPLACED)
        self._streams[stream.id] = stream
        if self._admission.is_stopping:
            stream.end(grpc.StatusCode.UNAVAILABLE, STOPPING)

    def _log_unknown_type(self, type_url: str) -> None:
        type_url = cut(type_url, _TYPE_URL_MAX)
        if type_url not in self._unknown_types and len(self._unknown_types) < _UNKNOWN_TYPES_MAX:
            self._unknown_types.add(type_url)
            _log.warning("proxies subscribe to a type that is not served", type_url=type_url)

    # Health discovery.

    async def _serve_hds(self, gate: HdsGate, _requests: object, context: ServicerContext) -> None:
        try:
            stream = await self._admit_hds(gate, context)
        except KogumaError as error:
            status = status_of(error)
            _log.info(
                "proxy not admitted to health discovery",
                peer=context.peer(),
                code=status.code.name,
                text=status.details,
            )
        else:
            if (older := self._hds_streams.get(stream.id)) is not None:
                older.end(grpc.StatusCode.ABORTED, _REPLACED)
            self._hds_streams[stream.id] = stream
            try:
                status = await stream.run()
            finally:
                if self._hds_streams.get(stream.id) is stream:
                    del self._hds_streams[stream.id]
            if stream.is_cut_off:
                raise asyncio.CancelledError  # as in `_serve`
        if status.code is not grpc.StatusCode.OK:
            await context.abort(status.code, status.details)

    async def _admit_hds(self, gate: HdsGate, context: ServicerContext) -> HdsStream:
        new = await self._admission.receive(gate, context)
        if new.auth_error is not None:
            await gate.connect(new.unparsed_connect_request(unparsed_node.HDS_ID_PATH))
            raise new.auth_error  # the token has become valid just now; the proxy has to reconnect
        first = await new.parsed(self._hds_decoder.decode, unparsed_node.HDS_ID_PATH)
        request = new.connect_request(first.node)
        connection = await gate.connect(request)
        if self._admission.is_stopping:
            raise Unavailable(STOPPING)
        session = HdsSession(self._encode_checks)
        return HdsStream(
            context, self._hds_decoder, session, connection, request, self._limits.last_write_seconds
        )


async def _end_all(streams: Sequence[XdsStream[Any, Any] | HdsStream], pause: float) -> None:
    for number, stream in enumerate(streams, 1):
        stream.end(grpc.StatusCode.UNAVAILABLE, STOPPING)
        if number % _ENDS_AT_ONCE == 0:
            await asyncio.sleep(pause * _ENDS_AT_ONCE)


def _delta_variant(schema: Schema, drain_seconds: float) -> XdsVariant[Any, Any]:
    return XdsVariant(
        "delta",
        DeltaRequestDecoder(schema).decode,
        lambda: DeltaSession(drain_seconds),
        encode_delta_response,
        unparsed_node.DELTA_ID_PATH,
    )


def _sotw_variant(schema: Schema, drain_seconds: float) -> XdsVariant[Any, Any]:
    return XdsVariant(
        "sotw",
        SotwRequestDecoder(schema).decode,
        lambda: SotwSession(DeltaSession(drain_seconds)),
        encode_sotw_response,
        unparsed_node.SOTW_ID_PATH,
    )
