"""Outgoing calls: the one client for addresses that users' objects name, such as webhooks.

Only hosts that the operator allowed are called, over verified TLS. The addresses of a host are checked each
time one is connected to, and the connection goes to the address that was checked: a name that changes its
address in between leads nowhere else. Redirects are not followed, proxies of the environment are not used,
and time and size of a response are limited.
"""

import asyncio
import socket
import ssl
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlsplit
from weakref import WeakSet

import aiohttp
from aiohttp import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from multidict import CIMultiDict

from koguma.model.errors import KogumaError
from koguma.model.redacted import Redacted
from koguma.runtime import service_addresses
from koguma.runtime.allowed_hosts import AllowedHosts, plain_address
from koguma.runtime.service_addresses import ServiceAddress

SETTING: Final = "outgoingHosts"
RESPONSE_BYTES_MAX: Final = 8 * 1024 * 1024
_CONNECTIONS_MAX: Final = 256
_CONNECTIONS_PER_HOST_MAX: Final = 64
_TLS_CONTEXTS_MAX: Final = 64
_HTTPS_PORT: Final = 443
_JSON: Final = {"Content-Type": "application/json", "Accept": "application/json"}
_IDENTITY: Final = {"Accept-Encoding": "identity"}  # nothing small that unpacks into something large


class CallFailed(KogumaError):
    """A call that could not be made, or has no usable response; the text says why, and nothing of a body."""


