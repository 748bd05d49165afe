"""Shared states: the state of every proxy of the fleet, whichever control plane it is connected to.

Answers come from memory: own connections as they are now, those of other control planes as they last wrote
them (`state_writer`, `state_mirror`). Where two control planes have a proxy, the later connection counts.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import chain
from typing import Any, Final

import msgspec

from koguma.application.context import Context
from koguma.core.build.network import NodeMetadata
from koguma.fleet.local_states import LocalStates
from koguma.fleet.proxy_progress import ProxyProgress
from koguma.fleet.proxy_state import CertificateState, InstanceState, ProxyState
from koguma.fleet.reported_states import ReportedStates
from koguma.fleet.state_mirror import StateMirror
from koguma.fleet.state_writer import InstanceData, OwnStates, StateWriter
from koguma.fleet.zone_state import ZoneState, offline_problem
from koguma.identity.proxy_types import EGRESS, INGRESS, SIDECAR
from koguma.identity.rotation import CaHolders
from koguma.kinds import service_probe
from koguma.kinds.zone import KIND as ZONE_KIND
from koguma.model.resource import Key
from koguma.store.log import LogLost

_FIRST_POLL_SECONDS: Final = 5.0


class SharedStates:
    """What is known of all proxies; without `attach`, no proxy is connected here."""

    def __init__(self, context: Context, clock: Callable[[], datetime]) -> None:
        log, about = context.store.log, context.about
        self._context = context
        self.clock = clock
        self._data = InstanceData(version=about.version, started_at=clock())
        self._local: OwnStates | None = None
        self._progress: Callable[[], Iterable[ProxyProgress]] | None = None  # of proxies that connect here
        self._local_keys: Callable[[], frozenset[Key]] = frozenset
        self._writer = StateWriter(log.proxy_states, about.instance_id, clock, beats=log.shared)
        self._writer.data = self._data
        self._mirror = StateMirror(
            log.proxy_states, about.instance_id, clock, self._is_stored, is_alone=not log.shared
        )
        self._mirror.on_change = self._notify
        self._followers: list[Callable[[Iterable[Key]], None]] = []
        self._mirror.on_states = self._note_states
        self._holders: dict[str, list[CertificateState]] = {}  # at other control planes, by mesh
        self._holders_of = -1  # the generation of the mirror that it is of
        self._listeners: list[Callable[[str], None]] = []
        self._connected: frozenset[Key] = frozenset()
        self._connected_of: tuple[frozenset[Key], int] | None = None  # what the set above was made of

    # Who takes part.

    def attach(
        self, local: LocalStates, connected: Callable[[], frozenset[Key]], revision: Callable[[], int]
    ) -> None:
        """Serve proxies: their states, which are connected, and the revision that synced ones have."""
        self._local, self._local_keys, self._progress = local, connected, local.progress
        self._writer.local, self._writer.revision = local, revision
        local.on_change = lambda key: self._note_states((key,))

    def attach_zones(self, report: Callable[[], Mapping[str, ZoneState]], reported: ReportedStates) -> None:
        """Serve zones, as Global does: `report` tells how each is that is, or was, connected here.

        `reported` are the states of their proxies.
        """
        self._writer.zones.report = report
        self._local = self._writer.local = reported
        self._local_keys = lambda: reported.connected

    def listen_at(self, address: str) -> None:
        """Tell other control planes where they reach this one."""
        self._data = self._writer.data = msgspec.structs.replace(self._data, address=address)

    def subscribe(self, on_change: Callable[[str], None]) -> None:
        """Call back with each mesh whose proxies at other control planes changed; "" for zone proxies."""
        self._listeners.append(on_change)

    def follow(self, on_change: Callable[[Iterable[Key]], None]) -> None:
        """Call back with the proxies whose states change, wherever they are connected. Cheap."""
        self._followers.append(on_change)

    def _note_states(self, keys: Iterable[Key]) -> None:
        for on_change in self._followers:
            on_change(keys)

    def _notify(self, meshes: frozenset[str]) -> None:
        for mesh in sorted(meshes):
            for on_change in self._listeners:
                on_change(mesh)

    async def start(self) -> None:
        """Read what other control planes know, as far as the store answers."""
        with suppress(LogLost, TimeoutError):
            async with asyncio.timeout(_FIRST_POLL_SECONDS):
                await self._mirror.poll()

    @property
    def tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """What has to run all the time, by name."""
        return {"states of proxies": self._writer.run, "states of other proxies": self._mirror.run}

    async def stop(self) -> None:
        """Tell the other control planes, and the next one, how all was when this one stopped."""
        await self._writer.flush()
        await self._writer.leave()

    # What is known.

    @property
    def problem(self) -> str:
        """Why the answers may be old, or not known at all; empty where they are right."""
        offline = list(self.offline_zones())
        with_proxies = self._zones_with_proxies() if offline else frozenset()
        words = (self._mirror.problem, offline_problem(each for each in offline if each[0] in with_proxies))
        return "; ".join(each for each in words if each)

    @property
    def is_known(self) -> bool:
        """Whether the proxies of other control planes are known: the store answered when last asked."""
        return self._mirror.is_known

    @property
    def is_alone(self) -> bool:
        """Whether no other control plane can use the store now."""
        return not self._context.store.log.shared

    @property
    def serves_proxies(self) -> bool:
        """Whether proxies can connect here."""
        return self._progress is not None

    def is_elsewhere(self, key: Key) -> bool:
        """Whether a proxy is connected to another control plane, or was to one that is gone for a moment."""
        here = self._context.about.instance_id
        state = self.of(key)
        if self.is_alone or state is None or state.instance == here:
            return False
        return state.is_connected or self._mirror.was_lost(key)

    def of(self, key: Key) -> ProxyState | None:
        """The state of a proxy; None where no control plane has seen it."""
        local = self._local.of(key) if self._local is not None else None
        if local is not None and local.is_connected and not (local.behind_since or local.revision):
            local = msgspec.structs.replace(local, revision=self._writer.revision())
        states = [*self._mirror.of(key), *((local,) if local is not None else ())]
        if not states:
            return None
        state, stored = max(states, key=_precedence), self._context.state.get(key)
        not_ready = tuple(service_probe.not_ready(stored.spec)) if stored is not None else ()
        shown: ProxyState = msgspec.structs.replace(state, not_ready=not_ready) if not_ready else state
        return shown

    def nodes_elsewhere(self) -> dict[Key, NodeMetadata]:
        """What the proxies that are connected to other control planes said of themselves."""
        return {state.key: state.node for state in self._mirror.remembered() if state.node is not None}

    def all(self, mesh: str = "") -> Iterator[ProxyState]:
        """The states of proxies in key order, also of disconnected ones whose objects are still stored.

        Of one mesh with the zone proxies, which serve all meshes; or of all meshes.
        """
        for key in sorted(key for key in self.keys() if not mesh or key.mesh in (mesh, "")):
            if (state := self.shown(key)) is not None:
                yield state

    def keys(self) -> set[Key]:
        """All proxies of which any control plane knows a state."""
        return {*(self._local or ()), *self._mirror.keys()}

    def shown(self, key: Key) -> ProxyState | None:
        """The state of a proxy; None where it is disconnected and its object is gone."""
        state = self.of(key)
        return state if state is not None and (state.is_connected or self._is_stored(key)) else None

    @property
    def instance(self) -> str:
        """The control plane that this is."""
        return self._context.about.instance_id

    @property
    def revision(self) -> int:
        """Of the store: what the synced proxies of this control plane have."""
        return self._writer.revision()

    def progress(self) -> dict[Key, ProxyProgress]:
        """How far each proxy is; also disconnected ones, as far as they are remembered."""
        by_key: dict[Key, ProxyProgress] = {}
        local = self._progress() if self._progress is not None else ()
        for each in chain(self._mirror.progress(), local):
            known = by_key.get(each.key)
            if known is None or known.precedence <= each.precedence:
                by_key[each.key] = each
        return by_key

    def connected(self, mesh: str = "") -> Iterator[ProxyState]:
        """The states of the proxies that are connected, in key order."""
        return (state for state in self.all(mesh) if state.is_connected)

    @property
    def connected_keys(self) -> frozenset[Key]:
        """The proxies that are connected; the same set object until one connects or disconnects."""
        made_of = self._local_keys(), self._mirror.generation
        if made_of != self._connected_of:  # sets that are one object are equal without a look at them
            keys = made_of[0] | self._mirror.connected()
            self._connected_of = made_of
            self._connected = self._connected if keys == self._connected else keys
        return self._connected

    def certified_elsewhere(self) -> frozenset[Key]:
        """The proxies at other control planes that have a certificate of their mesh which is still valid."""
        now = self.clock()
        return frozenset(state.key for state in self._mirror.living() if state.is_certified(now))

    def ca_holders(self, mesh: str) -> CaHolders:
        """What proxies of other control planes have of the CAs of a mesh; those that moved here not counted.

        Proxies of a control plane that is gone count for a minute: they run, and are about to come back.
        """
        if self._holders_of != self._mirror.generation:
            self._holders_of, self._holders = self._mirror.generation, {}
            here = self._local_keys()
            for state in self._mirror.remembered():
                if state.key not in here:
                    for certificate in state.certificates:
                        self._holders.setdefault(certificate.mesh, []).append(certificate)
        certificates = self._holders.get(mesh, ())
        return CaHolders(
            n_proxies=len(certificates),
            n_trusting=Counter(ca for each in certificates for ca in each.trusts),
            n_presenting=Counter(ca for each in certificates for ca in each.presents),
            is_known=self.is_known,
        )

    def offline_zones(self) -> Iterator[tuple[str, datetime | None]]:
        """On Global: the zones that are connected to no control plane of its store, and since when."""
        if not self._context.control_plane.is_global:
            return
        local = self._writer.zones.report()
        for zone in self._context.state.listed(ZONE_KIND.name):
            here = local.get(zone.name)
            states = [*self._mirror.zone(zone.name), *((here,) if here is not None else ())]
            if not any(state.is_connected for state in states):
                ends = [state.disconnected_at for state in states if state.disconnected_at is not None]
                yield zone.name, max(ends, default=None)

    def zone(self, name: str) -> tuple[ZoneState, ...]:
        """The connections of a zone to control planes of this store, the newest last."""
        local = self._writer.zones.report().get(name)
        states = [*self._mirror.zone(name), *((local,) if local is not None else ())]
        return tuple(sorted(states, key=lambda state: (state.connected_at, state.instance)))

    def instances(self) -> tuple[InstanceState, ...]:
        """The control planes of this store, this one first."""
        here = InstanceState(
            id=self._context.about.instance_id,
            version=self._data.version,
            started_at=self._data.started_at,
            address=self._data.address,
            revision=self._writer.revision(),
            is_here=True,
            n_proxies=len(self._local_keys()),
        )
        return (here, *self._mirror.shown(self.connected_keys))

    def _zones_with_proxies(self) -> frozenset[str]:
        kinds = (SIDECAR.kind, INGRESS.kind, EGRESS.kind)
        return frozenset(each.zone for kind in kinds for each in self._context.state.listed(kind))

    def _is_stored(self, key: Key) -> bool:
        return self._context.state.get(key) is not None


def _precedence(state: ProxyState) -> tuple[bool, datetime]:
    """Of several states of a proxy the last is true: a connection goes before the end of an earlier one."""
    return state.is_connected, state.connected_at
