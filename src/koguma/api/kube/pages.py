"""Discovery, OpenAPI and version: documents that are built once per catalog and served with an ETag."""

import hashlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, TypeVar

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from koguma import __version__
from koguma.access.authorizer import Attempt, denied
from koguma.api.call import JSON, Call
from koguma.api.kube import negotiation
from koguma.api.kube.target import RequestTarget
from koguma.application.context import Context
from koguma.kube import discovery, openapi
from koguma.kube.aggregation import RemoteVersion
from koguma.kube.catalog import Catalog
from koguma.kube.registry import KubeEndpoint, Registry
from koguma.model.errors import Forbidden, NotAcceptable, NotFound
from koguma.model.schema import Json
from koguma.model.short_keys import is_short

_DISCOVERY_GROUP: Final = "apidiscovery.k8s.io"
_V2_ASKED: Final = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
_V2_SAID: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
# Which release of Kubernetes' API this speaks; clients compare their own version with it.
_MAJOR: Final = "1"
_MINOR: Final = "36"
_CACHED_MAX: Final = 1_000

K = TypeVar("K")
V = TypeVar("V")


class DiscoveryPage(msgspec.Struct, frozen=True, dict=True):
    """An encoded document with its ETag."""

    body: bytes
    etag: str
    content_type: str = JSON
    by_accept: bool = False  # whether the document depends on the Accept header

    @cached_property
    def headers(self) -> CIMultiDict[str]:
        """The headers, also of a 304."""
        headers = {"ETag": self.etag, "Cache-Control": "public"}
        return CIMultiDict({**headers, "Vary": "Accept"} if self.by_accept else headers)


def _page(body: bytes, content_type: str = JSON, *, by_accept: bool = False) -> DiscoveryPage:
    return DiscoveryPage(body, f'"{hashlib.sha256(body).hexdigest().upper()}"', content_type, by_accept)


class BuiltPage(msgspec.Struct, frozen=True):
    """A document of OpenAPI v3, and the endpoints that it describes."""

    page: DiscoveryPage
    endpoints: tuple[KubeEndpoint, ...]


