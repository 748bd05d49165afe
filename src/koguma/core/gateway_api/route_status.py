"""Route status: what the status of a route says of each parent that is ours."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from koguma.core import world
from koguma.core.gateway_api import backend_refs, conditions, objects, parents, routes
from koguma.core.gateway_api.backend_refs import NO_BACKEND, RefProblem, RouteScope
from koguma.core.gateway_api.conditions import FALSE, TRUE, StatusCondition
from koguma.core.gateway_api.conversion import Conversion, ConvertedRule
from koguma.core.gateway_api.parents import RouteParent
from koguma.core.incremental import Db, question
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

_PARENT_FIELDS: Final = ("group", "kind", "namespace", "name", "sectionName", "port")
# Which problem is named where references have several: what is not permitted goes before what is missing.
_REASONS: Final = (
    backend_refs.REF_NOT_PERMITTED,
    backend_refs.INVALID_KIND,
    backend_refs.BACKEND_NOT_FOUND,
    backend_refs.UNSUPPORTED_PROTOCOL,
)
_MESSAGE_LENGTH_MAX: Final = 4096


class ParentConditions(NamedTuple):
    """One entry of `status.parents`."""

    ref: Mapping[str, Json]
    conditions: tuple[StatusCondition, ...]


@question
def of(db: Db, route: Key) -> tuple[ParentConditions, ...]:
    """What is true of a route at each of its parents, in the order of its parentRefs."""
    resource = world.RESOURCES.get(db, route)
    if resource is None:
        return ()
    refs = dict(objects.items(objects.fields(resource.spec).get("parentRefs")))
    return tuple(
        ParentConditions(refs[parent.number], tuple(_conditions(db, route, parent)))
        for parent in parents.of(db, route)
    )


def _conditions(db: Db, route: Key, parent: RouteParent) -> Iterator[StatusCondition]:
    conversion = routes.converted(db, route, parent.mesh)
    yield _accepted(parent, conversion)
    yield _resolved(db, RouteScope(route, parent.mesh), conversion)
    if conversion.dropped and conversion.rules and not parent.reason:
        numbers = ", ".join(str(each.number) for each in conversion.dropped)
        why = _text([each.message for each in conversion.dropped])
        reason = conversion.dropped[0].reason
        yield StatusCondition("PartiallyInvalid", TRUE, reason, f"Dropped Rule {numbers}: {why}")


def _accepted(parent: RouteParent, conversion: Conversion) -> StatusCondition:
    if parent.reason:
        return StatusCondition("Accepted", FALSE, parent.reason, parent.message)
    if conversion.dropped and not conversion.rules:
        why = _text([each.message for each in conversion.dropped])
        return StatusCondition("Accepted", FALSE, conversion.dropped[0].reason, why)
    return StatusCondition("Accepted", TRUE, "Accepted", "the route is accepted")


def _resolved(db: Db, scope: RouteScope, conversion: Conversion) -> StatusCondition:
    problems = sorted((*conversion.refs, *_unresolved(db, scope, conversion)), key=_rank)
    if not problems:
        return StatusCondition("ResolvedRefs", TRUE, "ResolvedRefs", "all references are resolved")
    return StatusCondition(
        "ResolvedRefs", FALSE, problems[0].reason, _text([each.message for each in problems])
    )


def _rank(problem: RefProblem) -> int:
    return _REASONS.index(problem.reason) if problem.reason in _REASONS else len(_REASONS)


def _unresolved(db: Db, scope: RouteScope, conversion: Conversion) -> Iterator[RefProblem]:
    is_http = scope.route.kind in (objects.HTTP_ROUTE, objects.GRPC_ROUTE)
    protocols = world.HTTP_PROTOCOLS if is_http else ()
    for rule in conversion.rules:
        for path, ref in _references(rule):
            if ref["kind"] != NO_BACKEND:
                yield from backend_refs.unresolved(db, scope, ref, path, protocols)


def _references(rule: ConvertedRule) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """The backends of a rule and of its mirrors, with their paths in the source."""
    at, conf = f"spec.rules[{rule.number}]", rule.rule["default"]
    for number, ref in enumerate(conf.get("backendRefs") or ()):
        yield f"{at}.backendRefs[{number}]", ref
    for number, each in enumerate(conf.get("filters") or ()):
        if each["type"] == "RequestMirror":
            path = rule.source_path(f"default.filters[{number}].requestMirror.backendRef")
            yield path, each["requestMirror"]["backendRef"]


def _text(messages: list[str]) -> str:
    return "; ".join(messages)[:_MESSAGE_LENGTH_MAX]


def status(db: Db, route: Resource, now: str) -> Json:
    """The status of a stored route: entries of other controllers as they are, and ours."""
    stored = [each for _, each in objects.items(objects.fields(route.status).get("parents"))]
    others = [each for each in stored if each.get("controllerName") != objects.CONTROLLER]
    own = [each for each in stored if each.get("controllerName") == objects.CONTROLLER]
    entries = []
    for entry in of(db, route.key):
        ref = {name: entry.ref[name] for name in _PARENT_FIELDS if entry.ref.get(name) is not None}
        before = next((each for each in own if each.get("parentRef") == ref), {})
        written = conditions.merged(before.get("conditions"), entry.conditions, route.generation, now)
        entries.append({"parentRef": ref, "controllerName": objects.CONTROLLER, "conditions": written})
    if not others and not entries and route.status is None:
        return None
    return {**objects.fields(route.status), "parents": [*others, *entries]}
