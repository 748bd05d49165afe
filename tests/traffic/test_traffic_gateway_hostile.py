"""Hostile clients of a real gateway: nothing that they send gets them past a route or a permission.

`/admin` of shop.lan is answered with 418 by a route, whoever asks; all else of shop.lan goes to a service.
Nobody may call the service `closed`, to which closed.lan leads.
"""

import base64
import contextlib
import json
import re
import socket
import ssl
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests import tls_certificates
from tests.debian import program
from tests.live_mesh import LiveMesh, Sidecar
from tests.ports import free_port
from tests.traffic.gateway_clients import (
    Answer,
    connected,
    http1,
    http2,
    is_of_this_machine,
    over_http2,
    parsed,
    request,
)
from tests.traffic.test_traffic_hostile import SPELLINGS
from tests.waiting import until

pytestmark = pytest.mark.slow

TEAPOT = {"filters": [{"type": "DirectResponse", "directResponse": {"status": 418}}]}
HOST = "host: shop.lan"
# Where a spelling leads that is another path for a proxy and for services alike.
OTHER_PATHS = {"/admin;a=b", "/ADMIN", "/admin%20", "/%5cadmin", "/x/..\\admin"}


class HostileEdge(LiveMesh):
    """A gateway in front of a service that takes its calls, and one that takes nobody's."""

    edge: Sidecar
    shop: Sidecar
    closed: Sidecar
    ports: dict[str, int]

    def seen(self, mark: str) -> list[dict[str, Any]]:
        """What of requests with this text in their path reached a service."""
        services = [sidecar.service for sidecar in (self.shop, self.closed)]
        return [each for service in services if service for each in service.seen if mark in each["path"]]


def route(hostname: str, *rules: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    written = [
        {"matches": [{"path": {"type": "PathPrefix", "value": path}}], "default": conf}
        for path, conf in rules
    ]
    to = {"targetRef": {"kind": "Mesh"}, "hostnames": [hostname], "rules": written}
    top = {"kind": "MeshGateway", "name": "edge"}
    name = hostname.replace(".", "-")
    return {"type": "MeshHTTPRoute", "name": name, "spec": {"targetRef": top, "to": [to]}}


def backend(service: str) -> dict[str, Any]:
    return {"backendRefs": [{"kind": "MeshService", "name": service}]}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileEdge]:
    certificate = base64.b64encode(tls_certificates.server("shop.lan", "closed.lan").encode()).decode()
    with HostileEdge(tmp_path_factory.mktemp("gh")) as mesh:
        mesh.ports = {"http": free_port(), "https": free_port()}
        tls = {"mode": "TERMINATE", "certificates": [{"secret": "server"}]}
        listeners = [
            {"port": mesh.ports["http"], "protocol": "HTTP"},
            {"port": mesh.ports["https"], "protocol": "HTTPS", "hostname": "shop.lan", "tls": tls},
            {"port": mesh.ports["https"], "protocol": "HTTPS", "hostname": "closed.lan", "tls": tls},
        ]
        selectors = [{"match": {"kuma.io/service": "edge"}}]
        ca = {"enabledBackend": "ca-1", "backends": [{"name": "ca-1", "type": "builtin"}]}
        allowed = {"allow": [{"spiffeID": {"type": "Exact", "value": "spiffe://default/edge"}}]}
        target = {"kind": "Dataplane", "name": "shop-1"}
        permission = {"targetRef": target, "rules": [{"default": allowed}]}
        mesh.apply(
            {"type": "Mesh", "name": "default", "mtls": ca},
            {"type": "MeshTrafficPermission", "name": "edge", "spec": permission},
            {"type": "Secret", "name": "server", "data": certificate},
            {"type": "MeshGateway", "name": "edge", "selectors": selectors, "conf": {"listeners": listeners}},
            route("shop.lan", ("/admin", TEAPOT), ("/", backend("shop"))),
            route("closed.lan", ("/", backend("closed"))),
        )
        mesh.delete("meshretries", "mesh-retry-all-default")
        mesh.shop = mesh.sidecar("shop-1", "shop", wait=False)
        mesh.closed = mesh.sidecar("closed-1", "closed", wait=False)
        mesh.edge = mesh.gateway(wait=False)
        for proxy in (mesh.shop, mesh.closed, mesh.edge):
            proxy.wait_for_output("is ready")
        until(lambda: http1(mesh.ports["http"], "/", HOST).status == 200, "the service answers")
        closed = "host: closed.lan"  # its service is generated on its own, maybe later than the other one
        until(lambda: http1(mesh.ports["http"], "/", closed).status == 403, "the permission denies")
        mesh.wait_until_synced()
        yield mesh


