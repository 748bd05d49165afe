"""Dynamic configuration of the agent: what the control plane sends to it, read from Envoy.

The control plane has no connection to the agent. It gives Envoy an internal listener (`_kuma_dynamicconfig`)
whose direct responses carry the configuration, one path per subject. The agent polls that listener through a
unix socket every second, with If-None-Match, so that an unchanged configuration costs an empty response.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from koguma.dp import unix_http
from koguma.dp.unix_http import EnvoyUnreachable, UnixResponse

_POLL_SECONDS: Final = 1.0
_OK: Final = 200
_NOT_FOUND: Final = 404


def _exists(socket: Path) -> bool:
    return socket.exists()


async def _response(socket: Path, path: str, etag: str) -> UnixResponse | None:
    if not _exists(socket):  # Envoy has no such listener: there is no configuration for the agent
        return None
    try:
        return await unix_http.request(socket, path, etag=etag)
    except EnvoyUnreachable:
        return None


async def follow(socket: Path, path: str, on_change: Callable[[str], None]) -> None:
    """Call `on_change` with every new configuration under a path, until cancelled.

    A configuration that is removed, or an Envoy that no longer answers, is reported as an empty text.
    """
    etag = last = ""
    while True:
        response = await _response(socket, path, etag)
        if response is not None and response.status == _OK:
            etag, last = response.etag, response.text
            on_change(last)
        elif last and (response is None or response.status == _NOT_FOUND):
            etag = last = ""
            on_change("")
        await asyncio.sleep(_POLL_SECONDS)
