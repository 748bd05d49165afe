"""Clients that hold connections without sending a request are closed; those that work are left alone."""

import contextlib
import http.client
import socket
import ssl
import threading
import time

import pytest

from koguma.api import connections, server
from koguma.runtime import data_directory
from tests.build import timeout
from tests.control_plane import LocalControlPlane

pytestmark = pytest.mark.slow

HEADER_SECONDS = 0.4
PORTS = ("api", "api-tls", "dp", "socket")
REQUEST_HEAD = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "HEADER_SECONDS_MAX", HEADER_SECONDS)
        patch.setattr(connections, "UNREAD_SECONDS_MAX", HEADER_SECONDS)
        patch.setattr(connections, "CONNECTIONS_PER_ADDRESS_MAX", 20)
        patch.setattr(server, "_HANDSHAKE_SECONDS_MAX", 2.0)  # ours have to end in that time, too
        with LocalControlPlane(tmp_path_factory.mktemp("slow")) as plane:
            yield plane


def connected(plane, port, *, with_tls=True):
    """A connection to one of the control plane's HTTP ports."""
    if port == "socket":
        return data_directory.connected(plane.data_dir / data_directory.ADMIN_SOCKET, 60)
    plain = socket.create_connection(("127.0.0.1", plane.plane.ports[port]), timeout=60)
    if port == "api" or not with_tls:
        return plain
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)


def until_closed(connection):
    """All that the server sends until it closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := connection.recv(65536):
            received += data
    return received


def trickled(connection, data):
    """Send one byte at a time, again and again, until the server closes; give what it sent."""
    closed = threading.Event()

    def send():
        with contextlib.suppress(OSError):
            for index in range(10_000):
                connection.sendall(data[index : index + 1] or b"x")
                if closed.wait(0.02):
                    return

    sender = threading.Thread(target=send)
    sender.start()
    received = until_closed(connection)
    closed.set()
    sender.join()
    return received


def names_until(events, name):
    """The names of the objects in a watch's events, up to one that has this name."""
    names = []
    while name not in names:
        names.append(events.next().get("object", {}).get("name"))
    return names


@pytest.mark.parametrize("port", PORTS)
def test_headers_that_come_one_byte_at_a_time_are_not_waited_for(plane, port):
    with connected(plane, port) as connection:
        received = trickled(connection, REQUEST_HEAD + b"X-Long: ")
        # Whoever still sends when the server closes may lose its answer to the reset.
        assert received == b"" or received.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("port", PORTS)
def test_a_connection_that_never_sends_a_byte_is_closed(plane, port):
    with connected(plane, port) as connection:
        until_closed(connection)  # would raise a timeout after a minute


@pytest.mark.parametrize("port", ["api-tls", "dp"])
def test_a_tls_handshake_that_does_not_go_on_is_closed(plane, port):
    with connected(plane, port, with_tls=False) as connection:
        connection.sendall(b"\x16\x03\x01")  # the beginning of a ClientHello
        assert until_closed(connection) == b""


def test_the_second_request_of_a_connection_has_the_same_limit(plane):
    with connected(plane, "api") as connection:
        connection.sendall(REQUEST_HEAD + b"\r\n")
        assert b" 200 " in connection.recv(65536)
        received = trickled(connection, REQUEST_HEAD + b"X-Long: ")
        # Whoever still sends when the server closes may lose its answer to the reset.
        assert received == b"" or received.startswith(b"HTTP/1.1 408 ")


def test_a_client_that_keeps_its_connection_may_pause_between_requests(plane):
    connection = http.client.HTTPConnection("127.0.0.1", plane.port, timeout=60)
    for _ in range(3):
        connection.request("GET", "/meshes/default")
        response = connection.getresponse()
        response.read()
        assert response.status == 200
        first = connection.sock
        time.sleep(HEADER_SECONDS * 1.5)
        assert connection.sock is first, "it was not opened again"
    connection.close()


def test_a_watch_and_a_slow_body_live_longer_than_headers_may(plane):
    with plane.watch("/meshes/default/meshtimeouts?watch=true") as events:
        body = http.client.HTTPConnection("127.0.0.1", plane.port, timeout=60)
        body.putrequest("PUT", "/meshes/default/meshtimeouts/slow")
        text = str(timeout()).replace("'", '"').encode()
        body.putheader("Content-Type", "application/json")
        body.putheader("Content-Length", str(len(text)))
        body.endheaders()
        body.send(text[:20])
        time.sleep(HEADER_SECONDS * 2)
        body.send(text[20:])
        assert body.getresponse().status == 201
        body.close()
        assert "slow" in names_until(events, "slow")


@pytest.mark.parametrize("port", PORTS)
def test_a_client_that_reads_no_answer_is_closed(plane, port):
    requests = (REQUEST_HEAD + b"\r\n") * 500_000  # more than all buffers on the way hold
    with connected(plane, port) as connection, pytest.raises((ConnectionError, ssl.SSLError)):
        connection.sendall(requests)


def test_of_too_many_connections_of_an_address_the_longest_idle_one_is_closed(plane):
    with plane.watch("/meshes/default/meshtimeouts?watch=true") as events, contextlib.ExitStack() as stack:
        first = stack.enter_context(connected(plane, "api"))
        first.sendall(REQUEST_HEAD + b"\r\n")
        assert b" 200 " in first.recv(65536)
        for _ in range(40):
            other = stack.enter_context(connected(plane, "api"))
            other.sendall(REQUEST_HEAD + b"\r\n")
            assert b" 200 " in other.recv(65536)
        assert until_closed(first) == b""
        assert plane("PUT", "/meshes/default/meshtimeouts/other", timeout("other")).status == 201
        assert "other" in names_until(events, "other"), "the watch was under way, so it was left alone"
