"""Rules: what the policies that select a proxy say about each thing it calls, serves and is.

An *item* is one entry of a policy's `to`, `from` or `rules`, or the `default` of a whole-proxy policy. For a
destination's port, with or without a route, the relevant items are found, put in the one order, and merged
field by field. So a route inherits what only its service's policy, or a mesh-wide one, sets.

No question is keyed by a proxy and a destination: answers are keyed by the policies that apply and the items
that are relevant, which most proxies share.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from koguma.core import match, merge, order, routes, world
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.merge import Item
from koguma.core.order import Rank, Tier
from koguma.core.role import Role
from koguma.core.routes import RouteRule
from koguma.core.world import Pairs, Reach, pairs
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import item as element

ROUTE_KINDS: Final = match.ROUTE_KINDS
Policies = Group[Key]  # the policies of one kind that apply, in key order
NONE: Final[Policies] = Group(())


class ItemId(NamedTuple):
    """One entry of a policy: the policy, the list that it stands in, its index."""

    policy: Key
    list: str  # to, from, rules, default
    number: int

    @property
    def path(self) -> str:
        """Where the entry stands in the object."""
        return "spec" if self.list == "default" else element(f"spec.{self.list}", self.number)


class Target(NamedTuple):
    """What an entry of `to` means: everything (kind Mesh), a destination or a port of it, or a route."""

    kind: str
    key: Key | None = None
    section: str = ""


@question
def clean_spec(db: Db, policy: Key) -> Json:
    """A policy's spec with one spelling for each meaning."""
    resource = world.RESOURCES.get(db, policy)
    return world.kind_of(db, policy.kind).clean(resource.spec) if resource else {}


@question
def item(db: Db, entry: ItemId) -> Item:
    """An entry as the merge takes it."""
    spec = clean_spec(db, entry.policy)
    if entry.list == "default":
        return Item(entry.policy, rank(db, entry), "spec.default", spec.get("default") or {})
    written = spec[entry.list][entry.number]
    if entry.policy.kind == "MeshHTTPRoute":
        conf = {name: written[name] for name in ("rules", "hostnames") if written.get(name)}
        return Item(entry.policy, rank(db, entry), entry.path, conf)
    if entry.policy.kind == "MeshTCPRoute":
        first = (written.get("rules") or [{}])[0]
        return Item(
            entry.policy, rank(db, entry), f"{entry.path}.rules[0].default", first.get("default") or {}
        )
    return Item(entry.policy, rank(db, entry), f"{entry.path}.default", written.get("default") or {})


@question
def rank(db: Db, entry: ItemId) -> Rank:
    """Where an entry stands in the one order."""
    selector = match.selector(db, entry.policy)
    assert selector is not None, entry
    ref = _refs(db, entry.policy)[entry.number] if entry.list == "to" else None
    to_kind = ref.kind if ref else ""
    tier = Tier.ROUTE if to_kind in ROUTE_KINDS else Tier.SERVICE
    return Rank(
        tier=Tier.OLD_ROUTE if selector.via is not None else tier,
        top_kind=selector.top_kind,
        top_by_name=selector.by == "Dataplane" and bool(selector.name),
        top_section=bool(selector.section),
        origin=selector.origin,
        gateway_tags=len(selector.tags) if selector.top_kind == "MeshGateway" else 0,
        role=selector.role,
        to_kind=to_kind,
        to_section=bool(ref and ref.section),
        display_name=entry.policy.name,
        core_name=selector.core_name,
        index=entry.number,
    )


class Ref(NamedTuple):
    """A reference of an entry of `to`, as written."""

    kind: str
    name: str = ""
    namespace: str = ""
    labels: Pairs = ()
    section: str = ""


@question
def _refs(db: Db, policy: Key) -> tuple[Ref, ...]:
    return tuple(_ref(entry.get("targetRef") or {}) for entry in clean_spec(db, policy).get("to") or ())