def followed(mesh: HostileEdge, path: str) -> Answer:
    """The answer after the redirects by which a gateway corrects a path."""
    answer = http1(mesh.ports["http"], path, HOST)
    for _ in range(3):
        location = answer.header("location")
        if answer.status != 307 or not location:
            break
        answer = http1(mesh.ports["http"], re.sub(r"^https?://[^/]*", "", location), HOST)
    return answer


def test_no_spelling_of_a_path_passes_a_route(mesh: HostileEdge) -> None:
    statuses = {path: followed(mesh, path).status for path in SPELLINGS if path not in OTHER_PATHS}
    assert set(statuses.values()) <= {400, 418}, statuses
    for path in OTHER_PATHS:
        assert followed(mesh, path).status in (200, 400, 418), path
    assert not [each["path"] for each in mesh.seen("") if each["path"].startswith(("/admin/", "/admin?"))]
    for path in SPELLINGS:
        answer = http2(mesh.ports["http"], request("shop.lan", path))
        assert answer.status in (0, 307, 400, 418) or path in OTHER_PATHS, (path, answer)


def test_no_spelling_of_a_host_passes_a_permission(mesh: HostileEdge) -> None:
    hosts = ("closed.lan", "CLOSED.lan", "closed.lan.", "closed.lan:80", "Closed.Lan.:8443")
    answers = {host: http1(mesh.ports["http"], "/secret", f"host: {host}") for host in hosts}
    assert {answer.status for answer in answers.values()} == {403}, answers
    assert mesh.seen("/secret") == []


def test_no_spelling_of_a_host_passes_a_route(mesh: HostileEdge) -> None:
    for host in ("SHOP.lan", "shop.lan.", "shop.lan:80", "Shop.Lan.:8443"):
        assert http1(mesh.ports["http"], "/admin", f"host: {host}").status == 418, host
    for host in ("shop.lan..", "shop.lan@closed.lan", "shop.lan/", "shop.lan\t.evil", "xshop.lan", "*", ""):
        assert http1(mesh.ports["http"], "/admin", f"host: {host}").status in (400, 404), host


@pytest.mark.parametrize(
    ("target", "lines"),
    [
        ("GET http://shop.lan/admin HTTP/1.1", ("host: other.lan",)),
        ("GET http://SHOP.LAN:80/x/../admin HTTP/1.1", ("host: closed.lan",)),
        ("GET /admin HTTP/1.1", (HOST, "host: closed.lan")),
        ("GET /admin HTTP/1.1", ("host: closed.lan", HOST)),
        ("GET /admin HTTP/1.1", ("x-forwarded-host: closed.lan", HOST)),
        ("GET /admin HTTP/1.1", ("x-envoy-original-path: /free", HOST)),
        ("GET /admin HTTP/1.1", ("x-original-url: /free", "x-rewrite-url: /free", HOST)),
        ("GET /admin HTTP/1.0", (HOST,)),
        ("GET /admin HTTP/1.1", ()),
        ("GET  /admin HTTP/1.1", (HOST,)),
        ("get /admin HTTP/1.1", (HOST,)),
    ],
)
def test_what_a_client_says_beside_its_host_does_not_choose_the_route(
    mesh: HostileEdge, target: str, lines: tuple[str, ...]
) -> None:
    before = len(mesh.seen(""))
    answer = http1(mesh.ports["http"], target, *lines)
    assert answer.status in (400, 404, 418, 426), answer
    assert len(mesh.seen("")) == before


