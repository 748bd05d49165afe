"""Subscriber: receives what a publisher has, and knows what it holds of it.

What it holds follows from what is stored, so nothing is remembered of earlier connections. One who sees a
publisher with another history than before (restored from a backup, moved, new) keeps what that one no longer
has, until an operator agrees: `keeps_surplus`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from koguma.model.resource import Key
from koguma.sync.protocol import sums
from koguma.sync.protocol.messages import (
    BUCKETS,
    ENTRIES_MAX,
    Ack,
    BrokenProtocol,
    Entries,
    EntriesWanted,
    HeldEntry,
    Objects,
    Refusal,
    SyncedObject,
)


class Delivery(msgspec.Struct, frozen=True):
    """A batch that is to be stored, and then confirmed by `stored`."""

    number: int
    objects: tuple[SyncedObject, ...]
    removed: tuple[Key, ...]
    revision: int = 0
    transaction: str = ""


class Subscriber:
    """One direction of a connection, from the side that stores the objects."""

    def __init__(self, held: Mapping[Key, bytes], *, keeps_surplus: bool = False) -> None:
        self._held = dict(held)
        self.keeps_surplus = keeps_surplus
        self._number = 0
        self._has_told = False
        self.surplus: set[Key] = set()  # what the publisher does not have any more, and is kept

    def entries(self, wanted: EntriesWanted) -> Iterator[Entries]:
        """What is held in some buckets, in messages of limited size; a connection may ask once."""
        if self._has_told:
            raise BrokenProtocol("entries were asked for twice")
        if not all(0 <= each < BUCKETS for each in wanted.buckets):
            raise BrokenProtocol("there is no such bucket")
        self._has_told = True
        by_bucket: defaultdict[int, list[HeldEntry]] = defaultdict(list)
        for key, hash_ in self._held.items():
            by_bucket[sums.bucket(key)].append(HeldEntry(key, hash_))
        return _in_parts(entry for each in sorted(set(wanted.buckets)) for entry in by_bucket[each])

    def receive(self, batch: Objects) -> Delivery | None:
        """What is to be stored of a batch; None where it was there already."""
        if batch.number <= self._number:
            return None
        if batch.number != self._number + 1:
            raise BrokenProtocol(f"batch {batch.number} came after batch {self._number}")
        self._number = batch.number
        removed = [key for key in batch.removed if key in self._held]
        if batch.is_comparison and self.keeps_surplus:
            self.surplus.update(removed)
            removed = []
        self.surplus.difference_update(removed, (each.key for each in batch.objects))
        return Delivery(batch.number, batch.objects, tuple(removed), batch.revision, batch.transaction)

    def stored(self, delivery: Delivery, refused: Iterable[Refusal]) -> Ack:
        """A delivery is stored but for what was refused."""
        refusals = tuple(refused)
        not_stored = {each.key for each in refusals}
        for key in delivery.removed:
            self._held.pop(key, None)
        for key, content in delivery.objects:
            if key not in not_stored:
                self._held[key] = sums.content_hash(content)
        return Ack(delivery.number, refusals)

    @property
    def n_held(self) -> int:
        """How many objects of the publisher it holds."""
        return len(self._held)


def _in_parts(found: Iterator[HeldEntry]) -> Iterator[Entries]:
    part = tuple(islice(found, ENTRIES_MAX))
    while True:
        following = tuple(islice(found, ENTRIES_MAX))
        yield Entries(part, is_last=not following)
        if not following:
            return
        part = following
