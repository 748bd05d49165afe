"""Which route a request meets at a real gateway: every form of listener, hostname and route, by many clients.

What is expected is said the long way here, label by label, and not asked of `koguma.model.hostname`.
"""

import base64
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from tests import tls_certificates
from tests.live_mesh import LiveMesh, Sidecar
from tests.ports import free_port
from tests.traffic.gateway_clients import Answer, connected, http1, http2, request
from tests.waiting import until

pytestmark = pytest.mark.slow

LISTENERS = {"every": "*", "below": "*.shop.lan", "deeper": "*.eu.shop.lan", "one": "api.shop.lan"}
HOSTNAMES = ((), ("*",), ("*.shop.lan",), ("api.shop.lan", "x.eu.shop.lan"), ("*.eu.shop.lan", "other.org"))
PATHS = {"Exact": "/exact", "PathPrefix": "/tree", "RegularExpression": "/rx-[0-9]+"}
HOSTS = (
    *("api.shop.lan", "web.shop.lan", "shop.lan", "x.eu.shop.lan", "a.b.eu.shop.lan", "eu.shop.lan"),
    *("other.org", "fooshop.lan", "api.shop.lan.evil.org"),
)
REQUESTS = {"/exact": "Exact", "/exact/": None, "/tree": "PathPrefix", "/tree/a?b": "PathPrefix"}
REQUESTS |= {"/trees": None, "/rx-7": "RegularExpression", "/rx-": None}
METHOD = "/shop.Orders/Get"
SLOW = threading.Event()  # set when a slow call has reached the service


class TableMesh(LiveMesh):
    """A mesh with a gateway whose routes answer themselves."""

    edge: Sidecar
    ports: dict[str, int]


def answering(text: str) -> dict[str, Any]:
    direct = {"status": 200, "body": {"inlineString": text}}
    return {"filters": [{"type": "DirectResponse", "directResponse": direct}]}


def routes() -> Iterator[dict[str, Any]]:
    """A route for each form of hostnames, with one rule for each form of path; its answer names both."""
    for section in LISTENERS:
        for protocol in ("http", "https"):
            for index, hostnames in enumerate(HOSTNAMES):
                rules = [
                    {
                        "matches": [{"path": {"type": type_, "value": path}}],
                        "default": answering(f"{section} {index} {type_}"),
                    }
                    for type_, path in PATHS.items()
                ]
                to = {"targetRef": {"kind": "Mesh"}, "hostnames": list(hostnames), "rules": rules}
                top = {"kind": "MeshGateway", "name": "edge", "sectionName": f"{section}-{protocol}"}
                name = f"{section}-{protocol}-{index}"
                yield {"type": "MeshHTTPRoute", "name": name, "spec": {"targetRef": top, "to": [to]}}


def gateway(ports: dict[str, int], limit: int = 0) -> dict[str, Any]:
    tls = {"mode": "TERMINATE", "certificates": [{"secret": "server"}]}
    listeners: list[dict[str, Any]] = [
        {"name": f"{section}-http", "port": ports["http"], "protocol": "HTTP", "hostname": hostname}
        for section, hostname in LISTENERS.items()
    ]
    listeners += [
        {"name": f"{section}-https", "port": ports["https"], "protocol": "HTTPS", "hostname": hostname}
        | {"tls": tls}
        for section, hostname in LISTENERS.items()
    ]
    limited = {"resources": {"connectionLimit": limit}} if limit else {}
    listeners += [{"port": ports["limited"], "protocol": "HTTP", **limited}]
    listeners += [{"port": ports["limited-tcp"], "protocol": "TCP", **limited}]
    selectors = [{"match": {"kuma.io/service": "edge"}}]
    return {"type": "MeshGateway", "name": "edge", "selectors": selectors, "conf": {"listeners": listeners}}


