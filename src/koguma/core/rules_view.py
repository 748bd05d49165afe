"""Rules view: the rules of one proxy, kind by kind, as `_rules` of the Inspect API shows them.

The shapes are those of Kuma 2.13. `toResourceRules` has the rules that proxies get for their calls, by
destination; `toRules` shows the same entries by tags, as Kuma does unless the mesh is in mode Exclusive
(subset_rules.py). `fromRules` has one rule for each set of tags that some policy names, most specific first,
merged from all entries that cover it; combinations of sets and negated tags are not made up.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from koguma.core import (
    gateways,
    inbound,
    items,
    match,
    order,
    problems,
    routes,
    rules,
    services,
    subset_rules,
    world,
)
from koguma.core.inbound import Client, InboundRule
from koguma.core.incremental import Db
from koguma.core.items import ByKind, Entries, ItemId
from koguma.core.meta import meta
from koguma.core.policy_set import Policies
from koguma.core.provenance import ShownConf, Viewer
from koguma.core.rules import ProxyClass
from koguma.core.subset_rules import SubsetRule
from koguma.core.world import Inbound, Pairs
from koguma.model import tags, target_ref
from koguma.model.resource import Key
from koguma.model.schema import Json


class _Subject(msgspec.Struct, frozen=True):
    """The proxy that is shown, and the rules of it that all kinds read."""

    key: Key
    proxy_class: ProxyClass
    routes: Mapping[Key, tuple[tuple[Key, str, ByKind], ...]]  # by route: destinations, sections, entries
    inbounds: tuple[tuple[Inbound, Mapping[str, tuple[InboundRule, ...]]], ...]  # by kind
    is_gateway: bool


def of_proxy(db: Db, proxy: Key, *, fields: bool = False) -> Json:
    """The rules of a proxy, in the order of kinds; kinds without any are left out."""
    subject = _subject(db, proxy)
    viewer = Viewer(db, fields=fields)
    shown = (_kind(viewer, kind, subject) for kind in match.policy_kinds(db))
    return {
        "resource": meta(db, proxy),
        "rules": [each for each in shown if _is_not_empty(each)],
        "httpMatches": _http_matches(db, subject.proxy_class),
    }


def _subject(db: Db, key: Key) -> _Subject:
    proxy, traits, proxy_class = world.proxy(db, key), match.traits(db, key), rules.class_of(db, key)
    listeners = _listeners(db, traits) if traits is not None else ()
    assert proxy is not None, key
    assert traits is not None, key
    assert proxy_class is not None, key
    by_route: dict[Key, list[tuple[Key, str, ByKind]]] = {}
    if proxy.is_builtin:
        proxy_class = _without_routes_of_the_mesh(db, proxy_class)
    for port in () if proxy.is_builtin else rules.ports(db, proxy_class):
        for route, entries in port.routes:
            by_route.setdefault(route.key, []).append((port.destination, port.section, entries))
    inbounds = sorted((*proxy.inbounds, *listeners), key=lambda each: (each.port, each.section))
    return _Subject(
        key,
        proxy_class,
        {route: tuple(destinations) for route, destinations in by_route.items()},
        tuple((each, dict(inbound.of(db, traits, each.section))) for each in inbounds),
        proxy.is_builtin,
    )


def _without_routes_of_the_mesh(db: Db, proxy_class: ProxyClass) -> ProxyClass:
    """The class of a built-in gateway without routes that do not act on gateways."""
    policies_of_class = (
        (
            kind,
            found
            if kind not in match.ROUTE_KINDS
            else Policies.of(each for each in found if gateways.is_attached(db, each)),
        )
        for kind, found in proxy_class.policies
    )
    return msgspec.structs.replace(
        proxy_class, policies=tuple((kind, found) for kind, found in policies_of_class if found)
    )


def _listeners(db: Db, traits: match.Traits) -> Iterator[Inbound]:
    """The listeners of a built-in gateway, at which calls arrive as at inbounds."""
    own = dict(traits.inbounds)
    for each in gateways.listeners(db, traits.gateway) if traits.gateway is not None else ():
        yield Inbound(each.section, each.name, each.port, each.protocol, own.get(each.section, ()))


def _kind(viewer: Viewer, kind: str, subject: _Subject) -> dict[str, Json]:
    record = world.kind_of(viewer.db, kind).policy
    assert record is not None, kind
    # Policies that are stored and do not act yet have no rules; a warning says so.
    acts = record.acts_on_gateways if subject.is_gateway else record.acts_on_sidecars
    to = list(_to_rules(viewer, kind, subject)) if acts("to") else []
    acts_on_inbounds = acts("rules")
    if subject.is_gateway and record.hooks.permits is not None:
        subject, acts_on_inbounds = _where_callers_are_known(viewer.db, subject), True
    shown: dict[str, Json] = {
        "type": kind,
        "toRules": list(_tag_rules(viewer.db, kind, subject.proxy_class)),
        "toResourceRules": [rule for rule, _ in to],
        "fromRules": list(_by_inbound(_from_rules, viewer, kind, subject)) if acts_on_inbounds else [],
        "inboundRules": list(_by_inbound(_inbound_rules, viewer, kind, subject)) if acts_on_inbounds else [],
    }
    defaults = rules.default_entries(viewer.db, subject.proxy_class.of(kind))
    if defaults and acts(""):
        conf = viewer.conf(defaults)
        shown["proxyRule"] = {**confs(conf), "origin": policies(viewer.db, defaults)}
    warnings = list(dict.fromkeys(_warnings(viewer.db, kind, subject.proxy_class)))
    left_out = dict.fromkeys(
        _left_out_of_listeners(viewer, kind, subject)
        if subject.is_gateway and kind in match.ROUTE_KINDS
        else (text for _, texts in to for text in texts)
    )
    shown["warnings"] = warnings + [text for text in left_out if not any(text in each for each in warnings)]
    return shown


def _left_out_of_listeners(viewer: Viewer, kind: str, subject: _Subject) -> Iterator[str]:
    """What merges of a gateway's routes left out: routes of one listener meet, and no others."""
    traits = match.traits(viewer.db, subject.key)
    assert traits is not None, subject.key
    for listener, _ in subject.inbounds:
        selecting = dict(inbound.policies_of(viewer.db, traits, listener.section)).get(kind, ())
        attached = Policies.of(each for each in selecting if gateways.is_attached(viewer.db, each))
        yield from viewer.confs(kind, rules.entries_by_target(viewer.db, attached).mesh_wide).warnings


