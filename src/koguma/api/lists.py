"""Lists of the plain form: pages, filters and the `next` link, as Kuma's API has them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from urllib.parse import quote

import msgspec
from aiohttp import web
from multidict import MultiMapping

from koguma.api.parameters import SIZE_DEFAULT, SIZE_MAX
from koguma.kinds.insights import SERVICE_TYPES
from koguma.model import labels, tags
from koguma.model.errors import BadRequest, Invalid
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation

ResourceFilter = Callable[[Resource], bool]


class ListPage(msgspec.Struct, frozen=True):
    """Which part of a list a request asks for."""

    size: int = SIZE_DEFAULT
    offset: int = 0


def page(query: Mapping[str, str]) -> ListPage:
    """The part of the list that a query asks for."""
    return ListPage(_size(query.get("size")), _offset(query.get("offset")))


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


def resource_filter(query: MultiMapping[str], path: str, mesh: str | None) -> ResourceFilter | None:
    """The filter that a query asks for, all parts of it: name, labels, namespace, mesh, tags and gateways."""
    filters = list(_filters(query, path, mesh))
    return (lambda resource: all(fits(resource) for fits in filters)) if filters else None


def _filters(query: MultiMapping[str], path: str, mesh: str | None) -> Iterator[ResourceFilter]:
    part, namespace = query.get("name", ""), query.get("namespace", "")
    if part:
        yield lambda resource: part in resource.core_name
    for label, value in _label_filters(list(query.items()), path):
        yield partial(_has_label, label, value)
    if namespace:
        yield lambda resource: resource.labels.get(labels.NAMESPACE) == namespace
    yield from _mesh_filter(query.get("mesh", ""), mesh)
    pairs = [_tag(text) for text in query.getall("tag", ())]
    if pairs:
        yield lambda resource: any(_has_tags(tag_set, pairs) for tag_set in _tag_sets(resource))
    yield from _gateway_filter(query.get("gateway", ""), path)
    yield from _service_filter(query.get("type", ""))


def _has_label(label: str, value: str, resource: Resource) -> bool:
    return resource.labels.get(label) == value


def _mesh_filter(in_query: str, mesh: str | None) -> Iterator[ResourceFilter]:
    if in_query and mesh and in_query != mesh:
        text = (
            f'the path says mesh "{mesh}"; ask for the list of mesh "{in_query}", or leave the parameter out'
        )
        raise Invalid([Violation("mesh", text, "url")])
    if in_query and mesh is None:
        yield lambda resource: resource.mesh == in_query


def _tag(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not name or not colon:
        raise Invalid([Violation("tag", f'must be <tag>:<value>, not "{text[:100]}"', "format")])
    return name, value


def _tag_sets(dataplane: Resource) -> Iterator[Mapping[str, str]]:
    """The tags of each inbound and of the gateway, each over the labels of the Dataplane."""
    networking = dataplane.spec.get("networking") or {}
    gateway = networking.get("gateway")
    for tagged in (*(networking.get("inbound") or ()), *((gateway,) if gateway else ()), {}):
        yield {**dataplane.labels, **(tagged.get("tags") or {})}


def _has_tags(tags_of_inbound: Mapping[str, str], pairs: Sequence[tuple[str, str]]) -> bool:
    """Whether every tag is there with a value that contains the given text, as in Kuma."""
    return all(
        name in tags_of_inbound and (part == tags.ANY or part in tags_of_inbound[name])
        for name, part in pairs
    )


def _gateway_filter(word: str, path: str) -> Iterator[ResourceFilter]:
    match word:
        case "":
            return
        case "true":
            yield lambda resource: _gateway(resource) is not None
        case "false":
            yield lambda resource: _gateway(resource) is None
        case "builtin" | "delegated":
            yield lambda resource: _gateway_type(resource) == word.upper()
        case _:
            # Kuma's message, with its misspelling.
            text = f"shoud use `true`, `false`, 'builtin' or 'delegated' instead of {word[:100]}"
            raise Invalid([Violation(f"{path}.gateway", text, "enum")])


def _service_filter(text: str) -> Iterator[ResourceFilter]:
    """Service insights of some types."""
    if not text:
        return
    types = set(text.split(","))
    if not types <= set(SERVICE_TYPES):
        one_of = f"must be some of {', '.join(SERVICE_TYPES)}, separated by commas"
        # Kuma's message.
        raise BadRequest(
            "bad request: unsupported service type", violations=[Violation("type", one_of, "enum")]
        )
    yield lambda service: (service.spec.get("serviceType") or SERVICE_TYPES[0]) in types


def _gateway(dataplane: Resource) -> Json:
    return (dataplane.spec.get("networking") or {}).get("gateway")


def _gateway_type(dataplane: Resource) -> str:
    gateway = _gateway(dataplane)
    return str(gateway.get("type") or "DELEGATED") if gateway is not None else ""


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


def next_link(request: web.BaseRequest, place: int, parameter: str = "offset") -> str:
    """The absolute address of the next page: the same query, keys sorted, from another place on."""
    pairs = [(name, value) for name, value in request.rel_url.query.items() if name != parameter]
    pairs.append((parameter, str(place)))
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
