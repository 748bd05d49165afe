"""Remote: requests for groups and versions of other servers, passed on to them (aggregation).

Who asks is authenticated here, and a rule of ours must allow it. The other server is told the user by headers
that only we can set: it knows us by our client certificate, and what a client sends of these headers, and its
token, is never passed on.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from koguma.access.authorizer import Attempt, denied
from koguma.access.user import User
from koguma.api import open_watches
from koguma.api.call import Call
from koguma.api.kube import negotiation
from koguma.application.context import Context
from koguma.kube import aggregation
from koguma.kube.aggregation import RemoteVersion
from koguma.model.errors import BadRequest, Forbidden, KogumaError, Unauthenticated
from koguma.runtime.outgoing_calls import CallFailed, reason_of

ANSWER_SECONDS: Final = 60.0  # until the response begins
REVIEW_SECONDS: Final = 1.0
_PLAIN_TEXT: Final = "text/plain; charset=utf-8"
# Headers of one connection, and those that say who a client is or came from: never passed on.
_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_KEPT_HERE: Final = _HOP_BY_HOP | {
    "authorization",
    "cookie",
    "host",
    "content-length",
    "accept-encoding",
    "expect",
    "forwarded",
    "audit-id",
}
_KEPT_HERE_PREFIXES: Final = ("x-remote-", "x-forwarded-", "impersonate-")
_NOT_RETURNED: Final = _HOP_BY_HOP | {"set-cookie", "strict-transport-security", "server"}


class RemoteRequests:
    """Passes requests on to the servers that APIServices name."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def forward(self, call: Call, remote: RemoteVersion, *rest: str) -> web.StreamResponse:
        """Pass one request on, and its response back, as it comes."""
        attempt = self._attempt(call, remote, rest)
        self._check(call, attempt)
        if not remote.is_available:
            return _unavailable("service unavailable")
        if call.header("Upgrade"):
            raise BadRequest("connections that change their protocol are not passed on to other servers")
        path = _path(remote, rest)
        query = call.request.rel_url.raw_query_string
        url = f"{remote.service.address}{path}{'?' if query else ''}{query}"
        return await self._passed_on(call, remote, url, attempt)

    async def openapi(self, call: Call, remote: RemoteVersion) -> web.StreamResponse:
        """The OpenAPI v3 document of a group and version, from its server."""
        service = remote.service
        attempt = Attempt("get", path=f"/openapi/v3/apis/{service.group}/{service.version}")
        self._check(call, attempt)
        if not remote.is_available:
            return _unavailable("service unavailable")
        url = f"{service.address}{attempt.path}?hash={quote(remote.openapi_digest, safe='')}"
        return await self._passed_on(call, remote, url, attempt)

    def _attempt(self, call: Call, remote: RemoteVersion, rest: tuple[str, ...]) -> Attempt:
        service = remote.service
        if not rest:
            return Attempt("get", path=f"/apis/{service.group}/{service.version}")
        watches = call.has_query and negotiation.flag(call, "watch")
        return aggregation.attempt(call.request.method, service, rest, watches=watches)

    def _check(self, call: Call, attempt: Attempt) -> None:
        if not self._context.access.allows(call.user, attempt):
            raise Forbidden(denied(call.user, attempt))

    async def _passed_on(
        self, call: Call, remote: RemoteVersion, url: str, attempt: Attempt
    ) -> web.StreamResponse:
        body = await call.body() if call.request.body_exists else None
        began: web.StreamResponse | None = None
        try:
            async with self._context.calls.open(
                call.request.method,
                url,
                body,
                headers=CIMultiDict(_headers(call)),
                ca_bundle=remote.service.ca_bundle,
                identifies_us=True,
                answer_seconds=ANSWER_SECONDS,
            ) as response:
                began = web.StreamResponse(status=response.status, headers=_returned(response))
                await began.prepare(call.request)
                await self._copied(call, response, began, attempt)
                return began
        except CallFailed as error:
            failure = error.detail
        except TimeoutError:
            failure = f"no answer within {ANSWER_SECONDS:g}s"
        except aiohttp.ClientError as error:
            failure = reason_of(error)
        if began is not None:  # the client sees that it is not whole: the connection ends in the middle
            began.force_close()
            if call.request.transport is not None:
                call.request.transport.close()
            return began
        return _unavailable(f"error trying to reach service: {failure}")

    async def _copied(
        self, call: Call, response: aiohttp.ClientResponse, to: web.StreamResponse, attempt: Attempt
    ) -> None:
        """Copy a body, for as long as whoever asked may have it."""
        loop = asyncio.get_running_loop()
        ends_at, reviewed_at = loop.time() + open_watches.life_seconds(), loop.time()
        while loop.time() < ends_at:
            part = None
            with suppress(TimeoutError):
                async with asyncio.timeout(REVIEW_SECONDS):
                    part = await response.content.readany()
            if loop.time() - reviewed_at >= REVIEW_SECONDS:
                reviewed_at = loop.time()
                if not self._may_go_on(call, attempt):
                    return
            if part is None:
                continue
            if not part:
                return
            await to.write(part)

    def _may_go_on(self, call: Call, attempt: Attempt) -> bool:
        try:
            if call.identify() != call.user:
                raise Unauthenticated("the credentials now name somebody else")
            self._check(call, attempt)
        except KogumaError:
            return False
        return True


