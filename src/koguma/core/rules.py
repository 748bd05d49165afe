"""Rules: what the policies that select a proxy say about each thing it calls, serves and is.

For a destination's port, with or without a route, the relevant items are found, put in the one order, and
merged field by field. So a route inherits what only its service's policy, or a mesh-wide one, sets.

No question is keyed by a proxy and a destination: answers are keyed by the policies that apply and the items
that are relevant, which most proxies share.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from koguma.core import inbound, items, match, order, world
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.items import NONE, ROUTE_KINDS, ByKind, Entries, ItemId, Policies, Target
from koguma.core.routes import RouteRule
from koguma.core.world import Reach
from koguma.model.resource import Key
from koguma.model.schema import Json


class Applicable(msgspec.Struct, frozen=True):
    """The entries of `to` of some policies by what they mean, each list in order."""

    everywhere: tuple[ItemId, ...]
    by_destination: Mapping[Key, tuple[tuple[ItemId, str], ...]]  # with the section, or ""
    by_route: Mapping[Key, tuple[tuple[ItemId, Key | None], ...]]  # with the only destination meant, if any


@question
def applicable(db: Db, policies: Policies) -> Applicable:
    """What the policies of one kind say about outbound traffic, sorted and by target."""
    everywhere: list[ItemId] = []
    by_destination: dict[Key, list[tuple[ItemId, str]]] = {}
    by_route: dict[Key, dict[tuple[ItemId, Key | None], None]] = {}
    for entry, target in _in_order(db, policies):
        via = _via(db, entry.policy)
        if via is not None:
            by_route.setdefault(via, {})[entry, target.key] = None
        elif target.key is None:
            everywhere.append(entry)
        elif target.kind in ROUTE_KINDS:
            by_route.setdefault(target.key, {})[entry, None] = None
        else:
            by_destination.setdefault(target.key, []).append((entry, target.section))
    return Applicable(
        tuple(everywhere),
        {key: tuple(found) for key, found in by_destination.items()},
        {key: tuple(found) for key, found in by_route.items()},
    )


def _in_order(db: Db, policies: Policies) -> list[tuple[ItemId, Target]]:
    found = [
        (ItemId(policy, "to", index), target)
        for policy in policies
        for index, meant in enumerate(items.targets(db, policy))
        for target in meant
    ]
    return sorted(found, key=lambda pair: order.key(items.rank(db, pair[0])))


def _via(db: Db, policy: Key) -> Key | None:
    selector = match.selector(db, policy)
    return selector.via if selector else None


def outbound(
    db: Db, policies: Policies, destination: Key | None, section: str = "", route: Key | None = None
) -> tuple[ItemId, ...]:
    """The entries that are relevant to a destination's port, through a route or not, in order.

    Without a destination: what holds for everything in the mesh.
    """
    return _relevant(db, applicable(db, policies), destination, section, route)


def _relevant(
    db: Db, found: Applicable, destination: Key | None, section: str, route: Key | None = None
) -> tuple[ItemId, ...]:
    at = found.by_destination.get(destination, ()) if destination else ()
    more = [entry for entry, narrowed in at if narrowed in ("", section)]
    through = found.by_route.get(route, ()) if route else ()
    more += [entry for entry, only in through if only in (None, destination)]
    if not more:
        return found.everywhere
    return tuple(sorted((*found.everywhere, *more), key=lambda entry: order.key(items.rank(db, entry))))


class Route(NamedTuple):
    """A route that a proxy has to a destination's port."""

    kind: str
    key: Key


class ProxyClass(msgspec.Struct, frozen=True, cache_hash=True):
    """What proxies share: the policies that apply to them, and what they can call."""

    mesh: str
    zone: str
    namespace: str
    policies: tuple[tuple[str, Policies], ...]  # by kind; only kinds that have any
    reach: Reach

    def of(self, kind: str) -> Policies:
        """The policies of one kind."""
        return next((found for name, found in self.policies if name == kind), NONE)


@question
def class_of(db: Db, proxy: Key) -> ProxyClass | None:
    """The class of a proxy."""
    seen, known = match.traits(db, proxy), world.proxy(db, proxy)
    if seen is None or known is None:
        return None
    return ProxyClass(proxy.mesh, proxy.zone, proxy.namespace, policies_of(db, seen), known.reach)


@question
def policies_of(db: Db, seen: match.Traits) -> tuple[tuple[str, Policies], ...]:
    """The policies that apply to proxies with these traits, by kind."""
    found = ((kind, match.matched(db, kind, seen)) for kind in match.policy_kinds(db))
    return tuple((kind, Group(one.policy for one in chosen)) for kind, chosen in found if chosen)


class PortRules(msgspec.Struct, frozen=True, cache_hash=True):
    """What holds for calls to one port: the relevant entries by kind, and by route; and the routes' own."""

    destination: Key
    section: str
    entries: ByKind
    routes: tuple[tuple[Route, ByKind], ...]
    http: Entries
    tcp: Entries


@question
def ports(db: Db, of: ProxyClass) -> tuple[PortRules, ...]:
    """What holds for calls of proxies of a class, port by port."""
    found = world.reached(db, of.mesh, of.zone, of.namespace, of.reach)
    return tuple(port_rules(db, of, destination, section) for destination, section in found)


