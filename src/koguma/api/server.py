"""The HTTP server: ports, TLS, limits, and an orderly end."""

import asyncio
import contextlib
import errno
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from aiohttp import web

from koguma import data_directory

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
        self._unix: tuple[UnixListener, asyncio.AbstractServer] | None = None

    async def start(self) -> None:
        """Be ready to listen."""
        await self._runner.setup()

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen on one more port (0: any free one), and say which."""
        site = web.TCPSite(self._runner, host, port, ssl_context=tls, backlog=_BACKLOG)
        await site.start()
        return int(self._runner.addresses[-1][1])

    async def listen_at(self, path: Path) -> None:
        """Listen on a socket in the file system, that only our own user can open; OSError says why not."""
        listener, factory = UnixListener(path), self._runner.server
        assert factory is not None
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(factory, sock=listener.socket, backlog=_BACKLOG)
        self._unix = listener, server
        listener.show()

    async def stop(self) -> None:
        """Take no more requests, finish those under way."""
        if self._unix is not None:
            listener, server = self._unix
            listener.remove()
            server.close()
        await self._runner.cleanup()


class UnixListener:
    """A socket that others find under its name only when it is ready, and closed to them from the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._check_free()
        self._beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            with data_directory.socket_address(self._beside) as address:
                self.socket.bind(address)
            # Nobody can connect before we listen, which is after this: there is no moment with wider rights.
            self._beside.chmod(0o600)
            self._inode = self._beside.stat().st_ino
        except OSError:
            self.socket.close()
            self._beside.unlink(missing_ok=True)
            raise

    def _check_free(self) -> None:
        """Raise where another process listens there; a socket that a crash left is replaced."""
        try:
            data_directory.connected(self._path, 1.0).close()
        except OSError:
            return
        raise OSError(errno.EADDRINUSE, "another control plane listens there")

    def show(self) -> None:
        """Give it its name."""
        self._beside.replace(self._path)

    def remove(self) -> None:
        """Take the name away, unless somebody else has it by now."""
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()


def tls_context(certificate_path: str, key_path: str) -> ssl.SSLContext:
    """What our TLS ports offer: version 1.2 or newer."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate_path, key_path)
    return context
