"""Stream: one proxy that is connected, from its hello to its end.

The task of the call listens to the proxy; another one talks, and is there only while there is something to
say. What the proxy says is taken in at once; mostly it is an answer that needs none. Of what the house offers
only the newest is looked at, and when it is this proxy's turn to be told, so what is offered while a proxy is
slow costs nothing.
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
from koguma.xds.contract import ConnectRequest, Offer, ProxyConnection, ProxyStatus, Rejection
from koguma.xds.hello import End, end_of, id_changed
from koguma.xds.messages import Incoming
from koguma.xds.pace import Pace

_HEARD_MAX: Final = 64  # requests in a turn; a proxy that says more and does not read is not listened to
_DEAF_SECONDS: Final = 0.05
_Q = TypeVar("_Q")
_R = TypeVar("_R")
_Q_contra = TypeVar("_Q_contra", contravariant=True)


class Conversation(Protocol[_Q_contra, _R]):
    """A session in one of the two forms of xDS."""

    def receive(self, request: _Q_contra, now: float) -> list[_R]:
        """The proxy asks for something, or answers."""

    def offer(self, offer: Offer, now: float) -> list[_R]:
        """The proxy is to have this."""

    def accept_if_held(self, offer: Offer) -> bool:
        """Take an offer that the proxy has already, so that there is nothing to say; whether it was so."""

    def tick(self, now: float) -> list[_R]:
        """Time has passed."""

    @property
    def next_tick(self) -> float | None:
        """When to tick."""

    @property
    def status(self) -> ProxyStatus:
        """How far the proxy is."""

    @property
    def n_acks(self) -> int:
        """How many responses the proxy has taken."""


class Form(msgspec.Struct, Generic[_Q, _R], frozen=True):
    """One of the two forms of xDS: how to read, how to go on, how to write."""

    name: str
    read: Callable[[bytes], Incoming[_Q]]
    session: Callable[[], Conversation[_Q, _R]]
    written: Callable[[_R], bytes]
    id_path: tuple[int, ...]  # field numbers that lead to the id of the node


class Wire(Protocol):
    """The part of a gRPC call that a stream needs."""

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF."""

    async def write(self, message: bytes) -> None:
        """Send a message."""

    def peer(self) -> str:
        """Who is at the other end."""


class Terms(msgspec.Struct, frozen=True):
    """What all streams of a server have in common."""

    pace: Pace
    clock: Callable[[], float]
    farewell_seconds: float  # for a proxy to take a message when its stream is to end
    unknown_type: Callable[[str], None]  # told about a type that is not served
    log: FilteringBoundLogger


