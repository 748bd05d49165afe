"""The proxy's token: read again when its file changes, and handed to Envoy without a restart.

Kubernetes changes a mounted file by swapping a symbolic link; `koguma token ... > file` empties a file and
then writes it. So the content counts and not the file's time, and a file that cannot be read now leaves the
token as it was.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from koguma.envoy.bootstrap import token_secret
from koguma.identity import files
from koguma.model.errors import KogumaError
from koguma.model.redacted import SHOWN, Redacted

_POLL_SECONDS: Final = 1.0
_REPLACED_MAX: Final = 8  # that are still kept out of logs: Envoy may speak of a token it had until now

_log = structlog.get_logger("koguma.dp")


class TokenSource:
    """The token as it is now: whatever `read` gave last. The first one must be there."""

    def __init__(self, read: Callable[[], Redacted | None]) -> None:
        self._read = read
        self._current = read()
        self._replaced: list[Redacted] = []
        self._unread = ""  # why the last attempt to read it failed
        self._is_told = False
        self._changed = asyncio.Event()

    def __call__(self) -> Redacted | None:
        """The token as it is now; the last one that could be read, where the file is being written."""
        try:
            found = self._read()
        except KogumaError as error:
            self._complain(error.detail)
            return self._current
        self._unread, self._is_told = "", False
        before = self._current
        if found is not None and found != before:
            self._current = found
            self._replaced = [*([before] if before else []), *self._replaced][:_REPLACED_MAX]
            self._changed.set()
            _log.info("the token was replaced")
        return self._current

    def _complain(self, reason: str) -> None:
        """Say once why it cannot be read; not at the first attempt, since it may just be being written."""
        if reason == self._unread and not self._is_told:
            self._is_told = True
            _log.warning("the token cannot be read again; the proxy goes on with the last one", reason=reason)
        self._unread = reason

    def masked(self, text: str) -> str:
        """A text without any token that was read."""
        for token in (self._current, *self._replaced):
            if token is not None:
                text = text.replace(token.reveal(), SHOWN)
        return text

    async def changed(self, seconds_max: float) -> None:
        """Wait until there is another token, at most this long."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds_max):
                await self._changed.wait()
        except TimeoutError:
            return

    async def follow(self, file: Path) -> None:
        """Keep Envoy's token file as it should be, until cancelled."""
        written = self.write(file)
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if self() is not written:
                try:
                    written = self.write(file)
                except OSError as error:  # as a full disk; it is tried again
                    _log.warning("the new token cannot be handed to Envoy", reason=error.strerror)

    def write(self, file: Path) -> Redacted | None:
        """Write the token for Envoy, for our user alone; which one it was."""
        token = self._current
        if token is not None:
            content = json.dumps(token_secret(token.reveal()))
            files.write_private(file, Redacted(content))
        return token
