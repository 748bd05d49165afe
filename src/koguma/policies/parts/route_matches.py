"""Matches: which requests a routing rule is for: by path, method, headers and query parameters.

Everything inside one match must hold; of several matches any one is enough. Shared by MeshHTTPRoute and
MeshGatewayHTTPRoute; MeshRetry uses the header match alone.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from koguma.model.schema import Json, Spec, doc
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import fields, regular_expression, spelling

Method = Literal["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"]


class HttpPathMatch(Spec):
    """A request's path, without its query."""

    type: Annotated[
        Literal["Exact", "PathPrefix", "RegularExpression"],
        doc("The whole path, its first segments, or an RE2 expression for the whole path."),
    ]
    value: Annotated[str, doc("What the path is compared with.", min_length=1)]


class HttpHeaderMatch(Spec):
    """One header of a request."""

    name: Annotated[fields.HeaderName, doc("The header's name.")]
    type: Annotated[
        Literal["Exact", "Present", "RegularExpression", "Absent", "Prefix"], doc("How it is compared.")
    ] = "Exact"
    value: Annotated[str | None, doc("What it is compared with; not for Present and Absent.")] = None


class HttpQueryParamMatch(Spec):
    """One query parameter of a request."""

    type: Annotated[Literal["Exact", "RegularExpression"], doc("How it is compared.")]
    name: Annotated[str, doc("The parameter's name; case matters.", min_length=1)]
    value: Annotated[str, doc("What it is compared with.")]


class HttpMatch(Spec):
    """Requests for which all of this holds."""

    path: Annotated[HttpPathMatch | None, doc("The path; any by default.")] = None
    method: Annotated[Method | None, doc("The method; any by default.")] = None
    query_params: Annotated[tuple[HttpQueryParamMatch, ...], doc("Query parameters, all of them.")] = ()
    headers: Annotated[tuple[HttpHeaderMatch, ...], doc("Headers, all of them.")] = ()


# `prefix: /v1` for `{type: PathPrefix, value: /v1}`, and its like.
_PATH_TYPES: Final = {
    "prefix": "PathPrefix",
    "pathPrefix": "PathPrefix",
    "exact": "Exact",
    "regularExpression": "RegularExpression",
}


def _type_as_key(value: Json) -> Json:
    if not isinstance(value, Mapping) or len(value) != 1:
        return value
    (name, text), *_ = value.items()
    return {"type": _PATH_TYPES[name], "value": text} if name in _PATH_TYPES else value


header_reading: Final = spelling.field("name", spelling.header_name)
_match_reading: Final = spelling.chain(
    spelling.field(
        "path", spelling.chain(_type_as_key, spelling.field("type", spelling.word("Prefix", "PathPrefix")))
    ),
    spelling.field("headers", spelling.each(header_reading)),
)
reading: Final = spelling.chain(spelling.one_as_list, spelling.each(_match_reading))


def violations(matches: tuple[HttpMatch, ...], path: str) -> Iterator[Violation]:
    """What is wrong with the matches of one rule."""
    for index, match in enumerate(matches):
        at = item(path, index)
        if match.path is not None:
            yield from _path(match.path, child(child(at, "path"), "value"))
        yield from _query_params(match.query_params, child(at, "queryParams"))
        yield from _unique([header.name for header in match.headers], child(at, "headers"))
        yield from header_violations(match.headers, child(at, "headers"))


_TRAILING_SLASH = (
    "does not need a trailing slash because only a `/`-separated prefix or an entire path is matched"
)


def _path(match: HttpPathMatch, at: str) -> Iterator[Violation]:
    if match.type == "RegularExpression":
        yield from regular_expression.violations(match.value, at)
        return
    if match.type == "PathPrefix" and match.value != "/" and match.value.endswith("/"):
        yield Violation(at, _TRAILING_SLASH, "path")
    if not match.value.startswith("/"):
        yield Violation(at, "must be an absolute path", "path")


def _query_params(params: tuple[HttpQueryParamMatch, ...], path: str) -> Iterator[Violation]:
    yield from _unique([param.name for param in params], path)
    for index, param in enumerate(params):
        if param.type == "RegularExpression":
            yield from regular_expression.violations(param.value, child(item(path, index), "value"))


def _unique(names: list[str], path: str) -> Iterator[Violation]:
    # Envoy would take all of them, Kuma takes the first: nobody means two.
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Violation(child(item(path, index), "name"), f"multiple entries for name {name}", "unique")


def header_violations(headers: tuple[HttpHeaderMatch, ...], path: str) -> Iterator[Violation]:
    """What is wrong with header matches, each seen alone."""
    for index, header in enumerate(headers):
        at = child(item(path, index), "value")
        if header.type in ("Present", "Absent") and header.value:
            instead = f"type {header.type} takes no value, type Exact compares with one"
            yield Violation(at, f"{fields.MUST_NOT_BE_DEFINED}; {instead}", "forbidden")
        elif header.type == "RegularExpression":
            yield from regular_expression.violations(header.value or "", at)


def line_violations(value: str, path: str) -> Iterator[Violation]:
    """What is wrong with text that becomes part of a header: Envoy takes no line break and no NUL there."""
    if any(char in value for char in "\r\n\0"):
        yield Violation(path, "must not contain a line break or NUL", "line")


def header_warnings(headers: tuple[HttpHeaderMatch, ...], path: str) -> Iterator[str]:
    """A header that is compared with nothing."""
    for index, header in enumerate(headers):
        if header.type == "Exact" and not header.value:
            yield (
                f"{item(path, index)} has no value, so it matches only an empty header;"
                " use type Present for any value"
            )


def are_prefixes(matches: tuple[HttpMatch, ...]) -> bool:
    """Whether every match is by path prefix, so that a prefix can be replaced."""
    return all(match.path is not None and match.path.type == "PathPrefix" for match in matches)
