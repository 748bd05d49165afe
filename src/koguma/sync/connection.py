"""Connection: one stream between Global and a zone, over which both send and receive objects.

Messages come in as bytes and go out as bytes; what carries them is not its business. It ends by an error, of
which the other side is told by the end of the stream.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec

from koguma.model.errors import KogumaError, Unavailable
from koguma.model.resource import Key
from koguma.sync.protocol import messages
from koguma.sync.protocol.catalog import Audience
from koguma.sync.protocol.messages import (
    BATCH_OBJECTS,
    PROTOCOL,
    Ack,
    BrokenProtocol,
    Entries,
    EntriesWanted,
    Message,
    Objects,
    Refusal,
    SyncGreeting,
)
from koguma.sync.protocol.publisher import Publisher, SentCount
from koguma.sync.protocol.subscriber import Subscriber
from koguma.sync.published_objects import PublishedObjects
from koguma.sync.received_objects import ReceivedObjects

RETRY_SECONDS: Final = 1.0  # while the store does not answer
GREETING_SECONDS: Final = 30.0  # until the other side has said who it is
MESSAGES_A_SECOND: Final = 1000  # that are read
ANSWERS_MAX: Final = 100  # that wait to be sent; acknowledgements are one
REFUSALS_MAX: Final = 1000  # of the other side's objects that are shown

Send = Callable[[bytes], Awaitable[None]]


class PeerState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the other side, and how far each direction is."""

    id: str  # of the connection
    greeting: SyncGreeting
    connected_at: datetime
    last_message_at: datetime
    n_lacking: int  # changes that it has not got yet
    behind_since: datetime | None  # since when it lacks something
    counts: Mapping[str, SentCount]  # of what it was sent, by kind
    n_held: int  # objects of its that are stored here
    n_surplus: int  # objects that it does not have any more, and are kept
    refused_there: tuple[Refusal, ...]
    refused_here: tuple[Refusal, ...]


