"""Overlays: what a policy lays over the skeleton of a proxy, as plain Envoy data.

A hook gets a merged configuration and says what it changes, part by part. It never sees the skeleton and
never changes it: maps are merged key by key, everything else is replaced. Parts:

    cluster          the Cluster
    http_options     its HttpProtocolOptions; only where the protocol is HTTP
    hcm              the HttpConnectionManager; only where the protocol is HTTP
    tcp              the TcpProxy; only where it is not
    route            every Route (message envoy.config.route.v3.Route), or those of one MeshHTTPRoute
    route_action     the same routes' RouteAction, where they have one; a redirect or direct response has none
    callers          on an inbound, routes for some callers only: [{"match": ..., "route_action": ...}], each
                     laid over copies of the routes, which are tried before them
    http_filters     by the filter's name in the table of filters: its typed config
    network_filters  the same for network filters
    extensions       HTTP filters that come apart from their listener, so that they act on open connections
    tls              the DownstreamTlsContext of an inbound
    upstream_tls     the UpstreamTlsContext of outbound clusters
    inbound          how an inbound is shaped: {"mode": "Strict" | "Permissive"}
    locality         how endpoints are grouped: the policy's own `localityAwareness`
"""

from collections.abc import Callable, Mapping

import msgspec

from koguma.model.resource import Key
from koguma.model.schema import Json

Overlay = Mapping[str, Json]


class Where(msgspec.Struct, frozen=True):
    """What the skeleton is for."""

    protocol: str  # tcp, http, http2, grpc
    mesh: str = ""
    zone: str = ""
    name: str = ""  # of the listener and cluster
    proxy_tags: tuple[tuple[str, str], ...] = ()

    @property
    def is_http(self) -> bool:
        """Whether the listener understands requests."""
        return self.protocol in ("http", "http2", "grpc")


class Ruled(msgspec.Struct, frozen=True):
    """One entry for calls that arrive: whom it is for, what it says, whose it is."""

    conf: Json
    origin: Key
    kri: str
    path: str  # of the entry in its policy
    tags: tuple[tuple[str, str], ...] = ()
    spiffe_id: tuple[str, str] = ("", "")
    sni: tuple[str, str] = ("", "")

    @property
    def for_everybody(self) -> bool:
        """Whether it does not look at the caller."""
        return not (self.tags or self.spiffe_id[1] or self.sni[1])


class Overlays(msgspec.Struct, frozen=True):
    """The hooks of a policy; each may be absent.

    `outbound` gets the configuration for a destination's port; on a MeshHTTPRoute it gets that of the route,
    and only its parts `route` and `route_action` are used. `inbound` gets the configuration that the entries
    for everybody make together, and all entries for one inbound, the least important first.
    """

    outbound: Callable[[Json, Where], Overlay] | None = None
    inbound: Callable[[Json, tuple[Ruled, ...], Where], Overlay] | None = None
