"""State mirror: the states of the proxies of other control planes, as these last wrote them, in memory.

It polls: which control planes there are, and of each the rows that are newer than those it has. A control
plane whose beat stands still is gone, and its proxies count as disconnected. Only time in which this process
really looked counts for that: one that was paused itself, or had no store, has seen nothing.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final

import msgspec
import structlog

from koguma.fleet.proxy_progress import ProxyProgress, progress_of
from koguma.fleet.proxy_state import InstanceState, ProxyState
from koguma.fleet.state_writer import InstanceData
from koguma.fleet.zone_state import ZoneState, row_key
from koguma.kinds.zone import KIND as ZONE_KIND
from koguma.model.resource import Key
from koguma.store.log import LogLost
from koguma.store.proxy_states import LEFT, InstanceRow, ProxyStateTable

POLL_SECONDS: Final = 0.25
GONE_SECONDS: Final = 1.5  # without a new beat; there are two of them in a second
LOST_SECONDS: Final = 2.0  # without an answer of the store, from when on answers are called old
REMOVAL_SECONDS: Final = 60.0  # after which the rows of a control plane that is gone are removed
REMOVAL_SECONDS_MAX: Final = 3600.0  # where they still say when a proxy was last connected
ALONE_POLL_SECONDS: Final = 30.0  # where nobody else can write
_FORGET_EVERY: Final = 40  # polls

_log = structlog.get_logger("koguma.fleet")


class MirroredInstance:
    """Another control plane: its row, its proxies, and for how long its beat stands still."""

    def __init__(self, row: InstanceRow) -> None:
        self.row = row
        self.data = InstanceData()
        self.version = -1  # of the last flush that was read
        self.states: dict[Key, ProxyState] = {}
        self.zones: dict[str, ZoneState] = {}
        self.silent_seconds = 0.0
        self.is_gone = False
        self.was_seen_alive = False  # by this process; who died before it started is no news
        self.is_remembered = True  # its proxies may still come back

    @property
    def connected(self) -> set[Key]:
        """The proxies that are connected by its own word."""
        return {key for key, state in self.states.items() if state.is_connected}

    def see(self, row: InstanceRow, seconds: float, *, is_alone: bool) -> None:
        """Note a row that was read, after so many seconds in which somebody looked."""
        self.was_seen_alive |= row.beat not in (self.row.beat, LEFT)
        self.silent_seconds = 0.0 if row.beat != self.row.beat else self.silent_seconds + seconds
        self.row = row
        self.data = _data(row.data)
        self.is_gone = is_alone or row.beat == LEFT or self.silent_seconds >= GONE_SECONDS
        self.is_remembered = not self.is_gone or self.silent_seconds < REMOVAL_SECONDS


class StateMirror:
    """The states of the proxies of other control planes than `instance`."""

    def __init__(
        self,
        table: ProxyStateTable,
        instance: str,
        clock: Callable[[], datetime],
        is_stored: Callable[[Key], bool],
        *,
        is_alone: bool,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._instance = instance
        self._clock = clock
        self._is_alone = is_alone  # no other process can use the store now: whoever wrote to it is gone
        self._poll_seconds = ALONE_POLL_SECONDS if is_alone else POLL_SECONDS
        self._n_polls = 0
        self._is_stored = is_stored  # the object of a proxy
        self._monotonic = monotonic
        self._polled_at: float | None = None
        self._has_read_all = False
        self._lost_since: datetime | None = None
        self._lost_at = 0.0
        self.instances: dict[str, MirroredInstance] = {}
        self.generation = 0  # counts changes
        self.on_change: Callable[[frozenset[str]], None] = lambda _meshes: None  # of the proxies of meshes
        self.on_states: Callable[[Iterable[Key]], None] = lambda _keys: None

    async def run(self) -> None:
        """Follow the others, until cancelled."""
        while True:
            try:
                await self.poll()
            except LogLost as lost:
                self._note_lost(lost)
            await asyncio.sleep(self._poll_seconds)

    @property
    def problem(self) -> str:
        """Why states may be old; empty where they are not."""
        if self._lost_since is None or self._monotonic() - self._lost_at < LOST_SECONDS:
            return ""
        return (
            f"the store has not answered since {self._lost_since:%Y-%m-%dT%H:%M:%SZ}: proxies of other"
            " control planes are shown as they were then"
        )

    @property
    def is_known(self) -> bool:
        """Whether the last look at the others succeeded, and there was one."""
        return self._has_read_all and self._lost_since is None

    def _note_lost(self, lost: LogLost) -> None:
        if self._lost_since is None:
            self._lost_since, self._lost_at = self._clock(), self._monotonic()
            _log.warning("states of other control planes' proxies cannot be read", reason=str(lost))

    async def poll(self) -> None:
        """Read what is new."""
        rows = await self._table.instances()
        now = self._monotonic()
        # A poll that comes much too late says that this process stood still, and not the others.
        seconds = 0.0 if self._polled_at is None else min(now - self._polled_at, 2 * self._poll_seconds)
        self._polled_at = now
        touched: set[str] = set()
        for row in rows:
            if row.instance != self._instance:
                touched |= await self._see(row, seconds)
        for name in self.instances.keys() - {row.instance for row in rows}:
            removed = self.instances.pop(name)
            touched |= _meshes(removed)
            self.on_states(removed.states)
        self._has_read_all = True
        if self._lost_since is not None:
            self._lost_since = None
            touched.add("")
            _log.info("states of other control planes' proxies are read again")
        if touched:
            self.generation += 1
            self.on_change(frozenset(touched))
        await self._remove_gone()
        self._n_polls += 1
        if self._n_polls % _FORGET_EVERY == 0:
            self._forget()

    async def _see(self, row: InstanceRow, seconds: float) -> set[str]:
        """Note a row and read what is new of that control plane; the meshes whose proxies changed."""
        other = self.instances.get(row.instance)
        if other is None:
            other = MirroredInstance(row)
        was_gone, was_remembered = other.is_gone, other.is_remembered
        states = await self._table.states(row.instance, other.version) if row.version != other.version else []
        self.instances[row.instance] = other
        other.see(row, seconds, is_alone=self._is_alone)
        other.version = max([other.version, row.version, *(state.version for state in states)])
        if was_gone != other.is_gone and other.was_seen_alive:
            gone = "a control plane has stopped" if row.beat == LEFT else "a control plane is gone"
            words = gone if other.is_gone else "a control plane is back"
            _log.info(words, instance=row.instance, proxies=len(other.states))
        is_same = was_gone == other.is_gone and was_remembered == other.is_remembered
        touched = set() if is_same else _meshes(other)
        self.on_states([stored.key for stored in states] if is_same else [*other.states])
        n_unreadable = 0
        for stored in states:
            try:
                if stored.key.kind == ZONE_KIND.name:
                    other.zones[stored.key.name] = msgspec.json.decode(stored.data, type=ZoneState)
                    continue
                other.states[stored.key] = msgspec.json.decode(stored.data, type=ProxyState)
            except msgspec.MsgspecError:  # of a later version of Koguma; it hides no other
                other.states.pop(stored.key, None)
                n_unreadable += 1
            touched.add(stored.key.mesh)
        if n_unreadable:
            _log.warning("states of proxies cannot be read", instance=row.instance, proxies=n_unreadable)
        return touched

    async def _remove_gone(self) -> None:
        """Remove the rows of control planes that are gone for long; several may do that at once."""
        for name, other in list(self.instances.items()):
            # It says when proxies and zones were last connected.
            is_needed = any(map(self._is_stored, (*other.states, *map(row_key, other.zones))))
            if other.is_gone and other.silent_seconds >= (
                REMOVAL_SECONDS_MAX if is_needed else REMOVAL_SECONDS
            ):
                await self._table.remove(name, other.row.beat)
                _log.info("rows of a control plane that is gone are removed", instance=name)
                self.instances.pop(name)
                self.generation += 1

    def of(self, key: Key) -> Iterator[ProxyState]:
        """The states that other control planes have of a proxy; of one that is gone, as disconnected."""
        for other in self.instances.values():
            state = other.states.get(key)
            if state is not None:
                yield _as_seen(state, other)

    def progress(self) -> Iterator[ProxyProgress]:
        """How far each proxy of other control planes is, by the last word of its own."""
        for other in self.instances.values():
            for state in other.states.values():
                seen = progress_of(_as_seen(state, other))
                yield seen._replace(was_lost=True) if other.is_gone and state.is_connected else seen

    def zone(self, name: str) -> Iterator[ZoneState]:
        """The states that other control planes have of a zone; of one that is gone, as disconnected."""
        for other in self.instances.values():
            state = other.zones.get(name)
            if state is not None and state.is_connected and other.is_gone:
                heard_at = other.data.written_at or state.connected_at
                state = msgspec.structs.replace(state, disconnected_at=heard_at, behind_since=None)
            if state is not None:
                yield state

    def connected(self) -> set[Key]:
        """The proxies that are connected to other control planes."""
        return {state.key for state in self.living()}

    def living(self) -> Iterator[ProxyState]:
        """The rows of the proxies that are connected to other control planes."""
        others = (other for other in self.instances.values() if not other.is_gone)
        return (state for other in others for state in other.states.values() if state.is_connected)

    def remembered(self) -> Iterator[ProxyState]:
        """The rows of these, and of those whose control plane is gone and that are connected nowhere else."""
        yield from self.living()
        living = self.connected()
        for other in self.instances.values():
            if other.is_gone and other.is_remembered:
                yield from (
                    state for key, state in other.states.items() if state.is_connected and key not in living
                )

    def was_lost(self, key: Key) -> bool:
        """Whether a proxy was connected to a control plane that is gone for a moment."""
        lost = (each for each in self.instances.values() if each.is_gone and each.is_remembered)
        return any(key in each.states and each.states[key].is_connected for each in lost)

    def keys(self) -> set[Key]:
        """All proxies that other control planes have, or had."""
        return {key for other in self.instances.values() for key in other.states}

    def _forget(self) -> None:
        """Forget disconnected proxies whose objects are gone, as their control planes do.

        Not those of a control plane that is gone: it may come back, and would not write their rows again.
        """
        for other in self.instances.values():
            gone = [
                key
                for key, state in other.states.items()
                if not state.is_connected and not self._is_stored(key)
            ]
            for key in gone:
                del other.states[key]
            for zone in [zone for zone in other.zones if not self._is_stored(row_key(zone))]:
                del other.zones[zone]

    def shown(self, connected: frozenset[Key]) -> Iterator[InstanceState]:
        """The other control planes, by name; `connected` are the proxies that are connected anywhere."""
        for name, other in sorted(self.instances.items()):
            yield InstanceState(
                id=name,
                version=other.data.version,
                started_at=other.data.started_at,
                address=other.data.address,
                revision=other.row.revision,
                is_gone=other.is_gone,
                has_stopped=other.row.beat == LEFT,
                heard_at=other.data.written_at,
                n_missing=sum(map(self._is_stored, other.connected - connected)) if other.is_gone else 0,
                silent_seconds=other.silent_seconds,
                n_proxies=len(other.connected),
            )


def _as_seen(state: ProxyState, other: MirroredInstance) -> ProxyState:
    if not state.is_connected:
        return state
    if not state.behind_since:
        zone = other.zones.get(state.key.zone)  # on Global, proxies are those of zones
        revision = zone.revision if zone is not None else other.row.revision
        state = msgspec.structs.replace(state, revision=revision)
    if other.is_gone:
        return msgspec.structs.replace(state, disconnected_at=other.data.written_at or state.connected_at)
    return state


def _meshes(other: MirroredInstance) -> set[str]:
    return {key.mesh for key in other.states}


def _data(data: bytes) -> InstanceData:
    try:
        return msgspec.json.decode(data, type=InstanceData)
    except msgspec.MsgspecError:
        return InstanceData()
