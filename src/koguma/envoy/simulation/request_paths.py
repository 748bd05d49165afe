"""Request paths: what a connection manager makes of a request's path and host before it looks for a route."""

import re
from typing import Final

import msgspec

from koguma.envoy.simulation.traffic import SimulatedRequest
from koguma.model.schema import Json

_ENCODED_DOT: Final = re.compile("%2e", re.IGNORECASE)
_ENCODED_SLASH: Final = re.compile("%2f|%5c", re.IGNORECASE)
_PORT: Final = re.compile(r":\d+$")
_REDIRECT: Final = 307


class PathProblem(msgspec.Struct, frozen=True):
    """Why a connection manager answers a request itself."""

    status: int
    text: str
    location: str = ""


def normalized(hcm: Json, request: SimulatedRequest) -> SimulatedRequest | PathProblem:
    """The request as routes and filters see it, or the answer that it gets at once."""
    options = hcm.get("common_http_protocol_options") or {}
    if options.get("headers_with_underscores_action") == "REJECT_REQUEST":
        bad = next((name for name, _ in request.headers if "_" in name), None)
        if bad is not None:
            return PathProblem(400, f'the name of header "{bad}" has an underscore')
    path, separator, query = request.path.partition("?")
    host = _host(hcm, request.host)
    action = hcm.get("path_with_escaped_slashes_action")
    if action == "REJECT_REQUEST" and _ENCODED_SLASH.search(path):
        return PathProblem(400, "the path has an encoded slash")
    if action in ("UNESCAPE_AND_REDIRECT", "UNESCAPE_AND_FORWARD"):
        unescaped = _ENCODED_SLASH.sub(lambda found: "/" if found[0].lower() == "%2f" else "\\", path)
        if unescaped != path and action == "UNESCAPE_AND_REDIRECT":
            location = _path(hcm, unescaped) + separator + query
            return PathProblem(_REDIRECT, "the path has an encoded slash", location)
        path = unescaped
    return msgspec.structs.replace(request, path=_path(hcm, path) + separator + query, host=host)


def _path(hcm: Json, path: str) -> str:
    if hcm.get("normalize_path"):
        path = _without_dots(path.replace("\\", "/"))
    if hcm.get("merge_slashes"):
        path = re.sub("/{2,}", "/", path)
    return path


def _without_dots(path: str) -> str:
    """A path without segments of one or two dots, as RFC 3986 removes them; dots may be encoded."""
    kept: list[str] = []
    segments = path.split("/")[1:]
    for index, segment in enumerate(segments):
        is_last = index == len(segments) - 1
        match _ENCODED_DOT.sub(".", segment):
            case "." | "..":
                if _ENCODED_DOT.sub(".", segment) == ".." and kept:
                    kept.pop()
                if is_last:
                    kept.append("")
            case _:
                kept.append(_ENCODED_DOT.sub(".", segment))
    return "/" + "/".join(kept)


def _host(hcm: Json, host: str) -> str:
    if hcm.get("strip_any_host_port"):
        host = _PORT.sub("", host)
    if hcm.get("strip_trailing_host_dot"):
        name, port = (host[: found.start()], found[0]) if (found := _PORT.search(host)) else (host, "")
        host = name.removesuffix(".") + port
    return host