def serve_grpc() -> tuple[grpc.Server, int]:
    server = grpc.server(futures.ThreadPoolExecutor(2))

    def get(body: bytes, _context: Any) -> bytes:
        if body == b"slow":
            SLOW.set()
            time.sleep(1.5)
        return b"echo " + body

    handler = grpc.unary_unary_rpc_method_handler(get)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shop.Orders", {"Get": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def to_rpc(section: str) -> dict[str, Any]:
    refs = [{"kind": "MeshService", "name": "rpc"}]
    match = {"path": {"type": "PathPrefix", "value": "/shop.Orders"}}
    to = {"targetRef": {"kind": "Mesh"}, "rules": [{"matches": [match], "default": {"backendRefs": refs}}]}
    top = {"kind": "MeshGateway", "name": "edge", "sectionName": section}
    return {"type": "MeshHTTPRoute", "name": f"rpc-{section}", "spec": {"targetRef": top, "to": [to]}}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableMesh]:
    server, port = serve_grpc()
    certificate = base64.b64encode(tls_certificates.server("*.shop.lan", "other.org").encode()).decode()
    with TableMesh(tmp_path_factory.mktemp("gt")) as mesh:
        mesh.ports = {name: free_port() for name in ("http", "https", "limited", "limited-tcp")}
        mesh.apply({"type": "Secret", "name": "server", "data": certificate}, gateway(mesh.ports), *routes())
        rpc = mesh.sidecar("rpc-1", "rpc", protocol="grpc", target=port, wait=False)
        mesh.edge = mesh.gateway(wait=False)
        for proxy in (rpc, mesh.edge):
            proxy.wait_for_output("is ready")
        sections = ("one-http", "one-https", str(mesh.ports["limited"]))
        mesh.apply_and_wait(*(to_rpc(section) for section in sections))
        assert not any(each["rejections"] or each["failures"] for each in mesh.proxies().values())
        yield mesh
    server.stop(None)


def covers(hostname: str, host: str) -> bool:
    """Whether a host is one of a hostname's."""
    if hostname == "*":
        return True
    labels, own = host.split(".")[::-1], hostname.split(".")[::-1]
    if own[-1] != "*":
        return labels == own
    return len(labels) >= len(own) and labels[: len(own) - 1] == own[:-1]


def exactness(hostname: str) -> tuple[bool, int]:
    return "*" not in hostname, hostname.count(".") if hostname != "*" else -1


def owner(host: str) -> str:
    """The listener that requests to a host are for."""
    own = [each for each in LISTENERS if covers(LISTENERS[each], host)]
    return max(own, key=lambda each: exactness(LISTENERS[each]))


def expected(host: str, path: str) -> set[str]:
    """The answers of the routes that a request may meet: of equal hostnames either one; none is 404."""
    fitting: dict[tuple[bool, int], set[int]] = {}
    for index, hostnames in enumerate(HOSTNAMES):
        own = [name for name in hostnames or ("*",) if covers(name, host)]
        if own:
            fitting.setdefault(max(map(exactness, own)), set()).add(index)
    type_ = REQUESTS[path]
    return {f"{owner(host)} {index} {type_}" for index in fitting[max(fitting)]} if type_ else set()


def is_as_expected(answer: Answer, host: str, path: str) -> bool:
    """Whether an answer is the one of the right route; a 404 says nothing."""
    answers = expected(host, path)
    if not answers:
        return (answer.status, answer.body) == (404, "")
    return answer.status == 200 and answer.body in answers


TABLE = [(host, path) for host in HOSTS for path in REQUESTS]


def failures(ask: Callable[[str, str], Answer]) -> list[tuple[str, str, set[str], Answer]]:
    return [
        (host, path, expected(host, path), answer)
        for host, path in TABLE
        if not is_as_expected(answer := ask(host, path), host, path)
    ]


def test_every_host_and_path_meets_its_route_over_http_1(mesh: TableMesh) -> None:
    assert failures(lambda host, path: http1(mesh.ports["http"], path, f"host: {host}")) == []


def test_every_host_and_path_meets_its_route_over_http_2(mesh: TableMesh) -> None:
    assert failures(lambda host, path: http2(mesh.ports["http"], request(host, path))) == []