def _ref(ref: Json) -> Ref:
    return Ref(
        kind=ref.get("kind") or "Mesh",
        name=ref.get("name") or "",
        namespace=ref.get("namespace") or "",
        labels=pairs(ref.get("labels")),
        section=ref.get("sectionName") or "",
    )


@question
def targets(db: Db, policy: Key) -> tuple[tuple[Target, ...], ...]:
    """What each entry of a policy's `to` means now; an entry that means nothing has no targets."""
    return tuple(tuple(_targets(db, policy, ref)) for ref in _refs(db, policy))


def _targets(db: Db, policy: Key, ref: Ref) -> Iterator[Target]:
    if ref.kind == "Mesh":
        yield Target("Mesh")
        return
    for key in _referenced(db, policy, ref):
        if ref.kind in ROUTE_KINDS or not ref.section:
            yield Target(ref.kind, key)
            continue
        found = world.destination(db, key)
        port = found.port(ref.section) if found else None
        if port is not None:
            yield Target(ref.kind, key, port.section)


def _referenced(db: Db, policy: Key, ref: Ref) -> tuple[Key, ...]:
    wanted = ref.labels
    selector = match.selector(db, policy)
    if wanted and selector is not None and selector.role is Role.PRODUCER:
        # A producer speaks for its own namespace; equal names elsewhere are somebody else's.
        wanted = pairs({**dict(wanted), "k8s.kuma.io/namespace": policy.namespace})
    namespace = ref.namespace or policy.namespace
    return world.referenced(db, policy.mesh, ref.kind, ref.name, namespace, policy.zone, wanted)


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
        for index, meant in enumerate(targets(db, policy))
        for target in meant
    ]
    return sorted(found, key=lambda pair: order.key(rank(db, pair[0])))


def _via(db: Db, policy: Key) -> Key | None:
    selector = match.selector(db, policy)
    return selector.via if selector else None


def outbound(
    db: Db, policies: Policies, destination: Key | None, section: str = "", route: Key | None = None
) -> tuple[ItemId, ...]:
    """The entries that are relevant to a destination's port, through a route or not, in order.

    Without a destination: what holds for everything in the mesh.
    """
    found = applicable(db, policies)
    at = found.by_destination.get(destination, ()) if destination else ()
    more = [entry for entry, narrowed in at if narrowed in ("", section)]
    through = found.by_route.get(route, ()) if route else ()
    more += [entry for entry, only in through if only in (None, destination)]
    if not more:
        return found.everywhere
    return tuple(sorted((*found.everywhere, *more), key=lambda entry: order.key(rank(db, entry))))


@question
def conf(db: Db, entries: tuple[ItemId, ...]) -> Json:
    """The configuration that entries, given in order, make together."""
    return merge.merged([item(db, entry) for entry in entries])


@question
def route_rules(db: Db, entries: tuple[ItemId, ...]) -> tuple[RouteRule, ...]:
    """The rules that entries of MeshHTTPRoutes make together, most important policy first."""
    return routes.merged_rules([item(db, entry) for entry in entries])


class Route(NamedTuple):
    """A route that a proxy has to a destination's port."""

    kind: str
    key: Key


class Class(msgspec.Struct, frozen=True):
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
def class_of(db: Db, proxy: Key) -> Class | None:
    """The class of a proxy."""
    seen, known = match.traits(db, proxy), world.proxy(db, proxy)
    if seen is None or known is None:
        return None
    return Class(proxy.mesh, proxy.zone, proxy.namespace, policies_of(db, seen), known.reach)


@question
def policies_of(db: Db, seen: match.Traits) -> tuple[tuple[str, Policies], ...]:
    """The policies that apply to proxies with these traits, by kind."""
    found = ((kind, match.matched(db, kind, seen)) for kind in match.policy_kinds(db))
    return tuple((kind, Group(one.policy for one in chosen)) for kind, chosen in found if chosen)


