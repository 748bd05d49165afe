"""Clients of a gateway that say exactly what a test tells them: raw HTTP/1.1, HTTP/2 frame by frame, TLS."""

import contextlib
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import h2.config
import h2.connection
import h2.events

from tests import tls_certificates

SECONDS = 60
Headers = Sequence[tuple[str, str]]


class Answer(NamedTuple):
    """What came back; status 0 is a connection or stream that was closed without an answer."""

    status: int
    body: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def header(self, name: str) -> str | None:
        """The value of a header."""
        return dict(self.headers).get(name)


@contextlib.contextmanager
def connected(port: int, server_name: str | None = "", alpn: Sequence[str] = ()) -> Iterator[socket.socket]:
    """A connection to a port of this machine; with TLS unless `server_name` is empty, None is without SNI."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as plain:
        if server_name == "":
            yield plain
            return
        context = ssl.create_default_context(cadata=tls_certificates.root_pem())
        context.check_hostname = False  # hosts and certificates are the test's to choose
        if alpn:
            context.set_alpn_protocols(list(alpn))
        with context.wrap_socket(plain, server_hostname=server_name) as secured:
            yield secured


def http1(port: int, target: str, *lines: str, server_name: str | None = "", body: bytes = b"") -> Answer:
    """A GET, or another request line where `target` has spaces, with these header lines as they are."""
    first = target if " " in target else f"GET {target} HTTP/1.1"
    head = "\r\n".join((first, *lines, "connection: close", "", "")).encode("latin-1")
    received = b""
    with contextlib.suppress(ConnectionError), connected(port, server_name) as connection:
        connection.sendall(head + body)
        while not is_whole(received) and (data := connection.recv(65536)):
            received += data
    return parsed(received)


def is_whole(received: bytes) -> bool:
    """Whether an answer has come with all of its body; Envoy closes only a second later."""
    head, end, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    if not end or (length is None and b"chunked" not in head.lower()):
        return False
    return body.endswith(b"0\r\n\r\n") if length is None else len(body) >= int(length[1])


def parsed(received: bytes) -> Answer:
    """The first answer in what came over a connection."""
    head, _, body = received.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.1 (\d+)", head)
    if status is None:
        return Answer(0)
    if b"transfer-encoding: chunked" in head.lower():
        body = body.partition(b"\r\n")[2].partition(b"\r\n0\r\n")[0]
    fields = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:]]
    headers = tuple((name.lower(), value.strip()) for name, _, value in fields)
    return Answer(int(status[1]), body.decode("latin-1"), headers)


def http2(port: int, headers: Headers, *, server_name: str | None = "") -> Answer:
    """One request over HTTP/2; without TLS with prior knowledge. Nothing is corrected before it is sent."""
    with connected(port, server_name, ["h2"]) as connection:
        if isinstance(connection, ssl.SSLSocket):
            assert connection.selected_alpn_protocol() == "h2"
        return over_http2(connection, headers)


_AS_TOLD = h2.config.H2Configuration(
    validate_outbound_headers=False, normalize_outbound_headers=False, header_encoding="latin-1"
)


def over_http2(connection: socket.socket, headers: Headers) -> Answer:
    """One request over a connection that speaks HTTP/2."""
    client = h2.connection.H2Connection(_AS_TOLD)
    client.initiate_connection()
    client.send_headers(1, headers, end_stream=True)
    connection.sendall(client.data_to_send())
    status, fields, body = 0, [], b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(65536):
            for event in client.receive_data(data):
                match event:
                    case h2.events.ResponseReceived():
                        fields = [(str(name), str(value)) for name, value in event.headers]
                        status = int(dict(fields)[":status"])
                    case h2.events.DataReceived():
                        body += event.data
                        client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    case h2.events.StreamEnded():
                        return Answer(status, body.decode("latin-1"), tuple(fields))
                    case h2.events.StreamReset() | h2.events.ConnectionTerminated():
                        return Answer(0, body.decode("latin-1"), tuple(fields))
            connection.sendall(client.data_to_send())
    return Answer(0)


def request(host: str, path: str = "/", scheme: str = "http", method: str = "GET") -> list[tuple[str, str]]:
    """The pseudo headers of a request."""
    return [(":method", method), (":scheme", scheme), (":authority", host), (":path", path)]


def is_of_this_machine(address: str) -> bool:
    """Whether an interface has it; Envoy writes one of these for clients on its own machine."""
    with contextlib.suppress(OSError), socket.socket() as bound:
        bound.bind((address, 0))
        return True
    return False
