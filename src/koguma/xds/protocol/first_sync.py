"""FirstSyncState: a proxy that holds nothing yet and gets its first configuration, type by type.

A new proxy gets a thousand resources, and all of a type are ready to be sent at the same moment. So no
resource is looked at: a type is sent once all that the proxy has subscribed to of the types before it is
ACKed, and what is kept are names. Endpoints that change meanwhile are sent again. Whatever else happens (a
NACK, another change, an unusual subscription) turns it into a tracked state, which knows more.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Final

from koguma.envoy.snapshot import (
    CLUSTER,
    ENDPOINTS,
    EXTENSION,
    LISTENER,
    ROUTES,
    SECRET,
    TYPES,
    VIRTUAL_HOST,
    Id,
    Snapshot,
    XdsResource,
)
from koguma.xds.contract import Offer
from koguma.xds.protocol import bundle_diff
from koguma.xds.protocol.delta import (
    FIRST_TYPES,
    WILDCARD_SUBSCRIPTIONS,
    DeltaRequest,
    DeltaResponse,
)
from koguma.xds.protocol.opening import OpeningState
from koguma.xds.protocol.tracked import StreamRecord, TrackedState, new_type_states
from koguma.xds.protocol.type_state import InFlightResponse

_REFERENCED: Final = (SECRET, CLUSTER, ENDPOINTS)
# What must be ACKed, as far as the proxy has subscribed to it, before a type is sent.
_SENT_AFTER: Final[Mapping[str, tuple[str, ...]]] = {
    EXTENSION: _REFERENCED,
    LISTENER: (*_REFERENCED, EXTENSION),
    ROUTES: _REFERENCED,
}
_NO_NAMES: Final[frozenset[str]] = frozenset()


class _TypeProgress:
    """How far the proxy is with one type."""

    __slots__ = ("held", "in_flight", "offered", "pending", "subscribed")

    def __init__(self, offered: Mapping[str, XdsResource]) -> None:
        self.offered = offered
        self.subscribed: frozenset[str] = _NO_NAMES
        self.pending: frozenset[str] = _NO_NAMES  # names of what is to be sent
        self.in_flight: InFlightResponse | None = None
        self.held: dict[str, XdsResource] = {}

    @property
    def is_acked(self) -> bool:
        """Whether the proxy holds all that it has subscribed to."""
        return not self.pending and self.in_flight is None


class FirstSyncState:
    """The progress of each type that the proxy has subscribed to."""

    __slots__ = ("_offer", "_record", "_types")

    def __init__(self, record: StreamRecord, offer: Offer) -> None:
        self._record = record
        self._offer = offer
        self._types: dict[str, _TypeProgress] = {}

    def receive(self, request: DeltaRequest) -> bool:
        """Note a subscription or an ACK; whether it was one, else nothing was noted."""
        if request.error or request.unsubscribe or request.initial_versions:
            return False
        progress = self._types.get(request.type)
        in_flight = progress.in_flight if progress is not None else None
        if request.nonce and (in_flight is None or in_flight.nonce != request.nonce):
            return False
        if (request.subscribe or progress is None) and not self._subscribe(request, progress):
            return False
        if progress is not None and in_flight is not None and request.nonce:
            self._record.count_ack(request.type)
            progress.held.update(in_flight.resources)
            progress.in_flight = None
        return True

    def accept(self, offer: Offer) -> bool:
        """Take another offer that differs only in endpoints; whether it does."""
        diff = bundle_diff.content_diff(self._offer.snapshot, offer.snapshot)
        if diff is None or diff.type != ENDPOINTS or offer.retry_rejected or offer.snapshot.failures:
            return False
        self._offer = offer
        if progress := self._types.get(ENDPOINTS):
            progress.offered = offer.snapshot.of_type(ENDPOINTS)
            progress.pending |= diff.resources.keys() & progress.subscribed
        return True

    def _subscribe(self, request: DeltaRequest, progress: _TypeProgress | None) -> bool:
        if request.type == VIRTUAL_HOST or (request.type == ENDPOINTS and CLUSTER not in self._types):
            return False  # virtual hosts follow their routes, and such endpoints are sent twice
        progress = progress or _TypeProgress(self._offer.snapshot.of_type(request.type))
        if request.type in FIRST_TYPES:
            if progress.subscribed or request.subscribe not in WILDCARD_SUBSCRIPTIONS:
                return False
            progress.subscribed = progress.pending = frozenset(progress.offered)
        else:
            added = frozenset(request.subscribe)
            if not added or not added <= progress.offered.keys() or added & progress.subscribed:
                return False
            progress.subscribed |= added
            progress.pending |= added
        self._types[request.type] = progress
        return True

    def responses(self) -> list[DeltaResponse]:
        """The responses that can be sent now, at most one for each type; they are in flight from here on."""
        due = [type_ for type_ in TYPES if type_ in self._types and self._is_due(type_)]
        return [self._send(type_, self._types[type_]) for type_ in due]

    def _is_due(self, type_: str) -> bool:
        progress = self._types[type_]
        if not progress.pending or progress.in_flight is not None:
            return False
        before = (self._types.get(each) for each in _SENT_AFTER.get(type_, ()))
        return all(each is None or each.is_acked for each in before)

    def _send(self, type_: str, progress: _TypeProgress) -> DeltaResponse:
        nonce = self._record.next_nonce(type_)
        is_whole = len(progress.pending) == len(progress.offered)
        resources = progress.offered if is_whole else _some(progress.offered, progress.pending)
        progress.in_flight = InFlightResponse(nonce, resources, _NO_NAMES, self._offer.revision)
        progress.pending = _NO_NAMES
        return DeltaResponse(type_, nonce, tuple(resources.values()))

    @property
    def is_complete(self) -> bool:
        """Whether the proxy holds all of the offer."""
        return not any(self._missing())

    def _missing(self) -> Iterator[str]:
        """The types of which the proxy does not hold everything."""
        for type_ in TYPES:
            if n_offered := self._offer.snapshot.n_of_type(type_):
                progress = self._types.get(type_)
                if progress is None or not progress.is_acked or len(progress.held) != n_offered:
                    yield type_

    @property
    def is_stuck(self) -> bool:
        """Whether nothing is in flight and the proxy has no reason to subscribe to the rest."""
        if not all(progress.is_acked for progress in self._types.values()):
            return False
        missing = frozenset(self._missing())
        if any(type_ in FIRST_TYPES for type_ in missing):
            return False
        get = self._offer.snapshot.get
        return not any(
            type_ in missing and not self._holds((type_, name)) and get((type_, name)) is not None
            for resource in self._held_resources()
            for type_, name in resource.needs
        )

    def _holds(self, id_: Id) -> bool:
        progress = self._types.get(id_[0])
        return progress is not None and id_[1] in progress.held

    def _held_resources(self) -> Iterable[XdsResource]:
        # Listeners first: mostly it is their routes that are missing.
        for type_ in (LISTENER, CLUSTER, EXTENSION, ROUTES):
            yield from self.held(type_).values()

    @property
    def types(self) -> frozenset[str]:
        """The types that the proxy has subscribed to."""
        return frozenset(self._types)

    def held(self, type_: str) -> Mapping[str, XdsResource]:
        """The resources of a type that the proxy holds."""
        progress = self._types.get(type_)
        return progress.held if progress is not None else {}

    def tracked(self) -> TrackedState:
        """The same state with each resource tracked."""
        states = new_type_states()
        for type_, progress in self._types.items():
            state = states[type_]
            state.subscription.is_open, state.subscription.is_wildcard = True, type_ in FIRST_TYPES
            if type_ not in FIRST_TYPES:
                state.subscription.names.update(progress.subscribed)
            state.held.update(self.held(type_))
            state.in_flight = progress.in_flight
            state.initial_response_due = type_ in FIRST_TYPES and progress.pending == progress.subscribed
        tracked = TrackedState(self._record, states)
        tracked.offer(self._offer)
        for type_ in self._types:
            for resource in self.held(type_).values():
                tracked.expect_subscriptions(resource.needs)
        return tracked


def begun(opening: OpeningState, record: StreamRecord, offer: Offer) -> FirstSyncState | None:
    """The state of a new proxy after its first requests; None where it has to be tracked."""
    if opening.has_versions or offer.retry_rejected or not _is_plain(offer.snapshot):
        return None
    state = FirstSyncState(record, offer)
    return state if all(state.receive(request) for request, _ in opening) else None


def _some(offered: Mapping[str, XdsResource], names: Iterable[str]) -> Mapping[str, XdsResource]:
    return {name: offered[name] for name in sorted(names)}


def _is_plain(snapshot: Snapshot) -> bool:
    """Whether each resource is there once, was built, and is sent with the others of its type."""
    if snapshot.failures or snapshot.n_of_type(VIRTUAL_HOST):
        return False
    if not all(snapshot.n_of_type(type_) for type_ in FIRST_TYPES):
        return False  # it would wait for an empty response
    pairs = combinations([each.resources for each in snapshot.bundles if each.resources], 2)
    return all(one.keys().isdisjoint(other.keys()) for one, other in pairs)
