"""Network: where a proxy and its service listen, and what the proxy's agent can do.

Read from the Dataplane's `networking` and from the metadata of its xDS node. It is apart from `world.proxy`,
from which rules are made, so that a proxy with a new address changes endpoints and its own listeners only.
"""

import ipaddress
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec

from koguma.core import spiffe, world
from koguma.core.incremental import Db, question
from koguma.core.inputs import Index, Input
from koguma.core.world import DestinationRef, Pairs, pairs
from koguma.envoy import access_logs
from koguma.model import labels, names, tags
from koguma.model.overlay import MachineAccess
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

LOOPBACK = "127.0.0.1"

_OWN_PIPE = "feature-access-log-pipe"
_BINDS_OUTBOUNDS = "feature-bind-outbounds"
_KUMA_PIPE = "feature-tcp-accesslog-via-named-pipe"
_KUMA_PATH_LENGTH_MAX = 98  # of a socket, without its ending
_READINESS_SOCKET = "feature-readiness-unix-socket"
_DATA_SOURCES = "feature-proxy-data-sources"
# What `koguma dp run` allows by default; with it, most proxies share their outbound part.
LOG_DIRECTORIES = ("/var/log/koguma",)


def is_own_agent(features: Collection[str]) -> bool:
    """Whether the agent beside Envoy is the one of this project, and not Kuma's."""
    return _OWN_PIPE in features


class NodeMetadata(msgspec.Struct, frozen=True):
    """What the node metadata of a connected proxy says: its agent, features and ports."""

    features: tuple[str, ...] = ()
    workdir: str = ""
    admin_port: int = 0
    dns_port: int = 0
    has_ipv6: bool = False
    readiness_port: int = 0  # where Kuma's agent reports whether it is ready, if not on a socket
    redirect_inbound: int = 0  # ports that the kernel redirects to, where only the agent was configured
    redirect_outbound: int = 0
    ip_family: str = ""
    metrics_certificate: str = ""  # files of Kuma's agent with which it serves metrics
    metrics_key: str = ""
    log_directories: tuple[str, ...] | None = (
        None  # where Envoy may write files; None where the agent does not say
    )

    @property
    def is_own_agent(self) -> bool:
        """Whether the agent beside Envoy is the one of this project, and not Kuma's."""
        return is_own_agent(self.features)

    @property
    def has_readiness_socket(self) -> bool:
        """Whether the agent reports on a unix socket whether it is ready."""
        return _READINESS_SOCKET in self.features or not self.readiness_port

    @property
    def binds_outbounds(self) -> bool:
        """Whether its Envoy binds the virtual addresses itself."""
        return _BINDS_OUTBOUNDS in self.features

    @property
    def allows_data_sources(self) -> bool:
        """Whether policies may read its machine's files and environment; Kuma's agent cannot refuse it."""
        return _DATA_SOURCES in self.features or not self.is_own_agent

    @property
    def has_own_dns(self) -> bool:
        """Whether the agent is a DNS server for the names of the mesh."""
        return "feature-embedded-dns" in self.features

    def log_pipe(self, mesh: str, core_name: str) -> str:
        """The socket on which the agent takes access log lines to forward; empty where it takes none."""
        if _OWN_PIPE in self.features:
            return access_logs.PIPE
        if _KUMA_PIPE in self.features and self.workdir:
            return self._kuma_socket(f"kuma-al-{core_name}-{mesh}")
        return ""

    def kuma_metrics_socket(self, mesh: str, core_name: str) -> str:
        """The socket on which Kuma's agent serves metrics; Koguma's agent does so elsewhere."""
        return self._kuma_socket(f"kuma-mh-{core_name}-{mesh}")

    def _kuma_socket(self, name: str) -> str:
        """The path of a socket as Kuma makes it: cut to the length of a socket address."""
        return f"{self.workdir}/{name}"[:_KUMA_PATH_LENGTH_MAX] + ".sock"


NODE_METADATA: Input[Key, NodeMetadata] = Input("node metadata")


