"""Catalog: what one side has to publish, in the order in which it changed, for all its subscribers at once.

A subscriber is a position in it. Only the last change of an object counts; a removal is remembered for a
while, and who was away for longer is compared anew.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from koguma.model.resource import Key
from koguma.sync.protocol import sums
from koguma.sync.protocol.messages import HeldEntry
from koguma.sync.protocol.sums import BucketSums

REMOVALS_KEPT: Final = 20_000
_STALE_MIN: Final = 1000  # positions of earlier changes that are kept before they are swept


class SyncReach(NamedTuple):
    """What decides who gets an object: its kind, its zone, and the zone that alone gets it, if any."""

    kind: str
    zone: str
    only_to: str = ""


class Published(msgspec.Struct, frozen=True, gc=False):
    """An object that is published."""

    key: Key
    hash: bytes
    position: int
    only_to: str = ""

    @property
    def entry(self) -> HeldEntry:
        """Key and hash."""
        return HeldEntry(self.key, self.hash)

    @property
    def reach(self) -> SyncReach:
        """What decides who gets it."""
        return SyncReach(self.key.kind, self.key.zone, self.only_to)


Audience = Callable[[SyncReach], bool]  # whether a subscriber gets objects of a reach


class SyncCatalog:
    """All published objects; `position` is that of the newest change."""

    def __init__(self) -> None:
        self.position = 0
        self.oldest = 0  # removals up to this position may be forgotten
        self._objects: dict[Key, Published] = {}
        self._removed: dict[Key, Published] = {}  # in the order of their positions
        self._order: list[tuple[int, Key]] = []
        # Both spare each subscriber that connects a look at all objects.
        self._sums: dict[SyncReach, BucketSums] = {}
        self._by_bucket: dict[int, dict[Key, Published]] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> Published | None:
        """The published object of a key."""
        return self._objects.get(key)

    def __iter__(self) -> Iterator[Key]:
        """The keys of all published objects."""
        return iter(self._objects)

    def sums(self, audience: Audience) -> bytes:
        """The sums of what a subscriber should have."""
        total = BucketSums()
        for reach, part in self._sums.items():
            if audience(reach):
                total.add_all(part)
        return total.packed()

    def entries(self, audience: Audience, buckets: Iterable[int]) -> Iterator[HeldEntry]:
        """What a subscriber should have in some buckets."""
        for bucket in buckets:
            for published in self._by_bucket.get(bucket, {}).values():
                if audience(published.reach):
                    yield published.entry

    def put(self, key: Key, hash_: bytes, only_to: str = "") -> bool:
        """Publish an object, or a new version of it; returns whether that changes anything."""
        known = self._objects.get(key)
        if known is not None and (known.hash, known.only_to) == (hash_, only_to):
            return False
        self._removed.pop(key, None)
        if known is not None:
            self._unsum(known)
        self.position += 1
        published = self._objects[key] = Published(key, hash_, self.position, only_to)
        self._sums.setdefault(published.reach, BucketSums()).add(published.entry)
        self._by_bucket.setdefault(sums.bucket(key), {})[key] = published
        self._note(key)
        return True

    def remove(self, key: Key) -> bool:
        """Publish an object no longer; returns whether it was published."""
        known = self._objects.pop(key, None)
        if known is None:
            return False
        self._unsum(known)
        self.position += 1
        self._removed[key] = msgspec.structs.replace(known, position=self.position)
        self._note(key)
        while len(self._removed) > REMOVALS_KEPT:
            oldest = next(iter(self._removed))
            self.oldest = self._removed.pop(oldest).position
        return True

    def forget_removals(self) -> None:
        """Let every subscriber that is behind be compared anew, instead of being told what was removed."""
        self._removed.clear()
        self.oldest = self.position

    def _unsum(self, published: Published) -> None:
        bucket = sums.bucket(published.key)
        del self._by_bucket[bucket][published.key]
        if not self._by_bucket[bucket]:
            del self._by_bucket[bucket]
        part = self._sums[published.reach]
        part.subtract(published.entry)
        if part.is_empty:
            del self._sums[published.reach]

    def _note(self, key: Key) -> None:
        self._order.append((self.position, key))
        if len(self._order) > 2 * (len(self._objects) + len(self._removed)) + _STALE_MIN:
            self._order = [noted for noted in self._order if self._is_current(*noted)]

    def _is_current(self, position: int, key: Key) -> bool:
        change = self._objects.get(key) or self._removed.get(key)
        return change is not None and change.position == position

    def changes(self, after: int, limit: int) -> list[tuple[int, Key]]:
        """The next changes after a position, with theirs; whether it is still published says `get`."""
        found: list[tuple[int, Key]] = []
        for index in range(bisect_right(self._order, after, key=itemgetter(0)), len(self._order)):
            if self._is_current(*self._order[index]):
                found.append(self._order[index])
                if len(found) == limit:
                    break
        return found