@pytest.mark.parametrize(
    "more",
    [
        [("host", "closed.lan")],
        [(":authority", "closed.lan")],
        [(":path", "/free")],
        [("connection", "keep-alive")],
        [("transfer-encoding", "chunked")],
        [("Host", "closed.lan")],
        [("x-bad\r\nhost", "closed.lan")],
    ],
)
def test_two_answers_to_one_question_are_refused_over_http_2(
    mesh: HostileEdge, more: list[tuple[str, str]]
) -> None:
    before = len(mesh.seen(""))
    answer = http2(mesh.ports["http"], [*request("shop.lan", "/admin"), *more])
    assert answer.status in (0, 400, 418), answer
    assert len(mesh.seen("")) == before


def test_a_server_name_and_a_host_that_differ_lead_nowhere(mesh: HostileEdge) -> None:
    port = mesh.ports["https"]
    for ask in (
        lambda host, name: http1(port, "/admin", f"host: {host}", server_name=name),
        lambda host, name: http2(port, request(host, "/admin", "https"), server_name=name),
    ):
        assert ask("shop.lan", "shop.lan").status == 418
        assert ask("closed.lan", "shop.lan").status == 421
        assert ask("shop.lan", "closed.lan").status == 421
        assert ask("other.lan", "shop.lan").status == 404
    for name in (None, "other.lan", "shop.lan.evil.org"):
        with contextlib.suppress(ssl.SSLError):
            assert http1(port, "/", HOST, server_name=name).status == 0, name
    assert http1(port, "/", HOST).status == 0  # no TLS where there must be some


def test_early_data_is_not_taken(mesh: HostileEdge, tmp_path: Any) -> None:
    """What is sent before the handshake has ended could be sent again by anybody who saw it."""
    session, early = tmp_path / "session.pem", tmp_path / "early"
    early.write_bytes(b"GET /early HTTP/1.1\r\nhost: shop.lan\r\nconnection: close\r\n\r\n")
    client = [
        program("openssl", "openssl"),
        "s_client",
        "-connect",
        f"127.0.0.1:{mesh.ports['https']}",
        "-tls1_3",
    ]
    client += ["-servername", "shop.lan"]
    ask = b"GET / HTTP/1.1\r\nhost: shop.lan\r\nconnection: close\r\n\r\n"

    def run(*more: str) -> bytes:
        command = [*client, *more]
        return subprocess.run(command, input=ask, capture_output=True, check=False, timeout=20).stdout

    run("-ign_eof", "-sess_out", str(session))
    assert session.exists(), "a session can be taken up again"
    output = run("-ign_eof", "-sess_in", str(session), "-early_data", str(early))
    assert b"Early data was not sent" in output or b"Early data was rejected" in output, output[-2000:]
    assert mesh.seen("/early") == []


@pytest.mark.parametrize("more", [("HTTP2-Settings: AAMAAABkAAQAAP__",), ()])
def test_a_connection_is_not_upgraded_to_http_2_or_anything_else(
    mesh: HostileEdge, more: tuple[str, ...]
) -> None:
    for protocol in ("h2c", "tcp", "HTTP/2.0", "TLS/1.0", "connect-udp", "websocket, h2c"):
        lines = (HOST, "connection: Upgrade, HTTP2-Settings", f"upgrade: {protocol}", *more)
        head = "\r\n".join(("GET /admin HTTP/1.1", *lines, "", "")).encode()
        with connected(mesh.ports["http"]) as connection:
            connection.sendall(head)
            answer = parsed(connection.recv(65536))
        assert answer.status in (400, 403, 404, 418), (protocol, answer)


