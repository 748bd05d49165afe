"""Rest: a proxy that has just what was offered, asks for just that, and has heard everything.

All that there is to know of it stands in the offer, but for which types it asked for. Proxies that share
bundles therefore share what is known of them, and thousands at rest cost little more than their streams.
Whatever is not plain wakes a session: its channels are made again from what it has, as they were.
"""

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from koguma.envoy.snapshot import TYPES, Snapshot
from koguma.xds.protocol.channel import Channel, Flight
from koguma.xds.protocol.claims import Claims
from koguma.xds.protocol.exchange import WILDCARD_TYPES, DeltaRequest


class Rest(msgspec.Struct, frozen=True):
    """What a proxy asked for; and at most one plain step on its way, after which it is at rest again."""

    opened: frozenset[str]  # types that it asked for at all
    whole: frozenset[str]  # of these, types of which it asked for everything
    flight: Flight | None = None


def of(channels: Mapping[str, Channel], snapshot: Snapshot) -> Rest | None:
    """The rest of a proxy that has all of a snapshot; None where more is to be remembered of it."""
    for channel in channels.values():
        subscription, n_pieces = channel.subscription, snapshot.n_of_type(channel.type)
        n_asked = 0 if subscription.is_wildcard else n_pieces
        if not (channel.is_idle and not channel.absent and len(channel.held) == n_pieces):
            return None
        if len(subscription.names) != n_asked:
            return None
    return _rest_of(channels)


def _rest_of(channels: Mapping[str, Channel]) -> Rest:
    opened = (channel for channel in channels.values() if channel.subscription.is_open)
    types = {channel.type: channel.subscription.is_wildcard for channel in opened}
    return _rest(frozenset(types), frozenset(type_ for type_, is_whole in types.items() if is_whole))


def of_claims(claims: Claims) -> Rest:
    """The rest of a proxy that came back with all of a snapshot, and said so."""
    return _rest(claims.types, claims.types & WILDCARD_TYPES)


@lru_cache(maxsize=1024)
def _rest(opened: frozenset[str], whole: frozenset[str]) -> Rest:
    return Rest(opened, whole)


def with_flight(rest: Rest, flight: Flight) -> Rest:
    """The same with a step on its way."""
    return Rest(rest.opened, rest.whole, flight)


def without_flight(rest: Rest) -> Rest:
    """The same after the step."""
    return _rest(rest.opened, rest.whole)


def is_plain(request: DeltaRequest) -> bool:
    """Whether a request takes a response, and says nothing else."""
    return bool(request.nonce) and not (request.error or request.subscribe or request.unsubscribe)


def recalled(rest: Rest, has: Snapshot) -> Mapping[str, Channel]:
    """The channels of a proxy at rest."""
    channels = {type_: Channel(type_) for type_ in TYPES}
    for type_, channel in channels.items():
        channel.held.update(has.of_type(type_))
        subscription = channel.subscription
        subscription.is_open = type_ in rest.opened
        subscription.is_wildcard = type_ in rest.whole
        if not subscription.is_wildcard:
            subscription.names.update(channel.held)
    if rest.flight is not None:
        channels[rest.flight.type].flight = rest.flight
    return channels
