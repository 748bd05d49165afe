"""Stream: one proxy that is connected, from its hello to its end.

Two tasks listen, one to the proxy and one to the house; a third one does all the talking. What the proxy
says is taken in at once; mostly it is an answer that needs none. Of what the house offers only the newest
is looked at, and when it is this proxy's turn to be told, so what is offered while a proxy is slow costs
nothing.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar

import grpc
import msgspec
from google.protobuf.message import DecodeError
from structlog.typing import FilteringBoundLogger

from koguma.logs import masked_text
from koguma.model.errors import KogumaError
from koguma.xds.contract import Line, Offer, ProxyStatus, Rejection
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

    def tick(self, now: float) -> list[_R]:
        """Time has passed."""

    @property
    def next_tick(self) -> float | None:
        """When to tick."""

    @property
    def status(self) -> ProxyStatus:
        """How far the proxy is."""

    @property
    def n_accepted(self) -> int:
        """How many responses the proxy has taken."""


class Form(msgspec.Struct, Generic[_Q, _R], frozen=True):
    """One of the two forms of xDS: how to read, how to go on, how to write."""

    name: str
    read: Callable[[bytes], Incoming[_Q]]
    session: Callable[[], Conversation[_Q, _R]]
    written: Callable[[_R], bytes]


class Wire(Protocol):
    """The part of a gRPC call that a stream needs."""

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF."""

    async def write(self, message: bytes) -> None:
        """Send a message."""


class Terms(msgspec.Struct, frozen=True):
    """What all streams of a server have in common."""

    pace: Pace
    clock: Callable[[], float]
    farewell_seconds: float  # for a proxy to take a message when its stream is to end
    unknown_type: Callable[[str], None]  # told about a type that is not served


class Stream(Generic[_Q, _R]):
    """One connected proxy. `end` may be called by anybody at any time; the first call counts."""

    def __init__(
        self,
        form: Form[_Q, _R],
        wire: Wire,
        line: Line,
        node_id: str,
        terms: Terms,
        log: FilteringBoundLogger,
    ) -> None:
        self._form, self._wire, self._line = form, wire, line
        self._node_id = node_id
        self._terms = terms
        self._log = log
        self._session = form.session()
        self._to_say: list[_R] = []
        self._n_heard = 0  # since the last turn
        self._offer: Offer | None = None
        self._wake = asyncio.Event()
        self._end: End | None = None
        self._writing: asyncio.Timeout | None = None
        self.is_deaf = False  # it ended in the middle of a message, so nothing can be said to it any more
        self._reported: ProxyStatus | None = None
        self._n_accepted = 0

    def end(self, code: grpc.StatusCode, text: str = "") -> None:
        """Come to an end as soon as what is being written is written."""
        if self._end is None:
            self._end = End(code, text)
            if self._writing is not None:
                self._writing.reschedule(asyncio.get_running_loop().time() + self._terms.farewell_seconds)
        self._wake.set()

    async def run(self, first: Incoming[_Q]) -> End:
        """Talk until somebody ends it; how it ended."""
        self._hear(first)
        listeners = [asyncio.create_task(self._guarded(each)) for each in (self._listen, self._follow)]
        try:
            while self._end is None:
                await self._sleep()
                if self._end is None:
                    await self._take_turn()
            return self._end
        finally:
            for task in listeners:
                task.cancel()
            await asyncio.gather(*listeners, return_exceptions=True)

    # Listening.

    async def _guarded(self, listen: Callable[[], Any]) -> None:
        """Listen, and end the stream where that fails."""
        try:
            await listen()
        except KogumaError as error:
            end = end_of(error)
            self.end(end.code, end.text)
        except DecodeError as error:
            self.end(grpc.StatusCode.INVALID_ARGUMENT, f"the request cannot be read: {error}")
        except Exception:  # noqa: BLE001 - a mistake of ours ends this stream, not the others
            self._log.exception("stream failed")
            self.end(grpc.StatusCode.INTERNAL, "internal error; the log of the control plane says more")

    async def _listen(self) -> None:
        while self._end is None:
            while self._writing is not None and self._n_heard >= _HEARD_MAX:  # noqa: ASYNC110 - nobody hurries
                await asyncio.sleep(_DEAF_SECONDS)
            data = await self._wire.read()
            if data is grpc.aio.EOF:
                self.end(grpc.StatusCode.OK)
            else:
                self._hear(self._form.read(data))

    def _hear(self, incoming: Incoming[_Q]) -> None:
        node = incoming.node
        if node is not None and node.id not in ("", self._node_id):
            self.end(grpc.StatusCode.INVALID_ARGUMENT, id_changed(self._node_id, node.id))
        elif incoming.request is None:
            self._terms.unknown_type(incoming.type_url)
        else:
            self._n_heard += 1
            self._to_say += self._session.receive(incoming.request, self._terms.clock())
            self._report()
            if self._to_say or self._session.next_tick is not None:
                self._wake.set()

    async def _follow(self) -> None:
        while self._end is None:
            self._offer = await self._line.next_offer()
            self._wake.set()

    # Talking.

    async def _sleep(self) -> None:
        due = self._session.next_tick
        if due is None:
            await self._wake.wait()
        else:
            with suppress(TimeoutError):  # then something is due
                async with asyncio.timeout(max(0.0, due - self._terms.clock())):
                    await self._wake.wait()
        self._wake.clear()

    async def _take_turn(self) -> None:
        is_new = self._reported is None or self._reported.state == "connecting"
        async with self._terms.pace.turn(is_new=is_new):
            for response in self._responses():
                await self._write(self._form.written(response))
        self._n_heard = 0
        self._report()

    def _responses(self) -> list[_R]:
        """What is to be said since the last turn."""
        responses, self._to_say = self._to_say, []
        now, due = self._terms.clock(), self._session.next_tick
        if due is not None and due <= now:
            responses += self._session.tick(now)
        if self._offer is not None:
            responses += self._session.offer(self._offer, now)
            self._offer = None
        return responses

    async def _write(self, data: bytes) -> None:
        """Write as long as it takes; whether a proxy is still there is found out by pings."""
        if self._end is not None:
            return
        try:
            async with asyncio.timeout(None) as self._writing:
                await self._wire.write(data)
        except TimeoutError:
            self.is_deaf = True
        finally:
            self._writing = None

    def _report(self) -> None:
        """Tell the house how far the proxy is, if that has changed."""
        status, before = self._session.status, self._reported
        is_same = self._n_accepted == self._session.n_accepted
        if is_same and before is not None and _shown(before) == _shown(status):
            return
        self._reported, self._n_accepted = status, self._session.n_accepted
        self._line.report(status)
        known = before.rejections if before is not None else ()
        for rejection in status.rejections:
            if rejection not in known:
                self._log_rejection(rejection)

    def _log_rejection(self, rejection: Rejection) -> None:
        self._log.warning(
            "proxy refused configuration",
            type=rejection.type,
            names=rejection.names,
            text=masked_text(rejection.text),
            revision=rejection.revision,
        )


def _shown(status: ProxyStatus) -> tuple[object, ...]:
    """What makes a status worth telling; the versions are read by whoever needs them."""
    return status.state, status.offered, status.acked, status.rejections
