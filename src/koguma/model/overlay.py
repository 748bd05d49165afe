"""Overlays: what a policy changes in the configuration of a proxy, as plain Envoy data.

The build makes a skeleton of each listener, route and cluster. A policy's hook gets a merged configuration
and returns an overlay, part by part. It never sees the skeleton. Overlays are merged into it in the order of
phases (`model/phase.py`): maps key by key, everything else is replaced. Parts:

    cluster          the Cluster
    http_options     its HttpProtocolOptions; only where the protocol is HTTP
    hcm              the HttpConnectionManager; only where the protocol is HTTP
    tcp              the TcpProxy; only where it is not
    route            every Route (message envoy.config.route.v3.Route), or those of one MeshHTTPRoute
    route_action     the same routes' RouteAction, where they have one; a redirect or direct response has none
    callers          on an inbound, routes for some callers only: [{"match": ..., "route_action": ...}], each
                     merged into copies of the routes, which are tried before the routes themselves
    http_filters     by the filter's name in the table of filters: its typed config
    network_filters  the same for network filters
    extensions       filters that are sent apart from their listener (ECDS), to act on open connections too:
                     who may call an HTTP port, how many connections another port accepts
    on_routes        on an inbound or a built-in gateway, by a filter's key: HTTP filters whose configuration
                     comes with the routes
    tls              the DownstreamTlsContext of an inbound
    upstream_tls     with `both_ends`, the UpstreamTlsContext of the clusters by which others call the inbound
    inbound          how an inbound is shaped: {"mode": "Strict" | "Permissive"}
    problems         by field: a sentence about what cannot be done; it is shown, and the rest holds
    access_logs      by name: AccessLogs of the listener, all policies' together; on a MeshHTTPRoute, those of
                     its requests, in place of the port's

A hook may also add whole resources, by name. A name stands for one resource in the whole proxy, whichever
policy adds it. So derive it from everything on which the resource's content depends.

    clusters         Clusters that the listener needs, such as a collector of logs
    listeners        Listeners; only in the hook `whole`
    passthrough      what may leave the mesh: {"mode": "All" | "Matched" | "None", "matches": [...]}; only in
                     the hook `whole`
    settings         by path: settings for the agent beside Envoy, as JSON; only in the hook `whole`
"""

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Final

import msgspec

from koguma.model.resource import Key
from koguma.model.schema import Json

Overlay = Mapping[str, Json]

_SHARED_PARTS: Final = frozenset(
    [
        "cluster",
        "http_options",
        "hcm",
        "tcp",
        "route",
        "route_action",
        "http_filters",
        "network_filters",
        "access_logs",
        "clusters",
        "problems",
    ]
)
# The parts that the overlay of each hook may have.
OUTBOUND_PARTS: Final = _SHARED_PARTS
INBOUND_PARTS: Final = _SHARED_PARTS | {
    *("callers", "extensions", "on_routes", "tls", "upstream_tls", "inbound")
}
GATEWAY_PARTS: Final = _SHARED_PARTS | {"extensions", "on_routes"}
WHOLE_PARTS: Final = frozenset({"clusters", "listeners", "passthrough", "problems", "settings"})


class KumaDp(msgspec.Struct, frozen=True):
    """Kuma's own agent beside Envoy, with the files by which others reach it."""

    metrics_socket: str
    metrics_certificate: str = ""  # which it was started with, for who scrapes
    metrics_key: str = ""


class MachineAccess(msgspec.Struct, frozen=True):
    """What policies may do on the machine of a proxy beside its traffic, as whoever started it allows.

    Without directories every file may be written: Kuma's agent does not say, and its users know it so.
    """

    directories: tuple[str, ...] | None = None
    reads_data: bool = True  # files and variables of the environment

    def may_write(self, path: str) -> bool:
        """Whether Envoy may write a file; the streams of its own process are everybody's."""
        if self.directories is None or path in STREAMS:
            return True
        parts = PurePosixPath(path)
        return ".." not in parts.parts and any(parts.is_relative_to(each) for each in self.directories)

    def refusal(self, path: str) -> str:
        """Why a file is not written."""
        allowed = ", ".join(self.directories or ()) or "nothing"
        return (
            f'"{path}" is not written: whoever started the proxy allows files below {allowed}; name one'
            " there, or start it with another --access-log-dir"
        )


# Where a process writes that has no file.
STREAMS: Final = frozenset({"/dev/stdout", "/dev/stderr", "/dev/null"})
NO_DATA: Final = (
    "needs a file or a variable of the proxy's machine, which the proxy does not give away: both the control"
    " plane and the proxy have to be started with --allow-proxy-data-sources"
)


