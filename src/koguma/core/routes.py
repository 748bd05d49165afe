"""Routes: the rules of several MeshHTTPRoutes merged to one list, and the order in which requests try them.

Rules with equal `matches` are one rule, whose `default` merges field by field: `filters` and `backendRefs`
are each taken as a whole from the most important policy that sets them, and an empty list removes what others
set. Other rules are kept, so a policy can only change a rule by writing its matches.

    merged_rules(items)     the rules, those of the most important policy first, as written
    resolved(rule)          without parts that exclude each other after the merge, and the problems to show
    ranked(rules)           one candidate per rule and match, most specific first

Each item is one entry of `to`, in ascending precedence: its conf has the entry's `rules`, its path is the
entry's. All items have the same hostnames; a caller with several groups the items first. Of two equal rules
in one entry the earlier one wins, as in Kuma. What does not fit the schema is ignored.

Routes that are converted from others, such as those of the Gateway API, may have fields in their entries that
no user can write into a MeshHTTPRoute, since its schema lacks them:

    unmatched                          NotFound: what no rule matches gets 404, and does not go on as it was
    rules[].whole                      true: it is not merged with less important rules of equal matches
    rules[].matches[].grpc             {type: Exact | RegularExpression, service, method}: gRPC calls
    rules[].default.filters[]          .requestMirror.fraction {numerator, denominator: 100};
                                       type CORS (envoy/cors.py)
    rules[].default.backendRefs[]      .filters: changes of headers for the share of one backend
    rules[].default.timeouts, retry    as in envoy/route_timeouts.py
    rules[].default.sessionPersistence as in envoy/session_persistence.py
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from koguma.core import merge, order
from koguma.core.merge import Item, Loser, Origin
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import child, item


class RouteRule(msgspec.Struct, frozen=True, gc=False):
    """A rule, merged from all policies that have its matches."""

    matches: Json  # as the most important policy writes them
    conf: Json  # filters, backendRefs
    origin: Key  # the most important policy with these matches
    sources: tuple[Origin, ...]  # all rules with these matches, ascending
    setters: Mapping[str, Origin]  # who set each field of conf


class TracedRule(msgspec.Struct, frozen=True, gc=False):
    """A rule with the origin and the losers of each field, as in merge.Traced."""

    rule: RouteRule
    origins: Mapping[str, Origin]
    losers: Mapping[str, tuple[Loser, ...]]


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One match of a rule."""

    match: Json
    rule: RouteRule
    index: int


class RouteProblem(msgspec.Struct, frozen=True, gc=False):
    """Parts of a rule that exclude each other; `kind` is a stable code."""

    kind: str
    message: str
    origins: tuple[Origin, ...]


def merged_rules(items: Sequence[Item]) -> tuple[RouteRule, ...]:
    """The rules of all items, one for each different `matches`."""
    return tuple(_rule(matches, parts, merge.merged(parts)) for matches, parts in _grouped(items))


def traced_rules(items: Sequence[Item]) -> tuple[TracedRule, ...]:
    """The same rules, with the origin of each field."""
    traced = ((matches, parts, merge.traced(parts, _reason)) for matches, parts in _grouped(items))
    return tuple(
        TracedRule(_rule(matches, parts, each.conf), each.origins, each.losers)
        for matches, parts, each in traced
    )


def _rule(matches: Json, parts: Sequence[Item], conf: Json) -> RouteRule:
    sources = tuple(Origin(part.source, part.path.removesuffix(".default")) for part in parts)
    setters = {
        name: Origin(part.source, child(part.path, name))
        for part in parts
        for name, value in _object(part.conf).items()
        if value is not None
    }
    return RouteRule(matches, conf, parts[-1].source, sources, setters)


def _grouped(items: Sequence[Item]) -> Iterator[tuple[Json, Sequence[Item]]]:
    """The `default` of each rule, by equal matches; groups most important first, parts ascending."""
    groups: dict[Normalised, tuple[Json, list[Item]]] = {}
    whole: set[Normalised] = set()
    for each in reversed(items):
        for index, rule in _objects(_object(each.conf).get("rules")):
            matches = rule.get("matches")
            path = child(item(child(each.path, "rules"), index), "default")
            _, parts = groups.setdefault(key := normalised(matches), (matches, []))
            if key in whole:
                continue
            if rule.get("whole") is True:
                whole.add(key)
            parts.append(Item(each.source, each.rank, path, rule.get("default")))
    for matches, parts in groups.values():
        yield matches, parts[::-1]


