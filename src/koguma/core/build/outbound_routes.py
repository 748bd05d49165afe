"""Outbound routes: the routes of an HTTP listener, from the merged rules of MeshHTTPRoutes."""

from collections.abc import Iterable, Iterator, Mapping

from koguma.core import items
from koguma.core import routes as route_rules
from koguma.core.build import backends, encoding, external, overlay_merge, zone_egress
from koguma.core.build.backends import BackendPort, OriginalDestination
from koguma.core.build.overlays import PolicyOverlays
from koguma.core.incremental import Db
from koguma.core.items import Entries
from koguma.core.routes import Candidate
from koguma.envoy import names, route_settings, route_timeouts
from koguma.envoy import routes as envoy_routes
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import POLICY, Failure
from koguma.model import target_ref
from koguma.model.overlay import NO_DATA
from koguma.model.resource import Key
from koguma.model.schema import Json

_DEFAULT_ACTION = {"timeout": "15s"}
_NO_CONF: Mapping[str, Json] = {}
_CATCH_ALL = route_rules.normalised([{}])
_MACHINE_DATA = frozenset({"filename", "environment_variable"})


def routes(
    db: Db,
    original: OriginalDestination,
    entries: Entries,
    overlays: PolicyOverlays,
    route_overlays: Mapping[Key, PolicyOverlays],
) -> tuple[list[Data], tuple[BackendPort, ...]]:
    """The routes in the order of precedence, and the backends that they need.

    The last route sends what no rule matches to its original destination, unless one of the entries wants
    that to be answered with 404, as routes of the Gateway API do.
    """
    merged = items.route_rules(db, entries) if entries else ()
    candidates = route_rules.ranked([route_rules.resolved(rule)[0] for rule in merged])
    built: list[Data] = []
    needed: dict[BackendPort, None] = {}
    for candidate in candidates:
        policy_overlays = route_overlays.get(candidate.rule.origin, overlays)
        routes_of_rule = of_candidate(db, candidate, original, needed)
        conf = candidate.rule.conf or {}
        built += [with_overlays(route, policy_overlays, conf) for route in routes_of_rule]
    is_all_matched = any(route_rules.normalised([each.match]) == _CATCH_ALL for each in candidates)
    if not is_all_matched and not any(items.item(db, each).conf.get("unmatched") for each in entries):
        split, backend_ports = backends.split(db, None, original.destination, original)
        needed |= dict.fromkeys(backend_ports)
        default = envoy_routes.routes(names.ROUTE_DEFAULT, {}, [], split, lambda _ref: None)
        default = _to_outside(db, default, backend_ports)
        built += [with_overlays(route, overlays) for route in default]
    return built, tuple(needed)


def of_candidate(
    db: Db, candidate: Candidate, original: OriginalDestination, needed: dict[BackendPort, None]
) -> list[Data]:
    """The routes of one rule; adds the backends that they need to `needed`."""
    origin, conf = candidate.rule.origin, candidate.rule.conf or {}
    setters = candidate.rule.setters
    refs = setters.get("backendRefs")
    split, backend_ports = backends.split(
        db, conf.get("backendRefs"), refs.source if refs else origin, original
    )
    filters = setters.get("filters")

    def mirror(ref: Json) -> str | None:
        port = backends.resolved(db, ref, filters.source if filters else origin, original)
        if port is None or port.subset:  # Envoy cannot mirror to a subset of a cluster
            return None
        needed[port] = None
        return encoding.kri(db, port.destination, port.section)

    built = envoy_routes.routes(
        encoding.kri(db, origin, ""), candidate.match, conf.get("filters") or [], split, mirror
    )
    needed |= dict.fromkeys(backend_ports)
    return _to_outside(db, built, backend_ports)


def _to_outside(db: Db, routes: list[Data], ports: Iterable[BackendPort]) -> list[Data]:
    """Routes with what they need because some of their backends are external services."""
    outside = [port for port in ports if port.destination.kind == "MeshExternalService"]
    limit = max((external.body_bytes_max(db, port.destination, port.section) for port in outside), default=0)
    if limit:  # as much of a request's body is held as plugins of external services need
        routes = [
            {**each, "request_body_buffer_limit": limit} if "route" in each else each for each in routes
        ]
    if any(zone_egress.carries(db, port.destination) for port in outside):
        routes = [_to_egress(each) if "route" in each else each for each in routes]
    return routes


def _to_egress(route: Data) -> Data:
    """A route that tells a zone egress whether it set the request's host; nobody else may say so."""
    if "host_rewrite_literal" not in route["route"]:
        removed = [*(route.get("request_headers_to_remove") or ()), names.EGRESS_HOST]
        return {**route, "request_headers_to_remove": removed}
    return _with_host_kept(route)


def _with_host_kept(route: Data) -> Data:
    header = {"key": names.EGRESS_HOST, "value": names.EGRESS_HOST_KEPT}
    added = {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    return {**route, "request_headers_to_add": [*(route.get("request_headers_to_add") or ()), added]}


def with_own_host(route: Data) -> Data:
    """A route that leaves the host of requests as it is, also where a zone egress carries them."""
    if "route" not in route:
        return route
    action = {name: value for name, value in route["route"].items() if name != "auto_host_rewrite"}
    route = {**route, "route": action}
    removed = route.get("request_headers_to_remove") or ()
    if names.EGRESS_HOST not in removed:
        return route
    kept = [name for name in removed if name != names.EGRESS_HOST]
    rest = {name: value for name, value in route.items() if name != "request_headers_to_remove"}
    return _with_host_kept({**rest, "request_headers_to_remove": kept} if kept else rest)


def with_overlays(
    route: Data,
    policy_overlays: PolicyOverlays,
    conf: Json = _NO_CONF,
    default_action: Data = _DEFAULT_ACTION,
) -> Data:
    """A route with what policies say about it, and last with what its own rule says."""
    if "route" in route:
        default = {} if route_timeouts.has_try_limit(conf) else default_action
        action = overlay_merge.merged(route["route"], default)
        for overlay in policy_overlays.part("route_action"):
            action = overlay_merge.merged(action, overlay)
        route = {**route, "route": action}
    for overlay in policy_overlays.part("route"):
        route = overlay_merge.merged(route, overlay)
    return route_settings.applied(route, conf)


def without_machine_data(routes: Iterable[Data]) -> tuple[list[Data], tuple[Failure, ...]]:
    """Routes without direct responses that read the proxy's machine, and a failure for each of these."""
    every = list(routes)
    failures = tuple(dict.fromkeys(_machine_failures(every)))
    return [_without_body(route) if _reads_machine(route) else route for route in every], failures


def _reads_machine(route: Data) -> bool:
    """Whether a direct response is a file or an environment variable of the proxy's machine."""
    body = (route.get("direct_response") or {}).get("body") or {}
    return not _MACHINE_DATA.isdisjoint(body)


def _machine_failures(routes: Iterable[Data]) -> Iterator[Failure]:
    for route in routes:
        if _reads_machine(route):
            yield Failure(
                POLICY, target_ref.HTTP_ROUTE, f"directResponse.body {NO_DATA}", str(route.get("name"))
            )


def _without_body(route: Data) -> Data:
    response = {name: value for name, value in route["direct_response"].items() if name != "body"}
    return {**route, "direct_response": response}
