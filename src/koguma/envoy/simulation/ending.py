"""Ending: what becomes of a share of requests in one proxy."""

from fractions import Fraction
from typing import Literal

import msgspec

from koguma.envoy.simulation.forwarding import RouteEffects
from koguma.envoy.simulation.traffic import ClientConnection, SimulatedRequest

EndingKind = Literal[
    "forwarded",  # sent on to an endpoint
    "denied",  # by RBAC
    "answered",  # by a direct response of a route
    "redirected",
    "aborted",  # by an injected fault
    "no listener",
    "no filter chain",
    "no route",
    "no cluster",
    "no endpoints",
    "tls error",
    "undecided",  # by something that the simulation cannot judge
]


class Side(msgspec.Struct, frozen=True):
    """What happens to requests beside where they go: limits, delays, notes, and who let them in."""

    limits: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    permits: tuple[str, ...] = ()  # the policies that let the caller in
    response_headers: tuple[
        tuple[str, str], ...
    ] = ()  # added to the response, or `-name` where one is removed

    def joined(self, other: "Side") -> "Side":
        """Both, this one first; but a response passes what a request passed the other way round."""
        return Side(
            (*self.limits, *other.limits),
            (*self.faults, *other.faults),
            (*self.notes, *other.notes),
            (*self.permits, *other.permits),
            (*other.response_headers, *self.response_headers),
        )


class ProxyEnding(msgspec.Struct, frozen=True):
    """What becomes of a share of requests in one proxy, and which resource decided it."""

    share: Fraction
    kind: EndingKind
    by: str = ""  # the name of the policy, route or resource that decided
    text: str = ""  # why, for people
    status: int = 0  # that the caller gets; 0 where the connection is closed, or the request goes on
    location: str = ""  # of a redirect
    route: str = ""
    cluster: str = ""
    effects: RouteEffects | None = None
    request: SimulatedRequest | None = None  # as it goes on; None for a connection that is not HTTP
    connection: ClientConnection | None = None  # on which it goes on
    connect_timeout: str = ""
    is_http: bool = True  # whether the proxy reads requests, and so can answer one that fails later
    side: Side = Side()