def _path(remote: RemoteVersion, rest: tuple[str, ...]) -> str:
    """The path at the other server, built anew: what would lead out of the group and version is refused."""
    if any(part in ("", ".", "..") for part in rest):
        raise BadRequest("a part of the path is empty, or leads elsewhere")
    parts = ("apis", remote.service.group, remote.service.version, *rest)
    return "".join(f"/{quote(part, safe=':@!$&*+,;=~()')}" for part in parts)


def _headers(call: Call) -> Iterator[tuple[str, str]]:
    request = call.request
    listed = {word.strip().lower() for word in (call.header("Connection") or "").split(",")}
    for name, value in request.headers.items():
        lowered = name.lower().replace("_", "-")
        if lowered in listed or lowered in _KEPT_HERE or lowered.startswith(_KEPT_HERE_PREFIXES):
            continue
        yield name, value
    yield from _user_headers(call.user)
    yield "X-Forwarded-For", request.remote or ""
    yield "X-Forwarded-Host", request.host
    yield "X-Forwarded-Proto", request.scheme
    yield "X-Forwarded-Uri", request.rel_url.raw_path
    yield "Audit-Id", call.id


def _user_headers(user: User) -> Iterator[tuple[str, str]]:
    yield aggregation.USER_HEADER, _header_text(user.name)
    if user.uid:
        yield aggregation.UID_HEADER, _header_text(user.uid)
    for group in user.all_groups:
        yield aggregation.GROUP_HEADER, _header_text(group)
    for key, values in user.extra:
        for value in values:
            yield f"{aggregation.EXTRA_PREFIX}{quote(key, safe='')}", _header_text(value)


def _header_text(text: str) -> str:
    """A text in a header; one that could end the header is refused, so that nobody adds another."""
    if not text.isprintable():
        raise BadRequest("a name of the user cannot stand in a header")
    return text


def _returned(response: aiohttp.ClientResponse) -> CIMultiDict[str]:
    listed = {word.strip().lower() for word in response.headers.get("Connection", "").split(",")}
    return CIMultiDict(
        (name, value)
        for name, value in response.headers.items()
        if name.lower() not in _NOT_RETURNED
        and name.lower() not in listed
        and not name.lower().startswith("access-control-")  # which web pages may ask us, only we say
    )


def _unavailable(text: str) -> web.Response:
    return web.Response(text=f"{text}\n", status=503, headers={"Content-Type": _PLAIN_TEXT})
