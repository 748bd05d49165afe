"""Removals: when a resource that is no longer in the snapshot may be removed from a proxy.

A resource stays while anything that the proxy holds, or is just receiving, references it. Then it stays for
the drain time, because open connections still use it.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final

from koguma.envoy.snapshot import (
    CLUSTER,
    ENDPOINTS,
    EXTENSION,
    LISTENER,
    ROUTES,
    RUNTIME,
    SECRET,
    VIRTUAL_HOST,
    Id,
    XdsResource,
)
from koguma.xds.protocol.type_state import TypeState

# Which types can reference a type. A resource of unknown content may reference anything of these.
_REFERRERS: Final[Mapping[str, tuple[str, ...]]] = {
    SECRET: (CLUSTER, EXTENSION, LISTENER),
    CLUSTER: (EXTENSION, LISTENER, ROUTES, VIRTUAL_HOST),
    ENDPOINTS: (CLUSTER,),
    EXTENSION: (LISTENER,),
    RUNTIME: (),
    LISTENER: (),
    ROUTES: (LISTENER,),
    VIRTUAL_HOST: (),
}
# These are not drained here. Envoy drains a listener itself, and its successor may need the address. A
# virtual host is a part of routes: requests that it has routed go on, and new ones must not reach it.
_UNDRAINED: Final = frozenset({LISTENER, VIRTUAL_HOST})


class Removals:
    """Since when resources are unreferenced. `next_due` is when the next removal ends its drain time."""

    __slots__ = ("_all_unreferenced_at", "_drain_seconds", "_unreferenced_at", "next_due")

    def __init__(self, drain_seconds: float) -> None:
        self.next_due: float | None = None
        self._drain_seconds = drain_seconds
        self._unreferenced_at: dict[Id, float] = {}
        self._all_unreferenced_at = -inf

    def dereference(self, ids: Iterable[Id], now: float) -> None:
        """A resource stopped referencing these."""
        self._unreferenced_at.update(dict.fromkeys(ids, now))
        self._unreferenced_at = {
            id_: at for id_, at in self._unreferenced_at.items() if at + self._drain_seconds > now
        }

    def dereference_all(self, now: float) -> None:
        """A resource of unknown references was replaced or removed, now or just before the stream began."""
        self._all_unreferenced_at = now

    def removable(
        self, states: Mapping[str, TypeState], type_: str, names: Iterable[str], now: float
    ) -> Sequence[str]:
        """Which of these names may be removed now."""
        if any(states[referrer].version_only for referrer in _REFERRERS[type_]):
            return ()
        due = [name for name in names if self._is_due((type_, name), now)]
        referenced = _referenced(states) if due else frozenset()
        return [name for name in due if (type_, name) not in referenced]

    def _is_due(self, id_: Id, now: float) -> bool:
        since = self._unreferenced_at.get(id_, -inf)
        if id_[0] not in _UNDRAINED:
            since = max(since, self._all_unreferenced_at)
        due = since + self._drain_seconds
        if due > now:
            self.next_due = due if self.next_due is None else min(self.next_due, due)
        return due <= now


def _referenced(states: Mapping[str, TypeState]) -> frozenset[Id]:
    """Everything that is referenced by what the proxy holds or may just have received."""
    resources = [held for state in states.values() for held in state.held.values()]
    resources += [
        resource
        for state in states.values()
        if state.in_flight
        for resource in state.in_flight.resources.values()
    ]
    return frozenset(
        need for resource in resources if isinstance(resource, XdsResource) for need in resource.needs
    )
