"""A real HTTPS server for tests: what it answers is a function, what it was asked is kept."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.authority import Authority


class Asked(NamedTuple):
    """One request."""

    path: str
    body: bytes
    headers: dict[str, str]
    connection: tuple[str, int]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Reply(NamedTuple):
    """A response; without a body length the connection is closed after it."""

    body: bytes = b"{}"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    closes: bool = False  # after the response, without saying so before


class HttpsServer:
    """Runs while it is entered, on loopback, with a certificate of its own CA for these names."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.authority = Authority()
        self.requests: list[Asked] = []
        self.reply: Callable[[Asked], Reply] = lambda _asked: Reply()
        self.ended = threading.Event()  # what hangs in `reply` may wait for it
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        tls = self.authority.server(folder, *(names or ("127.0.0.1", "localhost")))
        self._server.socket = tls.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> bytes:
        """The CA's certificate (PEM)."""
        return self.authority.pem[0].encode()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """Clients that hang up are part of the tests."""


def _handler(server: HttpsServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are written apart, and a client waits for both

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = Asked(self.path, body, dict(self.headers), self.client_address)
            server.requests.append(asked)
            reply = server.reply(asked)
            self.send_response(reply.status)
            for name, value in reply.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)
            self.close_connection = reply.closes

        def log_message(self, *_: object) -> None:
            """Tests read what was asked, not a log."""

    return Handler