def test_every_host_and_path_meets_its_route_over_tls(mesh: TableMesh) -> None:
    port = mesh.ports["https"]
    assert failures(lambda host, path: http1(port, path, f"host: {host}", server_name=host)) == []
    assert failures(lambda host, path: http2(port, request(host, path, "https"), server_name=host)) == []


@pytest.mark.parametrize("server_name", [None, "unknown.org", "api.shop.lan", "web.shop.lan"])
def test_a_host_of_another_listener_is_misdirected(mesh: TableMesh, server_name: str | None) -> None:
    """By server name a client has come to one listener, and a `Host` cannot lead it to another."""
    of = {None: "every", "unknown.org": "every", "api.shop.lan": "one", "web.shop.lan": "below"}[server_name]
    port = mesh.ports["https"]
    for host in HOSTS:
        answers = (
            http1(port, "/exact", f"host: {host}", server_name=server_name),
            http2(port, request(host, "/exact", "https"), server_name=server_name),
        )
        for answer in answers:
            if owner(host) == of:
                assert is_as_expected(answer, host, "/exact"), (host, answer)
            else:
                assert (answer.status, answer.body) == (421, ""), (host, answer)


def ask_grpc(
    port: int, host: str, *, tls: bool = False, address: str = "127.0.0.1", body: bytes = b"hello"
) -> str:
    options = [("grpc.default_authority", host), ("grpc.enable_http_proxy", 0)]
    if tls:
        options.append(("grpc.ssl_target_name_override", host))
        credentials = grpc.ssl_channel_credentials(tls_certificates.root_pem().encode())
        channel = grpc.secure_channel(f"{address}:{port}", credentials, options)
    else:
        channel = grpc.insecure_channel(f"{address}:{port}", options)
    with channel:
        try:
            return channel.unary_unary(METHOD)(body, timeout=10).decode()
        except grpc.RpcError as error:
            return error.code().name


def test_grpc_goes_by_host_and_service(mesh: TableMesh) -> None:
    http, https = mesh.ports["http"], mesh.ports["https"]
    until(lambda: ask_grpc(http, "api.shop.lan") == "echo hello", "the service answers")
    assert ask_grpc(https, "api.shop.lan", tls=True) == "echo hello"
    assert ask_grpc(http, "web.shop.lan") == "UNIMPLEMENTED"
    assert ask_grpc(https, "web.shop.lan", tls=True) == "UNIMPLEMENTED"


def is_open(connection: socket.socket) -> bool:
    """Whether a connection was not closed at once, which Envoy does with those above a limit."""
    connection.settimeout(0.3)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_a_listener_takes_as_many_connections_as_it_may(mesh: TableMesh) -> None:
    port = mesh.ports["limited"]
    mesh.apply_and_wait(gateway(mesh.ports, limit=2))
    with contextlib.ExitStack() as stack:
        two = [stack.enter_context(connected(port)) for _ in range(2)]
        assert [is_open(each) for each in two] == [True, True]
        with connected(port) as third:
            assert not is_open(third)
        mesh.apply_and_wait(gateway(mesh.ports, limit=4))  # touches no connection
        with connected(port) as third:
            assert [is_open(each) for each in (*two, third)] == [True, True, True]
        assert http1(mesh.ports["http"], "/exact", "host: api.shop.lan").status == 200
    mesh.apply_and_wait(gateway(mesh.ports))


def test_a_gateway_that_stops_lets_calls_under_way_end(mesh: TableMesh) -> None:
    second = mesh.gateway("edge-2", flags=("--address", "127.0.0.2", "--drain-time", "10s"))
    host, port = "api.shop.lan", mesh.ports["http"]
    until(lambda: ask_grpc(port, host, address="127.0.0.2") == "echo hello", "the second gateway answers")
    SLOW.clear()
    with futures.ThreadPoolExecutor(1) as pool:
        call = pool.submit(ask_grpc, port, host, address="127.0.0.2", body=b"slow")
        assert SLOW.wait(10)
        assert second.stop(20) == 0
        assert call.result() == "echo slow"
    assert "some requests had not ended" not in second.output
