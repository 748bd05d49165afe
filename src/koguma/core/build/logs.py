"""Logs: the access logs of a listener, from the overlays of its port and of the routes to it."""

from collections.abc import Iterator, Mapping

from koguma.core.build import overlay_merge
from koguma.core.build.overlay_merge import Parts
from koguma.core.build.overlays import PolicyOverlays
from koguma.envoy import access_logs
from koguma.envoy.proto_json import Data
from koguma.model.schema import Json

_PART = "access_logs"


def with_logs(parts: Parts, on_routes: Mapping[str, PolicyOverlays] | None = None) -> Parts:
    """The parts of a listener with its access logs; `on_routes` are the overlays of routes, by route name.

    Access logs of a route come with the clusters that they need.
    """
    of_routes = {
        name: overlay_merge.with_overlays({}, policy_overlays.overlays)
        for name, policy_overlays in (on_routes or {}).items()
    }
    clusters = _clusters((parts, *of_routes.values()))
    logs = list(
        _filtered(parts.get(_PART) or {}, {name: on.get(_PART) or {} for name, on in of_routes.items()})
    )
    parts = {**parts, "clusters": clusters} if clusters else parts
    if not logs:
        return parts
    part = "hcm" if "hcm" in parts else "tcp"
    own = parts[part].get("access_log") or ()
    return {**parts, part: {**parts[part], "access_log": [*own, *logs]}}


def _clusters(all_parts: tuple[Parts, ...]) -> Data:
    return {name: data for parts in all_parts for name, data in (parts.get("clusters") or {}).items()}


def _filtered(logs: Mapping[str, Json], by_route: Mapping[str, Mapping[str, Json]]) -> Iterator[Data]:
    """The logs of a port for requests of no other route, and those of routes with logs of their own."""
    other = {name: own for name, own in sorted(by_route.items()) if own != logs}
    for log in logs.values():
        yield access_logs.not_on_routes(log, other) if other else log
    while other:
        own = next(iter(other.values()))
        names = [name for name, theirs in other.items() if theirs == own]
        for log in own.values():
            yield access_logs.on_routes(log, names)
        other = {name: theirs for name, theirs in other.items() if name not in names}
