"""XdsStream: one connected proxy, from its first request to the end of its stream.

The task of the gRPC call reads; another task writes, and exists only while there is something to write. A
request is handled as soon as it is read; usually it is an ACK that needs no response. Of the offers for this
proxy only the newest counts, and it is handled when the proxy gets a write slot, so offers that come while a
proxy is slow cost nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

import grpc
import msgspec
from google.protobuf.message import DecodeError
from structlog.typing import FilteringBoundLogger

from koguma.model.errors import KogumaError
from koguma.runtime.logs import masked_text
from koguma.xds.connect_request import GrpcStatus, node_id_changed, status_of
from koguma.xds.contract import ConnectRequest, Offer, ProxyConnection, ProxyStatus, Rejection
from koguma.xds.messages import DecodedRequest
from koguma.xds.variant import XdsVariant
from koguma.xds.write_scheduler import WriteScheduler

# Requests that are read while a write is blocked. A proxy that sends more and does not read has to wait.
_REQUESTS_PER_WRITE_MAX: Final = 64
_BLOCKED_SECONDS: Final = 0.05
_Req = TypeVar("_Req")
_Resp = TypeVar("_Resp")


class GrpcCall(Protocol):
    """The part of a gRPC call that a stream needs."""

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF."""

    async def write(self, message: bytes) -> None:
        """Send a message."""

    def peer(self) -> str:
        """The address of the client."""


class StreamContext(msgspec.Struct, frozen=True):
    """What all streams of a server share."""

    scheduler: WriteScheduler
    clock: Callable[[], float]
    last_write_seconds: float  # for a write in progress when its stream has to end
    on_unknown_type: Callable[[str], None]  # called with a type URL that is not served
    log: FilteringBoundLogger


