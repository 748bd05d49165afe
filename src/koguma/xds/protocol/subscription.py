"""Subscription: what a proxy asks for, of one type, and how much that may be.

What a proxy names is kept for as long as its stream lasts, also where there is no such thing. So there is a
limit, which is far above what an Envoy that works has: a name per cluster, listener or route of its own.
"""

from typing import Final

import msgspec

from koguma.model.errors import BadRequest
from koguma.xds.protocol.exchange import WILDCARD, WILDCARD_TYPES, DeltaRequest

NAMES_MAX: Final = 20_000  # that a stream may ask for of one type
CHARACTERS_MAX: Final = 4_000_000  # of all of them together


def check_size(request: DeltaRequest) -> None:
    """Refuse a request that alone names more, or longer, than a stream may."""
    _check_number(request.type, len(request.subscribe), sum(map(len, request.subscribe)))
    _check_number(request.type, len(request.unsubscribe))
    _check_number(request.type, request.n_versions)


def _check_number(type_: str, n_names: int, n_characters: int = 0) -> None:
    if n_names > NAMES_MAX or n_characters > CHARACTERS_MAX:
        raise BadRequest(
            f"the proxy names {n_names} resources of the type {type_} ({n_characters} characters), and"
            f" {NAMES_MAX} names of {CHARACTERS_MAX} characters are the most that one stream may; ask for"
            " what the clusters and listeners refer to"
        )


class Change(msgspec.Struct, frozen=True):
    """What a request changed."""

    asked: frozenset[str]  # names that were not asked for before
    repeated: frozenset[str]  # names that were, and are to be sent again whatever their version
    left: frozenset[str]  # names that nobody asks for any more
    is_general: bool  # whether everything of the type is asked for since now, or no longer


class Subscription:
    """Names, everything, or both. It begins closed: nobody has asked for this type yet."""

    __slots__ = ("_n_characters", "is_open", "is_wildcard", "names", "type")

    def __init__(self, type_: str) -> None:
        self.type = type_
        self.is_open = False
        self.is_wildcard = False
        self.names: set[str] = set()
        self._n_characters = 0  # of the names that it asked for by itself

    def update(self, request: DeltaRequest) -> Change:
        """Take in what a request asks for and what it asks for no longer."""
        before = self.is_wildcard
        asked = set(request.subscribe)
        if WILDCARD in asked or self._means_everything(request):
            self.is_wildcard = True
        if WILDCARD in request.unsubscribe:
            self.is_wildcard = False
        self.is_open = True
        asked.discard(WILDCARD)
        repeated = asked & self.names
        self._count(asked - repeated)
        self.names |= asked
        left, repeated_by_leaving = self._leave(set(request.unsubscribe) - {WILDCARD})
        return Change(
            asked=frozenset(asked - repeated - left),
            repeated=frozenset(repeated - left) | repeated_by_leaving,
            left=left,
            is_general=self.is_wildcard != before,
        )

    def _count(self, more: set[str]) -> None:
        n_characters = self._n_characters + sum(map(len, more))
        _check_number(self.type, len(self.names) + len(more), n_characters)
        self._n_characters = n_characters

    def _means_everything(self, request: DeltaRequest) -> bool:
        # The older way to say it: a first request without names.
        return not self.is_open and not request.subscribe and self.type in WILDCARD_TYPES

    def _leave(self, names: set[str]) -> tuple[frozenset[str], frozenset[str]]:
        left = frozenset(names & self.names)
        self.names -= left
        self._n_characters = max(0, self._n_characters - sum(map(len, left)))
        # Whoever asks for everything still gets what it left by name, and is told so by a repetition.
        return (frozenset(), left) if self.is_wildcard else (left, frozenset())