def _reason(winner: Item, loser: Item) -> str:
    if winner.rank == loser.rank:
        return "it stands later in the same list, the earlier rule with equal matches wins"
    return order.reason(winner.rank, loser.rank)


Condition = tuple[str, str, str]
NormalMatch = tuple[str, str, str, tuple[Condition, ...], tuple[Condition, ...], Condition | None]
Normalised = tuple[NormalMatch, ...]

_ANY_PATH: Final = ("PathPrefix", "/")


def normalised(matches: Json) -> Normalised:
    """A rule's matches in canonical form; rules with equal canonical matches are the same rule.

    Defaults are filled in (the path prefix `/`, the type Exact), an absent list is an empty one, header names
    are in lower case, and the conditions of one match are sorted, since all of them have to hold. The list of
    matches keeps its order, so `[a, b]` and `[b, a]` are two rules, as in Kuma, whose API names a rule by a
    hash that depends on the order.
    """
    return tuple(_normal(match) for _, match in _objects(matches))


def _normal(match: Mapping[str, Json]) -> NormalMatch:
    path = _object(match.get("path"))
    return (
        _text(path.get("type")) or _ANY_PATH[0],
        _text(path.get("value")) or _ANY_PATH[1],
        _text(match.get("method")),
        tuple(sorted(_header(each) for _, each in _objects(match.get("headers")))),
        tuple(sorted(_query_param(each) for _, each in _objects(match.get("queryParams")))),
        _grpc(match),
    )


def _grpc(match: Mapping[str, Json]) -> Condition | None:
    """The gRPC calls that a match is for: type, service, method; None where it is for HTTP requests."""
    if match.get("grpc") is None:
        return None
    call = _object(match["grpc"])
    return _text(call.get("type")) or "Exact", _text(call.get("service")), _text(call.get("method"))


def _header(header: Mapping[str, Json]) -> Condition:
    kind = _text(header.get("type")) or "Exact"
    value = "" if kind in ("Present", "Absent") else _text(header.get("value"))
    return _text(header.get("name")).lower(), kind, value


def _query_param(param: Mapping[str, Json]) -> Condition:
    return _text(param.get("name")), _text(param.get("type")) or "Exact", _text(param.get("value"))


_PATH_RANKS: Final = {"Exact": 0, "PathPrefix": 1, "RegularExpression": 2}


def ranked(rules: Sequence[RouteRule]) -> tuple[Candidate, ...]:
    """Every match of every rule, in the order in which a request tries them, as the Gateway API ranks.

    A match without path is ranked like one for the prefix `/`. Kuma ranks it last, so that there one rule
    for `/` hides all rules that match by headers or methods only.
    """
    candidates = [Candidate(match, rule, index) for rule in rules for index, match in _objects(rule.matches)]
    return tuple(sorted(candidates, key=lambda each: _specificity(each.match)))


def _specificity(match: Mapping[str, Json]) -> tuple[int, int, int, int, int]:
    kind, value, method, headers, params, grpc = _normal(match)
    if grpc is not None:
        return _grpc_specificity(*grpc, len(headers))
    rank = _PATH_RANKS.get(kind, len(_PATH_RANKS))
    length = len(value) if rank else 0  # of exact paths at most one matches, so length does not matter
    return rank, -length, not method, -len(headers), -len(params)


def _grpc_specificity(kind: str, service: str, method: str, headers: int) -> tuple[int, int, int, int, int]:
    """The longest service first, then the longest method; a match for every call comes last."""
    rank = 2 if kind != "Exact" or not service else 0 if method else 1
    return rank if service or method else len(_PATH_RANKS), -len(service), -len(method), -headers, 0


ANSWER_AND_BACKENDS: Final = "route-answer-and-backends"
REDIRECT_AND_REWRITE: Final = "route-redirect-and-rewrite"

_ANSWERS: Final = ("RequestRedirect", "DirectResponse")


