"""Lists: paging, filters and the `next` link, as Kuma's clients know them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import quote

import msgspec
from aiohttp import web

from koguma.model.errors import BadRequest, Invalid
from koguma.model.resource import Resource
from koguma.model.violation import Violation

SIZE_DEFAULT: Final = 100
SIZE_MAX: Final = 1_000

Wanted = Callable[[Resource], bool]


class Page(msgspec.Struct, frozen=True):
    """Which part of a list."""

    size: int = SIZE_DEFAULT
    offset: int = 0


def page(query: Mapping[str, str]) -> Page:
    """The part of the list that a query asks for."""
    return Page(_size(query.get("size")), _offset(query.get("offset")))


def _size(text: str | None) -> int:
    if text is None:
        return SIZE_DEFAULT
    try:
        size = int(text)
    except ValueError:
        raise Invalid([Violation("size", "invalid format", "format")], "Invalid page size") from None
    if size <= 0:
        raise Invalid([Violation("size", "must be greater than 0", "range")], "Invalid page size")
    if size > SIZE_MAX:
        message = f"invalid page size of {size}. Maximum page size is {SIZE_MAX}"
        raise Invalid([Violation("size", message, "range")], "Invalid page size")
    return size


def _offset(text: str | None) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 18:  # noqa: PLR2004 - past any list's end
        raise BadRequest(f'invalid: invalid offset: strconv.Atoi: parsing "{text}": invalid syntax')
    return int(text)


def wanted(query: Mapping[str, str], pairs: Sequence[tuple[str, str]], path: str) -> Wanted | None:
    """The filter that a query asks for: `name` substring and `filter[labels.<key>]=<value>`, all of them."""
    part = query.get("name", "")
    labels = list(_label_filters(pairs, path))
    if not part and not labels:
        return None

    def fits(resource: Resource) -> bool:
        return part in resource.core_name and all(
            resource.labels.get(name) == value for name, value in labels
        )

    return fits


def _label_filters(pairs: Sequence[tuple[str, str]], path: str) -> Iterator[tuple[str, str]]:
    for name, value in pairs:
        if not name.startswith("filter"):
            continue
        if not name.startswith("filter[labels."):
            raise Invalid([Violation(f"{path}.{name}", "filters are only supported on labels", "filter")])
        label, bracket, rest = name.removeprefix("filter[labels.").partition("]")
        if not bracket or not label:
            raise Invalid([Violation(f"{path}.{name}", "must be filter[labels.<key>]", "filter")])
        if rest:
            raise Invalid([Violation(f"{path}.{name}", "advanced filters are not supported", "filter")])
        yield label, value


def next_link(request: web.BaseRequest, offset: int) -> str:
    """The absolute address of the next page: the same query, keys sorted, another offset."""
    pairs = [(name, value) for name, value in request.rel_url.query.items() if name != "offset"]
    pairs.append(("offset", str(offset)))
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(pairs))
    return f"{request.scheme}://{request.host}{request.path}?{query}"


def body(items: Sequence[bytes], total: int, link: str | None) -> bytes:
    """A list's JSON, joined from ready bytes, which are copied once."""
    head, tail = b'{"total":%d,"items":[' % total, b'],"next":%b}' % msgspec.json.encode(link)
    if not items:
        return head + tail
    if len(items) == 1:
        return b"".join((head, items[0], tail))
    return b",".join((head + items[0], *items[1:-1], items[-1] + tail))
