"""Admin channels: the connections over which agents answer for their Envoys' admin interfaces.

A channel belongs to the proxy whose token opened it, and answers for that proxy alone. Nothing is taken from
an agent that was not asked for: an answer is held up to the size that the asker takes, frames of answers that
nobody waits for any more are counted, and an agent that sends anything else loses its channel.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import msgspec

from koguma.envoy import admin_channel
from koguma.envoy.admin_channel import BadChannelMessage, FrameType, PageRequest
from koguma.fleet.gate import ProxyAdmission
from koguma.model.errors import BadGateway, Conflict, KogumaError, Unavailable
from koguma.model.resource import Key
from koguma.model.violation import cut
from koguma.runtime.background import Background

REVIEW_SECONDS: Final = 1.0
PACE_SECONDS: Final = 5.0
_REVIEW_BATCH: Final = 256
_REASON_MAX: Final = 1000
_FRAME_OVERHEAD: Final = 64  # bytes that count for each frame, so that empty ones are not free


class ChannelSocket(msgspec.Struct, frozen=True):
    """The connection under a channel."""

    send: Callable[[str], Awaitable[None]]
    close: Callable[[str], Awaitable[None]]


class _PendingAnswer:
    """An answer that is under way."""

    __slots__ = ("body", "bytes_left", "done")

    def __init__(self, bytes_max: int) -> None:
        self.body = bytearray()
        self.bytes_left = bytes_max
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


class AdminChannel:
    """The channel of one proxy."""

    def __init__(self, key: Key, admission: ProxyAdmission, socket: ChannelSocket) -> None:
        self.key = key
        self._admission = admission
        self._socket = socket
        self._numbers = itertools.count(1)
        self._pending: dict[int, _PendingAnswer] = {}
        self._unwanted_bytes = 0  # that may still come of answers that nobody waits for
        self.turns = asyncio.Semaphore(admin_channel.REQUESTS_MAX)  # to be taken before `ask`
        self.opened_at = asyncio.get_running_loop().time()

    def check_access(self) -> None:
        """Raise Unauthenticated or Forbidden once the proxy may not stay."""
        self._admission.check()

    async def ask(self, path: str, bytes_max: int, seconds_max: float) -> bytes:
        """The page of Envoy's admin interface at a path; Unavailable or BadGateway where there is none."""
        try:
            async with asyncio.timeout(seconds_max):
                return await self._asked(path, bytes_max)
        except TimeoutError:
            raise Unavailable(f"its agent did not answer within {seconds_max:g} s") from None

    async def _asked(self, path: str, bytes_max: int) -> bytes:
        number = next(self._numbers) % (1 << 32)
        answer = self._pending[number] = _PendingAnswer(bytes_max)
        try:
            request = msgspec.json.encode(PageRequest(number, path, bytes_max)).decode()
            try:
                await self._socket.send(request)
            except (ConnectionError, RuntimeError):  # RuntimeError: it is closing
                raise _disconnected() from None
            return await answer.done
        finally:
            del self._pending[number]
            if not answer.done.done() or answer.done.cancelled():
                self._unwanted_bytes += max(answer.bytes_left, 0)
            else:
                answer.done.exception()  # asyncio logs an error that nobody has looked at

    def receive(self, message: bytes) -> None:
        """Take a message of the agent; BadChannelMessage where it is not (or no more) what was asked for."""
        frame = admin_channel.read_frame(message)
        size = len(frame.chunk) + _FRAME_OVERHEAD
        answer = self._pending.get(frame.number)
        # One that was cancelled just now is still pending: its task has not had its turn to give it up yet.
        if answer is None or (answer.done.done() and not answer.done.cancelled()):
            self._unwanted_bytes -= size
            if self._unwanted_bytes < 0:
                raise BadChannelMessage("it sends what nobody asked for")
            return
        answer.bytes_left -= size
        if answer.bytes_left < -admin_channel.CHUNK_BYTES:
            raise BadChannelMessage("it sends more than was asked for")
        if answer.done.cancelled():
            return
        match frame.type:
            case FrameType.ERROR:
                reason = frame.chunk.decode("utf-8", "replace")
                answer.done.set_exception(BadGateway(cut(reason, _REASON_MAX)))
            case _:
                answer.body += frame.chunk
                if frame.type is FrameType.LAST:
                    answer.done.set_result(bytes(answer.body))

    def end(self) -> None:
        """Note that the connection has ended: nothing will be answered any more."""
        for answer in self._pending.values():
            if not answer.done.done():
                answer.done.set_exception(_disconnected())

    async def close(self, reason: str) -> None:
        """Close the connection, telling the agent why."""
        self.end()
        with contextlib.suppress(ConnectionError, RuntimeError):
            await self._socket.close(reason)


class AdminChannels:
    """The channels that are open here, by proxy."""

    def __init__(self, background: Background) -> None:
        self._channels: dict[Key, AdminChannel] = {}
        self._background = background
        self._is_stopping = False

    def __len__(self) -> int:
        return len(self._channels)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._channels)

    def of(self, key: Key) -> AdminChannel | None:
        """The channel of a proxy, if it has one here."""
        return self._channels.get(key)

    def check_pace(self, key: Key) -> None:
        """Raise Conflict where a proxy has just opened a channel, which would be closed for another one."""
        channel = self._channels.get(key)
        if channel is not None and asyncio.get_running_loop().time() - channel.opened_at < PACE_SECONDS:
            raise Conflict("this proxy has opened a channel a moment ago; is another one of this name there?")

    def add(self, channel: AdminChannel) -> None:
        """Take a channel; an earlier one of the same proxy is closed."""
        if self._is_stopping:
            raise Unavailable("this control plane stops")
        earlier = self._channels.get(channel.key)
        self._channels[channel.key] = channel
        if earlier is not None:
            self._background.once("end of an admin channel", earlier.close("a later one takes its place"))

    def remove(self, channel: AdminChannel) -> None:
        """Forget a channel whose connection has ended."""
        channel.end()
        if self._channels.get(channel.key) is channel:
            del self._channels[channel.key]

    async def review(self) -> None:
        """End the channels of proxies that lost their access; checks all every second, until cancelled."""
        while True:
            await asyncio.sleep(REVIEW_SECONDS)
            for number, channel in enumerate(list(self._channels.values()), 1):
                try:
                    channel.check_access()
                except KogumaError as error:
                    self.remove(channel)
                    self._background.once("end of an admin channel", channel.close(cut(error.detail, 100)))
                if number % _REVIEW_BATCH == 0:
                    await asyncio.sleep(0)  # other tasks do not wait for thousands of checks

    async def stop(self) -> None:
        """Close all channels; agents open theirs at another control plane."""
        self._is_stopping = True
        channels = list(self._channels.values())
        self._channels.clear()
        await asyncio.gather(*(channel.close("this control plane stops") for channel in channels))


def _disconnected() -> Unavailable:
    return Unavailable("its agent has disconnected; it connects again by itself, so try again")
