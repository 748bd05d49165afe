"""No request from outside fails by a change of a gateway: certificates, routes and listeners, at random."""

import base64
import contextlib
import http.client
import random
import socket
import ssl
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests import tls_certificates
from tests.http_client import Response, joined_headers
from tests.live_mesh import LiveMesh, Sidecar, load
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

HOST = "steady.lan"
N_CHANGES = 60
N_CHANGES_LONG = 3_000
PAUSE_SECONDS = 0.05  # so that changes meet requests all the way


class ChangingEdge(LiveMesh):
    """A gateway in front of one service with mTLS."""

    edge: Sidecar
    ports: dict[str, int]


class EdgeConnection:
    """A connection to a gateway that is kept between requests, and opened again only where it was closed."""

    def __init__(self, port: int, *, tls: bool) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._context = ssl.create_default_context(cadata=tls_certificates.root_pem()) if tls else None

    def call(self) -> Response:
        connection, context = self._connection, self._context
        if connection.sock is None:
            plain = socket.create_connection((connection.host, connection.port), 60)
            connection.sock = context.wrap_socket(plain, server_hostname=HOST) if context else plain
        connection.request("GET", "/", headers={"Host": HOST})
        response = connection.getresponse()
        return Response(response.status, joined_headers(response.getheaders()), response.read())

    def close(self) -> None:
        self._connection.close()


def ask_once(port: int, *, tls: bool) -> Response:
    with contextlib.closing(EdgeConnection(port, tls=tls)) as connection:
        return connection.call()


def secret(name: str, *hosts: str, number: int = 0) -> dict[str, Any]:
    text = tls_certificates.server(*hosts, key=tls_certificates.ecdsa_key(number))
    return {"type": "Secret", "name": name, "data": base64.b64encode(text.encode()).decode()}


def route(name: str, hostname: str, *paths: str, header: str = "", listener: str = "") -> dict[str, Any]:
    modifier = {"set": [{"name": "x-by", "value": header}]}
    filters = [{"type": "ResponseHeaderModifier", "responseHeaderModifier": modifier}] if header else []
    conf = {"backendRefs": [{"kind": "MeshService", "name": "shop"}], "filters": filters}
    rules = [
        {"matches": [{"path": {"type": "PathPrefix", "value": path}}], "default": conf} for path in paths
    ]
    to = {"targetRef": {"kind": "Mesh"}, "hostnames": [hostname], "rules": rules}
    top = {"kind": "MeshGateway", "name": "edge", **({"sectionName": listener} if listener else {})}
    return {"type": "MeshHTTPRoute", "name": name, "spec": {"targetRef": top, "to": [to]}}


def gateway(ports: dict[str, int], *others: str, limit: int = 0) -> dict[str, Any]:
    """The steady listeners, and others that come and go on the same ports and on one of their own."""
    resources = {"resources": {"connectionLimit": limit}} if limit else {}

    def http_listener(hostname: str, port: str = "http") -> dict[str, Any]:
        return {"port": ports[port], "protocol": "HTTP", "hostname": hostname, **resources}

    def https_listener(hostname: str, name: str) -> dict[str, Any]:
        tls = {"mode": "TERMINATE", "certificates": [{"secret": name}]}
        return {"port": ports["https"], "protocol": "HTTPS", "hostname": hostname, "tls": tls, **resources}

    listeners = [http_listener(HOST), https_listener(HOST, "steady")]
    listeners += [http_listener(f"{each}.lan") for each in others]
    listeners += [https_listener(f"{each}.lan", "other") for each in others]
    listeners += [http_listener("*", "more")] if len(others) % 2 else []
    selectors = [{"match": {"kuma.io/service": "edge"}}]
    return {"type": "MeshGateway", "name": "edge", "selectors": selectors, "conf": {"listeners": listeners}}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChangingEdge]:
    ca = {"enabledBackend": "ca-1", "backends": [{"name": "ca-1", "type": "builtin"}]}
    allowed = {"allow": [{"spiffeID": {"type": "Prefix", "value": "spiffe://default/"}}]}
    with ChangingEdge(tmp_path_factory.mktemp("gc")) as mesh:
        mesh.ports = {name: free_port() for name in ("http", "https", "more")}
        mesh.apply(
            {"type": "Mesh", "name": "default", "mtls": ca},
            {"type": "MeshTrafficPermission", "name": "all", "spec": {"rules": [{"default": allowed}]}},
            secret("steady", HOST),
            secret("other", "*.lan"),
            gateway(mesh.ports),
            route("steady", HOST, "/"),
        )
        mesh.delete("meshretries", "mesh-retry-all-default")  # it would hide what fails
        shop = mesh.sidecar("shop-1", "shop", wait=False)
        mesh.edge = mesh.gateway(wait=False)
        for proxy in (shop, mesh.edge):
            proxy.wait_for_output("is ready")
        until(lambda: ask_once(mesh.ports["https"], tls=True).status == 200, "the service answers")
        mesh.wait_until_synced()
        yield mesh


