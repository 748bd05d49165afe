"""TrackedState: the per-resource bookkeeping for a proxy: what it holds, subscribes to and should have.

Each request and each offer is recorded here, and then the names that it touches are checked again
(`recheck`). Names that end up `pending` in a type state still need a response; `planner` builds it.

Virtual hosts that are sent apart (VHDS) belong to a route configuration by name. Envoy loses those that come
before it holds that configuration, and drops them with it without a word. So they count as offered only while
the proxy holds their routes, and are sent again when it holds them anew.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from koguma.envoy import names as envoy_names
from koguma.envoy.snapshot import LISTENER, ROUTES, TYPES, VIRTUAL_HOST, Id, Snapshot, XdsResource
from koguma.xds.contract import Offer
from koguma.xds.protocol import bundle_diff
from koguma.xds.protocol.bundle_diff import BundleDiff
from koguma.xds.protocol.counted_responses import CountedResponses
from koguma.xds.protocol.delta import WILDCARD_TYPES, DeltaRequest
from koguma.xds.protocol.dependencies import Availability, Dependencies
from koguma.xds.protocol.nack import REMOVED, ResourceNack
from koguma.xds.protocol.removals import Removals
from koguma.xds.protocol.subscription import SubscriptionChange
from koguma.xds.protocol.type_state import DROPPED, InFlightResponse, TypeState


class StreamRecord:
    """What is kept from the beginning of a stream to its end, in whichever state the proxy is."""

    __slots__ = ("n_acks", "n_responses", "removals", "responses")

    def __init__(self, drain_seconds: float) -> None:
        self.removals = Removals(drain_seconds)
        self.n_responses = 0
        self.n_acks = 0
        self.responses = CountedResponses()

    def count_ack(self, type_: str) -> None:
        """The proxy has ACKed a response."""
        self.n_acks += 1
        self.responses.count_ack(type_)

    def next_nonce(self, type_: str) -> str:
        """The nonce of the next response, which is of that type."""
        self.responses.count_sent(type_)
        self.n_responses += 1
        return str(self.n_responses)


class TrackedState:
    """The type states of one stream, and the newest offer that they are compared with."""

    __slots__ = ("awaiting_subscription", "failed", "newest", "record", "states")

    def __init__(
        self, record: StreamRecord, states: Mapping[str, TypeState], newest: Offer | None = None
    ) -> None:
        self.record = record
        self.states = states
        self.newest = newest
        self.failed: frozenset[Id] = frozenset()
        self.awaiting_subscription: set[Id] = set()  # offered; the proxy is expected to subscribe

    def receive(self, request: DeltaRequest, now: float) -> None:
        """Record a request."""
        state = self.states[request.type]
        if request.nonce:
            self._record_answer(state, request, now)
        if request.subscribe or request.unsubscribe or not state.subscription.is_open:
            self._subscribe(state, request, now)

    def offer(self, offer: Offer) -> None:
        """Replace the newest offer."""
        before, self.newest = self.newest, offer
        failed_before = self.failed
        ids = (failure.id for failure in offer.snapshot.failures)
        self.failed = frozenset(id_ for id_ in ids if id_[0] in self.states)  # a policy may fail too
        touched = set(bundle_diff.changed_ids(before.snapshot if before else Snapshot(), offer.snapshot))
        touched |= failed_before ^ self.failed
        if before is None:
            touched.update((type_, name) for type_ in TYPES for name in self._known_names(type_))
        if offer.retry_rejected:
            touched.update(
                (type_, name) for type_ in TYPES for name in self.states[type_].clear_nacked_versions()
            )
        for type_, names in _by_type(touched).items():
            self.recheck(self.states[type_], names)

    def can_take(self, diff: BundleDiff) -> bool:
        """Whether the proxy is idle and subscribes to everything that a content diff changes."""
        if self.failed or not all(state.is_idle for state in self.states.values()):
            return False
        state = self.states[diff.type]
        if diff.type == VIRTUAL_HOST:
            return diff.resources.keys() <= state.held.keys()
        return state.is_subscribed_to_all(diff.resources)

    # Subscriptions.

    def _subscribe(self, state: TypeState, request: DeltaRequest, now: float) -> None:
        is_first = not state.subscription.is_open
        change = state.subscription.update(request)
        # The proxy may know these as missing; by subscribing again it asks whether that has changed.
        state.known_missing -= change.added | change.resubscribed
        state.resend |= change.resubscribed
        if state.in_flight is not None:  # Envoy ignores what was sent before it subscribed
            state.resend |= change.added & state.in_flight.resources.keys()
        if is_first and state.resume(request):
            # Whatever referenced the other resources may have been removed just before this stream began.
            self.record.removals.dereference_all(now)
            if state.type == ROUTES:
                self._recheck_virtual_hosts(frozenset(state.held))  # which it has from the earlier stream too
        self._unsubscribe(state, change, now)
        if is_first or change.wildcard_changed:
            names = self._known_names(state.type) | self._wildcard_names(state.type)
        else:
            names = change.added | change.resubscribed
        self.recheck(state, names)

    def _unsubscribe(self, state: TypeState, change: SubscriptionChange, now: float) -> None:
        removed = set(change.removed)
        if change.wildcard_changed:
            removed.update(name for name in state.held if not state.is_subscribed(name))
        for name in removed:
            self._set_missing(state, name, now)
            state.forget(name)

    def _known_names(self, type_: str) -> AbstractSet[str]:
        """The names of a type that the proxy holds or subscribes to."""
        state = self.states[type_]
        return state.held.keys() | state.subscription.names

    def _wildcard_names(self, type_: str) -> AbstractSet[str]:
        """The names of the newest offer that a wildcard subscription matches."""
        if self.newest is None or type_ not in WILDCARD_TYPES:
            return frozenset()
        return self.newest.snapshot.of_type(type_).keys()

    # ACKs and NACKs.

    def _record_answer(self, state: TypeState, request: DeltaRequest, now: float) -> None:
        response = state.in_flight
        if response is None or response.nonce != request.nonce:
            return  # the answer to an older response, which a later answer supersedes
        state.in_flight = None
        completes = response.completes is not None and response.completes is self.newest and not request.error
        if completes and state.is_certain and state.is_subscribed_to_all(response.resources):
            self.record.count_ack(state.type)
            state.held.update(response.resources)
            return
        touched = response.resources.keys() | response.removed
        if request.error:
            self.record.responses.count_nack(state.type)
            state.nack(response, request.error)
        else:
            touched |= self._record_ack(state, response, now)
        self.recheck(state, touched)

    def _record_ack(self, state: TypeState, response: InFlightResponse, now: float) -> set[str]:
        """Note what the proxy holds now; the names of rejected resources that may be retried now."""
        self.record.count_ack(state.type)
        for name, resource in response.resources.items():
            if state.is_subscribed(name):
                self._set_held(state, resource, now)
        for name in response.removed:
            self._set_missing(state, name, now)
        # A listener may have been rejected because the removed one had its address.
        return state.clear_nacked_versions() if state.type == LISTENER and response.removed else set()

    def _set_held(self, state: TypeState, resource: XdsResource, now: float) -> None:
        before, was_unknown = state.references(resource.name), state.may_reference_anything(resource.name)
        is_new = resource.name not in state.held
        state.set_held(resource)
        if state.type == ROUTES and is_new:
            self._drop_virtual_hosts(resource.name, now)
        elif state.type == VIRTUAL_HOST and not self.holds_routes_of(resource.name):
            state.held[resource.name] = DROPPED
            return
        if was_unknown or before != resource.needs:
            if was_unknown or before:
                self._dereference(set(before) - set(resource.needs), was_unknown=was_unknown, now=now)
            self.expect_subscriptions(need for need in resource.needs if need not in before)

    def _set_missing(self, state: TypeState, name: str, now: float) -> None:
        before, was_unknown = state.references(name), state.may_reference_anything(name)
        was_held = name in state.held
        state.set_missing(name)
        if was_held and state.type == ROUTES:
            self._drop_virtual_hosts(name, now)
        self._dereference(set(before), was_unknown=was_unknown, now=now)

    def _dereference(self, needs: set[Id], *, was_unknown: bool, now: float) -> None:
        if needs:
            self.record.removals.dereference(needs, now)
            self.awaiting_subscription -= needs
        if was_unknown:
            self.record.removals.dereference_all(now)

    def expect_subscriptions(self, needs: Iterable[Id]) -> None:
        """The proxy holds something that references these, so it will subscribe to them."""
        for type_, name in needs:
            if self.offered((type_, name)) is not None and not self.states[type_].is_subscribed(name):
                self.awaiting_subscription.add((type_, name))

    # What still needs a response.

    def offered(self, id_: Id) -> XdsResource | None:
        """The resource of that type and name in the newest offer; a virtual host with its routes only."""
        if self.newest is None or (id_[0] == VIRTUAL_HOST and not self.holds_routes_of(id_[1])):
            return None
        return self.newest.snapshot.get(id_)

    def holds_routes_of(self, virtual_host: str) -> bool:
        """Whether the proxy holds the route configuration of a virtual host."""
        return envoy_names.routes_of(virtual_host) in self.states[ROUTES].held

    def removes_only_itself(self, virtual_host: str) -> bool:
        """Whether a virtual host goes now, while its routes stay; those of routes that drain go with them."""
        is_offered = self.newest is not None and self.newest.snapshot.get(
            (ROUTES, envoy_names.routes_of(virtual_host))
        )
        return is_offered is not None and self.holds_routes_of(virtual_host)

    def _drop_virtual_hosts(self, routes: str, now: float) -> None:
        """The proxy got or lost these routes, and has none of their virtual hosts now."""
        state = self.states[VIRTUAL_HOST]
        for name in [name for name in state.held if envoy_names.routes_of(name) == routes]:
            self._dereference(set(state.references(name)), was_unknown=name in state.version_only, now=now)
            state.version_only.discard(name)
            state.held[name] = DROPPED
        self._recheck_virtual_hosts({routes})

    def _recheck_virtual_hosts(self, routes: AbstractSet[str]) -> None:
        """Decide again about virtual hosts whose routes the proxy holds now, or no longer."""
        state = self.states[VIRTUAL_HOST]
        every = state.held.keys() | self._wildcard_names(VIRTUAL_HOST)
        self.recheck(state, [name for name in every if envoy_names.routes_of(name) in routes])

    def recheck(self, state: TypeState, names: Iterable[str]) -> None:
        """Decide again for these names whether they are pending."""
        if self.newest is None:
            return
        type_, awaiting = state.type, self.awaiting_subscription
        get = self.offered if type_ == VIRTUAL_HOST else self.newest.snapshot.get
        held, is_certain = state.held, state.is_certain
        for name in names:
            id_ = type_, name
            offered = get(id_)
            if state.has_nacked_versions:
                state.forget_other_nacks(name, REMOVED if offered is None else offered.version)
            if (
                is_certain and offered is not None and held.get(name) is offered
            ):  # the usual case after an ACK
                state.pending.discard(name)
                continue
            self._resolve(state, offered, name)
            is_subscribed = state.is_subscribed(name)
            is_pending = is_subscribed and self._is_pending(state, offered, name)
            self._set_pending(state, name, offered, is_pending=is_pending)
            if offered is None or is_subscribed:
                awaiting.discard(id_)
            elif type_ in WILDCARD_TYPES:
                awaiting.add(id_)

    def _set_pending(
        self, state: TypeState, name: str, offered: XdsResource | None, *, is_pending: bool
    ) -> None:
        if not is_pending:
            state.pending.discard(name)
            return
        if offered is None and state.type == LISTENER and name not in state.pending:
            state.clear_nacked_versions()  # another one may have been rejected because this has its address
        state.pending.add(name)

    def _resolve(self, state: TypeState, offered: XdsResource | None, name: str) -> None:
        """Recognise an initial version by the offered one, and drop a NACK that no longer applies."""
        if name in state.version_only and offered is not None and state.held[name] == offered.version:
            state.held[name] = offered
            state.version_only.discard(name)
            self.expect_subscriptions(offered.needs)
        nack = state.nacks.get(name)
        if nack is not None and _is_obsolete(nack, state.version(name), offered):
            del state.nacks[name]

    def _is_pending(self, state: TypeState, offered: XdsResource | None, name: str) -> bool:
        if name in state.resend or name in state.uncertain:
            return True
        if offered is not None:
            return state.version(name) != offered.version
        if name in state.held:
            return (state.type, name) not in self.failed
        return name in state.subscription.names and name not in state.known_missing

    def has_unacked(self) -> bool:
        """Whether a part of the newest offer is not acknowledged.

        Removals that wait for their drain time do not count, nor resources that cannot be sent because a part
        of them could not be built: those would never be acknowledged.
        """
        if self.awaiting_subscription:
            return True
        busy = [
            state
            for state in self.states.values()
            if state.pending or state.in_flight or state.initial_response_due
        ]
        dependencies = self.dependencies() if self.failed else None
        return any(self._has_unacked(state, dependencies) for state in busy)

    def dependencies(self) -> Dependencies:
        """The availability of resources as of now."""
        return Dependencies(self.states, self.newest.snapshot if self.newest else Snapshot(), self.failed)

    def _has_unacked(self, state: TypeState, dependencies: Dependencies | None) -> bool:
        response = state.in_flight
        if state.initial_response_due:
            return True
        if response is not None and (response.resources or state.type in (LISTENER, VIRTUAL_HOST)):
            return True
        return any(self._is_unacked(state, name, dependencies) for name in state.pending)

    def _is_unacked(self, state: TypeState, name: str, dependencies: Dependencies | None) -> bool:
        offered = self.offered((state.type, name))
        if offered is None:
            removes_host = state.type == VIRTUAL_HOST and self.removes_only_itself(name)
            return state.type == LISTENER or removes_host
        return dependencies is None or dependencies.of_references(offered) is not Availability.FAILED


def new_type_states() -> Mapping[str, TypeState]:
    """The type states of a new stream."""
    return {type_: TypeState(type_) for type_ in TYPES}


def _by_type(ids: Iterable[Id]) -> Mapping[str, list[str]]:
    names: dict[str, list[str]] = {}
    for type_, name in ids:
        names.setdefault(type_, []).append(name)
    return names


def _is_obsolete(nack: ResourceNack, held_version: str | None, offered: XdsResource | None) -> bool:
    """Whether the rejected version is no longer to be sent, so that the NACK says nothing about now."""
    if offered is None:
        return nack.version != REMOVED or held_version is None
    return offered.version == held_version
