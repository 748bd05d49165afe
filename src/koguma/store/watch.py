"""Watches: the newest changes, kept in memory, and the watchers that wait for more.

A watch holds a position and no queue, so a slow one costs nothing. Waiting watches are grouped by kind, so a
change wakes only those of its kind. Changes that have left the memory are read from the log.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from koguma.model.errors import KogumaError, StoreLost, Unavailable
from koguma.model.resource import Resource
from koguma.store.contract import Change
from koguma.store.log import LogLost, log_replaced

BUFFER_SIZE = 10_000
PAGE = 1_000
_NOTHING: Mapping[int, Resource] = MappingProxyType({})

# The log's `since`: changes after a revision, up to a number of them.
Since = Callable[[int, int], Awaitable[list[Change]]]


class ChangeBuffer:
    """The last `size` changes, together and by kind, so that a watch need not skip changes of other kinds."""

    def __init__(self, since: Since, size: int = BUFFER_SIZE) -> None:
        self._since = since
        self._size = size
        self._waiters: dict[str | None, set[asyncio.Future[None]]] = {}  # None: of every kind
        self.is_closed = False
        self.n_resets = 0
        self.reset(0)

    def reset(self, revision: int) -> None:
        """Start again: nothing up to this revision is in memory."""
        self.n_resets += 1
        self.revision = revision
        self._floor = revision
        self._all: deque[Change] = deque()
        self._by_kind: dict[str, deque[Change]] = {}
        self._dropped: dict[str, int] = {}  # by kind, the newest revision that left the memory
        self._replaced: deque[Resource | None] = deque()  # what each change in `_all` replaced
        self._wake(tuple(self._waiters))

    def publish(self, changes: Sequence[Change], replaced: Mapping[int, Resource] = _NOTHING) -> None:
        """Add the next changes, with what they replaced, and wake the watches of their kinds."""
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
        """What a change replaced, if anything and if that is still in memory."""
        index = revision - self._all[0].revision if self._all else -1  # revisions have no gaps
        return self._replaced[index] if 0 <= index < len(self._replaced) else None

    def close(self) -> None:
        """End all watches."""
        self.is_closed = True
        self._wake(tuple(self._waiters))

    def watch(self, kinds: frozenset[str] | None, after: int, *, of_one_log: bool = False) -> "Watch":
        """A watch on the changes after a revision, of these kinds or of all."""
        return Watch(self, kinds, after, self.n_resets if of_one_log else None)

    def _wake(self, kinds: Iterable[str | None]) -> None:
        for kind in kinds:
            for waiter in self._waiters.pop(kind, ()):
                _wake(waiter)

    def recent(self, kinds: frozenset[str] | None, after: int) -> list[Change] | None:
        """The changes after a revision, from memory; None where some have left it."""
        if kinds is None:
            newest_dropped = self._floor if not self._all else self._all[0].revision - 1
            return _after(self._all, after) if after >= newest_dropped else None
        if any(after < self._dropped.get(kind, self._floor) for kind in kinds):
            return None
        changes = [change for kind in kinds for change in _after(self._by_kind.get(kind, ()), after)]
        return changes if len(kinds) == 1 else sorted(changes, key=_revision)

    async def stored(self, kinds: frozenset[str] | None, after: int) -> tuple[list[Change], int]:
        """The next page from the log and its last revision; never newer than the state in memory."""
        try:
            page = await self._since(after, PAGE)
        except LogLost as lost:
            raise StoreLost(f"the store does not answer, so the watch cannot go on: {lost}") from lost
        known = [change for change in page if change.revision <= self.revision]
        last = known[-1].revision if known else after
        return [change for change in known if kinds is None or change.resource.kind in kinds], last

    async def wait(
        self,
        kinds: frozenset[str] | None,
        waiter: asyncio.Future[None],
        timeout: float | None,  # noqa: ASYNC109 - reaching it is no error
    ) -> None:
        """Return after the next change of one of these kinds, when `waiter` is done, or at the timeout."""
        loop = asyncio.get_running_loop()
        # A timer of our own: with a thousand watches asyncio's timeouts cost much more.
        timer = None if timeout is None else loop.call_later(timeout, _wake, waiter)
        names: Iterable[str | None] = (None,) if kinds is None else kinds
        for name in names:
            self._waiters.setdefault(name, set()).add(waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            for name in names:
                self._remove(name, waiter)

    def _remove(self, name: str | None, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters.get(name)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[name]


class Watch:
    """A position in the log. `position` is the revision up to which all changes were delivered.

    With a number of resets it ends at the next one, even where it missed nothing by the numbers alone.
    """

    def __init__(
        self, buffer: ChangeBuffer, kinds: frozenset[str] | None, after: int, n_resets: int | None = None
    ) -> None:
        self._buffer = buffer
        self._n_resets = n_resets
        self._kinds = kinds
        self._waiter: asyncio.Future[None] | None = None
        self._error: KogumaError | None = None
        self.position = after

    def end(self, error: KogumaError) -> None:
        """Deliver nothing more: the reader gets this error, even while it waits."""
        self._error = error
        if self._waiter is not None:
            _wake(self._waiter)

    @property
    def is_replaced(self) -> bool:
        """Whether all was read again since, of a log that may be another one: then nothing more comes."""
        return self._n_resets not in (None, self._buffer.n_resets)

    @property
    def is_over(self) -> bool:
        """Whether the watch has ended because the store closes."""
        return self._buffer.is_closed

    async def next_batch(self, timeout: float | None = None) -> list[Change]:  # noqa: ASYNC109 - reaching it is no error
        """The next changes in revision order; empty at the timeout; Gone if they are no longer kept."""
        ends_at = None if timeout is None else time.monotonic() + timeout
        while not (batch := await self._available()):
            left = None if ends_at is None else ends_at - time.monotonic()
            if left is not None and left <= 0:
                break
            self._waiter = asyncio.get_running_loop().create_future()
            await self._buffer.wait(self._kinds, self._waiter, left)
        return batch

    async def _available(self) -> list[Change]:
        while True:
            if self._error is not None:
                raise self._error
            if self._buffer.is_closed:
                raise Unavailable("the store is closing; watch again in a moment")
            if self.is_replaced:
                raise log_replaced(self.position)
            recent = self._buffer.recent(self._kinds, self.position)
            if recent is not None:
                batch = recent[:PAGE]
                is_complete = len(batch) == len(recent)
                newest = max(self.position, self._buffer.revision)
                self.position = newest if is_complete else batch[-1].revision
                return batch
            batch, self.position = await self._buffer.stored(self._kinds, self.position)
            if batch:
                return batch


def _after(changes: Sequence[Change], revision: int) -> list[Change]:
    """The changes after a revision; searched from the newest, since watches are rarely far behind."""
    newer: list[Change] = []
    for change in reversed(changes):
        if change.revision <= revision:
            break
        newer.append(change)
    newer.reverse()
    return newer


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _revision(change: Change) -> int:
    return change.revision
