"""Open watches: ends a watch as soon as whoever opened it may no longer have it.

A watch outlives the request's own check by hours. So the same questions are asked again, before every batch
that is sent and once a second while nothing is: is the token still valid and not revoked, does it still name
the same user, and does a rule still allow the watch.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from koguma.api.call import Call
from koguma.model.errors import KogumaError, Unauthenticated
from koguma.store.contract import Change
from koguma.store.watch import Watch

REVIEW_SECONDS: Final = 1.0
LIFE_SECONDS_MIN: Final = 1800


def life_seconds() -> float:
    """How long a watch lives at the most, if its client does not say: not all end together."""
    return LIFE_SECONDS_MIN * (1 + random.random())  # noqa: S311 - nobody gains by knowing it


class OpenWatch:
    """One watch: its position in the changes, and the right by which it is open."""

    def __init__(self, call: Call, feed: Watch, check: Callable[[], None]) -> None:
        self._call = call
        self._check_access = check
        self.feed = feed

    def check(self) -> None:
        """Raise Unauthenticated or Forbidden unless it may go on."""
        if self._call.identify() != self._call.user:
            raise Unauthenticated("the credentials of this watch now name somebody else; watch again")
        self._check_access()

    async def next_batch(self, seconds: float) -> list[Change]:
        """The next changes, if whoever watches may still see them."""
        changes = await self.feed.next_batch(seconds)
        if changes:
            self.check()
        return changes


class OpenWatches:
    """All watches that are open, in both forms of the API."""

    def __init__(self) -> None:
        self._watches: dict[int, OpenWatch] = {}

    def __len__(self) -> int:
        return len(self._watches)

    @contextmanager
    def opened(self, call: Call, feed: Watch, check: Callable[[], None]) -> Iterator[OpenWatch]:
        """A watch that is reviewed while the block runs."""
        watch = OpenWatch(call, feed, check)
        self._watches[id(watch)] = watch
        try:
            yield watch
        finally:
            del self._watches[id(watch)]

    def review(self) -> None:
        """End all watches that may not go on."""
        for watch in list(self._watches.values()):
            try:
                watch.check()
            except KogumaError as error:
                watch.feed.end(error)

    async def run(self) -> None:
        """Review once a second, until cancelled."""
        while True:
            await asyncio.sleep(REVIEW_SECONDS)
            self.review()
