"""Snapshot: everything that one Envoy gets but secrets. Start reading here.

Bundles: what the proxy needs to call others, which all proxies of its class with equal addresses share; what
is its own, its inbounds and internals; and endpoints. Keys and certificates are no business of the compile:
who serves the snapshot adds them. It is put together from two answers, one of the proxy and one that it
shares, so that a change of what thousands share runs no question of each (`watching`).
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from koguma.core import hostnames, rules, vips, world
from koguma.core.build import clusters, hooks, inbound, internals, network, outbound, overlays, patches
from koguma.core.build.clusters import Caller
from koguma.core.build.internals import Records
from koguma.core.build.network import Net, NodeMetadata
from koguma.core.build.outbound import Outbounds
from koguma.core.build.outbound_listeners import OutboundPort
from koguma.core.build.shape import Binding
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.rules import ProxyClass
from koguma.core.world import Pairs, Reach
from koguma.envoy.snapshot import Bundle, Id, Snapshot
from koguma.model.resource import Key


def of(db: Db, proxy: Key) -> Snapshot | None:
    """Everything that a proxy's Envoy gets but secrets; None where it, or its mesh, cannot be read."""
    mine = own(db, proxy)
    return None if mine is None else whole(mine, shared(db, mine.place))


def whole(mine: "Own", shared_with_others: tuple[Bundle, Bundle]) -> Snapshot:
    """A snapshot from its two halves."""
    outbounds, endpoints = shared_with_others
    return Snapshot((outbounds, *mine.bundles, endpoints))


@question
def shared(db: Db, place: "Place") -> tuple[Bundle, Bundle]:
    """What all proxies of a place get: what they call others with, and where these are."""
    outbounds, caller = place.outbounds(db), place.caller
    endpoints = clusters.assignments(db, outbounds.assigned, caller.zone, caller.affinity)
    (patched,) = patches.over(db, place.mine, ((patches.OUTBOUND, outbounds.bundle),))
    return patched, endpoints


@question
def own(db: Db, proxy: Key) -> "Own | None":
    """What a proxy gets that is its own, and with whom it shares the rest; None where there is no such."""
    place = _place(db, proxy)
    return None if place is None else Own(place, patches.over(db, place.mine, _own(db, proxy)))


def touching(db: Db, proxy: Key) -> Mapping[Id, tuple[str, ...]]:
    """The MeshProxyPatches (by KRI) that changed what a proxy gets, by piece."""
    place = _place(db, proxy)
    if place is None:
        return {}
    return patches.touching_any(db, place.mine, _bundles(db, proxy, place.outbounds(db)))


_LEGACY_PORT = 80  # on which Kuma 2.13 has every service of its tags


class Place(NamedTuple):
    """What of a proxy decides what it calls, on which addresses, and how."""

    mine: ProxyClass
    listened: Group[OutboundPort]
    caller: Caller
    binds: Binding

    def outbounds(self, db: Db) -> Outbounds:
        """What it calls."""
        return outbound.resources(db, self.mine, self.listened, self.caller, self.binds)


class Own(NamedTuple):
    """What is a proxy's own."""

    place: Place
    bundles: tuple[Bundle, ...]


@question
def _place(db: Db, proxy: Key) -> Place | None:
    # Apart from what it gets: what is its own is then made again only where something of its own changed.
    if world.UNREADABLE.get(db, Key("Mesh", "", "", "", proxy.mesh)) is not None:
        return None  # nobody knows whether it has mTLS; without a new configuration nothing gets less safe
    mine, net = rules.class_of(db, proxy), network.net(db, proxy)
    return (
        None
        if mine is None or net is None
        else _placed(db, proxy, mine, net, network.node_metadata(db, proxy))
    )


def likely_place(db: Db, proxy: Key) -> Place | None:
    """The place that a proxy will most likely have when it has come."""
    mine, net = rules.class_of(db, proxy), network.net(db, proxy)
    return (
        None
        if mine is None or net is None
        else _placed(db, proxy, mine, net, network.likely_node_metadata(net))
    )


def _placed(db: Db, proxy: Key, mine: ProxyClass, net: Net, node: NodeMetadata) -> Place:
    listened, binds = _listened(db, proxy, mine, net, node)
    return Place(mine, listened, _caller(db, proxy, mine, node), binds)


def _bundles(db: Db, proxy: Key, outbounds: Outbounds) -> tuple[tuple[str, Bundle], ...]:
    """What a proxy gets before patches, with what each bundle is for; but endpoints, which nobody patches."""
    return (patches.OUTBOUND, outbounds.bundle), *_own(db, proxy)


