"""Outbound: what a proxy does with calls to one port of a destination: a listener, routes, and clusters.

Routes come apart from their listener, so that a changed rule touches no connection. A port that speaks HTTP
gets the rules of MeshHTTPRoutes, or, where only a MeshTCPRoute is about it, that one; any other port gets
MeshTCPRoutes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TypeVar
from zlib import crc32

import msgspec

from koguma.core import items, routes, rules, world
from koguma.core.build import added, backends, clusters, encoding, lay, logs, overlays, shape
from koguma.core.build.backends import Going, Meant
from koguma.core.build.clusters import Assigned, Caller, ClusterOf
from koguma.core.build.overlays import PolicyOverlays
from koguma.core.build.shape import Binding
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.items import ByKind, Entries
from koguma.core.routes import Candidate
from koguma.core.rules import PortRules, ProxyClass
from koguma.core.world import Pairs
from koguma.envoy import names, snapshot
from koguma.envoy import routes as envoy_routes
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Bundle, Failure, XdsResource
from koguma.model.overlay import NO_DATA, Where
from koguma.model.resource import Key
from koguma.model.schema import Json

Addresses = tuple[tuple[str, int], ...]

_IDLE = "3600s"
_REQUEST = {"timeout": "15s"}
_PARTS = 16  # of what a class calls; the more, the fewer ports are looked at again for a change of one
_FEW = 4  # parts that are put together before all are
T = TypeVar("T")


class Listened(msgspec.Struct, frozen=True, cache_hash=True):
    """A destination's port, and the local addresses on which it, or a subset of its endpoints, is called."""

    destination: Key
    section: str
    addresses: Addresses
    subset: Pairs = ()


class PortOf(msgspec.Struct, frozen=True):
    """A destination's port as some proxies call it; alike for all to whom policies say the same."""

    destination: Key
    section: str
    protocol: str  # tcp also where a port speaks HTTP and there are rules for its connections only
    said: PolicyOverlays
    on_routes: tuple[tuple[Key, PolicyOverlays], ...]
    http: Entries
    tcp: Entries
    subset: Pairs = ()  # the tags that its endpoints must have, where a Dataplane's outbound asks for some
    reads_machine: bool = True  # whether answers may be files and variables of the proxy's machine


class Traffic(msgspec.Struct, frozen=True):
    """What becomes of calls to a port: the parts of its listener, its routes, the clusters that it needs."""

    parts: lay.Parts
    pieces: tuple[XdsResource | Failure, ...]
    clusters: tuple[Meant, ...]


class Heard(msgspec.Struct, frozen=True):
    """A listener with its routes, and the clusters that they need."""

    pieces: tuple[XdsResource | Failure, ...]
    clusters: tuple[Meant, ...]


class Wanted(msgspec.Struct, frozen=True):
    """A destination's port that is called; with names of tags, those of its endpoints with some values."""

    destination: Key
    section: str
    tags: tuple[str, ...] = ()


class Ruled(msgspec.Struct, frozen=True, cache_hash=True):
    """What a class says about some ports: alike for most, and of its own for a few."""

    plain: Group[tuple[str, Entries]]
    others: tuple[PortRules, ...]
    whole: ByKind  # entries about whole proxies that act on their calls

    def of(self, destination: Key, section: str) -> PortRules:
        """What holds for calls to one port."""
        for each in self.others:
            if each.destination == destination and each.section == section:
                return each
        return PortRules(destination, section, self.plain.members)


Share = tuple[int, Group[Wanted]]  # of a part


class Called(msgspec.Struct, frozen=True):
    """Some of what proxies call: listeners with routes, and the clusters that these need, by part."""

    bundle: Bundle
    wanted: tuple[Share, ...]


class Reached(msgspec.Struct, frozen=True):
    """Some of what proxies call: clusters, and the ports whose endpoints these need."""

    bundle: Bundle
    assigned: Group[Assigned]


class Outbounds(msgspec.Struct, frozen=True):
    """What proxies of a class get in order to call others; its endpoints come apart, of the ports named."""

    bundle: Bundle
    assigned: Group[Group[Assigned]]