class XdsStream(Generic[_Req, _Resp]):
    """One connected proxy. `end` may be called at any time; the first call counts."""

    __slots__ = (
        "_call",
        "_context",
        "_end",
        "_first",
        "_is_scheduled",
        "_n_acks",
        "_n_received",
        "_offer",
        "_reader",
        "_reported",
        "_responses",
        "_session",
        "_tick",
        "_variant",
        "_writer",
        "connection",
        "id",
        "is_cut_off",
        "started_at",
    )

    def __init__(
        self,
        variant: XdsVariant[_Req, _Resp],
        call: GrpcCall,
        connection: ProxyConnection,
        request: ConnectRequest,
        first: DecodedRequest[_Req],
        context: StreamContext,
    ) -> None:
        self._variant, self._call, self.connection = variant, call, connection
        self.id = request.proxy_id
        self.started_at = context.clock()
        self._first: DecodedRequest[_Req] | None = first  # dropped once handled, since it may be large
        self._context = context
        self._session = variant.session()
        self._responses: list[_Resp] = []  # to write
        self._n_received = 0  # requests since the last write
        self._offer: Offer | None = None  # not handled yet
        self._end: GrpcStatus | None = None
        self._reader: asyncio.Task[Any] | None = None  # until it is told to stop
        self._is_scheduled = False  # waits for a write slot
        self._writer: asyncio.Task[None] | None = None  # while it writes
        self._tick: asyncio.TimerHandle | None = None
        self.is_cut_off = False  # it ended within a message, so no status can be sent any more
        self._reported: ProxyStatus | None = None
        self._n_acks = 0

    @property
    def log(self) -> FilteringBoundLogger:
        """A logger with the proxy's name; bound only when something is logged, to save memory."""
        _, mesh, name = self.id
        return self._context.log.bind(mesh=mesh, proxy=name, peer=self._call.peer())

    def check_access(self) -> None:
        """Raise a KogumaError once the proxy may not stay connected."""
        self.connection.check_access()

    def end(self, code: grpc.StatusCode, details: str = "") -> None:
        """End the stream once a write in progress is done."""
        if self._end is not None:
            return
        self._end = GrpcStatus(code, details)
        if self._writer is None:
            self._stop_reader()
        else:
            asyncio.get_running_loop().call_later(self._context.last_write_seconds, self._cut_off)

    def _cut_off(self) -> None:
        if self._writer is not None:
            self.is_cut_off = True
            self._writer.cancel()

    def _stop_reader(self) -> None:
        if self._end is None or self._reader is None:
            return
        reader, self._reader = self._reader, None
        if reader is not asyncio.current_task():  # the reader itself sees that the stream has ended
            reader.cancel()

    async def run(self) -> GrpcStatus:
        """Read, and write where there is something to write, until the stream ends; its status."""
        task = self._reader = asyncio.current_task()
        assert task is not None
        try:
            await self._read()
            if self._writer is not None:
                await asyncio.wait((self._writer,))
        except asyncio.CancelledError:
            # `_stop_reader` clears `_reader` first. Any other cancellation comes from outside.
            if self._reader is not None or task.uncancel():
                raise
        finally:
            await self._clean_up()
        assert self._end is not None
        return self._end

    async def _clean_up(self) -> None:
        self._end = self._end or GrpcStatus(grpc.StatusCode.CANCELLED)
        self._context.scheduler.release(self)
        if self._tick is not None:
            self._tick.cancel()
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)

    def _fail(self, error: Exception) -> None:
        """End the stream after an error of the proxy, or a bug of ours; other streams go on."""
        if isinstance(error, KogumaError):
            status = status_of(error)
        elif isinstance(error, DecodeError):
            status = GrpcStatus(grpc.StatusCode.INVALID_ARGUMENT, f"the request cannot be read: {error}")
        else:
            self.log.error("stream failed", exc_info=error)
            status = GrpcStatus(
                grpc.StatusCode.INTERNAL, "internal error; the log of the control plane says more"
            )
        self.end(status.code, status.details)

    # Reading.

    async def _read(self) -> None:
        """Handle requests until the stream ends."""
        try:
            self._start()
            while self._end is None:
                while self._writer is not None and self._n_received >= _REQUESTS_PER_WRITE_MAX:  # noqa: ASYNC110 - polling is enough here
                    await asyncio.sleep(_BLOCKED_SECONDS)
                data = await self._call.read()
                if data is grpc.aio.EOF:
                    self.end(grpc.StatusCode.OK)
                else:
                    self._receive(self._variant.decode(data))
        except Exception as error:  # noqa: BLE001 - any error ends this stream and no other
            self._fail(error)

    def _start(self) -> None:
        if self._first is not None and self._end is None:
            self._receive(self._first)
            self._first = None
            self.connection.watch_offers(self._on_offer)

    def _receive(self, decoded: DecodedRequest[_Req]) -> None:
        node = decoded.node
        if node is not None and node.id not in ("", ".".join(self.id[1:])):
            self.end(grpc.StatusCode.INVALID_ARGUMENT, node_id_changed(".".join(self.id[1:]), node.id))
        elif decoded.request is None:
            self._context.on_unknown_type(decoded.type_url)
        else:
            self._n_received += 1
            self._responses += self._session.receive(decoded.request, self._context.clock())
            self._report()
            self.schedule_next()

    def _on_offer(self, offer: Offer) -> None:
        """Take an offer. The caller serves many streams, so an error must end this one alone."""
        try:
            is_idle = not self._is_scheduled and self._writer is None
            if is_idle and self._session.accept_if_held(offer):
                self._report()  # as for most proxies after a restart; they need no write slot
            else:
                self._offer = offer
            self.schedule_next()
        except Exception as error:  # noqa: BLE001 - any error ends this stream and no other
            self._fail(error)

    # Writing.

    def schedule_next(self) -> None:
        """Ask for a write slot if something is to be written, or set a timer for what is due later."""
        if self._is_scheduled or self._writer is not None or self._end is not None:
            return
        if self._responses or self._offer is not None:
            self._is_scheduled = True
            self._context.scheduler.schedule(self, is_new=self._is_new)
        elif (due := self._session.next_tick) is not None and self._tick is None:
            delay = max(0.0, due - self._context.clock())
            self._tick = asyncio.get_running_loop().call_later(delay, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        if self._end is not None:
            return
        try:
            self._responses += self._session.tick(self._context.clock())
            self._report()
            self.schedule_next()
        except Exception as error:  # noqa: BLE001 - any error ends this stream and no other
            self._fail(error)

    async def write_pending(self) -> bool:
        """Write all pending responses; whether the proxy is still new, and keeps its write slot."""
        self._is_scheduled = False
        if self._end is not None:
            return False
        self._writer = asyncio.current_task()
        responses: list[_Resp] = []
        try:
            responses = self._next_responses()
            for response in responses:
                if self._end is None:
                    await self._call.write(self._variant.encode(response))
        except grpc.aio.BaseError:  # the proxy disconnected; gRPC tells the reader, too
            self.end(grpc.StatusCode.CANCELLED)
        except Exception as error:  # noqa: BLE001 - any error ends this stream and no other
            self._fail(error)
        finally:
            self._writer = None
            self._stop_reader()
        self._n_received = 0
        if not responses or self._reported is None or self._reported.state != "synced":
            self._report()  # that a synced proxy is behind after a response needs no report
        return self._end is None and self._is_new

    @property
    def _is_new(self) -> bool:
        """Whether the proxy has never been synced."""
        return self._reported is None or self._reported.state == "connecting"

    def _next_responses(self) -> list[_Resp]:
        """The responses to write now, with those that the newest offer needs."""
        responses, self._responses = self._responses, []
        if self._offer is not None:
            offer, self._offer = self._offer, None
            responses += self._session.offer(offer, self._context.clock())
        return responses

    def _report(self) -> None:
        """Report the status of the proxy if it has changed."""
        status, before = self._session.status, self._reported
        has_no_new_acks = self._n_acks == self._session.n_acks
        if has_no_new_acks and before is not None and _is_same_status(before, status):
            return
        self._reported, self._n_acks = status, self._session.n_acks
        if not self._is_new:
            self._context.scheduler.release(self)
        self.connection.report(status)
        known = before.rejections if before is not None else ()
        for rejection in status.rejections:
            if rejection not in known:
                self._log_rejection(rejection)

    def _log_rejection(self, rejection: Rejection) -> None:
        self.log.warning(
            "proxy rejected configuration",
            type=rejection.type,
            names=rejection.names,
            text=masked_text(rejection.text),
            revision=rejection.revision,
        )


def _is_same_status(one: ProxyStatus, other: ProxyStatus) -> bool:
    """Whether two statuses are equal but for the versions, which are read only by those who need them."""
    return (
        one.acked == other.acked
        and one.acked_snapshot is other.acked_snapshot
        and one.offered == other.offered
        and one.state == other.state
        and one.rejections == other.rejections
    )
