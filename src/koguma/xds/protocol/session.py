"""Session: one stream of a proxy, from its first request on, in the incremental form of xDS.

Whatever happens goes in (`receive`, `offer`, `tick`), and what is to be sent comes out. One response of each
type is under way at a time and the newest offer counts, so a slow proxy gets fewer and larger steps, never a
queue.

A change is made before the old is broken: what is referred to comes first (`outlook`), and what is not wanted
any more goes last (`departures`). A refusal holds such departures back, because what was to replace the old
did not come. A listener is different: two of them cannot have one address, so it goes in the same response in
which its successors come, and waits only while one of these cannot come.

A proxy that has just what was offered, and asks for just that, is at rest: what it has is then read from the
offer, which it shares with others, and nothing is kept for it alone (`rest`). Most are, most of the time.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, Literal

from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, LISTENER, ROUTES, TYPES, Id, Piece, Snapshot
from koguma.xds.contract import Offer, ProxyStatus
from koguma.xds.protocol import differences, rest
from koguma.xds.protocol.acked import AckedVersions
from koguma.xds.protocol.channel import Channel, Flight, Held
from koguma.xds.protocol.departures import Departures
from koguma.xds.protocol.differences import Step
from koguma.xds.protocol.exchange import WILDCARD_TYPES, DeltaRequest, Response
from koguma.xds.protocol.outlook import Outlook, State
from koguma.xds.protocol.refusal import GONE, Refusal, rejections
from koguma.xds.protocol.rest import Rest
from koguma.xds.protocol.subscription import Change

# A step of these is told by itself. Endpoints must follow changed clusters, and secrets are shared by nobody.
_STEP_TYPES: Final = frozenset({ENDPOINTS, LISTENER, ROUTES})
_NOTHING: Final[frozenset[str]] = frozenset()


class Session:
    """What was said on one stream, and what is still to be said."""

    __slots__ = (
        "_awake",
        "_departures",
        "_failed",
        "_n_responses",
        "_newest",
        "_rest",
        "_unasked",
        "_versions",
        "_whole",
        "n_accepted",
    )

    def __init__(self, drain_seconds: float) -> None:
        self._awake: Mapping[str, Channel] | None = {type_: Channel(type_) for type_ in TYPES}
        self._rest: Rest | None = None  # one of the two is there
        self._departures = Departures(drain_seconds)
        self._newest: Offer | None = None
        self._whole: Offer | None = None  # the last one that was acknowledged as a whole
        self._failed: frozenset[Id] = frozenset()
        self._unasked: set[Id] = set()  # wanted, and the proxy is still to ask for them
        self._n_responses = 0
        self.n_accepted = 0  # responses that the proxy has taken
        self._versions = AckedVersions(self.held, 0)

    @property
    def _channels(self) -> Mapping[str, Channel]:
        """The state of each type; whoever looks at it ends a rest."""
        if self._awake is None:
            assert self._rest is not None
            assert self._whole is not None
            self._awake, self._rest = rest.recalled(self._rest, self._whole.snapshot), None
        return self._awake

    # What comes in.

    def receive(self, request: DeltaRequest, now: float) -> list[Response]:
        """The proxy asks for something, or answers."""
        if self._rest is not None and rest.is_plain(request):
            self._heard_at_rest(self._rest, request)
            return []
        channel = self._channels[request.type]
        if request.nonce:
            self._settle(channel, request, now)
        if request.subscribe or request.unsubscribe or not channel.subscription.is_open:
            self._subscribe(channel, request, now)
        return self._responses(now)

    def offer(self, offer: Offer, now: float) -> list[Response]:
        """The proxy is to have this, and no longer what was offered before."""
        before, self._newest = self._newest, offer
        step = self._plain_step(before, offer)
        if step is not None:
            return [self._take(step, offer)]
        if before is None and self._resume(offer):
            return []
        failed = self._failed
        ids = (failure.id for failure in offer.snapshot.failures)
        self._failed = frozenset(id_ for id_ in ids if id_[0] in self._channels)  # a policy may fail too
        touched = set(differences.between(before.snapshot if before else Snapshot(), offer.snapshot))
        touched |= failed ^ self._failed
        if before is None:
            touched.update((type_, name) for type_ in TYPES for name in self._known_names(type_))
        for type_, names in _by_type(touched).items():
            self._recheck(self._channels[type_], names)
        return self._responses(now)

    def _resume(self, offer: Offer) -> bool:
        """Go to rest at once where a proxy comes back with all that it is offered; whether it did."""
        found = None if offer.snapshot.failures else rest.resumed(self._channels, offer.snapshot)
        if found is None:
            return False
        self._awake, self._rest, self._whole = None, found, offer
        return True

    def _heard_at_rest(self, resting: Rest, request: DeltaRequest) -> None:
        """The proxy took a step, and has all of it; or it answers something older."""
        flight = resting.flight
        if flight is not None and flight.nonce == request.nonce:
            self.n_accepted += 1
            self._rest, self._whole = rest.without_flight(resting), flight.all_of

    def _plain_step(self, before: Offer | None, offer: Offer) -> Step | None:
        """A step that a proxy can be told at once, because it has all that came before and is at peace."""
        if before is None or before is not self._whole or self._failed or offer.snapshot.failures:
            return None
        step = differences.plain_step(before.snapshot, offer.snapshot)
        if step is None or step.type not in _STEP_TYPES:
            return None
        if self._rest is not None:  # then no two bundles have a piece of one name
            return step if self._rest.flight is None else None
        if differences.is_hidden(step, offer.snapshot):
            return None
        is_at_peace = all(channel.is_idle for channel in self._channels.values())
        return step if is_at_peace and self._channels[step.type].covers_all(step.pieces) else None

    def _take(self, step: Step, offer: Offer) -> Response:
        self._n_responses += 1
        nonce = str(self._n_responses)
        flight = Flight(nonce, step.pieces, _NOTHING, offer.revision, offer, step.type)
        if self._rest is not None:
            self._rest = rest.with_flight(self._rest, flight)
        else:
            self._channels[step.type].send(flight)
        return Response(step.type, nonce, tuple(step.pieces.values()), step=step)

    def tick(self, now: float) -> list[Response]:
        """Time has passed."""
        return self._responses(now)

    @property
    def next_tick(self) -> float | None:
        """When `tick` is to be called, if nothing else happens before."""
        return self._departures.next_due

    @property
    def snapshot(self) -> Snapshot | None:
        """What was offered last."""
        return self._newest.snapshot if self._newest else None

    def held(self, type_: str) -> Mapping[str, Held]:
        """What the proxy has of one type, by name."""
        if self._awake is not None:
            return self._awake[type_].held
        assert self._whole is not None
        return self._whole.snapshot.of_type(type_)

    @property
    def status(self) -> ProxyStatus:
        """How far the proxy is. The versions in it are those of the moment in which they are read."""
        awake = self._awake.values() if self._awake is not None else ()
        refusing = [channel for channel in awake if channel.refusals]
        found = [each for channel in refusing for each in rejections(channel.type, channel.refusals)]
        return ProxyStatus(
            state="nack" if found else self._progress(),
            offered=self._newest.revision if self._newest else 0,
            acked=self._whole.revision if self._whole else 0,
            rejections=tuple(found),
            acked_versions=self._acked_versions(),
        )

    def _acked_versions(self) -> AckedVersions:
        if self._versions.n_accepted != self.n_accepted:
            self._versions = AckedVersions(self.held, self.n_accepted)
        return self._versions

    def _progress(self) -> Literal["connecting", "synced", "behind"]:
        if self._whole is None:
            return "connecting"
        return "synced" if self._whole is self._newest else "behind"

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
            self._departures.release_all(now)
        self._leave(channel, change, now)
        is_general = is_first or change.is_general
        if is_general:
            names = self._known_names(channel.type) | self._wanted_names(channel.type)
        else:
            names = change.asked | change.repeated
        self._recheck(channel, names)

    def _leave(self, channel: Channel, change: Change, now: float) -> None:
        left = set(change.left)
        if change.is_general:
            left.update(name for name in channel.held if not channel.covers(name))
        for name in left:
            self._drop(channel, name, now)
            channel.forget(name)

    def _known_names(self, type_: str) -> AbstractSet[str]:
        """The names of a type that mean something to the proxy."""
        channel = self._channels[type_]
        return channel.held.keys() | channel.subscription.names

    def _wanted_names(self, type_: str) -> AbstractSet[str]:
        """The names of a type that the proxy is to have without asking for each."""
        if self._newest is None or type_ not in WILDCARD_TYPES:
            return frozenset()
        return self._newest.snapshot.of_type(type_).keys()

    # What the proxy answers.

    def _settle(self, channel: Channel, request: DeltaRequest, now: float) -> None:
        flight = channel.flight
        if flight is None or flight.nonce != request.nonce:
            return  # an answer to something older, which a later answer makes void
        channel.flight = None
        is_all = flight.all_of is not None and flight.all_of is self._newest and not request.error
        if is_all and channel.is_calm and channel.covers_all(flight.pieces):
            self.n_accepted += 1
            channel.held.update(flight.pieces)
            return
        touched = flight.pieces.keys() | flight.removed
        if request.error:
            channel.refuse(flight, request.error)
        else:
            touched |= self._accept(channel, flight, now)
        self._recheck(channel, touched)

    def _accept(self, channel: Channel, flight: Flight, now: float) -> set[str]:
        """Note what the proxy has now; the names of what may be tried once more because of it."""
        self.n_accepted += 1
        for name, piece in flight.pieces.items():
            if channel.covers(name):
                self._put(channel, piece, now)
        for name in flight.removed:
            self._drop(channel, name, now)
        # A listener may have been refused because one that is gone now had its address.
        return channel.retry() if channel.type == LISTENER and flight.removed else set()

    def _put(self, channel: Channel, piece: Piece, now: float) -> None:
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
            self._departures.release(needs, now)
            self._unasked -= needs
        if was_unsure:
            self._departures.release_all(now)

    def _expect(self, needs: Iterable[Id]) -> None:
        """The proxy has something that needs these, and so will ask for them."""
        for type_, name in needs:
            if self._wanted((type_, name)) is not None and not self._channels[type_].covers(name):
                self._unasked.add((type_, name))

    # What is still to be said.

    def _wanted(self, id_: Id) -> Piece | None:
        return self._newest.snapshot.get(id_) if self._newest else None

    def _recheck(self, channel: Channel, names: Iterable[str]) -> None:
        """Look again at resources about which something has changed."""
        if self._newest is None:
            return
        type_, get, unasked = channel.type, self._newest.snapshot.get, self._unasked
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

    def _mark(self, channel: Channel, name: str, wanted: Piece | None, *, is_pending: bool) -> None:
        if not is_pending:
            channel.pending.discard(name)
            return
        if wanted is None and channel.type == LISTENER and name not in channel.pending:
            channel.retry()  # one was refused, maybe, because this one has its address
        channel.pending.add(name)

    def _recognise(self, channel: Channel, wanted: Piece | None, name: str) -> None:
        """Find out what a version means that the proxy brought along, and whether a refusal still stands."""
        if name in channel.opaque and wanted is not None and channel.held[name] == wanted.version:
            channel.held[name] = wanted
            channel.opaque.discard(name)
            self._expect(wanted.needs)
        refused = channel.refusals.get(name)
        if refused is not None and _is_over(refused, channel.version(name), wanted):
            del channel.refusals[name]

    def _is_pending(self, channel: Channel, wanted: Piece | None, name: str) -> bool:
        if name in channel.again or name in channel.doubted:
            return True
        if wanted is not None:
            return channel.version(name) != wanted.version
        if name in channel.held:
            return (channel.type, name) not in self._failed
        return name in channel.subscription.names and name not in channel.absent

    # What is said.

    def _responses(self, now: float) -> list[Response]:
        self._departures.next_due = None
        if self._newest is None:
            return []
        outlook = Outlook(self._channels, self._newest.snapshot, self._failed)
        # One by one: a response about clusters gives endpoints something to say.
        talking = (channel for channel in self._channels.values() if channel.has_something_to_say)
        responses = [self._response(channel, outlook, now) for channel in talking]
        if not self._owes_anything():
            self._whole = self._newest
            self._go_to_rest(self._newest.snapshot)
        return [response for response in responses if response is not None]

    def _go_to_rest(self, snapshot: Snapshot) -> None:
        found = rest.of(self._channels, snapshot) if not self._failed else None
        if found is not None:
            self._awake, self._rest = None, found
            self._unasked = set()

    def _response(self, channel: Channel, outlook: Outlook, now: float) -> Response | None:
        pieces, is_waiting = self._additions(channel, outlook)
        removed = self._removals(channel, pieces, now)
        if not (pieces or removed or (channel.greeting and not is_waiting)):
            return None
        return self._send(channel, pieces, removed)

    def _additions(self, channel: Channel, outlook: Outlook) -> tuple[dict[str, Piece], bool]:
        """What can be sent now, and whether there is something that will be sent later."""
        while True:
            states = {name: self._choice(channel, name, outlook) for name in sorted(channel.turn())}
            pieces = {name: found for name, found in states.items() if isinstance(found, Piece)}
            if pieces or not channel.skip():
                return pieces, State.COMING in states.values()

    def _choice(self, channel: Channel, name: str, outlook: Outlook) -> Piece | State:
        """The piece to send for a name, or why there is none."""
        wanted, held = self._wanted((channel.type, name)), channel.held.get(name)
        if wanted is not None and not channel.refuses(name, wanted.version):
            is_new = channel.version(name) != wanted.version
            state = outlook.verdict(wanted) if is_new else State.THERE
            if state is not State.STUCK:
                return wanted if state is State.THERE else state
        return held if name in channel.again and isinstance(held, Piece) else State.STUCK

    def _removals(self, channel: Channel, pieces: Mapping[str, Piece], now: float) -> tuple[str, ...]:
        """The names to remove now, and those to tell about that they do not exist."""
        unwanted = [n for n in channel.pending if n not in pieces and self._wanted((channel.type, n)) is None]
        missing = [name for name in unwanted if name not in channel.held]
        leaving = [
            name for name in unwanted if name in channel.held and self._may_leave(channel, name, pieces)
        ]
        gone = self._departures.ready(self._channels, channel.type, leaving, now) if leaving else ()
        return tuple(sorted((*missing, *gone)))

    def _may_leave(self, channel: Channel, name: str, pieces: Mapping[str, Piece]) -> bool:
        if (channel.type, name) in self._failed or channel.refuses(name, GONE):
            return False
        if channel.type == LISTENER:
            return not any(self._is_late(channel, other, pieces) for other in channel.pending)
        return not any(each.refusals or each.doubted for each in self._channels.values())

    def _is_late(self, channel: Channel, name: str, pieces: Mapping[str, Piece]) -> bool:
        """Whether something new should come and does not come with this response."""
        is_new = name not in channel.held and name not in pieces
        return is_new and self._wanted((channel.type, name)) is not None

    def _send(self, channel: Channel, pieces: Mapping[str, Piece], removed: tuple[str, ...]) -> Response:
        assert self._newest is not None
        self._n_responses += 1
        nonce = str(self._n_responses)
        channel.send(Flight(nonce, pieces, frozenset(removed), self._newest.revision))
        if channel.type == CLUSTER:
            self._repeat_endpoints(pieces.values())
        return Response(channel.type, nonce, tuple(pieces.values()), removed)

    def _repeat_endpoints(self, clusters: Iterable[Piece]) -> None:
        """Send the endpoints of clusters again that are sent.

        A changed cluster waits for its endpoints even if they are the same as before, for 15 seconds if need
        be; and meanwhile Envoy answers for no cluster.
        """
        channel, had = self._channels[ENDPOINTS], self._channels[CLUSTER].held
        needs = ((piece.name in had, *each) for piece in clusters for each in piece.needs)
        # Those of a new cluster the proxy is still to ask for.
        names = [n for is_old, type_, n in needs if type_ == ENDPOINTS and (is_old or channel.covers(n))]
        channel.again.update(names)
        self._recheck(channel, names)

    def _owes_anything(self) -> bool:
        """Whether something of the newest offer was not acknowledged. What only waits to leave is no debt."""
        if self._unasked:
            return True
        open_ = [each for each in self._channels.values() if each.pending or each.flight or each.greeting]
        return any(self._is_owing(channel) for channel in open_)

    def _is_owing(self, channel: Channel) -> bool:
        flight = channel.flight
        if channel.greeting or (flight is not None and (flight.pieces or channel.type == LISTENER)):
            return True
        return any(
            channel.type == LISTENER or self._wanted((channel.type, name)) is not None
            for name in channel.pending
        )


def _by_type(ids: Iterable[Id]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for type_, name in ids:
        found.setdefault(type_, []).append(name)
    return found


def _is_over(refused: Refusal, held: str | None, wanted: Piece | None) -> bool:
    """Whether what was refused is not wanted any more, so that the refusal says nothing about now."""
    if wanted is None:
        return refused.version != GONE or held is None
    return wanted.version == held
