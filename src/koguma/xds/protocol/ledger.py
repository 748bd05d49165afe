"""Ledger: what is known of a proxy that is awake: what it has, what it asks for, and what it is to have.

Whatever comes in is noted here, and each time the names that it touches are looked at again (`recheck`). What
is then `pending` in a channel is still to be said; `speech` says it.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from koguma.envoy.snapshot import LISTENER, TYPES, Id, Snapshot, XdsResource
from koguma.xds.contract import Offer
from koguma.xds.protocol import differences
from koguma.xds.protocol.channel import Channel, Flight
from koguma.xds.protocol.departures import Departures
from koguma.xds.protocol.differences import Step
from koguma.xds.protocol.exchange import WILDCARD_TYPES, DeltaRequest
from koguma.xds.protocol.outlook import Outlook, State
from koguma.xds.protocol.refusal import GONE, Refusal
from koguma.xds.protocol.subscription import Change


class Course:
    """What counts from the beginning of a stream to its end, whether the proxy is at rest or not."""

    __slots__ = ("departures", "n_accepted", "n_responses")

    def __init__(self, drain_seconds: float) -> None:
        self.departures = Departures(drain_seconds)
        self.n_responses = 0
        self.n_accepted = 0  # responses that the proxy has taken

    def next_nonce(self) -> str:
        """The nonce of one more response."""
        self.n_responses += 1
        return str(self.n_responses)


class Ledger:
    """What was said on one stream, and about what something is still to be said."""

    __slots__ = ("channels", "course", "failed", "newest", "unasked")

    def __init__(self, course: Course, channels: Mapping[str, Channel], newest: Offer | None = None) -> None:
        self.course = course
        self.channels = channels
        self.newest = newest
        self.failed: frozenset[Id] = frozenset()
        self.unasked: set[Id] = set()  # wanted, and the proxy is still to ask for them

    def hear(self, request: DeltaRequest, now: float) -> None:
        """The proxy asks for something, or answers."""
        channel = self.channels[request.type]
        if request.nonce:
            self._settle(channel, request, now)
        if request.subscribe or request.unsubscribe or not channel.subscription.is_open:
            self._subscribe(channel, request, now)

    def take(self, offer: Offer) -> None:
        """The proxy is to have this, and no longer what was offered before."""
        before, self.newest = self.newest, offer
        failed = self.failed
        ids = (failure.id for failure in offer.snapshot.failures)
        self.failed = frozenset(id_ for id_ in ids if id_[0] in self.channels)  # a policy may fail too
        touched = set(differences.between(before.snapshot if before else Snapshot(), offer.snapshot))
        touched |= failed ^ self.failed
        if before is None:
            touched.update((type_, name) for type_ in TYPES for name in self._known_names(type_))
        if offer.retry_rejected:
            touched.update((type_, name) for type_ in TYPES for name in self.channels[type_].retry())
        for type_, names in _by_type(touched).items():
            self.recheck(self.channels[type_], names)

    def is_open_to(self, step: Step) -> bool:
        """Whether the proxy is at peace, and asks for all that a step changes."""
        if self.failed or not all(channel.is_idle for channel in self.channels.values()):
            return False
        return self.channels[step.type].covers_all(step.pieces)

    # What the proxy asks for.

    def _subscribe(self, channel: Channel, request: DeltaRequest, now: float) -> None:
        is_first = not channel.subscription.is_open
        change = channel.subscription.update(request)
        # The proxy may have been told before that this does not exist, and asks whether that has changed.
        channel.absent -= change.asked | change.repeated
        channel.again |= change.repeated
        if channel.flight is not None:  # what was sent before it was asked for does not count
            channel.again |= change.asked & channel.flight.pieces.keys()
        if is_first and channel.resume(request):
            # What referred to the rest may have gone just before this stream began.
            self.course.departures.release_all(now)
        self._leave(channel, change, now)
        is_general = is_first or change.is_general
        if is_general:
            names = self._known_names(channel.type) | self._wanted_names(channel.type)
        else:
            names = change.asked | change.repeated
        self.recheck(channel, names)

    def _leave(self, channel: Channel, change: Change, now: float) -> None:
        left = set(change.left)
        if change.is_general:
            left.update(name for name in channel.held if not channel.covers(name))
        for name in left:
            self._drop(channel, name, now)
            channel.forget(name)

    def _known_names(self, type_: str) -> AbstractSet[str]:
        """The names of a type that mean something to the proxy."""
        channel = self.channels[type_]
        return channel.held.keys() | channel.subscription.names

    def _wanted_names(self, type_: str) -> AbstractSet[str]:
        """The names of a type that the proxy is to have without asking for each."""
        if self.newest is None or type_ not in WILDCARD_TYPES:
            return frozenset()
        return self.newest.snapshot.of_type(type_).keys()

    # What the proxy answers.

    def _settle(self, channel: Channel, request: DeltaRequest, now: float) -> None:
        flight = channel.flight
        if flight is None or flight.nonce != request.nonce:
            return  # an answer to something older, which a later answer makes void
        channel.flight = None
        is_all = flight.all_of is not None and flight.all_of is self.newest and not request.error
        if is_all and channel.is_calm and channel.covers_all(flight.pieces):
            self.course.n_accepted += 1
            channel.held.update(flight.pieces)
            return
        touched = flight.pieces.keys() | flight.removed
        if request.error:
            channel.refuse(flight, request.error)
        else:
            touched |= self._accept(channel, flight, now)
        self.recheck(channel, touched)

    def _accept(self, channel: Channel, flight: Flight, now: float) -> set[str]:
        """Note what the proxy has now; the names of what may be tried once more because of it."""
        self.course.n_accepted += 1
        for name, piece in flight.pieces.items():
            if channel.covers(name):
                self._put(channel, piece, now)
        for name in flight.removed:
            self._drop(channel, name, now)
        # A listener may have been refused because one that is gone now had its address.
        return channel.retry() if channel.type == LISTENER and flight.removed else set()

    def _put(self, channel: Channel, piece: XdsResource, now: float) -> None:
        before, was_unsure = channel.needs(piece.name), channel.is_unsure(piece.name)
        channel.put(piece)
        if was_unsure or before != piece.needs:
            if was_unsure or before:
                self._release(set(before) - set(piece.needs), was_unsure=was_unsure, now=now)
            self._expect(each for each in piece.needs if each not in before)

    def _drop(self, channel: Channel, name: str, now: float) -> None:
        before, was_unsure = channel.needs(name), channel.is_unsure(name)
        channel.drop(name)
        self._release(set(before), was_unsure=was_unsure, now=now)

    def _release(self, needs: set[Id], *, was_unsure: bool, now: float) -> None:
        if needs:
            self.course.departures.release(needs, now)
            self.unasked -= needs
        if was_unsure:
            self.course.departures.release_all(now)

    def _expect(self, needs: Iterable[Id]) -> None:
        """The proxy has something that needs these, and so will ask for them."""
        for type_, name in needs:
            if self.wanted((type_, name)) is not None and not self.channels[type_].covers(name):
                self.unasked.add((type_, name))

    # What is still to be said.

    def wanted(self, id_: Id) -> XdsResource | None:
        """What the proxy is to have of that type and name."""
        return self.newest.snapshot.get(id_) if self.newest else None

    def recheck(self, channel: Channel, names: Iterable[str]) -> None:
        """Look again at resources about which something has changed."""
        if self.newest is None:
            return
        type_, get, unasked = channel.type, self.newest.snapshot.get, self.unasked
        held, is_calm = channel.held, channel.is_calm
        for name in names:
            id_ = type_, name
            wanted = get(id_)
            if is_calm and wanted is not None and held.get(name) is wanted:  # most of them, when answered
                channel.pending.discard(name)
                continue
            self._recognise(channel, wanted, name)
            covers = channel.covers(name)
            self._mark(channel, name, wanted, is_pending=covers and self._is_pending(channel, wanted, name))
            if wanted is None or covers:
                unasked.discard(id_)
            elif type_ in WILDCARD_TYPES:
                unasked.add(id_)

    def _mark(self, channel: Channel, name: str, wanted: XdsResource | None, *, is_pending: bool) -> None:
        if not is_pending:
            channel.pending.discard(name)
            return
        if wanted is None and channel.type == LISTENER and name not in channel.pending:
            channel.retry()  # one was refused, maybe, because this one has its address
        channel.pending.add(name)

    def _recognise(self, channel: Channel, wanted: XdsResource | None, name: str) -> None:
        """Find out what a version means that the proxy brought along, and whether a refusal still stands."""
        if name in channel.opaque and wanted is not None and channel.held[name] == wanted.version:
            channel.held[name] = wanted
            channel.opaque.discard(name)
            self._expect(wanted.needs)
        refused = channel.refusals.get(name)
        if refused is not None and _is_over(refused, channel.version(name), wanted):
            del channel.refusals[name]

    def _is_pending(self, channel: Channel, wanted: XdsResource | None, name: str) -> bool:
        if name in channel.again or name in channel.doubted:
            return True
        if wanted is not None:
            return channel.version(name) != wanted.version
        if name in channel.held:
            return (channel.type, name) not in self.failed
        return name in channel.subscription.names and name not in channel.absent

    def owes_anything(self) -> bool:
        """Whether something of the newest offer was not acknowledged.

        What only waits to leave is no debt, nor what cannot come because a part of it could not be built:
        nobody could ever pay that.
        """
        if self.unasked:
            return True
        open_ = [each for each in self.channels.values() if each.pending or each.flight or each.greeting]
        outlook = self.outlook() if self.failed else None
        return any(self._is_owing(channel, outlook) for channel in open_)

    def outlook(self) -> Outlook:
        """What will become of each resource, as it stands now."""
        return Outlook(self.channels, self.newest.snapshot if self.newest else Snapshot(), self.failed)

    def _is_owing(self, channel: Channel, outlook: Outlook | None) -> bool:
        flight = channel.flight
        if channel.greeting or (flight is not None and (flight.pieces or channel.type == LISTENER)):
            return True
        return any(self._owes(channel, name, outlook) for name in channel.pending)

    def _owes(self, channel: Channel, name: str, outlook: Outlook | None) -> bool:
        wanted = self.wanted((channel.type, name))
        if wanted is None:
            return channel.type == LISTENER
        return outlook is None or outlook.verdict(wanted) is not State.UNBUILT


def new_channels() -> Mapping[str, Channel]:
    """The channels of a stream on which nothing was said."""
    return {type_: Channel(type_) for type_ in TYPES}


def _by_type(ids: Iterable[Id]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for type_, name in ids:
        found.setdefault(type_, []).append(name)
    return found


def _is_over(refused: Refusal, held: str | None, wanted: XdsResource | None) -> bool:
    """Whether what was refused is not wanted any more, so that the refusal says nothing about now."""
    if wanted is None:
        return refused.version != GONE or held is None
    return wanted.version == held