def _where_callers_are_known(db: Db, subject: _Subject) -> _Subject:
    """A gateway with those of its listeners alone at which callers have an identity, that of their mesh."""
    traits = match.traits(db, subject.key)
    gateway = traits.gateway if traits is not None else None
    admitting = {
        each.section for each in (gateways.listeners(db, gateway) if gateway else ()) if each.is_cross_mesh
    }
    return msgspec.structs.replace(
        subject, inbounds=tuple(each for each in subject.inbounds if each[0].section in admitting)
    )


def _is_not_empty(shown: Mapping[str, Json]) -> bool:
    return any(value for name, value in shown.items() if name != "type")


def confs(shown: ShownConf) -> dict[str, Json]:
    """A conf, and who set its fields where that was asked."""
    return {"conf": shown.conf, **({"origins": shown.origins} if shown.origins is not None else {})}


def policies(db: Db, entries: Iterable[ItemId]) -> list[Json]:
    """The policies of entries, each once, in the order in which they merge."""
    return [meta(db, policy) for policy in dict.fromkeys(entry.policy for entry in entries)]


def _origin(db: Db, entries: Sequence[ItemId]) -> list[Json]:
    places = dict.fromkeys((entry.policy, entry.number) for entry in entries)
    return [{"resourceMeta": meta(db, policy), "ruleIndex": number} for policy, number in places]


# Outbound.


