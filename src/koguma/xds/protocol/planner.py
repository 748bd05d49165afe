"""ResponsePlanner: which of the pending resources of a proxy are sent now, and in which responses."""

from collections.abc import Iterable, Mapping

from koguma.envoy import names
from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, LISTENER, ROUTES, VIRTUAL_HOST, XdsResource
from koguma.xds.contract import Offer
from koguma.xds.protocol.delta import DeltaResponse
from koguma.xds.protocol.dependencies import Availability
from koguma.xds.protocol.nack import REMOVED
from koguma.xds.protocol.tracked import TrackedState
from koguma.xds.protocol.type_state import InFlightResponse, TypeState


def responses(tracked: TrackedState, now: float) -> list[DeltaResponse]:
    """The responses that can be sent now; they count as in flight from here on."""
    tracked.record.removals.next_due = None
    return [] if tracked.newest is None else ResponsePlanner(tracked, tracked.newest, now).responses()


class ResponsePlanner:
    """Plans the responses of one moment."""

    __slots__ = ("_dependencies", "_now", "_revision", "_tracked")

    def __init__(self, tracked: TrackedState, newest: Offer, now: float) -> None:
        self._tracked = tracked
        self._dependencies = tracked.dependencies()
        self._revision = newest.revision
        self._now = now

    def responses(self) -> list[DeltaResponse]:
        """One response at most for each type."""
        # Lazily, type by type: sending clusters makes their endpoints pending.
        responding = (state for state in self._tracked.states.values() if state.may_respond)
        planned = [self._response(state) for state in responding]
        return [response for response in planned if response is not None]

    def _response(self, state: TypeState) -> DeltaResponse | None:
        resources, is_waiting = self._additions(state)
        if state.type == VIRTUAL_HOST and is_waiting:
            resources = self._without_split_hosts(state, resources)
        removed = self._removals(state, resources)
        if not (resources or removed or (state.initial_response_due and not is_waiting)):
            return None
        return self._send(state, resources, removed)

    def _additions(self, state: TypeState) -> tuple[dict[str, XdsResource], bool]:
        """The resources that can be sent now, and whether others will be sent later."""
        while True:
            choices = {name: self._choice(state, name) for name in sorted(state.next_names())}
            resources = {name: choice for name, choice in choices.items() if isinstance(choice, XdsResource)}
            if resources or not state.skip_bisect_group():
                return resources, Availability.PENDING in choices.values()

    def _choice(self, state: TypeState, name: str) -> XdsResource | Availability:
        """The version to send for a name, or why there is none."""
        offered, held = self._tracked.offered((state.type, name)), state.held.get(name)
        if offered is not None and not state.was_nacked(name, offered.version):
            is_new = state.version(name) != offered.version
            availability = self._dependencies.of_references(offered) if is_new else Availability.READY
            if availability not in (Availability.REJECTED, Availability.FAILED):
                return offered if availability is Availability.READY else availability
        return held if name in state.resend and isinstance(held, XdsResource) else Availability.REJECTED

    def _removals(self, state: TypeState, resources: Mapping[str, XdsResource]) -> tuple[str, ...]:
        """The names to remove now, and subscribed names that do not exist."""
        not_offered = [
            name
            for name in state.pending
            if name not in resources and self._tracked.offered((state.type, name)) is None
        ]
        missing = [name for name in not_offered if name not in state.held]
        held = [name for name in not_offered if name in state.held]
        if state.type == VIRTUAL_HOST:
            candidates = self._removable_hosts(state, held, resources)
        else:
            candidates = [name for name in held if self._may_remove(state, name, resources)]
        removed = (
            self._tracked.record.removals.removable(self._tracked.states, state.type, candidates, self._now)
            if candidates
            else ()
        )
        return tuple(sorted((*missing, *removed)))

    def _may_remove(self, state: TypeState, name: str, resources: Mapping[str, XdsResource]) -> bool:
        if (state.type, name) in self._tracked.failed or state.was_nacked(name, REMOVED):
            return False
        if state.type == LISTENER:
            return not any(self._is_delayed(state, other, resources) for other in state.pending)
        return not any(other.nacks or other.uncertain for other in self._tracked.states.values())

    def _removable_hosts(
        self, state: TypeState, hosts: list[str], resources: Mapping[str, XdsResource]
    ) -> list[str]:
        """The virtual hosts that may be removed now.

        One whose routes stay is removed in the response that brings what replaces it, perhaps a wildcard. One
        whose routes are drained stays as long as these. Envoy still lists versions of those whose routes it
        has dropped, so these are removed too.
        """
        if not hosts:
            return []
        tracked = self._tracked
        delayed = self._delayed_routes(state, resources)
        return [
            name
            for name in hosts
            if not state.was_nacked(name, REMOVED)
            and (tracked.removes_only_itself(name) or self._is_orphan(name))
            and names.routes_of(name) not in delayed
        ]

    def _without_split_hosts(
        self, state: TypeState, resources: Mapping[str, XdsResource]
    ) -> dict[str, XdsResource]:
        """These virtual hosts less those of routes that lose one later, in the response that others wait for.

        They may have a domain of the one that goes, and Envoy refuses two virtual hosts with one domain.
        """
        going = (name for name in state.pending if self._tracked.offered((state.type, name)) is None)
        losing = {names.routes_of(name) for name in going if name in state.held}
        split = losing & self._delayed_routes(state, resources) if losing else frozenset()
        return {name: host for name, host in resources.items() if names.routes_of(name) not in split}

    def _delayed_routes(self, state: TypeState, resources: Mapping[str, XdsResource]) -> set[str]:
        """The routes of which a virtual host will be sent later."""
        return {names.routes_of(name) for name in state.pending if self._waits(state, name, resources)}

    def _is_orphan(self, virtual_host: str) -> bool:
        """Whether the proxy has dropped the routes of a virtual host."""
        is_known = self._tracked.states[ROUTES].subscription.is_open
        return is_known and not self._tracked.holds_routes_of(virtual_host)

    def _waits(self, state: TypeState, name: str, resources: Mapping[str, XdsResource]) -> bool:
        """Whether a resource will be sent later, after what it references."""
        offered = None if name in resources else self._tracked.offered((state.type, name))
        return offered is not None and self._dependencies.of_references(offered) is Availability.PENDING

    def _is_delayed(self, state: TypeState, name: str, resources: Mapping[str, XdsResource]) -> bool:
        """Whether a new resource is due and does not come with this response."""
        id_ = state.type, name
        is_new = name not in state.held and name not in resources and self._tracked.offered(id_) is not None
        return is_new and self._dependencies.availability(id_) is not Availability.FAILED

    def _send(
        self, state: TypeState, resources: Mapping[str, XdsResource], removed: tuple[str, ...]
    ) -> DeltaResponse:
        nonce = self._tracked.record.next_nonce(state.type)
        state.send(InFlightResponse(nonce, resources, frozenset(removed), self._revision))
        if state.type == CLUSTER:
            self._resend_endpoints(resources.values())
        return DeltaResponse(state.type, nonce, tuple(resources.values()), removed)

    def _resend_endpoints(self, clusters: Iterable[XdsResource]) -> None:
        """Send the endpoints of changed clusters again.

        Envoy warms a changed cluster until endpoints come, even unchanged ones, for up to 15 seconds; and
        meanwhile it ACKs no cluster.
        """
        endpoints, held_clusters = self._tracked.states[ENDPOINTS], self._tracked.states[CLUSTER].held
        needs = ((cluster.name in held_clusters, *need) for cluster in clusters for need in cluster.needs)
        # To the endpoints of a new cluster the proxy has yet to subscribe.
        names = [
            name
            for is_held, type_, name in needs
            if type_ == ENDPOINTS and (is_held or endpoints.is_subscribed(name))
        ]
        endpoints.resend.update(names)
        self._tracked.recheck(endpoints, names)
