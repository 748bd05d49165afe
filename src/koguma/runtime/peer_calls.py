"""Peer calls: the client with which a control plane asks others of its store.

Their addresses come from the store, where they write them themselves. They are called over TLS alone, and
trusted by the CA of the store: each has a certificate by it that is also for `localhost`, whatever the name
is by which it is reached. Where the operator gave a certificate, the name must be in it.
"""

import asyncio
import ssl
from typing import Final

import aiohttp
import msgspec

from koguma.runtime.outgoing_calls import CallFailed, limited_body, reason_of

_CONNECTIONS_PER_HOST_MAX: Final = 64
_CONNECT_SECONDS: Final = 3.0
_OURS: Final = "localhost"  # in every certificate that a control plane makes for itself
_ERROR_BYTES_MAX: Final = 16 * 1024


class PeerTrust(msgspec.Struct, frozen=True):
    """Which certificates of other control planes are trusted."""

    ca: str  # of the store; empty where operators give certificates
    certificate: str  # our own, with its chain; that of the others may be by the same CA


class PeerResponse(msgspec.Struct, frozen=True):
    """The response of another control plane."""

    status: int
    body: bytes


class PeerCalls:
    """The client; closed at the end."""

    def __init__(self, trust: PeerTrust) -> None:
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, url: str, body: bytes, authorization: str, bytes_max: int, seconds_max: float
    ) -> PeerResponse:
        """The response to a request; CallFailed where there is none, or one that is too large."""
        if not url.startswith("https://"):
            raise CallFailed("its address is no https address")
        if self._session is None:
            self._session = self._new_session()
        headers = {"Authorization": authorization, "Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(seconds_max),
                self._session.post(
                    url,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    server_hostname=_OURS if self._trust.ca else None,
                ) as response,
            ):
                is_good = response.status == 200  # noqa: PLR2004 - OK
                read = await limited_body(response, bytes_max if is_good else _ERROR_BYTES_MAX)
                return PeerResponse(response.status, read)
        except TimeoutError:
            raise CallFailed(f"no answer within {seconds_max:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise CallFailed(reason_of(error)) from error

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=self._tls(), limit=0, limit_per_host=_CONNECTIONS_PER_HOST_MAX)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            trust_env=False,
            auto_decompress=False,
        )

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self._trust.ca or None)
        if not self._trust.ca:
            context.load_verify_locations(cadata=self._trust.certificate)
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context
