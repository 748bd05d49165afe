"""Publisher: sends one subscriber what it lacks, and then what changes.

It keeps no copy of what the subscriber has: only its position in the catalog, what is on its way, and what
was refused. At most a window of bytes is on its way, so a slow subscriber gets fewer, newer versions.

Since versions are skipped, a position alone does not tell what the subscriber has: an object that it lacks
may have moved behind it. It has everything up to a revision once it was sent all that there was at one
moment, and has acknowledged all of that.
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


class _SentBatch(NamedTuple):
    """A batch that is not acknowledged yet: its objects with the hashes of their contents, None: removed."""

    number: int
    n_bytes: int
    hashes: dict[Key, bytes | None]

    @property
    def kinds(self) -> Counter[str]:
        """How many objects of each kind."""
        return Counter(key.kind for key in self.hashes)


class Publisher:
    """One direction of a connection, from the side that has the objects."""

    def __init__(
        self,
        catalog: SyncCatalog,
        audience: Audience,
        content: Content,
        revision: Callable[[], int] = lambda: 0,  # up to which the catalog has everything; 0: not known
    ) -> None:
        self.refused: dict[Key, Refusal] = {}
        self.refused_after: dict[Key, int] = {}  # of each of these: the revision that it had before
        self.is_refusal_forgotten = False  # there were more than are remembered
        self.has_revision = 0  # it has stored everything up to this one, but for what it refused
        self._revision = revision
        # With the batch of this number it was sent everything up to this revision.
        self._all_sent: deque[tuple[int, int]] = deque()
        self._catalog = catalog
        self._audience = audience
        self._content = content
        self._position = catalog.position
        self._buckets: frozenset[int] | None = None  # of which the entries were asked for
        self._missing: dict[Key, bytes] = {}  # what it should have in these, less what it said that it has
        self._surplus: list[Key] = []
        self._is_cut = False  # there was more surplus than one comparison takes away
        self._lacks: deque[Key] = deque()
        self._gone: deque[Key] = deque()
        self._number = 0
        self._on_the_way: deque[_SentBatch] = deque()
        self._sent, self._answered, self._n_refused = Counter[str](), Counter[str](), Counter[str]()
        self._bytes_on_the_way = 0

    # Comparing.

    def compare(self, held: bytes) -> EntriesWanted | None:
        """Begin with the sums of what the subscriber holds; None where it has everything."""
        self._position = self._catalog.position
        differing = sorted(sums.differing(self._catalog.sums(self._audience), held))
        if not differing:
            return None
        self._missing = dict(self._catalog.entries(self._audience, differing))
        self._buckets = frozenset(differing)
        return EntriesWanted(tuple(differing))

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
                else:
                    self._is_cut = True
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
        batch = self._batch()
        if self.is_all_sent and (revision := self._revision()):
            self._note_all_sent(revision)
        return batch

    def _note_all_sent(self, revision: int) -> None:
        if not self._on_the_way:
            self._all_sent.clear()
            self.has_revision = revision
            return
        if self._all_sent and self._all_sent[-1][0] == self._number:
            self._all_sent.pop()
        self._all_sent.append((self._number, revision))

    def _batch(self) -> Objects | None:
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
            return self._batch() if is_comparison else None
        self._number += 1
        hashes = {key: sums.content_hash(content) for key, content in objects}
        batch = _SentBatch(self._number, n_bytes, {**dict.fromkeys(removed), **hashes})
        self._sent += batch.kinds
        self._on_the_way.append(batch)
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
                if published is None or not self._audience(published.reach):
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
        refused = {(each.key, each.hash): each for each in ack.refused}
        while self._on_the_way and self._on_the_way[0].number <= ack.number:
            batch = self._on_the_way.popleft()
            self._bytes_on_the_way -= batch.n_bytes
            self._answered += batch.kinds
            for key, hash_ in batch.hashes.items():
                self._note_answer(key, refused.get((key, hash_)) if hash_ is not None else None)
        while self._all_sent and self._all_sent[0][0] <= ack.number:
            _, self.has_revision = self._all_sent.popleft()

    def _note_answer(self, key: Key, refusal: Refusal | None) -> None:
        if refusal is None:
            self._forget_refusal(key)
            return
        self._n_refused[key.kind] += 1
        if len(self.refused) < REFUSALS_MAX or key in self.refused:
            self.refused[key] = refusal
            self.refused_after.setdefault(key, self.has_revision)
        else:
            self.is_refusal_forgotten = True

    def _forget_refusal(self, key: Key) -> None:
        self.refused.pop(key, None)
        self.refused_after.pop(key, None)

    @property
    def n_lacking(self) -> int:
        """How many changes the subscriber has not got yet, about: several of one object count as several."""
        on_the_way = sum(len(batch.hashes) for batch in self._on_the_way)
        return len(self._lacks) + len(self._gone) + self._catalog.position - self._position + on_the_way

    def counts(self) -> Mapping[str, SentCount]:
        """What was sent over this connection, by kind."""
        return {
            kind: SentCount(n_sent, self._answered[kind] - self._n_refused[kind], self._n_refused[kind])
            for kind, n_sent in sorted(self._sent.items())
        }

    @property
    def is_all_sent(self) -> bool:
        """Whether the subscriber was sent everything, and told of everything that it has too much."""
        is_comparing = self.is_comparing or self._lacks or self._gone or self._is_cut
        return not is_comparing and self._position == self._catalog.position

    @property
    def is_idle(self) -> bool:
        """Whether the subscriber has everything, as far as is known."""
        return not (self.is_comparing or self._lacks or self._gone or self._on_the_way) and (
            self._position == self._catalog.position
        )
