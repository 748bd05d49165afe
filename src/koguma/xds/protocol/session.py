"""DeltaSession: one delta xDS stream of a proxy, from its first request on.

Requests, offers and time go in (`receive`, `offer`, `tick`); responses come out. There is at most one
response of each type in flight, and only the newest offer counts, so a slow proxy gets fewer and larger
updates, never a queue.

Updates are make-before-break: a referenced resource is sent before what references it (`dependencies`), and
an unreferenced one is removed last (`removals`). A NACK delays such removals, because the replacement did not
arrive. A listener is different: two listeners cannot have one address, so it is removed in the response that
brings its successors, and waits only while one of them cannot be sent.

A proxy that holds exactly what was offered, and subscribes to exactly that, is synced: what it holds is read
from the offer, which it shares with others, and nothing is kept for it alone (`synced`). Most proxies are,
most of the time. A new stream first sends its subscriptions with what it holds (`opening`), and is synced at
once where that is all of the offer. One that holds nothing gets its first configuration type by type
(`first_sync`). All others are `tracked`, and the `planner` builds their responses.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, Literal

from koguma.envoy.snapshot import ENDPOINTS, LISTENER, ROUTES, VIRTUAL_HOST, Snapshot
from koguma.xds.contract import Offer, ProxyStatus, Rejection
from koguma.xds.protocol import bundle_diff, first_sync, planner, subscription, synced
from koguma.xds.protocol.acked_versions import AckedVersions
from koguma.xds.protocol.bundle_diff import BundleDiff
from koguma.xds.protocol.delta import DeltaRequest, DeltaResponse
from koguma.xds.protocol.first_sync import FirstSyncState
from koguma.xds.protocol.nack import rejections
from koguma.xds.protocol.opening import OpeningState
from koguma.xds.protocol.synced import SyncedState
from koguma.xds.protocol.tracked import StreamRecord, TrackedState, new_type_states
from koguma.xds.protocol.type_state import HeldResource, InFlightResponse

# A content diff of these types is sent as it is. Changed clusters need their endpoints sent again, and
# secrets are not shared by proxies.
_CONTENT_DIFF_TYPES: Final = frozenset({ENDPOINTS, LISTENER, ROUTES, VIRTUAL_HOST})
_NO_NAMES: Final[frozenset[str]] = frozenset()


class DeltaSession:
    """The protocol state of one stream."""

    __slots__ = ("_acked", "_newest", "_record", "_state", "_versions")

    def __init__(self, drain_seconds: float) -> None:
        self._state: OpeningState | FirstSyncState | SyncedState | TrackedState = OpeningState()
        self._record = StreamRecord(drain_seconds)
        self._newest: Offer | None = None
        self._acked: Offer | None = None  # the last one that was acknowledged completely
        self._versions = AckedVersions(self.held, 0)

    # Input.

    def receive(self, request: DeltaRequest, now: float) -> list[DeltaResponse]:
        """Handle a request of the proxy."""
        state = self._state
        if isinstance(state, SyncedState) and synced.is_plain_ack(request):
            self._receive_ack_when_synced(state, request)
            return []
        subscription.check_size(request)
        if isinstance(state, OpeningState) and self._receive_when_opening(state, request, now):
            return []
        first = self._first_sync() if not request.initial_versions else None
        if first is not None and first.receive(request):
            return self._first_responses(first, now)
        tracked = self._tracked()
        tracked.receive(request, now)
        return self._responses(tracked, now)

    def offer(self, offer: Offer, now: float) -> list[DeltaResponse]:
        """Replace the configuration that the proxy should have."""
        diff = self._content_diff(self._newest, offer)
        if diff is not None:
            return [self._send_diff(diff, offer)]
        if self.accept_if_held(offer):
            return []
        if isinstance(self._state, OpeningState):
            first = first_sync.begun(self._state, self._record, offer)
        else:
            state = self._state
            first = state if isinstance(state, FirstSyncState) and state.accept(offer) else None
        if first is not None:
            self._newest = offer
            return self._first_responses(first, now)
        tracked = self._tracked()
        self._newest = offer
        tracked.offer(offer)
        return self._responses(tracked, now)

    def accept_if_held(self, offer: Offer) -> bool:
        """Take an offer if a reconnecting proxy holds all of it already; whether that is so. Cheap."""
        state = self._state
        if not isinstance(state, OpeningState) or not self._needs_no_response(state, offer, state.types):
            return False
        self._newest = offer
        return True

    def tick(self, now: float) -> list[DeltaResponse]:
        """Handle that time has passed."""
        return self._responses(self._state, now) if isinstance(self._state, TrackedState) else []

    def _tracked(self) -> TrackedState:
        """The tracked state of the proxy; it replaces an opening or synced state."""
        state = self._state
        if isinstance(state, SyncedState):
            assert self._acked is not None
            states = synced.restored_type_states(state, self._acked.snapshot)
            state = TrackedState(self._record, states, self._newest)
        elif isinstance(state, OpeningState):
            state = self._replayed(state)
        elif isinstance(state, FirstSyncState):
            state = state.tracked()
        self._state = state
        return state

    def _responses(self, tracked: TrackedState, now: float) -> list[DeltaResponse]:
        responses = planner.responses(tracked, now)
        if self._newest is not None and not tracked.has_unacked():
            self._acked = self._newest
            has_failures = bool(tracked.failed)
            state = None if has_failures else synced.from_type_states(tracked.states, self._newest.snapshot)
            self._state = state or tracked
        return responses

    # A proxy that gets its first configuration.

    def _first_sync(self) -> FirstSyncState | None:
        """The state of a proxy that gets its first configuration; None of any other."""
        if isinstance(self._state, OpeningState) and self._newest is not None:
            return first_sync.begun(self._state, self._record, self._newest)
        return self._state if isinstance(self._state, FirstSyncState) else None

    def _first_responses(self, first: FirstSyncState, now: float) -> list[DeltaResponse]:
        self._state = first
        if first.is_complete:
            self._state, self._acked = synced.from_types(first.types), self._newest
            return []
        responses = first.responses()
        return self._responses(self._tracked(), now) if not responses and first.is_stuck else responses

    # A stream that has only sent its first subscriptions.

    def _receive_when_opening(self, opening: OpeningState, request: DeltaRequest, now: float) -> bool:
        """Note a first subscription that needs no response; whether it was one."""
        extended = opening.with_request(request, now)
        if extended is None or not self._needs_no_response(extended, self._newest, {request.type}):
            return False
        if request.initial_versions:
            # Whatever referenced the other resources may have been removed just before this stream began.
            self._record.removals.dereference_all(now)
        return True

    def _needs_no_response(self, opening: OpeningState, offer: Offer | None, types: AbstractSet[str]) -> bool:
        """Whether these first subscriptions, of which `types` are new, need no response now.

        The proxy is synced where it has subscribed to everything.
        """
        if offer is None:
            self._state = opening
            return True
        if not opening.matches(offer.snapshot, types):
            return False
        missing = opening.missing_types(offer.snapshot)
        if missing and not opening.will_subscribe(missing, offer.snapshot):
            return False
        self._state = opening
        if not missing:
            self._state, self._acked = synced.from_types(opening.types), offer
        return True

    def _replayed(self, opening: OpeningState) -> TrackedState:
        """The tracked state after the same requests; none of them needed a response."""
        tracked = TrackedState(self._record, new_type_states())
        for request, received_at in opening:
            tracked.receive(request, received_at)
        if self._newest is not None:
            tracked.offer(self._newest)
        return tracked

    # A proxy that is synced, or tracked and idle.

    def _receive_ack_when_synced(self, state: SyncedState, request: DeltaRequest) -> None:
        """Handle the ACK of a content update; one of an older response means nothing."""
        response = state.in_flight
        if response is not None and response.nonce == request.nonce:
            self._record.count_ack(response.type)
            self._state, self._acked = synced.without_in_flight(state), response.completes

    def _content_diff(self, before: Offer | None, offer: Offer) -> BundleDiff | None:
        """A diff that can be sent as it is, because the proxy has acknowledged everything before it."""
        state = self._state
        if (
            before is None
            or before is not self._acked
            or offer.snapshot.failures
            or isinstance(state, OpeningState | FirstSyncState)
        ):
            return None
        diff = bundle_diff.content_diff(before.snapshot, offer.snapshot)
        if diff is None or diff.type not in _CONTENT_DIFF_TYPES:
            return None
        if isinstance(state, SyncedState):  # then no two bundles hold a resource of one name
            return diff if state.in_flight is None else None
        return diff if state.can_take(diff) and not bundle_diff.is_shadowed(diff, offer.snapshot) else None

    def _send_diff(self, diff: BundleDiff, offer: Offer) -> DeltaResponse:
        self._newest = offer
        nonce = self._record.next_nonce(diff.type)
        response = InFlightResponse(nonce, diff.resources, _NO_NAMES, offer.revision, offer, diff.type)
        if isinstance(self._state, TrackedState):
            self._state.newest = offer
            self._state.states[diff.type].send(response)
        elif isinstance(self._state, SyncedState):
            self._state = synced.with_in_flight(self._state, response)
        return DeltaResponse(diff.type, nonce, tuple(diff.resources.values()), diff=diff)

    # What is known of the proxy.

    @property
    def next_tick(self) -> float | None:
        """When `tick` is to be called, if nothing else happens before."""
        return self._record.removals.next_due

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot of the newest offer."""
        return self._newest.snapshot if self._newest else None

    @property
    def is_synced(self) -> bool:
        """Whether nothing is kept for this proxy alone."""
        return isinstance(self._state, SyncedState)

    @property
    def n_acks(self) -> int:
        """The number of responses that the proxy has ACKed."""
        return self._record.n_acks

    def held(self, type_: str) -> Mapping[str, HeldResource]:
        """The resources of one type that the proxy holds, by name."""
        state = self._state
        if isinstance(state, TrackedState):
            return state.states[type_].held
        if isinstance(state, OpeningState):
            return state.held(type_, self.snapshot)
        if isinstance(state, FirstSyncState):
            return state.held(type_)
        assert self._acked is not None
        return self._acked.snapshot.of_type(type_)

    @property
    def status(self) -> ProxyStatus:
        """The status of the proxy. The versions in it are those of the moment in which they are read."""
        nacks = _rejections(self._state) if isinstance(self._state, TrackedState) else ()
        return ProxyStatus(
            state="nack" if nacks else self._progress(),
            offered=self._newest.revision if self._newest else 0,
            acked=self._acked.revision if self._acked else 0,
            rejections=nacks,
            acked_versions=self._acked_versions(),
            acked_snapshot=self._acked.snapshot if self._acked else None,
            responses=self._record.responses,
        )

    def _acked_versions(self) -> AckedVersions:
        if self._versions.n_acks != self.n_acks:
            self._versions = AckedVersions(self.held, self.n_acks)
        return self._versions

    def _progress(self) -> Literal["connecting", "synced", "behind"]:
        if self._acked is None:
            return "connecting"
        return "synced" if self._acked is self._newest else "behind"


def _rejections(tracked: TrackedState) -> tuple[Rejection, ...]:
    rejecting = [state for state in tracked.states.values() if state.nacks]
    return tuple(rejection for state in rejecting for rejection in rejections(state.type, state.nacks))
