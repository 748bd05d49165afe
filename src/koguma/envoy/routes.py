"""Routes: what becomes of a request, as Envoy's Route, VirtualHost and RouteConfiguration.

One candidate, a match with its filters, becomes one or more Envoy routes in the order in which they are
tried. Where its requests go is resolved already; a backend that leads nowhere keeps its share, and that
share of requests is answered with 500, so that a wrong name is seen and not hidden by the others.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final

import msgspec

from koguma.envoy import route_filters, route_matches
from koguma.envoy.proto_json import Data
from koguma.envoy.route_filters import Mirror
from koguma.envoy.route_matches import Way
from koguma.model.schema import Json

LB_METADATA: Final = "envoy.lb"

_NONE: Final = Fraction(0)
_NOWHERE: Final[Data] = {
    "status": 500,
    "body": {"inline_string": "the route that took this request has no backend for it\n"},
}


class Backend(msgspec.Struct, frozen=True):
    """A cluster, maybe only some of its endpoints, and its share of the requests."""

    cluster: str
    weight: int
    subset: tuple[tuple[str, str], ...] = ()
    auto_host_rewrite: bool = False  # the endpoint's own host name becomes the request's host


class Split(msgspec.Struct, frozen=True):
    """Where requests go, and the weight of what leads nowhere."""

    backends: tuple[Backend, ...]
    unresolved: int = 0

    @property
    def reached(self) -> tuple[Backend, ...]:
        """The backends that get anything."""
        return tuple(backend for backend in self.backends if backend.weight > 0)

    @property
    def lost(self) -> Fraction:
        """The share of requests that has no backend."""
        if not self.unresolved and self.reached:
            return _NONE
        weight = sum(backend.weight for backend in self.reached)
        return Fraction(self.unresolved, weight + self.unresolved) if weight else Fraction(1)


def routes(name: str, match: Json, filters: Json, split: Split, mirror: Mirror) -> list[Data]:
    """The Envoy routes of one candidate, in the order in which they are tried."""
    mirrors = [] if route_filters.answers(filters) else route_filters.mirrors(filters, mirror)
    common = {"name": name, "stat_prefix": name, **route_filters.headers(filters)}
    return [
        {"match": taken, **common, **outcome}
        for way in route_matches.ways(match)
        for taken, outcome in _outcomes(way, filters, split, mirrors)
    ]


def _outcomes(way: Way, filters: Json, split: Split, mirrors: list[Data]) -> Iterator[tuple[Data, Data]]:
    """What happens to requests of one way: an answer, or a share that is lost and the rest that goes on."""
    if answer := route_filters.answer(filters, way):
        yield way.match, answer
    elif split.lost == 1:
        yield way.match, {"direct_response": _NOWHERE}
    else:
        if split.lost:
            share = route_filters.runtime_fraction(split.lost)
            yield {**way.match, "runtime_fraction": share}, {"direct_response": _NOWHERE}
        yield way.match, {"route": _action(way, filters, split.reached, mirrors)}


def _action(way: Way, filters: Json, backends: tuple[Backend, ...], mirrors: list[Data]) -> Data:
    # No limit is Envoy's word for a policy that says nothing; who sets one lays it over this.
    action: Data = {**_target(backends), "timeout": "0s", **route_filters.rewrites(filters, way)}
    if any(backend.auto_host_rewrite for backend in backends) and "host_rewrite_literal" not in action:
        action["auto_host_rewrite"] = True
    if mirrors:
        action["request_mirror_policies"] = mirrors
    if way.is_connect:
        action["upgrade_configs"] = [{"upgrade_type": route_matches.CONNECT}]
    return action


def _target(backends: tuple[Backend, ...]) -> Data:
    if len(backends) == 1:
        return {"cluster": backends[0].cluster, **_subset(backends[0])}
    weighted = [{"name": each.cluster, "weight": each.weight, **_subset(each)} for each in backends]
    return {"weighted_clusters": {"clusters": weighted}}


def _subset(backend: Backend) -> Data:
    if not backend.subset:
        return {}
    return {"metadata_match": {"filter_metadata": {LB_METADATA: dict(backend.subset)}}}


def virtual_host(name: str, made: Iterable[Data], domains: Iterable[str] = ("*",)) -> Data:
    """Routes for requests to some hosts."""
    return {"name": name, "domains": list(domains), "routes": list(made)}


def route_configuration(name: str, virtual_hosts: Iterable[Data]) -> Data:
    """All routes of a listener."""
    return {"name": name, "virtual_hosts": list(virtual_hosts)}
