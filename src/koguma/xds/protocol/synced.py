"""SyncedState: a proxy that holds exactly what was offered, subscribes to exactly that, and has ACKed it.

Everything that is known of it is in the offer, except which types it subscribes to. Proxies that share
bundles share this state too, so thousands of synced proxies cost little more than their streams. Anything
but a plain ACK turns it back into per-type states, restored from the offer.
"""

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from koguma.envoy.snapshot import TYPES, Snapshot
from koguma.xds.protocol.delta import WILDCARD_TYPES, DeltaRequest
from koguma.xds.protocol.type_state import InFlightResponse, TypeState


class SyncedState(msgspec.Struct, frozen=True):
    """The types a proxy subscribes to; and at most one content update in flight, whose ACK syncs it again."""

    types: frozenset[str]  # with a subscription
    wildcard_types: frozenset[str]  # of these, types with a wildcard subscription
    in_flight: InFlightResponse | None = None


def from_type_states(states: Mapping[str, TypeState], snapshot: Snapshot) -> SyncedState | None:
    """The state of a proxy that holds all of a snapshot; None where more has to be remembered of it."""
    for state in states.values():
        subscription, n_resources = state.subscription, snapshot.n_of_type(state.type)
        n_names = 0 if subscription.is_wildcard else n_resources
        if not (state.is_idle and not state.known_missing and len(state.held) == n_resources):
            return None
        if len(subscription.names) != n_names:
            return None
    open_ = (state for state in states.values() if state.subscription.is_open)
    types = {state.type: state.subscription.is_wildcard for state in open_}
    return _shared(frozenset(types), frozenset(type_ for type_, is_wildcard in types.items() if is_wildcard))


def from_types(types: frozenset[str]) -> SyncedState:
    """The state of a proxy that holds all of a snapshot, and subscribes to these types as Envoy does."""
    return _shared(types, types & WILDCARD_TYPES)


@lru_cache(maxsize=1024)
def _shared(types: frozenset[str], wildcard_types: frozenset[str]) -> SyncedState:
    return SyncedState(types, wildcard_types)


def with_in_flight(synced: SyncedState, response: InFlightResponse) -> SyncedState:
    """The state after a content update was sent."""
    return SyncedState(synced.types, synced.wildcard_types, response)


def without_in_flight(synced: SyncedState) -> SyncedState:
    """The state after the update was ACKed."""
    return _shared(synced.types, synced.wildcard_types)


def is_plain_ack(request: DeltaRequest) -> bool:
    """Whether a request is an ACK that changes no subscription."""
    return bool(request.nonce) and not (request.error or request.subscribe or request.unsubscribe)


def restored_type_states(synced: SyncedState, held: Snapshot) -> Mapping[str, TypeState]:
    """The per-type states of a synced proxy that holds a snapshot."""
    states = {type_: TypeState(type_) for type_ in TYPES}
    for type_, state in states.items():
        state.held.update(held.of_type(type_))
        subscription = state.subscription
        subscription.is_open = type_ in synced.types
        subscription.is_wildcard = type_ in synced.wildcard_types
        if not subscription.is_wildcard:
            subscription.names.update(state.held)
    if synced.in_flight is not None:
        states[synced.in_flight.type].in_flight = synced.in_flight
    return states
