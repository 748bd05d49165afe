"""A Gateway of the Gateway API on a real Envoy: HTTP, HTTPS with a core Secret, and its status."""

import base64
import contextlib
import http.client
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from tests import tls_certificates
from tests.live_mesh import LiveMesh
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow
ROOT = "/apis/gateway.networking.k8s.io/v1/namespaces/shop"


def create(mesh: LiveMesh, path: str, version: str, kind: str, name: str, **fields: Any) -> None:
    document = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}
    answer = mesh.request("POST", path, document)
    assert answer.status == 201, answer.body


def ports_of(mesh: LiveMesh) -> Any:
    """The ports of the generated MeshService."""
    return mesh.request("GET", "/meshes/default/meshservices/web").json["spec"]["ports"]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    with LiveMesh(tmp_path_factory.mktemp("x")) as mesh:
        labels = {"k8s.kuma.io/namespace": "shop"}
        mesh.sidecar("web-1", "web")
        spec = {"selector": {"dataplaneTags": {"kuma.io/service": "web"}}, "ports": ports_of(mesh)}
        mesh.apply({"type": "MeshService", "name": "web.shop", "labels": labels, "spec": spec})
        yield mesh


def get(port: int, host: str, context: ssl.SSLContext | None = None) -> int:
    """The status of a request to a port of the gateway."""
    connection = (
        http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
        if context
        else http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    )
    with contextlib.closing(connection):
        connection.request("GET", "/", headers={"Host": host})
        return connection.getresponse().status


def test_a_gateway_serves_routes_and_says_where(mesh: LiveMesh) -> None:
    plain, secure = free_port(), free_port()
    pair = {
        "tls.crt": tls_certificates.certificate(tls_certificates.ecdsa_key(), "a.lan"),
        "tls.key": tls_certificates.pem(tls_certificates.ecdsa_key()),
    }
    data = {name: base64.b64encode(text.encode()).decode() for name, text in pair.items()}
    create(
        mesh, "/api/v1/namespaces/shop/secrets", "v1", "Secret", "cert", type="kubernetes.io/tls", data=data
    )
    version = "gateway.networking.k8s.io/v1"
    listeners = [
        {"name": "web", "port": plain, "protocol": "HTTP"},
        {"name": "secure", "port": secure, "protocol": "HTTPS"}
        | {"tls": {"certificateRefs": [{"name": "cert"}]}},
    ]
    create(
        mesh,
        f"{ROOT}/gateways",
        version,
        "Gateway",
        "edge",
        spec={"gatewayClassName": "koguma", "listeners": listeners},
    )
    backend = {"name": "web", "port": ports_of(mesh)[0]["port"]}
    create(
        mesh,
        f"{ROOT}/httproutes",
        version,
        "HTTPRoute",
        "web",
        spec={
            "parentRefs": [{"name": "edge"}],
            "hostnames": ["a.lan"],
            "rules": [{"backendRefs": [backend]}],
        },
    )
    mesh.gateway(service="edge_shop_svc")
    until(lambda: get(plain, "a.lan") == 200, "the gateway answers")
    assert get(plain, "b.lan") == 404
    context = ssl.create_default_context(cadata=tls_certificates.root_pem())
    context.check_hostname = False
    assert get(secure, "a.lan", context) == 200

    def status() -> Any:
        return mesh.request("GET", f"{ROOT}/gateways/edge").json["status"]

    def programmed() -> bool:
        return any(
            each["type"] == "Programmed" and each["status"] == "True" for each in status()["conditions"]
        )

    until(programmed, "the status follows")
    assert status()["addresses"] == [{"type": "IPAddress", "value": "127.0.0.1"}]
    assert [each["attachedRoutes"] for each in status()["listeners"]] == [1, 1]
