"""The agent's client of the control planes: their port for proxies, over TLS that is always verified."""

import asyncio
import contextlib
import json
import os
import secrets
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec

from koguma.model.errors import KogumaError
from koguma.model.redacted import Redacted
from koguma.model.schema import Json

_TIMEOUT_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 2.0
_EACH_SECONDS: Final = 3.0  # where there is another control plane to ask
_PORTS_SECONDS: Final = 1.0
_OK: Final = range(200, 300)
_NOT_FOUND: Final = 404
_PASSING: Final = (408, 429)
_SERVER_ERRORS_FROM: Final = 500
_WORDS_MAX: Final = 1000
_WRONG_PAGE: Final = "404: Page Not Found"  # Kuma's response on ports that are not for proxies


class ControlPlaneUnavailable(Exception):
    """The control plane does not answer, or answers that it cannot now; retrying is right."""


class ControlPlaneDenied(KogumaError):
    """The control plane refuses, or cannot be trusted; `http_status` is 0 where it gave no response."""

    def __init__(self, detail: str, http_status: int = 0) -> None:
        super().__init__(detail)
        self.http_status = http_status


class ChannelOptions(msgspec.Struct, frozen=True):
    """The limits of a WebSocket: how large a message may be, and how long nothing may come."""

    message_bytes_max: int
    silence_seconds_max: float


class OtherControlPlane(NamedTuple):
    """Where another control plane is; 0: its xDS port is that of the one that is asked."""

    host: str
    xds_port: int


