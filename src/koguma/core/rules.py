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

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple, TypeVar

import msgspec

from koguma.core import items, match, order, policy_set, selectors, world
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.items import ROUTE_KINDS, ByKind, Entries, ItemId, Target
from koguma.core.policy_set import Policies, PolicyPart
from koguma.core.world import Reach
from koguma.model.resource import Key

T = TypeVar("T")


class ProxyClass(msgspec.Struct, frozen=True, cache_hash=True):
    """What proxies that are configured alike share: the policies that apply, and what they can call."""

    mesh: str
    zone: str
    namespace: str
    policies: tuple[tuple[str, Policies], ...]  # by kind; only kinds that have any
    reach: Reach

    def of(self, kind: str) -> Policies:
        """The policies of one kind."""
        return next((policies for name, policies in self.policies if name == kind), policy_set.NONE)


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
    by_kind = ((kind, match.policies(db, kind, traits)) for kind in match.policy_kinds(db))
    return tuple((kind, policies) for kind, policies in by_kind if policies)


# Outbound: what holds for calls to a port of a destination.


class EntriesByTarget(msgspec.Struct, frozen=True):
    """The entries of `to` of some policies by what they target, each list in ascending precedence."""

    mesh_wide: Entries
    by_destination: Mapping[Key, Group[tuple[ItemId, str]]]  # with the section, or ""
    by_route: Mapping[Key, Group[tuple[ItemId, Key | None]]]  # with the only destination, if any


@question
def entries_by_target(db: Db, policies: Policies) -> EntriesByTarget:
    """The entries of `to` of the policies of one kind, by target."""
    parts = [_part_by_target(db, part) for part in policies.parts]
    if len(parts) == 1:
        return parts[0]
    return EntriesByTarget(
        in_order(db, [each.mesh_wide for each in parts]),
        _joined(db, [each.by_destination for each in parts]),
        _joined(db, [each.by_route for each in parts]),
    )


def _joined(
    db: Db, parts: Iterable[Mapping[Key, Group[tuple[ItemId, T]]]]
) -> Mapping[Key, Group[tuple[ItemId, T]]]:
    """The entries of several parts. Most targets are in one part, and keep their value."""
    joined: dict[Key, Group[tuple[ItemId, T]]] = {}
    shared: dict[Key, list[Group[tuple[ItemId, T]]]] = {}
    for part in parts:
        for key in joined.keys() & part.keys():
            shared.setdefault(key, [joined[key]]).append(part[key])
        joined |= part
    for key, groups in shared.items():
        joined[key] = Group(sorted(chain.from_iterable(groups), key=lambda pair: _precedence(db, pair[0])))
    return joined


def in_order(db: Db, parts: Iterable[Entries]) -> Entries:
    """The entries of several parts in ascending precedence; each part is so ordered."""
    found = [part for part in parts if part]
    if len(found) == 1:
        return found[0]
    return tuple(sorted(chain.from_iterable(found), key=lambda entry: _precedence(db, entry)))


def _precedence(db: Db, entry: ItemId) -> order.Precedence:
    return order.key(items.rank(db, entry))


@question
def _part_by_target(db: Db, part: PolicyPart) -> EntriesByTarget:
    mesh_wide: list[ItemId] = []
    by_destination: dict[Key, list[tuple[ItemId, str]]] = {}
    by_route: dict[Key, dict[tuple[ItemId, Key | None], None]] = {}
    for entry, target in _with_targets(db, part):
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
        {key: Group(entries) for key, entries in by_destination.items()},
        {key: Group(entries) for key, entries in by_route.items()},
    )


def _with_targets(db: Db, part: PolicyPart) -> list[tuple[ItemId, Target]]:
    pairs = [
        (ItemId(policy, "to", index), target)
        for policy in part
        for index, targets in enumerate(items.targets(db, policy))
        for target in targets
    ]
    return sorted(pairs, key=lambda pair: _precedence(db, pair[0]))


def _via(db: Db, policy: Key) -> Key | None:
    selector = selectors.selector(db, policy)
    return selector.via if selector else None


def relevant_entries(db: Db, policies: Policies, destination: Key, section: str) -> Entries:
    """The entries of policies of one kind that are relevant to a destination's port, in order."""
    targeted = entries_by_target(db, policies)
    on_destination = targeted.by_destination.get(destination, _NO_SECTIONS)
    return _relevant(db, EntriesFor("", targeted.mesh_wide, on_destination), destination, section)


