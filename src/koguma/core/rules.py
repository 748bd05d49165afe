"""Rules: the policy entries that hold for each port that a proxy calls, and for the proxy as a whole.

The build compiles these entries to Envoy configuration, and `inspect` shows them to people: both ask the
questions of this module, so nobody is shown what Envoy does not get. What holds for calls that arrive is in
`inbound`.

For a destination's port, with or without a route, the relevant entries are collected and put in the one order
(`order`); `items.conf` merges them field by field. So a route inherits what only its service's policy, or a
mesh-wide one, sets.

No question is keyed by a proxy and a destination: answers are keyed by the class of proxies, the policies, or
the entries, which many proxies share.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from koguma.core import items, match, order, world
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.items import NONE, ROUTE_KINDS, ByKind, Entries, ItemId, Policies, Target
from koguma.core.world import Reach
from koguma.model.resource import Key


class ProxyClass(msgspec.Struct, frozen=True, cache_hash=True):
    """What proxies that are configured alike share: the policies that apply, and what they can call."""

    mesh: str
    zone: str
    namespace: str
    policies: tuple[tuple[str, Policies], ...]  # by kind; only kinds that have any
    reach: Reach

    def of(self, kind: str) -> Policies:
        """The policies of one kind."""
        return next((policies for name, policies in self.policies if name == kind), NONE)


@question
def class_of(db: Db, key: Key) -> ProxyClass | None:
    """The class of a proxy."""
    traits, proxy = match.traits(db, key), world.proxy(db, key)
    if traits is None or proxy is None:
        return None
    return ProxyClass(key.mesh, key.zone, key.namespace, policies_of(db, traits), proxy.reach)


@question
def policies_of(db: Db, traits: match.Traits) -> tuple[tuple[str, Policies], ...]:
    """The policies that apply to proxies with these traits, by kind."""
    by_kind = ((kind, match.matched(db, kind, traits)) for kind in match.policy_kinds(db))
    return tuple((kind, Group(each.policy for each in matched)) for kind, matched in by_kind if matched)


# Outbound: what holds for calls to a port of a destination.


class EntriesByTarget(msgspec.Struct, frozen=True):
    """The entries of `to` of some policies by what they target, each list in ascending precedence."""

    mesh_wide: tuple[ItemId, ...]
    by_destination: Mapping[Key, tuple[tuple[ItemId, str], ...]]  # with the section, or ""
    by_route: Mapping[
        Key, tuple[tuple[ItemId, Key | None], ...]
    ]  # with the only destination that it holds for, if any


@question
def entries_by_target(db: Db, policies: Policies) -> EntriesByTarget:
    """The entries of `to` of the policies of one kind, by target."""
    mesh_wide: list[ItemId] = []
    by_destination: dict[Key, list[tuple[ItemId, str]]] = {}
    by_route: dict[Key, dict[tuple[ItemId, Key | None], None]] = {}
    for entry, target in _in_order(db, policies):
        via = _via(db, entry.policy)
        if via is not None:
            by_route.setdefault(via, {})[entry, target.key] = None
        elif target.key is None:
            mesh_wide.append(entry)
        elif target.kind in ROUTE_KINDS:
            by_route.setdefault(target.key, {})[entry, None] = None
        else:
            by_destination.setdefault(target.key, []).append((entry, target.section))
    return EntriesByTarget(
        tuple(mesh_wide),
        {key: tuple(entries) for key, entries in by_destination.items()},
        {key: tuple(entries) for key, entries in by_route.items()},
    )


def _in_order(db: Db, policies: Policies) -> list[tuple[ItemId, Target]]:
    pairs = [
        (ItemId(policy, "to", index), target)
        for policy in policies
        for index, targets in enumerate(items.targets(db, policy))
        for target in targets
    ]
    return sorted(pairs, key=lambda pair: order.key(items.rank(db, pair[0])))


def _via(db: Db, policy: Key) -> Key | None:
    selector = match.selector(db, policy)
    return selector.via if selector else None


def relevant_entries(db: Db, policies: Policies, destination: Key, section: str) -> Entries:
    """The entries of policies of one kind that are relevant to a destination's port, in order."""
    return _relevant(db, entries_by_target(db, policies), destination, section)


def route_entries(db: Db, policies: Policies, route: Key) -> Entries:
    """The entries of policies of one kind for what is sent on through a route of a gateway, in order."""
    targeted = entries_by_target(db, policies)
    on_route = (entry for entry, only in targeted.by_route.get(route, ()) if only is None)
    entries = (*targeted.mesh_wide, *on_route)
    return tuple(sorted(entries, key=lambda entry: order.key(items.rank(db, entry))))


def _relevant(
    db: Db, targeted: EntriesByTarget, destination: Key, section: str, route: Key | None = None
) -> Entries:
    on_destination = targeted.by_destination.get(destination, ())
    entries = [entry for entry, narrowed in on_destination if narrowed in ("", section)]
    on_route = targeted.by_route.get(route, ()) if route else ()
    entries += [entry for entry, only in on_route if only in (None, destination)]
    if not entries:
        return targeted.mesh_wide
    return tuple(sorted((*targeted.mesh_wide, *entries), key=lambda entry: order.key(items.rank(db, entry))))


