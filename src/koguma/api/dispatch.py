"""Dispatch: what happens to every request: id, route, authentication, handler, response, metrics, log line.

Routing is by the segments of the path, since kinds are looked up and not listed. Every exception becomes an
error response here, and nowhere else.
"""

import asyncio
import itertools
import re
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from koguma.access.authorizer import Authorizer
from koguma.access.user import ANONYMOUS
from koguma.api import compression, parameters, problems
from koguma.api.audit import DISCONNECTED, Audit
from koguma.api.authn import UNIX_SOCKET, Authenticator, impersonated
from koguma.api.call import JSON, Call
from koguma.api.metrics import Metrics
from koguma.api.parameters import QueryParameter
from koguma.api.tracing import Tracer
from koguma.model.errors import BadRequest, KogumaError, NotAllowed, NotFound, Unavailable
from koguma.model.short_keys import is_short

Handler = Callable[..., Awaitable[web.StreamResponse]]  # takes the call, then the variable parts of the path

_METHODS: Final = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS")
_CACHED_PATHS_MAX: Final = 10_000
_FAILED: Final = 400  # and above
_ENCODED_SLASH: Final = re.compile(r"%2f", re.IGNORECASE)
_INTERNAL: Final = "Internal Server Error"


ErrorResponse = Callable[[KogumaError, tuple[Any, ...]], web.Response]  # of an error and the path's parts


class HttpEndpoint(msgspec.Struct, frozen=True):
    """What a path leads to: handlers by method, a label for metrics, and titles of errors by method."""

    label: str
    handlers: Mapping[str, Handler]
    titles: Mapping[str, str] = {}
    is_open: bool = False  # answered without authentication
    allowed: tuple[str, ...] = ()  # for the Allow header, where that is fewer methods than have a handler
    error_response: ErrorResponse | None = None  # where errors are not answered as in the plain form
    queries: Mapping[str, tuple[QueryParameter, ...]] | None = None  # by method; None: handlers check them


RouteMatch = tuple[HttpEndpoint, tuple[Any, ...]]  # an endpoint, and the variable parts of the path
Route = Callable[[tuple[str, ...]], RouteMatch | None]


