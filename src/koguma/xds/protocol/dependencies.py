"""Dependencies: whether what a resource references is there, so that the resource may be sent now.

Make before break: a referenced resource is sent first, and what references it waits for the ACK. The order is
secrets, clusters with their endpoints, extensions, listeners, routes, virtual hosts. A resource that could
not be built is not waited for: routes and listeners go without such a cluster, since Envoy itself answers 503
for it. Envoy subscribes to most types only after it has what references them, so nothing waits for a resource
without a subscription, and no order of requests can block a stream.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cached_property

from koguma.envoy import names
from koguma.envoy.snapshot import (
    CLUSTER,
    ENDPOINTS,
    LISTENER,
    ROUTES,
    TYPES,
    VIRTUAL_HOST,
    Id,
    Snapshot,
    XdsResource,
)
from koguma.xds.protocol.delta import WILDCARD_TYPES
from koguma.xds.protocol.type_state import TypeState


class Availability(Enum):
    """Whether a resource is there for what references it."""

    READY = "ready"  # the proxy has it as well as it can, or nothing has to wait for it
    PENDING = "pending"  # it is in flight, or will be sent
    REJECTED = "rejected"  # the proxy does not hold it and NACKed it, or something that it references
    FAILED = "failed"  # the proxy does not hold it, and it or something it references could not be built


class Dependencies:
    """The availability of resources at one moment; make a new one for the next."""

    def __init__(self, states: Mapping[str, TypeState], snapshot: Snapshot, failed: AbstractSet[Id]) -> None:
        self._states = states
        self._snapshot = snapshot
        self._failed = failed
        self._known: dict[Id, Availability] = {}

    def of_references(self, resource: XdsResource) -> Availability:
        """Whether all that a resource references is ready, so that the resource may be sent."""
        blocker = self._blocker(resource)
        if blocker is not None:
            return blocker
        waits = any(
            self.availability(need) is Availability.PENDING and self._waits(resource, need)
            for need in resource.needs
        )
        waits = waits or self._waits_for_listener(resource) or self._waits_for_routes(resource)
        return Availability.PENDING if waits else Availability.READY

    def _blocker(self, resource: XdsResource) -> Availability | None:
        """Why a resource cannot be sent at all: REJECTED or FAILED; None where nothing blocks it."""
        # Separate from waiting: routes ask whether their listener is pending, which asks about its routes.
        needs = (need for need in resource.needs if not self._is_optional(resource, need))
        states = {self.availability(need): None for need in needs}
        return next(
            (state for state in (Availability.REJECTED, Availability.FAILED) if state in states),
            None,
        )

    def _is_optional(self, resource: XdsResource, need: Id) -> bool:
        """Whether a proxy works without it: only calls to a cluster that is missing get a 503.

        A rejected cluster does block: an earlier version worked, or a fix will come, and until then the
        previous routes lead to something. Not so where calls to all of the outside would wait for it, or all
        that a gateway serves.
        """
        if need[0] != CLUSTER:
            return False
        is_shared = names.is_redirected(resource.name) or names.is_of_gateway(resource.name)
        missing = (Availability.FAILED, Availability.REJECTED) if is_shared else (Availability.FAILED,)
        return self.availability(need) in missing

    def availability(self, id_: Id) -> Availability:
        """Whether one resource is ready for what references it."""
        known = self._known.get(id_)
        if known is None:
            self._known[id_] = Availability.READY  # resources in a reference cycle do not wait for each other
            self._known[id_] = known = self._availability(id_)
        return known

    def _availability(self, id_: Id) -> Availability:
        type_, name = id_
        state = self._states[type_]
        offered = self._snapshot.get(id_)
        is_held = name in state.held
        if offered is None:
            return Availability.FAILED if id_ in self._failed and not is_held else Availability.READY
        if not state.is_subscribed(name):
            return Availability.READY if type_ in WILDCARD_TYPES else self.of_references(offered)
        if state.is_being_removed(name):
            return Availability.PENDING  # it is sent again once the proxy has ACKed the removal
        if state.version(name) == offered.version and name not in state.uncertain:
            return self._warmed(id_)
        blocker = Availability.REJECTED if state.was_nacked(name, offered.version) else self._blocker(offered)
        if blocker is not None:
            return self._warmed(id_) if is_held else blocker
        return Availability.PENDING

    def _warmed(self, id_: Id) -> Availability:
        """The availability of a held resource: a cluster is warming until its endpoints have come."""
        type_, name = id_
        if type_ == CLUSTER:
            endpoints = self._states[ENDPOINTS]
            for need in self._states[CLUSTER].references(name):
                is_missing = (
                    need[0] == ENDPOINTS
                    and endpoints.is_subscribed(need[1])
                    and need[1] not in endpoints.held
                )
                if is_missing and self._snapshot.get(need) is not None:
                    return self.availability(need)
        return Availability.READY

    def _waits(self, resource: XdsResource, need: Id) -> bool:
        """Whether a resource waits for a pending one that it references."""
        if TYPES.index(need[0]) < TYPES.index(resource.type):
            return True
        # A listener does not wait for its routes, which come after it. But before the proxy has subscribed to
        # the routes, the listener waits for the clusters in them, so that the routes can follow at once.
        return not self._states[need[0]].is_subscribed(need[1])

    def _waits_for_listener(self, resource: XdsResource) -> bool:
        """Whether changed routes have to wait for a change of their listener."""
        if resource.type != ROUTES or resource.name not in self._states[ROUTES].held:
            return False
        return resource.id in self._referenced_by_pending_listeners

    def _waits_for_routes(self, resource: XdsResource) -> bool:
        """Whether a virtual host has to wait for a change of its routes, or of their listener."""
        if resource.type != VIRTUAL_HOST:
            return False
        routes = ROUTES, names.routes_of(resource.name)
        is_pending = self.availability(routes) is Availability.PENDING
        return is_pending or routes in self._referenced_by_pending_listeners

    @cached_property
    def _referenced_by_pending_listeners(self) -> frozenset[Id]:
        listeners = self._states[LISTENER]
        pending: Iterable[str] = listeners.pending
        if listeners.in_flight is not None:
            pending = listeners.pending | listeners.in_flight.resources.keys()
        offered = (self._snapshot.get((LISTENER, name)) for name in pending)
        return frozenset(
            need
            for listener in offered
            if listener is not None and self.availability(listener.id) is Availability.PENDING
            for need in listener.needs
        )
