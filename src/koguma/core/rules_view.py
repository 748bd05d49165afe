"""Rules view: the rules of one proxy, kind by kind, as `_rules` of the Inspect API shows them.

The shapes are those of Kuma 2.13. What proxies get for their calls is in `toResourceRules`, since everything
outbound is about real resources here; `toRules` shows the same entries by tags, as Kuma does unless the mesh
is in mode Exclusive (subset_rules.py). `fromRules` has one entry for each set of tags
that some policy names, most specific first, and what is in it is merged from all entries that cover it; no
combination is made up, and nothing is negated.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from koguma.core import inbound, items, match, order, problems, routes, rules, services, subset_rules, world
from koguma.core.inbound import Client, InboundRule
from koguma.core.incremental import Db
from koguma.core.items import ByKind, Entries, ItemId
from koguma.core.meta import meta
from koguma.core.provenance import ShownConf, Viewer
from koguma.core.rules import ProxyClass
from koguma.core.subset_rules import SubsetRule
from koguma.core.world import Inbound, Pairs
from koguma.model import tags, target_ref
from koguma.model.resource import Key
from koguma.model.schema import Json


class _Subject(msgspec.Struct, frozen=True):
    """The proxy that is looked at, and what was found out about it once for all kinds."""

    key: Key
    mine: ProxyClass
    routes: Mapping[Key, tuple[tuple[Key, str, ByKind], ...]]  # where each route leads: destination, section
    inbounds: tuple[tuple[Inbound, Mapping[str, tuple[InboundRule, ...]]], ...]  # by kind


def of_proxy(db: Db, proxy: Key, *, fields: bool = False) -> Json:
    """The rules of a proxy in policy order; kinds that say nothing about it are left out."""
    subject = _subject(db, proxy)
    viewer = Viewer(db, fields=fields)
    shown = (_kind(viewer, kind, subject) for kind in match.policy_kinds(db))
    return {
        "resource": meta(db, proxy),
        "rules": [each for each in shown if _says_something(each)],
        "httpMatches": _http_matches(db, subject.mine),
    }


def _subject(db: Db, key: Key) -> _Subject:
    proxy, seen, mine = world.proxy(db, key), match.traits(db, key), rules.class_of(db, key)
    assert proxy is not None, key
    assert seen is not None, key
    assert mine is not None, key
    found: dict[Key, list[tuple[Key, str, ByKind]]] = {}
    for port in rules.ports(db, mine):
        for route, entries in port.routes:
            found.setdefault(route.key, []).append((port.destination, port.section, entries))
    inbounds = sorted(proxy.inbounds, key=lambda one: (one.port, one.section))
    return _Subject(
        key,
        mine,
        {route: tuple(leads) for route, leads in found.items()},
        tuple((one, dict(inbound.of(db, seen, one.section))) for one in inbounds),
    )


def _kind(viewer: Viewer, kind: str, subject: _Subject) -> dict[str, Json]:
    record = world.kind_of(viewer.db, kind).policy
    assert record is not None, kind
    # Of what is stored only, and does not act yet, there are no rules; a warning says so.
    to = list(_to_rules(viewer, kind, subject)) if record.acts_by("to") else []
    arrives = record.acts_by("rules")
    shown: dict[str, Json] = {
        "type": kind,
        "toRules": list(_tag_rules(viewer.db, kind, subject.mine)),
        "toResourceRules": [rule for rule, _ in to],
        "fromRules": list(_by_inbound(_from_rules, viewer, kind, subject)) if arrives else [],
        "inboundRules": list(_by_inbound(_inbound_rules, viewer, kind, subject)) if arrives else [],
    }
    whole = rules.default_entries(viewer.db, subject.mine.of(kind))
    if whole and record.acts_by(""):
        conf = viewer.conf(whole)
        shown["proxyRule"] = {**confs(conf), "origin": policies(viewer.db, whole)}
    warnings = list(dict.fromkeys(_warnings(viewer.db, kind, subject.mine)))
    left_out = dict.fromkeys(text for _, found in to for text in found)
    shown["warnings"] = warnings + [text for text in left_out if not any(text in each for each in warnings)]
    return shown


def _says_something(shown: Mapping[str, Json]) -> bool:
    return any(value for name, value in shown.items() if name != "type")


def confs(shown: ShownConf) -> dict[str, Json]:
    """A configuration, and who set its fields where that was asked."""
    return {"conf": shown.conf, **({"origins": shown.origins} if shown.origins is not None else {})}


def policies(db: Db, entries: Iterable[ItemId]) -> list[Json]:
    """The policies of entries, each once, in the order in which they merge."""
    return [meta(db, policy) for policy in dict.fromkeys(entry.policy for entry in entries)]


def _origin(db: Db, entries: Sequence[ItemId]) -> list[Json]:
    places = dict.fromkeys((entry.policy, entry.number) for entry in entries)
    return [{"resourceMeta": meta(db, policy), "ruleIndex": number} for policy, number in places]


# Outbound.


def _tag_rules(db: Db, kind: str, mine: ProxyClass) -> Iterator[Json]:
    """What a kind says about services by their tags; `toResourceRules` alone tells who set each field."""
    viewer = Viewer(db)
    for rule in _subset_rules(db, kind, mine):
        asked = [{"key": each.key, "not": each.is_negated, "value": each.value} for each in rule.matchers]
        (conf, *_) = viewer.confs(kind, rule.entries).conf
        yield {"conf": conf, "matchers": asked, "origin": policies(db, rule.entries)}


def _subset_rules(db: Db, kind: str, mine: ProxyClass) -> tuple[SubsetRule, ...]:
    return subset_rules.outbound(db, mine.of(kind)) if services.mode(db, mine.mesh) != "Exclusive" else ()


class _ToRule(msgspec.Struct, frozen=True):
    """What an outbound rule is about; `destination` only where a route's rule differs between several."""

    target: Key
    section: str
    entries: Entries
    destination: tuple[Key, str] | None = None


