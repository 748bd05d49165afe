"""Bootstrap server: the port where a proxy gets its Envoy bootstrap, and deregisters when it stops.

The caller must send a token that is valid for the proxy that it names: a dataplane token, or for a zone proxy
a zone token; nothing is answered before that check. Nothing is stored here: a Dataplane or ZoneEgress in the
request is only validated, and registered when the proxy connects over xDS. Errors are plain text with one
sentence per line, which proxies print as they are.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
import structlog
from aiohttp import web

from koguma.access.user import ANONYMOUS, User
from koguma.api.call import JSON, Call, answer
from koguma.application import compare_and_swap, transactions
from koguma.application.context import Context, mesh_key
from koguma.core import admission
from koguma.core.build import network
from koguma.core.lint import proxies as proxy_lint
from koguma.envoy import bootstrap
from koguma.envoy.bootstrap import AdsServer, BootstrapNode
from koguma.fleet import bootstrap_request
from koguma.fleet.bootstrap_request import BootstrapRequest, Farewell, ProxyName
from koguma.fleet.gate import ProxyClaims, ProxyGate, is_registered
from koguma.fleet.refused_proxies import RefusedProxies
from koguma.identity import certificate_facts, dataplane_auth
from koguma.model import forms, labels
from koguma.model.errors import (
    BadRequest,
    Invalid,
    KogumaError,
    NotAllowed,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from koguma.model.redacted import Redacted
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation, cut
from koguma.store.contract import Transaction

PORTS_PATH: Final = "/ports"  # where agents of proxies that may move learn the port of xDS

BODY_BYTES_MAX: Final = 256 * 1024
BODY_BYTES_MAX_UNAUTHENTICATED: Final = 32 * 1024  # where the token is not valid
BODY_SECONDS_MAX: Final = 10.0

_LOGGED_MESSAGE_MAX: Final = 2000  # characters of an error that the log shows
_BYTES_ON_LOOP: Final = 4 * 1024  # parsing YAML of this length takes a few milliseconds
_HOST_MAX: Final = 300
_UNPROCESSABLE: Final = 422
_ERRORS_FROM: Final = 400
_TEXT: Final = "text/plain"

ProxyPage = Callable[[Call], Awaitable[web.StreamResponse]]

_Read = TypeVar("_Read")

_log = structlog.get_logger("koguma.proxies")


class _TooSlow(KogumaError):
    status = 408


class _TokenRequired(KogumaError):
    status = _UNPROCESSABLE


class _ProxyNotFound(NotFound):
    """No such Dataplane or zone proxy. The empty body tells Kuma's agent to ask again."""


