"""Networking of a Dataplane: its inbounds, outbounds, gateway, listeners, and what is wrong with them."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from koguma.kinds import rules
from koguma.kinds.rules import PortOrNone, UInt32
from koguma.model import names, tags
from koguma.model.schema import Duration, Spec, doc, keyed_by
from koguma.model.violation import Violation, child, item, key


class DataplaneInboundHealth(Spec):
    """Whether the service is healthy, older form of `state`."""

    ready: Annotated[bool | None, doc("Whether it takes calls.")] = None


class DataplaneProbeTcp(Spec):
    """A connection is enough."""


class DataplaneServiceProbe(Spec):
    """How the proxy finds out whether its service is healthy."""

    interval: Annotated[Duration | None, doc("Time between two checks.")] = None
    timeout: Annotated[Duration | None, doc("Time to wait for an answer.")] = None
    unhealthy_threshold: Annotated[UInt32 | None, doc("Failures until it counts as unhealthy.")] = None
    healthy_threshold: Annotated[UInt32 | None, doc("Successes until it counts as healthy.")] = None
    tcp: Annotated[DataplaneProbeTcp | None, doc("Check by connecting.")] = None


class DataplaneInbound(Spec):
    """A port that the service serves."""

    port: Annotated[UInt32 | None, doc("Port on which the proxy is called.")] = None
    address: Annotated[str | None, doc("IP on which the proxy listens; networking.address by default.")] = (
        None
    )
    service_port: Annotated[UInt32 | None, doc("Port of the service; the same port by default.")] = None
    service_address: Annotated[str | None, doc("IP of the service; the listener's by default.")] = None
    tags: Annotated[Mapping[str, str] | None, doc("Tags of the service; kuma.io/service is one of them.")] = (
        None
    )
    name: Annotated[str | None, doc("Name of the port, by which policies and services refer to it.")] = None
    protocol: Annotated[
        Literal["grpc", "http", "http2", "kafka", "tcp"] | None,
        doc("What the service speaks; the tag kuma.io/protocol is the older form."),
    ] = None
    state: Annotated[
        Literal["Ready", "NotReady", "Ignored"] | None,
        doc("Whether it takes calls; an ignored one has no listener at all."),
    ] = None
    health: Annotated[DataplaneInboundHealth | None, doc("Older form of state.")] = None
    service_probe: Annotated[DataplaneServiceProbe | None, doc("How the service's health is found out.")] = (
        None
    )


class DataplaneBackendRef(Spec):
    """A service by reference."""

    kind: Annotated[str | None, doc("MeshService, MeshExternalService or MeshMultiZoneService.")] = None
    name: Annotated[str | None, doc("Name of the service.")] = None
    port: Annotated[UInt32 | None, doc("Port of the service.")] = None
    labels: Annotated[Mapping[str, str] | None, doc("Select the service by labels instead.")] = None


class DataplaneOutbound(Spec):
    """A service that is called through the proxy."""

    address: Annotated[str | None, doc("IP on which the proxy listens; 127.0.0.1 by default.")] = None
    port: Annotated[UInt32 | None, doc("Port on which the proxy listens.")] = None
    tags: Annotated[Mapping[str, str] | None, doc("The service by its tags.")] = None
    backend_ref: Annotated[DataplaneBackendRef | None, doc("The service by reference.")] = None


class DataplaneGateway(Spec):
    """The proxy stands at the edge of the mesh."""

    type: Annotated[
        Literal["DELEGATED", "BUILTIN"] | None,
        doc("In front of a gateway of another make (default), or itself the gateway."),
    ] = None
    tags: Annotated[Mapping[str, str] | None, doc("Tags of the gateway.")] = None


ZoneListenerType = Annotated[str, rules.enum_values("ZoneIngress", "ZoneEgress")]


class DataplaneListener(Spec):
    """A zone ingress or egress that this proxy is."""

    type: Annotated[ZoneListenerType | None, doc("ZoneIngress or ZoneEgress.")] = None
    address: Annotated[str | None, doc("IP on which the proxy listens.")] = None
    port: Annotated[UInt32 | None, doc("Port on which the proxy listens.")] = None
    name: Annotated[str | None, doc("Name of the listener, by which policies refer to it.")] = None
    state: Annotated[Literal["Ready", "NotReady"] | None, doc("Whether it takes calls.")] = None


class DataplaneReachableRef(Spec):
    """A service that the proxy may need."""

    kind: Annotated[str | None, doc("MeshService, MeshExternalService or MeshMultiZoneService.")] = None
    name: Annotated[str | None, doc("Name of the service.")] = None
    namespace: Annotated[str | None, doc("Namespace of the service.")] = None
    port: Annotated[UInt32 | None, doc("One of its ports; all by default.")] = None
    labels: Annotated[Mapping[str, str] | None, doc("Select services by labels instead.")] = None


class DataplaneReachableBackends(Spec):
    """The services that the proxy may need."""

    refs: Annotated[tuple[DataplaneReachableRef, ...] | None, doc("The services.")] = None


class DataplaneTransparentProxying(Spec):
    """The kernel redirects the service's traffic to the proxy."""

    redirect_port_inbound: Annotated[PortOrNone | None, doc("Where inbound traffic is redirected to.")] = None
    redirect_port_outbound: Annotated[PortOrNone | None, doc("Where outbound traffic is redirected to.")] = (
        None
    )
    ip_family_mode: Annotated[
        Literal["UnSpecified", "DualStack", "IPv4", "IPv6"] | None, doc("Which addresses are redirected.")
    ] = None
    direct_access_services: Annotated[
        tuple[str, ...] | None, doc("Services that are called by their instances' addresses; `*` for all.")
    ] = None
    reachable_services: Annotated[
        tuple[str, ...] | None, doc("The only services (by tag) that the proxy is told about.")
    ] = None
    reachable_backends: Annotated[
        DataplaneReachableBackends | None, doc("The only services that the proxy is told about.")
    ] = None


