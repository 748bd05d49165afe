"""Mirror: the log's current state in this process, kept up to date.

Two sides feed it: our own writes, and what other control planes wrote. Both bring changes in revision
order, and what is known already is skipped, so it does not matter who is first.
"""

import asyncio
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog
from msgspec.structs import replace

from koguma.model.errors import Gone
from koguma.model.resource import Resource
from koguma.store import sharing
from koguma.store.contract import Change
from koguma.store.log import Log, LogLost
from koguma.store.state import State
from koguma.store.watch import Feed

HINT_SECONDS = 0.25  # polling is the truth; a hint only makes it faster
RETRY_SECONDS_MAX = 1.0

_logger = structlog.get_logger("koguma.store")


class Mirror:
    """The state, and the feed of its last changes."""

    def __init__(self, log: Log, changes_in_memory: int) -> None:
        self.state = State()
        self.feed = Feed(log.since, changes_in_memory)
        self.awaited: dict[str, list[Change]] = {}  # what arrived of transactions whose outcome is unknown
        self._log = log

    async def load(self) -> None:
        """Begin again from what is current. Watchers that missed something are told when they read on."""
        before = self.state.revision
        with _no_collection():
            loaded = await self._log.load()
        if self.state.revision == before:  # else somebody has brought it on meanwhile
            self.state.reset(loaded)
            self.feed.reset(loaded.revision)

    def take(self, changes: Sequence[Change]) -> None:
        """Apply those changes that are new, and publish them."""
        news: list[Change] = []
        replaced: dict[int, Resource] = {}
        for given in changes:
            if given.revision <= self.state.revision:
                continue
            change, before = given, self.state.get(given.resource.key)
            if before is not None:
                replaced[change.revision] = before
                change = _on_top(before, change)
            news.append(change)
            self.state.apply(change)
            if change.transaction in self.awaited:
                self.awaited[change.transaction].append(change)
        self.feed.publish(news, replaced)

    async def catch_up(self) -> None:
        """Read what the log has more than we do."""
        try:
            self.take(await self._log.since(self.state.revision))
        except Gone:  # away for longer than the log remembers
            await self.load()

    async def follow(self) -> None:
        """Keep up with other writers until cancelled; an outage is waited out."""
        pause = 0.0
        refresh = self.catch_up
        while True:
            try:
                await (asyncio.sleep(pause) if pause else self._log.wait_hint(HINT_SECONDS))
                await refresh()
            except LogLost as lost:
                if not pause:
                    _logger.warning("store lost", reason=str(lost))
                pause = min(2 * pause or HINT_SECONDS, RETRY_SECONDS_MAX)
            except Exception:  # one that stopped would leave this control plane blind
                _logger.exception("store cannot be followed; reading all of it again")
                pause, refresh = RETRY_SECONDS_MAX, self.load
            else:
                if pause:
                    _logger.info("store is back", revision=self.state.revision)
                pause, refresh = 0.0, self.catch_up


def _on_top(before: Resource, change: Change) -> Change:
    resource = sharing.built_on(before, change.resource)
    return change if resource is change.resource else replace(change, resource=resource)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Many objects at once and no garbage among them: to look for some would triple the time of a start."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
