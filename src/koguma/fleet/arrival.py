"""Arrival: whether a revision of the store has reached every proxy that it touches, at all control planes.

A proxy has a revision when it has acknowledged the whole configuration that was compiled from it, or from a
later one, or when its control plane has compiled it and it changes nothing for the proxy. So a revision has
arrived when every control plane has compiled it and no proxy lacks it. What is not known counts as lacking.

Envoys go on without a control plane. So a proxy that is not connected lacks what was written since it left;
after an hour it counts as switched off, as it does for states (`state_mirror`).
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from itertools import chain
from typing import Final

import msgspec

from koguma.application.context import Context
from koguma.fleet import lack_view
from koguma.fleet.gate import is_registered
from koguma.fleet.lack_view import Lack
from koguma.fleet.proxy_progress import ChangeSpan, ProxyProgress, RefusedSpan, change_at
from koguma.fleet.proxy_state import InstanceState, ProxyState
from koguma.fleet.shared_states import SharedStates
from koguma.identity import proxy_types
from koguma.model.resource import Key

ABSENT_MAX: Final = timedelta(hours=1)
LOOK_SECONDS: Final = 0.1
_PAUSE_SHARE: Final = 10  # how many times longer than a look the pause after it is
_NEVER: Final = -1.0


class Arrival(msgspec.Struct, frozen=True):
    """How far a revision has come."""

    revision: int
    n_proxies: int  # that count
    n_affected: int  # of these, they were offered something since the revision, or lack it
    lacking: tuple[ProxyProgress, ...]
    instances: tuple[str, ...] = ()  # control planes that have not compiled it yet
    problem: str = ""  # why the proxies of other control planes are not known

    @property
    def is_complete(self) -> bool:
        """Whether it has arrived."""
        return not (self.lacking or self.instances or self.problem)


class FleetGaps(msgspec.Struct, frozen=True):
    """Which revisions some proxy may lack, in as few values as decide that for any revision."""

    n_proxies: int
    has: int  # every control plane and every proxy has everything up to this, but for these spans
    spans: frozenset[RefusedSpan]
    is_open: bool  # nothing arrives: of a proxy it is not known what it lacks

    def lacks(self, revision: int, kri: str = "") -> bool:
        """Whether a revision of an object has not arrived; where there are no proxies, nothing has."""
        if self.is_open or not self.n_proxies or revision > self.has:
            return True
        change = change_at(revision)
        return any(span.is_about(change, (kri,)) for span in self.spans)


class Arrivals:
    """Answers for all control planes of the store, from memory."""

    def __init__(
        self,
        context: Context,
        states: SharedStates,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._states = states
        self._monotonic = monotonic
        self._looked_at = _NEVER
        self._look_seconds = 0.0  # how long the last look took
        self._counted: tuple[ProxyProgress, ...] = ()
        self._gaps: FleetGaps | None = None  # of that look

    def of(
        self,
        change: ChangeSpan,
        objects: Collection[str] = (),
        *,
        is_counted: Callable[[Key], bool] = lambda _key: True,
        absent: bool = True,
    ) -> Arrival:
        """How far a change is, and these objects (KRIs) in it, among the proxies that count.

        Without `absent`, only connected ones do.
        """
        proxies = [
            each for each in self._look() if (absent or each.disconnected_at is None) and is_counted(each.key)
        ]
        return Arrival(
            change.revision,
            len(proxies),
            sum(each.is_affected(change, objects) for each in proxies),
            tuple(sorted((each for each in proxies if each.lacks(change, objects)), key=_urgency)),
            tuple(self._lagging(change.revision)),
            self._problem(),
        )

    @property
    def newest(self) -> int:
        """The newest revision that this control plane has read."""
        return self._context.state.revision

    def gaps(self) -> FleetGaps:
        """What is lacked in the whole fleet."""
        proxies = self._look()
        if self._gaps is None:
            spans = {span for each in proxies for span in each.refused}
            spans |= {RefusedSpan(0, each.offered) for each in proxies if each.lacks_parts}
            compiled = (instance.revision for instance in self._serving())
            self._gaps = FleetGaps(
                len(proxies),
                min(chain((each.has for each in proxies), compiled), default=0),
                frozenset(spans),
                is_open=bool(self._problem()) or any(each.is_stuck for each in proxies),
            )
        return self._gaps

    def lack(
        self, progress: ProxyProgress, change: ChangeSpan, objects: Collection[str] = ()
    ) -> tuple[ProxyState | None, Lack]:
        """The state of a proxy, and why it lacks a change."""
        state = self._states.of(progress.key)
        return state, lack_view.lack_of(state, change, objects, was_lost=progress.was_lost)

    async def pause(self) -> None:
        """Wait until another look is worth it."""
        await asyncio.sleep(max(LOOK_SECONDS, _PAUSE_SHARE * self._look_seconds))

    def _look(self) -> tuple[ProxyProgress, ...]:
        """The progress of all proxies that count; one look serves all who ask in the same moment."""
        began_at = self._monotonic()
        age_max = max(LOOK_SECONDS / 2, _PAUSE_SHARE * self._look_seconds)
        if self._looked_at == _NEVER or began_at - self._looked_at >= age_max:
            self._counted, self._gaps = tuple(self._all()), None
            self._looked_at = self._monotonic()
            self._look_seconds = self._looked_at - began_at
        return self._counted

    def _all(self) -> Iterator[ProxyProgress]:
        progress, now = self._states.progress(), self._states.clock()
        yield from (each for each in progress.values() if self._counts(each, now))
        # Its proxy may run, and no control plane has told of it yet: all of them have restarted.
        for key, connected_at in self._registered():
            if key not in progress:
                yield ProxyProgress(key, connected_at, 0, disconnected_at=connected_at)

    def _counts(self, progress: ProxyProgress, now: datetime) -> bool:
        if progress.disconnected_at is None:
            return True
        is_stored = self._context.state.get(progress.key) is not None
        return is_stored and (progress.was_lost or now - progress.disconnected_at <= ABSENT_MAX)

    def _registered(self) -> Iterator[tuple[Key, datetime]]:
        zone, now = self._context.control_plane.zone, self._states.clock()
        for proxy_type in proxy_types.SERVED.values():
            for proxy in self._context.state.listed(proxy_type.kind):
                if is_registered(proxy) and proxy.zone == zone:
                    yield proxy.key, now

    def _lagging(self, revision: int) -> Iterator[str]:
        """The living control planes that have not compiled a revision."""
        return (instance.id for instance in self._serving() if instance.revision < revision)

    def _serving(self) -> Iterator[InstanceState]:
        """The living control planes that have proxies, or may.

        One without an Envoy to read the schema from compiles nothing, has no proxies, and says revision 0.
        """
        for instance in self._states.instances():
            if instance.is_here:
                serves = self._states.serves_proxies
            else:
                serves = not instance.is_gone and (instance.revision > 0 or instance.n_proxies > 0)
            if serves:
                yield instance

    def _problem(self) -> str:
        if self._states.is_known:
            return ""
        return self._states.problem or "the proxies of other control planes are not known yet"


def _urgency(progress: ProxyProgress) -> tuple[bool, bool, int, Key]:
    """What people should see first where not all are shown."""
    is_refusal = bool(progress.refused) or progress.is_stuck
    return not is_refusal, progress.disconnected_at is None, progress.has, progress.key
