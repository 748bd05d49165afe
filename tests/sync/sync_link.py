"""A publisher and a subscriber with a link between them that loses, repeats and delays what is on it."""

from collections import deque
from collections.abc import Callable

from koguma.model.resource import Key
from koguma.sync.protocol import messages, sums
from koguma.sync.protocol.catalog import SyncCatalog, SyncReach
from koguma.sync.protocol.messages import Ack, Entries, EntriesWanted, HeldEntry, Message, Objects, Refusal
from koguma.sync.protocol.publisher import Publisher
from koguma.sync.protocol.subscriber import Subscriber


class PublishingSide:
    """What one side publishes, with the contents."""

    def __init__(self) -> None:
        self.catalog = SyncCatalog()
        self.contents: dict[Key, bytes] = {}
        self.revision = 0

    def put(self, key: Key, content: bytes, only_to: str = "") -> None:
        self.revision += 1
        self.contents[key] = content
        self.catalog.put(key, sums.content_hash(content), only_to)

    def remove(self, key: Key) -> None:
        self.revision += 1
        self.contents.pop(key, None)
        self.catalog.remove(key)


class SyncLink:
    """One zone's connection to a publishing side; what it has stored survives a reconnect."""

    def __init__(
        self, side: PublishingSide, zone: str, refuses: Callable[[bytes], bool] = lambda _content: False
    ) -> None:
        self.side = side
        self.zone = zone
        self.refuses = refuses
        self.stored: dict[Key, bytes] = {}
        self.n_bytes = 0
        self.keeps_surplus = False
        self.connect()

    def connect(self) -> None:
        """A new connection: what was on the way of the last one is lost."""
        self.down: deque[bytes] = deque()
        self.up: deque[bytes] = deque()
        self.publisher = Publisher(
            self.side.catalog, self._gets, self.side.contents.get, lambda: self.side.revision
        )
        held = {key: sums.content_hash(content) for key, content in self.stored.items()}
        self.subscriber = Subscriber(held, keeps_surplus=self.keeps_surplus)
        greeting = sums.packed(HeldEntry(*each) for each in held.items())
        self.n_bytes += len(greeting)
        wanted = self.publisher.compare(greeting)
        if wanted is not None:
            self._send(self.down, wanted)

    def _gets(self, reach: SyncReach) -> bool:
        return reach.zone != self.zone and reach.only_to in ("", self.zone)

    def _send(self, way: deque[bytes], message: Message) -> None:
        data = messages.encoded(message)
        self.n_bytes += len(data)
        way.append(data)

    def send(self) -> bool:
        """The publisher sends one batch if it has one, and may."""
        batch = self.publisher.next_batch()
        if batch is not None:
            self._send(self.down, batch)
        return batch is not None

    def deliver_down(self, *, twice: bool = False) -> bool:
        """The subscriber gets the next message, and answers."""
        if not self.down:
            return False
        data = self.down.popleft()
        for _ in range(1 + (twice and isinstance(messages.decoded(data), Objects))):
            self._take(messages.decoded(data))
        return True

    def _take(self, message: Message) -> None:
        if isinstance(message, EntriesWanted):
            for entries in self.subscriber.entries(message):
                self._send(self.up, entries)
            return
        assert isinstance(message, Objects)
        delivery = self.subscriber.receive(message)
        if delivery is None:
            return
        refused = [
            Refusal(key, sums.content_hash(content), "it is odd")
            for key, content in delivery.objects
            if self.refuses(content)
        ]
        for key in delivery.removed:
            del self.stored[key]
        self.stored |= {key: content for key, content in delivery.objects if not self.refuses(content)}
        self._send(self.up, self.subscriber.stored(delivery, refused))

    def deliver_up(self) -> bool:
        """The publisher gets the next message."""
        if not self.up:
            return False
        message = messages.decoded(self.up.popleft())
        if isinstance(message, Entries):
            self.publisher.receive_entries(message)
        else:
            assert isinstance(message, Ack)
            self.publisher.receive_ack(message)
        return True

    def settle(self) -> None:
        """Until nothing is left to do."""
        if self.publisher.is_too_late:
            self.connect()
        for _ in range(100_000):
            if not (self.deliver_down() or self.deliver_up() or self.send()):
                assert self.publisher.is_idle
                return
        raise AssertionError("it never ends")
