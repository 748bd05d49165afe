"""Zone state: what a Global control plane knows of a zone over its last connection, as a plain value.

Each Global control plane writes those of the zones that are, or were, connected to it as rows beside those of
proxies, so that any of them answers for all.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from koguma.kinds.zone import KIND
from koguma.model.resource import Key
from koguma.xds.contract import ResponseCount

_FIGURES_SECONDS: Final = 2.0  # between two rows of a zone of which only figures have changed


class ZoneError(msgspec.Struct, frozen=True):
    """Why a connection of a zone ended."""

    at: datetime
    reason: str


class ZoneState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A zone over its last connection to one Global control plane."""

    zone: str
    instance: str  # of Global
    zone_instance: str = ""
    subscription: str = ""
    connected_at: datetime
    disconnected_at: datetime | None = None
    last_message_at: datetime | None = None
    version: str = ""
    config: str = ""  # of the zone's control plane, secrets masked
    revision: int = 0  # of its store: what its synced proxies have
    n_lacking: int = 0  # changes that it has not got yet
    behind_since: datetime | None = None
    counts: Mapping[str, ResponseCount] = {}  # of objects that it was sent, by kind
    n_refused: int = 0  # objects that either side refused, and that have not changed since
    refusal: str = ""  # the first of these, and why
    last_error: ZoneError | None = None

    @property
    def is_connected(self) -> bool:
        """Whether it has a stream to that control plane."""
        return self.disconnected_at is None

    def behind_seconds(self, now: datetime) -> float:
        """For how long it lacks something."""
        return max((now - self.behind_since).total_seconds(), 0.0) if self.behind_since else 0.0


def row_key(zone: str) -> Key:
    """The key of the row of a zone."""
    return Key(KIND.name, "", "", "", zone)


def offline(zone: str, since: datetime | None) -> str:
    """That a zone is offline, and since when."""
    when = f" since {since:%Y-%m-%dT%H:%M:%SZ}" if since is not None else ""
    return f'zone "{zone}" is offline{when}'


def offline_problem(offline_zones: Iterable[tuple[str, datetime | None]]) -> str:
    """Why the states of some proxies are not known; empty where all are."""
    words = [offline(zone, since) for zone, since in offline_zones]
    return f"{'; '.join(words)}: how the proxies there are is not known" if words else ""


class LocalZones:
    """The zones that are, or were, connected to this control plane, and which rows of them are to be written.

    `report` tells how they are now.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self.report: Callable[[], Mapping[str, ZoneState]] = dict
        self._written: dict[str, tuple[datetime, ZoneState]] = {}

    def take_changed(self) -> tuple[dict[Key, ZoneState], list[Key]]:
        """The zones whose rows are to be written now, and those whose rows are to be removed."""
        now, zones = self._clock(), self.report()
        gone = [row_key(zone) for zone in self._written if zone not in zones]
        self._written = {zone: known for zone, known in self._written.items() if zone in zones}
        changed = {zone: state for zone, state in zones.items() if self._is_due(state, now)}
        self._written |= {zone: (now, state) for zone, state in changed.items()}
        return {row_key(zone): state for zone, state in changed.items()}, gone

    def _is_due(self, state: ZoneState, now: datetime) -> bool:
        known = self._written.get(state.zone)
        if known is None or _without_figures(known[1]) != _without_figures(state):
            return True
        return known[1] != state and (now - known[0]).total_seconds() >= _FIGURES_SECONDS

    def write_again(self) -> None:
        """Rows that were taken are not written."""
        self._written = {}


def _without_figures(state: ZoneState) -> ZoneState:
    return msgspec.structs.replace(
        state, last_message_at=None, revision=0, n_lacking=0, behind_since=None, counts={}
    )
