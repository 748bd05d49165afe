"""HTTP rules: the rules of an HTTPRoute as those of a MeshHTTPRoute.

Matches and most filters have the same fields in both. Rules of several routes with equal matches are not
merged: the older route's wins.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from koguma.core.gateway_api import backend_refs, conversion, extension_refs, objects, rule_settings
from koguma.core.gateway_api.backend_refs import NO_BACKEND, RefProblem, RouteScope
from koguma.core.gateway_api.conversion import (
    INCOMPATIBLE_FILTERS,
    Conversion,
    ConvertedRule,
    DroppedRule,
    Unsupported,
)
from koguma.core.gateway_api.extension_refs import EXTENSION
from koguma.core.incremental import Db
from koguma.envoy import cors
from koguma.model import schema, target_ref
from koguma.model.gateway_api.http_routes import HttpRouteRule
from koguma.model.resource import Key
from koguma.model.schema import Checker, Json
from koguma.model.violation import child, item

_ANY_PATH: Final = {"path": {"type": "PathPrefix", "value": "/"}}
# The filters that have the same fields in ours, by type, with the field that says how.
_SAME: Final[Mapping[str, str]] = {
    "RequestHeaderModifier": "requestHeaderModifier",
    "ResponseHeaderModifier": "responseHeaderModifier",
    "RequestRedirect": "requestRedirect",
    "URLRewrite": "urlRewrite",
}
_MIRROR: Final = "RequestMirror"
_DIRECT: Final = "DirectResponse"
# Those of a RouteFilter, beside mirrors.
_OURS: Final[Mapping[str, str]] = {**_SAME, _DIRECT: "directResponse"}
# Of these types a rule has one filter, and one that excludes others keeps them from acting.
_ONCE: Final = ("RequestRedirect", "URLRewrite", _DIRECT)
_EXCLUDED: Final[Mapping[str, tuple[str, ...]]] = {
    "RequestRedirect": ("URLRewrite",),
    _DIRECT: ("RequestRedirect", "URLRewrite", _MIRROR, cors.TYPE),
}
_TARGET: Final = {"kind": "MeshService", "name": "any"}
_OF_BACKENDS: Final = ("RequestHeaderModifier", "ResponseHeaderModifier")
_FIELDS: Final = frozenset(("name", "matches", "filters", "backendRefs", *rule_settings.FIELDS))
# In place of a filter that a MeshHTTPRoute does not have, while the others are checked.
_CHECKED: Final = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x-checked"]}}


class RuleForm(NamedTuple):
    """What differs between kinds of routes: their matches, and the schema of a rule."""

    match: Callable[[Mapping[str, Json]], Mapping[str, Json]]
    any_match: Mapping[str, Json]  # of a rule without matches
    check: Checker


def converted(db: Db, scope: RouteScope, spec: Mapping[str, Json]) -> Conversion:
    """The rules of an HTTPRoute."""
    return converted_rules(db, scope, spec, RuleForm(_match, _ANY_PATH, schema.checker(HttpRouteRule)))


def converted_rules(db: Db, scope: RouteScope, spec: Mapping[str, Json], form: RuleForm) -> Conversion:
    """The rules of a route of a form."""
    rules, dropped, problems = list[ConvertedRule](), list[DroppedRule](), list[RefProblem]()
    for index, written in objects.items(spec.get("rules")):
        rule = _RuleConversion(db, scope, written, item("spec.rules", index))
        try:
            _check_schema(form.check, written, item("spec.rules", index))
            matches = [form.match(each) for _, each in objects.items(written.get("matches"))]
            conf = rule.conf()
            one = ConvertedRule(
                index,
                {"matches": matches or [form.any_match], "default": conf, "whole": True},
                tuple(rule.paths),
                tuple(rule.elsewhere),
            )
            _check(db, one)
        except Unsupported as error:
            dropped.append(DroppedRule(index, error.reason, str(error)))
        else:
            rules.append(one)
            problems += rule.problems
    return Conversion(tuple(rules), tuple(dropped), tuple(problems))


def _check_schema(check: Checker, written: Mapping[str, Json], path: str) -> None:
    """Refuse what was stored under other rules than today's; unknown fields are named by the conversion."""
    for violation in check(written, path):
        if violation.rule != schema.UNKNOWN:
            raise Unsupported(f"{violation.field}: {violation.message}")