class DataplaneAdmin(Spec):
    """Envoy's admin port."""

    port: Annotated[UInt32 | None, doc("The port on 127.0.0.1; 9901 by default.")] = None


class DataplaneNetworking(Spec):
    """Where the proxy is, what it serves, what it calls."""

    address: Annotated[str | None, doc("IP or name on which others reach the proxy.")] = None
    advertised_address: Annotated[str | None, doc("The address for others, where it differs.")] = None
    inbound: Annotated[
        tuple[DataplaneInbound, ...] | None,
        doc("Ports that the service serves."),
        keyed_by("port", address=""),
    ] = None
    outbound: Annotated[tuple[DataplaneOutbound, ...] | None, doc("Services that are called.")] = None
    gateway: Annotated[DataplaneGateway | None, doc("The proxy stands at the edge of the mesh.")] = None
    listeners: Annotated[tuple[DataplaneListener, ...] | None, doc("Zone ingress and egress.")] = None
    transparent_proxying: Annotated[
        DataplaneTransparentProxying | None, doc("The kernel redirects traffic to the proxy.")
    ] = None
    admin: Annotated[DataplaneAdmin | None, doc("Envoy's admin port.")] = None


_KINDS: Final = ("MeshExternalService", "MeshMultiZoneService", "MeshService")
_KIND_MESSAGE: Final = f"invalid value. Available values are: {','.join(_KINDS)}"


def violations(networking: DataplaneNetworking) -> Iterator[Violation]:
    """What is wrong with the address, the inbounds, outbounds and listeners; the gateway is apart."""
    yield from rules.address(networking.address, "networking")
    for index, inbound in enumerate(networking.inbound or ()):
        yield from _inbound(inbound, networking.address, item("networking.inbound", index))
    for index, outbound in enumerate(networking.outbound or ()):
        yield from _outbound(outbound, item("networking.outbound", index))
    yield from _listeners(networking)
    proxying = networking.transparent_proxying or DataplaneTransparentProxying()
    backends = proxying.reachable_backends or DataplaneReachableBackends()
    for index, ref in enumerate(backends.refs or ()):
        # The path is misspelt in Kuma, and its clients know it so.
        yield from _reachable(ref, item("networking.transparentProxing.reachableBackends.refs", index))


def admin_violations(networking: DataplaneNetworking) -> Iterator[Violation]:
    """An admin port that an inbound or outbound has taken already."""
    port = networking.admin.port if networking.admin else None
    if not port:
        return
    if any(_shares_socket(at, of, port) for at, of in _inbound_sockets(networking)):
        yield Violation("networking.admin.port", "must differ from inbound", "unique")
    if any(
        _shares_socket(each.address or rules.LOOPBACK, each.port, port) for each in networking.outbound or ()
    ):
        yield Violation("networking.admin.port", "must differ from outbound", "unique")


def _shares_socket(address: str, taken: int | None, port: int) -> bool:
    return taken == port and rules.addresses_overlap(address, rules.LOOPBACK)


def _inbound_sockets(networking: DataplaneNetworking) -> Iterator[tuple[str, int | None]]:
    """Addresses and ports of the listeners and of the services behind them."""
    for inbound in networking.inbound or ():
        if inbound.state != "Ignored":
            address = inbound.address or networking.address or ""
            yield address, inbound.port
            yield inbound.service_address or address, inbound.service_port or inbound.port


def gateway_violations(gateway: DataplaneGateway) -> Iterator[Violation]:
    """What is wrong with a gateway's tags; a built-in one is selected by them, so it needs them."""
    gateway_tags = gateway.tags or {}
    path = "networking.gateway.tags"
    yield from tags.violations(
        gateway_tags, path, needs_service=bool(gateway_tags) or gateway.type == "BUILTIN"
    )
    protocol = gateway_tags.get(tags.PROTOCOL, "tcp")
    if protocol != "tcp":
        message = f'other values than tcp are not allowed, provided value "{protocol}"'
        yield Violation(key(path, tags.PROTOCOL), message, "enum")