@question
def everything(
    db: Db, of: ProxyClass, listened: Group[Listened], caller: Caller, binds: Binding
) -> Outbounds:
    """What proxies of a class call; equal proxies share it.

    It is put together from parts, and these from smaller ones, so that a change of one port looks at few
    others. A part is asked for by what is said about it, not by the class: most of what a class calls is like
    what another one calls.
    """
    called = [_called(db, some, caller, binds) for some in _ruled_calls(db, of, listened)]
    needed = _needed(db, Group([each.wanted for each in called]))
    reached = [_reached(db, some, caller) for some in _ruled_reach(db, of, needed)]
    bundles = (*(each.bundle for each in called), *(each.bundle for each in reached))
    return Outbounds(_joined(bundles), Group(chain.from_iterable(each.assigned for each in reached)))


@question
def _called(db: Db, some: Group[tuple[Ruled, Group[Listened]]], caller: Caller, binds: Binding) -> Called:
    """What is called of a few parts."""
    found = [calls(db, ruled, part, caller, binds) for ruled, part in some]
    wanted = tuple(chain.from_iterable(each.wanted for each in found))
    return Called(_joined(tuple(each.bundle for each in found)), wanted)


@question
def _reached(db: Db, some: Group[tuple[Ruled, Group[Group[Wanted]]]], caller: Caller) -> Outbounds:
    """What is reached of a few parts."""
    found = [reaches(db, ruled, wanted, caller) for ruled, wanted in some]
    return Outbounds(_joined(tuple(each.bundle for each in found)), Group(each.assigned for each in found))


@question
def _ruled_calls(
    db: Db, of: ProxyClass, listened: Group[Listened]
) -> tuple[Group[tuple[Ruled, Group[Listened]]], ...]:
    rule = _ruling(db, of)
    found = ((part, ((one.destination, one.section) for one in part)) for part in parts(db, listened))
    return _by_few((rule(called), part) for part, called in found)


@question
def _needed(_db: Db, called: Group[tuple[Share, ...]]) -> Group[Group[Group[Wanted]]]:
    """What is wanted, part by part; mostly as before, and one value for all classes that want the same."""
    shares: dict[int, list[Group[Wanted]]] = {}
    for number, wanted in chain.from_iterable(called):
        shares.setdefault(number, []).append(wanted)
    return Group(Group(shares[number]) for number in sorted(shares))


@question
def _ruled_reach(
    db: Db, of: ProxyClass, needed: Group[Group[Group[Wanted]]]
) -> tuple[Group[tuple[Ruled, Group[Group[Wanted]]]], ...]:
    rule = _ruling(db, of)
    return _by_few((rule(ports), wanted) for wanted, ports in zip(needed, _ports_of(db, needed), strict=True))


def _by_few(parts: Iterable[T]) -> tuple[Group[T], ...]:
    all_parts = tuple(parts)
    return tuple(Group(all_parts[at : at + _FEW]) for at in range(0, len(all_parts), _FEW))


@question
def _ports_of(_db: Db, needed: Group[Group[Group[Wanted]]]) -> tuple[tuple[tuple[Key, str], ...], ...]:
    """The ports that are wanted, part by part; asked once for all classes that want the same."""
    found = ({(one.destination, one.section) for group in wanted for one in group} for wanted in needed)
    return tuple(tuple(sorted(ports)) for ports in found)


def _ruling(db: Db, of: ProxyClass) -> Callable[[Iterable[tuple[Key, str]]], Ruled]:
    """How to find what a class says about some ports."""
    all_rules, whole = rules.outbound(db, of), overlays.on_outbounds(db, of)
    like_most = plainly_ruled(db, all_rules.common, whole)

    def rule(ports: Iterable[tuple[Key, str]]) -> Ruled:
        others = tuple(all_rules.of(*port) for port in ports if port[0] in all_rules.named)
        return Ruled(all_rules.common, others, whole) if others else like_most

    return rule


