"""Forwarding: what a route does with a request that it takes: answer it, or change and send it on."""

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

import msgspec

from koguma.envoy.simulation import routing, text_matching
from koguma.envoy.simulation.traffic import SimulatedRequest, Undecidable
from koguma.model.schema import Json

_REDIRECTS: Final = {
    "MOVED_PERMANENTLY": 301,
    "FOUND": 302,
    "SEE_OTHER": 303,
    "TEMPORARY_REDIRECT": 307,
    "PERMANENT_REDIRECT": 308,
}
_HOST_PORT: Final = re.compile(r":[^:\]]*$")  # an address of IPv6 stands in brackets
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
DEFAULT_TIMEOUT: Final = "15s"  # Envoy's own, where a route says nothing
_DEFAULT_RETRIES: Final = 1


class RouteEffects(msgspec.Struct, frozen=True):
    """What a route sets for a request that it sends on; durations as Envoy has them, `0s` is no limit."""

    timeout: str = DEFAULT_TIMEOUT
    idle_timeout: str = ""
    retries: int = 0
    retry_on: str = ""
    per_try_timeout: str = ""
    mirrors: tuple[tuple[str, Fraction], ...] = ()  # clusters that get a copy, each with its share
    is_host_of_endpoint: bool = False  # whether the endpoint's host name becomes the request's host


class WeightedTarget(msgspec.Struct, frozen=True):
    """A cluster that gets a share of the requests of a route."""

    share: Fraction
    cluster: str
    subset: tuple[tuple[str, str], ...] = ()
    config: Json = None  # the weighted cluster, which may change headers and configure filters


def targets(action: Json, request: SimulatedRequest) -> list[WeightedTarget]:
    """The clusters of a RouteAction, with shares that add up to one."""
    common = _subset(action)
    if "cluster" in action:
        return [WeightedTarget(Fraction(1), action["cluster"], common)]
    if "cluster_header" in action:
        name = request.header(str(action["cluster_header"]).lower())
        return [WeightedTarget(Fraction(1), name or "", common)]
    if "weighted_clusters" not in action:
        raise Undecidable(f"a route with {', '.join(sorted(action))} is not known")
    clusters = action["weighted_clusters"]["clusters"]
    total = sum(each.get("weight", 0) for each in clusters)
    return [
        WeightedTarget(
            Fraction(each["weight"], total), each["name"], tuple(sorted({*common, *_subset(each)})), each
        )
        for each in clusters
        if each.get("weight")
    ]


def _subset(action: Json) -> tuple[tuple[str, str], ...]:
    metadata = (action.get("metadata_match") or {}).get("filter_metadata") or {}
    return tuple(sorted((metadata.get("envoy.lb") or {}).items()))


def effects(action: Json) -> RouteEffects:
    """What a route sets."""
    retry = action.get("retry_policy")
    mirrors = action.get("request_mirror_policies") or ()
    return RouteEffects(
        timeout=action.get("timeout", DEFAULT_TIMEOUT),
        idle_timeout=action.get("idle_timeout", ""),
        retries=(retry.get("num_retries", _DEFAULT_RETRIES) if retry and retry.get("retry_on") else 0),
        retry_on=(retry or {}).get("retry_on", ""),
        per_try_timeout=(retry or {}).get("per_try_timeout", ""),
        mirrors=tuple(
            (each["cluster"], routing.fraction((each.get("runtime_fraction") or {}).get("default_value")))
            for each in mirrors
        ),
        is_host_of_endpoint=bool(action.get("auto_host_rewrite")),
    )


def response_headers(levels: Sequence[Json]) -> Iterator[tuple[str, str]]:
    """The headers that routes change in a response: with a value, or `-name` where one is removed."""
    for level in levels:
        yield from ((f"-{name}", "") for name in level.get("response_headers_to_remove") or ())
        for each in level.get("response_headers_to_add") or ():
            if not _is_kept(each):
                continue
            yield each["header"]["key"].lower(), each["header"].get("value", "").replace("%%", "%")