def _own(db: Db, proxy: Key) -> tuple[tuple[str, Bundle], ...]:
    place = _place(db, proxy)
    if place is None:
        return ()
    own = internals.everything(db, proxy, records(db, place.listened))
    return (patches.INBOUND, inbound.everything(db, proxy)), (patches.INTERNAL, own)


def _listened(
    db: Db, proxy: Key, mine: ProxyClass, net: Net, node: NodeMetadata
) -> tuple[Group[OutboundPort], Binding]:
    """The ports that a proxy can call and where, and how Envoy has these addresses.

    These listeners keep SO_REUSEPORT: without it Envoy refuses an update that adds an address to a listener
    or takes one away, as when a proxy calls a service through a second port. A virtual address leads to the
    same service through all proxies of a machine; the port of an outbound is tried by the agent at its start.
    """
    net = net.with_redirection_of(node)
    if net.redirect_outbound or node.binds_outbounds:
        binding = Binding(is_bound=not net.redirect_outbound, is_shared=True)
        found = virtual(db, mine.mesh, mine.zone, mine.namespace, mine.reach, binding.is_bound)
        return found, binding
    return Group(_explicit(db, proxy, net)), Binding(is_shared=True)


@question
def virtual(db: Db, mesh: str, zone: str, namespace: str, reach: Reach, binds: bool) -> Group[OutboundPort]:  # noqa: FBT001 - a question has no names
    """The ports that proxies with this reach call on virtual addresses; asked once for all of them."""
    found = []
    for destination, section in world.reached(db, mesh, zone, namespace, reach):
        numbers = _port_numbers(db, destination, section, binds=binds)
        addresses = tuple((ip, number) for ip in vips.of(db, destination) for number in numbers)
        if addresses:
            found.append(OutboundPort(destination, section, addresses))
    return Group(found)


def _port_numbers(db: Db, destination: Key, section: str, *, binds: bool) -> tuple[int, ...]:
    """The port numbers on which a port is called at virtual addresses.

    As in Kuma 2.13, a service that has the name of its tag is called on port 80 too: its first port is. Where
    Envoy binds the addresses itself it must not try, since mostly it may not bind port 80, and would then
    refuse the whole listener.
    """
    target = world.destination(db, destination)
    port = target.port(section) if target else None
    if target is None or port is None:
        return ()
    if binds or port != target.ports[0] or target.port(str(_LEGACY_PORT)) is not None:
        return (port.number,)
    return (port.number, _LEGACY_PORT) if hostnames.has_legacy_name(db, destination) else (port.number,)


@question
def records(db: Db, listened: Group[OutboundPort]) -> Records:
    """What DNS answers so that these ports are reached."""
    called = tuple(sorted({one.destination for one in listened}))
    return Group(hostnames.records(db, called))


def _explicit(db: Db, proxy: Key, net: Net) -> Iterator[OutboundPort]:
    found: dict[tuple[Key, str, Pairs], list[tuple[str, int]]] = {}
    for outbound_net in net.outbounds:
        wanted = outbound_net.wanted
        namespace = wanted.namespace or proxy.namespace
        keys = world.referenced(
            db, proxy.mesh, wanted.kind, wanted.name, namespace, proxy.zone, wanted.labels
        )
        for key in keys[:1]:
            target = world.destination(db, key)
            ports = target.ports if target else ()
            port = next((port for port in ports if wanted.port in (0, port.number)), None)
            if port is not None:
                address = outbound_net.address, outbound_net.port
                found.setdefault((key, port.section, outbound_net.tags), []).append(address)
    for (key, section, subset), addresses in sorted(found.items()):
        yield OutboundPort(key, section, tuple(sorted(set(addresses))), subset)


def _caller(db: Db, proxy: Key, mine: ProxyClass, node: NodeMetadata) -> Caller:
    both_ends = hooks.both_ends(db, mine)
    log_pipe = network.log_pipe(db, proxy, node)
    service = network.own_service(db, proxy) if overlays.is_per_service(db, mine) else ""
    machine = network.machine(db, node)
    return Caller(mine.mesh, mine.zone, _affinity(db, proxy, mine), both_ends, log_pipe, service, machine)


def _affinity(db: Db, proxy: Key, mine: ProxyClass) -> Pairs:
    """A proxy's own values of the tags that load balancing looks at."""
    keys = hooks.affinity_keys(db, mine)
    known = world.proxy(db, proxy)
    if not keys or known is None:
        return ()
    own = dict(known.labels) | dict(known.gateway_tags)
    for each in known.inbounds:
        own |= dict(each.tags)
    return tuple(sorted((name, own[name]) for name in keys if name in own))