class InboundNetworking(msgspec.Struct, frozen=True):
    """An inbound of a Dataplane, with its addresses."""

    section: str
    name: str
    address: str  # where Envoy listens
    reached_at: str  # where others call it: the advertised address, if any
    port: int
    service_address: str
    service_port: int
    protocol: str
    tags: Pairs
    is_ready: bool


class OutboundNetworking(msgspec.Struct, frozen=True):
    """An outbound of a Dataplane: a local address on which a destination is called.

    With tags, only endpoints that have these are called.
    """

    address: str
    port: int
    destination: DestinationRef
    tags: Pairs = ()


class Networking(msgspec.Struct, frozen=True):
    """The `networking` of a Dataplane."""

    address: str
    inbounds: tuple[InboundNetworking, ...]
    outbounds: tuple[OutboundNetworking, ...]
    admin_port: int = 0
    redirect_inbound: int = 0
    redirect_outbound: int = 0
    ip_family: str = ""

    def with_redirection_of(self, node: NodeMetadata) -> "Networking":
        """The same with the redirection that the agent reports, where the Dataplane itself has none."""
        if self.redirect_inbound or self.redirect_outbound:
            return self
        if not node.redirect_inbound and not node.redirect_outbound:
            return self
        return msgspec.structs.replace(
            self,
            redirect_inbound=node.redirect_inbound,
            redirect_outbound=node.redirect_outbound,
            ip_family=self.ip_family or node.ip_family,
        )


@question
def networking(db: Db, proxy: Key) -> Networking | None:
    """The networking of a proxy; None where there is no such Dataplane."""
    resource = world.RESOURCES.get(db, proxy)
    if resource is None:
        return None
    networking = resource.spec.get("networking") or {}
    proxying = networking.get("transparentProxying") or {}
    return Networking(
        address=networking.get("address") or LOOPBACK,
        inbounds=tuple(_inbounds(networking, is_starting=is_starting(resource))),
        outbounds=tuple(_outbounds(networking)),
        admin_port=(networking.get("admin") or {}).get("port") or 0,
        redirect_inbound=proxying.get("redirectPortInbound") or 0,
        redirect_outbound=proxying.get("redirectPortOutbound") or 0,
        ip_family=proxying.get("ipFamilyMode") or "",
    )


def node_metadata(db: Db, proxy: Key) -> NodeMetadata:
    """The node metadata of a proxy; all defaults before it connects."""
    return NODE_METADATA.get(db, proxy) or NodeMetadata()


def likely_node_metadata(networking: "Networking") -> NodeMetadata:
    """The node metadata that a proxy will most likely have, as far as it decides what proxies share.

    It is that of Koguma's agent, which binds virtual addresses where the Dataplane lists no outbounds.
    """
    features = (_OWN_PIPE,) if networking.outbounds else (_OWN_PIPE, _BINDS_OUTBOUNDS)
    return NodeMetadata(features, log_directories=LOG_DIRECTORIES)


def machine(db: Db, node: NodeMetadata) -> MachineAccess:
    """What policies may do on the machine of a proxy: what both the proxy and the control plane allow."""
    may_read = world.control_plane(db).allow_proxy_data_sources and node.allows_data_sources
    return MachineAccess(node.log_directories, may_read)


def log_pipe(db: Db, key: Key, node: NodeMetadata) -> str:
    """The socket on which a proxy's agent takes access log lines to forward; empty where it takes none."""
    proxy = world.proxy(db, key)
    return node.log_pipe(key.mesh, proxy.core_name) if proxy else ""


def own_service(db: Db, key: Key) -> str:
    """The service by which a proxy is known: that of its first tags, or else of its certificate."""
    proxy = world.proxy(db, key)
    if proxy is None:
        return ""
    tag_sets = (*(inbound.tags for inbound in proxy.inbounds), proxy.gateway_tags)
    services = (dict(tag_set).get(tags.SERVICE) for tag_set in tag_sets)
    return next(filter(None, services), None) or spiffe.services(proxy)[0]


def ready_mark(resource: Resource) -> str:
    """The annotation of a registered Dataplane once its proxy has its configuration and can be called."""
    return labels.ready_mark(resource.labels)


