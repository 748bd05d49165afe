"""Logs: the loggers of a listener, out of what policies say about its port and about routes to it."""

from collections.abc import Iterator, Mapping

from koguma.core.build import lay
from koguma.core.build.lay import Parts
from koguma.core.build.overlays import PolicyOverlays
from koguma.envoy import access_logs
from koguma.envoy.proto_json import Data
from koguma.model.schema import Json

_PART = "access_logs"


def with_logs(parts: Parts, on_routes: Mapping[str, PolicyOverlays] | None = None) -> Parts:
    """The parts of a listener with its loggers in them; `on_routes` is what is said about routes, by name.

    Loggers of a route come with the clusters that they need.
    """
    of_routes = {name: lay.over_parts({}, said.overlays) for name, said in (on_routes or {}).items()}
    added = _added((parts, *of_routes.values()))
    logs = list(
        _chosen(parts.get(_PART) or {}, {name: on.get(_PART) or {} for name, on in of_routes.items()})
    )
    made = {**parts, "clusters": added} if added else parts
    if not logs:
        return made
    place = "hcm" if "hcm" in made else "tcp"
    own = made[place].get("access_log") or ()
    return {**made, place: {**made[place], "access_log": [*own, *logs]}}


def _added(all_parts: tuple[Parts, ...]) -> Data:
    return {name: data for parts in all_parts for name, data in (parts.get("clusters") or {}).items()}


def _chosen(logs: Mapping[str, Json], by_route: Mapping[str, Mapping[str, Json]]) -> Iterator[Data]:
    other = {name: own for name, own in sorted(by_route.items()) if own != logs}
    for log in logs.values():
        yield access_logs.not_on_routes(log, other) if other else log
    while other:
        own = next(iter(other.values()))
        names = [name for name, theirs in other.items() if theirs == own]
        for log in own.values():
            yield access_logs.on_routes(log, names)
        other = {name: theirs for name, theirs in other.items() if name not in names}