class Dispatch:
    """Answers requests. `routes` are tried in order; the first that matches a path answers it."""

    def __init__(
        self,
        routes: tuple[Route, ...],
        authenticator: Authenticator,
        access: Authorizer,
        metrics: Metrics,
        tracer: Tracer | None = None,
        served: Callable[[], object] = lambda: None,
        audit: Audit | None = None,
    ) -> None:
        """`served` gives another object when paths may lead elsewhere than before."""
        self._audit = audit
        self._routes = routes
        self._authenticator = authenticator
        self._access = access
        self._metrics = metrics
        self._tracer = tracer
        self._log = structlog.get_logger("koguma.api")
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._served = served
        self._routed = served()  # what the cache below is about
        self._routes_by_path: dict[str, RouteMatch] = {}

    def handle(self, request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        """Answer one request, within a trace span where tracing is on."""
        call = Call(request, ANONYMOUS, f"{self._prefix}-{next(self._numbers):x}")
        return self._answered(call) if self._tracer is None else self._traced(call, self._tracer)

    async def _traced(self, call: Call, tracer: Tracer) -> web.StreamResponse:
        with tracer.request(call, self._metric_label(call)) as span:
            response = await self._answered(call)
            span.answered(response.status)
        return response

    def _metric_label(self, call: Call) -> str:
        """The label of the endpoint that a request is for, before it is answered."""
        try:
            endpoint, _ = self._route(call.request)
        except (BadRequest, NotFound):
            return "none"
        is_watch = call.has_query and call.query.get("watch") in ("true", "1")
        return "watch" if is_watch and call.request.method == "GET" else endpoint.label

    async def _answered(self, call: Call) -> web.StreamResponse:
        started = time.perf_counter()
        request = call.request
        endpoint: HttpEndpoint | None = None
        parts: tuple[Any, ...] = ()
        failure: KogumaError | None = None
        try:
            endpoint, parts = self._route(request)
            routed = self._routed
            response = await compression.compressed(call, await self._answer(call, endpoint, parts))
            if routed is self._routed:
                self._cache_route(request.path, endpoint, parts, response.status)
        except KogumaError as error:
            failure = error
            response = self._error_response(call, endpoint, parts, error)
        except (ConnectionError, asyncio.CancelledError):  # the client has disconnected
            self._note(call, parts, DISCONNECTED, None, time.perf_counter() - started)
            raise
        except Exception:  # noqa: BLE001 - a bug in one handler is one bad answer, never a dead server
            self._log.exception("request failed", request=call.id, method=request.method, path=request.path)
            response = self._error_response(call, endpoint, parts, KogumaError(_INTERNAL))
        seconds = time.perf_counter() - started
        self._note(call, parts, response.status, failure, seconds)
        self._record(call, endpoint, response, seconds)
        return response

    def _note(
        self, call: Call, parts: tuple[Any, ...], code: int, error: KogumaError | None, seconds: float
    ) -> None:
        """Note a request in the audit log, where there is one."""
        if self._audit is not None:
            self._audit.record(call, parts, _peer(call.request.transport), code, error, seconds)

    def _cache_route(self, path: str, endpoint: HttpEndpoint, parts: tuple[Any, ...], status: int) -> None:
        """Cache the route of a path that succeeded; made-up paths must not fill the cache."""
        if status >= _FAILED or path in self._routes_by_path or not is_short(path):
            return
        if len(self._routes_by_path) >= _CACHED_PATHS_MAX:
            self._routes_by_path.clear()
        self._routes_by_path[path] = (endpoint, parts)

    def _route(self, request: web.BaseRequest) -> RouteMatch:
        path = request.path
        if "%" in request.raw_path and _ENCODED_SLASH.search(request.rel_url.raw_path):
            raise BadRequest(
                "the path has an encoded slash (%2F). No name has a slash in it, and as a separator it would"
                " lead elsewhere: write / between the parts of the path"
            )
        served = self._served()
        if served is not self._routed:
            self._routed = served
            self._routes_by_path.clear()
        cached = self._routes_by_path.get(path)
        if cached is not None:
            return cached
        segments = tuple(path.strip("/").split("/")) if path != "/" else ()
        for route in self._routes:
            match = route(segments)
            if match is not None:
                return match
        text = f"there is nothing at {request.path[:200]}; GET /_resources lists kinds and paths"
        raise NotFound(text, title="Not Found")

    async def _answer(self, call: Call, endpoint: HttpEndpoint, parts: tuple[Any, ...]) -> web.StreamResponse:
        request = call.request
        if not endpoint.is_open:
            peer = _peer(request.transport)
            authenticate = partial(self._authenticator.user, request.headers, peer, request.scheme)
            user = authenticate()
            call.user = impersonated(user, request.headers, self._access)
            if call.user is not user:
                call.impersonator = user
            call.identify = lambda: impersonated(authenticate(), request.headers, self._access)
        method = "GET" if request.method == "HEAD" else request.method
        handler = endpoint.handlers.get(method)
        if handler is None:
            raise NotAllowed(
                "Method not allowed",
                title="Method not Allowed",
                allowed=endpoint.allowed or tuple(endpoint.handlers),
            )
        if call.has_query and endpoint.queries is not None and method in endpoint.queries:
            parameters.check(call.query, endpoint.queries[method])
        return await handler(call, *parts)

    def _error_response(
        self, call: Call, endpoint: HttpEndpoint | None, parts: tuple[Any, ...], error: KogumaError
    ) -> web.Response:
        if endpoint is not None and endpoint.error_response is not None:
            response = endpoint.error_response(error, parts)
        else:
            titles = endpoint.titles if endpoint else {}
            title = titles.get(call.request.method, "Could not process a resource")
            response = web.Response(
                body=problems.body(error, title, call.id), status=error.status, content_type=JSON
            )
        if error.status == Unavailable.status:
            response.headers["Retry-After"] = str(Unavailable.retry_seconds)
        if isinstance(error, NotAllowed):
            response.headers["Allow"] = ", ".join(error.allowed)
        if not call.request.body_exists or call.request.content.is_eof():
            return response
        response.force_close()  # the rest of the body will not be read
        return response

    def _record(
        self, call: Call, endpoint: HttpEndpoint | None, response: web.StreamResponse, seconds: float
    ) -> None:
        request = call.request
        method = request.method if request.method in _METHODS else "other"
        label = endpoint.label if endpoint else "none"
        if not isinstance(response, web.Response):
            label = "watch"
        self._metrics.observe(method, label, response.status, seconds)
        if not response.prepared:
            response.headers["Koguma-Request-Id"] = call.id
            response.headers["Server"] = "koguma"
        if request.method not in ("GET", "HEAD") or response.status >= _FAILED:
            self._log.info(
                "request answered",
                request=call.id,
                method=request.method,
                path=request.path[:500],
                user=call.user.name,
                **({"acting": call.impersonator.name} if call.impersonator else {}),
                status=response.status,
                ms=round(seconds * 1000, 2),
            )


def _peer(transport: asyncio.Transport | None) -> str:
    """The address of the client, or UNIX_SOCKET for the unix socket in the data directory."""
    if transport is None:
        return ""
    end = transport.get_extra_info("socket")
    if end is not None and end.family == socket.AF_UNIX:
        return UNIX_SOCKET
    address = transport.get_extra_info("peername")
    return str(address[0]) if address else ""