def route_entries(db: Db, policies: Policies, route: Key) -> Entries:
    """The entries of policies of one kind for what is sent on through a route of a gateway, in order."""
    targeted = entries_by_target(db, policies)
    on_route = tuple(entry for entry, only in targeted.by_route.get(route, ()) if only is None)
    return in_order(db, (targeted.mesh_wide, on_route))


class EntriesFor(NamedTuple):
    """The entries of policies of one kind that are about one destination."""

    kind: str
    mesh_wide: Entries
    on_destination: Group[tuple[ItemId, str]]
    on_routes: tuple[tuple[Key, Group[tuple[ItemId, Key | None]]], ...] = ()  # of those to the destination


_NO_SECTIONS: Final[Group[tuple[ItemId, str]]] = Group(())


def _relevant(
    db: Db, targeted: EntriesFor, destination: Key, section: str, route: Key | None = None
) -> Entries:
    entries = [entry for entry, narrowed in targeted.on_destination if narrowed in ("", section)]
    on_route = dict(targeted.on_routes).get(route, ()) if route else ()
    entries += [entry for entry, only in on_route if only in (None, destination)]
    if not entries:
        return targeted.mesh_wide
    return tuple(sorted((*targeted.mesh_wide, *entries), key=lambda entry: _precedence(db, entry)))


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
    return OutboundRules(common, {key: _ports_of(db, key, _about(targeted, key)) for key in sorted(named)})


def _about(targeted: Mapping[str, EntriesByTarget], destination: Key) -> tuple[EntriesFor, ...]:
    """What some policies say about one destination and the routes to it, by kind."""
    direct = [
        EntriesFor(kind, each.mesh_wide, each.by_destination.get(destination, _NO_SECTIONS))
        for kind, each in targeted.items()
    ]
    routes = {entry.policy for each in direct if each.kind in ROUTE_KINDS for entry in _entries(each)}
    return tuple(each._replace(on_routes=_on(routes, targeted[each.kind])) for each in direct)


def _entries(about: EntriesFor) -> Iterator[ItemId]:
    return chain(about.mesh_wide, (entry for entry, _ in about.on_destination))


def _on(
    routes: Iterable[Key], targeted: EntriesByTarget
) -> tuple[tuple[Key, Group[tuple[ItemId, Key | None]]], ...]:
    return tuple((key, targeted.by_route[key]) for key in sorted(routes) if key in targeted.by_route)


@question
def _ports_of(db: Db, destination: Key, about: tuple[EntriesFor, ...]) -> tuple[PortRules, ...]:
    """What holds for calls to each port of a destination; one value for all classes with these entries."""
    target = world.destination(db, destination)
    ports = target.ports if target else ()
    return tuple(_port_rules(db, about, destination, port.section) for port in ports)


def _port_rules(db: Db, about: tuple[EntriesFor, ...], destination: Key, section: str) -> PortRules:
    by_kind = {each.kind: each for each in about}
    http, tcp = (
        _relevant(db, by_kind[kind], destination, section) if kind in by_kind else () for kind in ROUTE_KINDS
    )
    # An entry without rules is legal and has no effect; it must not turn an HTTP port into a TCP one.
    tcp = tuple(entry for entry in tcp if items.has_tcp_rule(db, entry))
    routes = sorted({Route(entry.policy.kind, entry.policy) for entry in (*http, *tcp)})
    return PortRules(
        destination,
        section,
        _by_kind(db, about, destination, section, None),
        tuple((route, _by_kind(db, about, destination, section, route.key)) for route in routes),
        http,
        tcp,
    )


def _by_kind(
    db: Db, about: tuple[EntriesFor, ...], destination: Key, section: str, route: Key | None
) -> ByKind:
    relevant = (
        (each.kind, _relevant(db, each, destination, section, route))
        for each in about
        if each.kind not in ROUTE_KINDS
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
    return in_order(db, [_part_defaults(db, part) for part in policies.parts])


@question
def _part_defaults(db: Db, part: PolicyPart) -> Entries:
    entries = [ItemId(policy, "default", 0) for policy in part if _has_default(db, policy)]
    return tuple(sorted(entries, key=lambda entry: _precedence(db, entry)))


@question
def _has_default(db: Db, policy: Key) -> bool:
    """Whether a policy is about whole proxies; a question, so that editing a conf orders no entries again."""
    return "default" in items.clean_spec(db, policy)
