"""Filters: what a routing rule does to a request or its response on the way.

Shared by MeshHTTPRoute and MeshGatewayHTTPRoute. Two filters answer the request themselves, RequestRedirect
and DirectResponse; nothing that needs a backend can stand beside them.
"""

import base64
import ipaddress
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec

from koguma.model import names
from koguma.model.kind import Deprecation, ValidationContext
from koguma.model.schema import Base64, IntOrString, Port, Spec, doc
from koguma.model.target_ref import BackendRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import backend_refs, fields, spelling
from koguma.policies.parts.route_matches import header_reading, line_violations

# Envoy's default of RouteConfiguration.max_direct_response_body_size_bytes.
DIRECT_RESPONSE_BYTES_MAX: Final = 4096
_HEADERS_MAX: Final = 16


HeaderValues = Annotated[tuple[fields.Header, ...], msgspec.Meta(max_length=_HEADERS_MAX)]
HeaderNames = Annotated[tuple[fields.HeaderName, ...], msgspec.Meta(max_length=_HEADERS_MAX)]


class HttpHeaderModifier(Spec):
    """Changes of headers; a name may stand in one of the lists only."""

    set: Annotated[HeaderValues | None, doc("Replace the header.")] = None
    add: Annotated[HeaderValues | None, doc("Add to the header.")] = None
    remove: Annotated[HeaderNames | None, doc("Remove the header.")] = None


class HttpPathRewrite(Spec):
    """How a path is replaced."""

    type: Annotated[Literal["ReplaceFullPath", "ReplacePrefixMatch"], doc("The whole path, or its prefix.")]
    replace_full_path: Annotated[str | None, doc("The new path.")] = None
    replace_prefix_match: Annotated[
        str | None, doc("What comes instead of the matched prefix; every match must be a PathPrefix.")
    ] = None


class HttpRequestRedirect(Spec):
    """Sends the client elsewhere; what is not set stays as in the request."""

    scheme: Annotated[Literal["http", "https"] | None, doc("The new scheme.")] = None
    hostname: Annotated[str | None, doc("The new host.", min_length=1, max_length=253)] = None
    path: Annotated[HttpPathRewrite | None, doc("The new path.")] = None
    port: Annotated[Port | None, doc("The new port.")] = None
    status_code: Annotated[Literal[301, 302, 303, 307, 308], doc("The status of the answer.")] = 302


class HttpUrlRewrite(Spec):
    """Changes the request's host or path before it goes on."""

    hostname: Annotated[str | None, doc("The new host.", min_length=1, max_length=253)] = None
    path: Annotated[HttpPathRewrite | None, doc("The new path.")] = None
    host_to_backend_hostname: Annotated[
        bool | None, doc("Take the name of the chosen backend as host; on gateways only.")
    ] = None


class HttpRequestMirror(Spec):
    """Sends a copy elsewhere and ignores the answer."""

    backend_ref: Annotated[BackendRef, doc("Where the copy goes.")]
    percentage: Annotated[IntOrString | None, doc("Share of the requests; all by default.")] = None


class HttpDirectResponseBody(Spec):
    """The body of a direct response, from exactly one source."""

    inline_bytes: Annotated[Base64 | None, doc("The body, base64.")] = None
    inline_string: Annotated[str | None, doc("The body as text.")] = None
    filename: Annotated[str | None, doc("A file of the proxy's machine.", min_length=1)] = None
    environment_variable: Annotated[
        str | None, doc("A variable of the proxy's environment.", min_length=1)
    ] = None


class HttpDirectResponse(Spec):
    """Answers the request without asking a backend."""

    status: Annotated[int, doc("The status of the answer.", ge=200, le=599)]
    body: Annotated[HttpDirectResponseBody | None, doc("The body; empty by default.")] = None


class HttpFilter(Spec):
    """One step; the field that belongs to `type` says how."""

    type: Annotated[
        Literal[
            "RequestHeaderModifier",
            "ResponseHeaderModifier",
            "RequestRedirect",
            "URLRewrite",
            "RequestMirror",
            "DirectResponse",
        ],
        doc("What the filter does."),
    ]
    request_header_modifier: Annotated[HttpHeaderModifier | None, doc("Changes of the request.")] = None
    response_header_modifier: Annotated[HttpHeaderModifier | None, doc("Changes of the response.")] = None
    request_redirect: Annotated[HttpRequestRedirect | None, doc("Where the client is sent.")] = None
    url_rewrite: Annotated[HttpUrlRewrite | None, doc("The new host or path.")] = None
    request_mirror: Annotated[HttpRequestMirror | None, doc("Where a copy goes.")] = None
    direct_response: Annotated[HttpDirectResponse | None, doc("The answer.")] = None


