"""The command line in this process, and a small real HTTP server for what only a server can do wrong."""

import io
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from koguma.cli import main
from tests import build

VARIABLES = (
    *("KOGUMA_ADDRESS", "KOGUMA_TOKEN", "KOGUMA_CA", "KOGUMA_CONFIG_FILE", "KOGUMA_DATA_DIR"),
    *("XDG_DATA_HOME", "NO_COLOR"),
)
_NUMBERS = itertools.count(1)


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def koguma(tmp_path, monkeypatch, capsys) -> Callable[..., Ended]:
    """Runs `koguma` with these words, away from the contexts and variables of whoever runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data-home"))

    def run(*words: str, given: str = "") -> Ended:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode()), encoding="utf-8"))
        capsys.readouterr()
        code = main(words)
        printed = capsys.readouterr()
        return Ended(code, printed.out, printed.err)

    return run


class Request(NamedTuple):
    """What the server was asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


# Status, body (JSON unless it is bytes), headers.
Response = tuple[int, Any, dict[str, str]]


class FakeServer:
    """Answers from a list of responses, one after the other, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.responses: list[Response] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, status: int, body: Any, **headers: str) -> None:
        self.responses.append((status, body, {name.replace("_", "-"): v for name, v in headers.items()}))

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def handle_one(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                fake.asked.append(Request(self.command, self.path, dict(self.headers), body))
                status, answer, headers = fake.responses.pop(0)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                kind = "text/html" if isinstance(answer, bytes) else "application/json"
                self.send_response_only(status)
                for name, value in {
                    "Content-Type": kind,
                    "Content-Length": str(len(data)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = handle_one  # noqa: N815 - the library's names

            def log_message(self, *args: object) -> None:
                pass

        return Handler


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.stop()


@pytest.fixture
def cli(koguma, monkeypatch, control_plane) -> Callable[..., Ended]:
    """`koguma` with the control plane's address in the environment."""
    monkeypatch.setenv("KOGUMA_ADDRESS", control_plane.address)
    return koguma


@pytest.fixture
def mesh(control_plane) -> str:
    """A new mesh without policies of its own."""
    name = f"cli-{os.getpid()}-{next(_NUMBERS)}"
    document = build.mesh(name, skipCreatingInitialPolicies=["*"])
    assert control_plane("PUT", f"/meshes/{name}", document).status == 201
    return name
