"""HTTP requests over unix sockets: to Envoy's admin interface, and to its dynamic configuration listener."""

from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from yarl import URL

_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)
_CHUNK_BYTES: Final = 64 * 1024
_OK: Final = 200
_WORDS_MAX: Final = 300


class EnvoyUnreachable(Exception):
    """Envoy does not answer on the socket, which is normal while it starts or stops."""


class UnixResponse(msgspec.Struct, frozen=True):
    """The response to a request."""

    status: int
    text: str
    etag: str = ""


class ResponseTooLarge(Exception):
    """The response has more bytes than the caller takes."""


async def fetch(socket: Path, path: str, bytes_max: int, seconds_max: float) -> bytes:
    """The body of a successful response; EnvoyUnreachable or ResponseTooLarge where there is none."""
    timeout = aiohttp.ClientTimeout(total=seconds_max)
    connector = aiohttp.UnixConnector(path=str(socket), force_close=True)
    body = bytearray()
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.get(URL(f"http://localhost{path}", encoded=True)) as response,
        ):
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                body += chunk
                if len(body) > bytes_max:
                    raise ResponseTooLarge
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise EnvoyUnreachable(str(error) or type(error).__name__) from error
    if response.status != _OK:
        raise EnvoyUnreachable(f"it answers {response.status}: {body[:_WORDS_MAX].decode(errors='replace')}")
    return bytes(body)


async def request(socket: Path, path: str, method: str = "GET", etag: str = "") -> UnixResponse:
    """Send one request over a new connection; raises EnvoyUnreachable."""
    headers = {"If-None-Match": etag} if etag else {}
    connector = aiohttp.UnixConnector(path=str(socket), force_close=True)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session,
            session.request(method, f"http://localhost{path}", headers=headers) as response,
        ):
            return UnixResponse(response.status, await response.text(), response.headers.get("ETag", ""))
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise EnvoyUnreachable(str(error) or type(error).__name__) from error