class Route(NamedTuple):
    """A route that a proxy has to a destination's port."""

    kind: str
    key: Key


class PortRules(msgspec.Struct, frozen=True, cache_hash=True):
    """What holds for calls to one port: the relevant entries by kind, and by route; and the routes' own."""

    destination: Key
    section: str
    entries: ByKind
    routes: tuple[tuple[Route, ByKind], ...] = ()
    http: Entries = ()
    tcp: Entries = ()


class OutboundRules(msgspec.Struct, frozen=True):
    """What holds for calls of a class: the same for most destinations, and more where a policy names one."""

    common: Group[tuple[str, Entries]]
    named: Mapping[Key, tuple[PortRules, ...]]  # port by port

    def of(self, destination: Key, section: str) -> PortRules:
        """What holds for calls to one port."""
        for port in self.named.get(destination, ()):
            if port.section == section:
                return port
        return PortRules(destination, section, self.common.members)


@question
def outbound(db: Db, proxy_class: ProxyClass) -> OutboundRules:
    """What holds for calls of proxies of a class."""
    targeted = {kind: entries_by_target(db, policies) for kind, policies in proxy_class.policies}
    common = Group(
        (kind, each.mesh_wide)
        for kind, each in targeted.items()
        if each.mesh_wide and kind not in ROUTE_KINDS
    )
    named = {key for each in targeted.values() for key in each.by_destination}
    if any(targeted[kind].mesh_wide for kind in ROUTE_KINDS if kind in targeted):
        named |= {destination.key for destination in world.destinations(db, proxy_class.mesh)}
    return OutboundRules(common, {key: _ports_of(db, targeted, key) for key in sorted(named)})


def _ports_of(db: Db, targeted: Mapping[str, EntriesByTarget], destination: Key) -> tuple[PortRules, ...]:
    target = world.destination(db, destination)
    ports = target.ports if target else ()
    return tuple(_port_rules(db, targeted, destination, port.section) for port in ports)


def _port_rules(db: Db, targeted: Mapping[str, EntriesByTarget], destination: Key, section: str) -> PortRules:
    http, tcp = (
        _relevant(db, targeted[kind], destination, section) if kind in targeted else ()
        for kind in ROUTE_KINDS
    )
    # An entry without rules is legal and has no effect; it must not turn an HTTP port into a TCP one.
    tcp = tuple(entry for entry in tcp if items.has_tcp_rule(db, entry))
    routes = sorted({Route(entry.policy.kind, entry.policy) for entry in (*http, *tcp)})
    return PortRules(
        destination,
        section,
        _by_kind(db, targeted, destination, section, None),
        tuple((route, _by_kind(db, targeted, destination, section, route.key)) for route in routes),
        http,
        tcp,
    )


def _by_kind(
    db: Db, targeted: Mapping[str, EntriesByTarget], destination: Key, section: str, route: Key | None
) -> ByKind:
    relevant = (
        (kind, _relevant(db, each, destination, section, route))
        for kind, each in targeted.items()
        if kind not in ROUTE_KINDS
    )
    return tuple((kind, entries) for kind, entries in relevant if entries)


def ports(db: Db, proxy_class: ProxyClass) -> tuple[PortRules, ...]:
    """What holds for calls of proxies of a class, for each port that they can call."""
    calls = outbound(db, proxy_class)
    reached = world.reached(db, proxy_class.mesh, proxy_class.zone, proxy_class.namespace, proxy_class.reach)
    return tuple(calls.of(destination, section) for destination, section in reached)


def protocol(db: Db, port: PortRules) -> str:
    """How Envoy handles calls to a port: its protocol, but tcp where only MeshTCPRoutes are about it."""
    known = world.port(db, port.destination, port.section)
    if known is None or known.protocol not in world.HTTP_PROTOCOLS:
        return "tcp"
    return known.protocol if port.http or not port.tcp else "tcp"


# The proxy as a whole.


def whole_proxy(db: Db, proxy_class: ProxyClass) -> ByKind:
    """The entries about the proxy as a whole, by kind."""
    by_kind = ((kind, default_entries(db, policies)) for kind, policies in proxy_class.policies)
    return tuple((kind, entries) for kind, entries in by_kind if entries)


@question
def default_entries(db: Db, policies: Policies) -> Entries:
    """The `default`s of policies about whole proxies, in order."""
    entries = [ItemId(policy, "default", 0) for policy in policies if _has_default(db, policy)]
    return tuple(sorted(entries, key=lambda entry: order.key(items.rank(db, entry))))


@question
def _has_default(db: Db, policy: Key) -> bool:
    """Whether a policy is about whole proxies; a question, so that editing a conf orders no entries again."""
    return "default" in items.clean_spec(db, policy)
