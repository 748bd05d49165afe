"""Reported states: the states of the proxies of zones, as these report them to this Global control plane.

A zone is believed about its own proxies alone. While it is not connected, nothing is known of them: they
count as disconnected from the moment at which the zone was.
"""

from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import Final

import msgspec
import structlog

from koguma.application.context import Context
from koguma.fleet.proxy_state import ProxyState
from koguma.identity.proxy_types import EGRESS, INGRESS, SIDECAR
from koguma.model import names
from koguma.model.proxy_report import STATE_BYTES_MAX, ProxyReport
from koguma.model.resource import Key

STATES_MAX: Final = 100_000  # of one zone
BYTES_MAX: Final = 64 * 1024 * 1024  # of all states of one zone, as they came
_KINDS: Final = frozenset(each.kind for each in (SIDECAR, INGRESS, EGRESS))

_log = structlog.get_logger("koguma.fleet")


class _ReportingZone:
    """What one zone has reported."""

    def __init__(self) -> None:
        self.states: dict[Key, ProxyState] = {}
        self.sizes: dict[Key, int] = {}
        self.n_bytes = 0
        self.revision = 0
        self.has_warned = False

    def remove(self, key: Key) -> None:
        self.states.pop(key, None)
        self.n_bytes -= self.sizes.pop(key, 0)


class ReportedStates:
    """The proxies of all zones that are, or were, connected to this control plane."""

    def __init__(self, context: Context, clock: Callable[[], datetime]) -> None:
        self._context = context
        self._clock = clock
        self._zones: dict[str, _ReportingZone] = {}
        self._disconnected: set[Key] = set()
        self._changed: dict[Key, None] = {}
        self._removed: list[Key] = []
        self._connected: frozenset[Key] | None = None

    # What zones say.

    def receive(self, zone: str, report: ProxyReport) -> None:
        """Take note of a report; what is not of the zone, or cannot be read, is left out."""
        known = self._zones.setdefault(zone, _ReportingZone())
        known.revision = report.revision
        n_refused = sum(not self._take(zone, known, key, data) for key, data in report.states)
        for key in report.removed:
            if key in known.states:
                known.remove(key)
                self._disconnected.discard(key)
                self._removed.append(key)
                self._connected = None
        if n_refused and not known.has_warned:
            known.has_warned = True
            _log.warning("states of proxies were not taken", zone=zone, proxies=n_refused)

    def _take(self, zone: str, known: _ReportingZone, key: Key, data: bytes) -> bool:
        room = BYTES_MAX - known.n_bytes + known.sizes.get(key, 0)
        is_new = key not in known.states
        if key.zone != zone or key.kind not in _KINDS or not len(data) <= min(room, STATE_BYTES_MAX):
            return False
        if is_new and len(known.states) >= STATES_MAX:
            return False
        try:
            state = msgspec.json.decode(data, type=ProxyState)
        except (msgspec.MsgspecError, RecursionError):
            return False
        if state.key != key:
            return False
        known.n_bytes += len(data) - known.sizes.get(key, 0)
        known.sizes[key] = len(data)
        known.states[key] = state
        (self._disconnected.discard if state.is_connected else self._disconnected.add)(key)
        self._connected = None
        self.note(key)
        return True

    def disconnect(self, zone: str) -> None:
        """A zone is gone: nothing is known of its proxies any more."""
        known = self._zones.get(zone)
        if known is None:
            return
        now = self._clock()
        for key, state in known.states.items():
            if state.is_connected:
                known.states[key] = msgspec.structs.replace(state, disconnected_at=now, behind_since=None)
                self._disconnected.add(key)
                self.note(key)
        self._connected = None

    def revision(self, zone: str) -> int:
        """What the synced proxies of a zone have, of the zone's store."""
        known = self._zones.get(zone)
        return known.revision if known is not None else 0

    # What the control planes of Global's store are told.

    def __iter__(self) -> Iterator[Key]:
        for known in self._zones.values():
            yield from known.states

    @property
    def connected(self) -> frozenset[Key]:
        """The proxies that are connected in their zones; the same set object until that changes."""
        if self._connected is None:
            self._connected = frozenset(key for key in self if key not in self._disconnected)
        return self._connected

    def of(self, key: Key) -> ProxyState | None:
        """The state of a proxy, by the names that Global has for it."""
        known = self._zones.get(key.zone)
        state = known.states.get(key) if known is not None else None
        if known is None or state is None:
            return None
        stored, kind = self._context.state.get(key), self._context.kinds[key.kind]
        core_name = stored.core_name if stored else names.hashed(key.mesh, key.name, key.zone, key.namespace)
        identifier = str(stored.kri(kind.short) or "") if stored else ""
        revision = state.revision if state.behind_since else known.revision
        return msgspec.structs.replace(state, core_name=core_name, identifier=identifier, revision=revision)

    def note(self, key: Key) -> None:
        """Something about a proxy has changed."""
        self._changed[key] = None

    def take_changed(self) -> list[Key]:
        """The proxies that have changed since this was last asked."""
        changed, self._changed = list(self._changed), {}
        return changed

    def forget_gone(self, changed: Collection[Key]) -> list[Key]:
        """Forget disconnected proxies whose objects are gone, except those that have yet to be written."""
        waiting = set(changed)
        gone = [key for key in self._disconnected if key not in waiting and not self._is_stored(key)]
        for key in gone:
            self._zones[key.zone].remove(key)
            self._disconnected.discard(key)
        removed, self._removed = self._removed, []
        return [*gone, *(key for key in removed if key not in waiting)]

    def _is_stored(self, key: Key) -> bool:
        return self._context.state.get(key) is not None
