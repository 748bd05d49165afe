"""A built-in gateway on a real Envoy: HTTP, HTTPS, TCP and TLS from outside to a mesh with mTLS."""

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests import tls_certificates
from tests.http_client import Response, joined_headers
from tests.live_mesh import Echo, LiveMesh, Sidecar, TcpEcho
from tests.ports import free_port
from tests.traffic.gateway_clients import http2, is_of_this_machine, over_http2, request
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.expected_errors(r"bad\.lan")]


class WebSocketEcho:
    """A service that switches protocols and then echoes."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # it was stopped
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    read_until(connection, b"\r\n\r\n")
                    connection.sendall(SWITCHED)
                    connection.sendall(connection.recv(100))
                    connection.recv(100)

    def stop(self) -> None:
        self._socket.close()


SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\r\n"


def read_until(connection: socket.socket, end: bytes) -> bytes:
    found = b""
    while not found.endswith(end) and (data := connection.recv(100)):
        found += data
    return found


class EdgeMesh(LiveMesh):
    """A mesh with mTLS, two HTTP services, one of TCP and one of TLS, and a gateway in front of them."""

    gateway_proxy: Sidecar
    ports: dict[str, int]


PROTOCOLS = {"http": "HTTP", "https": "HTTPS", "tcp": "TCP", "tls": "TLS"}


def mesh_gateway(ports: dict[str, int]) -> dict[str, Any]:
    def https(hostname: str, secret: str) -> dict[str, Any]:
        tls = {"mode": "TERMINATE", "certificates": [{"secret": secret}]}
        return {"port": ports["https"], "protocol": "HTTPS", "hostname": hostname, "tls": tls}

    listeners = [
        {"port": ports["http"], "protocol": "HTTP", "hostname": "*.lan"},
        {"port": ports["http"], "protocol": "HTTP", "hostname": "own.lan"},
        https("shop.lan", "good"),
        https("other.lan", "good"),
        https("quiet.lan", "good"),
        https("bad.lan", "bad"),
        {"port": ports["tcp"], "protocol": "TCP"},
        {"name": "ended", "port": ports["tls"], "protocol": "TLS", "hostname": "ended.lan"}
        | {"tls": {"mode": "TERMINATE", "certificates": [{"secret": "good"}]}},
        {"name": "through", "port": ports["tls"], "protocol": "TLS", "hostname": "*.through.lan"}
        | {"tls": {"mode": "PASSTHROUGH"}},
    ]
    selectors = [{"match": {"kuma.io/service": "edge"}}]
    return {"type": "MeshGateway", "name": "edge", "selectors": selectors, "conf": {"listeners": listeners}}


def rule(path: str, *refs: Any, **filters: Any) -> dict[str, Any]:
    conf: dict[str, Any] = {"backendRefs": list(refs)} if refs else {}
    if filters:
        conf["filters"] = [
            {"type": name[0].upper() + name[1:], name: value} for name, value in filters.items()
        ]
    return {"matches": [{"path": {"type": "PathPrefix", "value": path}}], "default": conf}


def route(name: str, section: str, *rules: Any, hostnames: Any = ()) -> dict[str, Any]:
    to = {"targetRef": {"kind": "Mesh"}, "hostnames": list(hostnames), "rules": list(rules)}
    ref = {"kind": "MeshGateway", "name": "edge", "sectionName": section}
    return {"type": "MeshHTTPRoute", "name": name, "spec": {"targetRef": ref, "to": [to]}}


def tcp_route(name: str, section: str, service: str) -> dict[str, Any]:
    to = {"targetRef": {"kind": "Mesh"}, "rules": [{"default": {"backendRefs": [ref(service)]}}]}
    top = {"kind": "MeshGateway", "name": "edge", "sectionName": section}
    return {"type": "MeshTCPRoute", "name": name, "spec": {"targetRef": top, "to": [to]}}


def ref(service: str, **more: Any) -> dict[str, Any]:
    return {"kind": "MeshService", "name": service, **more}


def secret(name: str, text: str) -> dict[str, Any]:
    return {"type": "Secret", "name": name, "data": base64.b64encode(text.encode()).decode()}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeMesh]:
    names = ("shop.lan", "other.lan", "quiet.lan", "ended.lan", "a.through.lan")
    certificate = tls_certificates.server(*names)
    directory = tmp_path_factory.mktemp("gw")
    (directory / "ca.pem").write_text(tls_certificates.root_pem())
    (directory / "server.pem").write_text(certificate)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "server.pem")
    tcp, web_socket, behind_tls = TcpEcho(), WebSocketEcho(), Echo(tls=server, name="behind-tls")
    with EdgeMesh(directory) as mesh:
        mesh.ports = {name: free_port() for name in PROTOCOLS}
        ca = {"enabledBackend": "ca-1", "backends": [{"name": "ca-1", "type": "builtin"}]}
        everybody = {"spiffeID": {"type": "Prefix", "value": "spiffe://default/"}}
        allowed = {"rules": [{"default": {"allow": [everybody]}}]}
        mesh.apply(
            {"type": "Mesh", "name": "default", "mtls": ca},
            {"type": "MeshTrafficPermission", "name": "all", "spec": allowed},
            secret("good", certificate),
            secret("bad", "nothing"),
            mesh_gateway(mesh.ports),
            *ROUTES(mesh.ports),
        )
        proxies = [
            mesh.sidecar("shop-1", "shop", wait=False),
            mesh.sidecar("pay-1", "pay", wait=False),
            mesh.sidecar("tcp-1", "bytes", protocol="tcp", target=tcp.port, wait=False),
            mesh.sidecar("tls-1", "behind", protocol="tcp", target=behind_tls.port, wait=False),
            mesh.sidecar("socket-1", "socket", target=web_socket.port, wait=False),
            mesh.gateway(wait=False),
        ]
        mesh.gateway_proxy = proxies[-1]
        for proxy in proxies:
            proxy.wait_for_output("is ready")
        for path in ("/", "/pay/x"):  # of two services, each generated on its own
            until(lambda path=path: ask(mesh, "shop.lan", path).status == 200, f"the gateway answers {path}")
        until(lambda: over_tcp(mesh) == b"hello", "the gateway passes connections on")
        until(lambda: through_tls(mesh).status == 200, "the gateway passes TLS on")
        mesh.wait_until_synced()
        yield mesh
    tcp.stop()
    web_socket.stop()
    behind_tls.stop()


def ROUTES(ports: dict[str, int]) -> list[dict[str, Any]]:  # noqa: N802 - they depend on ports alone
    http, https, tcp = (str(ports[name]) for name in ("http", "https", "tcp"))
    to_tls = {"scheme": "https", "statusCode": 301}
    return [
        route(
            "shop",
            http,
            rule("/", ref("shop")),
            rule("/pay", ref("pay")),
            rule("/nobody", ref("nobody")),
            rule("/socket", ref("socket")),
            rule("/half", ref("shop"), ref("nobody")),
            rule("/secure", requestRedirect=to_tls),
            rule("/here", requestRedirect={"path": {"type": "ReplaceFullPath", "replaceFullPath": "/there"}}),
            hostnames=["shop.lan", "*.shop.lan"],
        ),
        route("shop-https", https, rule("/", ref("shop")), hostnames=["shop.lan"]),
        route("other-https", https, rule("/", ref("pay")), hostnames=["other.lan"]),
        tcp_route("bytes", tcp, "bytes"),
        tcp_route("ended", "ended", "bytes"),
        tcp_route("through", "through", "behind"),
        # About calls in the mesh: nothing of it may act at the edge.
        {
            "type": "MeshHTTPRoute",
            "name": "in-the-mesh",
            "spec": {
                "to": [
                    {
                        "targetRef": {"kind": "MeshService", "name": "shop"},
                        "rules": [rule("/leaked", directResponse={"status": 299})],
                    }
                ]
            },
        },
    ]


def ask(mesh: EdgeMesh, host: str, path: str = "/", method: str = "GET", **headers: str) -> Response:
    """A request to the HTTP port."""
    connection = http.client.HTTPConnection("127.0.0.1", mesh.ports["http"], timeout=60)
    with contextlib.closing(connection):
        return answer(connection, host, path, method, **headers)


def answer(
    connection: http.client.HTTPConnection, host: str, path: str = "/", method: str = "GET", **headers: str
) -> Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers={"Host": host, **sent})
    response = connection.getresponse()
    return Response(response.status, joined_headers(response.getheaders()), response.read())


def trusting(mesh: EdgeMesh, *alpn: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(mesh.directory / "ca.pem"))
    if alpn:
        context.set_alpn_protocols(alpn)
    return context


@contextlib.contextmanager
def tls_to(mesh: EdgeMesh, port: str, server_name: str | None, *alpn: str) -> Iterator[ssl.SSLSocket]:
    context = trusting(mesh, *alpn)
    context.check_hostname = server_name is not None
    with (
        socket.create_connection(("127.0.0.1", mesh.ports[port]), 60) as raw,
        context.wrap_socket(raw, server_hostname=server_name) as connection,
    ):
        yield connection


def over_tcp(mesh: EdgeMesh) -> bytes:
    """What comes back for a word over the TCP port."""
    with socket.create_connection(("127.0.0.1", mesh.ports["tcp"]), 60) as connection:
        connection.sendall(b"hello")
        return connection.recv(100)


def through_tls(mesh: EdgeMesh) -> Response:
    """A request over TLS that ends at the service and not at the gateway."""
    with tls_to(mesh, "tls", "a.through.lan") as through:
        plain = http.client.HTTPConnection("127.0.0.1", mesh.ports["tls"], timeout=60)
        plain.sock = through
        return answer(plain, "a.through.lan")


def ask_tls(mesh: EdgeMesh, server_name: str, host: str) -> Response:
    with tls_to(mesh, "https", server_name) as connection:
        plain = http.client.HTTPConnection("127.0.0.1", mesh.ports["https"], timeout=60)
        plain.sock = connection
        return answer(plain, host)


@pytest.mark.parametrize(
    ("host", "path", "service"),
    [
        ("shop.lan", "/", "shop"),
        ("SHOP.lan:1234", "/x", "shop"),
        ("shop.lan.", "/", "shop"),
        ("a.b.shop.lan", "/payment", "shop"),
        ("shop.lan", "/pay/x", "pay"),
        ("shop.lan", "/leaked", "shop"),
    ],
)
def test_requests_go_by_host_and_path(mesh: EdgeMesh, host: str, path: str, service: str) -> None:
    found = ask(mesh, host, path)
    assert (found.status, found.json["service"]) == (200, service)


def test_a_service_is_called_with_the_identity_of_the_gateway_and_told_who_asked(mesh: EdgeMesh) -> None:
    headers = ask(mesh, "shop.lan", "/", x_forwarded_for="1.2.3.4", x_envoy_retry_on="5xx").json["headers"]
    handshakes = mesh.gateway_proxy.stats(r"cluster\.kri_msvc_default_default__shop_.*\.ssl\.handshake")
    assert sum(handshakes.values()) > 0
    claimed, *seen = headers["x-forwarded-for"].split(",")
    assert claimed == "1.2.3.4"
    assert seen
    assert all(is_of_this_machine(address) for address in seen)
    assert "x-envoy-retry-on" not in headers
    assert headers["host"] == "shop.lan"


@pytest.mark.parametrize(
    ("host", "path", "status"),
    [
        ("lan", "/", 404),
        ("nowhere.org", "/", 404),
        ("other.lan", "/", 404),  # below *.lan, which has no route for it
        ("own.lan", "/", 404),  # a listener of its own without routes
        ("xshop.lan", "/", 404),
        ("shop.lan", "/nobody", 500),
    ],
)
def test_what_no_route_takes_is_answered_without_a_word_about_hosts(
    mesh: EdgeMesh, host: str, path: str, status: int
) -> None:
    found = ask(mesh, host, path)
    assert found.status == status
    assert b"lan" not in found.body


def test_a_reference_to_nobody_fails_for_its_share(mesh: EdgeMesh) -> None:
    statuses = [ask(mesh, "shop.lan", "/half").status for _ in range(60)]
    assert set(statuses) == {200, 500}
    assert 5 < statuses.count(500) < 55


def test_redirects_lead_to_the_port_of_their_scheme_or_stay_on_this_one(mesh: EdgeMesh) -> None:
    port = mesh.ports["http"]
    for host in ("shop.lan", f"shop.lan:{port}"):
        secure, here = ask(mesh, host, "/secure/x?q=1"), ask(mesh, host, "/here")
        assert (secure.status, secure.headers["location"]) == (301, "https://shop.lan/secure/x?q=1")
        assert (here.status, here.headers["location"]) == (302, f"http://shop.lan:{port}/there")
    below = ask(mesh, "a.shop.lan", "/secure")
    assert below.headers["location"] == "https://a.shop.lan:443/secure"


def test_certificates_and_routes_by_server_name(mesh: EdgeMesh) -> None:
    assert ask_tls(mesh, "shop.lan", "shop.lan").json["service"] == "shop"
    assert ask_tls(mesh, "other.lan", "other.lan").json["service"] == "pay"
    assert ask_tls(mesh, "quiet.lan", "quiet.lan").status == 404
    assert ask_tls(mesh, "shop.lan", "other.lan").status == 421
    assert ask_tls(mesh, "shop.lan", "nowhere.org").status == 404
    with tls_to(mesh, "https", "shop.lan", "h2", "http/1.1") as connection:
        assert (connection.selected_alpn_protocol(), connection.version()) == ("h2", "TLSv1.3")


@pytest.mark.parametrize("server_name", ["bad.lan", "nowhere.org", None])
def test_a_name_without_a_good_certificate_is_refused_alone(mesh: EdgeMesh, server_name: str | None) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)), tls_to(mesh, "https", server_name):
        pass
    assert ask_tls(mesh, "shop.lan", "shop.lan").status == 200


def test_http_2_with_and_without_tls(mesh: EdgeMesh) -> None:
    with tls_to(mesh, "https", "shop.lan", "h2") as connection:
        secured = over_http2(connection, request("shop.lan", "/two", "https"))
    plain = http2(mesh.ports["http"], request("shop.lan", "/two"))
    assert [json.loads(each.body)["service"] for each in (secured, plain)] == ["shop", "shop"]


def test_connections_go_by_port_and_by_server_name(mesh: EdgeMesh) -> None:
    assert over_tcp(mesh) == b"hello"
    with tls_to(mesh, "tls", "ended.lan") as ended:
        ended.sendall(b"hello")
        assert ended.recv(100) == b"hello"
    assert through_tls(mesh).json["name"] == "behind-tls"


def test_a_websocket_is_passed_on(mesh: EdgeMesh) -> None:
    lines = ("GET /socket HTTP/1.1", "host: shop.lan", "connection: Upgrade", "upgrade: websocket", "", "")
    with socket.create_connection(("127.0.0.1", mesh.ports["http"]), 60) as connection:
        connection.sendall("\r\n".join(lines).encode())
        assert read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 101 ")
        connection.sendall(b"hello")
        assert connection.recv(100) == b"hello"


def test_routes_change_while_requests_are_served(mesh: EdgeMesh) -> None:
    http_port = str(mesh.ports["http"])
    mesh.apply_and_wait(route("more", http_port, rule("/", ref("pay")), hostnames=["more.lan"]))
    until(lambda: ask(mesh, "more.lan").status == 200, "the new host is served")
    assert ask(mesh, "more.lan").json["service"] == "pay"
    mesh.delete_and_wait("meshhttproutes", "more")
    until(lambda: ask(mesh, "more.lan").status == 404, "it is served no longer")
    assert ask(mesh, "shop.lan").status == 200
