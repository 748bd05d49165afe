"""Outbound spec: what of a proxy decides its outbound part: what it can call, on which addresses, and how.

Proxies with equal specs share their outbound part (`outbound`).
"""

from collections.abc import Iterator
from typing import NamedTuple

from koguma.core import external_matches, hostnames, rules, vips, world
from koguma.core.build import (
    hooks,
    network,
    outbound,
    overlay_merge,
    overlays,
    passthrough,
    whole_overlays,
    zone_egress,
)
from koguma.core.build.clusters import ClientContext
from koguma.core.build.network import Networking, NodeMetadata
from koguma.core.build.outbound import Outbounds
from koguma.core.build.outbound_listeners import OutboundPort
from koguma.core.build.passthrough import OutboundRedirection
from koguma.core.build.skeletons import ListenerBinding
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.rules import ProxyClass
from koguma.core.world import Pairs, Reach
from koguma.model.resource import Key

_LEGACY_PORT = 80  # on which Kuma 2.13 has every service of its tags


class OutboundSpec(NamedTuple):
    """What of a proxy decides what it calls, on which addresses, and how."""

    proxy_class: ProxyClass
    ports: Group[OutboundPort]
    client: ClientContext
    binding: ListenerBinding
    redirection: OutboundRedirection | None = None

    def outbounds(self, db: Db) -> Outbounds:
        """The resources with which it calls others."""
        return outbound.resources(db, self.proxy_class, self.ports, self.client, self.binding)


@question
def of(db: Db, proxy: Key) -> OutboundSpec | None:
    """The outbound spec of a proxy; None where the proxy, or its mesh, cannot be read."""
    # A question of its own, so that a proxy's own resources are built again only where the spec changed.
    if world.UNREADABLE.get(db, Key("Mesh", "", "", "", proxy.mesh)) is not None:
        # Whether the mesh has mTLS is unknown. The proxy keeps its last configuration, which is no less safe.
        return None
    proxy_class, networking = rules.class_of(db, proxy), network.networking(db, proxy)
    if proxy_class is None or networking is None:
        return None
    return _spec(db, proxy, proxy_class, networking, network.node_metadata(db, proxy))


def likely(db: Db, proxy: Key) -> OutboundSpec | None:
    """The spec that a proxy will most likely have once it connects."""
    proxy_class, networking = rules.class_of(db, proxy), network.networking(db, proxy)
    if proxy_class is None or networking is None:
        return None
    return _spec(db, proxy, proxy_class, networking, network.likely_node_metadata(networking))


def _spec(
    db: Db, proxy: Key, proxy_class: ProxyClass, networking: Networking, node: NodeMetadata
) -> OutboundSpec:
    networking = networking.with_redirection_of(node)
    ports, binding = _ports(db, proxy, proxy_class, networking, node)
    redirection = _redirection(db, proxy, proxy_class, networking, node)
    return OutboundSpec(proxy_class, ports, client(db, proxy, proxy_class, node), binding, redirection)


def _redirection(
    db: Db, proxy: Key, proxy_class: ProxyClass, networking: Networking, node: NodeMetadata
) -> OutboundRedirection | None:
    if not networking.redirect_outbound:
        return None
    policy_overlays = whole_overlays.of(db, proxy, proxy_class, networking, node)
    parts = overlay_merge.with_overlays({}, policy_overlays.overlays)
    return passthrough.redirection(db, proxy.mesh, networking, node, parts.get("passthrough"))


def _ports(
    db: Db, proxy: Key, proxy_class: ProxyClass, networking: Networking, node: NodeMetadata
) -> tuple[Group[OutboundPort], ListenerBinding]:
    """The ports that a proxy can call and on which addresses, and how Envoy binds these.

    These listeners keep SO_REUSEPORT: without it Envoy refuses an update that adds an address to a listener
    or removes one, as when a proxy calls a service through a second port. A virtual address leads to the same
    service through all proxies of a machine; the agent tries the port of an outbound when it starts.
    """
    if networking.redirect_outbound or node.binds_outbounds:
        binding = ListenerBinding(is_bound=not networking.redirect_outbound, is_shared=True)
        of_class = proxy_class.mesh, proxy_class.zone, proxy_class.namespace, proxy_class.reach
        return virtual_ports(db, *of_class, binding.is_bound, _has_ipv6(networking, node)), binding
    return Group(_explicit_ports(db, proxy, networking)), ListenerBinding(is_shared=True)