@question
def plainly_ruled(_db: Db, entries: Group[tuple[str, Entries]], whole: ByKind) -> Ruled:
    """What is said about ports that are like most; one value for all who say so, as it is often a key."""
    return Ruled(entries, (), whole)


@question
def parts(_db: Db, listened: Group[Listened]) -> tuple[Group[Listened], ...]:
    """Ports in parts; a port's part depends on nothing but its destination."""
    found: dict[int, list[Listened]] = {}
    for one in listened:
        found.setdefault(_part(one.destination), []).append(one)
    return tuple(Group(found[number]) for number in sorted(found))


def _part(destination: Key) -> int:
    return crc32(destination.name.encode()) % _PARTS


@question
def calls(db: Db, ruled: Ruled, listened: Group[Listened], caller: Caller, binds: Binding) -> Called:
    """The listeners of some ports, with their routes."""
    found: list[XdsResource | Failure] = []
    wanted: dict[int, dict[Wanted, None]] = {}
    for one in listened:
        port = _port_of(db, ruled.of(one.destination, one.section), ruled.whole, caller, one.subset)
        heard = listener(db, port, one.addresses, binds)
        found += heard.pieces
        for meant in heard.clusters:
            needed = Wanted(meant.destination, meant.section, tuple(name for name, _ in meant.subset))
            wanted.setdefault(_part(meant.destination), {})[needed] = None
    by_part = tuple((number, Group(needed)) for number, needed in wanted.items())
    return Called(encoding.bundled(found), by_part)


def _port_of(db: Db, found: PortRules, whole: ByKind, caller: Caller, subset: Pairs) -> PortOf:
    """A port with what is said about it; `whole` are entries about whole proxies that act on their calls."""
    protocol = rules.protocol(db, found)
    where = caller.where(protocol, encoding.kri(db, found.destination, found.section))
    kind = "MeshTCPRoute" if protocol == "tcp" else "MeshHTTPRoute"
    on_routes = tuple(
        (route.key, _laid(db, (*entries, *whole), where))
        for route, entries in found.routes
        if route.key.kind == kind
    )
    said = _laid(db, (*found.entries, *whole), where)
    return PortOf(
        found.destination,
        found.section,
        protocol,
        said,
        on_routes,
        found.http,
        found.tcp,
        subset,
        caller.machine.reads_data,
    )


def _laid(db: Db, entries: ByKind, where: Where) -> PolicyOverlays:
    return overlays.outbound(db, overlays.merged_confs(db, entries, where.mesh), where).listener


@question
def reaches(db: Db, ruled: Ruled, wanted: Group[Group[Wanted]], caller: Caller) -> Reached:
    """The clusters of some ports."""
    found: list[XdsResource | Failure] = []
    assigned: list[Assigned] = []
    for (destination, section), subsets in sorted(_subsets(wanted).items()):
        entries = (*ruled.of(destination, section).entries, *ruled.whole)
        said = clusters.laid(
            db, destination, section, overlays.merged_confs(db, entries, caller.mesh), caller
        )
        found += clusters.cluster(db, ClusterOf(destination, section, said, caller, subsets))
        assigned += clusters.assigned(db, destination, section, entries)
    return Reached(encoding.bundled(found), Group(assigned))


def _subsets(wanted: Iterable[Group[Wanted]]) -> dict[tuple[Key, str], tuple[tuple[str, ...], ...]]:
    """The ports that are called, each with the sets of tags by which endpoints are chosen."""
    found: dict[tuple[Key, str], set[tuple[str, ...]]] = {}
    for one in chain.from_iterable(wanted):
        subsets = found.setdefault((one.destination, one.section), set())
        if one.tags:
            subsets.add(one.tags)
    return {port: tuple(sorted(subsets)) for port, subsets in found.items()}


