"""A real control plane for tests: its own loop in a thread, its own ports, its own data directory."""

import asyncio
import base64
import http.client
import json
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import msgspec

from koguma import data_directory, logs, settings
from koguma.main import ControlPlane


class Answer(msgspec.Struct, frozen=True):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes
    warned: tuple[str, ...] = ()

    @property
    def warnings(self) -> list[str]:
        """The texts of all Warning headers."""
        texts = (line.removeprefix('299 - "').removesuffix('"') for line in self.warned)
        return [text.replace('\\"', '"').replace("\\\\", "\\") for text in texts]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def fields(self) -> list[tuple[str, str]]:
        return [(p["field"], p["reason"]) for p in self.json.get("invalid_parameters", [])]


class SocketConnection(http.client.HTTPConnection):
    """HTTP over the socket in a data directory, as `curl --unix-socket` has it."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = data_dir / data_directory.ADMIN_SOCKET

    def connect(self) -> None:
        self.sock: socket.socket = data_directory.connected(self._path, 20)


def asked(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str
) -> Answer:
    """One request: a dict or list body is sent as JSON, bytes as they are; `If_Match=` is If-Match."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    if body is not None:
        sent.setdefault("Content-Type", "application/json")
    with closing(connection):
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        warned = tuple(response.headers.get_all("Warning", ()))
        return Answer(response.status, dict(response.getheaders()), response.read(), warned)


def by_socket(data_dir: Path, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """One request of the data directory's owner."""
    return asked(SocketConnection(data_dir), method, path, body, **headers)


class Lines:
    """The lines of a watch, as they come."""

    def __init__(self, port: int, path: str, headers: dict[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self._connection.request("GET", path, headers=headers)
        self._response = self._connection.getresponse()
        self.status = self._response.status

    def next(self) -> Any:
        return json.loads(self._response.readline())

    def until(self, word: str) -> list[Any]:
        """All events up to the first of a type, without it."""
        found = []
        while (event := self.next())["type"] != word:
            found.append(event)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self._connection.close()


class Plane:
    """Runs while it is entered."""

    def __init__(self, data_dir: Path, file: str | None = None, **flags: Any) -> None:
        logs.configure("error", "json")
        self.data_dir = data_dir
        flags = {**_keys(data_dir, flags.get("store", "")), **flags}
        usual = {
            "api_port": 0,
            "api_tls_port": 0,
            "dp_port": 0,
            "xds_port": 0,
            "data_dir": str(data_dir),
            "store": "memory://",
            "localhost_is_admin": True,
        }
        self.settings = settings.load(file, {}, {**usual, **flags})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.plane = ControlPlane(self.settings)
        self.run(self.plane.start())
        self.port = self.plane.ports["api"]
        self.tls_port = self.plane.ports["api-tls"]
        self.address = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.plane.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Any) -> Any:
        """Run something on the control plane's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request: a dict or list body is sent as JSON, bytes as they are; `If_Match=` is If-Match."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        return asked(connection, method, path, body, **headers)

    def watch(self, path: str, **headers: str) -> Lines:
        """A watch that stays open until it is left."""
        return Lines(self.port, path, headers)


def _keys(data_dir: Path, store: str) -> dict[str, str]:
    """The key file that a PostgreSQL store needs, the same for all control planes."""
    if not store.startswith("postgresql:"):
        return {}
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = data_dir / "store.key"
    file.touch(0o600)
    file.write_text(base64.b64encode(b"a key of thirty-two bytes, known").decode())
    return {"store_key_file": str(file)}


def timeout(name: str = "slow", mesh: str = "default", idle: str = "5s", **fields: Any) -> dict[str, Any]:
    """A small legal policy."""
    spec = {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": idle}}]}
    return {"type": "MeshTimeout", "name": name, "mesh": mesh, "spec": spec, **fields}