def _to_rules(viewer: Viewer, kind: str, subject: _Subject) -> Iterator[tuple[Json, tuple[str, ...]]]:
    """The rules of a kind, each with warnings about what had to be left out of it."""
    db = viewer.db
    shown = [(_to_rule(viewer, kind, rule), rule) for rule in _targets(db, kind, subject)]
    for (conf, warnings), _ in sorted(shown, key=lambda pair: _to_place(pair[0][0], pair[1])):
        yield conf, warnings


def _to_place(shown: Json, rule: _ToRule) -> tuple[str, Key, str, tuple[Key, str] | tuple[()]]:
    """Kuma sorts by name alone; equal names are kept apart by what they are."""
    return shown["resourceMeta"]["name"], rule.target, rule.section, rule.destination or ()


def _targets(db: Db, kind: str, subject: _Subject) -> Iterator[_ToRule]:
    """What some entry names: the mesh, destinations or ports of them, and routes that the proxy has."""
    chosen = subject.mine.of(kind)
    found = rules.entries_by_target(db, chosen)
    if found.mesh_wide:
        yield _ToRule(Key("Mesh", "", "", "", subject.mine.mesh), "", found.mesh_wide)
    for destination, at in found.by_destination.items():
        for section in {narrowed: None for _, narrowed in at}:
            yield _ToRule(destination, section, rules.relevant_entries(db, chosen, destination, section))
    for route in found.by_route:
        yield from _route_rules(route, kind, subject)


def _route_rules(route: Key, kind: str, subject: _Subject) -> Iterator[_ToRule]:
    """One rule where the same entries hold wherever the route leads, else one for each destination."""
    leads = [(to, section, dict(found).get(kind, ())) for to, section, found in subject.routes.get(route, ())]
    if len({entries for _, _, entries in leads}) == 1:
        yield _ToRule(route, "", leads[0][2])
        return
    for destination in dict.fromkeys(to for to, _, _ in leads):
        ports = [(section, entries) for to, section, entries in leads if to == destination]
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


