"""Subscription: which resources of one type a proxy subscribes to, and the limits of that.

Names are kept as long as the stream lasts, even names that do not exist, so their number and length are
limited. The limits are far above what a working Envoy needs: one name per cluster, listener or route.
"""

from typing import Final

import msgspec

from koguma.model.errors import BadRequest
from koguma.xds.protocol.delta import WILDCARD, WILDCARD_TYPES, DeltaRequest

NAMES_MAX: Final = 20_000  # per type and stream
CHARACTERS_MAX: Final = 4_000_000  # of all these names together


def check_size(request: DeltaRequest) -> None:
    """Reject a request that alone exceeds the limits of a stream."""
    _check_limits(request.type, len(request.subscribe), sum(map(len, request.subscribe)))
    _check_limits(request.type, len(request.unsubscribe))
    _check_limits(request.type, request.n_versions)


def _check_limits(type_: str, n_names: int, n_characters: int = 0) -> None:
    if n_names > NAMES_MAX or n_characters > CHARACTERS_MAX:
        raise BadRequest(
            f"the proxy names {n_names} resources of the type {type_} ({n_characters} characters), and"
            f" {NAMES_MAX} names of {CHARACTERS_MAX} characters are the most that one stream may; ask for"
            " what the clusters and listeners refer to"
        )


class SubscriptionChange(msgspec.Struct, frozen=True):
    """What a request changed in a subscription."""

    added: frozenset[str]  # names that are new
    resubscribed: frozenset[str]  # names to send again, whatever version the proxy has
    removed: frozenset[str]  # names that are no longer subscribed
    wildcard_changed: bool  # the wildcard was added or removed


class Subscription:
    """Names, the wildcard, or both. It is open once the proxy has sent a request of this type."""

    __slots__ = ("_n_characters", "is_open", "is_wildcard", "names", "type")

    def __init__(self, type_: str) -> None:
        self.type = type_
        self.is_open = False
        self.is_wildcard = False
        self.names: set[str] = set()
        self._n_characters = 0  # of `names`

    def update(self, request: DeltaRequest) -> SubscriptionChange:
        """Apply the subscribe and unsubscribe lists of a request."""
        was_wildcard = self.is_wildcard
        requested = set(request.subscribe)
        if WILDCARD in requested or self._is_implicit_wildcard(request):
            self.is_wildcard = True
        if WILDCARD in request.unsubscribe:
            self.is_wildcard = False
        self.is_open = True
        requested.discard(WILDCARD)
        resubscribed = requested & self.names
        self._count(requested - resubscribed)
        self.names |= requested
        removed, still_matched = self._unsubscribe(set(request.unsubscribe) - {WILDCARD})
        return SubscriptionChange(
            added=frozenset(requested - resubscribed - removed),
            resubscribed=frozenset(resubscribed - removed) | still_matched,
            removed=removed,
            wildcard_changed=self.is_wildcard != was_wildcard,
        )

    def _count(self, added: set[str]) -> None:
        n_characters = self._n_characters + sum(map(len, added))
        _check_limits(self.type, len(self.names) + len(added), n_characters)
        self._n_characters = n_characters

    def _is_implicit_wildcard(self, request: DeltaRequest) -> bool:
        # The legacy wildcard: a first request without names (xDS protocol, "Wildcard subscriptions").
        return not self.is_open and not request.subscribe and self.type in WILDCARD_TYPES

    def _unsubscribe(self, names: set[str]) -> tuple[frozenset[str], frozenset[str]]:
        """The names that are unsubscribed, and those that the wildcard still matches."""
        removed = frozenset(names & self.names)
        self.names -= removed
        self._n_characters = max(0, self._n_characters - sum(map(len, removed)))
        # The xDS protocol has the server send a resource again that the wildcard still matches.
        return (frozenset(), removed) if self.is_wildcard else (removed, frozenset())
