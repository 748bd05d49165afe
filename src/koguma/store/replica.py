"""Replica: the log's current state in the memory of this process, kept up to date.

Changes come from our own writes and from those of other control planes, both in revision order. Known
revisions are skipped, so it does not matter which comes first.
"""

import asyncio
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog
from msgspec.structs import replace

from koguma.model.errors import Gone
from koguma.model.resource import Resource
from koguma.store import structural_sharing
from koguma.store.contract import Change
from koguma.store.log import Log, LogLost
from koguma.store.state import State
from koguma.store.watch import ChangeBuffer

HINT_SECONDS = 0.25  # the log is polled; a hint only makes it faster
RETRY_SECONDS_MAX = 1.0

_logger = structlog.get_logger("koguma.store")


class Replica:
    """The state, and a buffer of its last changes."""

    def __init__(self, log: Log, changes_in_memory: int) -> None:
        self.state = State()
        self.buffer = ChangeBuffer(log.since, changes_in_memory)
        # By transaction of unknown outcome: its changes that have turned up in the log.
        self.unconfirmed: dict[str, list[Change]] = {}
        self._log = log

    async def load(self) -> None:
        """Start again from the current state. Watches that missed changes get Gone when they read on."""
        before = self.state.revision
        with _without_garbage_collection():
            snapshot = await self._log.load()
        if self.state.revision == before:  # else somebody else has updated it meanwhile
            self.state.reset(snapshot)
            self.buffer.reset(snapshot.revision)

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply the changes that are new, and publish them to watches."""
        new: list[Change] = []
        replaced: dict[int, Resource] = {}
        for logged in changes:
            if logged.revision <= self.state.revision:
                continue
            change, before = logged, self.state.get(logged.resource.key)
            if before is not None:
                replaced[change.revision] = before
                change = _shared(before, change)
            new.append(change)
            self.state.apply(change)
            if change.transaction in self.unconfirmed:
                self.unconfirmed[change.transaction].append(change)
        self.buffer.publish(new, replaced)

    async def catch_up(self) -> None:
        """Read and apply the changes of the log that we do not have yet."""
        try:
            self.apply(await self._log.since(self.state.revision))
        except Gone:  # compacted away, or the log was replaced
            await self.load()

    async def follow(self) -> None:
        """Keep up with other writers until cancelled, through outages too."""
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
            except Exception:  # without this loop the control plane would see no change of others
                _logger.exception("store cannot be followed; reading all of it again")
                pause, refresh = RETRY_SECONDS_MAX, self.load
            else:
                if pause:
                    _logger.info("store is back", revision=self.state.revision)
                pause, refresh = 0.0, self.catch_up


def _shared(before: Resource, change: Change) -> Change:
    """The change, sharing equal parts with the revision before it."""
    resource = structural_sharing.with_shared_parts(before, change.resource)
    return change if resource is change.resource else replace(change, resource=resource)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Loading makes many objects and no garbage; running the cyclic collector would triple the start time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