class OutgoingCalls:
    """The client; made once, closed at the end."""

    def __init__(
        self, allowed: AllowedHosts | None = None, services: Mapping[str, ServiceAddress] | None = None
    ) -> None:
        self._allowed = allowed or AllowedHosts()  # nothing
        self._services = services or {}
        self._identity: tuple[str, Redacted] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._tls_contexts: OrderedDict[tuple[bytes, str], ssl.SSLContext] = OrderedDict()
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def identify(self, certificate: str, key: Redacted) -> None:
        """Use a client certificate where a call is to show who we are."""
        self._identity = (certificate, key)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        # A server that hangs never finishes TLS's own goodbye.
        for each in [each for each in self._sockets if each.fileno() >= 0]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            await asyncio.sleep(0.01)  # for the loop to see it

    async def post_json(
        self, url: str, body: bytes, *, ca_bundle: bytes = b"", timeout_seconds: float = 10.0
    ) -> bytes:
        """The body of a successful response; `ca_bundle` (PEM) is trusted, or else the system's CAs.

        A server may close a connection in the very moment in which it is used again, so that one attempt on a
        fresh one follows. Only for requests that may arrive twice.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                try:
                    return await self._posted(url, body, ca_bundle)
                except (aiohttp.ServerDisconnectedError, ConnectionResetError):
                    return await self._posted(url, body, ca_bundle)
        except TimeoutError:
            raise CallFailed(f"no answer within {timeout_seconds:g}s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise CallFailed(reason_of(error)) from error

    async def _posted(self, url: str, body: bytes, ca_bundle: bytes) -> bytes:
        async with self.open("POST", url, body, headers=_JSON, ca_bundle=ca_bundle) as response:
            if response.status != 200:  # noqa: PLR2004 - OK
                raise CallFailed(f"it answers with status {response.status}")
            return await limited_body(response)

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        ca_bundle: bytes = b"",
        identifies_us: bool = False,
        answer_seconds: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response whose body is still to be read; the caller limits time and size.

        CallFailed where the address is not allowed; aiohttp's errors where it cannot be reached, TimeoutError
        where the response has not begun after `answer_seconds`. `identifies_us`: with our client certificate.
        """
        self._check(url)
        if self._session is None:
            self._session = self._new_session()
        sent = CIMultiDict(_IDENTITY)
        sent.extend(headers or {})
        async with asyncio.timeout(answer_seconds):
            response = await self._session.request(
                method,
                url,
                data=body,
                headers=sent,
                ssl=self._tls(ca_bundle, self._identity if identifies_us else None),
                allow_redirects=False,
            )
        async with response:
            try:
                yield response
            except BaseException:
                _abort(response)  # a server that does not read would hold the connection for long
                raise

    def _check(self, url: str) -> None:
        """Raise CallFailed for what is no https address, and for a literal address that is not allowed."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or _HTTPS_PORT
        except ValueError:
            raise CallFailed("the address cannot be read") from None
        if parts.scheme != "https" or not host or parts.username is not None:
            raise CallFailed("only https addresses without a user are called")
        try:
            plain_address(host)
        except ValueError:
            return  # a name, whose addresses are checked when they are known
        if not self._allowed.addresses(host, port, [host]):
            raise not_allowed(host, port)

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=_CheckedResolver(self._allowed, self._services),
            use_dns_cache=False,
            socket_factory=self._new_socket,
            limit=_CONNECTIONS_MAX,
            limit_per_host=_CONNECTIONS_PER_HOST_MAX,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # the callers limit it
            trust_env=False,
            auto_decompress=False,
        )

    def _new_socket(self, address: AddrInfoType) -> socket.socket:
        family, type_, protocol = address[:3]
        made = socket.socket(family=family, type=type_, proto=protocol)
        self._sockets.add(made)
        return made

    def _tls(self, ca_bundle: bytes, identity: tuple[str, Redacted] | None) -> ssl.SSLContext:
        """The TLS context of a CA bundle; connections are shared by requests that have the same one."""
        cached = (ca_bundle, identity[0] if identity else "")
        context = self._tls_contexts.get(cached)
        if context is None:
            context = _tls_context(ca_bundle)
            if identity is not None:
                _load_identity(context, *identity)
            if len(self._tls_contexts) >= _TLS_CONTEXTS_MAX:
                self._tls_contexts.popitem(last=False)
            self._tls_contexts[cached] = context
        self._tls_contexts.move_to_end(cached)
        return context


def _load_identity(context: ssl.SSLContext, certificate: str, key: Redacted) -> None:
    """Load a client certificate; Python reads one only from a file, which is gone at once."""
    with tempfile.NamedTemporaryFile("w", prefix="koguma-") as file:  # readable by our own user alone
        file.write(certificate + key.reveal())
        file.flush()
        context.load_cert_chain(file.name)


async def limited_body(response: aiohttp.ClientResponse, bytes_max: int = RESPONSE_BYTES_MAX) -> bytes:
    """The body of a response; CallFailed where it is too large."""
    body = bytearray()
    async for part in response.content.iter_chunked(64 * 1024):
        body += part
        if len(body) > bytes_max:
            raise CallFailed(f"the response has more than {bytes_max} bytes")
    return bytes(body)


def _abort(response: aiohttp.ClientResponse) -> None:
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


def not_allowed(host: str, port: int) -> CallFailed:
    """The error for a host that the operator did not allow."""
    setting = service_addresses.SETTING if service_addresses.is_service(host) else SETTING
    return CallFailed(
        f'the control plane may not call "{host}" on port {port}: its operator allows that with the setting'
        f" {setting}"
    )


class _CheckedResolver(AbstractResolver):
    """Resolves names, and gives only addresses that may be called. Of services the operator says where."""

    def __init__(self, allowed: AllowedHosts, services: Mapping[str, ServiceAddress]) -> None:
        self._allowed = allowed
        self._services = services
        self._inner = ThreadedResolver()

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        """The addresses of a host that are allowed."""
        service = self._services.get(host)
        if service is not None:
            found = await self._inner.resolve(service.host, service.port, family)  # type: ignore[arg-type]
            return [{**result, "hostname": host} for result in found]
        try:
            results = await self._inner.resolve(host, port, family)  # type: ignore[arg-type]
        except OSError:
            if service_addresses.is_service(host):
                raise not_allowed(host, port) from None
            raise
        allowed = set(self._allowed.addresses(host, port, [result["host"] for result in results]))
        if not allowed:
            raise not_allowed(host, port)
        return [result for result in results if result["host"] in allowed]

    async def close(self) -> None:
        """Nothing is kept."""
        await self._inner.close()


def _tls_context(ca_bundle: bytes) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=ca_bundle.decode("ascii") if ca_bundle else None)
    except (ssl.SSLError, ValueError):
        raise CallFailed("the CA bundle holds no certificates (PEM)") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A bundle may be one server's own certificate or an intermediate CA, as in Kubernetes, on every Python.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def reason_of(error: aiohttp.ClientError | OSError) -> str:
    """Why a call failed, for people."""
    match error:
        case aiohttp.InvalidURL():
            return "the address cannot be read"
        case aiohttp.ClientConnectorCertificateError():
            cause = error.certificate_error
            return f"its certificate is not trusted: {getattr(cause, 'verify_message', '') or cause}"
        case aiohttp.ClientConnectorDNSError():
            return f'the name "{error.host}" cannot be resolved'
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed without an answer"
        case OSError() if error.strerror:
            return error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
