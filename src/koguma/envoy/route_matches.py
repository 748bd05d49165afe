"""Route matches: the matches of a MeshHTTPRoute rule, as Envoy's RouteMatch.

A path prefix ends at a slash: `/foo` matches `/foo` and `/foo/x`, not `/foobar`. Envoy has
`path_separated_prefix` for that, but a rewrite of it cannot get the slash right for both; so a prefix becomes
two routes, one for the path itself and one for what is below it.
"""

import re
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from koguma.envoy.proto_json import Data
from koguma.model.schema import Json

# What of the path was matched: all of it, a prefix up to a slash, or something that cannot be replaced.
MatchedPart = Literal["whole", "below", "other"]
CONNECT: Final = "CONNECT"
_ANY_NAME: Final = "[^/]+"


class PathMatch(msgspec.Struct, frozen=True):
    """A RouteMatch, and which part of the path it matches."""

    match: Data
    part: MatchedPart = "other"

    @property
    def is_connect(self) -> bool:
        """Whether it matches CONNECT, which has no path and must be enabled as an upgrade."""
        return "connect_matcher" in self.match

    @property
    def is_grpc(self) -> bool:
        """Whether it matches gRPC calls only."""
        return "grpc" in self.match


def path_matches(match: Json) -> tuple[PathMatch, ...]:
    """The RouteMatches that together match the same requests; more specific ones first."""
    conditions = _conditions(match)
    return tuple(PathMatch({**path, **conditions}, part) for path, part in _paths(match))


def _paths(match: Json) -> Iterator[tuple[Data, MatchedPart]]:
    if match.get("grpc") is not None:
        yield _grpc(match["grpc"]), "other"
        return
    path = match.get("path") or {}
    kind, value = path.get("type") or "PathPrefix", path.get("value") or "/"
    if kind == "Exact":
        yield {"path": value}, "whole"
    elif kind == "RegularExpression":
        yield {"safe_regex": {"regex": value}}, "other"
    elif value.strip("/"):
        yield {"path": value.rstrip("/")}, "whole"
        yield {"prefix": value.rstrip("/") + "/"}, "below"
    elif match.get("method") == CONNECT:
        yield {"connect_matcher": {}}, "other"
    else:
        yield {"prefix": "/"}, "below"


def _grpc(call: Json) -> Data:
    """Calls of a gRPC service or method, or of all; a name that is not given stands for any."""
    service, method = call.get("service") or "", call.get("method") or ""
    match call.get("type") or "Exact":
        case "RegularExpression":
            path: Data = {"safe_regex": {"regex": f"/{_group(service)}/{_group(method)}"}}
        case _ if service and method:
            path = {"path": f"/{service}/{method}"}
        case _ if method:
            path = {"safe_regex": {"regex": f"/{_ANY_NAME}/{re.escape(method)}"}}
        case _:
            path = {"prefix": f"/{service}/" if service else "/"}
    return {**path, "grpc": {}}


def _group(regex: str) -> str:
    return f"(?:{regex})" if regex else _ANY_NAME


def _conditions(match: Json) -> Data:
    headers = [header(each) for each in match.get("headers") or ()]
    if method := match.get("method"):
        headers.append({"name": ":method", "string_match": {"exact": method}})
    params = [_query_param(each) for each in match.get("queryParams") or ()]
    conditions: Data = {}
    if headers:
        conditions["headers"] = headers
    if params:
        conditions["query_parameters"] = params
    return conditions


def header(condition: Json) -> Data:
    """A condition on one header, as Envoy's HeaderMatcher."""
    name, value = condition["name"], condition.get("value") or ""
    match condition.get("type") or "Exact":
        case "Absent":
            return {"name": name, "present_match": False}
        case "Present":
            return {"name": name, "present_match": True}
        case "Prefix" if not value:
            return {"name": name, "present_match": True}  # Envoy refuses an empty prefix
        case "Prefix":
            return {"name": name, "string_match": {"prefix": value}}
        case "RegularExpression":
            return {"name": name, "string_match": {"safe_regex": {"regex": value}}}
        case _:
            return {"name": name, "string_match": {"exact": value}}


def _query_param(condition: Json) -> Data:
    value = condition.get("value") or ""
    if condition.get("type") == "RegularExpression":
        return {"name": condition["name"], "string_match": {"safe_regex": {"regex": value}}}
    return {"name": condition["name"], "string_match": {"exact": value}}