class OverlayContext(msgspec.Struct, frozen=True):
    """Which skeleton a hook's overlay will be merged into."""

    protocol: str  # tcp, http, http2, grpc
    mesh: str = ""
    zone: str = ""
    name: str = ""  # of the listener and cluster
    proxy_tags: tuple[tuple[str, str], ...] = ()
    service: str = ""  # the proxy's own; on outbounds only where the policy's `per_service` asks for it
    log_pipe: str = ""  # from which the agent forwards log lines; empty where it forwards none
    address: str = ""  # the proxy's own, in the hook `whole`
    workdir: str = ""  # the agent's directory, in the hook `whole`; empty before the proxy has connected
    has_mtls: bool = False  # whether the mesh has mTLS, in the hook `whole`
    machine: MachineAccess = MachineAccess()
    allows_by_server_name: bool = False  # on an egress: only what names the server allows a call
    is_gateway: bool = False  # whether it is a listener of a built-in gateway, or a route of one
    admits_meshes: bool = False  # whether proxies of other meshes come there too
    kuma_dp: KumaDp | None = None  # set where the agent is Kuma's and not ours, in the hook `whole`

    @property
    def is_http(self) -> bool:
        """Whether the listener handles HTTP requests, and not only connections."""
        return self.protocol in ("http", "http2", "grpc")


class InboundEntry(msgspec.Struct, frozen=True):
    """One entry for inbound traffic: its configuration, its policy, and the callers that it is for."""

    conf: Json
    origin: Key
    kri: str
    path: str  # of the entry in its policy
    tags: tuple[tuple[str, str], ...] = ()
    spiffe_id: tuple[str, str] = ("", "")
    sni: tuple[str, str] = ("", "")

    @property
    def for_everybody(self) -> bool:
        """Whether it applies to every caller."""
        return not (self.tags or self.spiffe_id[1] or self.sni[1])


class AffinityTag(msgspec.Struct, frozen=True):
    """A tag; endpoints that have the client's own value of it are near."""

    key: str
    weight: int = 0  # the share of the traffic that these get; 0 where the order of the tags decides


class Failover(msgspec.Struct, frozen=True):
    """One step of the way out of a zone whose endpoints fail."""

    to: str  # Any, Only, AnyExcept, or None: nobody takes over, neither here nor in a later step
    zones: tuple[str, ...] = ()  # for Only and AnyExcept
    from_zones: tuple[str, ...] = ()  # whose clients this step is for; those of every zone by default


class Locality(msgspec.Struct, frozen=True):
    """Which endpoints of a destination are called first; by default those of the client's zone."""

    is_disabled: bool = False  # all endpoints are equal, wherever they are
    affinity_tags: tuple[AffinityTag, ...] = ()
    failovers: tuple[Failover, ...] = ()  # without one, all other zones take over together
    overprovisioning_factor: int = 200


class PolicyHooks(msgspec.Struct, frozen=True):
    """The hooks of a policy; each may be absent.

    `outbound` gets the configuration for a destination's port; on a MeshHTTPRoute it gets that of the route,
    and only its parts `route`, `route_action`, `access_logs` and `clusters` are used. `inbound` gets the
    configuration that the entries for everybody make together, and all entries for one inbound, the least
    important first. A policy about whole proxies has one configuration, which these two get for each port,
    and `whole` once for the proxy itself.

    `gateway` is for a policy whose `to` acts on what built-in gateways send on, and not on calls of sidecars:
    it gets what `outbound` gets elsewhere, for each listener and each of its routes. With `at_gateways` the
    hook `inbound` acts on what arrives at built-in gateways too; nobody there has an identity of the mesh, so
    it gets the configuration for everybody and no entries. Where proxies of other meshes call a gateway, all
    have one, and `inbound` of a policy with `permits` gets all entries.

    A reference in the configuration to an object of a kind in `looks_up` comes with that object: beside the
    `kind` and `labels` of a `backendRef` there is its `spec`, or None where nothing has these labels.

    What a proxy calls is built once for all proxies that the same policies select. Where `per_service` says
    that the configuration of a policy about whole proxies needs to know who calls, it is built once for each
    service instead.

    `locality` gets the configuration for a destination's port and says which of its endpoints come first.
    These come apart from the cluster, so that a proxy that starts or stops changes nothing else; hence a hook
    of its own.

    Where `both_ends` is set, both ends of a connection have to agree on what the policy says. Its part
    `upstream_tls`, made from the entries of policies that select the whole mesh, then acts on the clusters by
    which proxies of that mesh call each other.

    `permits` says whether entries for calls that arrive let a caller call a server: one with these URIs in
    its certificate, asking for this server name. It is asked where no proxy is at the other end.

    `modifications` names a list in the policy's `default` whose entries change the finished configuration,
    in the form of MeshProxyPatch's `appendModifications`. The build checks and shows them one by one, so that
    one that cannot be read keeps no other back.
    """

    outbound: Callable[[Json, OverlayContext], Overlay] | None = None
    inbound: Callable[[Json, tuple[InboundEntry, ...], OverlayContext], Overlay] | None = None
    whole: Callable[[Json, OverlayContext], Overlay] | None = None
    permits: Callable[[tuple[InboundEntry, ...], OverlayContext, tuple[str, ...], str], bool] | None = None
    looks_up: tuple[str, ...] = ()
    per_service: Callable[[Json], bool] | None = None
    locality: Callable[[Json], Locality | None] | None = None
    both_ends: bool = False
    modifications: str = ""
    gateway: Callable[[Json, OverlayContext], Overlay] | None = None
    at_gateways: bool = False
