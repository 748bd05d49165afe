"""Request paths: what a connection manager makes of a request's path and host before it looks for a route."""

import re
from typing import Final

import msgspec

from koguma.envoy.simulation.traffic import HTTP_1_METHODS, SimulatedRequest
from koguma.model.schema import Json

# What Envoy writes in another way when it normalizes a path, as browsers do: unreserved characters that are
# encoded are decoded, and some that are not become so.
_REWRITTEN: Final = re.compile(r"%([0-9a-fA-F]{2})|[\"<>^`{|}]")
_UNRESERVED: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
_DOTS_WITH_PARAMETERS: Final = re.compile(r"(?<=[/\\])((?:\.|%2e){1,2});[^/]*", re.IGNORECASE)
_NO_PATH: Final = re.compile(r"[^!-~]")
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
    if request.method not in HTTP_1_METHODS and not request.is_grpc:
        return PathProblem(400, f'Envoy knows no method "{request.method}" in HTTP/1.1; capitals count')
    if "#" in request.path:
        return PathProblem(400, "the path has a fragment")
    if _NO_PATH.search(request.path):
        return PathProblem(400, "the path has characters that must be encoded")
    path, separator, query = request.path.partition("?")
    if hcm.get("normalize_path") and "%00" in _DOTS_WITH_PARAMETERS.sub("", path):
        return PathProblem(400, "the path has an encoded zero byte")
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
        path = _DOTS_WITH_PARAMETERS.sub(r"\1", path)
        path = _without_dots(_REWRITTEN.sub(_rewritten, path.replace("\\", "/")))
    if hcm.get("merge_slashes"):
        path = re.sub("/{2,}", "/", path)
    return path


def _rewritten(found: re.Match[str]) -> str:
    if found[1] is None:
        return f"%{ord(found[0]):02X}"
    character = chr(int(found[1], 16))
    return character if character in _UNRESERVED else found[0]


def _without_dots(path: str) -> str:
    """A path without segments of one or two dots, as RFC 3986 removes them."""
    kept: list[str] = []
    segments = path.split("/")[1:]
    for index, segment in enumerate(segments):
        if segment not in (".", ".."):
            kept.append(segment)
            continue
        if segment == ".." and kept:
            kept.pop()
        if index == len(segments) - 1:
            kept.append("")
    return "/" + "/".join(kept)


def _host(hcm: Json, host: str) -> str:
    if hcm.get("strip_any_host_port"):
        host = _PORT.sub("", host)
    if hcm.get("strip_trailing_host_dot"):
        name, port = (host[: found.start()], found[0]) if (found := _PORT.search(host)) else (host, "")
        host = name.removesuffix(".") + port
    return host
