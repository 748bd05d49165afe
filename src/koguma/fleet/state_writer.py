"""State writer: writes the states of this control plane's proxies as rows, for the other control planes.

Twice a second it writes what has changed since the last flush, and with it a sign of life; where nothing has
changed, the sign of life alone. A control plane that is alone on its store gives none.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final, Protocol

import msgspec
import structlog

from koguma.fleet.proxy_state import ProxyState
from koguma.fleet.zone_state import LocalZones, ZoneState, row_key
from koguma.model.resource import Key
from koguma.store.log import LogLost
from koguma.store.proxy_states import InstanceRow, ProxyStateTable, StateRow

FLUSH_SECONDS: Final = 0.5
_PAUSE_EVERY: Final = 200  # states, after which other tasks have a turn
_NEVER: Final = -1

_log = structlog.get_logger("koguma.fleet")


class InstanceData(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is said of a control plane in its row."""

    version: str = ""
    started_at: datetime | None = None
    address: str = ""
    written_at: datetime | None = None  # by its own clock


class OwnStates(Protocol):
    """The states that a control plane writes: of its proxies, or, on Global, of those of zones."""

    def __iter__(self) -> Iterator[Key]:
        """All proxies of which it knows a state."""

    def of(self, key: Key) -> ProxyState | None:
        """The state of a proxy."""

    def note(self, key: Key) -> None:
        """The state of a proxy is to be written again."""

    def take_changed(self) -> list[Key]:
        """The proxies that have changed since this was last asked."""

    def forget_gone(self, changed: Collection[Key]) -> list[Key]:
        """Proxies whose rows are to be removed; not those that have yet to be written."""


class StateWriter:
    """Writes the rows of one control plane."""

    def __init__(
        self, table: ProxyStateTable, instance: str, clock: Callable[[], datetime], *, beats: bool
    ) -> None:
        self._table = table
        self._instance = instance
        self._clock = clock
        self._beats = beats  # whether others need a sign of life
        self.data = InstanceData()
        self.local: OwnStates | None = None
        self.zones = LocalZones(clock)
        self.revision: Callable[[], int] = lambda: 0
        self._n_flushes = 0
        self._written = _NEVER  # the beat of the last flush that is known to be written
        self._unremoved: list[Key] = []  # rows of proxies that are forgotten

    async def run(self) -> None:
        """Write what changes, until cancelled."""
        while True:
            await self.flush()
            await asyncio.sleep(FLUSH_SECONDS)

    async def flush(self) -> None:
        """Write what has changed; where the store does not answer, it is written later."""
        local = self.local
        changed = local.take_changed() if local is not None else []
        removed = [*self._unremoved, *(local.forget_gone(changed) if local is not None else ())]
        self._unremoved = []
        zones, gone_zones = self.zones.take_changed()
        removed += gone_zones
        if not (changed or removed or zones or self._beats or self._written == _NEVER):
            return
        try:
            if self._written == _NEVER or not await self._write(changed, removed, zones):
                await self._begin()
        except LogLost as lost:
            if local is not None:
                for key in changed:
                    local.note(key)
            self._unremoved += removed
            self.zones.write_again()
            # That the store is lost is logged where it is read.
            _log.debug("states of proxies wait for the store", reason=str(lost))

    async def leave(self) -> None:
        """Say that this control plane stops."""
        if self._written != _NEVER:
            try:
                await self._table.leave(self._instance)
            except LogLost:  # the others notice it by themselves
                return

    async def _write(
        self, changed: Iterable[Key], removed: list[Key], zones: Mapping[Key, ZoneState]
    ) -> bool:
        row = self._next_row()
        rows = [*await self._rows(changed, row.version), *_zone_rows(zones, row.version)]
        is_written = await self._table.write(row, self._written, rows, removed)
        if is_written:
            self._written = row.beat
        return is_written

    async def _begin(self) -> None:
        """Write everything: this is the first flush, or what was written before is gone."""
        row = self._next_row()
        zones = {row_key(zone): state for zone, state in self.zones.report().items()}
        rows = [*await self._rows(self.local or (), row.version), *_zone_rows(zones, row.version)]
        await self._table.begin(row, rows)
        self._written = row.beat

    def _next_row(self) -> InstanceRow:
        """The row of the next flush; its number is never used again, since it may be written already."""
        self._n_flushes += 1
        data = msgspec.json.encode(msgspec.structs.replace(self.data, written_at=self._clock()))
        return InstanceRow(self._instance, self._n_flushes, self._n_flushes, self.revision(), data)

    async def _rows(self, keys: Iterable[Key], version: int) -> list[StateRow]:
        rows: list[StateRow] = []
        for number, key in enumerate(list(keys), 1):
            state = self.local.of(key) if self.local is not None else None
            if state is not None:
                rows.append(StateRow(key, version, encoded(state)))
            if number % _PAUSE_EVERY == 0:
                await asyncio.sleep(0)
        return rows


def _zone_rows(zones: Mapping[Key, ZoneState], version: int) -> list[StateRow]:
    return [StateRow(key, version, encoded(state)) for key, state in zones.items()]


def encoded(state: ProxyState | ZoneState) -> bytes:
    """A state as the data of its row."""
    return msgspec.json.encode(state)
