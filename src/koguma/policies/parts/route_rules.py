"""Routing rules: which requests they are for, what is done to them, and where they go.

MeshHTTPRoute and MeshGatewayHTTPRoute have the same rules and differ in how they name their target.
A rule's `matches` are also its identity: rules of several policies with equal matches are merged.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from koguma.model import names, target_ref
from koguma.model.kind import Deprecation, V1Conversion, ValidationContext
from koguma.model.schema import Json, Spec, doc
from koguma.model.target_ref import BackendRef, TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import backend_refs, fields, route_filters, route_matches, spelling
from koguma.policies.parts.route_filters import HttpFilter
from koguma.policies.parts.route_matches import HttpMatch


class HttpRuleConf(Spec):
    """What is done to the requests of a rule, and where they go."""

    filters: Annotated[
        tuple[HttpFilter, ...] | None, doc("Steps, in order; an empty list takes away those of others.")
    ] = None
    backend_refs: Annotated[
        tuple[BackendRef, ...] | None, doc("Where requests go, by weight; where they were going by default.")
    ] = None


class HttpRule(Spec):
    """Requests, and what becomes of them."""

    matches: Annotated[tuple[HttpMatch, ...], doc("Requests that fit any one of these.", min_length=1)]
    default: Annotated[HttpRuleConf, doc("What becomes of them; merged with rules of equal matches.")]


_CONF_FIELDS: Final = ("filters", "backendRefs")


def _conf_in_default(rule: Json) -> Json:
    """`filters` and `backendRefs` beside `matches`, as the founding document shows merged rules."""
    if not isinstance(rule, Mapping) or "default" in rule or not any(name in rule for name in _CONF_FIELDS):
        return rule
    rest = {name: value for name, value in rule.items() if name not in _CONF_FIELDS}
    return {**rest, "default": {name: rule[name] for name in _CONF_FIELDS if name in rule}}


reading: Final = spelling.each(
    spelling.chain(
        _conf_in_default,
        spelling.field("matches", route_matches.reading),
        spelling.field(
            "default",
            spelling.chain(
                spelling.field("filters", route_filters.reading),
                spelling.field("backendRefs", backend_refs.reading),
            ),
        ),
    )
)


def clean_shape(rules: str) -> V1Conversion:
    """What `koguma.io/v1` lacks of the spellings in rules at this field."""
    path, filters = f"{rules}[].matches[].path", f"{rules}[].default.filters[]"
    return V1Conversion(
        lacks=(
            Deprecation(f"{rules}[].matches", "write a list, also of one match", value="an object"),
            Deprecation(f"{path}.prefix", "write type: PathPrefix and value"),
            Deprecation(f"{path}.pathPrefix", "write type: PathPrefix and value"),
            Deprecation(f"{path}.exact", "write type: Exact and value"),
            Deprecation(f"{path}.regularExpression", "write type: RegularExpression and value"),
            Deprecation(f"{path}.type", "write PathPrefix", value="Prefix"),
            Deprecation(f"{rules}[].filters", "write it under default"),
            Deprecation(f"{rules}[].backendRefs", "write it under default"),
            *route_filters.deprecations(filters),
        )
    )


def proxy_kinds(context: ValidationContext) -> tuple[str, ...]:
    """What a route may name as the proxies that it acts on."""
    return target_ref.PROXIES if context.is_system else target_ref.NAMESPACED_PROXIES


def destination_kinds(top: TargetRef) -> tuple[str, ...]:
    """What a route may name as destination: a gateway has none of its own, so it takes Mesh only."""
    return ("Mesh",) if top.kind == "MeshGateway" else target_ref.DESTINATIONS


def violations(
    rules: tuple[HttpRule, ...], path: str, context: ValidationContext, *, gateway: bool
) -> Iterator[Violation]:
    """What is wrong with rules; on a gateway every rule must say where its requests go."""
    for index, rule in enumerate(rules):
        at = item(path, index)
        yield from route_matches.violations(rule.matches, child(at, "matches"))
        setting = route_filters.Setting(gateway, route_matches.are_prefixes(rule.matches), context)
        yield from _conf(rule.default, child(at, "default"), setting)


def _conf(conf: HttpRuleConf, path: str, setting: route_filters.Setting) -> Iterator[Violation]:
    filters = conf.filters or ()
    yield from route_filters.violations(filters, child(path, "filters"), setting)
    at = child(path, "backendRefs")
    answer = route_filters.answers(filters)
    if answer and conf.backend_refs:
        message = f"must not be set together with {answer}, which answers the request itself"
        yield Violation(at, message, "exclusive")
    if setting.gateway and not answer and not conf.backend_refs:
        yield Violation(at, fields.MUST_NOT_BE_EMPTY, "required")
    yield from backend_refs.violations(conf.backend_refs or (), at)


def hostname_violations(hostnames: tuple[str, ...], path: str) -> Iterator[Violation]:
    """What is wrong with the hostnames of a gateway's routes: `*`, `*.example.com` or a whole name."""
    for index, hostname in enumerate(hostnames):
        message = _hostname_problem(hostname)
        if message:
            yield Violation(item(path, index), message, "name")


def _hostname_problem(hostname: str) -> str:
    if len(hostname) > names.NAME_LENGTH_MAX:
        return f"must be at most {names.NAME_LENGTH_MAX} characters"
    if hostname == "*":
        return ""
    if hostname.startswith("*."):
        return "" if names.is_subdomain(hostname[2:]) else "invalid wildcard domain"
    if route_filters.is_ip(hostname):
        return "cannot be an IP address"
    return "" if names.is_subdomain(hostname) else "invalid hostname"


def warnings(rules: tuple[HttpRule, ...], path: str) -> Iterator[str]:
    """What stands in rules and cannot act."""
    for index, rule in enumerate(rules):
        at = item(path, index)
        for position, match in enumerate(rule.matches):
            headers = child(item(child(at, "matches"), position), "headers")
            yield from route_matches.header_warnings(match.headers, headers)
        conf = child(at, "default")
        yield from route_filters.warnings(rule.default.filters or (), child(conf, "filters"))
        yield from backend_refs.warnings(rule.default.backend_refs or (), child(conf, "backendRefs"))