def has_ipv6(db: Db, proxy: Key) -> bool:
    """Whether a proxy can be called on virtual addresses of IPv6."""
    networking, node = network.networking(db, proxy), network.node_metadata(db, proxy)
    return networking is not None and _has_ipv6(networking.with_redirection_of(node), node)


def _has_ipv6(networking: Networking, node: NodeMetadata) -> bool:
    """Only where the kernel redirects IPv6: an address that is on no interface cannot be bound."""
    return bool(networking.redirect_outbound) and node.has_ipv6 and networking.ip_family != "IPv4"


@question
def virtual_ports(
    db: Db,
    mesh: str,
    zone: str,
    namespace: str,
    reach: Reach,
    is_bound: bool,  # noqa: FBT001 - arguments of questions are positional
    has_ipv6: bool,  # noqa: FBT001 - the same
) -> Group[OutboundPort]:
    """The ports that proxies with this reach call on virtual addresses; asked once for all of them.

    Where all calls are redirected, external services are called by domains and addresses that they match too.
    """
    ports = []
    for destination, section in world.reached(db, mesh, zone, namespace, reach):
        numbers = _port_numbers(db, destination, section, is_bound=is_bound)
        ips = vips.on_port(db, destination, numbers[0]) if numbers else ()
        ips = vips.of_families(ips, has_ipv6=has_ipv6)
        addresses = tuple((ip, number) for ip in ips for number in numbers)
        is_matched = not is_bound and bool(external_matches.on_port(db, destination, section))
        if addresses or is_matched:
            ports.append(OutboundPort(destination, section, addresses, is_matched=is_matched))
    return Group(ports)


def _port_numbers(db: Db, key: Key, section: str, *, is_bound: bool) -> tuple[int, ...]:
    """The port numbers on which a destination's port is called at virtual addresses.

    As in Kuma 2.13, the first port of a service that has the name of its tag is called on port 80 too. Not
    where Envoy binds the addresses itself: it mostly may not bind port 80, and would refuse the listener.
    """
    destination = world.destination(db, key)
    port = destination.port(section) if destination else None
    if destination is None or port is None:
        return ()
    if is_bound or port != destination.ports[0] or destination.port(str(_LEGACY_PORT)) is not None:
        return (port.number,)
    return (port.number, _LEGACY_PORT) if hostnames.has_legacy_name(db, key) else (port.number,)


def _explicit_ports(db: Db, proxy: Key, networking: Networking) -> Iterator[OutboundPort]:
    """The ports that a Dataplane names as its outbounds."""
    addresses: dict[tuple[Key, str, Pairs], list[tuple[str, int]]] = {}
    for listed in networking.outbounds:
        ref = listed.destination
        namespace = ref.namespace or proxy.namespace
        keys = world.referenced(db, proxy.mesh, ref.kind, ref.name, namespace, proxy.zone, ref.labels)
        for key in keys[:1]:
            destination = world.destination(db, key)
            ports = destination.ports if destination else ()
            port = next((port for port in ports if ref.port in (0, port.number)), None)
            if port is not None:
                own_port = key, port.section, listed.tags
                addresses.setdefault(own_port, []).append((listed.address, listed.port))
    for (key, section, subset), on_addresses in sorted(addresses.items()):
        yield OutboundPort(key, section, tuple(sorted(set(on_addresses))), subset)


def client(db: Db, proxy: Key, proxy_class: ProxyClass, node: NodeMetadata) -> ClientContext:
    """What of a proxy, beside policies, decides how it calls others."""
    return ClientContext(
        proxy_class.mesh,
        proxy_class.zone,
        _affinity(db, proxy, proxy_class),
        hooks.both_ends(db, proxy_class),
        network.log_pipe(db, proxy, node),
        network.own_service(db, proxy) if overlays.is_per_service(db, proxy_class) else "",
        network.machine(db, node),
        uris=zone_egress.shown_uris(db, proxy),
    )


def _affinity(db: Db, key: Key, proxy_class: ProxyClass) -> Pairs:
    """A proxy's own values of the tags by which load balancing prefers near endpoints."""
    names = hooks.affinity_keys(db, proxy_class)
    proxy = world.proxy(db, key)
    if not names or proxy is None:
        return ()
    own = dict(proxy.labels) | dict(proxy.gateway_tags)
    for inbound in proxy.inbounds:
        own |= dict(inbound.tags)
    return tuple(sorted((name, own[name]) for name in names if name in own))
