"""Channel: one type of resource on one stream: what is asked for, what the proxy has, what is on its way."""

from collections.abc import Mapping

import msgspec

from koguma.envoy.snapshot import Id, XdsResource
from koguma.xds.contract import Offer
from koguma.xds.protocol.exchange import WILDCARD_TYPES, DeltaRequest
from koguma.xds.protocol.refusal import GONE, Refusal, mentioned
from koguma.xds.protocol.subscription import Subscription

# What a proxy has: a piece, or the version of one that it took on an earlier stream and that we cannot read.
Held = XdsResource | str


class Flight(msgspec.Struct, frozen=True):
    """A response that was not answered yet. There is one at most for each type."""

    nonce: str
    pieces: Mapping[str, XdsResource]
    removed: frozenset[str]
    revision: int
    all_of: Offer | None = None  # it holds all that this offer changed, and nothing else had to be said
    type: str = ""


class Channel:
    """The state of one type. `pending` are the names about which something is still to be said."""

    __slots__ = (
        "_refused",
        "_suspects",
        "absent",
        "again",
        "doubted",
        "flight",
        "greeting",
        "held",
        "opaque",
        "pending",
        "refusals",
        "subscription",
        "type",
    )

    def __init__(self, type_: str) -> None:
        self.type = type_
        self.subscription = Subscription(type_)
        self.held: dict[str, Held] = {}
        self.opaque: set[str] = set()  # names in `held` of which only the version is known
        self.flight: Flight | None = None
        self.pending: set[str] = set()
        self.again: set[str] = set()  # to be sent whatever the version
        self.doubted: set[str] = set()  # a refused response held them; the proxy may have taken them or not
        self.absent: set[str] = set()  # asked for by name, and the proxy knows that they do not exist
        self.greeting = False  # a first answer is due even if there is nothing to say
        self.refusals: dict[str, Refusal] = {}
        self._refused: dict[str, set[str]] = {}
        self._suspects: list[frozenset[str]] = []

    @property
    def has_something_to_say(self) -> bool:
        """Whether there may be a response to send now."""
        return self.flight is None and (bool(self.pending) or self.greeting)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to say, nothing was, and no refusal is remembered."""
        return not (self.flight or self.pending or self.greeting or self._refused) and self.is_calm

    @property
    def is_calm(self) -> bool:
        """Whether nothing is odd: the proxy has what `held` says, and that is all there is to know."""
        return not (self.again or self.doubted or self.opaque or self.refusals)

    def version(self, name: str) -> str | None:
        """The version that the proxy has."""
        held = self.held.get(name)
        return held.version if isinstance(held, XdsResource) else held

    def needs(self, name: str) -> tuple[Id, ...]:
        """What the version that the proxy has refers to, as far as it can be read."""
        held = self.held.get(name)
        return held.needs if isinstance(held, XdsResource) else ()

    def is_unsure(self, name: str) -> bool:
        """Whether the proxy has, or may have, something of that name that could refer to anything."""
        return name in self.opaque or name in self.doubted

    def covers(self, name: str) -> bool:
        """Whether the proxy asks for that name."""
        return self.subscription.is_wildcard or name in self.subscription.names

    def covers_all(self, pieces: Mapping[str, XdsResource]) -> bool:
        """Whether the proxy asks for all of these names."""
        return self.subscription.is_wildcard or pieces.keys() <= self.subscription.names

    def is_leaving(self, name: str) -> bool:
        """Whether a removal of that name is on its way."""
        return self.flight is not None and name in self.flight.removed

    def resume(self, request: DeltaRequest) -> bool:
        """Take over what the proxy has from an earlier stream; whether that is anything."""
        for name, version in request.initial_versions.items():
            if self.covers(name):
                self.held[name] = version
                self.opaque.add(name)
        # A proxy that starts waits for a first answer; one that has something does not.
        self.greeting = self.type in WILDCARD_TYPES and not self.held
        return bool(self.held)

    def put(self, piece: XdsResource) -> None:
        """The proxy has this piece."""
        self.held[piece.name] = piece
        for names in (self.opaque, self.doubted, self.absent):
            names.discard(piece.name)
        self.refusals.pop(piece.name, None)

    def drop(self, name: str) -> None:
        """The proxy has no piece of that name."""
        self.held.pop(name, None)
        self.opaque.discard(name)
        self.doubted.discard(name)
        if name in self.subscription.names:
            self.absent.add(name)

    def forget(self, name: str) -> None:
        """Nobody asks for that name any more."""
        self.drop(name)
        for names in (self.again, self.absent, self.pending):
            names.discard(name)
        self.refusals.pop(name, None)

    def send(self, flight: Flight) -> None:
        """The response is on its way."""
        self.flight = flight
        self.greeting = False
        self.again -= flight.pieces.keys() | flight.removed
        if self._suspects:
            self._suspects.pop()

    def refuses(self, name: str, version: str) -> bool:
        """Whether that version was refused on this stream, so that sending it again is of no use."""
        return version in self._refused.get(name, ())

    def refuse(self, flight: Flight, text: str) -> None:
        """Note that a response was refused, and whose fault it was.

        Envoy mostly names the culprits and takes the rest, but after some mistakes it takes nothing and names
        one all the same. So the rest is in doubt and is sent again, which changes nothing where it was taken.
        If nobody is named, halves are tried until the culprit is alone.
        """
        sent = {name: piece.version for name, piece in flight.pieces.items() if self.covers(name)}
        removed = {name for name in flight.removed if self.covers(name)}
        sent = sent or dict.fromkeys(removed, GONE)
        named = mentioned(text, sent)
        culprits = named or (frozenset(sent) if len(flight.pieces) <= 1 else frozenset())
        for name in culprits:
            self._refused.setdefault(name, set()).add(sent[name])
        for name in named or sent:
            self.refusals[name] = Refusal(sent[name], text, flight.revision)
        if not culprits:
            self._suspect(sorted(sent))
        self.doubted |= (sent.keys() | removed) - culprits

    def retry(self) -> set[str]:
        """Forget which versions were refused, because what they collided with may be gone; their names."""
        names = set(self._refused)
        self._refused.clear()
        return names

    def turn(self) -> set[str]:
        """The names that may go with the next response: a group of suspects, or whatever is pending."""
        while self._suspects:
            if group := self._suspects[-1] & self.pending:
                return set(group)
            self._suspects.pop()
        return self.pending

    def skip(self) -> bool:
        """Give up the group whose turn it is, because nothing of it can be sent; whether there was one."""
        if self._suspects:
            self._suspects.pop()
            return True
        return False

    def _suspect(self, names: list[str]) -> None:
        middle = len(names) // 2
        halves = (frozenset(names[middle:]), frozenset(names[:middle]))
        self._suspects += [half for half in halves if half]