def _match(written: Mapping[str, Json]) -> Mapping[str, Json]:
    """A match without what has no effect: a slash at the end of a prefix, a header's second condition."""
    match = {name: value for name, value in written.items() if name in ("method", "path")}
    path = objects.fields(written.get("path"))
    kind, value = path.get("type") or "PathPrefix", objects.text(path.get("value")) or "/"
    if kind == "PathPrefix":
        value = value.rstrip("/") or "/"
    match["path"] = {"type": kind, "value": value}
    for name in ("headers", "queryParams"):
        conditions = distinct(written.get(name), lower=name == "headers")
        if conditions:
            match[name] = conditions
    return match


def distinct(conditions: Json, *, lower: bool) -> list[Mapping[str, Json]]:
    """Conditions on headers or query parameters, the first one of each name."""
    first: dict[str, Mapping[str, Json]] = {}
    for _, each in objects.items(conditions):
        name = objects.text(each.get("name"))
        first.setdefault(name.lower() if lower else name, {"type": "Exact", **each})
    return list(first.values())


class _RuleConversion:
    """One rule while it is converted: where its filters come from, and references that lead nowhere."""

    def __init__(self, db: Db, scope: RouteScope, written: Mapping[str, Json], path: str) -> None:
        self._db = db
        self._scope = scope
        self._written = written
        self._path = path
        self.paths: list[tuple[str, str]] = [("matches", "matches")]
        self.elsewhere: list[tuple[str, Key]] = []
        self.problems: list[RefProblem] = []

    def conf(self) -> Mapping[str, Json]:
        """What is done to the rule's requests, and where they go."""
        for name in self._written.keys() - _FIELDS:
            raise Unsupported(f"{child(self._path, name)} is not supported")
        settings = rule_settings.of(self._written, self._path)
        self.paths += [(f"default.{name}", name) for name in settings]
        filters = list(self._filters())
        types = [each["type"] for each in filters]
        for message in _incompatible(types):
            raise Unsupported(f"{self._path}.filters: {message}", INCOMPATIBLE_FILTERS)
        backends = list(self._backends()) or [{"kind": NO_BACKEND}]
        if {"RequestRedirect", _DIRECT, EXTENSION} & set(types):
            return {"filters": filters}  # it answers the requests; backends beside it are never asked
        return {"filters": filters, "backendRefs": backends, **settings}

    def _filters(self) -> Iterator[Mapping[str, Json]]:
        position = 0
        for index, written in objects.items(self._written.get("filters")):
            at = item("filters", index)
            path, ref = child(self._path, at), objects.fields(written.get("extensionRef"))
            found = None
            if written.get("type") == EXTENSION:
                found = extension_refs.key(self._db, self._scope.route, self._scope.mesh, ref)
            for each in self._extension(found, path) if found else self._filter(written, path):
                own = f"default.filters[{position}]"
                self.paths.append((own, child(at, "extensionRef") if found else at))
                self.elsewhere += [(own, found)] if found else []
                position += 1
                yield each

    def _filter(self, written: Mapping[str, Json], path: str) -> Iterator[Mapping[str, Json]]:
        kind = objects.text(written.get("type"))
        if kind in _SAME:
            yield {"type": kind, _SAME[kind]: written.get(_SAME[kind])}
        elif kind == _MIRROR:
            yield from self._mirror(objects.fields(written.get("requestMirror")), f"{path}.requestMirror")
        elif kind == cors.TYPE:
            yield rule_settings.cors_filter(written, path)
        elif kind == EXTENSION:
            ref = objects.fields(written.get("extensionRef"))
            problem = extension_refs.problem(self._scope, ref, child(path, "extensionRef"))
            self.problems.append(problem)
            yield {"type": EXTENSION, "extensionRef": ref}
        else:
            raise Unsupported(f"{path}.type: filters of type {kind} are not supported")

    def _extension(self, route_filter: Key, path: str) -> Iterator[Mapping[str, Json]]:
        """The filter of a RouteFilter, as if it stood in the rule."""
        written = extension_refs.content(self._db, route_filter)
        kind = objects.text(written.get("type"))
        if kind != _MIRROR:
            yield {"type": kind, _OURS[kind]: written.get(_OURS[kind])}
            return
        mirror = objects.fields(written.get("requestMirror"))
        of_ours = {**objects.fields(mirror.get("backendRef")), "group": backend_refs.OUR_GROUPS[0]}
        ref = self._backend(of_ours, f"{path}.extensionRef ({route_filter.kind} {route_filter.name})")
        if ref["kind"] != NO_BACKEND:
            yield {"type": _MIRROR, "requestMirror": {**mirror, "backendRef": ref}}

    def _mirror(self, mirror: Mapping[str, Json], path: str) -> Iterator[Mapping[str, Json]]:
        """A copy of requests; one that leads nowhere is not made, as the Gateway API has it."""
        ref = self._backend(objects.fields(mirror.get("backendRef")), f"{path}.backendRef")
        share: dict[str, Json] = {}
        if mirror.get("percent") is not None:
            share["percentage"] = mirror["percent"]
        elif mirror.get("fraction") is not None:
            share["fraction"] = mirror["fraction"]
        if ref["kind"] != NO_BACKEND:
            yield {"type": _MIRROR, "requestMirror": {"backendRef": ref, **share}}

    def _backends(self) -> Iterator[Mapping[str, Json]]:
        for index, written in objects.items(self._written.get("backendRefs")):
            at = item("backendRefs", index)
            ref = self._backend(written, child(self._path, at))
            filters = list(self._backend_filters(written, at))
            self.paths.append((f"default.{at}", at))
            yield {**ref, "filters": filters} if filters else ref

    def _backend(self, written: Mapping[str, Json], path: str) -> Mapping[str, Json]:
        backend = backend_refs.backend(self._db, self._scope, written, path)
        if backend.problem is not None:
            self.problems.append(backend.problem)
        return backend.ref

    def _backend_filters(self, written: Mapping[str, Json], at: str) -> Iterator[Mapping[str, Json]]:
        for index, each in objects.items(written.get("filters")):
            kind = objects.text(each.get("type"))
            if kind not in _OF_BACKENDS:
                path = child(self._path, f"{at}.filters[{index}].type")
                raise Unsupported(f"{path}: {kind} can only be a filter of a whole rule")
            yield {"type": kind, _SAME[kind]: each.get(_SAME[kind])}