Entries = tuple[ItemId, ...]
ByKind = tuple[tuple[str, Entries], ...]


class PortRules(msgspec.Struct, frozen=True):
    """What holds for calls to one port: the relevant entries by kind, and by route; and the routes' own."""

    destination: Key
    section: str
    entries: ByKind
    routes: tuple[tuple[Route, ByKind], ...]
    http: Entries
    tcp: Entries


@question
def ports(db: Db, of: Class) -> tuple[PortRules, ...]:
    """What holds for calls of proxies of a class, port by port."""
    found = world.reached(db, of.mesh, of.zone, of.namespace, of.reach)
    return tuple(_port_rules(db, of, destination, section) for destination, section in found)


def _port_rules(db: Db, of: Class, destination: Key, section: str) -> PortRules:
    http = outbound(db, of.of("MeshHTTPRoute"), destination, section)
    tcp = outbound(db, of.of("MeshTCPRoute"), destination, section)
    through = sorted({Route(entry.policy.kind, entry.policy) for entry in (*http, *tcp)})
    return PortRules(
        destination,
        section,
        _by_kind(db, of, destination, section, None),
        tuple((route, _by_kind(db, of, destination, section, route.key)) for route in through),
        http,
        tcp,
    )


def _by_kind(db: Db, of: Class, destination: Key, section: str, route: Key | None) -> ByKind:
    found = (
        (kind, outbound(db, chosen, destination, section, route))
        for kind, chosen in of.policies
        if kind not in ROUTE_KINDS
    )
    return tuple((kind, entries) for kind, entries in found if entries)


class PortConf(msgspec.Struct, frozen=True):
    """What comes out for one port: configurations by kind, by route, and the rules of routes."""

    destination: Key
    section: str
    confs: tuple[tuple[str, Json], ...]
    routes: tuple[tuple[Route, tuple[tuple[str, Json], ...]], ...]
    http: tuple[RouteRule, ...]
    tcp: Json


@question
def effective(db: Db, of: Class) -> tuple[PortConf, ...]:
    """The merged configurations of a class, port by port."""
    return tuple(
        PortConf(
            port.destination,
            port.section,
            _confs(db, port.entries),
            tuple((route, _confs(db, entries)) for route, entries in port.routes),
            route_rules(db, port.http) if port.http else (),
            conf(db, port.tcp) if port.tcp else None,
        )
        for port in ports(db, of)
    )


def _confs(db: Db, entries: ByKind) -> tuple[tuple[str, Json], ...]:
    return tuple((kind, conf(db, found)) for kind, found in entries)


class Client(msgspec.Struct, frozen=True):
    """Whom an inbound rule is for; nothing set means everybody."""

    tags: Pairs = ()
    spiffe_id: tuple[str, str] = ("", "")  # type and value
    sni: tuple[str, str] = ("", "")

    @property
    def specificity(self) -> tuple[bool, bool, bool, int]:
        """More specific is greater: an exact identity, a prefix, a server name, more tags."""
        return (self.spiffe_id[0] == "Exact", bool(self.spiffe_id[1]), bool(self.sni[1]), len(self.tags))


class InboundRule(msgspec.Struct, frozen=True):
    """One entry for one sort of client."""

    client: Client
    entry: ItemId


@question
def inbound(db: Db, policies: Policies) -> tuple[InboundRule, ...]:
    """The entries for calls that arrive, with whom each is for: most specific client first, then by order.

    Combinations of tags are never enumerated: whoever applies the list merges all entries that fit a client.
    """
    found = [rule for policy in policies for rule in _inbound_entries(db, policy)]
    found.sort(key=lambda rule: order.key(rank(db, rule.entry)))
    return tuple(sorted(found, key=lambda rule: rule.client.specificity, reverse=True))