class SyncConnection:
    """One end of a stream, whichever side it is."""

    def __init__(
        self,
        published: PublishedObjects,
        received: ReceivedObjects,
        audience: Callable[[SyncGreeting], Audience],
        clock: Callable[[], datetime],
    ) -> None:
        self._published = published
        self._received = received
        self._audience = audience
        self._clock = clock
        self._id = str(uuid.uuid4())
        self._connected_at = clock()
        self._behind_since: datetime | None = None
        self._last_message_at = self._connected_at
        self._peer: SyncGreeting | None = None
        self._publisher: Publisher | None = None
        self._subscriber: Subscriber | None = None
        self._refused_here: dict[Key, Refusal] = {}
        self._has_work = asyncio.Event()
        self._answers: deque[Iterator[Message]] = deque()
        self._ack: Ack | None = None
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def state(self) -> PeerState | None:
        """How the other side is; None before it has said who it is."""
        if self._peer is None or self._publisher is None or self._subscriber is None:
            return None
        return PeerState(
            id=self._id,
            greeting=self._peer,
            connected_at=self._connected_at,
            last_message_at=self._last_message_at,
            n_lacking=self._publisher.n_lacking,
            behind_since=self._behind_since,
            counts=self._publisher.counts(),
            n_held=self._subscriber.n_held,
            n_surplus=len(self._subscriber.surplus),
            refused_there=tuple(self._publisher.refused.values()),
            refused_here=tuple(self._refused_here.values()),
        )

    async def run(
        self,
        incoming: AsyncIterator[bytes],
        send: Send,
        greeting: Callable[[bytes], SyncGreeting],
        check: Callable[[SyncGreeting], bool],
    ) -> None:
        """Serve the stream until it ends; `greeting` says who this side is, from the sums of what it holds.

        `check` raises unless the other side may take part, and says whether what that one no longer has is
        kept until an operator agrees.
        """
        await self._published.is_loaded.wait()
        subscriber = Subscriber(self._received.held())
        await send(messages.encoded(greeting(subscriber.sums())))
        peer = await _greeting(incoming)
        subscriber.keeps_surplus = check(peer)
        publisher = Publisher(self._published.catalog, self._audience(peer), self._published.content)
        self._peer, self._publisher, self._subscriber = peer, publisher, subscriber
        if (wanted := publisher.compare(peer.sums)) is not None:
            self._answer(iter((wanted,)))
        stop = self._published.listen(self._has_work.set)
        try:
            async with asyncio.TaskGroup() as both:
                beside = [both.create_task(self._send_all(publisher, send)), both.create_task(self._ended())]
                await self._receive(publisher, subscriber, incoming)
                for task in beside:
                    task.cancel()
        except ExceptionGroup as errors:  # of one of both: the other was cancelled
            raise errors.exceptions[0] from None
        finally:
            stop()

    def end(self, reason: KogumaError) -> None:
        """End the stream; `run` raises the reason."""
        if not self._end.done():
            self._end.set_exception(reason)

    async def _ended(self) -> None:
        await self._end

    # Reading never waits for writing: two sides that both wait until they are read would wait for ever.

    def _answer(self, answer: Iterator[Message]) -> None:
        if len(self._answers) >= ANSWERS_MAX:
            raise BrokenProtocol("it asks, and does not read the answers")
        self._answers.append(answer)
        self._has_work.set()

    def _acknowledge(self, ack: Ack) -> None:
        before, self._ack = self._ack, ack
        if before is not None and len(before.refused) + len(ack.refused) <= BATCH_OBJECTS:
            self._ack = Ack(ack.number, (*before.refused, *ack.refused))
        elif before is not None:
            self._answer(iter((before,)))
        self._has_work.set()

    def _next_message(self, publisher: Publisher) -> Message | None:
        while self._answers:
            if (message := next(self._answers[0], None)) is not None:
                return message
            self._answers.popleft()
        if (ack := self._ack) is not None:
            self._ack = None
            return ack
        return publisher.next_batch()

    async def _send_all(self, publisher: Publisher, send: Send) -> None:
        while True:
            self._has_work.clear()
            if publisher.is_too_late:
                raise BrokenProtocol("it was away for too long; both sides have to be compared again")
            while (message := self._next_message(publisher)) is not None:
                self._note_progress(publisher)
                if isinstance(message, Objects):
                    message = msgspec.structs.replace(message, revision=self._published.revision)
                await send(messages.encoded(message))
            self._note_progress(publisher)
            await self._has_work.wait()

    def _note_progress(self, publisher: Publisher) -> None:
        """Note since when the other side lacks something."""
        if publisher.is_idle:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = self._clock()

    async def _receive(
        self, publisher: Publisher, subscriber: Subscriber, incoming: AsyncIterator[bytes]
    ) -> None:
        async for data in _paced(incoming):
            self._last_message_at = self._clock()
            message: Message = messages.decoded(data)
            match message:
                case EntriesWanted():
                    self._answer(subscriber.entries(message))
                case Entries():
                    publisher.receive_entries(message)
                    self._has_work.set()
                case Ack():
                    publisher.receive_ack(message)
                    self._note_progress(publisher)
                    self._has_work.set()
                case Objects():
                    if (ack := await self._store(subscriber, message)) is not None:
                        self._acknowledge(ack)
                case SyncGreeting():
                    raise BrokenProtocol("a second greeting was sent")

    async def _store(self, subscriber: Subscriber, batch: Objects) -> Ack | None:
        delivery = subscriber.receive(batch)
        if delivery is None:
            return None
        while True:
            try:
                refused = await self._received.store(delivery, subscriber.n_held)
            except Unavailable:  # until then the other side gets no Ack, and sends no more than its window
                await asyncio.sleep(RETRY_SECONDS)
            else:
                break
        for key in (*delivery.removed, *(each.key for each in delivery.objects)):
            self._refused_here.pop(key, None)
        room = REFUSALS_MAX - len(self._refused_here)
        self._refused_here |= {each.key: each for each in refused[:room]}
        return subscriber.stored(delivery, refused)


async def _greeting(incoming: AsyncIterator[bytes]) -> SyncGreeting:
    try:
        async with asyncio.timeout(GREETING_SECONDS):
            data = await anext(incoming, None)
    except TimeoutError:
        raise BrokenProtocol(f"it did not say who it is within {GREETING_SECONDS:g} seconds") from None
    if data is None:
        raise BrokenProtocol("it ended before it said who it is")
    peer = messages.decoded(data)
    if not isinstance(peer, SyncGreeting):
        raise BrokenProtocol("the first message is no greeting")
    if peer.protocol != PROTOCOL:
        text = f"speaks version {peer.protocol} of the sync protocol, and this one version {PROTOCOL}"
        raise BrokenProtocol(f"the control plane of version {peer.version} {text}; upgrade the older one")
    return peer


async def _paced(incoming: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The messages, so many a second; whoever sends more has to wait."""
    now = asyncio.get_running_loop().time
    began, n_messages = now(), 0
    async for data in incoming:
        yield data
        n_messages += 1
        if n_messages >= MESSAGES_A_SECOND:
            await asyncio.sleep(max(0.0, began + 1 - now()))
            began, n_messages = now(), 0
