"""Told: what the control plane wants of the agent, taken from Envoy, which gets it with its configuration.

Envoy hands it on through a socket in the proxy's directory, by path. It is asked for every second, by
version, so that an unchanged answer is empty.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from koguma.dp import unix_http
from koguma.dp.unix_http import Answer, Silent

_POLL_SECONDS: Final = 1.0
_OK: Final = 200
_GONE: Final = 404


def _is_there(socket: Path) -> bool:
    return socket.exists()


async def _answer(socket: Path, path: str, etag: str) -> Answer | None:
    if not _is_there(socket):  # Envoy is told nothing for us
        return None
    try:
        return await unix_http.ask(socket, path, etag=etag)
    except Silent:
        return None


async def follow(socket: Path, path: str, take: Callable[[str], None]) -> None:
    """Give every new text under a path to `take`, for as long as this runs; an empty one where there is none.

    While Envoy does not answer nothing is new: it starts, or it is not told anything at all.
    """
    etag = last = ""
    while True:
        answer = await _answer(socket, path, etag)
        if answer is not None and answer.status == _OK:
            etag, last = answer.etag, answer.text
            take(last)
        elif last and (answer is None or answer.status == _GONE):
            etag = last = ""
            take("")
        await asyncio.sleep(_POLL_SECONDS)