def _tag_rules(db: Db, kind: str, proxy_class: ProxyClass) -> Iterator[Json]:
    """The rules of a kind by tags of services; only `toResourceRules` says who set each field."""
    viewer = Viewer(db)
    for rule in _subset_rules(db, kind, proxy_class):
        matchers = [{"key": each.key, "not": each.is_negated, "value": each.value} for each in rule.matchers]
        (conf, *_) = viewer.confs(kind, rule.entries).conf
        yield {"conf": conf, "matchers": matchers, "origin": policies(db, rule.entries)}


def _subset_rules(db: Db, kind: str, proxy_class: ProxyClass) -> tuple[SubsetRule, ...]:
    return (
        subset_rules.outbound(db, proxy_class.of(kind))
        if services.mode(db, proxy_class.mesh) != "Exclusive"
        else ()
    )


class _ToRule(msgspec.Struct, frozen=True):
    """The target of an outbound rule; `destination` only where a route's rule differs between several."""

    target: Key
    section: str
    entries: Entries
    destination: tuple[Key, str] | None = None


def _to_rules(viewer: Viewer, kind: str, subject: _Subject) -> Iterator[tuple[Json, tuple[str, ...]]]:
    """The rules of a kind, each with warnings about what the merge had to leave out of it."""
    db = viewer.db
    shown = [(_to_rule(viewer, kind, rule), rule) for rule in _targets(db, kind, subject)]
    for (conf, warnings), _ in sorted(shown, key=lambda pair: _to_place(pair[0][0], pair[1])):
        yield conf, warnings


def _to_place(shown: Json, rule: _ToRule) -> tuple[str, Key, str, tuple[Key, str] | tuple[()]]:
    """Kuma sorts by name alone; here rules with equal names are sorted by their target too."""
    return shown["resourceMeta"]["name"], rule.target, rule.section, rule.destination or ()


def _targets(db: Db, kind: str, subject: _Subject) -> Iterator[_ToRule]:
    """The targets of entries: the mesh, destinations or ports of them, and routes that the proxy has."""
    matching_policies = subject.proxy_class.of(kind)
    targeted = rules.entries_by_target(db, matching_policies)
    if targeted.mesh_wide:
        yield _ToRule(Key("Mesh", "", "", "", subject.proxy_class.mesh), "", targeted.mesh_wide)
    for destination, entries in targeted.by_destination.items():
        for section in {narrowed: None for _, narrowed in entries}:
            yield _ToRule(
                destination, section, rules.relevant_entries(db, matching_policies, destination, section)
            )
    for route in targeted.by_route:
        if subject.is_gateway:
            yield _ToRule(route, "", rules.route_entries(db, matching_policies, route))
        else:
            yield from _route_rules(route, kind, subject)


def _route_rules(route: Key, kind: str, subject: _Subject) -> Iterator[_ToRule]:
    """One rule where the same entries hold for all destinations of the route, else one for each."""
    destinations = [
        (to, section, dict(by_kind).get(kind, ())) for to, section, by_kind in subject.routes.get(route, ())
    ]
    if len({entries for _, _, entries in destinations}) == 1:
        yield _ToRule(route, "", destinations[0][2])
        return
    for destination in dict.fromkeys(to for to, _, _ in destinations):
        ports = [(section, entries) for to, section, entries in destinations if to == destination]
        if len({entries for _, entries in ports}) == 1:
            ports = [("", ports[0][1])]
        for section, entries in ports:
            yield _ToRule(route, "", entries, (destination, section))


def _to_rule(viewer: Viewer, kind: str, rule: _ToRule) -> tuple[Json, tuple[str, ...]]:
    conf = viewer.confs(kind, rule.entries)
    shown = {
        "resourceMeta": meta(viewer.db, rule.target),
        "resourceSectionName": rule.section,
        **confs(conf),
        "origin": _origin(viewer.db, rule.entries),
    }
    if rule.destination is not None:
        key, section = rule.destination
        shown["destination"] = {"resourceMeta": meta(viewer.db, key), "resourceSectionName": section}
    return shown, conf.warnings


