"""HTTP requests over unix sockets: to Envoy's admin interface, and to its dynamic configuration listener."""

from pathlib import Path
from typing import Final

import aiohttp
import msgspec

_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)


class EnvoyUnreachable(Exception):
    """Envoy does not answer on the socket, which is normal while it starts or stops."""


class UnixResponse(msgspec.Struct, frozen=True):
    """The response to a request."""

    status: int
    text: str
    etag: str = ""


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