class BootstrapServer:
    """Handlers of `/bootstrap`, `/deregister` and `/ports`; `handle` is for an HttpServer of its own."""

    def __init__(  # noqa: PLR0913 - all of it is known only where the ports are opened
        self,
        context: Context,
        gate: ProxyGate,
        clock: Callable[[], datetime],
        xds_port: Callable[[], int],
        ca: str,
        sans: Sequence[str],
        *,
        xds_host: str = "",
        refused: RefusedProxies | None = None,
        pages: Mapping[str, ProxyPage] | None = None,
    ) -> None:
        """`ca` is PEM, empty where unknown; `sans` are the names in the certificate of the xDS port.

        Proxies reach xDS at the host of this request, unless `xds_host` names another. `pages` are more
        paths of this port, which read their bodies themselves.
        """
        self._context = context
        self._gate = gate
        self._xds_port = xds_port
        self._ca = ca
        self._sans = tuple(sorted(certificate_facts.normalized_host(name) for name in sans))
        self._xds_host = xds_host
        self._refused = RefusedProxies(clock) if refused is None else refused
        self._pages = pages or {}
        self._handlers = {"/bootstrap": self._bootstrap, "/deregister": self._deregister}

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        started, number = time.perf_counter(), secrets.token_hex(6)
        call, message = Call(request, ANONYMOUS, number), ""
        try:
            response = await self._answer(call)
        except KogumaError as error:
            message = _error_text(error)
            response = _error_response(request, error, message)
        except ConnectionError:
            raise  # the proxy left; there is nobody to answer
        except Exception:  # noqa: BLE001 - a bug in one handler is one bad answer, never a dead server
            _log.exception("request of a proxy failed", request=number, path=request.path[:200])
            message = f"Internal Server Error; the log of the control plane has more under {number}"
            response = _error_response(request, KogumaError(message), message)
        if response.prepared:  # a channel that has ended
            return response
        is_asked_often = request.path in self._pages and response.status < _ERRORS_FROM
        response.headers.update({"Koguma-Request-Id": number, "Server": "koguma"})
        (_log.debug if is_asked_often else _log.info)(
            "proxy answered",
            request=number,
            path=request.path[:200],
            user=call.user.name,
            status=response.status,
            ms=round((time.perf_counter() - started) * 1000, 2),
            **({"error": cut(message, _LOGGED_MESSAGE_MAX)} if message else {}),
        )
        return response

    async def _answer(self, call: Call) -> web.StreamResponse:
        page = self._pages.get(call.request.path)
        if page is not None:
            return await page(call)
        if call.request.path == PORTS_PATH and call.request.method == "GET":
            return answer(msgspec.json.encode({"xds": self._xds_port()}))
        handler = self._handlers.get(call.request.path)
        if handler is None:
            raise NotFound(f"there is nothing at {call.request.path[:200]}; proxies POST to /bootstrap")
        if call.request.method != "POST":
            raise NotAllowed(f"{call.request.path} takes POST alone", allowed=("POST",))
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                body = await call.body(BODY_BYTES_MAX)
        except TimeoutError:
            raise _TooSlow(f"the body did not come within {BODY_SECONDS_MAX:.0f} s") from None
        self._check_large_body(call, body)
        return await handler(call, body)

    def _check_large_body(self, call: Call, body: bytes) -> None:
        """Refuse a large body without a valid token before it is parsed.

        A small one is cheap to parse, and its sender then learns which field is wrong.
        """
        if len(body) <= BODY_BYTES_MAX_UNAUTHENTICATED:
            return
        tokens = [token for token in (_token(call, ""), *bootstrap_request.written_tokens(body)) if token]
        for token in tokens:
            with contextlib.suppress(Unauthenticated):
                self._gate.authenticate(token)
                return
        if not tokens:
            raise _TokenRequired(bootstrap_request.token_required())
        large = f"a body of more than {BODY_BYTES_MAX_UNAUTHENTICATED} bytes is read with a valid token only"
        raise Unauthenticated(f"authentication failed: the token does not hold; {large}")

    async def _bootstrap(self, call: Call, body: bytes) -> web.Response:
        request = await _read_beside(len(body), bootstrap_request.of, body, BootstrapRequest)
        try:
            return await self._checked_bootstrap(call, request)
        except KogumaError as error:
            if request.name:
                self._refused.refuse(
                    "bootstrap", request.mesh, request.name, call.request.remote or "", error
                )
            raise

    async def _checked_bootstrap(self, call: Call, request: BootstrapRequest) -> web.Response:
        token = _token(call, request.dataplane_token)
        if not token:
            raise _TokenRequired(bootstrap_request.token_required(request))
        claims = self._authenticated(call, token, request)
        _raise_invalid(bootstrap_request.violations(request))
        size = len(request.dataplane_resource)
        document = await _read_beside(size, bootstrap_request.brought, request) if size else None
        proxy = self._admitted(claims, request, document) if document else self._stored(claims, request)
        bootstrap_json = self._bootstrap_json(call, request, proxy, document, token)
        headers = {"Cache-Control": "no-store"}  # there is a token in it
        if JSON in (call.header("Accept") or ""):
            warnings = await self._warnings(proxy)
            return answer(bootstrap_request.answer(bootstrap_json, proxy.spec, warnings), headers=headers)
        return answer(bootstrap_json, headers=headers, content_type="text/x-yaml")

    def _authenticated(self, call: Call, token: str, proxy_name: ProxyName) -> ProxyClaims:
        """The claims of a token that is valid for a proxy of this type and name."""
        mesh, proxy_type = proxy_name.mesh, proxy_name.type
        if proxy_type is None:
            raise Invalid([bootstrap_request.unserved(proxy_name.proxy_type)])
        if not proxy_type.is_of_zone and self._context.state.get(mesh_key(mesh)) is None:
            raise Invalid([Violation("mesh", f'mesh "{mesh[:100]}" does not exist', "missing")])
        try:
            claims = self._gate.presented_by(proxy_type, mesh, token).claims
        except Unauthenticated as error:
            raise Unauthenticated(f"authentication failed: {error.detail}") from error
        self._gate.check_name(claims, proxy_type, mesh, proxy_name.name)
        call.user = User(f"proxy:{proxy_name.mesh}.{proxy_name.name}")
        return claims

    def _admitted(self, claims: ProxyClaims, request: BootstrapRequest, document: Json) -> Resource:
        """The object in the request, as it would be stored; one of an operator, as it is stored."""
        context = self._context
        draft = forms.read_plain(document, context.kinds[document["type"]])
        stored = self._gate.stored(draft)
        if stored is not None and not is_registered(stored):
            self._gate.check_stored(claims, stored)
            self._gate.check_restated(draft, stored)
            return stored
        proxy = admission.admitted(draft, stored, context.control_plane).resource
        _raise_invalid(bootstrap_request.transparency_violations(request, proxy.spec))
        self._gate.check_brought(claims, proxy, stored)
        return proxy

    async def _warnings(self, proxy: Resource) -> list[str]:
        """Outbounds without a destination, and a gateway without a MeshGateway; one may be created later."""
        networking = proxy.spec.get("networking") or {}
        if not networking.get("outbound") and not bootstrap_request.is_builtin_gateway(proxy.spec):
            return []  # most proxies; when many start at once they do not wait for the engine
        db = await self._context.database()
        unselected = proxy_lint.unselected_gateway(db, proxy)
        dangling = [problem.message for problem in proxy_lint.dangling_outbounds(db, proxy)]
        return [*dangling, *([unselected] if unselected else [])]

    def _stored(self, claims: ProxyClaims, proxy_name: ProxyName) -> Resource:
        assert proxy_name.type is not None
        proxy = self._context.state.named(proxy_name.type.kind, proxy_name.mesh, proxy_name.name)
        if proxy is None:
            raise _ProxyNotFound("")
        self._gate.check_stored(claims, proxy)
        return proxy

    def _bootstrap_json(
        self, call: Call, request: BootstrapRequest, proxy: Resource, document: Json, token: str
    ) -> bytes:
        """The bootstrap, as JSON."""
        node = BootstrapNode(
            id=f"{proxy.mesh}.{proxy.core_name}",
            cluster=bootstrap_request.service(proxy),
            metadata=bootstrap_request.metadata(request, proxy.spec, document),
        )
        variant = (proxy.spec.get("envoy") or {}).get("xdsTransportProtocolVariant")
        ca, host, port = self._authority(request), self._host(call), self._xds_port()
        server = AdsServer(
            host=host,
            port=port,
            token=Redacted(token),
            ca=ca,
            ca_path="" if ca else request.system_ca_path,
            delta=variant != "GRPC",
            token_file=bootstrap_request.token_file(request),
            others=bootstrap_request.other_control_planes(request, port),
            may_move=bootstrap_request.may_move(request, host),
        )
        is_ours = network.is_own_agent(request.features)
        config = bootstrap.bootstrap(
            node,
            server,
            request.workdir.rstrip("/"),
            admin_port=0 if is_ours else bootstrap_request.admin_port(request, proxy.spec),
            reports_health=bootstrap_request.reports_health(request, proxy.spec),
            heap_bytes_max=bootstrap_request.heap_bytes_max(request),
            is_gateway=bootstrap_request.is_builtin_gateway(proxy.spec),
        )
        return msgspec.json.encode(config)

    def _host(self, call: Call) -> str:
        """The host at which the proxy reaches xDS; the certificate must be valid for it."""
        if self._xds_host:
            return certificate_facts.normalized_host(self._xds_host)
        try:
            host = urlsplit(f"//{(call.header('Host') or '')[:_HOST_MAX]}").hostname or ""
        except ValueError:
            host = ""
        if not certificate_facts.matches_host(self._sans, host):
            raise BadRequest(bootstrap_request.san_mismatch(host, self._sans))
        return certificate_facts.normalized_host(host)

    def _authority(self, request: BootstrapRequest) -> str:
        """The CA that a proxy verifies xDS with: its own, else ours; empty to use its machine's CAs."""
        if request.ca_cert and not certificate_facts.is_readable(request.ca_cert):
            raise BadRequest("caCert is no certificate; give X.509 in PEM form")
        ca = request.ca_cert or self._ca
        if not certificate_facts.is_ca(ca) and (ca or not request.system_ca_path):
            raise BadRequest(bootstrap_request.NOT_A_CA)
        return ca

    async def _deregister(self, call: Call, body: bytes) -> web.Response:
        request = await _read_beside(len(body), bootstrap_request.of, body, Farewell)
        token = _token(call, "")
        if not token:
            raise Unauthenticated('send the proxy\'s token as "Authorization: Bearer <token>"')
        no_content = web.Response(status=204)
        if request.mesh and self._context.state.get(mesh_key(request.mesh)) is None:
            return no_content
        claims = self._authenticated(call, token, request)
        await self._remove(call, claims, request)
        return no_content

    async def _remove(self, call: Call, claims: ProxyClaims, request: Farewell) -> None:
        """Delete what a proxy registered; an object that an operator wrote stays."""
        context, proxy_type = self._context, request.type
        assert proxy_type is not None

        async def attempt() -> None:
            proxy = context.state.named(proxy_type.kind, request.mesh, request.name)
            if proxy is None:
                return
            self._gate.check_claims(claims, proxy)
            if not is_registered(proxy):
                return
            if request.instance and proxy.labels.get(labels.INSTANCE, request.instance) != request.instance:
                return  # a newer process of the same proxy has registered it
            operations = tuple(transactions.delete(context, proxy, proxy.revision))
            with contextlib.suppress(NotFound):
                await context.store.write(Transaction(operations, call.user.name, "the proxy has stopped"))

        await compare_and_swap.retried(attempt, f'{proxy_type.kind} "{request.name}"')