def _are_same(some: Sequence[KubeEndpoint], others: Sequence[KubeEndpoint]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


class Pages:
    """Handlers of the documents that describe one catalog, and what other servers serve beside it.

    Where one of them changes, there are other pages. Documents that are the same as in the pages `before` are
    not built again.
    """

    def __init__(
        self,
        context: Context,
        catalog: Catalog,
        remotes: tuple[RemoteVersion, ...],
        *,
        resource_ids: bool,
        before: "Pages | None" = None,
    ) -> None:
        self._context = context
        self._registry = catalog.registry
        self.remotes = remotes
        self.catalog = catalog  # its schemas are built at the first request for them
        self._before = before.built_v3 if before else {}
        self._resource_ids = resource_ids
        self._made: dict[tuple[str, ...], DiscoveryPage] = {}
        self._negotiated_pages: dict[tuple[str, str], DiscoveryPage] = {}  # by root and Accept header
        self._attempts: dict[str, Attempt] = {}

    def _cached_page(self, key: tuple[str, ...], make: Callable[[], Json | None]) -> DiscoveryPage:
        page = self._made.get(key)
        if page is None:
            document = make()
            if document is None:
                raise NotFound("404 page not found")
            page = self._made[key] = _page(msgspec.json.encode(document))
        return page

    async def core(self, call: Call) -> web.StreamResponse:
        """`/api`."""
        return self._root(call, "api", lambda: discovery.core_versions(self._registry))

    async def groups(self, call: Call) -> web.StreamResponse:
        """`/apis`."""
        return self._root(call, "apis", lambda: discovery.groups(self._registry, self.remotes))

    def _root(self, call: Call, word: str, plain: Callable[[], Json]) -> web.StreamResponse:
        self._check(call)
        accept = call.header("Accept") or "*/*"
        page = self._negotiated_pages.get((word, accept))
        if page is None:
            page = self._negotiated(word, accept, plain)
            if is_short(word, accept):
                _cache(self._negotiated_pages, (word, accept), page)
        return _page_response(call, page)

    def _negotiated(self, root: str, accept: str, plain: Callable[[], Json]) -> DiscoveryPage:
        for entry in accept.split(","):
            media, media_parameters = negotiation.parameters(entry)
            if media not in (JSON, "*/*", "application/*"):
                continue
            if "as" not in media_parameters:
                return msgspec.structs.replace(self._cached_page((root,), plain), by_accept=True)
            requested, version = (
                (media_parameters["as"], media_parameters.get("g")),
                media_parameters.get("v", ""),
            )
            if requested == ("APIGroupDiscoveryList", _DISCOVERY_GROUP) and version in discovery.AGGREGATED:
                return self._aggregated(root, version)
        raise NotAcceptable(f"only {JSON} is served here, plain or as APIGroupDiscoveryList")

    def _aggregated(self, root: str, version: str) -> DiscoveryPage:
        def build() -> Json:
            core = root == "api"
            return discovery.aggregated(
                self._registry, version, core=core, resource_ids=self._resource_ids, remotes=self.remotes
            )

        content_type = f"{JSON};g={_DISCOVERY_GROUP};v={version};as=APIGroupDiscoveryList"
        return msgspec.structs.replace(
            self._cached_page((root, version), build), content_type=content_type, by_accept=True
        )

    async def group(self, call: Call, name: str) -> web.StreamResponse:
        """`/apis/<group>`."""
        self._check(call)

        def make() -> Json:
            return discovery.group(self._registry, name, self.remotes)

        return _page_response(call, self._cached_page(("group", name), make))

    async def resources(self, call: Call, group: str, version: str) -> web.StreamResponse:
        """`/apis/<group>/<version>` and `/api/v1`."""
        self._check(call)

        def make() -> Json:
            return discovery.resources(self._registry, group, version, resource_ids=self._resource_ids)

        return _page_response(call, self._cached_page(("resources", group, version), make))

    async def openapi_v3(self, call: Call, *path: str) -> web.StreamResponse:
        """The index, or the document of one group and version."""
        self._check(call)
        if not path:
            return _page_response(call, self._v3_index)
        root = "/".join(path)
        built = self._v3.get(root)
        if built is None:
            raise NotFound("404 page not found")
        page = built.page
        digest = call.query.get("hash") if call.has_query else None
        if not digest:
            return _page_response(call, page)
        newest = page.etag.strip('"')
        if digest != newest:  # of an earlier version of this document
            return web.Response(status=301, headers={"Location": openapi.v3_url(root, newest)})
        response = _page_response(call, page)
        response.headers["Cache-Control"] = "public, immutable, max-age=31536000"
        return response

    @cached_property
    def _v3(self) -> "dict[str, BuiltPage]":
        pages = {}
        for root, (group, version) in openapi.v3_roots(self._registry).items():
            endpoints = self._registry.at(group, version)
            before = self._before.get(root)
            if before is None or not _are_same(before.endpoints, endpoints):
                document = openapi.v3_document(self._registry, self.catalog.schemas, group, version)
                before = BuiltPage(_page(msgspec.json.encode(document)), endpoints)
            pages[root] = before
        return pages

    @property
    def built_v3(self) -> "Mapping[str, BuiltPage]":
        """The documents of OpenAPI v3 that were built so far, for the pages of the next catalog."""
        return self._v3 if "_v3" in self.__dict__ else self._before

    @cached_property
    def _v3_index(self) -> DiscoveryPage:
        digests = {root: openapi.digest(built.page.body) for root, built in self._v3.items()}
        digests |= {
            f"apis/{remote.service.api_version}": remote.openapi_digest
            for remote in self.remotes
            if remote.openapi_digest
        }
        return _page(msgspec.json.encode(openapi.v3_index(digests)))

    async def openapi_v2(self, call: Call) -> web.StreamResponse:
        """OpenAPI v2 of the whole API, as protobuf or JSON by the Accept header."""
        self._check(call)
        for entry in (call.header("Accept") or "*/*").split(","):
            media, _ = negotiation.parameters(entry)
            if media in (_V2_ASKED, _V2_SAID):
                return _page_response(call, self._v2_protobuf)
            if media in (JSON, "*/*", "application/*"):
                return _page_response(call, self._v2_json)
        raise NotAcceptable(f"only {JSON} and {_V2_ASKED} are served here")

    @cached_property
    def _v2(self) -> Json:
        return openapi.v2_document(self._registry, self.catalog.schemas)

    @cached_property
    def _v2_json(self) -> DiscoveryPage:
        return _page(msgspec.json.encode(self._v2), by_accept=True)

    @cached_property
    def _v2_protobuf(self) -> DiscoveryPage:
        return _page(openapi.v2_protobuf(self._v2), _V2_SAID, by_accept=True)

    async def version(self, _call: Call) -> web.StreamResponse:
        """The Kubernetes version that this API is compatible with, and our own."""
        body = {
            "major": _MAJOR,
            "minor": _MINOR,
            "gitVersion": f"v{_MAJOR}.{_MINOR}.0+koguma-{__version__}",
            "gitCommit": "",
            "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "none",
            "compiler": "python",
            "platform": "any",
        }
        return web.Response(body=msgspec.json.encode(body), headers={"Content-Type": JSON})

    def _check(self, call: Call) -> None:
        path = call.request.path
        attempt = self._attempts.get(path)
        if attempt is None:
            attempt = Attempt("get", path=path.rstrip("/") or "/")
            if is_short(path):
                _cache(self._attempts, path, attempt)
        if not self._context.access.allows(call.user, attempt):
            raise Forbidden(denied(call.user, attempt))


def _page_response(call: Call, page: DiscoveryPage) -> web.Response:
    headers = page.headers.copy()
    if page.etag in (call.header("If-None-Match") or ""):
        return web.Response(status=304, headers=headers)
    headers["Content-Type"] = page.content_type
    call.is_compressible = True
    return web.Response(body=page.body, headers=headers)


def _cache(cache: dict[K, V], key: K, value: V) -> None:
    """Cache an entry; the cache is limited, since clients choose the keys."""
    if len(cache) >= _CACHED_MAX:
        cache.clear()
    cache[key] = value


def addressed(registry: Registry, group: str, version: str, rest: tuple[str, ...]) -> RequestTarget | None:
    """The target of the path below a group and version; None where there is none."""
    for target in _readings(registry, group, version, rest):
        return target
    return None


def _readings(registry: Registry, group: str, version: str, rest: tuple[str, ...]) -> Iterator[RequestTarget]:
    if len(rest) > 2 and rest[0] == "namespaces":  # noqa: PLR2004 - namespaces/{namespace}/{plural}
        endpoint = registry.find(group, version, rest[2])
        if endpoint is not None and endpoint.namespaced:
            yield from _below(RequestTarget(endpoint, rest[1]), rest[3:])
    endpoint = registry.find(group, version, rest[0]) if rest else None
    if endpoint is not None:
        if not endpoint.namespaced:
            yield from _below(RequestTarget(endpoint), rest[1:])
        elif len(rest) == 1:
            yield RequestTarget(endpoint)


def _below(target: RequestTarget, rest: tuple[str, ...]) -> Iterator[RequestTarget]:
    match rest:
        case ():
            yield target
        case (name,) if name:
            yield msgspec.structs.replace(target, name=name)
        case (name, part) if part in target.endpoint.subresources:
            yield msgspec.structs.replace(target, name=name, subresource=part)
