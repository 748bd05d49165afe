"""Speech: what a proxy is told now, of what is still to be said to it."""

from collections.abc import Iterable, Mapping

from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, LISTENER, XdsResource
from koguma.xds.contract import Offer
from koguma.xds.protocol.channel import Channel, Flight
from koguma.xds.protocol.exchange import Response
from koguma.xds.protocol.ledger import Ledger
from koguma.xds.protocol.outlook import State
from koguma.xds.protocol.refusal import GONE


def responses(ledger: Ledger, now: float) -> list[Response]:
    """What can be said now; from then on it is on its way."""
    ledger.course.departures.next_due = None
    return [] if ledger.newest is None else _Speech(ledger, ledger.newest, now).responses()


class _Speech:
    """One moment."""

    __slots__ = ("_ledger", "_now", "_outlook", "_revision")

    def __init__(self, ledger: Ledger, newest: Offer, now: float) -> None:
        self._ledger = ledger
        self._outlook = ledger.outlook()
        self._revision = newest.revision
        self._now = now

    def responses(self) -> list[Response]:
        # One by one: a response about clusters gives endpoints something to say.
        talking = (each for each in self._ledger.channels.values() if each.has_something_to_say)
        found = [self._response(channel) for channel in talking]
        return [response for response in found if response is not None]

    def _response(self, channel: Channel) -> Response | None:
        pieces, is_waiting = self._additions(channel)
        removed = self._removals(channel, pieces)
        if not (pieces or removed or (channel.greeting and not is_waiting)):
            return None
        return self._send(channel, pieces, removed)

    def _additions(self, channel: Channel) -> tuple[dict[str, XdsResource], bool]:
        """What can be sent now, and whether there is something that will be sent later."""
        while True:
            states = {name: self._choice(channel, name) for name in sorted(channel.turn())}
            pieces = {name: found for name, found in states.items() if isinstance(found, XdsResource)}
            if pieces or not channel.skip():
                return pieces, State.COMING in states.values()

    def _choice(self, channel: Channel, name: str) -> XdsResource | State:
        """The piece to send for a name, or why there is none."""
        wanted, held = self._ledger.wanted((channel.type, name)), channel.held.get(name)
        if wanted is not None and not channel.refuses(name, wanted.version):
            is_new = channel.version(name) != wanted.version
            state = self._outlook.verdict(wanted) if is_new else State.THERE
            if state not in (State.STUCK, State.UNBUILT):
                return wanted if state is State.THERE else state
        return held if name in channel.again and isinstance(held, XdsResource) else State.STUCK

    def _removals(self, channel: Channel, pieces: Mapping[str, XdsResource]) -> tuple[str, ...]:
        """The names to remove now, and those to tell about that they do not exist."""
        unwanted = [
            n for n in channel.pending if n not in pieces and self._ledger.wanted((channel.type, n)) is None
        ]
        missing = [name for name in unwanted if name not in channel.held]
        leaving = [
            name for name in unwanted if name in channel.held and self._may_leave(channel, name, pieces)
        ]
        gone = (
            self._ledger.course.departures.ready(self._ledger.channels, channel.type, leaving, self._now)
            if leaving
            else ()
        )
        return tuple(sorted((*missing, *gone)))

    def _may_leave(self, channel: Channel, name: str, pieces: Mapping[str, XdsResource]) -> bool:
        if (channel.type, name) in self._ledger.failed or channel.refuses(name, GONE):
            return False
        if channel.type == LISTENER:
            return not any(self._is_late(channel, other, pieces) for other in channel.pending)
        return not any(each.refusals or each.doubted for each in self._ledger.channels.values())

    def _is_late(self, channel: Channel, name: str, pieces: Mapping[str, XdsResource]) -> bool:
        """Whether something new should come and does not come with this response."""
        id_ = channel.type, name
        is_new = name not in channel.held and name not in pieces and self._ledger.wanted(id_) is not None
        return is_new and self._outlook.of(id_) is not State.UNBUILT

    def _send(
        self, channel: Channel, pieces: Mapping[str, XdsResource], removed: tuple[str, ...]
    ) -> Response:
        nonce = self._ledger.course.next_nonce()
        channel.send(Flight(nonce, pieces, frozenset(removed), self._revision))
        if channel.type == CLUSTER:
            self._repeat_endpoints(pieces.values())
        return Response(channel.type, nonce, tuple(pieces.values()), removed)

    def _repeat_endpoints(self, clusters: Iterable[XdsResource]) -> None:
        """Send the endpoints of clusters again that are sent.

        A changed cluster waits for its endpoints even if they are the same as before, for 15 seconds if need
        be; and meanwhile Envoy answers for no cluster.
        """
        channel, had = self._ledger.channels[ENDPOINTS], self._ledger.channels[CLUSTER].held
        needs = ((piece.name in had, *each) for piece in clusters for each in piece.needs)
        # Those of a new cluster the proxy is still to ask for.
        names = [n for is_old, type_, n in needs if type_ == ENDPOINTS and (is_old or channel.covers(n))]
        channel.again.update(names)
        self._ledger.recheck(channel, names)