def _inbound(inbound: DataplaneInbound, proxy_address: str | None, path: str) -> Iterator[Violation]:
    yield from rules.port(inbound.port, child(path, "port"))
    if inbound.service_port:
        yield from rules.port(inbound.service_port, child(path, "servicePort"))
    yield from _service_address(inbound, proxy_address, child(path, "serviceAddress"))
    yield from rules.ip(inbound.address, child(path, "address"))
    yield from _inbound_tags(inbound.tags or {}, child(path, "tags"))
    probe, at = inbound.service_probe, child(path, "serviceProbe")
    if probe is not None:
        yield from rules.positive_duration(probe.interval, child(at, "interval"))
        yield from rules.positive_duration(probe.timeout, child(at, "timeout"))
        if probe.unhealthy_threshold == 0:
            yield Violation(child(at, "unhealthyThreshold"), rules.POSITIVE_MESSAGE, "range")
        if probe.healthy_threshold == 0:
            yield Violation(child(at, "healthyThreshold"), rules.POSITIVE_MESSAGE, "range")


def _service_address(inbound: DataplaneInbound, proxy_address: str | None, path: str) -> Iterator[Violation]:
    service = inbound.service_address
    if not service:
        return
    yield from rules.ip(service, path, "serviceAddress has to be valid IP address")
    same_port = not inbound.service_port or inbound.service_port == inbound.port
    if same_port and service in (proxy_address, inbound.address):
        message = "serviceAddress and servicePort has to differ from address and port"
        yield Violation(path, message, "unique")


def _inbound_tags(inbound_tags: Mapping[str, str], path: str) -> Iterator[Violation]:
    yield from tags.violations(inbound_tags, path)
    protocol = inbound_tags.get(tags.PROTOCOL)
    if protocol is not None and protocol not in tags.PROTOCOLS:
        allowed = ", ".join(tags.PROTOCOLS)
        message = f'tag "{tags.PROTOCOL}" has an invalid value "{protocol}". Allowed values: {allowed}'
        yield Violation(key(path, tags.PROTOCOL), message, "enum")
    if inbound_tags and tags.SERVICE not in inbound_tags:
        yield Violation(key(path, tags.SERVICE), "tag has to exist", "required")


def _outbound(outbound: DataplaneOutbound, path: str) -> Iterator[Violation]:
    yield from rules.port(outbound.port, child(path, "port"))
    yield from rules.ip(outbound.address, child(path, "address"))
    if outbound.backend_ref is None:
        yield from tags.violations(outbound.tags or {}, child(path, "tags"), needs_service=True)
        return
    ref, at = outbound.backend_ref, child(path, "backendRef")
    if ref.kind not in _KINDS:
        yield Violation(child(at, "kind"), _KIND_MESSAGE, "enum")
    if not ref.name and not ref.labels:
        yield Violation(at, "either 'name' or 'labels' should be specified", "required")
    if ref.kind != "MeshExternalService":
        yield from rules.port(ref.port, child(at, "port"))
    if outbound.tags:
        yield Violation(at, "both backendRef and tags/service cannot be defined", "exclusive")


def _reachable(ref: DataplaneReachableRef, path: str) -> Iterator[Violation]:
    if ref.kind not in _KINDS:
        yield Violation(child(path, "kind"), _KIND_MESSAGE, "enum")
    at = child(path, "name")
    if ref.name:
        yield from names.identifier(ref.name, at)
    elif ref.namespace:
        yield Violation(at, "name is required, when namespace is defined", "required")
    elif not ref.labels:
        yield Violation(at, "name or labels are required", "required")
    if ref.labels and (ref.name or ref.namespace):
        yield Violation(child(path, "labels"), "labels cannot be defined when name is specified", "exclusive")


def _listeners(networking: DataplaneNetworking) -> Iterator[Violation]:
    names_taken = {inbound.name for inbound in networking.inbound or ()}
    types: dict[tuple[str | None, int | None], str | None] = {}
    for index, listener in enumerate(networking.listeners or ()):
        path = item("networking.listeners", index)
        if listener.type not in ("ZoneIngress", "ZoneEgress"):
            yield Violation(child(path, "type"), "type must be ZoneIngress or ZoneEgress", "enum")
        if not listener.address:
            yield Violation(child(path, "address"), "address can't be empty", "required")
        yield from rules.ip(listener.address, child(path, "address"))
        yield from rules.port(listener.port, child(path, "port"))
        if listener.name and listener.name in names_taken:
            message = f'name "{listener.name}" must be unique across inbounds and listeners'
            yield Violation(child(path, "name"), message, "unique")
        names_taken.add(listener.name)
        socket = (listener.address, listener.port)
        if types.setdefault(socket, listener.type) != listener.type:
            message = (
                f"address:port {listener.address}:{listener.port} is used by listeners of different types"
            )
            yield Violation(path, message, "unique")