@pytest.mark.parametrize(
    "target", ["shop.lan:80", "127.0.0.1:22", "closed.lan:443", "[::1]:80", "http://shop.lan/"]
)
def test_nobody_tunnels_through_the_gateway(mesh: HostileEdge, target: str) -> None:
    before = len(mesh.seen(""))
    answer = http1(mesh.ports["http"], f"CONNECT {target} HTTP/1.1", f"host: {target}")
    assert answer.status in (400, 403, 404, 405), answer
    pseudo = [(":method", "CONNECT"), (":authority", target)]
    assert http2(mesh.ports["http"], pseudo).status in (0, 400, 403, 404, 405)
    extended = [*request(target, "/admin", method="CONNECT"), (":protocol", "connect-udp")]
    assert http2(mesh.ports["http"], extended).status in (0, 400, 403, 404, 405)
    assert len(mesh.seen("")) == before


@pytest.mark.parametrize(
    "lines",
    [
        ("content-length: 5", "transfer-encoding: chunked"),
        ("content-length: 5", "content-length: 6"),
        ("transfer-encoding: xchunked",),
        ("transfer-encoding : chunked",),
        ("x_forwarded_for: 10.0.0.1",),
        ("x-user\x00: 1",),
        ("x-large: " + "a" * 100_000,),
        tuple(f"x-{number}: 1" for number in range(1_000)),
    ],
)
def test_a_request_that_two_servers_could_read_differently_is_refused(
    mesh: HostileEdge, lines: tuple[str, ...]
) -> None:
    answer = http1(mesh.ports["http"], "/ambiguous", HOST, *lines)
    assert answer.status in (400, 431, 501), answer
    assert mesh.seen("/ambiguous") == []


def test_headers_from_outside_neither_steer_envoy_nor_say_who_asks(mesh: HostileEdge) -> None:
    spoofed = (
        *("x-forwarded-for: 10.1.2.3", "x-forwarded-proto: https", "x-forwarded-client-cert: URI=spiffe://a"),
        *("x-envoy-internal: true", "x-envoy-external-address: 10.1.2.3", "x-envoy-retry-on: 5xx"),
        *("x-envoy-max-retries: 9", "x-envoy-upstream-rq-timeout-ms: 1", "x-envoy-force-trace: 1"),
        *("x-envoy-decorator-operation: mine", "x-envoy-hedge-on-per-try-timeout: true"),
    )
    for path in ("/status/503?steered", "/sleep/0.3?steered"):
        http1(mesh.ports["http"], path, HOST, *spoofed)
    assert len(mesh.seen("steered")) == 2, "nothing was tried again"
    answer = http1(mesh.ports["http"], "/spoofed", HOST, *spoofed)
    headers = json.loads(answer.body)["headers"]
    assert is_of_this_machine(headers["x-forwarded-for"].rpartition(",")[2].strip()), headers
    assert headers["x-forwarded-proto"] == "http"
    assert "spiffe://a" not in headers.get("x-forwarded-client-cert", "")
    assert headers["x-envoy-external-address"] == "127.0.0.1"  # the gateway's own word
    others = {name for name in headers if name.startswith("x-envoy-")} - {"x-envoy-external-address"}
    assert not others - {"x-envoy-expected-rq-timeout-ms", "x-envoy-attempt-count"}, headers


def test_a_second_request_inside_the_first_is_a_request_of_its_own(mesh: HostileEdge) -> None:
    """A body that looks like a request stays a body."""
    inner = b"GET /smuggled HTTP/1.1\r\nhost: closed.lan\r\n\r\n"
    lines = (HOST, f"content-length: {len(inner)}")
    answer = http1(mesh.ports["http"], "POST /outer HTTP/1.1", *lines, body=inner)
    assert answer.status == 200
    assert mesh.seen("/smuggled") == []


def test_http_2_without_tls_needs_its_preface(mesh: HostileEdge) -> None:
    with socket.create_connection(("127.0.0.1", mesh.ports["http"]), 60) as connection:
        assert over_http2(connection, request("shop.lan", "/admin")).status == 418
