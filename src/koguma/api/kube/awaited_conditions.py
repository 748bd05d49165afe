"""Awaited conditions: which objects of a watch were sent without the condition that all proxies have them.

The condition comes without a revision, so the log of changes does not tell of it. While a watch has such
objects, it looks again now and then, and the seldomer the longer nothing happens; else it costs nothing.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

from koguma.fleet.arrival import FleetGaps
from koguma.fleet.programmed import ProgrammedConditions
from koguma.model.resource import Key, Resource
from koguma.store.contract import Change, Op
from koguma.store.state import State

LOOK_SECONDS: Final = 0.1
LOOK_SECONDS_MAX: Final = 2.0
_GROWTH: Final = 1.3
# A client lists first and watches then, maybe at another control plane, which has seen it arrive earlier.
_RECENT: Final = timedelta(seconds=10)


class AwaitedConditions:
    """Which objects of a watch wait for their condition."""

    def __init__(self, programmed: ProgrammedConditions, state: Callable[[], State]) -> None:
        self._programmed = programmed
        self._state = state
        self._waiting: dict[Key, None] = {}
        self._gaps: FleetGaps | None = None  # by which they were last looked at
        self._seconds = LOOK_SECONDS

    def start(self, shown: Iterable[Resource]) -> None:
        """Begin with objects that the client has, and that it may have got without the condition."""
        for resource in shown:
            arrived = self._programmed.of(resource)
            if arrived is None or self._programmed.clock() - arrived.seen_at < _RECENT:
                self._waiting[resource.key] = None

    def note(self, changes: Iterable[Change]) -> None:
        """These were sent."""
        for change in changes:
            self._seconds = LOOK_SECONDS
            self._gaps = None
            if change.op is Op.DELETE:
                self._waiting.pop(change.resource.key, None)
            else:
                self._waiting[change.resource.key] = None

    @property
    def seconds(self) -> float | None:
        """After which time to look again; None where nothing waits."""
        return self._seconds if self._waiting else None

    def arrived(self) -> list[Resource]:
        """The objects whose condition is there now; each is told once."""
        gaps = self._programmed.gaps() if self._waiting else None
        if gaps is None or gaps == self._gaps:
            self._seconds = min(self._seconds * _GROWTH, LOOK_SECONDS_MAX)
            return []
        self._gaps = gaps
        stored = [resource for key in self._waiting if (resource := self._state().get(key)) is not None]
        arrived = [resource for resource in stored if self._programmed.of(resource) is not None]
        for resource in arrived:
            del self._waiting[resource.key]
        return arrived
