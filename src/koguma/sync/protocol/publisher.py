"""Publisher: sends one subscriber what it lacks, and then what changes.

It keeps no copy of what the subscriber has: only its position in the catalog, what is on its way, and what
was refused. At most a window of bytes is on its way, so a slow subscriber gets fewer, newer versions.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from koguma.model.resource import Key
from koguma.sync.protocol import sums
from koguma.sync.protocol.catalog import Audience, SyncCatalog
from koguma.sync.protocol.messages import (
    BATCH_OBJECTS,
    Ack,
    BrokenProtocol,
    Entries,
    EntriesWanted,
    Objects,
    Refusal,
    SyncedObject,
)

BATCH_BYTES: Final = 256 * 1024
WINDOW_BYTES: Final = 1024 * 1024
REFUSALS_MAX: Final = 1000  # that are remembered; what is refused beyond these is tried again
SURPLUS_MAX: Final = 100_000  # keys that one comparison takes away; the next one finds the rest
_OVERHEAD_BYTES: Final = 200  # of an object's key, or of a removal

Content = Callable[[Key], bytes | None]  # of a published object; None: it is not there any more


class SentCount(NamedTuple):
    """How many objects of a kind were sent, and how many of these were stored, or refused."""

    sent: int = 0
    acknowledged: int = 0
    refused: int = 0


class Publisher:
    """One direction of a connection, from the side that has the objects."""

    def __init__(self, catalog: SyncCatalog, audience: Audience, content: Content) -> None:
        self.refused: dict[Key, Refusal] = {}
        self._catalog = catalog
        self._audience = audience
        self._content = content
        self._position = catalog.position
        self._buckets: frozenset[int] | None = None  # of which the entries were asked for
        self._missing: dict[Key, bytes] = {}  # what it should have in these, less what it said that it has
        self._surplus: list[Key] = []
        self._lacks: deque[Key] = deque()
        self._gone: deque[Key] = deque()
        self._number = 0
        # Number, bytes and kinds of each batch.
        self._on_the_way: deque[tuple[int, int, Counter[str]]] = deque()
        self._sent, self._answered, self._n_refused = Counter[str](), Counter[str](), Counter[str]()
        self._bytes_on_the_way = 0

    # Comparing.

    def compare(self, held: bytes) -> EntriesWanted | None:
        """Begin with the sums of what the subscriber holds; None where it has everything."""
        self._position = self._catalog.position
        published = list(self._catalog.entries(self._audience))
        differing = frozenset(sums.differing(sums.packed(published), held))
        if not differing:
            return None
        self._missing = {key: hash_ for key, hash_ in published if sums.bucket(key) in differing}
        self._buckets = differing
        return EntriesWanted(tuple(sorted(differing)))

    def receive_entries(self, message: Entries) -> None:
        """Take note of what the subscriber holds where sums differed."""
        if self._buckets is None:
            raise BrokenProtocol("entries were sent that nobody asked for")
        for key, hash_ in message.entries:
            if sums.bucket(key) not in self._buckets:
                raise BrokenProtocol("an entry was sent of a bucket that nobody asked for")
            if self._catalog.get(key) is None or key not in self._missing:
                if len(self._surplus) < SURPLUS_MAX:
                    self._surplus.append(key)
            elif self._missing[key] == hash_:
                del self._missing[key]
        if message.is_last:
            self._buckets = None
            self._lacks, self._gone = deque(self._missing), deque(self._surplus)
            self._missing, self._surplus = {}, []

    @property
    def is_comparing(self) -> bool:
        """Whether it waits for entries."""
        return self._buckets is not None

    @property
    def is_too_late(self) -> bool:
        """Whether removals were forgotten that the subscriber has not got: it has to be compared again."""
        return not self.is_comparing and self._position < self._catalog.oldest

    # Sending.

    def next_batch(self) -> Objects | None:
        """The next batch to send; None while there is nothing new, or enough is on its way."""
        if self.is_comparing or self._bytes_on_the_way >= WINDOW_BYTES:
            return None
        is_comparison = bool(self._lacks or self._gone)
        objects, removed, n_bytes = [], [], 0
        for key, content in self._next_objects():
            if content is None:
                removed.append(key)
            else:
                objects.append(SyncedObject(key, content))
            n_bytes += _OVERHEAD_BYTES + len(content or b"")
            if n_bytes >= BATCH_BYTES or len(objects) + len(removed) >= BATCH_OBJECTS:
                break
        if not objects and not removed:  # what the comparison found may be gone by now
            return self.next_batch() if is_comparison else None
        self._number += 1
        kinds = Counter(key.kind for key in (*removed, *(each.key for each in objects)))
        self._sent += kinds
        self._on_the_way.append((self._number, n_bytes, kinds))
        self._bytes_on_the_way += n_bytes
        return Objects(self._number, tuple(objects), tuple(removed), is_comparison)

    def _next_objects(self) -> Iterator[tuple[Key, bytes | None]]:
        """What is to be sent next, with its content or None for a removal.

        What the comparison found comes first, and apart from what changes later.
        """
        if self._lacks or self._gone:
            while self._gone:
                yield self._gone.popleft(), None
            while self._lacks:
                if (found := self._sendable(key := self._lacks.popleft())) is not None:
                    yield key, found
            return
        while changes := self._catalog.changes(self._position, BATCH_OBJECTS):
            for position, key in changes:
                self._position = position
                published = self._catalog.get(key)
                if published is None or not self._audience(key, published.only_to):
                    self.refused.pop(key, None)
                    yield key, None
                elif (found := self._sendable(key)) is not None:
                    yield key, found

    def _sendable(self, key: Key) -> bytes | None:
        """The content of an object, unless it is gone, or was refused just as it is."""
        published, refused = self._catalog.get(key), self.refused.get(key)
        if published is None or (refused is not None and refused.hash == published.hash):
            return None
        return self._content(key)

    def receive_ack(self, ack: Ack) -> None:
        """A batch, and all before it, are stored."""
        if ack.number > self._number:
            raise BrokenProtocol(f"batch {ack.number} was acknowledged before it was sent")
        while self._on_the_way and self._on_the_way[0][0] <= ack.number:
            _, n_bytes, kinds = self._on_the_way.popleft()
            self._bytes_on_the_way -= n_bytes
            self._answered += kinds
        for refusal in ack.refused:
            published = self._catalog.get(refusal.key)
            is_known = published is not None and self._audience(refusal.key, published.only_to)
            if is_known:
                self._n_refused[refusal.key.kind] += 1
            if is_known and (len(self.refused) < REFUSALS_MAX or refusal.key in self.refused):
                self.refused[refusal.key] = refusal

    @property
    def n_lacking(self) -> int:
        """How many changes the subscriber has not got yet, about: several of one object count as several."""
        on_the_way = sum(kinds.total() for *_, kinds in self._on_the_way)
        return len(self._lacks) + len(self._gone) + self._catalog.position - self._position + on_the_way

    def counts(self) -> Mapping[str, SentCount]:
        """What was sent over this connection, by kind."""
        return {
            kind: SentCount(n_sent, self._answered[kind] - self._n_refused[kind], self._n_refused[kind])
            for kind, n_sent in sorted(self._sent.items())
        }

    @property
    def is_idle(self) -> bool:
        """Whether the subscriber has everything, as far as is known."""
        return not (self.is_comparing or self._lacks or self._gone or self._on_the_way) and (
            self._position == self._catalog.position
        )