class Stream(Generic[_Q, _R]):
    """One connected proxy. `end` may be called by anybody at any time; the first call counts."""

    __slots__ = (
        "_end",
        "_first",
        "_form",
        "_is_waiting",
        "_listener",
        "_n_acks",
        "_n_heard",
        "_offer",
        "_reported",
        "_session",
        "_terms",
        "_tick",
        "_to_say",
        "_wire",
        "_writer",
        "id",
        "is_deaf",
        "line",
    )

    def __init__(
        self,
        form: Form[_Q, _R],
        wire: Wire,
        line: ProxyConnection,
        hello: ConnectRequest,
        first: Incoming[_Q],
        terms: Terms,
    ) -> None:
        self._form, self._wire, self.line = form, wire, line
        self.id = hello.mesh, hello.name
        self._first: Incoming[_Q] | None = first  # what it came with; not kept, since it may be large
        self._terms = terms
        self._session = form.session()
        self._to_say: list[_R] = []
        self._n_heard = 0  # since the last turn
        self._offer: Offer | None = None
        self._end: End | None = None
        self._listener: asyncio.Task[Any] | None = None  # while nobody has told it to stop
        self._is_waiting = False  # for a turn to talk
        self._writer: asyncio.Task[None] | None = None  # while it talks
        self._tick: asyncio.TimerHandle | None = None
        self.is_deaf = False  # it ended in the middle of a message, so nothing can be said to it any more
        self._reported: ProxyStatus | None = None
        self._n_acks = 0

    @property
    def log(self) -> FilteringBoundLogger:
        """Where it says what happens, with who it is about; made when something does."""
        mesh, name = self.id
        return self._terms.log.bind(mesh=mesh, proxy=name, peer=self._wire.peer())

    def check_access(self) -> None:
        """Raise a KogumaError once the proxy may not stay."""
        self.line.check_access()

    def end(self, code: grpc.StatusCode, text: str = "") -> None:
        """Come to an end as soon as what is being written is written."""
        if self._end is not None:
            return
        self._end = End(code, text)
        if self._writer is None:
            self._finish_if_ended()
        else:
            asyncio.get_running_loop().call_later(self._terms.farewell_seconds, self._cut)

    def _cut(self) -> None:
        if self._writer is not None:
            self.is_deaf = True
            self._writer.cancel()

    def _finish_if_ended(self) -> None:
        if self._end is None or self._listener is None:
            return
        listener, self._listener = self._listener, None
        if listener is not asyncio.current_task():  # which sees by itself that it is over
            listener.cancel()

    async def run(self) -> End:
        """Listen, and talk where there is something to say, until somebody ends it; how it ended."""
        task = self._listener = asyncio.current_task()
        assert task is not None
        try:
            await self._listen()
            if self._writer is not None:
                await asyncio.wait((self._writer,))
        except asyncio.CancelledError:
            if self._listener is not None or task.uncancel():  # it was not, or not only, told to stop
                raise
        finally:
            await self._clean()
        assert self._end is not None
        return self._end

    async def _clean(self) -> None:
        self._end = self._end or End(grpc.StatusCode.CANCELLED)
        self._terms.pace.leave(self)
        if self._tick is not None:
            self._tick.cancel()
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)

    def _fail(self, error: Exception) -> None:
        """End the stream after a mistake: of the proxy, or of ours, which does not end other streams."""
        if isinstance(error, KogumaError):
            end = end_of(error)
        elif isinstance(error, DecodeError):
            end = End(grpc.StatusCode.INVALID_ARGUMENT, f"the request cannot be read: {error}")
        else:
            self.log.error("stream failed", exc_info=error)
            end = End(grpc.StatusCode.INTERNAL, "internal error; the log of the control plane says more")
        self.end(end.code, end.text)

    # Listening.

    async def _listen(self) -> None:
        """Hear whatever comes, until it is over."""
        try:
            self._begin()
            while self._end is None:
                while self._writer is not None and self._n_heard >= _HEARD_MAX:  # noqa: ASYNC110 - nobody hurries
                    await asyncio.sleep(_DEAF_SECONDS)
                data = await self._wire.read()
                if data is grpc.aio.EOF:
                    self.end(grpc.StatusCode.OK)
                else:
                    self._hear(self._form.read(data))
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this stream and no other
            self._fail(error)

    def _begin(self) -> None:
        if self._first is not None and self._end is None:
            self._hear(self._first)
            self._first = None
            self.line.watch_offers(self._take)

    def _hear(self, incoming: Incoming[_Q]) -> None:
        node = incoming.node
        if node is not None and node.id not in ("", ".".join(self.id)):
            self.end(grpc.StatusCode.INVALID_ARGUMENT, id_changed(".".join(self.id), node.id))
        elif incoming.request is None:
            self._terms.unknown_type(incoming.type_url)
        else:
            self._n_heard += 1
            self._to_say += self._session.receive(incoming.request, self._terms.clock())
            self._report()
            self.go_on()

    def _take(self, offer: Offer) -> None:
        """Take an offer. Whoever hands out offers does so for many: a mistake here ends this stream alone."""
        try:
            if not self._is_waiting and self._writer is None and self._session.accept_if_held(offer):
                self._report()  # as with most after a restart; they need no turn
            else:
                self._offer = offer
            self.go_on()
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this stream and no other
            self._fail(error)

    # Talking.

    def go_on(self) -> None:
        """Wait for a turn to talk if there is something to say, or until something is due."""
        if self._is_waiting or self._writer is not None or self._end is not None:
            return
        if self._to_say or self._offer is not None:
            self._is_waiting = True
            self._terms.pace.enter(self, is_new=self._is_new)
        elif (due := self._session.next_tick) is not None and self._tick is None:
            left = max(0.0, due - self._terms.clock())
            self._tick = asyncio.get_running_loop().call_later(left, self._due)

    def _due(self) -> None:
        self._tick = None
        if self._end is not None:
            return
        try:
            self._to_say += self._session.tick(self._terms.clock())
            self._report()
            self.go_on()
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this stream and no other
            self._fail(error)

    async def talk(self) -> bool:
        """One turn: say what there is to say now; whether the proxy is not yet where it is to be."""
        self._is_waiting = False
        if self._end is not None:
            return False
        self._writer = asyncio.current_task()
        responses: list[_R] = []
        try:
            responses = self._responses()
            for response in responses:
                if self._end is None:
                    await self._wire.write(self._form.written(response))
        except grpc.aio.BaseError:  # it has gone; gRPC says so to the one who listens, too
            self.end(grpc.StatusCode.CANCELLED)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this stream and no other
            self._fail(error)
        finally:
            self._writer = None
            self._finish_if_ended()
        self._n_heard = 0
        if not responses or self._reported is None or self._reported.state != "synced":
            self._report()  # who had all and was told more is behind, which the house knows
        return self._end is None and self._is_new

    @property
    def _is_new(self) -> bool:
        """Whether it has never had all that it is to have."""
        return self._reported is None or self._reported.state == "connecting"

    def _responses(self) -> list[_R]:
        """What is to be said since the last turn."""
        responses, self._to_say = self._to_say, []
        if self._offer is not None:
            offer, self._offer = self._offer, None
            responses += self._session.offer(offer, self._terms.clock())
        return responses

    def _report(self) -> None:
        """Tell the house how far the proxy is, if that has changed."""
        status, before = self._session.status, self._reported
        is_same = self._n_acks == self._session.n_acks
        if is_same and before is not None and _are_alike(before, status):
            return
        self._reported, self._n_acks = status, self._session.n_acks
        if not self._is_new:
            self._terms.pace.leave(self)
        self.line.report(status)
        known = before.rejections if before is not None else ()
        for rejection in status.rejections:
            if rejection not in known:
                self._log_rejection(rejection)

    def _log_rejection(self, rejection: Rejection) -> None:
        self.log.warning(
            "proxy refused configuration",
            type=rejection.type,
            names=rejection.names,
            text=masked_text(rejection.text),
            revision=rejection.revision,
        )


def _are_alike(one: ProxyStatus, other: ProxyStatus) -> bool:
    """Whether there is nothing to tell; the versions are read by whoever needs them."""
    return (
        one.acked == other.acked
        and one.offered == other.offered
        and one.state == other.state
        and one.rejections == other.rejections
    )