def _http_matches(db: Db, mine: ProxyClass) -> list[Json]:
    """The different matches of all HTTP routes of the proxy, by the hash that Kuma gives them."""
    acting = [port.http for port in rules.ports(db, mine)]
    acting += [rule.entries for rule in _subset_rules(db, target_ref.HTTP_ROUTE, mine)]
    found = {
        routes.match_hash(rule.matches): rule.matches or []
        for entries in dict.fromkeys(acting)
        for rule in items.route_rules(db, entries)
    }
    return [{"hash": name, "match": found[name]} for name in sorted(found)]


# Inbound.

_InboundView = Callable[[Viewer, str, Sequence[InboundRule]], Iterator[Json]]


def _by_inbound(
    shown: _InboundView, viewer: Viewer, kind: str, subject: _Subject
) -> Iterator[dict[str, Json]]:
    for one, by_kind in subject.inbounds:
        found = list(shown(viewer, kind, by_kind.get(kind, ())))
        if found:
            yield {"inbound": _inbound(one), "rules": found}


def _inbound(of: Inbound) -> Json:
    name = {"name": of.name} if of.name else {}
    return {**name, "port": of.port, "tags": dict(of.tags)}


def _from_rules(viewer: Viewer, _kind: str, found: Sequence[InboundRule]) -> Iterator[Json]:
    written = [rule for rule in found if rule.entry.list == "from"]
    for client in dict.fromkeys(rule.client for rule in written):
        covering = {rule.entry for rule in written if covers(rule.client.tags, client.tags)}
        entries = sorted(covering, key=lambda entry: order.key(items.rank(viewer.db, entry)))
        shown = confs(viewer.conf(entries))
        yield {**shown, "matchers": matchers(client), "origin": policies(viewer.db, entries)}


def covers(wide: Pairs, narrow: Pairs) -> bool:
    """Whether every client with the second tags has the first ones too."""
    mine = dict(narrow)
    return all(name in mine and value in (tags.ANY, mine[name]) for name, value in wide)


def matchers(client: Client) -> list[Json]:
    """The tags of a client as Kuma's matchers."""
    return [{"key": name, "not": False, "value": value} for name, value in client.tags]


def _inbound_rules(viewer: Viewer, kind: str, found: Sequence[InboundRule]) -> Iterator[Json]:
    policy = world.kind_of(viewer.db, kind).policy
    converts = policy is not None and policy.from_as_rules
    taken = [rule for rule in found if rule.entry.list == "rules" or (converts and rule.client == Client())]
    for client in dict.fromkeys(rule.client for rule in taken):
        entries = [rule.entry for rule in taken if rule.client == client]
        shown = confs(viewer.confs(kind, entries))
        match_ = {"match": client_match(client)} if client != Client() else {}
        yield {**shown, **match_, "origin": _origin(viewer.db, entries)}


def client_match(client: Client) -> Json:
    """Whom a rule is for, as policies write it."""
    parts = (("spiffeID", client.spiffe_id), ("sni", client.sni))
    return {name: {"type": type_, "value": value} for name, (type_, value) in parts if value}


# Warnings.


def _warnings(db: Db, kind: str, mine: ProxyClass) -> Iterator[str]:
    """What keeps policies of a kind from selecting anybody, and what is odd about those that apply."""
    for one in match.selectors(db, kind, mine.mesh):
        if one.problem and not one.is_shadow:
            place = f"mesh:{one.policy.mesh} name:{one.core_name}"
            yield f'unable to resolve TargetRef on policy: {place} error:"{one.problem}"'
    for policy in mine.of(kind):
        for problem in problems.of_policy(db, policy):
            whose = "" if str(policy) in problem.message else f"{policy}: "
            yield f"{whose}{problem.text}"
