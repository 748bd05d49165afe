"""Routes of the Kubernetes form: `/api`, `/apis`, `/openapi`, `/version`, and what is below them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from koguma.api.call import Call
from koguma.api.dispatch import Handler, HttpEndpoint, Route, RouteMatch
from koguma.api.kube import negotiation, options, status
from koguma.api.kube.account_tokens import AccountTokens
from koguma.api.kube.answers import encoded_response
from koguma.api.kube.deleting import KubeDeletes
from koguma.api.kube.pages import Pages, addressed
from koguma.api.kube.probes import Probes
from koguma.api.kube.reading import KubeReads
from koguma.api.kube.remote import RemoteRequests
from koguma.api.kube.target import RequestTarget
from koguma.api.kube.watching import KubeWatches
from koguma.api.kube.writing import KubeWrites
from koguma.kube import endpoints
from koguma.kube.aggregation import RemoteVersion
from koguma.kube.registry import Registry
from koguma.model.errors import KogumaError, NotFound

_PLAIN_TEXT: Final = "text/plain; charset=utf-8"
PageHandler = Callable[..., Awaitable[web.StreamResponse]]  # a method of Pages
_REMOTE_METHODS: Final = ("GET", "PUT", "POST", "PATCH", "DELETE")
_ROOT: Final = 2  # segments of `/apis/<group>/<version>` after `apis`


class Handlers(msgspec.Struct, frozen=True):
    """The handlers of all paths."""

    pages: Callable[[], Pages]  # of what is served now
    reading: KubeReads
    watching: KubeWatches
    writing: KubeWrites
    deleting: KubeDeletes
    reviewing: Handler
    probes: Probes
    tokens: AccountTokens


def remote(find: Callable[[str, str], RemoteVersion | None], requests: RemoteRequests) -> Route:
    """The paths of groups and versions that other servers serve."""
    forwarded = _endpoint("remote", dict.fromkeys(_REMOTE_METHODS, requests.forward))
    document = _page("openapi", requests.openapi)

    def route(segments: tuple[str, ...]) -> RouteMatch | None:
        match segments:
            case ("openapi", "v3", "apis", name, number) if served := find(name, number):
                return document, (served,)
            case ("apis", name, number, *rest) if served := find(name, number):
                return forwarded, (served, *rest)
        return None

    return route


def kube(registry: Callable[[], Registry], handlers: Handlers) -> Route:
    """All paths of the Kubernetes form that this control plane serves itself."""

    def _described(word: str, page: PageHandler, *, is_open: bool = False) -> HttpEndpoint:
        async def handler(call: Call, *parts: str) -> web.StreamResponse:
            return await page(handlers.pages(), call, *parts)

        return _page(word, handler, is_open=is_open)

    fixed: Mapping[tuple[str, ...], HttpEndpoint] = {
        ("api",): _described("discovery", Pages.core),
        ("apis",): _described("discovery", Pages.groups),
        ("version",): _described("version", Pages.version, is_open=True),
        ("openapi", "v2"): _described("openapi", Pages.openapi_v2),
        ("openapi", "v3"): _described("openapi", Pages.openapi_v3),
        (".well-known", "openid-configuration"): _page("openid", handlers.tokens.configuration),
        ("openid", "v1", "jwks"): _page("openid", handlers.tokens.key_set),
    }
    group = _described("discovery", Pages.group)
    version = _described("discovery", Pages.resources)
    document = _described("openapi", Pages.openapi_v3)
    objects = ObjectRoutes(handlers)

    def route(segments: tuple[str, ...]) -> RouteMatch | None:
        found = fixed.get(segments)
        if found is not None:
            return found, ()
        match segments:
            case ("openapi", "v3", *path):
                return document, tuple(path)
            case ("apis", name):
                return group, (name,)
            case ("api", number):
                return version, ("", number)
            case ("apis", name, number):
                return version, (name, number)
            case ("api", number, *rest):
                return objects.route(registry(), "", number, tuple(rest))
            case ("apis", name, number, *rest):
                return objects.route(registry(), name, number, tuple(rest))
        return handlers.probes.route(segments)

    return route


def _page(word: str, handler: Handler, *, is_open: bool = False) -> HttpEndpoint:
    return HttpEndpoint(word, {"GET": _checked(handler)}, is_open=is_open, error_response=refused)


def _checked(handler: Handler) -> Handler:
    """A handler that answers only where the parameter that every request may have is valid."""

    async def checked(call: Call, *parts: Any) -> web.StreamResponse:
        if call.has_query:
            options.check_timeout(call)
        return await handler(call, *parts)

    return checked


def refused(error: KogumaError, parts: tuple[Any, ...]) -> web.Response:
    """An error as a Kubernetes Status; an unknown path is answered in plain text."""
    target = parts[0] if parts and isinstance(parts[0], RequestTarget) else None
    if isinstance(error, status.TargetedError):
        target, error = error.target, error.error
    if target is None and isinstance(error, NotFound):
        return web.Response(text="404 page not found\n", status=404)
    status_response = status.error_status(error, target)
    response = encoded_response(msgspec.json.encode(status_response.body), status_response.code)
    retry = (status_response.body.get("details") or {}).get("retryAfterSeconds")
    if retry:
        response.headers["Retry-After"] = str(retry)
    return response


class ObjectRoutes:
    """Handlers of objects, by method and by whether the path names one object or a list."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        writing, deleting = handlers.writing, handlers.deleting
        self._one = _endpoint(
            "item",
            {
                "GET": handlers.reading.get,
                "PUT": writing.replace,
                "PATCH": writing.patch,
                "DELETE": deleting.delete,
            },
        )
        self._part = _endpoint(
            "item", {"GET": handlers.reading.get, "PUT": writing.replace, "PATCH": writing.patch}
        )
        self._tokens = _endpoint("token", {"POST": handlers.tokens.create})
        self._many = _endpoint(
            "list", {"GET": self._show, "POST": writing.create, "DELETE": deleting.delete_many}
        )
        self._everywhere = _endpoint("list", {"GET": self._show})
        self._review = _endpoint("review", {"POST": handlers.reviewing})
        self._watch = _endpoint("list", {"GET": handlers.watching.watch})

    def route(self, registry: Registry, group: str, version: str, rest: tuple[str, ...]) -> RouteMatch:
        """The endpoint of a path below a group and version."""
        is_watch = rest[0] == "watch"  # the deprecated form of ?watch=true
        target = addressed(registry, group, version, rest[1:] if is_watch else rest)
        if target is None or (is_watch and (target.endpoint.set.kind is None or target.subresource)):
            known = any(registry.at(group, version))
            return (_NO_RESOURCE if known else _NO_PAGE), (_why(registry, group, version, rest),)
        if is_watch:
            return self._watch, (target,)
        if target.endpoint.set.kind is None:
            return self._review, (target,)
        if target.subresource == endpoints.TOKEN:
            return self._tokens, (target,)
        if target.name:
            return (self._part if target.subresource else self._one), (target,)
        if target.endpoint.namespaced and target.namespace is None:
            return self._everywhere, (target,)
        return self._many, (target,)

    async def _show(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        if call.has_query and negotiation.flag(call, "watch"):
            return await self._handlers.watching.watch(call, target)
        return await self._handlers.reading.list(call, target)


def _endpoint(word: str, methods: Mapping[str, Handler]) -> HttpEndpoint:
    checked = {method: _checked(handler) for method, handler in methods.items()}
    return HttpEndpoint(word, checked, error_response=refused)


async def _no_resource(_call: Call, why: str) -> web.StreamResponse:
    raise NotFound(f"the server could not find the requested resource{why}")


def _why(registry: Registry, group: str, version: str, rest: tuple[str, ...]) -> str:
    """The unknown subresource that a path names below an object; empty where it names none."""
    whole = addressed(registry, group, version, rest[:-1]) if len(rest) > 1 else None
    if whole is None or not whole.name or whole.subresource or whole.endpoint.plural == "namespaces":
        return ""  # below a namespace it may also be a resource in it
    endpoint, part = whole.endpoint, rest[-1][:100]
    has = f"only {', '.join(endpoint.subresources)}" if endpoint.subresources else "no subresources"
    return f': {endpoint.qualified} have no "{part}", they have {has}'


def _unknown(error: KogumaError, _parts: tuple[Any, ...]) -> web.Response:
    status_response = status.error_status(error, None)
    return encoded_response(msgspec.json.encode(status_response.body), status_response.code)


_NONE: Final = dict.fromkeys(("GET", "PUT", "POST", "PATCH", "DELETE"), _no_resource)
_NO_RESOURCE: Final = HttpEndpoint("none", _NONE, error_response=_unknown)
_NO_PAGE: Final = HttpEndpoint("none", _NONE, error_response=refused)
