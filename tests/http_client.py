"""HTTP requests of tests: over TCP, over the socket in a data directory, and on a connection that is kept."""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from koguma.runtime import data_directory


class Response(msgspec.Struct, frozen=True):
    """An HTTP response; `warned` are its Warning headers."""

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
    def text(self) -> str:
        return self.body.decode()

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
        self.sock: socket.socket = data_directory.connected(self._path, 60)


def send_request(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str
) -> Response:
    """One request: a dict or list body is sent as JSON, bytes as they are; `If_Match=` is If-Match."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    if body is not None:
        sent.setdefault("Content-Type", "application/json")
    with contextlib.closing(connection):
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        warned = tuple(response.headers.get_all("Warning", ()))
        return Response(response.status, dict(response.getheaders()), response.read(), warned)


def request_over_socket(data_dir: Path, method: str, path: str, body: Any = None, **headers: str) -> Response:
    """One request of the data directory's owner."""
    return send_request(SocketConnection(data_dir), method, path, body, **headers)


def joined_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers by name in lower case; what came in several lines is joined, as RFC 9110 allows."""
    lines: dict[str, list[str]] = {}
    for name, value in headers:
        lines.setdefault(name.lower(), []).append(value)
    return {name: ",".join(values) for name, values in lines.items()}


def call(port: int, method: str = "GET", path: str = "/", body: Any = None, **headers: str) -> Response:
    """One request to a local port; `x_team=` is the header x-team."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        sent.setdefault("content-type", "application/json")
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        return Response(response.status, joined_headers(response.getheaders()), response.read())


class PersistentConnection:
    """A connection that is kept between requests, and opened again only where the other side said so."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def call(self, method: str = "GET", path: str = "/") -> Response:
        """One more request."""
        self.connection.request(method, path)
        response = self.connection.getresponse()
        return Response(response.status, joined_headers(response.getheaders()), response.read())

    def close(self) -> None:
        self.connection.close()
