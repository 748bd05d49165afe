"""Departures: when something that is not wanted any more may be taken from a proxy.

Nothing goes while something that the proxy has, or may just be taking, refers to it; and then it stays for a
while longer, because connections that began before still use it.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final

from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, EXTENSION, LISTENER, ROUTES, SECRET, Id, XdsResource
from koguma.xds.protocol.channel import Channel

# The types that can refer to a type: a piece that cannot be read may refer to anything of these.
_REFERRERS: Final[Mapping[str, tuple[str, ...]]] = {
    SECRET: (CLUSTER, EXTENSION, LISTENER),
    CLUSTER: (EXTENSION, LISTENER, ROUTES),
    ENDPOINTS: (CLUSTER,),
    EXTENSION: (LISTENER,),
    LISTENER: (),
    ROUTES: (LISTENER,),
}


class Departures:
    """Since when nobody refers to things. `next_due` is the time of the next departure that only waits."""

    __slots__ = ("_all_released", "_drain_seconds", "_released", "next_due")

    def __init__(self, drain_seconds: float) -> None:
        self.next_due: float | None = None
        self._drain_seconds = drain_seconds
        self._released: dict[Id, float] = {}
        self._all_released = -inf

    def release(self, ids: Iterable[Id], now: float) -> None:
        """Somebody stopped referring to these."""
        self._released.update(dict.fromkeys(ids, now))
        self._released = {id_: at for id_, at in self._released.items() if at + self._drain_seconds > now}

    def release_all(self, now: float) -> None:
        """Something that may have referred to anything has gone, now or just before this stream began."""
        self._all_released = now

    def ready(
        self, channels: Mapping[str, Channel], type_: str, names: Iterable[str], now: float
    ) -> Sequence[str]:
        """Which of these names may go now."""
        if any(channels[referrer].opaque for referrer in _REFERRERS[type_]):
            return ()
        due = [name for name in names if self._is_due((type_, name), now)]
        referred = _referred(channels) if due else frozenset()
        return [name for name in due if (type_, name) not in referred]

    def _is_due(self, id_: Id, now: float) -> bool:
        since = self._released.get(id_, -inf)
        # Nobody waits for a listener to drain here: Envoy does that itself, and its address may be needed.
        if id_[0] != LISTENER:
            since = max(since, self._all_released)
        due = since + self._drain_seconds
        if due > now:
            self.next_due = due if self.next_due is None else min(self.next_due, due)
        return due <= now


def _referred(channels: Mapping[str, Channel]) -> frozenset[Id]:
    """All that is referred to by what the proxy has, or may have taken just now."""
    pieces = [held for channel in channels.values() for held in channel.held.values()]
    pieces += [
        piece for channel in channels.values() if channel.flight for piece in channel.flight.pieces.values()
    ]
    return frozenset(need for piece in pieces if isinstance(piece, XdsResource) for need in piece.needs)