def _incompatible(types: list[str]) -> Iterator[str]:
    for kind in _ONCE:
        if types.count(kind) > 1:
            yield f"there are several filters of type {kind}"
    for kind, others in _EXCLUDED.items():
        for other in others:
            if kind in types and other in types:
                yield f"{kind} and {other} exclude each other"


def _check(db: Db, rule: ConvertedRule) -> None:
    """Refuse what a MeshHTTPRoute may not have, such as an expression that Envoy cannot read.

    Fields that only converted routes have are taken away before, since its schema lacks them.
    """
    conf = rule.rule["default"]
    refs = [each for each in conf.get("backendRefs") or () if each["kind"] != NO_BACKEND]
    plain = {
        "matches": [{k: v for k, v in match.items() if k != "grpc"} for match in rule.rule["matches"]],
        "default": {
            "filters": [_plain_filter(each) for each in conf["filters"]],
            "backendRefs": [{k: v for k, v in ref.items() if k != "filters"} for ref in refs],
        },
    }
    # Filters of a backend are checked as if they were the rule's, one backend after the other.
    of_backends = [
        (
            {"matches": plain["matches"], "default": {"filters": ref["filters"]}},
            f"backendRefs[{index}].filters",
        )
        for index, ref in enumerate(conf.get("backendRefs") or ())
        if ref.get("filters")
    ]
    for checked, at in ((plain, ""), *of_backends):
        places = (("default.filters", at), *rule.paths) if at else rule.paths
        spec = {"to": [{"targetRef": _TARGET, "rules": [checked]}]}
        one = ConvertedRule(rule.number, checked, tuple(places), () if at else rule.elsewhere)
        for text in conversion.violations(db, target_ref.HTTP_ROUTE, spec, one):
            raise Unsupported(text)


def _plain_filter(written: Mapping[str, Json]) -> Mapping[str, Json]:
    if written["type"] in (cors.TYPE, EXTENSION):
        return _CHECKED
    if written["type"] != _MIRROR:
        return written
    mirror = {name: value for name, value in written["requestMirror"].items() if name != "fraction"}
    return {**written, "requestMirror": mirror}
