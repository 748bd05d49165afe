"""Network: where a proxy and its service listen, read from a Dataplane.

Apart from `world.proxy`, which rules are made from, so that a proxy that moves changes endpoints and its own
listeners, and nothing else.
"""

import ipaddress
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec

from koguma.core import spiffe, world
from koguma.core.incremental import Db, question
from koguma.core.inputs import Index, Input
from koguma.core.world import Pairs, Wanted, pairs
from koguma.envoy import access_logs
from koguma.model import labels, tags
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
# What `koguma dp run` allows by default: most proxies say the same, and share what they call.
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
    readiness_port: int = 0  # where Kuma's agent says whether it is ready, if not on a socket
    redirect_inbound: int = 0  # ports that the kernel redirects to, where the agent was told and not we
    redirect_outbound: int = 0
    ip_family: str = ""
    metrics_certificate: str = ""  # files of Kuma's agent, for who scrapes
    metrics_key: str = ""
    log_directories: tuple[str, ...] | None = None  # where Envoy may write files; None where it does not say

    @property
    def is_own_agent(self) -> bool:
        """Whether the agent beside Envoy is the one of this project, and not Kuma's."""
        return is_own_agent(self.features)

    @property
    def has_readiness_socket(self) -> bool:
        """Whether the agent says on a unix socket whether it is ready."""
        return _READINESS_SOCKET in self.features or not self.readiness_port

    @property
    def binds_outbounds(self) -> bool:
        """Whether its Envoy listens on the virtual addresses themselves."""
        return _BINDS_OUTBOUNDS in self.features

    @property
    def gives_data(self) -> bool:
        """Whether policies may read its machine's files and environment; Kuma's agent cannot say no."""
        return _DATA_SOURCES in self.features or not self.is_own_agent

    @property
    def has_own_dns(self) -> bool:
        """Whether the agent beside Envoy answers for names of the mesh."""
        return "feature-embedded-dns" in self.features

    def log_pipe(self, mesh: str, core_name: str) -> str:
        """Where the agent beside Envoy reads lines that it sends on; empty where it does not."""
        if _OWN_PIPE in self.features:
            return access_logs.PIPE
        if _KUMA_PIPE in self.features and self.workdir:
            return self._kuma_socket(f"kuma-al-{core_name}-{mesh}")
        return ""

    def kuma_metrics_socket(self, mesh: str, core_name: str) -> str:
        """Where Kuma's agent gives metrics; ours does so elsewhere."""
        return self._kuma_socket(f"kuma-mh-{core_name}-{mesh}")

    def _kuma_socket(self, name: str) -> str:
        """The path of a socket as Kuma makes it: cut, so that it fits."""
        return f"{self.workdir}/{name}"[:_KUMA_PATH_LENGTH_MAX] + ".sock"


NODE_METADATA: Input[Key, NodeMetadata] = Input("node metadata")


class InboundNet(msgspec.Struct, frozen=True):
    """A port that a proxy serves, with its addresses."""

    section: str
    name: str
    address: str  # where Envoy listens
    reached_at: str  # where others call it
    port: int
    service_address: str
    service_port: int
    protocol: str
    tags: Pairs
    is_ready: bool


class OutboundNet(msgspec.Struct, frozen=True):
    """A local address on which a service is called; with tags, only those of its endpoints that have them."""

    address: str
    port: int
    wanted: Wanted
    tags: Pairs = ()


class Net(msgspec.Struct, frozen=True):
    """A proxy's addresses."""

    address: str
    inbounds: tuple[InboundNet, ...]
    outbounds: tuple[OutboundNet, ...]
    admin_port: int = 0
    redirect_inbound: int = 0
    redirect_outbound: int = 0
    ip_family: str = ""

    def with_redirection_of(self, node: NodeMetadata) -> "Net":
        """The same with the ports that the agent redirects to, where the Dataplane says none itself."""
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
def net(db: Db, proxy: Key) -> Net | None:
    """The addresses of a proxy."""
    resource = world.RESOURCES.get(db, proxy)
    if resource is None:
        return None
    networking = resource.spec.get("networking") or {}
    proxying = networking.get("transparentProxying") or {}
    return Net(
        address=networking.get("address") or LOOPBACK,
        inbounds=tuple(_inbounds(networking, waits=_waits(resource))),
        outbounds=tuple(_outbounds(networking)),
        admin_port=(networking.get("admin") or {}).get("port") or 0,
        redirect_inbound=proxying.get("redirectPortInbound") or 0,
        redirect_outbound=proxying.get("redirectPortOutbound") or 0,
        ip_family=proxying.get("ipFamilyMode") or "",
    )


def node_metadata(db: Db, proxy: Key) -> NodeMetadata:
    """The node metadata of a proxy; all defaults before it connects."""
    return NODE_METADATA.get(db, proxy) or NodeMetadata()


