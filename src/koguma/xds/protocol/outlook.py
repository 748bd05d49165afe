"""Outlook: what will become of each resource, and so whether what refers to it may be sent now.

What is referred to comes first, and what refers to it waits until the proxy has answered: secrets, clusters
and their endpoints, extensions, listeners, routes. What could not be built is not waited for: routes and
listeners go without such a cluster, since Envoy itself answers 503 for it. Of most types a proxy asks for a
name only when it has got what refers to it, so nothing waits for what was not asked for, and no order of
requests can block a stream.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cached_property

from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, LISTENER, ROUTES, TYPES, Id, Snapshot, XdsResource
from koguma.xds.protocol.channel import Channel
from koguma.xds.protocol.exchange import WILDCARD_TYPES


class State(Enum):
    """How it stands with a resource."""

    THERE = "there"  # the proxy has it as well as it can, or nobody needs to wait for it
    COMING = "coming"  # it is on its way, or will be
    STUCK = "stuck"  # the proxy never had it and refuses it, or something that it needs
    UNBUILT = "unbuilt"  # the proxy never had it, and there is none: it, or what it needs, could not be built


class Outlook:
    """The states at one moment; make a new one for the next."""

    def __init__(self, channels: Mapping[str, Channel], snapshot: Snapshot, failed: AbstractSet[Id]) -> None:
        self._channels = channels
        self._snapshot = snapshot
        self._failed = failed
        self._known: dict[Id, State] = {}

    def verdict(self, piece: XdsResource) -> State:
        """Whether all that a piece needs is there, so that it may be sent."""
        hindrance = self._hindrance(piece)
        if hindrance is not None:
            return hindrance
        waits = any(self.of(need) is State.COMING and self._waits(piece, need) for need in piece.needs)
        return State.COMING if waits or self._follows(piece) else State.THERE

    def _hindrance(self, piece: XdsResource) -> State | None:
        """Why a piece cannot come at all; None where nothing that it needs is in the way."""
        # Apart from whether it waits: routes ask whether their listener is coming, which asks about routes.
        states = {self.of(need): None for need in piece.needs if not self._can_lack(need)}
        return next((state for state in (State.STUCK, State.UNBUILT) if state in states), None)

    def _can_lack(self, need: Id) -> bool:
        """Whether a proxy can do without it: calls to a cluster that is not there get a 503, all others work.

        To wait for one that was refused is another matter: it was good before, or is to be mended, and
        meanwhile the former routes lead somewhere.
        """
        return need[0] == CLUSTER and self.of(need) is State.UNBUILT

    def of(self, id_: Id) -> State:
        """How it stands with one resource."""
        known = self._known.get(id_)
        if known is None:
            self._known[id_] = State.THERE  # two that need each other do not wait for each other
            self._known[id_] = known = self._state(id_)
        return known

    def _state(self, id_: Id) -> State:
        type_, name = id_
        channel = self._channels[type_]
        wanted = self._snapshot.get(id_)
        has = name in channel.held
        if wanted is None:
            return State.UNBUILT if id_ in self._failed and not has else State.THERE
        if not channel.covers(name):
            return State.THERE if type_ in WILDCARD_TYPES else self.verdict(wanted)
        if channel.is_leaving(name):
            return State.COMING  # it will be sent again when the proxy has confirmed that it is gone
        if channel.version(name) == wanted.version and name not in channel.doubted:
            return self._with_endpoints(id_)
        hindrance = State.STUCK if channel.refuses(name, wanted.version) else self._hindrance(wanted)
        if hindrance is not None:
            return self._with_endpoints(id_) if has else hindrance
        return State.COMING

    def _with_endpoints(self, id_: Id) -> State:
        """The state of something that the proxy has: a cluster is of no use before its endpoints came."""
        type_, name = id_
        if type_ == CLUSTER:
            endpoints = self._channels[ENDPOINTS]
            for need in self._channels[CLUSTER].needs(name):
                missing = need[0] == ENDPOINTS and endpoints.covers(need[1]) and need[1] not in endpoints.held
                if missing and self._snapshot.get(need) is not None:
                    return self.of(need)
        return State.THERE

    def _waits(self, piece: XdsResource, need: Id) -> bool:
        """Whether the piece waits for something that it needs and that is coming."""
        if TYPES.index(need[0]) < TYPES.index(piece.type):
            return True
        # A listener does not wait for its routes, which come after it; but before the proxy has asked for the
        # routes, it waits for the clusters that they need, so that the routes can come at once.
        return not self._channels[need[0]].covers(need[1])

    def _follows(self, piece: XdsResource) -> bool:
        """Whether changed routes have to wait for a change of their listener."""
        if piece.type != ROUTES or piece.name not in self._channels[ROUTES].held:
            return False
        return piece.id in self._led

    @cached_property
    def _led(self) -> frozenset[Id]:
        """What the listeners that are coming refer to."""
        listeners = self._channels[LISTENER]
        names: Iterable[str] = listeners.pending
        if listeners.flight is not None:
            names = listeners.pending | listeners.flight.pieces.keys()
        coming = (self._snapshot.get((LISTENER, name)) for name in names)
        return frozenset(
            need
            for piece in coming
            if piece is not None and self.of(piece.id) is State.COMING
            for need in piece.needs
        )
