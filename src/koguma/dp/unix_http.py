"""Requests over unix sockets: to Envoy's admin interface, and to what it hands on from the control plane."""

from pathlib import Path
from typing import Final

import aiohttp
import msgspec

_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)


class Silent(Exception):
    """Nobody answers on the socket, which is what one expects of an Envoy that starts or ends."""


class Answer(msgspec.Struct, frozen=True):
    """What came back."""

    status: int
    text: str
    etag: str = ""


async def ask(socket: Path, path: str, method: str = "GET", etag: str = "") -> Answer:
    """Send one request over its own connection; Silent where nobody answers."""
    headers = {"If-None-Match": etag} if etag else {}
    connector = aiohttp.UnixConnector(path=str(socket), force_close=True)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session,
            session.request(method, f"http://localhost{path}", headers=headers) as response,
        ):
            return Answer(response.status, await response.text(), response.headers.get("ETag", ""))
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise Silent(str(error) or type(error).__name__) from error
