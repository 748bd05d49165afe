"""The HTTP server: ports, TLS, limits, and a graceful shutdown."""

import asyncio
import contextlib
import errno
import secrets
import socket
import ssl
from pathlib import Path
from typing import Final

from aiohttp import web

from koguma.api.connections import Handle, LimitedServer
from koguma.runtime import data_directory

_HEADER_BYTES_MAX: Final = 16 * 1024
_KEEPALIVE_SECONDS: Final = 75.0
_BACKLOG: Final = 1024
_HANDSHAKE_SECONDS_MAX: Final = 10.0


class HttpServer:
    """One handler on several ports. Handlers are cancelled when their client disconnects."""

    def __init__(self, handle: Handle) -> None:
        server = LimitedServer(
            handle,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=_KEEPALIVE_SECONDS,
            max_line_size=_HEADER_BYTES_MAX,
            max_field_size=_HEADER_BYTES_MAX,
            # aiohttp would decompress bodies on the event loop, before anybody is asked who it is.
            auto_decompress=False,
        )
        # Watches are ended before the shutdown, so no request takes long then.
        self._runner = web.ServerRunner(server, shutdown_timeout=5.0)
        self._listening: list[asyncio.AbstractServer] = []
        self._unix: UnixListener | None = None

    async def start(self) -> None:
        """Set up the server; ports are opened afterwards."""
        await self._runner.setup()

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen on one more port (0: any free one); gives its number."""
        server = await asyncio.get_running_loop().create_server(
            self._protocols(),
            host,
            port,
            ssl=tls,
            backlog=_BACKLOG,
            ssl_handshake_timeout=_HANDSHAKE_SECONDS_MAX if tls else None,
        )
        self._listening.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def listen_at(self, path: Path) -> None:
        """Listen on a socket in the file system, that only our own user can open; OSError says why not."""
        self._unix = UnixListener(path)
        server = await asyncio.get_running_loop().create_unix_server(
            self._protocols(), sock=self._unix.socket, backlog=_BACKLOG
        )
        self._listening.append(server)
        self._unix.show()

    def _protocols(self) -> web.Server:
        assert self._runner.server is not None
        return self._runner.server

    async def stop(self) -> None:
        """Accept no more connections, and finish the requests under way."""
        if self._unix is not None:
            self._unix.remove()
        for server in self._listening:
            server.close()
        await self._runner.cleanup()


class UnixListener:
    """A unix socket that appears under its path only when it is ready, with mode 0600 from the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._check_free()
        self._beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            with data_directory.socket_address(self._beside) as address:
                self.socket.bind(address)
            # Nobody can connect before we listen, which is after this: it never accepts other users.
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
        """Move it to its path."""
        self._beside.replace(self._path)

    def remove(self) -> None:
        """Remove the path, unless another process has replaced it."""
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()


def tls_context(certificate_path: str, key_path: str) -> ssl.SSLContext:
    """The TLS context of our ports: version 1.2 or newer."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate_path, key_path)
    return context