def _http_matches(db: Db, proxy_class: ProxyClass) -> list[Json]:
    """The different matches of all HTTP routes of the proxy, by the hash that Kuma gives them."""
    all_entries = [port.http for port in rules.ports(db, proxy_class)]
    all_entries += [rule.entries for rule in _subset_rules(db, target_ref.HTTP_ROUTE, proxy_class)]
    by_hash = {
        routes.match_hash(rule.matches): rule.matches or []
        for entries in dict.fromkeys(all_entries)
        for rule in items.route_rules(db, entries)
    }
    return [{"hash": name, "match": by_hash[name]} for name in sorted(by_hash)]


# Inbound.

_InboundView = Callable[[Viewer, str, Sequence[InboundRule]], Iterator[Json]]


def _by_inbound(
    shown: _InboundView, viewer: Viewer, kind: str, subject: _Subject
) -> Iterator[dict[str, Json]]:
    for inbound_, by_kind in subject.inbounds:
        rules_ = list(shown(viewer, kind, by_kind.get(kind, ())))
        if rules_:
            yield {"inbound": _inbound(inbound_), "rules": rules_}


def _inbound(inbound_: Inbound) -> Json:
    name = {"name": inbound_.name} if inbound_.name else {}
    return {**name, "port": inbound_.port, "tags": dict(inbound_.tags)}


def _from_rules(viewer: Viewer, _kind: str, inbound_rules: Sequence[InboundRule]) -> Iterator[Json]:
    from_rules = [rule for rule in inbound_rules if rule.entry.list == "from"]
    for client in dict.fromkeys(rule.client for rule in from_rules):
        covering = {rule.entry for rule in from_rules if covers(rule.client.tags, client.tags)}
        entries = sorted(covering, key=lambda entry: order.key(items.rank(viewer.db, entry)))
        shown = confs(viewer.conf(entries))
        yield {**shown, "matchers": matchers(client), "origin": policies(viewer.db, entries)}


def covers(wide: Pairs, narrow: Pairs) -> bool:
    """Whether every client with the narrow tags has the wide ones too."""
    values = dict(narrow)
    return all(name in values and value in (tags.ANY, values[name]) for name, value in wide)


def matchers(client: Client) -> list[Json]:
    """The tags of a client as Kuma's matchers."""
    return [{"key": name, "not": False, "value": value} for name, value in client.tags]


def _inbound_rules(viewer: Viewer, kind: str, inbound_rules: Sequence[InboundRule]) -> Iterator[Json]:
    policy = world.kind_of(viewer.db, kind).policy
    converts = policy is not None and policy.from_as_rules
    rules_ = [
        rule for rule in inbound_rules if rule.entry.list == "rules" or (converts and rule.client == Client())
    ]
    for client in dict.fromkeys(rule.client for rule in rules_):
        entries = [rule.entry for rule in rules_ if rule.client == client]
        shown = confs(viewer.confs(kind, entries))
        match_ = {"match": client_match(client)} if client != Client() else {}
        yield {**shown, **match_, "origin": _origin(viewer.db, entries)}


def client_match(client: Client) -> Json:
    """The clients that a rule is for, as policies write it."""
    parts = (("spiffeID", client.spiffe_id), ("sni", client.sni))
    return {name: {"type": type_, "value": value} for name, (type_, value) in parts if value}


# Warnings.


def _warnings(db: Db, kind: str, proxy_class: ProxyClass) -> Iterator[str]:
    """Why policies of a kind select no proxy, and problems of those that apply."""
    for selector in match.unindexed(db, proxy_class.mesh):
        if selector.policy.kind == kind and selector.problem and not selector.is_shadow:
            place = f"mesh:{selector.policy.mesh} name:{selector.core_name}"
            yield f'unable to resolve TargetRef on policy: {place} error:"{selector.problem}"'
    for policy in proxy_class.of(kind):
        for problem in problems.of_policy(db, policy):
            whose = "" if str(policy) in problem.message else f"{policy}: "
            yield f"{whose}{problem.text}"