def resolved(rule: RouteRule) -> tuple[RouteRule, tuple[RouteProblem, ...]]:
    """The rule without parts that exclude each other, and a problem for each part left out.

    Two legal rules can merge into one that both answers the request itself (redirect, direct response) and
    has backends. The answer is kept, whichever policy is more important, and the backends are left out.
    """
    rule, backends = _without_backends(rule)
    rule, rewrites = _without_rewrites(rule)
    return rule, backends + rewrites


def _without_backends(rule: RouteRule) -> tuple[RouteRule, tuple[RouteProblem, ...]]:
    answer = next(((index, kind) for index, kind in _filter_types(rule) if kind in _ANSWERS), None)
    if answer is None or not rule.conf.get("backendRefs"):
        return rule, ()
    index, kind = answer
    origins = _filter_origin(rule, index), rule.setters["backendRefs"]
    message = (
        f"{kind} of {origins[0].source} answers the request itself, so the backendRefs of"
        f" {origins[1].source} are not used; take one of the two away, by an empty list where another"
        " policy sets it"
    )
    conf, setters = (
        {name: value for name, value in table.items() if name != "backendRefs"}
        for table in (rule.conf, rule.setters)
    )
    problem = RouteProblem(ANSWER_AND_BACKENDS, message, origins)
    return msgspec.structs.replace(rule, conf=conf, setters=setters), (problem,)


def _without_rewrites(rule: RouteRule) -> tuple[RouteRule, tuple[RouteProblem, ...]]:
    # Filters are taken as a whole from one policy, so that was stored before this became invalid.
    types = _filter_types(rule)
    redirects = [index for index, kind in types if kind == "RequestRedirect"]
    rewrites = [index for index, kind in types if kind == "URLRewrite"]
    if not redirects or not rewrites:
        return rule, ()
    origins = _filter_origin(rule, redirects[0]), _filter_origin(rule, rewrites[0])
    message = (
        f"RequestRedirect of {origins[0].source} sends the client elsewhere, so the URLRewrite beside it"
        " is not used; take one of the two away"
    )
    kept = [each for index, each in enumerate(rule.conf["filters"]) if index not in rewrites]
    problem = RouteProblem(REDIRECT_AND_REWRITE, message, origins)
    return msgspec.structs.replace(rule, conf={**rule.conf, "filters": kept}), (problem,)


def _filter_types(rule: RouteRule) -> list[tuple[int, str]]:
    return [(index, _text(each.get("type"))) for index, each in _objects(rule.conf.get("filters"))]


def _filter_origin(rule: RouteRule, index: int) -> Origin:
    filters = rule.setters["filters"]
    return Origin(filters.source, item(filters.path, index))


# Go's JSON encoder escapes these, so that JSON can be embedded in HTML.
_GO_ESCAPES: Final = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


def match_hash(matches: Json) -> str:
    """Kuma's name for a list of matches: base64 of SHA-256 of their JSON as Go writes it."""
    canonical = [_as_go(match) for _, match in _objects(matches)]
    text = json.dumps(canonical, ensure_ascii=False, separators=(",", ":")).translate(_GO_ESCAPES)
    return base64.b64encode(hashlib.sha256(text.encode(errors="replace")).digest()).decode()


def _as_go(match: Mapping[str, Json]) -> dict[str, Json]:
    """A match with its fields in the order of Kuma's Go types."""
    path = _object(match.get("path"))
    fields = {
        "path": {name: _text(path.get(name)) for name in ("value", "type")} if path else None,
        "method": _text(match.get("method")),
        "queryParams": [
            {name: _text(each.get(name)) for name in ("type", "name", "value")}
            for _, each in _objects(match.get("queryParams"))
        ],
        "headers": [
            {name: text for name in ("type", "name", "value") if (text := _text(each.get(name)))}
            for _, each in _objects(match.get("headers"))
        ],
    }
    return {name: value for name, value in fields.items() if value}


def _objects(value: Json) -> Iterator[tuple[int, Mapping[str, Json]]]:
    """The objects of a list with their indexes."""
    if isinstance(value, list):
        yield from ((index, each) for index, each in enumerate(value) if isinstance(each, dict))


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
