"""External chains: calls to the domains and addresses of MeshExternalServices, as matches of filter chains.

They are handled as calls to a virtual address of the service would be: by the same routes, clusters and
policies.
"""

from collections.abc import Iterable, Iterator

from koguma.core import external_matches, items, world
from koguma.core.build import backends, external, logs, outbound_listeners, outbound_routes, overlay_merge
from koguma.core.build.backends import OriginalDestination
from koguma.core.build.outbound_listeners import ListenerSpec, PortHandling
from koguma.core.build.redirected_chains import ChainMatch, ChainTarget
from koguma.core.incremental import Db
from koguma.envoy import names
from koguma.envoy import routes as envoy_routes
from koguma.envoy.proto_json import Data


def chain_matches(db: Db, specs: Iterable[ListenerSpec]) -> Iterator[ChainMatch]:
    """The matches of all these ports."""
    for spec in specs:
        port = world.port(db, spec.destination, spec.section)
        handling = outbound_listeners.handling(db, spec)
        if port is None or handling is None:
            continue
        target = _target(db, spec, handling)
        for match in external_matches.on_port(db, spec.destination, spec.section):
            # A MeshTCPRoute on a port that speaks HTTP acts on connections, as it does at a virtual address;
            # but only requests say which domain they are for.
            protocol = port.protocol if match.domain or port.protocol == "tls" else spec.protocol
            yield ChainMatch(target, protocol, match.port, match.domain, match.addresses)


def _target(db: Db, spec: ListenerSpec, handling: PortHandling) -> ChainTarget:
    needs = outbound_listeners.cluster_ids(db, handling.backends)
    if spec.protocol == "tcp":
        requests = _connection_routes(db, spec, handling.parts["tcp"]["idle_timeout"])
        return ChainTarget(handling.name, handling.parts, requests, needs, is_service=True)
    route_overlays = outbound_listeners.overlays_by_route_name(db, spec)
    http = logs.with_logs(overlay_merge.with_overlays({"hcm": {}}, spec.overlays.overlays), route_overlays)
    own, routes = handling.name, handling.routes
    if not external.has_domains(db, spec.destination):
        # The program has named an existing host. Only at a virtual address, the name of which is made up, the
        # address of the endpoint is better than that.
        routes = tuple(
            outbound_routes.with_own_host(route) if _cluster(route) == own else route for route in routes
        )
    return ChainTarget(own, {}, routes, needs, http, is_service=True)


def _cluster(route: Data) -> str:
    return str((route.get("route") or {}).get("cluster") or "")


def _connection_routes(db: Db, spec: ListenerSpec, idle_timeout: str) -> list[Data]:
    """Requests go where connections would go, and may be as quiet."""
    conf = items.conf(db, spec.tcp_entries) if spec.tcp_entries else {}
    origin = spec.tcp_entries[-1].policy if spec.tcp_entries else spec.destination
    original = OriginalDestination(spec.destination, spec.section, is_http=False, subset=spec.subset)
    split, _ = backends.split(db, conf.get("backendRefs"), origin, original)
    routes = envoy_routes.routes(names.ROUTE_DEFAULT, {}, [], split, lambda _ref: None)
    return [_quiet(outbound_routes.with_own_host(route), idle_timeout) for route in routes]


def _quiet(route: Data, idle_timeout: str) -> Data:
    if "route" not in route:  # no backend resolves: an answer of the proxy's own
        return route
    return {**route, "route": {**route["route"], "idle_timeout": idle_timeout}}