def _joined(parts: tuple[Bundle, ...]) -> Bundle:
    found: dict[snapshot.Id, XdsResource] = {}
    failures: dict[Failure, None] = {}
    for each in parts:
        found.update(each.resources)
        if each.failures:
            failures.update(dict.fromkeys(each.failures))
    ordered = tuple(sorted(failures, key=lambda failure: (failure.id, failure.text)))
    return Bundle(found, ordered, parts)


@question
def listener(db: Db, of: PortOf, addresses: Addresses, binds: Binding) -> Heard:
    """The listener of a port on local addresses, with its routes."""
    # What it is made of is not kept: most ports are called on one set of addresses only.
    what = _traffic(db, of)
    return Heard(_heard(db, of, addresses, what, binds=binds), what.clusters)


def _heard(
    db: Db, of: PortOf, addresses: Addresses, what: Traffic, *, binds: Binding
) -> tuple[XdsResource | Failure, ...]:
    name = _listener_name(db, of)
    if not what.parts:
        return what.pieces
    data = shape.listener(name, addresses, "OUTBOUND", {"kuma.io/unified-name": name}, binds)
    data["filter_chains"] = [{"filters": shape.chain(what.parts)}]
    needs = _needs(db, what.clusters) if "tcp" in what.parts else ((snapshot.ROUTES, name),)
    needs = (*needs, *added.needed(what.parts))
    made = encoding.encoded(db, snapshot.LISTENER, name, data, needs, str(of.destination))
    return *added.clusters(db, what.parts), *what.pieces, made


def _listener_name(db: Db, of: PortOf) -> str:
    """The name of a port's listener and routes; empty where the stored names make no identifier."""
    name = encoding.kri(db, of.destination, of.section)
    return names.subset(name, of.subset) if name and of.subset else name


def _needs(db: Db, meant: Iterable[Meant]) -> tuple[snapshot.Id, ...]:
    named = {encoding.kri(db, one.destination, one.section) for one in meant}
    return tuple((snapshot.CLUSTER, name) for name in sorted(named))


def _traffic(db: Db, of: PortOf) -> Traffic:
    """What becomes of calls to a port."""
    port = world.port(db, of.destination, of.section)
    name = _listener_name(db, of)
    if port is None or not name:
        nameless = (encoding.nameless(snapshot.LISTENER, of.destination),) if port else ()
        return Traffic({}, nameless, ())
    return _tcp(db, of, name) if of.protocol == "tcp" else _http(db, of, name)


def _tcp(db: Db, of: PortOf, name: str) -> Traffic:
    conf = items.conf(db, of.tcp) if of.tcp else {}
    origin = of.tcp[-1].policy if of.tcp else of.destination
    going = Going(of.destination, of.section, is_http=False, subset=of.subset)
    split, needed = backends.split(db, conf.get("backendRefs"), origin, going)
    said = dict(of.on_routes).get(origin, of.said)
    skeleton = {"tcp": shape.tcp_proxy(name, _tcp_target(split), _IDLE)}
    parts = logs.with_logs(lay.over_parts(skeleton, said.overlays))
    return Traffic(parts, said.failures, needed)


def _tcp_target(split: envoy_routes.Split) -> Data:
    """Clusters by weight; the share of what leads nowhere goes to one that does not exist, and is closed."""
    shares = [({"name": each.cluster, **_tcp_subset(each)}, each.weight) for each in split.backends]
    if split.unresolved or not shares:
        shares.append(({"name": shape.NOWHERE}, split.unresolved or 1))
    if len(shares) == 1:
        only = dict(shares[0][0])
        return {"cluster": only.pop("name"), **only}
    return {"weighted_clusters": {"clusters": [{**cluster, "weight": weight} for cluster, weight in shares]}}


def _tcp_subset(backend: envoy_routes.Backend) -> Data:
    if not backend.subset:
        return {}
    return {"metadata_match": {"filter_metadata": {"envoy.lb": dict(backend.subset)}}}


