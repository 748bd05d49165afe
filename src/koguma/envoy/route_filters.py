"""Route filters: the filters of a MeshHTTPRoute rule, as fields of Envoy's Route.

Filters act in their order. Envoy removes headers before it adds any, so several changes of one header are
merged first. Where a filter gives a local reply (redirect or direct response), there is no backend.
"""

from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Final

from koguma.envoy import cors
from koguma.envoy.proto_json import Data
from koguma.envoy.route_matches import PathMatch
from koguma.model.schema import Json

Mirror = Callable[[Json], str | None]  # the cluster of a backendRef, if it resolves

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
TYPES: Final = frozenset(
    (
        "RequestHeaderModifier",
        "ResponseHeaderModifier",
        "RequestRedirect",
        "URLRewrite",
        "RequestMirror",
        "DirectResponse",
        cors.TYPE,
    )
)
# What Envoy can do for one of several backends.
BACKEND_TYPES: Final = frozenset(("RequestHeaderModifier", "ResponseHeaderModifier"))
_DENOMINATORS: Final = ((100, "HUNDRED"), (10_000, "TEN_THOUSAND"), (1_000_000, "MILLION"))


def _confs(filters: Json, type_: str, field: str) -> Iterator[Json]:
    for each in filters:
        if each.get("type") == type_ and each.get(field) is not None:
            yield each[field]


def are_known(filters: Json, types: frozenset[str] = TYPES) -> bool:
    """Whether all filters are of these types; one that is not must never be skipped."""
    return all(each.get("type") in types for each in filters or ())


def headers(filters: Json) -> Data:
    """The fields of a Route that change headers."""
    changed: Data = {}
    for side in ("request", "response"):
        type_, field = f"{side.capitalize()}HeaderModifier", f"{side}HeaderModifier"
        added, removed = _header_changes(_confs(filters, type_, field))
        if added:
            changed[f"{side}_headers_to_add"] = added
        if removed:
            changed[f"{side}_headers_to_remove"] = removed
    return changed


def _header_changes(modifiers: Iterator[Json]) -> tuple[list[Data], list[str]]:
    """The headers that all modifiers together add and remove."""
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


def has_local_reply(filters: Json) -> bool:
    """Whether a filter answers the request, so that it reaches no backend and no mirror."""
    return any(each.get("type") in ("RequestRedirect", "DirectResponse") for each in filters)


def local_reply(filters: Json, path_match: PathMatch) -> Data:
    """The field of a Route that answers the request; empty where no filter does."""
    for redirect in _confs(filters, "RequestRedirect", "requestRedirect"):
        return {"redirect": _redirect(redirect, path_match)}
    for response in _confs(filters, "DirectResponse", "directResponse"):
        return {"direct_response": _direct_response(response)}
    return {}


def _redirect(redirect: Json, path_match: PathMatch) -> Data:
    fields: Data = {"response_code": _STATUSES[redirect.get("statusCode") or 302]}
    for field, name in (
        ("scheme", "scheme_redirect"),
        ("hostname", "host_redirect"),
        ("port", "port_redirect"),
    ):
        if redirect.get(field) is not None:
            fields[name] = redirect[field]
    path = redirect.get("path") or {}
    if path.get("type") == "ReplaceFullPath":
        fields["path_redirect"] = _absolute(path.get("replaceFullPath"))
    elif path.get("type") == "ReplacePrefixMatch":
        fields["prefix_rewrite"] = _replaced_prefix(path.get("replacePrefixMatch"), path_match)
    return fields


def _direct_response(response: Json) -> Data:
    fields: Data = {"status": response["status"]}
    for field, value in (response.get("body") or {}).items():
        if value is not None:
            fields["body"] = {_BODIES[field]: value}
    return fields


def rewrites(filters: Json, path_match: PathMatch) -> Data:
    """The fields of a RouteAction that rewrite the request's host and path."""
    fields: Data = {}
    for rewrite in _confs(filters, "URLRewrite", "urlRewrite"):
        if rewrite.get("hostname") is not None:
            fields["host_rewrite_literal"] = rewrite["hostname"]
            fields.pop("auto_host_rewrite", None)
        elif rewrite.get("hostToBackendHostname"):
            fields["auto_host_rewrite"] = True
            fields.pop("host_rewrite_literal", None)
        if rewrite.get("path"):
            fields.pop("regex_rewrite", None)
            fields.pop("prefix_rewrite", None)
            fields |= _path_rewrite(rewrite["path"], path_match)
    return fields


def _path_rewrite(path: Json, path_match: PathMatch) -> Data:
    if path.get("type") == "ReplacePrefixMatch":
        return {"prefix_rewrite": _replaced_prefix(path.get("replacePrefixMatch"), path_match)}
    # In a substitution, a backslash refers to a group of the pattern.
    full = _absolute(path.get("replaceFullPath")).replace("\\", "\\\\")
    return {"regex_rewrite": {"pattern": {"regex": ".*"}, "substitution": full}}


def _replaced_prefix(replacement: str | None, path_match: PathMatch) -> str:
    """The replacement of the matched prefix; a match of what is below a prefix includes the slash."""
    return _absolute(replacement).rstrip("/") + "/" if path_match.part == "below" else _absolute(replacement)


def _absolute(path: str | None) -> str:
    return "/" + (path or "").removeprefix("/")


def mirrors(filters: Json, cluster: Mirror) -> list[Data]:
    """The mirror policies; a reference that does not resolve is left out."""
    policies = []
    for mirror in _confs(filters, "RequestMirror", "requestMirror"):
        name = cluster(mirror["backendRef"])
        if name is None:
            continue
        policy: Data = {"cluster": name}
        share = _share(mirror)
        if share is not None:
            policy["runtime_fraction"] = runtime_fraction(share)
        policies.append(policy)
    return policies


def _share(mirror: Json) -> Fraction | None:
    """The share of requests that a mirror gets; None where that is all of them."""
    if mirror.get("percentage") is not None:
        return Fraction(Decimal(str(mirror["percentage"]))) / 100
    fraction = mirror.get("fraction")
    return Fraction(fraction["numerator"], fraction.get("denominator") or 100) if fraction else None


def runtime_fraction(share: Fraction) -> Data:
    """A share of requests: exact where Envoy can express it, else rounded to a millionth."""
    whole, name = next(
        (each for each in _DENOMINATORS if (share * each[0]).denominator == 1), _DENOMINATORS[-1]
    )
    return {"default_value": {"numerator": round(share * whole), "denominator": name}}
