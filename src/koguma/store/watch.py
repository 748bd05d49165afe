"""Feed: the newest changes, kept in memory, and who waits for them.

A watcher holds a position and no queue, so a slow one costs nothing; waiters are kept by kind, so a
change wakes only those who asked for its kind. What has left the memory is read from the log.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from koguma.model.errors import KogumaError, Unavailable
from koguma.model.resource import Resource
from koguma.store.contract import Change
from koguma.store.log import LogLost

BUFFER_SIZE = 10_000
PAGE = 1_000
_NOTHING: Mapping[int, Resource] = MappingProxyType({})

# The log's `since`: changes after a revision, at most so many.
Since = Callable[[int, int], Awaitable[list[Change]]]


class Feed:
    """The last `size` changes, together and by kind, so that no watcher has to skip what others wait for."""

    def __init__(self, since: Since, size: int = BUFFER_SIZE) -> None:
        self._since = since
        self._size = size
        self._waiters: dict[str | None, set[asyncio.Future[None]]] = {}
        self.closed = False
        self.reset(0)

    def reset(self, revision: int) -> None:
        """Begin again: nothing up to this revision is in memory."""
        self.revision = revision
        self._floor = revision
        self._all: deque[Change] = deque()
        self._by_kind: dict[str, deque[Change]] = {}
        self._dropped: dict[str, int] = {}  # per kind, the newest revision that left the memory
        self._replaced: deque[Resource | None] = deque()  # what each of all changes replaced
        self._wake(tuple(self._waiters))

    def publish(self, changes: Sequence[Change], replaced: Mapping[int, Resource] = _NOTHING) -> None:
        """Add the next changes, with what they replaced, and wake who waits for their kinds."""
        for change in changes:
            self._all.append(change)
            self._replaced.append(replaced.get(change.revision))
            self._by_kind.setdefault(change.resource.kind, deque()).append(change)
            self.revision = change.revision
        while len(self._all) > self._size:
            oldest = self._all.popleft()
            kind = oldest.resource.kind
            self._by_kind[kind].popleft()
            self._dropped[kind] = oldest.revision
            self._replaced.popleft()
        if changes and self._waiters:
            self._wake({None, *(change.resource.kind for change in changes)})

    def replaced(self, revision: int) -> Resource | None:
        """What a change replaced, where it did and that is still in memory."""
        place = revision - self._all[0].revision if self._all else -1  # there is none between two revisions
        return self._replaced[place] if 0 <= place < len(self._replaced) else None

    def close(self) -> None:
        """Wake everybody for the last time."""
        self.closed = True
        self._wake(tuple(self._waiters))

    def watch(self, kinds: frozenset[str] | None, after: int) -> "Watch":
        """A reader of the changes after a revision, of these kinds or of all."""
        return Watch(self, kinds, after)

    def _wake(self, kinds: Iterable[str | None]) -> None:
        for kind in kinds:
            for waiter in self._waiters.pop(kind, ()):
                _end(waiter)

    def recent(self, kinds: frozenset[str] | None, after: int) -> list[Change] | None:
        """The changes after a revision, from memory; None where some have left it."""
        if kinds is None:
            newest_gone = self._floor if not self._all else self._all[0].revision - 1
            return _after(self._all, after) if after >= newest_gone else None
        if any(after < self._dropped.get(kind, self._floor) for kind in kinds):
            return None
        found = [change for kind in kinds for change in _after(self._by_kind.get(kind, ()), after)]
        return found if len(kinds) == 1 else sorted(found, key=_revision)

    async def stored(self, kinds: frozenset[str] | None, after: int) -> tuple[list[Change], int]:
        """The next page from the log, and how far it reaches; never further than the state in memory."""
        try:
            page = await self._since(after, PAGE)
        except LogLost as lost:
            raise Unavailable(f"the store does not answer, so the watch cannot go on: {lost}") from lost
        known = [change for change in page if change.revision <= self.revision]
        reach = known[-1].revision if known else after
        return [change for change in known if kinds is None or change.resource.kind in kinds], reach

    async def wait(
        self,
        kinds: frozenset[str] | None,
        waiter: asyncio.Future[None],
        timeout: float | None,  # noqa: ASYNC109 - its end is no error
    ) -> None:
        """Return after the next change of one of these kinds, when `waiter` is done, or at the timeout."""
        loop = asyncio.get_running_loop()
        # A timer of our own: asyncio's ways to wait with a limit cost a thousand watchers much more.
        timer = None if timeout is None else loop.call_later(timeout, _end, waiter)
        names: Iterable[str | None] = (None,) if kinds is None else kinds
        for name in names:
            self._waiters.setdefault(name, set()).add(waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            for name in names:
                self._leave(name, waiter)

    def _leave(self, name: str | None, waiter: asyncio.Future[None]) -> None:
        waiting = self._waiters.get(name)
        if waiting is not None:
            waiting.discard(waiter)
            if not waiting:
                del self._waiters[name]


class Watch:
    """A position in the log. `position` is the revision up to which everything was handed out."""

    def __init__(self, feed: Feed, kinds: frozenset[str] | None, after: int) -> None:
        self._feed = feed
        self._kinds = kinds
        self._waiter: asyncio.Future[None] | None = None
        self._ended: KogumaError | None = None
        self.position = after

    def end(self, error: KogumaError) -> None:
        """Hand out nothing any more: the reader gets this error, also one that waits."""
        self._ended = error
        if self._waiter is not None:
            _end(self._waiter)

    @property
    def is_over(self) -> bool:
        """Whether nothing comes any more, because the store closes."""
        return self._feed.closed

    async def next_batch(self, timeout: float | None = None) -> list[Change]:  # noqa: ASYNC109 - its end is no error
        """The next changes in revision order; empty when none came in time; Gone when they are not kept."""
        ends_at = None if timeout is None else time.monotonic() + timeout
        while not (batch := await self._ready()):
            left = None if ends_at is None else ends_at - time.monotonic()
            if left is not None and left <= 0:
                break
            self._waiter = asyncio.get_running_loop().create_future()
            await self._feed.wait(self._kinds, self._waiter, left)
        return batch

    async def _ready(self) -> list[Change]:
        while True:
            if self._ended is not None:
                raise self._ended
            if self._feed.closed:
                raise Unavailable("the store is closing; watch again in a moment")
            recent = self._feed.recent(self._kinds, self.position)
            if recent is not None:
                batch = recent[:PAGE]
                complete = len(batch) == len(recent)
                self.position = max(self.position, self._feed.revision) if complete else batch[-1].revision
                return batch
            batch, self.position = await self._feed.stored(self._kinds, self.position)
            if batch:
                return batch


def _after(changes: Sequence[Change], revision: int) -> list[Change]:
    """The changes after a revision; read from the newest backwards, since watchers are seldom far behind."""
    found: list[Change] = []
    for change in reversed(changes):
        if change.revision <= revision:
            break
        found.append(change)
    found.reverse()
    return found


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _revision(change: Change) -> int:
    return change.revision
