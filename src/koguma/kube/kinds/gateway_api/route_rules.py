"""Route rules: what must hold in a route of the Gateway API beside its schema."""

import ipaddress
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from koguma.kube import field_errors
from koguma.model import duration
from koguma.model.gateway_api.grpc_routes import (
    GrpcBackend,
    GrpcMethodMatch,
    GrpcRouteFilter,
    GrpcRouteRule,
    GrpcRouteSpec,
)
from koguma.model.gateway_api.http_routes import (
    MATCHES_MAX,
    ExternalAuth,
    HttpBackend,
    HttpRouteFilter,
    HttpRouteRule,
    HttpRouteSpec,
    PathChange,
    RequestMirror,
    RouteCors,
    RoutePathMatch,
    RouteTimeouts,
    SessionPersistence,
)
from koguma.model.gateway_api.references import BackendObjectReference, ParentReference, RouteSpec
from koguma.model.gateway_api.stream_routes import TcpRouteSpec, TlsRouteSpec, UdpRouteSpec
from koguma.model.kind import ValidationContext
from koguma.model.violation import Violation, child, item

_PATH: Final = re.compile(r"(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})+")
_NOT_IN_PATHS: Final = ("//", "/./", "/../", "%2f", "%2F", "#")
_NOT_AT_END: Final = ("/..", "/.")
_SERVICE: Final = re.compile(r"\.?[a-zA-Z_][a-zA-Z_0-9]*(\.[a-zA-Z_][a-zA-Z_0-9]*)*")
_METHOD: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_ONCE: Final = (
    "CORS",
    "RequestHeaderModifier",
    "ResponseHeaderModifier",
    "RequestRedirect",
    "URLRewrite",
)
_PREFIX: Final = "ReplacePrefixMatch"
# The field that says how, by the type of a filter.
_FILTER_FIELDS: Final = {
    "RequestHeaderModifier": ("requestHeaderModifier", "request_header_modifier"),
    "ResponseHeaderModifier": ("responseHeaderModifier", "response_header_modifier"),
    "RequestMirror": ("requestMirror", "request_mirror"),
    "RequestRedirect": ("requestRedirect", "request_redirect"),
    "URLRewrite": ("urlRewrite", "url_rewrite"),
    "CORS": ("cors", "cors"),
    "ExternalAuth": ("externalAuth", "external_auth"),
    "ExtensionRef": ("extensionRef", "extension_ref"),
}
_Filter = HttpRouteFilter | GrpcRouteFilter
_Rule = HttpRouteRule | GrpcRouteRule


