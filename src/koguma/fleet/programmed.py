"""Programmed: which objects every proxy has, for the condition that `kubectl wait` waits for.

It is computed when an object is shown, and never stored: a status would be a revision for each write, and
another one for whoever compares what is stored with files. It is shown from the moment on in which the
revision of the object has arrived, and then for as long as that revision stands, whoever connects later. So
it is never about an older version of the object, not even where only labels have changed.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final, NamedTuple

from koguma.fleet.arrival import Arrivals, FleetGaps
from koguma.model.kind import Kinds
from koguma.model.resource import Key, Resource

_KEPT_MAX: Final = 100_000


class ArrivedObject(NamedTuple):
    """The revision of an object that has arrived, and when that was seen here."""

    revision: int
    seen_at: datetime


class ProgrammedConditions:
    """What this control plane has seen arrive; after a restart it looks again."""

    def __init__(
        self, arrivals: Callable[[], Arrivals | None], kinds: Kinds, clock: Callable[[], datetime]
    ) -> None:
        self._arrivals = arrivals
        self._kinds = kinds
        self.clock = clock
        self._arrived: dict[Key, ArrivedObject] = {}

    def gaps(self) -> FleetGaps | None:
        """What is lacked now; an equal value while nothing has changed."""
        arrivals = self._arrivals()
        return arrivals.gaps() if arrivals is not None else None

    def of(self, resource: Resource) -> ArrivedObject | None:
        """When an object of such a kind, as it is, was first seen to have arrived; None if it has not."""
        known = self._arrived.get(resource.key)
        if known is not None and known.revision == resource.revision:
            return known
        gaps = self.gaps()
        kri = resource.kri(self._kinds[resource.kind].short)
        if gaps is None or gaps.lacks(resource.revision, str(kri or "")):
            return None
        if len(self._arrived) >= _KEPT_MAX:  # mostly deleted objects
            self._arrived.clear()
        arrived = self._arrived[resource.key] = ArrivedObject(resource.revision, self.clock())
        return arrived
