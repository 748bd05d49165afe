"""Routes: Envoy's Route, VirtualHost and RouteConfiguration, from matches, filters and backends.

A match with its filters becomes one or more Envoy routes, in order. Backends are resolved already; a
reference that resolves to nothing keeps its weight, and that share of requests is answered with 500, so that
a wrong name is noticed. To gRPC calls that is 503, which Envoy turns into the status UNAVAILABLE. A filter
that is not known here is never skipped: its requests get the same answer.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final

import msgspec

from koguma.envoy import cors, route_filters, route_matches
from koguma.envoy.proto_json import Data
from koguma.envoy.route_filters import Mirror
from koguma.envoy.route_matches import PathMatch
from koguma.model.schema import Json

LB_METADATA: Final = "envoy.lb"

_NONE: Final = Fraction(0)
_NO_BACKEND: Final = "the route that took this request has no backend for it\n"
_UNKNOWN_FILTER: Final = "the route that took this request has a filter that this proxy does not know\n"


class Backend(msgspec.Struct, frozen=True):
    """A weighted cluster; with a subset, only some of its endpoints."""

    cluster: str
    weight: int
    subset: tuple[tuple[str, str], ...] = ()
    auto_host_rewrite: bool = False  # the endpoint's own host name becomes the request's host
    filters: Json = ()  # changes of headers for its share of the requests


class BackendSplit(msgspec.Struct, frozen=True):
    """The backends of a route, and the weight of references that resolve to nothing."""

    backends: tuple[Backend, ...]
    unresolved: int = 0

    @property
    def used(self) -> tuple[Backend, ...]:
        """The backends with a positive weight."""
        return tuple(backend for backend in self.backends if backend.weight > 0)

    @property
    def unresolved_share(self) -> Fraction:
        """The share of requests that have no backend."""
        if not self.unresolved and self.used:
            return _NONE
        weight = sum(backend.weight for backend in self.used)
        return Fraction(self.unresolved, weight + self.unresolved) if weight else Fraction(1)


def routes(name: str, match: Json, filters: Json, split: BackendSplit, mirror: Mirror) -> list[Data]:
    """The Envoy routes of one match with its filters, in order."""
    mirrors = [] if route_filters.has_local_reply(filters) else route_filters.mirrors(filters, mirror)
    common = {"name": name, "stat_prefix": name}
    built = [
        {"match": route_match, **common, **outcome}
        for path_match in route_matches.path_matches(match)
        for route_match, outcome in _outcomes(path_match, filters, split, mirrors)
    ]
    preflight = cors.preflight(match) if cors.of(filters) is not None else None
    if preflight is None:
        return built
    # The cors filter answers these. It acts on routes to clusters only, so they have one that is not called.
    return built + [
        {"match": path_match.match, **common, **outcome}
        for path_match in route_matches.path_matches(preflight)
        for _, outcome in _outcomes(path_match, filters, split, [])
        if "route" in outcome
    ]


def _outcomes(
    path_match: PathMatch, filters: Json, split: BackendSplit, mirrors: list[Data]
) -> Iterator[tuple[Data, Data]]:
    """The routes of one match: a local reply, or an error for the lost share and a route for the rest."""
    headers = route_filters.headers(filters)
    if not route_filters.are_known(filters):
        yield path_match.match, {**headers, "direct_response": _failure(path_match, _UNKNOWN_FILTER)}
    elif local_reply := route_filters.local_reply(filters, path_match):
        yield path_match.match, {**headers, **local_reply}
    elif split.unresolved_share == 1:
        yield path_match.match, {**headers, "direct_response": _failure(path_match, _NO_BACKEND)}
    else:
        if split.unresolved_share:
            share = route_filters.runtime_fraction(split.unresolved_share)
            answer = _failure(path_match, _NO_BACKEND)
            yield {**path_match.match, "runtime_fraction": share}, {**headers, "direct_response": answer}
        of_route = {} if _have_filters(split.used) else headers
        yield path_match.match, {**of_route, "route": _action(path_match, filters, split.used, mirrors)}


def _failure(path_match: PathMatch, text: str) -> Data:
    return {"status": 503 if path_match.is_grpc else 500, "body": {"inline_string": text}}


def _have_filters(backends: Iterable[Backend]) -> bool:
    return any(backend.filters for backend in backends)


def _action(path_match: PathMatch, filters: Json, backends: tuple[Backend, ...], mirrors: list[Data]) -> Data:
    # Without a timeout, unless a policy sets one: Envoy's own default is 15 s.
    action: Data = {
        **_target(backends, filters),
        "timeout": "0s",
        **route_filters.rewrites(filters, path_match),
    }
    if any(backend.auto_host_rewrite for backend in backends) and "host_rewrite_literal" not in action:
        action["auto_host_rewrite"] = True
    if mirrors:
        action["request_mirror_policies"] = mirrors
    if path_match.is_connect:
        action["upgrade_configs"] = [{"upgrade_type": route_matches.CONNECT}]
    return action


def _target(backends: tuple[Backend, ...], filters: Json) -> Data:
    if not _have_filters(backends):
        if len(backends) == 1:
            return {"cluster": backends[0].cluster, **_subset(backends[0])}
        filters = ()  # they are the whole route's
    # Where Envoy changes headers both for a route and for one of its clusters, the route has the last word. A
    # backend's filters come after the rule's, so both are joined here and nothing is left for the route.
    weighted = [
        {
            "name": each.cluster,
            "weight": each.weight,
            **_subset(each),
            **route_filters.headers([*filters, *each.filters]),
        }
        for each in backends
    ]
    return {"weighted_clusters": {"clusters": weighted}}


def _subset(backend: Backend) -> Data:
    if not backend.subset:
        return {}
    return {"metadata_match": {"filter_metadata": {LB_METADATA: dict(backend.subset)}}}


def virtual_host(name: str, routes: Iterable[Data], domains: Iterable[str] = ("*",)) -> Data:
    """A VirtualHost with these routes."""
    return {"name": name, "domains": list(domains), "routes": list(routes)}


def route_configuration(name: str, virtual_hosts: Iterable[Data]) -> Data:
    """A RouteConfiguration with these virtual hosts."""
    return {"name": name, "virtual_hosts": list(virtual_hosts)}
