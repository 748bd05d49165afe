"""Session: one stream of a proxy, from its first request on, in the incremental form of xDS.

Whatever happens goes in (`receive`, `offer`, `tick`), and what is to be sent comes out. One response of each
type is under way at a time and the newest offer counts, so a slow proxy gets fewer and larger steps, never a
queue.

A change is made before the old is broken: what is referred to comes first (`outlook`), and what is not wanted
any more goes last (`departures`). A refusal holds such departures back, because what was to replace the old
did not come. A listener is different: two of them cannot have one address, so it goes in the same response in
which its successors come, and waits only while one of these cannot come.

A proxy that has just what was offered, and asks for just that, is at rest: what it has is then read from the
offer, which it shares with others, and nothing is kept for it alone (`rest`). Most are, most of the time. One
that comes back says first what it has (`claims`), and goes to rest at once where that is all of the offer.
For all others there is a `ledger`, and `speech` says what they are told.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, Literal

from koguma.envoy.snapshot import ENDPOINTS, LISTENER, ROUTES, Snapshot
from koguma.xds.contract import Offer, ProxyStatus, Rejection
from koguma.xds.protocol import differences, rest, speech, subscription
from koguma.xds.protocol.acked import AckedVersions
from koguma.xds.protocol.channel import Flight, Held
from koguma.xds.protocol.claims import Claims
from koguma.xds.protocol.differences import Step
from koguma.xds.protocol.exchange import DeltaRequest, Response
from koguma.xds.protocol.ledger import Course, Ledger, new_channels
from koguma.xds.protocol.refusal import rejections
from koguma.xds.protocol.rest import Rest

# A step of these is told by itself. Endpoints must follow changed clusters, and secrets are shared by nobody.
_STEP_TYPES: Final = frozenset({ENDPOINTS, LISTENER, ROUTES})
_NOTHING: Final[frozenset[str]] = frozenset()


class Session:
    """What was said on one stream, and what is still to be said."""

    __slots__ = ("_course", "_newest", "_state", "_versions", "_whole")

    def __init__(self, drain_seconds: float) -> None:
        self._state: Claims | Rest | Ledger = Claims()
        self._course = Course(drain_seconds)
        self._newest: Offer | None = None
        self._whole: Offer | None = None  # the last one that was acknowledged as a whole
        self._versions = AckedVersions(self.held, 0)

    # What comes in.

    def receive(self, request: DeltaRequest, now: float) -> list[Response]:
        """The proxy asks for something, or answers."""
        state = self._state
        if isinstance(state, Rest) and rest.is_plain(request):
            self._heard_at_rest(state, request)
            return []
        subscription.check_size(request)
        if isinstance(state, Claims) and self._heard_claim(state, request, now):
            return []
        ledger = self._awake()
        ledger.hear(request, now)
        return self._responses(ledger, now)

    def offer(self, offer: Offer, now: float) -> list[Response]:
        """The proxy is to have this, and no longer what was offered before."""
        step = self._plain_step(self._newest, offer)
        if step is not None:
            return [self._take(step, offer)]
        if self.has(offer):
            return []
        ledger = self._awake()
        self._newest = offer
        ledger.take(offer)
        return self._responses(ledger, now)

    def has(self, offer: Offer) -> bool:
        """Take an offer to a proxy that came back with all of it; whether it was so. Cheap."""
        state = self._state
        if not isinstance(state, Claims) or not self._is_content(state, offer, state.types):
            return False
        self._newest = offer
        return True

    def tick(self, now: float) -> list[Response]:
        """Time has passed."""
        return self._responses(self._state, now) if isinstance(self._state, Ledger) else []

    def _awake(self) -> Ledger:
        """The ledger of the proxy; whoever asks for it ends a rest, and the time of mere claims."""
        state = self._state
        if isinstance(state, Rest):
            assert self._whole is not None
            state = Ledger(self._course, rest.recalled(state, self._whole.snapshot), self._newest)
        elif isinstance(state, Claims):
            state = self._written_down(state)
        self._state = state
        return state

    def _responses(self, ledger: Ledger, now: float) -> list[Response]:
        responses = speech.responses(ledger, now)
        if self._newest is not None and not ledger.owes_anything():
            self._whole = self._newest
            found = rest.of(ledger.channels, self._newest.snapshot) if not ledger.failed else None
            self._state = found or ledger
        return responses

    # A proxy that comes back.

    def _heard_claim(self, claims: Claims, request: DeltaRequest, now: float) -> bool:
        """Note what the proxy says it has, where that needs no answer; whether it was so."""
        more = claims.and_of(request, now)
        if more is None or not self._is_content(more, self._newest, {request.type}):
            return False
        if request.initial_versions:  # what referred to the rest may have gone just before this stream began
            self._course.departures.release_all(now)
        return True

    def _is_content(self, claims: Claims, offer: Offer | None, types: AbstractSet[str]) -> bool:
        """Whether a proxy with these claims, of which some types are new, is to be told nothing.

        It goes to rest where it has said all that there is to say.
        """
        if offer is None:
            self._state = claims
            return True
        if not claims.are_true(offer.snapshot, types):
            return False
        left = claims.left(offer.snapshot)
        if left and not claims.will_ask_for(left, offer.snapshot):
            return False
        self._state = claims
        if not left:
            self._state, self._whole = rest.of_claims(claims), offer
        return True

    def _written_down(self, claims: Claims) -> Ledger:
        """The ledger as if there had been one from the beginning; to all of this there was nothing to say."""
        ledger = Ledger(self._course, new_channels())
        for request, now in claims:
            ledger.hear(request, now)
        if self._newest is not None:
            ledger.take(self._newest)
        return ledger

    # A proxy at rest, or at peace.

    def _heard_at_rest(self, resting: Rest, request: DeltaRequest) -> None:
        """The proxy took a step, and has all of it; or it answers something older."""
        flight = resting.flight
        if flight is not None and flight.nonce == request.nonce:
            self._course.n_accepted += 1
            self._state, self._whole = rest.without_flight(resting), flight.all_of

    def _plain_step(self, before: Offer | None, offer: Offer) -> Step | None:
        """A step that a proxy can be told at once, because it has all that came before and is at peace."""
        state = self._state
        if (
            before is None
            or before is not self._whole
            or offer.snapshot.failures
            or isinstance(state, Claims)
        ):
            return None
        step = differences.plain_step(before.snapshot, offer.snapshot)
        if step is None or step.type not in _STEP_TYPES:
            return None
        if isinstance(state, Rest):  # then no two bundles have a piece of one name
            return step if state.flight is None else None
        return step if state.is_open_to(step) and not differences.is_hidden(step, offer.snapshot) else None

    def _take(self, step: Step, offer: Offer) -> Response:
        self._newest = offer
        nonce = self._course.next_nonce()
        flight = Flight(nonce, step.pieces, _NOTHING, offer.revision, offer, step.type)
        if isinstance(self._state, Ledger):
            self._state.newest = offer
            self._state.channels[step.type].send(flight)
        elif isinstance(self._state, Rest):
            self._state = rest.with_flight(self._state, flight)
        return Response(step.type, nonce, tuple(step.pieces.values()), step=step)

    # What is known of the proxy.

    @property
    def next_tick(self) -> float | None:
        """When `tick` is to be called, if nothing else happens before."""
        return self._course.departures.next_due

    @property
    def snapshot(self) -> Snapshot | None:
        """What was offered last."""
        return self._newest.snapshot if self._newest else None

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is kept for this proxy alone."""
        return isinstance(self._state, Rest)

    @property
    def n_accepted(self) -> int:
        """How many responses the proxy has taken."""
        return self._course.n_accepted

    def held(self, type_: str) -> Mapping[str, Held]:
        """What the proxy has of one type, by name."""
        state = self._state
        if isinstance(state, Ledger):
            return state.channels[type_].held
        if isinstance(state, Claims):
            return state.held(type_, self.snapshot)
        assert self._whole is not None
        return self._whole.snapshot.of_type(type_)

    @property
    def status(self) -> ProxyStatus:
        """How far the proxy is. The versions in it are those of the moment in which they are read."""
        found = _rejections(self._state) if isinstance(self._state, Ledger) else ()
        return ProxyStatus(
            state="nack" if found else self._progress(),
            offered=self._newest.revision if self._newest else 0,
            acked=self._whole.revision if self._whole else 0,
            rejections=found,
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


def _rejections(ledger: Ledger) -> tuple[Rejection, ...]:
    refusing = [channel for channel in ledger.channels.values() if channel.refusals]
    return tuple(each for channel in refusing for each in rejections(channel.type, channel.refusals))