def _inbound_entries(db: Db, policy: Key) -> Iterator[InboundRule]:
    if policy.kind == "MeshGatewayHTTPRoute":
        return  # its `rules` are routes
    spec = clean_spec(db, policy)
    for index, entry in enumerate(spec.get("from") or ()):
        yield InboundRule(_from_client(entry.get("targetRef") or {}), ItemId(policy, "from", index))
    for index, entry in enumerate(spec.get("rules") or ()):
        matches: list[Json] = entry.get("matches") or [{}]
        for one in matches:
            yield InboundRule(_match_client(one), ItemId(policy, "rules", index))


def _from_client(ref: Json) -> Client:
    own = dict(ref.get("tags") or {})
    if ref.get("kind") in ("MeshService", "MeshServiceSubset") and ref.get("name"):
        own["kuma.io/service"] = ref["name"]
    return Client(tags=pairs(own))


def _match_client(one: Json) -> Client:
    spiffe, sni = one.get("spiffeID") or {}, one.get("sni") or {}
    return Client(
        spiffe_id=(spiffe.get("type", ""), spiffe.get("value", "")),
        sni=(sni.get("type", ""), sni.get("value", "")),
    )


@question
def inbound_policies(db: Db, seen: match.Traits, section: str) -> tuple[tuple[str, Policies], ...]:
    """The policies that select one inbound of proxies with these traits, by kind."""
    found = []
    for kind in match.policy_kinds(db):
        chosen = Group(one.policy for one in match.matched(db, kind, seen) if section in one.sections)
        if chosen:
            found.append((kind, chosen))
    return tuple(found)


@question
def whole_proxy(db: Db, policies: Policies) -> tuple[ItemId, ...]:
    """The `default`s of whole-proxy policies, in order."""
    entries = [ItemId(policy, "default", 0) for policy in policies if "default" in clean_spec(db, policy)]
    return tuple(sorted(entries, key=lambda entry: order.key(rank(db, entry))))


class ProxyRules(msgspec.Struct, frozen=True):
    """What comes out for one proxy."""

    proxy: Key
    ports: tuple[PortConf, ...]
    inbounds: tuple[tuple[str, tuple[tuple[str, tuple[tuple[Client, Json], ...]], ...]], ...]
    whole: tuple[tuple[str, Json], ...]


@question
def of_proxy(db: Db, proxy: Key) -> ProxyRules | None:
    """What comes out for a proxy; what it shares with others was asked once for all of them."""
    seen, mine = match.traits(db, proxy), class_of(db, proxy)
    if seen is None or mine is None:
        return None
    inbounds = tuple((section, inbound_confs(db, seen, section)) for section, _ in seen.inbounds)
    return ProxyRules(proxy, effective(db, mine), inbounds, whole_confs(db, mine))


@question
def inbound_of(db: Db, seen: match.Traits, section: str) -> tuple[tuple[str, tuple[InboundRule, ...]], ...]:
    """What holds for calls that arrive at one inbound, by kind."""
    found = ((kind, inbound(db, chosen)) for kind, chosen in inbound_policies(db, seen, section))
    return tuple((kind, entries) for kind, entries in found if entries)


@question
def inbound_confs(
    db: Db, seen: match.Traits, section: str
) -> tuple[tuple[str, tuple[tuple[Client, Json], ...]], ...]:
    """What comes out for calls that arrive at one inbound, by kind and client."""
    return tuple(
        (kind, tuple((rule.client, conf(db, (rule.entry,))) for rule in found))
        for kind, found in inbound_of(db, seen, section)
    )


def whole(db: Db, mine: Class) -> ByKind:
    """The entries about the proxy as a whole, by kind."""
    found = ((kind, whole_proxy(db, chosen)) for kind, chosen in mine.policies)
    return tuple((kind, entries) for kind, entries in found if entries)


@question
def whole_confs(db: Db, mine: Class) -> tuple[tuple[str, Json], ...]:
    """What comes out for the proxy as a whole, by kind."""
    return _confs(db, whole(db, mine))
