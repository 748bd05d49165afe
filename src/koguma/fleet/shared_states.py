"""Shared states: the state of every proxy of the fleet, whichever control plane it is connected to.

Answers come from memory: own connections as they are now, those of other control planes as they last wrote
them. Where two control planes have a proxy, the later connection counts.
"""

from collections.abc import Callable, Iterator
from datetime import datetime

import msgspec

from koguma.application.context import Context
from koguma.fleet.local_states import LocalStates
from koguma.fleet.proxy_state import InstanceState, ProxyState
from koguma.kinds import service_probe
from koguma.model.resource import Key


class SharedStates:
    """What is known of all proxies; without `attach`, of none that is connected here."""

    def __init__(self, context: Context, clock: Callable[[], datetime]) -> None:
        self._context = context
        self.clock = clock
        self._started_at = clock()
        self._local: LocalStates | None = None
        self._revision: Callable[[], int] = lambda: 0

    def attach(self, local: LocalStates, revision: Callable[[], int]) -> None:
        """Serve proxies: their states, and the revision that those have which are not behind."""
        self._local, self._revision = local, revision

    @property
    def problem(self) -> str:
        """Why the answers may be old or incomplete; empty where they are not."""
        return ""

    def of(self, key: Key) -> ProxyState | None:
        """The state of a proxy; None where no control plane has seen it."""
        state = self._local.of(key) if self._local is not None else None
        return None if state is None else self._completed(state)

    def all(self, mesh: str = "") -> Iterator[ProxyState]:
        """The states of proxies in key order, also of disconnected ones whose objects are still stored.

        Of one mesh with the zone proxies, which serve all meshes; or of all meshes.
        """
        for key in sorted(self._local or ()):
            state = self.of(key) if not mesh or key.mesh in (mesh, "") else None
            if state is not None and (state.is_connected or self._context.state.get(key) is not None):
                yield state

    def connected(self, mesh: str = "") -> Iterator[ProxyState]:
        """The states of the proxies that are connected, in key order."""
        return (state for state in self.all(mesh) if state.is_connected)

    def instances(self) -> tuple[InstanceState, ...]:
        """The control planes of this store, this one first."""
        about = self._context.about
        here = InstanceState(
            id=about.instance_id,
            version=about.version,
            started_at=self._started_at,
            revision=self._revision(),
            is_here=True,
        )
        return (here,)

    def _completed(self, state: ProxyState) -> ProxyState:
        """A state with what is not in its row: it follows from other rows and objects."""
        stored = self._context.state.get(state.key)
        return msgspec.structs.replace(
            state,
            revision=state.revision if state.behind_since else self._revision(),
            not_ready=tuple(service_probe.not_ready(stored.spec)) if stored is not None else (),
        )
