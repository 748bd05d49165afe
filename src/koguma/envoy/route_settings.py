"""Route settings: what a route's own rule says about timeouts, retries, CORS and sessions.

It is laid over a finished Route last, after all policies: what stands in a rule wins over what a MeshTimeout
or MeshRetry says about it. CORS and sessions are done by HTTP filters, which do nothing where no route says
so.
"""

from collections.abc import Iterable
from typing import Final

from koguma.envoy import cors, filters, route_timeouts, session_persistence
from koguma.envoy.proto_json import Data
from koguma.model.schema import Json

FILTERS: Final[Data] = {
    filters.CORS: cors.CONFIG,
    filters.STATEFUL_SESSION: session_persistence.CONFIG,
}


def applied(route: Data, conf: Json) -> Data:
    """A Route with what its rule says itself."""
    if "route" in route:
        route = {**route, "route": route_timeouts.applied(route["route"], conf)}
    on_route: Data = dict(route.get("typed_per_filter_config") or {})
    origins, session = cors.of(conf.get("filters")), conf.get("sessionPersistence")
    if origins is not None:
        on_route[filters.CORS] = cors.policy(origins)
    if session is not None and "route" in route:
        on_route[filters.STATEFUL_SESSION] = session_persistence.policy(session)
    return {**route, "typed_per_filter_config": on_route} if on_route else route


def required_filters(routes: Iterable[Data]) -> Data:
    """The HTTP filters, with their configuration, that a listener needs for the settings of these routes."""
    named = {name for route in routes for name in route.get("typed_per_filter_config") or ()}
    return {name: config for name, config in FILTERS.items() if name in named}
