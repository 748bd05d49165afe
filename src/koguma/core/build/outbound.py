"""Outbound: what a proxy does with calls to one port of a destination: a listener, routes, and clusters.

Routes come apart from their listener, so that a changed rule touches no connection. A port that speaks HTTP
gets the rules of MeshHTTPRoutes, or, where only a MeshTCPRoute is about it, that one; any other port gets
MeshTCPRoutes.
"""

from collections.abc import Iterable, Iterator

import msgspec

from koguma.core import items, routes, rules, world
from koguma.core.build import backends, clusters, encoding, lay, overlays, shape
from koguma.core.build.backends import Going, Meant
from koguma.core.build.clusters import Caller, ClusterOf
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.routes import Candidate
from koguma.core.rules import Class, PortRules, Route
from koguma.core.world import Port
from koguma.envoy import names, snapshot
from koguma.envoy import routes as envoy_routes
from koguma.envoy.snapshot import Bundle, Failure, Piece
from koguma.envoy.words import Data
from koguma.model.overlay import Where
from koguma.model.resource import Key
from koguma.model.schema import Json

Addresses = tuple[tuple[str, int], ...]

_IDLE = "3600s"
_REQUEST = {"timeout": "15s"}


class Listened(msgspec.Struct, frozen=True):
    """A destination's port, and the local addresses on which it is called."""

    destination: Key
    section: str
    addresses: Addresses


class PortOf(msgspec.Struct, frozen=True):
    """A destination's port as some proxies call it."""

    rules: PortRules
    caller: Caller


class Traffic(msgspec.Struct, frozen=True):
    """What becomes of calls to a port: the parts of its listener, its routes, the clusters that it needs."""

    parts: lay.Parts
    pieces: tuple[Piece | Failure, ...]
    clusters: tuple[Meant, ...]


@question
def everything(db: Db, of: Class, listened: Group[Listened], caller: Caller, binds: bool) -> Bundle:  # noqa: FBT001
    """All that proxies of a class get in order to call others; equal proxies share it."""
    found: dict[snapshot.Id, Piece] = {}
    failures: list[Failure] = []
    wanted: dict[tuple[Key, str], set[tuple[str, ...]]] = {}
    for one in listened:
        port = PortOf(rules.port_rules(db, of, one.destination, one.section), caller)
        for meant in traffic(db, port).clusters:
            subsets = wanted.setdefault((meant.destination, meant.section), set())
            if meant.subset:
                subsets.add(tuple(name for name, _ in meant.subset))
        _join(found, failures, listener(db, port, one.addresses, binds))
    for (destination, section), subsets in sorted(wanted.items()):
        entries = rules.port_rules(db, of, destination, section).entries
        one_cluster = ClusterOf(destination, section, entries, caller, tuple(sorted(subsets)))
        _join(found, failures, clusters.cluster(db, one_cluster))
    return Bundle(found, tuple(failures))


def _join(found: dict[snapshot.Id, Piece], failures: list[Failure], more: Bundle) -> None:
    found.update(more.pieces)
    failures.extend(more.failures)


@question
def listener(db: Db, of: PortOf, addresses: Addresses, binds: bool) -> Bundle:  # noqa: FBT001 - a question has no names
    """The listener of a port on local addresses, with its routes."""
    what = traffic(db, of)
    name = encoding.kri(db, of.rules.destination, of.rules.section)
    if not what.parts or not name:
        return encoding.bundled(())
    data = shape.listener(name, addresses, "OUTBOUND", {"kuma.io/unified-name": name}, binds=binds)
    data["filter_chains"] = [{"filters": shape.chain(what.parts)}]
    needs = _needs(db, what.clusters) if "tcp" in what.parts else ((snapshot.ROUTES, name),)
    made = encoding.encoded(db, snapshot.LISTENER, name, data, needs, str(of.rules.destination))
    return encoding.bundled((*what.pieces, made))


def _needs(db: Db, meant: Iterable[Meant]) -> tuple[snapshot.Id, ...]:
    named = {encoding.kri(db, one.destination, one.section) for one in meant}
    return tuple((snapshot.CLUSTER, name) for name in sorted(named))