def http_route(spec: HttpRouteSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What must hold in an HTTPRoute."""
    yield from _parents(spec)
    yield from _rules(spec.rules)
    for index, rule in enumerate(spec.rules):
        at = item("spec.rules", index)
        for number, match in enumerate(rule.matches):
            yield from _path_match(match.path, f"{item(f'{at}.matches', number)}.path")
        yield from _redirects(rule, at)
        yield from _timeouts(rule.timeouts, f"{at}.timeouts")


def grpc_route(spec: GrpcRouteSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What must hold in a GRPCRoute."""
    yield from _parents(spec)
    rules = spec.rules or ()
    yield from _rules(rules)
    for index, rule in enumerate(rules):
        for number, match in enumerate(rule.matches or ()):
            at = f"{item(f'spec.rules[{index}].matches', number)}.method"
            yield from _method_match(match.method, at)


def stream_route(
    spec: TcpRouteSpec | TlsRouteSpec | UdpRouteSpec, _context: ValidationContext
) -> Iterator[Violation]:
    """What must hold in a TCPRoute, a TLSRoute and a UDPRoute."""
    yield from _parents(spec)
    if isinstance(spec, TlsRouteSpec):
        for index, hostname in enumerate(spec.hostnames):
            if _is_ip(hostname):
                at = item("spec.hostnames", index)
                yield field_errors.invalid(at, hostname, "an address is no host name that TLS can ask for")
    for index, rule in enumerate(spec.rules):
        yield from _backends(rule.backend_refs, f"spec.rules[{index}].backendRefs")


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _parents(spec: RouteSpec) -> Iterator[Violation]:
    """References to one parent all name sections, all name ports, or there is only one of them."""
    refs = spec.parent_refs or ()
    for (first, one), (second, other) in itertools.combinations(enumerate(refs), 2):
        if _parent(one) != _parent(other):
            continue
        at = item("spec.parentRefs", second)
        there = item("spec.parentRefs", first)
        if bool(one.section_name) != bool(other.section_name) or bool(one.port) != bool(other.port):
            text = f"names the same parent as {there}: both must set sectionName, or both port"
            yield field_errors.invalid(at, other.name, text, "distinct")
        elif (one.section_name, one.port) == (other.section_name, other.port):
            text = f"names the same parent, sectionName and port as {there}"
            yield field_errors.invalid(at, other.name, text, "distinct")


def _parent(ref: ParentReference) -> tuple[str, str, str, str]:
    return ref.group, ref.kind, ref.namespace or "", ref.name


def _rules(rules: Sequence[_Rule]) -> Iterator[Violation]:
    """Names of rules, how many matches there are, and what each rule does."""
    seen: set[str] = set()
    for index, rule in enumerate(rules):
        at = item("spec.rules", index)
        if rule.name in seen:
            yield field_errors.duplicate(f"{at}.name", rule.name)
        if rule.name:
            seen.add(rule.name)
        yield from _filters(rule.filters or (), f"{at}.filters")
        backends: Sequence[HttpBackend | GrpcBackend] = rule.backend_refs or ()
        yield from _backends(backends, f"{at}.backendRefs")
        for number, backend in enumerate(backends):
            yield from _filters(backend.filters or (), f"{at}.backendRefs[{number}].filters")
        yield from _session(rule.session_persistence, f"{at}.sessionPersistence")
    n_matches = sum(len(rule.matches or ()) for rule in rules)
    if n_matches > MATCHES_MAX:
        text = f"have {n_matches} matches; a route may have {MATCHES_MAX} in all its rules together"
        yield Violation("spec.rules", text, "too-many")


def _filters(filters: Sequence[_Filter], path: str) -> Iterator[Violation]:
    types = [each.type for each in filters]
    if "RequestRedirect" in types and "URLRewrite" in types:
        text = "RequestRedirect and URLRewrite exclude each other: who is sent away is not rewritten"
        yield Violation(path, text, "exclusive")
    for index, each in enumerate(filters):
        at = item(path, index)
        if each.type in _ONCE and each.type in types[:index]:
            yield field_errors.invalid(
                f"{at}.type", each.type, "may stand once in a list of filters", "repeated"
            )
        yield from _filter(each, at)


def _filter(each: _Filter, path: str) -> Iterator[Violation]:
    for type_, (name, attribute) in _FILTER_FIELDS.items():
        is_set = getattr(each, attribute, None) is not None
        if is_set and each.type != type_:
            text = f"belongs to type {type_}; this filter's type is {each.type}"
            yield field_errors.forbidden(child(path, name), text)
        elif not is_set and each.type == type_:
            yield field_errors.required(child(path, name), f"type {type_} needs it")
    yield from _mirror(each.request_mirror, f"{path}.requestMirror")
    if isinstance(each, HttpRouteFilter):
        for modifier, at in ((each.request_redirect, "requestRedirect"), (each.url_rewrite, "urlRewrite")):
            yield from _path_change(modifier.path if modifier else None, f"{path}.{at}.path")
        yield from _cors(each.cors, f"{path}.cors")
        yield from _auth(each.external_auth, f"{path}.externalAuth")


def _mirror(mirror: RequestMirror | None, path: str) -> Iterator[Violation]:
    if mirror is None:
        return
    yield from _backend(mirror.backend_ref, f"{path}.backendRef")
    if mirror.percent is not None and mirror.fraction is not None:
        yield field_errors.forbidden(f"{path}.fraction", "percent is set: only one of both may be")
    fraction = mirror.fraction
    if fraction is not None and fraction.numerator > fraction.denominator:
        text = f"must not be more than the denominator, {fraction.denominator}"
        yield field_errors.invalid(f"{path}.fraction.numerator", fraction.numerator, text)


def _path_change(change: PathChange | None, path: str) -> Iterator[Violation]:
    if change is None:
        return
    for type_, name, value in (
        ("ReplaceFullPath", "replaceFullPath", change.replace_full_path),
        (_PREFIX, "replacePrefixMatch", change.replace_prefix_match),
    ):
        if change.type == type_ and value is None:
            yield field_errors.required(child(path, name), f"type {type_} needs it")
        elif change.type != type_ and value is not None:
            yield field_errors.forbidden(child(path, name), f"belongs to type {type_}")


def _cors(cors: RouteCors | None, path: str) -> Iterator[Violation]:
    if cors is None:
        return
    lists: Iterable[tuple[str, Sequence[str] | None]] = (
        ("allowOrigins", cors.allow_origins),
        ("allowMethods", cors.allow_methods),
        ("allowHeaders", cors.allow_headers),
    )
    for name, values in lists:
        if values and "*" in values and len(values) > 1:
            yield field_errors.invalid(child(path, name), list(values), "`*` stands alone: it means all")


def _auth(auth: ExternalAuth | None, path: str) -> Iterator[Violation]:
    if auth is None:
        return
    yield from _backend(auth.backend_ref, f"{path}.backendRef")
    for protocol, name, value in (("GRPC", "grpc", auth.grpc), ("HTTP", "http", auth.http)):
        if auth.protocol == protocol and value is None:
            yield field_errors.required(child(path, name), f"protocol {protocol} needs it")
        elif auth.protocol != protocol and value is not None:
            yield field_errors.forbidden(child(path, name), f"belongs to protocol {protocol}")


def _backends(backends: Sequence[BackendObjectReference], path: str) -> Iterator[Violation]:
    for index, backend in enumerate(backends):
        yield from _backend(backend, item(path, index))


def _backend(backend: BackendObjectReference, path: str) -> Iterator[Violation]:
    if not backend.group and backend.kind == "Service" and backend.port is None:
        yield field_errors.required(f"{path}.port", "a Service is called on one of its ports")


def _path_match(match: RoutePathMatch, path: str) -> Iterator[Violation]:
    if match.type != "RegularExpression":
        problems = _path_problems(match.value)
        for problem in itertools.islice(problems, 1):
            text = f"{problem} where type is {match.type}"
            yield field_errors.invalid(f"{path}.value", match.value, text)


def _path_problems(value: str) -> Iterator[str]:
    if not value.startswith("/"):
        yield "must begin with '/'"
    yield from (f"must not contain '{part}'" for part in _NOT_IN_PATHS if part in value)
    yield from (f"must not end with '{part}'" for part in _NOT_AT_END if value.endswith(part))
    if not _PATH.fullmatch(value):
        yield "must have characters of a path only, others as %XX,"


def _redirects(rule: HttpRouteRule, path: str) -> Iterator[Violation]:
    """Redirects beside backends, and prefixes that are replaced where none was matched."""
    for index, each in enumerate(rule.filters or ()):
        if each.request_redirect is not None and rule.backend_refs:
            text = "the rule has backendRefs: it forwards requests or sends clients away, not both"
            yield field_errors.forbidden(f"{path}.filters[{index}].requestRedirect", text)
    lists = [(rule.filters or (), f"{path}.filters")]
    for index, backend in enumerate(rule.backend_refs or ()):
        lists.append((backend.filters or (), f"{path}.backendRefs[{index}].filters"))
    is_one_prefix = len(rule.matches) == 1 and rule.matches[0].path.type == "PathPrefix"
    for filters, at in lists:
        for index, each in enumerate(filters):
            for name, modifier in (
                ("requestRedirect", each.request_redirect),
                ("urlRewrite", each.url_rewrite),
            ):
                change = modifier.path if modifier else None
                if change and change.replace_prefix_match is not None and not is_one_prefix:
                    text = "needs a rule with exactly one match, whose path has type PathPrefix"
                    yield field_errors.forbidden(f"{at}[{index}].{name}.path.replacePrefixMatch", text)


def _timeouts(timeouts: RouteTimeouts | None, path: str) -> Iterator[Violation]:
    if timeouts is None or timeouts.request is None or timeouts.backend_request is None:
        return
    request, backend = duration.seconds(timeouts.request), duration.seconds(timeouts.backend_request)
    if request and backend > request:
        text = f"must not be longer than the whole request, {timeouts.request}"
        yield field_errors.invalid(f"{path}.backendRequest", timeouts.backend_request, text)


def _session(session: SessionPersistence | None, path: str) -> Iterator[Violation]:
    cookie = session.cookie_config if session else None
    if session and cookie and cookie.lifetime_type == "Permanent" and session.absolute_timeout is None:
        yield field_errors.required(f"{path}.absoluteTimeout", "a permanent cookie needs an end")


def _method_match(match: GrpcMethodMatch | None, path: str) -> Iterator[Violation]:
    if match is None:
        return
    if match.service is None and match.method is None:
        yield field_errors.required(path, "service, method or both")
    if match.type != "Exact":
        return
    for name, value, fits in (("service", match.service, _SERVICE), ("method", match.method, _METHOD)):
        if value is not None and not fits.fullmatch(value):
            yield field_errors.invalid(child(path, name), value, f"is no name of a {name} in gRPC")
