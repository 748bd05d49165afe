"""Connection: one stream between Global and a zone, over which both send and receive objects.

Messages come in as bytes and go out as bytes; what carries them is not its business. It ends by an error, of
which the other side is told by the end of the stream.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from koguma.model.errors import KogumaError, NotSupported, TooLarge, Unavailable
from koguma.model.proxy_report import ProxyReport
from koguma.model.resource import Key
from koguma.model.sync_receipt import RefusedObject, SyncReceipt
from koguma.sync.held_objects import HeldSnapshot
from koguma.sync.liveness import Liveness
from koguma.sync.protocol import messages
from koguma.sync.protocol.catalog import Audience
from koguma.sync.protocol.messages import (
    BATCH_OBJECTS,
    PROTOCOL,
    Ack,
    Alive,
    AnswerPart,
    BrokenProtocol,
    Entries,
    EntriesWanted,
    Message,
    NoAnswer,
    Objects,
    ProxyStates,
    QuestionWithdrawn,
    Refusal,
    SyncGreeting,
    UnknownMessage,
    UpToDate,
    ZoneQuestion,
)
from koguma.sync.protocol.publisher import Publisher, SentCount
from koguma.sync.protocol.subscriber import Subscriber
from koguma.sync.published_objects import PublishedObjects
from koguma.sync.questions import Answering, Answers, Asking
from koguma.sync.received_objects import ReceivedObjects
from koguma.sync.reporting import ProxyReports, Reporting, ReportReader

UP_TO_DATE_SECONDS: Final = 3600.0  # between two messages that everything was sent
RETRY_SECONDS: Final = 1.0  # while the store does not answer
GREETING_SECONDS: Final = 30.0  # until the other side has said who it is
MESSAGES_A_SECOND: Final = 1000  # that are read
ANSWERS_MAX: Final = 100  # that wait to be sent; acknowledgements are one
REFUSALS_MAX: Final = 1000  # of the other side's objects that are shown

T = TypeVar("T")
Send = Callable[[bytes], Awaitable[None]]


class Duties(msgspec.Struct, frozen=True):
    """What a side does over a connection beside sending and taking objects."""

    answers: Answers | None = None
    reports: ProxyReports | None = None
    take_report: Callable[[ProxyReport], None] | None = None
    # The other side has sent everything until a revision of a transaction, and lacks nothing that is here.
    match: Callable[[int, str], Awaitable[None]] | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """What the other side may send."""
        answers = (messages.QUESTIONS, messages.LARGE_QUESTIONS) if self.answers is not None else ()
        states = (messages.PROXY_STATES,) if self.take_report is not None else ()
        up_to_date = (messages.UP_TO_DATE,) if self.match is not None else ()
        return (messages.ALIVE, *answers, *states, *up_to_date)


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


NO_DUTIES: Final = Duties()


class SyncConnection:
    """One end of a stream, whichever side it is."""

    def __init__(
        self,
        published: PublishedObjects,
        held: Callable[[], Awaitable[HeldSnapshot]],
        received: ReceivedObjects,
        audience: Callable[[SyncGreeting], Audience],
        clock: Callable[[], datetime],
        duties: Duties = NO_DUTIES,
    ) -> None:
        self._duties = duties
        self._asking = Asking(self._queue_beside)
        self._answering: Answering | None = None
        self._beside: deque[Iterator[Message]] = deque()  # sent in turns with objects
        self._is_beside_next = False
        self._liveness = Liveness(self._queue_beside)
        self._report_reader = ReportReader(duties.take_report)
        self._is_compared = False  # the other side has sent all that comparing found
        self._told_at: float | None = None  # by the loop's clock: that it was sent everything
        self._published = published
        self._held = held
        self._received = received
        self._audience = audience
        self._clock = clock
        self._log = published.log()
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

    @property
    def receipt(self) -> SyncReceipt | None:
        """What the other side has of what is published here; None before it has said who it is."""
        publisher = self._publisher
        if publisher is None or self._log.is_replaced:
            return None
        refused = tuple(
            RefusedObject(key, refusal.reason, publisher.refused_after[key], self._published.revision_of(key))
            for key, refusal in publisher.refused.items()
        )
        return SyncReceipt(self._id, publisher.has_revision, refused, publisher.is_refusal_forgotten)

    async def run(
        self,
        incoming: AsyncIterator[bytes],
        send: Send,
        greeting: Callable[[bytes], SyncGreeting],
        check: Callable[[SyncGreeting], Awaitable[bool]],
        *,
        greets_first: bool,
    ) -> None:
        """Serve the stream until it ends; `greeting` says who this side is, from the sums of what it holds.

        `check` raises unless the other side may take part, and says whether what that one no longer has is
        kept until an operator agrees. One side greets first, so that the other can answer what it says.
        """
        await self._published.is_loaded.wait()
        if greets_first:
            subscriber = await self._greet(send, greeting)
        peer = await _greeting(incoming)
        keeps_surplus = await check(peer)
        if not greets_first:
            subscriber = await self._greet(send, greeting)
        subscriber.keeps_surplus = keeps_surplus
        publisher = Publisher(
            self._published.catalog,
            self._audience(peer),
            self._published.content,
            lambda: self._published.taken,
        )
        self._peer, self._publisher, self._subscriber = peer, publisher, subscriber
        if (wanted := publisher.compare(peer.sums)) is not None:
            self._answer(iter((wanted,)))
        stop = self._published.listen(self._has_work.set)
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._duties.answers is not None:
                    self._answering = Answering(self._duties.answers, self._queue_beside, tasks)
                beside = [
                    tasks.create_task(self._send_all(publisher, send)),
                    tasks.create_task(self._ended()),
                ]
                if messages.PROXY_STATES in peer.features and self._duties.reports is not None:
                    reporting = Reporting(self._duties.reports, self._queue_beside)
                    beside.append(tasks.create_task(reporting.run()))
                if messages.ALIVE in peer.features:
                    beside.append(tasks.create_task(self._liveness.watch()))
                await self._receive(publisher, subscriber, incoming)
                if self._answering is not None:
                    self._answering.end()
                for task in beside:
                    task.cancel()
        except ExceptionGroup as errors:  # of one of them: the others were cancelled
            raise errors.exceptions[0] from None
        finally:
            self._asking.end()
            stop()

    async def _greet(self, send: Send, greeting: Callable[[bytes], SyncGreeting]) -> Subscriber:
        held = await self._held()
        await send(messages.encoded(greeting(held.sums)))
        return Subscriber(held.hashes)

    def end(self, reason: KogumaError) -> None:
        """End the stream; `run` raises the reason."""
        if not self._end.done():
            self._end.set_exception(reason)

    async def _ended(self) -> None:
        await self._end

    # Beside objects.

    async def ask(self, name: str, body: bytes, bytes_max: int, seconds_max: float) -> bytes:
        """The other side's answer to a question; NotSupported where it is too old to have one."""
        if self._peer is None:
            raise Unavailable("its control plane has only begun to connect; try again")
        if messages.QUESTIONS not in self._peer.features:
            version = self._peer.version
            raise NotSupported(f"its control plane is of version {version}, which answers no questions")
        is_large = len(body) > messages.SMALL_QUESTION_BYTES_MAX
        if is_large and messages.LARGE_QUESTIONS not in self._peer.features:
            version = self._peer.version
            raise NotSupported(f"its control plane is of version {version}, which takes no such question")
        if len(body) > messages.QUESTION_BYTES_MAX:
            raise TooLarge(
                f"the question has {len(body)} bytes, and a zone takes {messages.QUESTION_BYTES_MAX}"
            )
        if len(self._beside) >= ANSWERS_MAX:
            raise Unavailable("its control plane does not read what it is asked")
        return await self._asking.ask(name, body, bytes_max, seconds_max)

    def _asked(self, message: ZoneQuestion | QuestionWithdrawn) -> None:
        if self._answering is None:
            raise BrokenProtocol("it asks, and nobody answers questions here")
        if len(self._beside) >= ANSWERS_MAX:
            raise BrokenProtocol("it asks, and does not read the answers")
        self._answering.receive(message)

    def _queue_beside(self, sent: Iterator[Message]) -> None:
        self._beside.append(sent)
        self._has_work.set()

    def _next_beside(self) -> Message | None:
        """The next message that is not about objects; of several answers, a part of each in turn."""
        while self._beside:
            sent = self._beside.popleft()
            if (message := next(sent, None)) is not None:
                self._beside.append(sent)
                return message
        return None

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
        # In turns, so that neither a large answer nor many objects hold the other up.
        self._is_beside_next = not self._is_beside_next
        if self._is_beside_next:
            return self._next_beside() or publisher.next_batch()
        return publisher.next_batch() or self._next_beside()

    async def _send_all(self, publisher: Publisher, send: Send) -> None:
        while True:
            self._has_work.clear()
            if publisher.is_too_late:
                raise BrokenProtocol("it was away for too long; both sides have to be compared again")
            while (message := self._next_message(publisher)) is not None:
                self._check_log()
                self._note_progress(publisher)
                if isinstance(message, Objects):
                    revision, transaction = self._published.revision, self._published.transaction
                    message = msgspec.structs.replace(message, revision=revision, transaction=transaction)
                await send(messages.encoded(message))
            self._note_progress(publisher)
            if publisher.is_all_sent and self._is_to_be_told():
                await send(messages.encoded(UpToDate(self._published.revision, self._published.transaction)))
            await self._has_work.wait()

    def _check_log(self) -> None:
        """Whatever was acknowledged or answered may not be so in another history."""
        if self._log.is_replaced:
            raise Unavailable("the store has another history; both sides have to be compared again")

    def _is_to_be_told(self) -> bool:
        """Whether it is time to say that everything was sent; signs of life make that asked often enough."""
        now = asyncio.get_running_loop().time()
        if self._peer is None or messages.UP_TO_DATE not in self._peer.features:
            return False
        is_time = self._told_at is None or now - self._told_at > UP_TO_DATE_SECONDS
        self._told_at = now if is_time else self._told_at
        return is_time

    def _note_progress(self, publisher: Publisher) -> None:
        """Note since when the other side lacks something."""
        if publisher.is_idle:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = self._clock()

    async def _receive(
        self, publisher: Publisher, subscriber: Subscriber, incoming: AsyncIterator[bytes]
    ) -> None:
        async for data in _paced(self._liveness.read(incoming)):
            self._last_message_at = self._clock()
            match message := messages.decoded(data):
                case EntriesWanted():
                    self._answer(subscriber.entries(message))
                case Entries():
                    publisher.receive_entries(message)
                    self._has_work.set()
                case Ack():
                    publisher.receive_ack(message)
                    self._note_progress(publisher)
                    self._has_work.set()
                case Objects() | UpToDate():
                    await self._take(subscriber, message)
                case AnswerPart() | NoAnswer():
                    self._asking.receive(message)
                case ZoneQuestion() | QuestionWithdrawn():
                    self._asked(message)
                case ProxyStates():
                    await self._report_reader.receive(message)
                case SyncGreeting():
                    raise BrokenProtocol("a second greeting was sent")
                case Alive() | UnknownMessage():  # the latter is of a later version, which can do without
                    continue

    async def _take(self, subscriber: Subscriber, message: Objects | UpToDate) -> None:
        if isinstance(message, UpToDate):
            self._is_compared = True
        elif (ack := await self._store(subscriber, message)) is not None:
            self._acknowledge(ack)
        if isinstance(message, UpToDate) or (self._is_compared and subscriber.keeps_surplus):
            await self._match(subscriber, message.revision, message.transaction)

    async def _store(self, subscriber: Subscriber, batch: Objects) -> Ack | None:
        delivery = subscriber.receive(batch)
        if delivery is None:
            return None
        # Until it is stored the other side gets no Ack, and sends no more than its window.
        refused = await _stored(lambda: self._received.store(delivery, subscriber.n_held))
        for key in (*delivery.removed, *(each.key for each in delivery.objects)):
            self._refused_here.pop(key, None)
        room = REFUSALS_MAX - len(self._refused_here)
        self._refused_here |= {each.key: each for each in refused[:room]}
        return subscriber.stored(delivery, refused)

    async def _match(self, subscriber: Subscriber, revision: int, transaction: str) -> None:
        """Say that both sides have the same, if that is so."""
        match = self._duties.match
        if match is None or subscriber.surplus:
            return
        await _stored(lambda: match(revision, transaction))
        subscriber.keeps_surplus = False


async def _stored(write: Callable[[], Awaitable[T]]) -> T:
    """What a write returns, as soon as the store answers."""
    while True:
        try:
            return await write()
        except Unavailable:
            await asyncio.sleep(RETRY_SECONDS)


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
