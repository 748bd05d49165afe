"""Route filters: what a route does to a request or its response, as fields of Envoy's Route.

Filters act in their order. Envoy takes headers away before it writes any, so that several changes of one
header are first counted together. A filter that answers the request itself leaves nothing to those that
need a backend.
"""

from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Final

from koguma.envoy.proto_json import Data
from koguma.envoy.route_matches import Way
from koguma.model.schema import Json

Mirror = Callable[[Json], str | None]  # the cluster of a backendRef, if it leads anywhere

_OVERWRITE: Final = "OVERWRITE_IF_EXISTS_OR_ADD"
_APPEND: Final = "APPEND_IF_EXISTS_OR_ADD"
_STATUSES: Final = {
    301: "MOVED_PERMANENTLY",
    302: "FOUND",
    303: "SEE_OTHER",
    307: "TEMPORARY_REDIRECT",
    308: "PERMANENT_REDIRECT",
}
_BODIES: Final = {
    "inlineString": "inline_string",
    "inlineBytes": "inline_bytes",
    "filename": "filename",
    "environmentVariable": "environment_variable",
}
_DENOMINATORS: Final = ((100, "HUNDRED"), (10_000, "TEN_THOUSAND"), (1_000_000, "MILLION"))


def _bodies(filters: Json, type_: str, field: str) -> Iterator[Json]:
    for each in filters:
        if each.get("type") == type_ and each.get(field) is not None:
            yield each[field]


def headers(filters: Json) -> Data:
    """The fields of a Route that change headers."""
    changed: Data = {}
    for side in ("request", "response"):
        type_, field = f"{side.capitalize()}HeaderModifier", f"{side}HeaderModifier"
        added, removed = _header_changes(_bodies(filters, type_, field))
        if added:
            changed[f"{side}_headers_to_add"] = added
        if removed:
            changed[f"{side}_headers_to_remove"] = removed
    return changed


def _header_changes(modifiers: Iterator[Json]) -> tuple[list[Data], list[str]]:
    """What is written and what is taken away, all modifiers counted together."""
    values: dict[str, list[tuple[str, str]]] = {}
    removed: dict[str, None] = {}
    for modifier in modifiers:
        for name in modifier.get("remove") or ():
            values.pop(name, None)
            removed[name] = None
        for each in modifier.get("set") or ():
            values[each["name"]] = [(_OVERWRITE, each["value"])]
        for each in modifier.get("add") or ():
            values.setdefault(each["name"], []).append((_APPEND, each["value"]))
    added = [
        {"header": {"key": name, "value": value.replace("%", "%%")}, "append_action": action}
        for name, changes in values.items()
        for action, value in changes
    ]
    return added, list(removed)


def answers(filters: Json) -> bool:
    """Whether a filter answers the request itself, so that it reaches no backend and no mirror."""
    return any(each.get("type") in ("RequestRedirect", "DirectResponse") for each in filters)


def answer(filters: Json, way: Way) -> Data:
    """The field of a Route that answers the request itself; empty where no filter does."""
    for redirect in _bodies(filters, "RequestRedirect", "requestRedirect"):
        return {"redirect": _redirect(redirect, way)}
    for response in _bodies(filters, "DirectResponse", "directResponse"):
        return {"direct_response": _direct_response(response)}
    return {}


def _redirect(redirect: Json, way: Way) -> Data:
    made: Data = {"response_code": _STATUSES[redirect.get("statusCode") or 302]}
    for field, name in (
        ("scheme", "scheme_redirect"),
        ("hostname", "host_redirect"),
        ("port", "port_redirect"),
    ):
        if redirect.get(field) is not None:
            made[name] = redirect[field]
    path = redirect.get("path") or {}
    if path.get("type") == "ReplaceFullPath":
        made["path_redirect"] = _absolute(path.get("replaceFullPath"))
    elif path.get("type") == "ReplacePrefixMatch":
        made["prefix_rewrite"] = _replaced_prefix(path.get("replacePrefixMatch"), way)
    return made


def _direct_response(response: Json) -> Data:
    made: Data = {"status": response["status"]}
    for field, value in (response.get("body") or {}).items():
        if value is not None:
            made["body"] = {_BODIES[field]: value}
    return made


def rewrites(filters: Json, way: Way) -> Data:
    """The fields of a RouteAction that change the request's host and path."""
    made: Data = {}
    for rewrite in _bodies(filters, "URLRewrite", "urlRewrite"):
        if rewrite.get("hostname") is not None:
            made["host_rewrite_literal"] = rewrite["hostname"]
            made.pop("auto_host_rewrite", None)
        elif rewrite.get("hostToBackendHostname"):
            made["auto_host_rewrite"] = True
            made.pop("host_rewrite_literal", None)
        if rewrite.get("path"):
            made.pop("regex_rewrite", None)
            made.pop("prefix_rewrite", None)
            made |= _path_rewrite(rewrite["path"], way)
    return made


def _path_rewrite(path: Json, way: Way) -> Data:
    if path.get("type") == "ReplacePrefixMatch":
        return {"prefix_rewrite": _replaced_prefix(path.get("replacePrefixMatch"), way)}
    # A backslash would refer to a group of the pattern.
    full = _absolute(path.get("replaceFullPath")).replace("\\", "\\\\")
    return {"regex_rewrite": {"pattern": {"regex": ".*"}, "substitution": full}}


def _replaced_prefix(replacement: str | None, way: Way) -> str:
    """What comes instead of what the way took: of the path below a prefix it took the slash too."""
    return _absolute(replacement).rstrip("/") + "/" if way.reach == "below" else _absolute(replacement)


def _absolute(path: str | None) -> str:
    return "/" + (path or "").removeprefix("/")


def mirrors(filters: Json, cluster: Mirror) -> list[Data]:
    """Where copies of the request go; a copy for nobody is not made."""
    made = []
    for mirror in _bodies(filters, "RequestMirror", "requestMirror"):
        name = cluster(mirror["backendRef"])
        if name is None:
            continue
        policy: Data = {"cluster": name}
        if mirror.get("percentage") is not None:
            policy["runtime_fraction"] = runtime_fraction(Fraction(Decimal(str(mirror["percentage"]))) / 100)
        made.append(policy)
    return made


def runtime_fraction(share: Fraction) -> Data:
    """A share of requests: exact where Envoy can say it, else to the nearest of a million."""
    whole, name = next(
        (each for each in _DENOMINATORS if (share * each[0]).denominator == 1), _DENOMINATORS[-1]
    )
    return {"default_value": {"numerator": round(share * whole), "denominator": name}}
