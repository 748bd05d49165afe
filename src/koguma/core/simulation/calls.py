"""Calls: what becomes of a request from one proxy to a service, hop by hop, each with its share.

The caller's Envoy chooses a route, a cluster and an endpoint; there the Envoy of the service decides whether
the caller may call, and hands the request over. A zone egress, a zone ingress or a gateway may stand
between them. A service of another zone is called at the ingress of that zone, and what happens there is for
the control plane of that zone to say.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final

import msgspec

from koguma.core.incremental import Db
from koguma.core.simulation.proxies import MeshProxies
from koguma.envoy import names
from koguma.envoy.simulation.ending import ProxyEnding, Side
from koguma.envoy.simulation.forwarding import RouteEffects
from koguma.envoy.simulation.proxy import SimulatedProxy
from koguma.envoy.simulation.traffic import ClientConnection, SimulatedRequest
from koguma.model.resource import Key

REACHED: Final = "reached"
_HOPS_MAX: Final = 5
_UNAVAILABLE: Final = 503
_NOTHING: Final = RouteEffects()


class CallOutcome(msgspec.Struct, frozen=True):
    """What becomes of a share of such requests: it reaches a service or ends before, and by whom."""

    share: Fraction
    kind: str  # `reached`, or the kind of a ProxyEnding
    destination: str = ""  # the KRI of the port to which the caller's Envoy sent it
    endpoints: tuple[tuple[str, Fraction], ...] = ()  # proxies or addresses that serve it, and their shares
    decided_at: Key | None = None  # the proxy in which it ended
    listener: str = ""  # of that proxy
    by: str = ""
    text: str = ""
    status: int = 0
    location: str = ""
    route: str = ""
    effects: RouteEffects = _NOTHING  # of the caller's route
    connect_timeout: str = ""
    request: SimulatedRequest | None = None  # as the service gets it
    is_http: bool = True  # whether the caller's Envoy reads requests
    side: Side = Side()

    @property
    def is_reached(self) -> bool:
        """Whether the request reaches a service."""
        return self.kind == REACHED


class CallSimulator:
    """Follows requests through the Envoys of a mesh."""

    def __init__(self, db: Db, mesh: str) -> None:
        self.db, self.mesh = db, mesh
        self.proxies = MeshProxies(db, mesh)

    def call(
        self,
        caller: Key,
        to: Key,
        listener: str,
        request: SimulatedRequest,
        connection: ClientConnection,
    ) -> list[CallOutcome]:
        """What becomes of a request that a program sends to a listener of the Envoy beside it."""
        envoy = self.proxies.of(caller, to)
        return _merged(self._hops(caller, envoy, listener, request, connection, None, _HOPS_MAX))

    def _hops(
        self,
        proxy: Key,
        envoy: SimulatedProxy,
        listener: str,
        request: SimulatedRequest | None,
        connection: ClientConnection,
        first: CallOutcome | None,
        hops_left: int,
    ) -> Iterator[CallOutcome]:
        for ending in envoy.arrive(listener, connection, request):
            outcome = _outcome(ending, proxy, listener, first)
            onward = ending.connection
            if ending.kind != "forwarded" or onward is None:
                yield outcome
                continue
            following = self.proxies.at(onward.address, onward.port)
            if first is not None and (_serves(proxy, listener) or following is None):
                yield _reached(outcome, first, proxy)
            elif following is None or not hops_left:
                yield self._outside(outcome, onward)
            else:
                key, name = following
                served = self.proxies.of(key)
                yield from self._hops(key, served, name, ending.request, onward, outcome, hops_left - 1)

    def _outside(self, outcome: CallOutcome, onward: ClientConnection) -> CallOutcome:
        """A request that leaves what this control plane configures."""
        address = f"{onward.address}:{onward.port}" if onward.port else onward.address
        zone = self.proxies.zone_at(onward.address, onward.port)
        note = f"in zone {zone}, whose control plane decides who may call" if zone else ""
        notes = (*outcome.side.notes, note) if note else outcome.side.notes
        return msgspec.structs.replace(
            outcome,
            kind=REACHED,
            endpoints=((address, outcome.share),),
            side=msgspec.structs.replace(outcome.side, notes=notes),
        )


def _serves(proxy: Key, listener: str) -> bool:
    """Whether a listener is one of a Dataplane's own inbounds, behind which is the service."""
    return proxy.kind == "Dataplane" and not names.is_of_gateway(listener)


def _reached(outcome: CallOutcome, first: CallOutcome, proxy: Key) -> CallOutcome:
    endpoint = proxy.name if proxy.kind == "Dataplane" else first.destination
    return msgspec.structs.replace(outcome, kind=REACHED, endpoints=((endpoint, outcome.share),))


def _outcome(ending: ProxyEnding, proxy: Key, listener: str, first: CallOutcome | None) -> CallOutcome:
    """An ending in a proxy; what the caller's route sets stays, and shares are those of the whole."""
    share = ending.share * (first.share if first else 1)
    before = first.side if first else Side()
    side = before.joined(ending.side)
    # Where the other end closes the connection, the caller's own Envoy answers, if it reads requests.
    is_http = first.is_http if first else ending.is_http
    status = ending.status or (_UNAVAILABLE if first and is_http and ending.kind != "forwarded" else 0)
    return CallOutcome(
        share=share,
        kind=ending.kind,
        destination=first.destination if first else names.resource(ending.cluster),
        decided_at=proxy,
        listener=listener,
        by=_decider(ending.by),
        text=ending.text,
        status=status,
        location=ending.location,
        route=first.route if first else ending.route,
        effects=(first.effects if first else ending.effects) or _NOTHING,
        connect_timeout=first.connect_timeout if first else ending.connect_timeout,
        request=ending.request or (first.request if first else None),
        is_http=is_http,
        side=side,
    )


def _decider(name: str) -> str:
    """Who decided, by its KRI: names of parts of a gateway's listener have a host behind that."""
    return names.resource(names.routes_of(name) or name) if name.startswith("kri_") else name


def _merged(outcomes: Iterable[CallOutcome]) -> list[CallOutcome]:
    """Outcomes that differ in nothing but endpoints as one, in order."""
    merged: dict[CallOutcome, list[CallOutcome]] = {}
    for each in outcomes:
        alike = msgspec.structs.replace(each, share=Fraction(0), endpoints=(), decided_at=None, listener="")
        merged.setdefault(alike, []).append(each)
    return [_sum(group) for group in merged.values()]


def _sum(group: list[CallOutcome]) -> CallOutcome:
    shares: dict[str, Fraction] = {}
    for endpoint, share in (pair for each in group for pair in each.endpoints):
        shares[endpoint] = shares.get(endpoint, Fraction(0)) + share
    total = sum((each.share for each in group), Fraction(0))
    return msgspec.structs.replace(group[0], share=total, endpoints=tuple(sorted(shares.items())))
