"""Catalog: what one side has to publish, in the order in which it changed, for all its subscribers at once.

A subscriber is a position in it. Only the last change of an object counts; a removal is remembered for a
while, and who was away for longer is compared anew.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Final

import msgspec

from koguma.model.resource import Key
from koguma.sync.protocol.messages import HeldEntry

REMOVALS_KEPT: Final = 20_000
_STALE_MIN: Final = 1000  # positions of earlier changes that are kept before they are swept


class Published(msgspec.Struct, frozen=True, gc=False):
    """An object that is published; `only_to` names the one zone that gets it, where there is one."""

    key: Key
    hash: bytes
    position: int
    only_to: str = ""

    @property
    def entry(self) -> HeldEntry:
        """Key and hash."""
        return HeldEntry(self.key, self.hash)


Audience = Callable[[Key, str], bool]  # whether a subscriber gets an object, by its key and `only_to`


class SyncCatalog:
    """All published objects; `position` is that of the newest change."""

    def __init__(self) -> None:
        self.position = 0
        self.oldest = 0  # removals up to this position may be forgotten
        self._objects: dict[Key, Published] = {}
        self._removed: dict[Key, Published] = {}  # in the order of their positions
        self._order: list[tuple[int, Key]] = []

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> Published | None:
        """The published object of a key."""
        return self._objects.get(key)

    def entries(self, audience: Audience) -> Iterator[HeldEntry]:
        """What a subscriber should have."""
        return (each.entry for key, each in self._objects.items() if audience(key, each.only_to))

    def put(self, key: Key, hash_: bytes, only_to: str = "") -> bool:
        """Publish an object, or a new version of it; returns whether that changes anything."""
        known = self._objects.get(key)
        if known is not None and (known.hash, known.only_to) == (hash_, only_to):
            return False
        self._removed.pop(key, None)
        self.position += 1
        self._objects[key] = Published(key, hash_, self.position, only_to)
        self._note(key)
        return True

    def remove(self, key: Key) -> bool:
        """Publish an object no longer; returns whether it was published."""
        known = self._objects.pop(key, None)
        if known is None:
            return False
        self.position += 1
        self._removed[key] = msgspec.structs.replace(known, position=self.position)
        self._note(key)
        while len(self._removed) > REMOVALS_KEPT:
            oldest = next(iter(self._removed))
            self.oldest = self._removed.pop(oldest).position
        return True

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