class ControlPlaneClient:
    """Sends requests to one of several control planes of a store, to the last that answered first.

    Token and CA are read for each request: both may be renewed.
    """

    def __init__(self, addresses: Sequence[str], ca_file: str, token: Callable[[], Redacted | None]) -> None:
        assert addresses
        self._addresses = list(addresses)
        secrets.SystemRandom().shuffle(self._addresses)  # so that they share the work of many proxies
        self._channel_addresses = deque(self._addresses)  # the next to try first
        self._ca_file = ca_file
        self._token = token
        self._xds_ports: dict[str, int] = {}  # by address, as far as somebody has answered

    def token(self) -> Redacted | None:
        """The current token of the proxy."""
        return self._token()

    @property
    def shown(self) -> str:
        """All addresses, for people."""
        return ", ".join(sorted(self._addresses))

    def ca(self) -> str:
        """The CA certificate of the control plane (PEM); empty where the system's CAs are used."""
        if not self._ca_file:
            return ""
        try:
            return Path(self._ca_file).read_text(encoding="ascii")
        except OSError as error:
            raise ControlPlaneDenied(
                f"the CA file {self._ca_file} cannot be read: {error.strerror}"
            ) from None
        except UnicodeDecodeError:
            raise ControlPlaneDenied(f"the CA file {self._ca_file} is no PEM") from None

    def others(self, address: str) -> list[OtherControlPlane]:
        """The other control planes than the one at an address; their xDS ports where these are known."""
        found = ((other, urlsplit(other)) for other in sorted(self._addresses) if other != address)
        return [OtherControlPlane(parts.hostname or "", self._xds_ports.get(url, 0)) for url, parts in found]

    async def learn_ports(self) -> None:
        """Ask each control plane for its xDS port, where they do not all have the same ports."""
        if len({urlsplit(address).port for address in self._addresses}) == 1:
            return  # as usual; then they have the same xDS port too

        async def ask(address: str) -> None:
            with contextlib.suppress(ControlPlaneUnavailable, ControlPlaneDenied):
                answer = await self._request("GET", address, "/ports", None, _PORTS_SECONDS)
                port = answer.get("xds") if isinstance(answer, dict) else None
                if isinstance(port, int) and not isinstance(port, bool):
                    self._xds_ports[address] = port

        await asyncio.gather(*map(ask, self._addresses))

    async def post(
        self, path: str, body: Callable[[str], Json], timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> Json:
        """The JSON of the first response, None where it is empty; `body` is asked for each address.

        ControlPlaneDenied where one refuses, or none can be trusted; ControlPlaneUnavailable where none
        answers.
        """
        failures: list[tuple[str, ControlPlaneUnavailable | ControlPlaneDenied]] = []
        several = len(self._addresses) > 1
        seconds = min(timeout_seconds, _EACH_SECONDS) if several else timeout_seconds
        for address in tuple(self._addresses):
            try:
                answer = await self._request("POST", address, path, body(address), seconds)
            except (ControlPlaneUnavailable, ControlPlaneDenied) as error:
                if isinstance(error, ControlPlaneDenied) and error.http_status:
                    raise  # it has the same objects as the others
                failures.append((address, error))
            else:
                self._addresses.remove(address)
                self._addresses.insert(0, address)
                return answer
        raise _together(failures)

    async def _request(self, method: str, address: str, path: str, body: Json, seconds: float) -> Json:
        tls, headers = self._tls(), {"Accept": "application/json"}
        if method == "POST":
            headers |= self._authorization()
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(
                    method, address + path, json=body, headers=headers, ssl=tls, allow_redirects=False
                ) as response,
            ):
                return _read(address, response.status, await response.text(errors="replace"))
        except aiohttp.ClientConnectorCertificateError as error:
            raise self._untrusted(address, error) from None
        except aiohttp.ClientConnectorSSLError as error:
            raise ControlPlaneDenied(
                f"{address} does not speak TLS as a control plane does ({error.strerror}); the port for"
                " proxies is usually 5678"
            ) from None
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ControlPlaneUnavailable(_reason(error)) from error

    @asynccontextmanager
    async def open_channel(
        self, path: str, query: Mapping[str, str], options: ChannelOptions
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket to a control plane; ControlPlaneUnavailable or ControlPlaneDenied.

        Where one does not answer, the next call tries another.
        """
        tls, headers, address = self._tls(), self._authorization(), self._channel_addresses[0]
        limits = aiohttp.ClientWSTimeout(ws_receive=options.silence_seconds_max, ws_close=_CLOSE_SECONDS)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    channel = await session.ws_connect(
                        address + path,
                        params=query,
                        headers=headers,
                        ssl=tls,
                        timeout=limits,
                        max_msg_size=options.message_bytes_max,
                    )
            except aiohttp.WSServerHandshakeError as error:
                self._channel_addresses.rotate()
                raise ControlPlaneDenied(f"{address} answers {error.status}", error.status) from None
            except aiohttp.ClientConnectorCertificateError as error:
                self._channel_addresses.rotate()
                raise self._untrusted(address, error) from None
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                self._channel_addresses.rotate()
                raise ControlPlaneUnavailable(f"{address}: {_reason(error)}") from error
            try:
                async with channel:
                    yield channel
            finally:
                self._channel_addresses.rotate()  # it stops, or it is overloaded

    def _authorization(self) -> dict[str, str]:
        token = self._token()
        return {"Authorization": f"Bearer {token.reveal()}"} if token else {}

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cadata=self.ca() or None)
        except ssl.SSLError as error:
            raise ControlPlaneDenied(
                f"the CA file {self._ca_file} cannot be used: {error.reason or error}"
            ) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def _untrusted(self, address: str, error: aiohttp.ClientConnectorCertificateError) -> ControlPlaneDenied:
        reason = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
        by = f"the CA in {self._ca_file}" if self._ca_file else "the system's CAs"
        return ControlPlaneDenied(
            f"{address} is not trusted by {by}: {reason}; give the control plane's CA with"
            " --ca-cert-file (it keeps ca.pem in its data directory)"
        )


def _together(
    failures: Sequence[tuple[str, ControlPlaneUnavailable | ControlPlaneDenied]],
) -> ControlPlaneUnavailable | ControlPlaneDenied:
    """One failure for those of all control planes: they are unavailable if one may answer later."""
    if len(failures) == 1:
        return failures[0][1]
    texts = [
        error.detail if isinstance(error, ControlPlaneDenied) else f"{address}: {error}"
        for address, error in failures
    ]
    text = "; ".join(sorted(texts))
    is_denied = all(isinstance(error, ControlPlaneDenied) for _, error in failures)
    return ControlPlaneDenied(text) if is_denied else ControlPlaneUnavailable(text)


def _read(address: str, status: int, text: str) -> Json:
    if status in _OK:
        return _decoded(text)
    if status == _NOT_FOUND and not text.strip():
        raise ControlPlaneUnavailable("it does not know this proxy yet")
    if status == _NOT_FOUND and text.strip() == _WRONG_PAGE:
        raise ControlPlaneDenied(
            f"{address} is not the port for proxies, which is usually 5678; see --cp-address"
        )
    if status >= _SERVER_ERRORS_FROM or status in _PASSING:
        raise ControlPlaneUnavailable(f"it answers {status}: {words(text)}")
    raise ControlPlaneDenied(f"the control plane at {address} answers {status}: {words(text)}", status)


def _decoded(text: str) -> Json:
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise ControlPlaneDenied("what answers is no control plane: its answer is no JSON") from None


def words(text: str) -> str:
    """The error message in a response body, in one line: of our API's JSON errors, or plain text."""
    plain = "; ".join(line.strip() for line in text.splitlines() if line.strip())
    return ("; ".join(_parts(text)) or plain or "without a word")[:_WORDS_MAX]


def _parts(text: str) -> list[str]:
    try:
        error = json.loads(text)
    except ValueError:
        return []
    if not isinstance(error, dict):
        return []
    invalid = error.get("invalid_parameters")
    return [
        *(str(error[name]) for name in ("title", "detail") if error.get(name)),
        *(
            f"{entry.get('field', '')}: {entry.get('reason', '')}".removeprefix(": ")
            for entry in (invalid if isinstance(invalid, list) else ())
        ),
    ]


def _reason(error: Exception) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the host name is not known"
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(inner, OSError) and inner.errno and inner.errno > 0:
        return os.strerror(inner.errno)  # the event loop's text would repeat the address
    return str(inner) or type(error).__name__