_BODIES: Final = {
    "requestHeaderModifier": "RequestHeaderModifier",
    "responseHeaderModifier": "ResponseHeaderModifier",
    "requestRedirect": "RequestRedirect",
    "urlRewrite": "URLRewrite",
    "requestMirror": "RequestMirror",
    "directResponse": "DirectResponse",
}
_FIELD_OF: Final = {type_: field for field, type_ in _BODIES.items()}
_ANSWERS: Final = ("RequestRedirect", "DirectResponse")

_rewrite_reading: Final = spelling.field(
    "path",
    spelling.typed({"replaceFullPath": "ReplaceFullPath", "replacePrefixMatch": "ReplacePrefixMatch"}),
)
_modifier_reading: Final = spelling.chain(
    spelling.field("set", spelling.each(header_reading)),
    spelling.field("add", spelling.each(header_reading)),
    spelling.field("remove", spelling.each(spelling.header_name)),
)
filter_reading: Final = spelling.chain(
    spelling.renamed("requestHeader", "requestHeaderModifier"),
    spelling.renamed("responseHeader", "responseHeaderModifier"),
    spelling.typed(_BODIES),
    spelling.field("requestHeaderModifier", _modifier_reading),
    spelling.field("responseHeaderModifier", _modifier_reading),
    spelling.field("requestRedirect", _rewrite_reading),
    spelling.field("urlRewrite", _rewrite_reading),
    spelling.field("requestMirror", spelling.field("backendRef", spelling.ref)),
)
reading: Final = spelling.each(filter_reading)


def deprecations(filter_: str) -> tuple[Deprecation, ...]:
    """What `koguma.io/v1` lacks of the spellings of a filter at this field."""
    return (
        Deprecation(f"{filter_}.type", "write the type that the filter's field belongs to", value="none"),
        Deprecation(f"{filter_}.requestHeader", "write requestHeaderModifier"),
        Deprecation(f"{filter_}.responseHeader", "write responseHeaderModifier"),
    )


class Setting(msgspec.Struct, frozen=True):
    """Where the filters stand: on a gateway or not, behind which matches, in whose policy."""

    gateway: bool
    prefixes: bool  # every match of the rule is a path prefix
    context: ValidationContext


def answers(filters: tuple[HttpFilter, ...]) -> str:
    """The type of the filter that answers the request itself; empty where none does."""
    return next((each.type for each in filters if each.type in _ANSWERS), "")


def violations(filters: tuple[HttpFilter, ...], path: str, setting: Setting) -> Iterator[Violation]:
    """What is wrong with the filters of one rule."""
    redirects = any(each.type == "RequestRedirect" for each in filters)
    for index, each in enumerate(filters):
        at = item(path, index)
        if redirects and each.type in ("URLRewrite", "DirectResponse"):
            message = f"{each.type} must not be used together with RequestRedirect"
            yield Violation(child(at, "type"), message, "exclusive")
        yield from filter_violations(each, at, setting)


def filter_violations(each: HttpFilter, path: str, setting: Setting) -> Iterator[Violation]:
    """What is wrong with one filter, whatever stands beside it."""
    body = _body(each, each.type)
    if body is None:
        yield Violation(child(path, _FIELD_OF[each.type]), fields.MUST_BE_DEFINED, "required")
    else:
        yield from _body_violations(body, child(path, _FIELD_OF[each.type]), setting)


_Body = HttpHeaderModifier | HttpRequestRedirect | HttpUrlRewrite | HttpRequestMirror | HttpDirectResponse


def _body(each: HttpFilter, type_: str) -> _Body | None:
    match type_:
        case "RequestHeaderModifier":
            return each.request_header_modifier
        case "ResponseHeaderModifier":
            return each.response_header_modifier
        case "RequestRedirect":
            return each.request_redirect
        case "URLRewrite":
            return each.url_rewrite
        case "RequestMirror":
            return each.request_mirror
        case _:
            return each.direct_response


def _body_violations(body: _Body, path: str, setting: Setting) -> Iterator[Violation]:
    match body:
        case HttpHeaderModifier():
            yield from _modifier(body, path)
        case HttpRequestRedirect():
            yield from _hostname(body.hostname, child(path, "hostname"))
            yield from _rewrite(body.path, child(path, "path"), setting)
        case HttpUrlRewrite():
            yield from _hostname(body.hostname, child(path, "hostname"))
            yield from _rewrite(body.path, child(path, "path"), setting)
            yield from _backend_hostname(body, child(path, "hostToBackendHostname"), setting)
        case HttpRequestMirror():
            yield from _mirror(body, path)
        case HttpDirectResponse():
            yield from _direct_body(body.body, child(path, "body"), setting.context)


def _modifier(modifier: HttpHeaderModifier, path: str) -> Iterator[Violation]:
    if modifier == HttpHeaderModifier():
        yield Violation(path, "must have at least one defined: set, add, remove", "required")
    seen: set[str] = set()
    for field, headers in (("set", modifier.set), ("add", modifier.add)):
        for index, header in enumerate(headers or ()):
            at = item(child(path, field), index)
            yield from _modified(header.name, child(at, "name"), seen)
            yield from line_violations(header.value, child(at, "value"))
    for index, name in enumerate(modifier.remove or ()):
        yield from _modified(name, item(child(path, "remove"), index), seen)