def change(mesh: ChangingEdge, choices: random.Random) -> None:
    """One change that leaves the steady host served."""
    number = choices.randrange(4)
    match choices.randrange(8):
        case 0:
            mesh.apply(secret("steady", HOST, number=number))
        case 1:
            mesh.apply(secret("other", "*.lan", number=number))
        case 2:
            others = choices.sample(["a", "b", "c", "*.d"], choices.randrange(4))
            mesh.apply(gateway(mesh.ports, *others, limit=choices.choice((0, 1_000, 2_000))))
        case 3:
            mesh.apply(
                route("steady", HOST, "/", *choices.sample(["/x", "/y", "/z"], 2), header=f"h{number}")
            )
        case 4:
            hostname = choices.choice((HOST, "*.lan", "a.lan", "*"))
            mesh.apply(route(f"more-{number}", hostname, "/more", header=f"m{number}"))
        case 5:
            mesh.delete("meshhttproutes", f"more-{number}")
        case 6:
            conf = {"http": {"requestTimeout": f"{10 + number}s"}}
            target = {"kind": "MeshGateway", "name": "edge"}
            spec = {"targetRef": target, "to": [{"targetRef": {"kind": "Mesh"}, "default": conf}]}
            mesh.apply({"type": "MeshTimeout", "name": "edge", "spec": spec})
        case _:
            listener = str(mesh.ports[choices.choice(("http", "https"))])
            mesh.apply(route(f"more-{number}", HOST, "/only", listener=listener))


def check_changes(mesh: ChangingEdge, n_changes: int, seed: int) -> None:
    choices = random.Random(seed)
    ports = mesh.ports
    with contextlib.ExitStack() as stack:
        loads = []
        for tls, port in ((False, ports["http"]), (True, ports["https"])):
            kept = stack.enter_context(contextlib.closing(EdgeConnection(port, tls=tls)))
            loads.append(stack.enter_context(load(kept.call, 1)))
            loads.append(stack.enter_context(load(partial(ask_once, port, tls=tls), 1)))
        for _ in range(n_changes):
            change(mesh, choices)
            time.sleep(PAUSE_SECONDS)
        mesh.wait_until_synced(mesh.revision())
    assert [set(counts) for counts in loads] == [{"200"}] * 4, loads
    refused = {name: proxy["rejections"] or proxy["failures"] for name, proxy in mesh.proxies().items()}
    assert not any(refused.values()), refused


def test_random_changes_of_a_gateway_fail_no_request(mesh: ChangingEdge) -> None:
    check_changes(mesh, N_CHANGES, seed=20)


@pytest.mark.soak
def test_many_random_changes_of_a_gateway_fail_no_request(mesh: ChangingEdge) -> None:
    check_changes(mesh, N_CHANGES_LONG, seed=int(time.time()))


def test_a_new_certificate_is_served_to_new_connections(mesh: ChangingEdge) -> None:
    def fingerprint() -> bytes:
        context = ssl.create_default_context(cadata=tls_certificates.root_pem())
        plain = socket.create_connection(("127.0.0.1", mesh.ports["https"]), 60)
        with context.wrap_socket(plain, server_hostname=HOST) as connection:
            return connection.getpeercert(binary_form=True) or b""

    before = fingerprint()
    mesh.apply_and_wait(secret("steady", HOST, number=7))
    until(lambda: fingerprint() != before, "the new certificate is served")