def likely_node_metadata(net: "Net") -> NodeMetadata:
    """What a proxy most likely says of itself, as far as others share what follows from it.

    It has the agent of this project, which binds the addresses of what is called where the Dataplane names
    nothing.
    """
    features = (_OWN_PIPE,) if net.outbounds else (_OWN_PIPE, _BINDS_OUTBOUNDS)
    return NodeMetadata(features, log_directories=LOG_DIRECTORIES)


def machine(db: Db, of: NodeMetadata) -> MachineAccess:
    """What policies may do on the machine of a proxy: what it allows, and the control plane as well."""
    may_read = world.place(db).allow_proxy_data_sources and of.gives_data
    return MachineAccess(of.log_directories, may_read)


def log_pipe(db: Db, proxy: Key, of: NodeMetadata) -> str:
    """Where the agent beside a proxy's Envoy reads lines that it sends on; empty where it does not."""
    known = world.proxy(db, proxy)
    return of.log_pipe(proxy.mesh, known.core_name) if known else ""


def own_service(db: Db, proxy: Key) -> str:
    """The service by which a proxy is known: of its first port, or else what its certificate says."""
    known = world.proxy(db, proxy)
    if known is None:
        return ""
    of_ports = (
        dict(own).get(tags.SERVICE) for own in (*(each.tags for each in known.inbounds), known.gateway_tags)
    )
    return next(filter(None, of_ports), None) or spiffe.services(known)[0]


def ready_mark(resource: Resource) -> str:
    """What stands in a Dataplane's annotation once the proxy that brought it can be called."""
    return resource.labels.get(labels.INSTANCE) or "yes"


def _waits(resource: Resource) -> bool:
    """Whether a proxy brought its Dataplane and has not taken its configuration: nobody listens there yet."""
    if labels.REGISTERED_BY not in resource.labels:
        return False
    return resource.annotations.get(labels.READY) != ready_mark(resource)


def _inbounds(networking: Json, *, waits: bool) -> Iterator[InboundNet]:
    own_address = networking.get("address") or LOOPBACK
    advertised = networking.get("advertisedAddress")
    for inbound in networking.get("inbound") or ():
        if inbound.get("state") == "Ignored":
            continue
        port, name, own = inbound.get("port") or 0, inbound.get("name") or "", inbound.get("tags") or {}
        address = inbound.get("address") or own_address
        health = inbound.get("health") or {}
        yield InboundNet(
            section=name or str(port),
            name=name,
            address=address,
            reached_at=advertised or address,
            port=port,
            service_address=inbound.get("serviceAddress") or address,
            service_port=inbound.get("servicePort") or port,
            protocol=inbound.get("protocol") or own.get(tags.PROTOCOL) or "tcp",
            tags=pairs(own),
            is_ready=not waits
            and inbound.get("state") in (None, "Ready")
            and health.get("ready") is not False,
        )


def _outbounds(networking: Json) -> Iterator[OutboundNet]:
    for outbound in networking.get("outbound") or ():
        wanted = world.wanted_outbound(outbound)
        if wanted is not None:
            own = {} if outbound.get("backendRef") else outbound.get("tags") or {}
            subset = pairs({name: value for name, value in own.items() if name != tags.SERVICE})
            yield OutboundNet(outbound.get("address") or LOOPBACK, outbound.get("port") or 0, wanted, subset)


def _tagged(key: Key, resource: Resource) -> Iterator[tuple[str, str, str]]:
    """Everything by which a service may select this proxy."""
    if key.kind != "Dataplane":
        return
    found = dict.fromkeys(resource.labels.items())
    networking = resource.spec.get("networking") if isinstance(resource.spec, dict) else None
    if isinstance(networking, dict):
        for inbound in networking.get("inbound") or ():
            found |= dict.fromkeys((inbound.get("tags") or {}).items())
    for name, value in found:
        yield key.mesh, name, value


BY_TAG = Index(world.RESOURCES, _tagged)


class CalledAt(NamedTuple):
    """Where an inbound is called, and by whom: `mesh` is empty where the address is one for all meshes."""

    zone: str
    mesh: str
    address: str
    port: int


def called_at(proxy: Key, inbound: InboundNet) -> CalledAt:
    """Where an inbound is called. Each zone has a network of its own, and each machine a loopback.

    Meshes that have nothing to do with each other may have machines of their own; who calls a loopback
    address is on the same machine and in the same mesh.
    """
    mesh = proxy.mesh if _is_loopback(inbound.reached_at) else ""
    return CalledAt(proxy.zone, mesh, inbound.reached_at, inbound.port)


@lru_cache(maxsize=4096)
def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _called_at(key: Key, resource: Resource) -> Iterator[CalledAt]:
    """Where a Dataplane's ready inbounds are called."""
    networking = resource.spec.get("networking") if isinstance(resource.spec, dict) else None
    if key.kind == "Dataplane" and isinstance(networking, dict):
        for inbound in _inbounds(networking, waits=_waits(resource)):
            if inbound.is_ready:
                yield called_at(key, inbound)


BY_CALLED_AT = Index(world.RESOURCES, _called_at)
