"""Announcements: when connected proxies get what has changed.

A change that comes alone goes out at once. After one for many proxies the next waits until it had time to
reach them, so that changes that come together are compiled together.

Each proxy that connects is an endpoint for all others. Where thousands connect at the same time, pushing each
to all others would cost more than everything else, and grow with the square of their number. So while there
is a crowd of proxies that wait for their first configuration, what the control plane itself adds because of
them (endpoints, generated services, statuses) waits: after each announcement as long as the crowd has been
coming by then, but no longer than a minute. So an endpoint is sent to each a few times, however many
come; and once more when all have come. Whatever takes something away, and whatever people write, does not
wait for that, and takes with it what waits.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from koguma.access.user import SYSTEM
from koguma.core.build import network
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.store.contract import Change, Op

PAUSE_SECONDS_PER_PROXY: Final = 0.00025
PAUSE_SECONDS_MAX: Final = 5.0
QUIET_SECONDS: Final = 1.0  # after the last proxy joined, got its first configuration, or was stored
# For additions, before it is quiet.
ADDITION_SECONDS_PER_PROXY: Final = 0.002
ADDITION_SECONDS_MAX: Final = 5.0
# For additions, while there is a crowd: so many proxies without their first configuration, at least.
CROWD_MIN: Final = 8
CROWD_SHARE: Final = 0.01  # of all proxies
CROWD_SECONDS_MAX: Final = 60.0
# That proxies of a crowd are waited for before a round, so that what they share is built once for several.
GATHERING_SECONDS_PER_PROXY: Final = 0.001
GATHERING_SECONDS_MAX: Final = 0.2
ARRIVAL_SECONDS_MAX: Final = 120.0  # after which a proxy that is still not synced is no part of a crowd
_PROXY_KINDS: Final = frozenset({"Dataplane"})


class Announcements:
    """Decides when changes are compiled and pushed; times are those of the event loop."""

    def __init__(self) -> None:
        self._is_urgent = True
        self._arriving: dict[Key, float] = {}  # proxies without a first configuration, since when
        self._arrived_at = -QUIET_SECONDS  # when a proxy joined, or got its first configuration
        self._proxies_changed_at = -QUIET_SECONDS  # in the store
        self._crowd_since: float | None = None  # until the first announcement after it
        self._announced_at = 0.0
        self._pause_until = 0.0
        self._additions_at = 0.0

    # What happens.

    def join(self, proxy: Key, now: float) -> None:
        """A proxy waits for its first configuration."""
        self._arriving.pop(proxy, None)  # so that they stay in the order of their arrival
        self._arriving[proxy] = now
        self._arrived_at = now

    def settle(self, proxy: Key, now: float) -> bool:
        """A proxy has acknowledged all that it was offered; whether it was the last that others wait for."""
        if self._arriving.pop(proxy, None) is None:
            return False
        self._arrived_at = now
        return not self._arriving

    def leave(self, proxy: Key) -> None:
        """A proxy has left."""
        self._arriving.pop(proxy, None)

    def note(
        self, changes: Collection[Change], replaced: Callable[[int], Resource | None], now: float
    ) -> None:
        """The store has changed."""
        if any(change.resource.kind in _PROXY_KINDS for change in changes):
            self._proxies_changed_at = now  # those of other control planes too
        if not self._is_urgent:
            self._is_urgent = not all(is_patient(change, replaced(change.revision)) for change in changes)

    def hurry(self) -> None:
        """Something that is not in the store has changed, or it is not known what has."""
        self._is_urgent = True

    # When it goes out.

    def due_at(self, now: float, n_proxies: int) -> float:
        """When the changes so far go out, if nothing else happens before."""
        if self._is_urgent:
            return self._pause_until
        at = self._additions_at
        quiet_at = max(self._arrived_at, self._proxies_changed_at) + QUIET_SECONDS
        if self.is_crowded(now, n_proxies) and self._crowd_since is None:
            self._crowd_since = now
        if self._crowd_since is not None:
            at = self._crowd_due_at(self._crowd_since, n_proxies)
            quiet_at = max(quiet_at, self._additions_at)  # an announcement slows down those that come
        return max(self._pause_until, min(at, quiet_at))

    def _crowd_due_at(self, since: float, n_proxies: int) -> float:
        """When what a crowd adds goes out: when it has come, else when it has been coming twice as long."""
        if not self._arriving:  # the last ones are about to be stored as ready
            return self._arrived_at + min(n_proxies * ADDITION_SECONDS_PER_PROXY, QUIET_SECONDS)
        last = max(self._announced_at, since)
        return max(self._additions_at, last + min(last - since, CROWD_SECONDS_MAX))

    def is_crowded(self, now: float, n_proxies: int) -> bool:
        """Whether many proxies wait for their first configuration."""
        while self._arriving:
            proxy, since = next(iter(self._arriving.items()))
            if since + ARRIVAL_SECONDS_MAX > now:
                break
            del self._arriving[proxy]
        return len(self._arriving) >= max(CROWD_MIN, CROWD_SHARE * n_proxies)

    def gathering_seconds(self) -> float:
        """How long to wait for more proxies before those that have come get their first configuration."""
        if self._is_urgent or len(self._arriving) < CROWD_MIN:
            return 0.0
        return min(len(self._arriving) * GATHERING_SECONDS_PER_PROXY, GATHERING_SECONDS_MAX)

    def begin(self) -> None:
        """Changes are compiled from here on: those that are noted later are not part of it."""
        self._is_urgent = False

    def finish(self, now: float, n_changed: int, n_proxies: int) -> None:
        """They are compiled, and change something for so many proxies."""
        if not self.is_crowded(now, n_proxies):
            self._crowd_since = None
        if n_changed:
            self._announced_at = now
            self._pause_until = now + min(n_changed * PAUSE_SECONDS_PER_PROXY, PAUSE_SECONDS_MAX)
            self._additions_at = now + min(n_changed * ADDITION_SECONDS_PER_PROXY, ADDITION_SECONDS_MAX)


def is_patient(change: Change, before: Resource | None) -> bool:
    """Whether a change may wait while many proxies connect: it only adds something, or counts."""
    if change.author != SYSTEM or change.op is Op.DELETE or change.error:
        return False
    if change.op is Op.CREATE:
        return True
    after = change.resource
    if before is None or before.labels != after.labels:
        return False
    if after.kind not in _PROXY_KINDS:
        return bool(before.spec == after.spec)
    is_alike = before.spec == after.spec or _without_states(before.spec) == _without_states(after.spec)
    return is_alike and network.ready_sections(before) <= network.ready_sections(after)


def _without_states(spec: Mapping[str, Json]) -> Json:
    """A Dataplane's spec without what says whether its inbounds are ready."""
    networking = spec.get("networking") or {}
    inbounds = [
        {name: value for name, value in inbound.items() if name not in ("state", "health")}
        for inbound in networking.get("inbound") or ()
    ]
    return {**spec, "networking": {**networking, "inbound": inbounds}}