def _modified(name: str, at: str, seen: set[str]) -> Iterator[Violation]:
    if name == "host":
        message = "the host header cannot be changed by a header modifier; use URLRewrite with hostname"
        yield Violation(at, message, "forbidden")
    if name in seen:
        yield Violation(at, "duplicate header name", "unique")
    seen.add(name)


def _hostname(hostname: str | None, at: str) -> Iterator[Violation]:
    if hostname is None:
        return
    if is_ip(hostname):
        yield Violation(at, "cannot be an IP address", "name")
    elif not names.is_subdomain(hostname):
        yield Violation(at, names.SUBDOMAIN_MESSAGE, "name")


def is_ip(text: str) -> bool:
    """Whether a host is written as an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _rewrite(rewrite: HttpPathRewrite | None, path: str, setting: Setting) -> Iterator[Violation]:
    if rewrite is None:
        return
    full, prefix = child(path, "replaceFullPath"), child(path, "replacePrefixMatch")
    needed = rewrite.replace_full_path, full
    if rewrite.type == "ReplacePrefixMatch":
        needed = rewrite.replace_prefix_match, prefix
    if needed[0] is None:
        yield Violation(needed[1], f"must be defined with type {rewrite.type}", "required")
    yield from line_violations(rewrite.replace_full_path or "", full)
    if rewrite.replace_prefix_match is not None:
        yield from line_violations(rewrite.replace_prefix_match, prefix)
        if not setting.prefixes:
            yield Violation(prefix, "can only appear if all matches match a path prefix", "forbidden")


def _backend_hostname(rewrite: HttpUrlRewrite, at: str, setting: Setting) -> Iterator[Violation]:
    if not rewrite.host_to_backend_hostname:
        return
    if not setting.gateway:
        yield Violation(at, "can only be set with MeshGateway", "forbidden")
    if rewrite.hostname is not None:
        yield Violation(at, "cannot be set together with hostname", "exclusive")


def _mirror(mirror: HttpRequestMirror, path: str) -> Iterator[Violation]:
    yield from fields.percent(mirror.percentage, child(path, "percentage"))
    yield from backend_refs.ref_violations(mirror.backend_ref, child(path, "backendRef"))


_INLINE: Final = "write the body as inlineString or inlineBytes"
_SOURCES: Final = "inlineBytes, inlineString, filename, environmentVariable"


def _direct_body(
    body: HttpDirectResponseBody | None, path: str, context: ValidationContext
) -> Iterator[Violation]:
    if body is None:
        return
    sources = (body.inline_bytes, body.inline_string, body.filename, body.environment_variable)
    if sum(source is not None for source in sources) != 1:
        yield Violation(path, f"must have exactly one defined: {_SOURCES}", "exclusive")
    if body.inline_bytes is not None:
        yield from _size(base64.b64decode(body.inline_bytes), child(path, "inlineBytes"))
    if body.inline_string is not None:
        yield from _size(body.inline_string.encode(errors="replace"), child(path, "inlineString"))
    if body.filename is not None:
        yield from fields.of_the_machine(child(path, "filename"), context, _INLINE)
    if body.environment_variable is not None:
        yield from fields.of_the_machine(child(path, "environmentVariable"), context, _INLINE)


def _size(body: bytes, at: str) -> Iterator[Violation]:
    if len(body) > DIRECT_RESPONSE_BYTES_MAX:
        message = f"is {len(body)} bytes long; a direct response has at most {DIRECT_RESPONSE_BYTES_MAX}"
        yield Violation(at, message, "length")


def warnings(filters: tuple[HttpFilter, ...], path: str) -> Iterator[str]:
    """Fields that no filter reads, and filters that cannot act, alone or beside one that answers."""
    answer = answers(filters)
    for index, each in enumerate(filters):
        at = item(path, index)
        yield from unread_fields(each, at)
        if answer and each.type in ("RequestMirror", "URLRewrite"):
            yield f"{at} ({each.type}) has no effect, since {answer} answers the request"
        mirror = each.request_mirror if each.type == "RequestMirror" else None
        if mirror is not None and mirror.backend_ref.kind == "MeshServiceSubset":
            where = f"{at}.requestMirror.backendRef"
            yield f"{where} has no effect: Envoy copies requests to whole services only; use MeshService"


def unread_fields(each: HttpFilter, path: str) -> Iterator[str]:
    """Fields of a filter that belong to another type."""
    for field, type_ in _BODIES.items():
        if type_ != each.type and _body(each, type_) is not None:
            yield f"{child(path, field)} has no effect, since the filter's type is {each.type}"