def header_changes(mutation: Json) -> Iterator[tuple[str, str]]:
    """The same for one mutation of a header."""
    if "remove" in mutation:
        yield f"-{mutation['remove'].lower()}", ""
    if "append" in mutation:
        yield from response_headers([{"response_headers_to_add": [mutation["append"]]}])


def mutated(request: SimulatedRequest, mutations: Sequence[Json]) -> SimulatedRequest:
    """The request with changed headers."""
    for each in mutations:
        if "remove" in each:
            request = request.without(each["remove"].lower())
        if "append" in each:
            request = _with_header(request, each["append"])
    return request


def sent(action: Json, route: Json, levels: Sequence[Json], request: SimulatedRequest) -> SimulatedRequest:
    """The request as it goes on to the cluster."""
    for level in levels:
        request = request.without(*(name.lower() for name in level.get("request_headers_to_remove") or ()))
        for each in level.get("request_headers_to_add") or ():
            request = _with_header(request, each)
    return msgspec.structs.replace(
        request, path=rewritten(action, route["match"], request), host=_host(action, request)
    )


def _is_kept(change: Json) -> bool:
    """Whether a header is set at all: Envoy leaves out what has no value."""
    return bool(change["header"].get("value") or change.get("keep_empty_value"))


def _with_header(request: SimulatedRequest, change: Json) -> SimulatedRequest:
    if not _is_kept(change):
        return request
    name, value = change["header"]["key"].lower(), change["header"].get("value", "")
    if "%" in value.replace("%%", ""):
        value = f"«{value}»"  # a format string, which Envoy fills in
    value = value.replace("%%", "%")
    match change.get("append_action", "APPEND_IF_EXISTS_OR_ADD"):
        case "OVERWRITE_IF_EXISTS_OR_ADD":
            return request.without(name).with_header(name, value)
        case "ADD_IF_ABSENT" if request.header(name) is not None:
            return request
        case "OVERWRITE_IF_EXISTS" if request.header(name) is None:
            return request
        case "OVERWRITE_IF_EXISTS":
            return request.without(name).with_header(name, value)
    return request.with_header(name, value)


def _host(action: Json, request: SimulatedRequest) -> str:
    return str(action.get("host_rewrite_literal") or request.host)


def rewritten(action: Json, match: Json, request: SimulatedRequest) -> str:
    """The path with which a request goes on, or to which it is redirected."""
    path, separator, query = request.path.partition("?")
    if "regex_rewrite" in action:
        rewrite = action["regex_rewrite"]
        pattern, substitution = rewrite["pattern"]["regex"], rewrite.get("substitution", "")
        # RE2's global replacement finds an empty match at the end of a text that `.*` took; Envoy does not.
        if pattern == ".*":
            path = substitution.replace("\\\\", "\\")
        else:
            path = text_matching.replaced(pattern, substitution, path)
    elif "prefix_rewrite" in action:
        length = len(match.get("prefix") or match.get("path") or match.get("path_separated_prefix") or path)
        path = action["prefix_rewrite"] + path[length:]
    return path + separator + query


def redirect(route: Json, request: SimulatedRequest) -> tuple[int, str]:
    """The status and the location of a redirect."""
    action = route["redirect"]
    asked = str(request.header(":scheme"))
    scheme = action.get("scheme_redirect") or ("https" if action.get("https_redirect") else asked)
    found = _HOST_PORT.search(request.host)
    host, port = (request.host[: found.start()], found[0]) if found else (request.host, "")
    if action.get("host_redirect"):
        host, port = action["host_redirect"], ""
    if action.get("port_redirect"):
        port = f":{action['port_redirect']}"
    elif scheme != asked and port == _DEFAULT_PORTS.get(asked):
        port = ""
    path, separator, query = request.path.partition("?")
    if "path_redirect" in action:
        replaced = action["path_redirect"]
        path, separator, query = (replaced, "", "") if "?" in replaced else (replaced, separator, query)
    elif "prefix_rewrite" in action:
        path, separator, query = rewritten(action, route["match"], request).partition("?")
    if action.get("strip_query"):
        separator, query = "", ""
    status = _REDIRECTS[action.get("response_code", "MOVED_PERMANENTLY")]
    return status, f"{scheme}://{host}{port}{path}{separator}{query}"
