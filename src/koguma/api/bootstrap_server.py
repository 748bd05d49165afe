"""The proxies' door: the port where a proxy gets its bootstrap, and where it says that it goes.

Whoever asks must show a dataplane token that is for the proxy it asks about; that is checked before anything
is answered. Nothing is stored here: a Dataplane that a proxy brings is only checked, and registered when the
proxy connects. Errors are plain text with one sentence a line, which proxies print as they are.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
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
from koguma.core.oddities import proxies as oddities
from koguma.envoy import bootstrap
from koguma.envoy.bootstrap import Node, Source
from koguma.fleet import bootstrap_request
from koguma.fleet.bootstrap_request import BootstrapRequest, Farewell, ProxyName
from koguma.fleet.gate import ProxyGate, is_registered
from koguma.fleet.refused_proxies import RefusedProxies
from koguma.identity import certificate_facts, dataplane_auth
from koguma.identity.claims import DataplaneClaims
from koguma.model import forms, labels
from koguma.model.errors import (
    BadRequest,
    Invalid,
    KogumaError,
    NotAllowed,
    NotFound,
    Unauthenticated,
)
from koguma.model.redacted import Redacted
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation, cut
from koguma.store.contract import Transaction

BODY_BYTES_MAX: Final = 256 * 1024
BODY_BYTES_MAX_UNKNOWN: Final = 32 * 1024  # of somebody whose token does not hold
BODY_SECONDS_MAX: Final = 10.0

_SAID_MAX: Final = 2000  # characters of an answer that stand in the log
_AT_ONCE_BYTES: Final = 4 * 1024  # YAML of this length is read within some milliseconds
_HOST_MAX: Final = 300
_UNPROCESSABLE: Final = 422
_TEXT: Final = "text/plain"

_Read = TypeVar("_Read")

_log = structlog.get_logger("koguma.proxies")


class _TooSlow(KogumaError):
    status = 408


class _TokenRequired(KogumaError):
    status = _UNPROCESSABLE


class _NotYetThere(NotFound):
    """No such Dataplane; said without a word, which tells a proxy to ask again."""


class BootstrapServer:
    """Handlers of `POST /bootstrap` and `POST /deregister`; `handle` is for an HttpServer of its own."""

    def __init__(  # noqa: PLR0913 - what is known where the ports are put together
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
    ) -> None:
        """Take the CA (PEM; empty where unknown) and the names of the certificate that xDS shows.

        Proxies reach xDS by the host by which they came, unless `xds_host` says another.
        """
        self._context = context
        self._gate = gate
        self._xds_port = xds_port
        self._ca = ca
        self._sans = tuple(sorted(certificate_facts.normal(name) for name in sans))
        self._xds_host = xds_host
        self._refused = RefusedProxies(clock) if refused is None else refused
        self._handlers = {"/bootstrap": self._bootstrap, "/deregister": self._deregister}

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        started, number = time.perf_counter(), secrets.token_hex(6)
        call, said = Call(request, ANONYMOUS, number), ""
        try:
            response = await self._answer(call)
        except KogumaError as error:
            said = _said(error)
            response = _refused(request, error, said)
        except ConnectionError:
            raise  # the proxy left; there is nobody to answer
        except Exception:  # noqa: BLE001 - a bug in one handler is one bad answer, never a dead server
            _log.exception("request of a proxy failed", request=number, path=request.path[:200])
            said = f"Internal Server Error; the log of the control plane has more under {number}"
            response = _refused(request, KogumaError(said), said)
        response.headers.update({"Koguma-Request-Id": number, "Server": "koguma"})
        _log.info(
            "proxy answered",
            request=number,
            path=request.path[:200],
            user=call.user.name,
            status=response.status,
            ms=round((time.perf_counter() - started) * 1000, 2),
            **({"said": cut(said, _SAID_MAX)} if said else {}),
        )
        return response

    async def _answer(self, call: Call) -> web.Response:
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
        self._refuse_unknown(call, body)
        return await handler(call, body)

    def _refuse_unknown(self, call: Call, body: bytes) -> None:
        """Refuse a large body of somebody without a valid token before anything of it is read.

        A small one costs little, and its sender is told by name what does not fit.
        """
        if len(body) <= BODY_BYTES_MAX_UNKNOWN:
            return
        shown = [token for token in (_token(call, ""), *bootstrap_request.written_tokens(body)) if token]
        for token in shown:
            with contextlib.suppress(Unauthenticated):
                self._gate.authenticate(token)
                return
        if not shown:
            raise _TokenRequired(bootstrap_request.TOKEN_REQUIRED)
        large = f"a body of more than {BODY_BYTES_MAX_UNKNOWN} bytes is read with a valid token only"
        raise Unauthenticated(f"authentication failed: the token does not hold; {large}")

    async def _bootstrap(self, call: Call, body: bytes) -> web.Response:
        asked = await _beside(len(body), bootstrap_request.of, body, BootstrapRequest)
        try:
            return await self._bootstrapped(call, asked)
        except KogumaError as error:
            if asked.name:
                self._refused.refuse("bootstrap", asked.mesh, asked.name, call.request.remote or "", error)
            raise

    async def _bootstrapped(self, call: Call, asked: BootstrapRequest) -> web.Response:
        token = _token(call, asked.dataplane_token)
        if not token:
            raise _TokenRequired(bootstrap_request.TOKEN_REQUIRED)
        claims = self._authenticated(call, token, asked)
        _refuse(bootstrap_request.violations(asked))
        size = len(asked.dataplane_resource)
        document = await _beside(size, bootstrap_request.brought, asked) if size else None
        proxy = self._admitted(claims, asked, document) if document else self._stored(claims, asked)
        made = self._made(call, asked, proxy, document, token)
        headers = {"Cache-Control": "no-store"}  # there is a token in it
        if JSON in (call.header("Accept") or ""):
            warnings = await self._warnings(proxy)
            return answer(bootstrap_request.answer(made, proxy.spec, warnings), headers=headers)
        return answer(made, headers=headers, content_type="text/x-yaml")

    def _authenticated(self, call: Call, token: str, asked: ProxyName) -> DataplaneClaims:
        """What a valid token says that is for a proxy of this name."""
        if self._context.state.get(mesh_key(asked.mesh)) is None:
            raise Invalid([Violation("mesh", f'mesh "{asked.mesh[:100]}" does not exist', "missing")])
        try:
            claims = self._gate.claims(asked.mesh, token)
        except Unauthenticated as error:
            raise Unauthenticated(f"authentication failed: {error.detail}") from error
        dataplane_auth.check_name(claims, asked.mesh, asked.name)
        call.user = User(f"proxy:{asked.mesh}.{asked.name}")
        return claims

    def _admitted(self, claims: DataplaneClaims, asked: BootstrapRequest, document: Json) -> Resource:
        """The Dataplane that a proxy brings, as it would be stored; an operator's as it is."""
        context = self._context
        draft = forms.read_plain(document, context.kinds["Dataplane"])
        before = self._gate.stored(draft)
        if before is not None and not is_registered(before):
            self._gate.check_stored(claims, before)
            self._gate.check_restated(draft, before)
            return before
        made = admission.admitted(draft, before, context.control_plane).resource
        _refuse(bootstrap_request.transparency_violations(asked, made.spec))
        self._gate.check_brought(claims, made, before)
        return made

    async def _warnings(self, proxy: Resource) -> list[str]:
        """What of a proxy's own outbounds leads nowhere now; it may still come."""
        if not (proxy.spec.get("networking") or {}).get("outbound"):
            return []  # most proxies; a start of many does not wait for the engine
        db = await self._context.database()
        return [problem.message for problem in oddities.leading_nowhere(db, proxy)]

    def _stored(self, claims: DataplaneClaims, asked: ProxyName) -> Resource:
        found = self._context.state.named("Dataplane", asked.mesh, asked.name)
        if found is None:
            raise _NotYetThere("")
        self._gate.check_stored(claims, found)
        return found

    def _made(
        self, call: Call, asked: BootstrapRequest, proxy: Resource, document: Json, token: str
    ) -> bytes:
        """The bootstrap, as JSON."""
        node = Node(
            id=f"{proxy.mesh}.{proxy.core_name}",
            cluster=bootstrap_request.service(proxy),
            metadata=bootstrap_request.metadata(asked, proxy.spec, document),
        )
        variant = (proxy.spec.get("envoy") or {}).get("xdsTransportProtocolVariant")
        ca = self._authority(asked)
        source = Source(
            host=self._host(call),
            port=self._xds_port(),
            token=Redacted(token),
            ca=ca,
            ca_path="" if ca else asked.system_ca_path,
            delta=variant != "GRPC",
            token_file=bootstrap_request.token_file(asked),
        )
        is_ours = network.is_own_agent(asked.features)
        made = bootstrap.bootstrap(
            node,
            source,
            asked.workdir.rstrip("/"),
            admin_port=0 if is_ours else bootstrap_request.admin_port(asked, proxy.spec),
            reports_health=bootstrap_request.reports_health(asked, proxy.spec),
            heap_bytes_max=bootstrap_request.heap_bytes_max(asked),
        )
        return msgspec.json.encode(made)

    def _host(self, call: Call) -> str:
        """The host by which the proxy reaches xDS, which the certificate must be for."""
        if self._xds_host:
            return certificate_facts.normal(self._xds_host)
        try:
            used = urlsplit(f"//{(call.header('Host') or '')[:_HOST_MAX]}").hostname or ""
        except ValueError:
            used = ""
        if not certificate_facts.is_for(self._sans, used):
            raise BadRequest(bootstrap_request.san_mismatch(used, self._sans))
        return certificate_facts.normal(used)

    def _authority(self, asked: BootstrapRequest) -> str:
        """The CA by which a proxy knows xDS: its own, else ours; empty where its machine's must do."""
        if asked.ca_cert and not certificate_facts.is_readable(asked.ca_cert):
            raise BadRequest("caCert is no certificate; give X.509 in PEM form")
        ca = asked.ca_cert or self._ca
        if not certificate_facts.is_authority(ca) and (ca or not asked.system_ca_path):
            raise BadRequest(bootstrap_request.NOT_A_CA)
        return ca

    async def _deregister(self, call: Call, body: bytes) -> web.Response:
        asked = await _beside(len(body), bootstrap_request.of, body, Farewell)
        token = _token(call, "")
        if not token:
            raise Unauthenticated('send the proxy\'s token as "Authorization: Bearer <token>"')
        gone = web.Response(status=204)
        if self._context.state.get(mesh_key(asked.mesh)) is None:
            return gone
        claims = self._authenticated(call, token, asked)
        await self._remove(call, claims, asked)
        return gone

    async def _remove(self, call: Call, claims: DataplaneClaims, asked: Farewell) -> None:
        """Delete a Dataplane that its proxy registered; one that somebody wrote stays."""
        context = self._context

        async def attempt() -> None:
            found = context.state.named("Dataplane", asked.mesh, asked.name)
            if found is None:
                return
            dataplane_auth.check_resource(claims, found)
            if not is_registered(found):
                return
            if asked.instance and found.labels.get(labels.INSTANCE, asked.instance) != asked.instance:
                return  # a later run of the proxy has taken over
            operations = tuple(transactions.delete(context, found, found.revision))
            with contextlib.suppress(NotFound):
                await context.store.write(Transaction(operations, call.user.name, "the proxy has stopped"))

        await compare_and_swap.retried(attempt, f'Dataplane "{asked.name}"')


