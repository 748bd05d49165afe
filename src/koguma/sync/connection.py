"""Connection: one stream between Global and a zone, over which both send and receive objects.

Messages come in as bytes and go out as bytes; what carries them is not its business. It ends by an error, of
which the other side is told by the end of the stream.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Final

import msgspec

from koguma.model.errors import Unavailable
from koguma.model.resource import Key
from koguma.sync.protocol import messages
from koguma.sync.protocol.catalog import Audience
from koguma.sync.protocol.messages import (
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
from koguma.sync.protocol.publisher import Publisher
from koguma.sync.protocol.subscriber import Subscriber
from koguma.sync.published_objects import PublishedObjects
from koguma.sync.received_objects import ReceivedObjects

RETRY_SECONDS: Final = 1.0  # while the store does not answer

Send = Callable[[bytes], Awaitable[None]]


class PeerState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the other side, and how far each direction is."""

    greeting: SyncGreeting
    connected_at: datetime
    last_message_at: datetime
    n_lacking: int  # changes that it has not got yet
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
        self._connected_at = clock()
        self._last_message_at = self._connected_at
        self._peer: SyncGreeting | None = None
        self._publisher: Publisher | None = None
        self._subscriber: Subscriber | None = None
        self._refused_here: dict[Key, Refusal] = {}
        self._has_work = asyncio.Event()

    @property
    def state(self) -> PeerState | None:
        """How the other side is; None before it has said who it is."""
        if self._peer is None or self._publisher is None or self._subscriber is None:
            return None
        return PeerState(
            greeting=self._peer,
            connected_at=self._connected_at,
            last_message_at=self._last_message_at,
            n_lacking=self._publisher.n_lacking,
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
        peer = messages.decoded(await anext(incoming))
        if not isinstance(peer, SyncGreeting):
            raise BrokenProtocol("the first message is no greeting")
        if peer.protocol != PROTOCOL:
            text = f"speaks version {peer.protocol} of the sync protocol, and this one version {PROTOCOL}"
            raise BrokenProtocol(f"the control plane of version {peer.version} {text}; upgrade the older one")
        subscriber.keeps_surplus = check(peer)
        publisher = Publisher(self._published.catalog, self._audience(peer), self._published.content)
        self._peer, self._publisher, self._subscriber = peer, publisher, subscriber
        wanted = publisher.compare(peer.sums)
        if wanted is not None:
            await send(messages.encoded(wanted))
        stop = self._published.listen(self._has_work.set)
        try:
            async with asyncio.TaskGroup() as both:
                sending = both.create_task(self._send_batches(publisher, send))
                await self._receive(publisher, subscriber, incoming, send)
                sending.cancel()
        except ExceptionGroup as errors:  # of one of both: the other was cancelled
            raise errors.exceptions[0] from None
        finally:
            stop()

    async def _send_batches(self, publisher: Publisher, send: Send) -> None:
        while True:
            self._has_work.clear()
            if publisher.is_too_late:
                raise BrokenProtocol("it was away for too long; both sides have to be compared again")
            while (batch := publisher.next_batch()) is not None:
                await send(messages.encoded(batch))
            await self._has_work.wait()

    async def _receive(
        self, publisher: Publisher, subscriber: Subscriber, incoming: AsyncIterator[bytes], send: Send
    ) -> None:
        async for data in incoming:
            self._last_message_at = self._clock()
            message: Message = messages.decoded(data)
            match message:
                case EntriesWanted():
                    for entries in subscriber.entries(message):
                        await send(messages.encoded(entries))
                case Entries():
                    publisher.receive_entries(message)
                    self._has_work.set()
                case Ack():
                    publisher.receive_ack(message)
                    self._has_work.set()
                case Objects():
                    ack = await self._store(subscriber, message)
                    if ack is not None:
                        await send(messages.encoded(ack))
                case SyncGreeting():
                    raise BrokenProtocol("a second greeting was sent")

    async def _store(self, subscriber: Subscriber, batch: Objects) -> Ack | None:
        delivery = subscriber.receive(batch)
        if delivery is None:
            return None
        while True:
            try:
                refused = await self._received.store(delivery)
            except Unavailable:  # until then the other side gets no Ack, and sends no more than its window
                await asyncio.sleep(RETRY_SECONDS)
            else:
                break
        for key in (*delivery.removed, *(each.key for each in delivery.objects)):
            self._refused_here.pop(key, None)
        self._refused_here |= {each.key: each for each in refused}
        return subscriber.stored(delivery, refused)