def _http(db: Db, of: PortOf, name: str) -> Traffic:
    said, on_routes = of.said, dict(of.on_routes)
    skeleton = {"hcm": shape.hcm(name), "http_filters": shape.http_filters(of.protocol)}
    named = {encoding.kri(db, key, ""): on for key, on in on_routes.items()}
    parts = logs.with_logs(lay.over_parts(skeleton, said.overlays), named)
    made, needed = _routes(db, of, on_routes, said)
    refused = () if of.reads_machine else tuple(dict.fromkeys(_machine_failures(made)))
    made = made if of.reads_machine else [_without_machine_data(route) for route in made]
    config = envoy_routes.route_configuration(name, [envoy_routes.virtual_host(name, made)])
    piece = encoding.encoded(db, snapshot.ROUTES, name, config, _needs(db, needed), str(of.destination))
    failures = dict.fromkeys(each for one in (said, *on_routes.values()) for each in one.failures)
    return Traffic(parts, (piece, *failures, *refused), needed)


_MACHINE_DATA = frozenset({"filename", "environment_variable"})


def _reads_machine(route: Data) -> bool:
    """Whether a route answers with a file or a variable of the proxy's machine."""
    body = (route.get("direct_response") or {}).get("body") or {}
    return not _MACHINE_DATA.isdisjoint(body)


def _machine_failures(made: Iterable[Data]) -> Iterator[Failure]:
    for route in made:
        if _reads_machine(route):
            yield Failure("policy", "MeshHTTPRoute", f"directResponse.body {NO_DATA}", str(route.get("name")))


def _without_machine_data(route: Data) -> Data:
    """The route with an answer that has no body where that would be the machine's."""
    if not _reads_machine(route):
        return route
    answer = {name: part for name, part in route["direct_response"].items() if name != "body"}
    return {**route, "direct_response": answer}


def _routes(
    db: Db, of: PortOf, on_routes: Mapping[Key, PolicyOverlays], said: PolicyOverlays
) -> tuple[list[Data], tuple[Meant, ...]]:
    """The routes in order, and the clusters that they need; the last one takes what no rule is about."""
    going = Going(of.destination, of.section, subset=of.subset)
    merged = items.route_rules(db, of.http) if of.http else ()
    candidates = routes.ranked([routes.resolved(rule)[0] for rule in merged])
    made: list[Data] = []
    needed: dict[Meant, None] = {}
    for candidate in candidates:
        on_route = on_routes.get(candidate.rule.origin, said)
        made += [_with_overlays(route, on_route) for route in _candidate(db, candidate, going, needed)]
    if not any(routes.normalised([each.match]) == _ANYTHING for each in candidates):
        split, meant = backends.split(db, None, of.destination, going)
        needed |= dict.fromkeys(meant)
        rest = envoy_routes.routes(names.ROUTE_DEFAULT, {}, [], split, lambda _ref: None)
        made += [_with_overlays(route, said) for route in rest]
    return made, tuple(needed)


_ANYTHING = routes.normalised([{}])


def _candidate(db: Db, candidate: Candidate, going: Going, needed: dict[Meant, None]) -> Iterator[Data]:
    origin, conf = candidate.rule.origin, candidate.rule.conf or {}
    setters = candidate.rule.setters
    refs = setters.get("backendRefs")
    split, meant = backends.split(db, conf.get("backendRefs"), refs.source if refs else origin, going)
    filters = setters.get("filters")

    def mirror(ref: Json) -> str | None:
        one = backends.resolved(db, ref, filters.source if filters else origin, going)
        if one is None or one.subset:  # Envoy cannot mirror to some endpoints of a cluster only
            return None
        needed[one] = None
        return encoding.kri(db, one.destination, one.section)

    made = envoy_routes.routes(
        encoding.kri(db, origin, ""), candidate.match, conf.get("filters") or [], split, mirror
    )
    needed |= dict.fromkeys(meant)
    yield from made


def _with_overlays(route: Data, said: PolicyOverlays) -> Data:
    if "route" in route:
        action = lay.laid(route["route"], _REQUEST)
        for over in said.part("route_action"):
            action = lay.laid(action, over)
        route = {**route, "route": action}
    for over in said.part("route"):
        route = lay.laid(route, over)
    return route
