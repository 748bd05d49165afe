"""Readiness: a small HTTP server that tells Envoy and health checks whether the proxy takes requests.

It listens on a unix socket in the proxy's directory, and optionally on a local port.
"""

import os
from enum import Enum
from pathlib import Path

from aiohttp import web

from koguma.dp.dataplane import LOOPBACK
from koguma.model.errors import KogumaError


class ReadinessState(Enum):
    """The states of a proxy, as the response body says them."""

    STARTING = "STARTING"
    READY = "READY"
    TERMINATING = "TERMINATING"


class Readiness:
    """Answers `GET /ready` with 200 and READY, or with 503 and another state."""

    def __init__(self) -> None:
        self.state = ReadinessState.STARTING
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=1.0)

    async def start(self, socket: Path, port: int = 0) -> None:
        """Listen on the socket, and on the port unless it is 0."""
        await self._runner.setup()
        await web.UnixSite(self._runner, str(socket)).start()  # replaces the socket of a killed agent
        if not port:
            return
        try:
            await web.TCPSite(self._runner, LOOPBACK, port).start()
        except OSError as error:
            await self.stop()
            why = os.strerror(error.errno or 0)
            hint = "choose another with --readiness-port, or none with 0"
            raise KogumaError(f"cannot listen on {LOOPBACK}:{port} for readiness: {why}; {hint}") from error

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/ready":
            return web.Response(status=404, text="ask for /ready\n")
        return web.Response(status=200 if self.state is ReadinessState.READY else 503, text=self.state.value)
