"""Subscription: what a proxy asks for, of one type."""

import msgspec

from koguma.xds.protocol.exchange import WILDCARD, WILDCARD_TYPES, DeltaRequest


class Change(msgspec.Struct, frozen=True):
    """What a request changed."""

    asked: frozenset[str]  # names that were not asked for before
    repeated: frozenset[str]  # names that were, and are to be sent again whatever their version
    left: frozenset[str]  # names that nobody asks for any more
    is_general: bool  # whether everything of the type is asked for since now, or no longer


class Subscription:
    """Names, everything, or both. It begins closed: nobody has asked for this type yet."""

    __slots__ = ("is_open", "is_wildcard", "names", "type")

    def __init__(self, type_: str) -> None:
        self.type = type_
        self.is_open = False
        self.is_wildcard = False
        self.names: set[str] = set()

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
        self.names |= asked
        left, repeated_by_leaving = self._leave(set(request.unsubscribe) - {WILDCARD})
        return Change(
            asked=frozenset(asked - repeated - left),
            repeated=frozenset(repeated - left) | repeated_by_leaving,
            left=left,
            is_general=self.is_wildcard != before,
        )

    def _means_everything(self, request: DeltaRequest) -> bool:
        # The older way to say it: a first request without names.
        return not self.is_open and not request.subscribe and self.type in WILDCARD_TYPES

    def _leave(self, names: set[str]) -> tuple[frozenset[str], frozenset[str]]:
        left = frozenset(names & self.names)
        self.names -= left
        # Whoever asks for everything still gets what it left by name, and is told so by a repetition.
        return (frozenset(), left) if self.is_wildcard else (left, frozenset())