async def _beside(size: int, read: Callable[..., _Read], *given: Any) -> _Read:
    """What a function reads; beside the loop where that takes time for which others would wait."""
    return read(*given) if size <= _AT_ONCE_BYTES else await asyncio.to_thread(read, *given)


def _token(call: Call, written: str) -> str:
    return dataplane_auth.bare(written) or dataplane_auth.bare(call.header("Authorization") or "")


def _refuse(violations: Iterable[Violation]) -> None:
    found = tuple(violations)
    if found:
        raise Invalid(found)


def _said(error: KogumaError) -> str:
    """An error as text: one line for each violation, or else the one sentence."""
    if isinstance(error, Invalid | BadRequest) and error.violations:
        lines = [f"{v.field}: {v.message}" if v.field else v.message for v in error.violations]
    else:
        lines = [violation.message for violation in error.violations] or [error.detail]
    return "\n".join(lines)


def _refused(request: web.BaseRequest, error: KogumaError, said: str) -> web.Response:
    status = _UNPROCESSABLE if isinstance(error, Invalid) else error.status
    response = web.Response(text=said, status=status, content_type=_TEXT)
    if isinstance(error, NotAllowed):
        response.headers["Allow"] = ", ".join(error.allowed)
    if request.body_exists and not request.content.is_eof():
        response.force_close()  # what is left of the body will not be read
    return response
