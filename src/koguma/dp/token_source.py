"""The proxy's token: read again when its file changes, and handed to Envoy without a restart.

Kubernetes changes a mounted file by swapping a symbolic link; `koguma token ... > file` truncates a file and
then writes it. So the content is compared, not the modification time, and while a file cannot be read the
last token stays.
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
_REPLACED_MAX: Final = 8  # replaced tokens that are still masked in logs: Envoy may log its last token

_log = structlog.get_logger("koguma.dp")


class TokenSource:
    """The current token: what `read` returned last. The first read must succeed."""

    def __init__(self, read: Callable[[], Redacted | None]) -> None:
        self._read = read
        self._current = read()
        self._replaced: list[Redacted] = []
        self._read_error = ""  # why the last attempt to read it failed
        self._is_logged = False
        self._changed = asyncio.Event()

    def __call__(self) -> Redacted | None:
        """The current token; the last one that could be read, while the file cannot be."""
        try:
            token = self._read()
        except KogumaError as error:
            self._log_error(error.detail)
            return self._current
        self._read_error, self._is_logged = "", False
        before = self._current
        if token is not None and token != before:
            self._current = token
            self._replaced = [*([before] if before else []), *self._replaced][:_REPLACED_MAX]
            self._changed.set()
            _log.info("the token was replaced")
        return self._current

    def _log_error(self, reason: str) -> None:
        """Log once why it cannot be read; not at the first attempt, when it may just be written."""
        if reason == self._read_error and not self._is_logged:
            self._is_logged = True
            _log.warning("the token cannot be read again; the proxy goes on with the last one", reason=reason)
        self._read_error = reason

    def masked(self, text: str) -> str:
        """A text with every current or replaced token masked."""
        for token in (self._current, *self._replaced):
            if token is not None:
                text = text.replace(token.reveal(), SHOWN)
        return text

    async def changed(self, seconds_max: float) -> None:
        """Wait until the token is replaced, at most this long."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds_max):
                await self._changed.wait()
        except TimeoutError:
            return

    async def follow(self, file: Path) -> None:
        """Keep Envoy's token file current, until cancelled."""
        written = self.write(file)
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if self() is not written:
                try:
                    written = self.write(file)
                except OSError as error:  # for instance a full disk; it is tried again
                    _log.warning("the new token cannot be handed to Envoy", reason=error.strerror)

    def write(self, file: Path) -> Redacted | None:
        """Write the token to Envoy's file, readable by our user alone; returns the token."""
        token = self._current
        if token is not None:
            content = json.dumps(token_secret(token.reveal()))
            files.write_private(file, Redacted(content))
        return token