class Plain(msgspec.Struct, frozen=True):
    """What holds for calls to most destinations, and to those about which something of their own is said."""

    entries: Group[tuple[str, Entries]]
    others: Mapping[Key, tuple[PortRules, ...]]  # port by port


@question
def plain(db: Db, of: ProxyClass) -> Plain | None:
    """What holds for most calls of proxies of a class; None where routes lead to everything."""
    found = _applicable(db, of)
    if any(found[kind].everywhere for kind in ROUTE_KINDS if kind in found):
        return None
    entries = Group((kind, each.everywhere) for kind, each in found.items() if each.everywhere)
    others = sorted({key for each in found.values() for key in each.by_destination})
    return Plain(entries, {key: _rules_of_ports(db, found, key) for key in others})


def _applicable(db: Db, of: ProxyClass) -> Mapping[str, Applicable]:
    return {kind: applicable(db, chosen) for kind, chosen in of.policies}


def _rules_of_ports(db: Db, found: Mapping[str, Applicable], destination: Key) -> tuple[PortRules, ...]:
    target = world.destination(db, destination)
    ports = target.ports if target else ()
    return tuple(_port_rules(db, found, destination, port.section) for port in ports)


@question
def port_rules(db: Db, of: ProxyClass, destination: Key, section: str) -> PortRules:
    """What holds for calls of proxies of a class to one port."""
    return _port_rules(db, _applicable(db, of), destination, section)


def _port_rules(db: Db, found: Mapping[str, Applicable], destination: Key, section: str) -> PortRules:
    http, tcp = (
        _relevant(db, found[kind], destination, section) if kind in found else ()
        for kind in ("MeshHTTPRoute", "MeshTCPRoute")
    )
    # An entry without rules is legal and says nothing; it must not turn an HTTP port into a TCP one.
    tcp = tuple(entry for entry in tcp if items.has_tcp_rule(db, entry))
    through = sorted({Route(entry.policy.kind, entry.policy) for entry in (*http, *tcp)})
    return PortRules(
        destination,
        section,
        _by_kind(db, found, destination, section, None),
        tuple((route, _by_kind(db, found, destination, section, route.key)) for route in through),
        http,
        tcp,
    )


def _by_kind(
    db: Db, found: Mapping[str, Applicable], destination: Key, section: str, route: Key | None
) -> ByKind:
    relevant = (
        (kind, _relevant(db, each, destination, section, route))
        for kind, each in found.items()
        if kind not in ROUTE_KINDS
    )
    return tuple((kind, entries) for kind, entries in relevant if entries)


class PortConf(msgspec.Struct, frozen=True):
    """What comes out for one port: configurations by kind, by route, and the rules of routes."""

    destination: Key
    section: str
    confs: tuple[tuple[str, Json], ...]
    routes: tuple[tuple[Route, tuple[tuple[str, Json], ...]], ...]
    http: tuple[RouteRule, ...]
    tcp: Json


@question
def effective(db: Db, of: ProxyClass) -> tuple[PortConf, ...]:
    """The merged configurations of a class, port by port."""
    return tuple(
        PortConf(
            port.destination,
            port.section,
            _confs(db, port.entries),
            tuple((route, _confs(db, entries)) for route, entries in port.routes),
            items.route_rules(db, port.http) if port.http else (),
            items.conf(db, port.tcp) if port.tcp else None,
        )
        for port in ports(db, of)
    )


def _confs(db: Db, entries: ByKind) -> tuple[tuple[str, Json], ...]:
    return tuple((kind, items.conf(db, found)) for kind, found in entries)


@question
def whole_proxy(db: Db, policies: Policies) -> tuple[ItemId, ...]:
    """The `default`s of whole-proxy policies, in order."""
    entries = [
        ItemId(policy, "default", 0) for policy in policies if "default" in items.clean_spec(db, policy)
    ]
    return tuple(sorted(entries, key=lambda entry: order.key(items.rank(db, entry))))


class ProxyRules(msgspec.Struct, frozen=True):
    """What comes out for one proxy."""

    proxy: Key
    ports: tuple[PortConf, ...]
    inbounds: tuple[tuple[str, tuple[tuple[str, tuple[tuple[inbound.Client, Json], ...]], ...]], ...]
    whole: tuple[tuple[str, Json], ...]


@question
def of_proxy(db: Db, proxy: Key) -> ProxyRules | None:
    """What comes out for a proxy; what it shares with others was asked once for all of them."""
    seen, mine = match.traits(db, proxy), class_of(db, proxy)
    if seen is None or mine is None:
        return None
    inbounds = tuple((section, inbound.confs(db, seen, section)) for section, _ in seen.inbounds)
    return ProxyRules(proxy, effective(db, mine), inbounds, whole_confs(db, mine))


def whole(db: Db, mine: ProxyClass) -> ByKind:
    """The entries about the proxy as a whole, by kind."""
    found = ((kind, whole_proxy(db, chosen)) for kind, chosen in mine.policies)
    return tuple((kind, entries) for kind, entries in found if entries)


@question
def whole_confs(db: Db, mine: ProxyClass) -> tuple[tuple[str, Json], ...]:
    """What comes out for the proxy as a whole, by kind."""
    return _confs(db, whole(db, mine))