async def _read_beside(size: int, read: Callable[..., _Read], *arguments: Any) -> _Read:
    """Call a parser; in a thread where the input is so large that the event loop would wait."""
    return read(*arguments) if size <= _BYTES_ON_LOOP else await asyncio.to_thread(read, *arguments)


def _token(call: Call, in_body: str) -> str:
    return dataplane_auth.without_bearer(in_body) or dataplane_auth.without_bearer(
        call.header("Authorization") or ""
    )


def _raise_invalid(violations: Iterable[Violation]) -> None:
    violations = tuple(violations)
    if violations:
        raise Invalid(violations)


def _error_text(error: KogumaError) -> str:
    """An error as text: one line per violation, or else its one sentence."""
    if isinstance(error, Invalid | BadRequest) and error.violations:
        lines = [f"{v.field}: {v.message}" if v.field else v.message for v in error.violations]
    else:
        lines = [violation.message for violation in error.violations] or [error.detail]
    return "\n".join(lines)


def _error_response(request: web.BaseRequest, error: KogumaError, message: str) -> web.Response:
    status = _UNPROCESSABLE if isinstance(error, Invalid) else error.status
    response = web.Response(text=message, status=status, content_type=_TEXT)
    if error.status == Unavailable.status:
        response.headers["Retry-After"] = str(Unavailable.retry_seconds)
    if isinstance(error, NotAllowed):
        response.headers["Allow"] = ", ".join(error.allowed)
    if request.body_exists and not request.content.is_eof():
        response.force_close()  # what is left of the body will not be read
    return response