def is_starting(resource: Resource) -> bool:
    """Whether a proxy registered its Dataplane and has not acknowledged its configuration yet.

    Until then its Envoy has no listeners. Only its own zone knows: annotations do not go to Global.
    """
    if labels.REGISTERED_BY not in resource.labels:
        return False
    return resource.annotations.get(labels.READY) != ready_mark(resource) and not _is_from_elsewhere(resource)


def _is_from_elsewhere(resource: Resource) -> bool:
    """Whether another control plane wrote this object: its core name has a hash then."""
    written = resource.mesh, resource.name, resource.zone, resource.namespace
    return resource.core_name == names.hashed(*written)


def ready_sections(resource: Resource) -> frozenset[str]:
    """The inbounds of a Dataplane that others may call."""
    inbounds = _inbounds(resource.spec.get("networking") or {}, is_starting=is_starting(resource))
    return frozenset(inbound.section for inbound in inbounds if inbound.is_ready)


def _inbounds(networking: Json, *, is_starting: bool) -> Iterator[InboundNetworking]:
    own_address = networking.get("address") or LOOPBACK
    advertised = networking.get("advertisedAddress")
    for inbound in networking.get("inbound") or ():
        if inbound.get("state") == "Ignored":
            continue
        port, name, own = inbound.get("port") or 0, inbound.get("name") or "", inbound.get("tags") or {}
        address = inbound.get("address") or own_address
        health = inbound.get("health") or {}
        yield InboundNetworking(
            section=name or str(port),
            name=name,
            address=address,
            reached_at=advertised or address,
            port=port,
            service_address=inbound.get("serviceAddress") or address,
            service_port=inbound.get("servicePort") or port,
            protocol=inbound.get("protocol") or own.get(tags.PROTOCOL) or "tcp",
            tags=pairs(own),
            is_ready=not is_starting
            and inbound.get("state") in (None, "Ready")
            and health.get("ready") is not False,
        )


def _outbounds(networking: Json) -> Iterator[OutboundNetworking]:
    for outbound in networking.get("outbound") or ():
        destination = world.outbound_ref(outbound)
        if destination is not None:
            own = {} if outbound.get("backendRef") else outbound.get("tags") or {}
            subset = pairs({name: value for name, value in own.items() if name != tags.SERVICE})
            yield OutboundNetworking(
                outbound.get("address") or LOOPBACK, outbound.get("port") or 0, destination, subset
            )


def _tags(key: Key, resource: Resource) -> Iterator[tuple[str, str, str]]:
    """Everything by which a service may select this proxy: its labels and its inbounds' tags."""
    if key.kind != "Dataplane":
        return
    own_tags = dict.fromkeys(resource.labels.items())
    networking = resource.spec.get("networking") if isinstance(resource.spec, dict) else None
    if isinstance(networking, dict):
        for inbound in networking.get("inbound") or ():
            own_tags |= dict.fromkeys((inbound.get("tags") or {}).items())
    for name, value in own_tags:
        yield key.mesh, name, value


BY_TAG = Index(world.RESOURCES, _tags)


class InboundAddress(NamedTuple):
    """Where an inbound is called; `mesh` is empty where the address is the same one for all meshes."""

    zone: str
    mesh: str
    address: str
    port: int


def inbound_address(proxy: Key, inbound: InboundNetworking) -> InboundAddress:
    """Where an inbound is called. Each zone has a network of its own, and each machine a loopback address.

    Whoever calls a loopback address is on the same machine and in the same mesh; proxies of other meshes may
    have the same address on machines of their own.
    """
    mesh = proxy.mesh if _is_loopback(inbound.reached_at) else ""
    return InboundAddress(proxy.zone, mesh, inbound.reached_at, inbound.port)


@lru_cache(maxsize=4096)
def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _ready_addresses(key: Key, resource: Resource) -> Iterator[InboundAddress]:
    """Where a Dataplane's ready inbounds are called."""
    networking = resource.spec.get("networking") if isinstance(resource.spec, dict) else None
    if key.kind == "Dataplane" and isinstance(networking, dict):
        for inbound in _inbounds(networking, is_starting=is_starting(resource)):
            if inbound.is_ready:
                yield inbound_address(key, inbound)


BY_INBOUND_ADDRESS = Index(world.RESOURCES, _ready_addresses)
