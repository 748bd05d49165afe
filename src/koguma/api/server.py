"""The HTTP server: ports, TLS, limits, and an orderly end."""

import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_HEADER_BYTES_MAX: Final = 16 * 1024
_KEEPALIVE_SECONDS: Final = 75.0
_BACKLOG: Final = 1024


class HttpServer:
    """One handler on several ports. Handlers are cancelled when their client leaves."""

    def __init__(self, handle: Handle) -> None:
        server = web.Server(
            handle,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=_KEEPALIVE_SECONDS,
            max_line_size=_HEADER_BYTES_MAX,
            max_field_size=_HEADER_BYTES_MAX,
        )
        # Watches are ended before this is asked to stop, so nothing has to be waited for long.
        self._runner = web.ServerRunner(server, shutdown_timeout=5.0)

    async def start(self) -> None:
        """Be ready to listen."""
        await self._runner.setup()

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen on one more port (0: any free one), and say which."""
        site = web.TCPSite(self._runner, host, port, ssl_context=tls, backlog=_BACKLOG)
        await site.start()
        return int(self._runner.addresses[-1][1])

    async def stop(self) -> None:
        """Take no more requests, finish those under way."""
        await self._runner.cleanup()


def tls_context(certificate_path: str, key_path: str) -> ssl.SSLContext:
    """What our TLS ports offer: version 1.2 or newer."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate_path, key_path)
    return context