@question
def traffic(db: Db, of: PortOf) -> Traffic:
    """What becomes of calls to a port."""
    target = world.destination(db, of.rules.destination)
    port = target.port(of.rules.section) if target else None
    name = encoding.kri(db, of.rules.destination, of.rules.section)
    if port is None or not name:
        return Traffic({}, (), ())
    speaks_http = port.protocol in world.HTTP_PROTOCOLS
    if speaks_http and (of.rules.http or not of.rules.tcp):
        return _http(db, of, name, port)
    return _tcp(db, of, name, port)


def _tcp(db: Db, of: PortOf, name: str, port: Port) -> Traffic:
    where = Where("tcp", of.caller.mesh, of.caller.zone, name)
    conf = items.conf(db, of.rules.tcp) if of.rules.tcp else {}
    origin = of.rules.tcp[-1].policy if of.rules.tcp else of.rules.destination
    going = Going(of.rules.destination, port.section, is_http=False)
    split, needed = backends.split(db, conf.get("backendRefs"), origin, going)
    route = next((entries for found, entries in of.rules.routes if found.key == origin), of.rules.entries)
    said = overlays.outbound(db, route, where)
    skeleton = {"tcp": shape.tcp_proxy(name, _tcp_target(split), _IDLE)}
    parts = lay.over_parts(skeleton, said.overlays)
    return Traffic(parts, said.failures, needed)


def _tcp_target(split: envoy_routes.Split) -> Data:
    match split.backends:
        case ():
            return {"cluster": shape.NOWHERE}
        case (only,):
            return {"cluster": only.cluster, **_tcp_subset(only)}
    weighted = [{"name": each.cluster, "weight": each.weight, **_tcp_subset(each)} for each in split.backends]
    return {"weighted_clusters": {"clusters": weighted}}


def _tcp_subset(backend: envoy_routes.Backend) -> Data:
    if not backend.subset:
        return {}
    return {"metadata_match": {"filter_metadata": {"envoy.lb": dict(backend.subset)}}}


def _http(db: Db, of: PortOf, name: str, port: Port) -> Traffic:
    where = Where(port.protocol, of.caller.mesh, of.caller.zone, name)
    said = overlays.outbound(db, of.rules.entries, where)
    skeleton = {"hcm": shape.hcm(name), "http_filters": shape.http_filters(port.protocol)}
    parts = lay.over_parts(skeleton, said.overlays)
    made, needed = _routes(db, of, where, said)
    config = envoy_routes.route_configuration(name, [envoy_routes.virtual_host(name, made)])
    piece = encoding.encoded(db, snapshot.ROUTES, name, config, _needs(db, needed), str(of.rules.destination))
    return Traffic(parts, (piece, *said.failures), needed)


def _routes(db: Db, of: PortOf, where: Where, said: overlays.Laid) -> tuple[list[Data], tuple[Meant, ...]]:
    """The routes in order, and the clusters that they need; the last one takes what no rule is about."""
    going = Going(of.rules.destination, of.rules.section)
    merged = items.route_rules(db, of.rules.http) if of.rules.http else ()
    candidates = routes.ranked([routes.resolved(rule)[0] for rule in merged])
    made: list[Data] = []
    needed: dict[Meant, None] = {}
    for candidate in candidates:
        on_route = _on_route(db, of.rules, candidate.rule.origin, where) or said
        made += [_with_overlays(route, on_route) for route in _candidate(db, candidate, going, needed)]
    if not any(routes.normalised([each.match]) == _ANYTHING for each in candidates):
        split, meant = backends.split(db, None, of.rules.destination, going)
        needed |= dict.fromkeys(meant)
        rest = envoy_routes.routes(names.ROUTE_DEFAULT, {}, [], split, lambda _ref: None)
        made += [_with_overlays(route, said) for route in rest]
    return made, tuple(needed)


_ANYTHING = routes.normalised([{}])


def _on_route(db: Db, of: PortRules, origin: Key, where: Where) -> overlays.Laid | None:
    for route, entries in of.routes:
        if route == Route(origin.kind, origin):
            return overlays.outbound(db, entries, where)
    return None


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


def _with_overlays(route: Data, said: overlays.Laid) -> Data:
    if "route" in route:
        action = lay.laid(route["route"], _REQUEST)
        for over in said.part("route_action"):
            action = lay.laid(action, over)
        route = {**route, "route": action}
    for over in said.part("route"):
        route = lay.laid(route, over)
    return route
