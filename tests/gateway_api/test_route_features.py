"""HTTPRoutes on a Service with real sidecars, by the names of the Gateway API's conformance features."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.authority import Authority
from tests.live_mesh import Echo, LiveMesh, Sidecar
from tests.waiting import until

pytestmark = pytest.mark.slow

NAMESPACE = "mesh-default"
GATEWAY_API = "/apis/gateway.networking.k8s.io/v1"
SERVICE = {"group": "", "kind": "Service", "name": "backend"}
NAMED = {"name": "backend", "port": 80}


def header(kind: str, name: str, value: str) -> dict[str, Any]:
    field = kind[0].lower() + kind[1:]
    return {"type": kind, field: {"set": [{"name": name, "value": value}]}}


def mirror(service: str, **share: Any) -> dict[str, Any]:
    backend = {"name": service, "port": 80}
    return {"type": "RequestMirror", "requestMirror": {"backendRef": backend, **share}}


def prefix(value: str) -> dict[str, Any]:
    path = {"type": "ReplacePrefixMatch", "replacePrefixMatch": value}
    return {"type": "URLRewrite", "urlRewrite": {"path": path}}


def redirect(status: int) -> dict[str, Any]:
    return {"type": "RequestRedirect", "requestRedirect": {"hostname": "other.example", "statusCode": status}}


def rule(path: str, *backends: Any, **fields: Any) -> dict[str, Any]:
    matches = [{"path": {"type": "PathPrefix", "value": path}}]
    is_redirect = any(each["type"] == "RequestRedirect" for each in fields.get("filters", ()))
    refs = [] if is_redirect else list(backends or (NAMED,))
    return {"matches": matches, **({"backendRefs": refs} if refs else {}), **fields}


CORS = {"allowOrigins": ["https://*.shop.example"], "allowMethods": ["PUT"], "allowCredentials": True}
RULES = [
    rule(
        "/of-backend",
        {
            **NAMED,
            "filters": [
                header("RequestHeaderModifier", "x-backend", "1"),
                header("ResponseHeaderModifier", "x-back", "2"),
            ],
        },
    ),
    rule("/mirrors", filters=[mirror("copies"), mirror("copies", percent=0)]),
    rule("/timeout", filters=[prefix("/sleep")], timeouts={"request": "200ms"}),
    rule("/try", filters=[prefix("/sleep")], timeouts={"request": "10s", "backendRequest": "200ms"}),
    rule("/retry", filters=[prefix("/fail-first")], retry={"codes": [503], "attempts": 3, "backoff": "1ms"}),
    rule("/cors", filters=[{"type": "CORS", "cors": CORS}]),
    rule("/session", sessionPersistence={"type": "Cookie", "sessionName": "stay"}),
    rule("/half", {**NAMED, "weight": 1}, {"name": "nobody", "port": 80, "weight": 1}),
    rule("/none", {**NAMED, "weight": 0}),
    {**rule("/named"), "name": "a-name"},
    *(rule(f"/to-{status}", filters=[redirect(status)]) for status in (303, 307, 308)),
]


class RouteMesh(LiveMesh):
    """A mesh with mTLS, a service with two proxies, one that gets copies, and a client."""

    web: Sidecar
    copies: Echo

    def create(self, path: str, **document: Any) -> None:
        """Create an object through the Kubernetes form, and wait until all proxies have it."""
        answer = self.request("POST", path, document)
        assert answer.status == 201, answer.text
        self.wait_until_synced(self.revision())


def ports(service: str) -> dict[str, Any]:
    port = {"port": 80, "name": "http", "targetPort": "http", "appProtocol": "http"}
    return {"selector": {"dataplaneTags": {"kuma.io/service": service}}, "ports": [port]}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouteMesh]:
    with RouteMesh(tmp_path_factory.mktemp("x")) as mesh:
        ca = {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]}
        services = [
            {"type": "MeshService", "name": name, "spec": ports(name)}
            for name in ("backend", "copies", "plain")
        ]
        by_hand = {"meshServices": {"mode": "Disabled"}}
        mesh.apply({"type": "Mesh", "name": "default", "mtls": ca, **by_hand}, ALLOW_ALL, *services)
        mesh.sidecar("backend-1", service="backend")
        mesh.sidecar("backend-2", service="backend")
        copies = mesh.sidecar("copies-1", service="copies").service
        assert copies is not None
        mesh.copies = copies
        mesh.web = mesh.sidecar("web-1", service="web", outbounds=["backend", "plain"])
        spec = {"parentRefs": [SERVICE], "rules": RULES}
        mesh.create(
            f"{GATEWAY_API}/namespaces/{NAMESPACE}/httproutes",
            apiVersion="gateway.networking.k8s.io/v1",
            kind="HTTPRoute",
            metadata={"name": "features", "namespace": NAMESPACE},
            spec=spec,
        )
        until(lambda: mesh.web.call("backend", path="/named").status == 200, "the route acts")
        yield mesh


ALLOW_ALL = {
    "type": "MeshTrafficPermission",
    "name": "all",
    "spec": {"from": [{"targetRef": {"kind": "Mesh"}, "default": {"action": "Allow"}}]},
}


def test_mesh_http_route_without_a_match_answers_404(mesh: RouteMesh) -> None:
    assert mesh.web.call("backend", path="/elsewhere").status == 404


def test_backend_request_header_modification(mesh: RouteMesh) -> None:
    answer = mesh.web.call("backend", path="/of-backend")
    assert answer.json["headers"]["x-backend"] == "1"
    assert answer.headers["x-back"] == "2"


def test_request_multiple_mirrors_and_percentage_mirror(mesh: RouteMesh) -> None:
    copies = mesh.copies
    before = len(copies.seen)
    for _ in range(10):
        assert mesh.web.call("backend", path="/mirrors").status == 200
    until(lambda: len(copies.seen) - before >= 10, "all copies arrived")
    assert len(copies.seen) - before == 10


def test_request_timeout_and_backend_timeout(mesh: RouteMesh) -> None:
    assert mesh.web.call("backend", path="/timeout/0").status == 200
    assert mesh.web.call("backend", path="/timeout/2").status == 504
    assert mesh.web.call("backend", path="/try/0").status == 200
    assert mesh.web.call("backend", path="/try/2").status == 504


def test_retry(mesh: RouteMesh) -> None:
    # Two proxies count apart, so that three retries see at most one failure of each.
    assert mesh.web.call("backend", path="/retry/1/once").status == 200
    assert mesh.web.call("backend", path="/retry/9/often").status == 503


def test_cors(mesh: RouteMesh) -> None:
    asked = {"origin": "https://a.shop.example", "access-control-request-method": "PUT"}
    preflight = mesh.web.call("backend", path="/cors", method="OPTIONS", **asked)
    assert preflight.headers["access-control-allow-origin"] == "https://a.shop.example"
    assert preflight.headers["access-control-allow-methods"] == "PUT"
    assert preflight.text == ""
    other = mesh.web.call("backend", path="/cors", method="PUT", origin="https://evil.example")
    assert "access-control-allow-origin" not in other.headers


def test_session_persistence(mesh: RouteMesh) -> None:
    first = mesh.web.call("backend", path="/session")
    cookie = first.headers["set-cookie"].partition(";")[0]
    again = {mesh.web.call("backend", path="/session", cookie=cookie).headers["x-from"] for _ in range(10)}
    assert again == {first.headers["x-from"]}
    assert {mesh.web.call("backend", path="/session").headers["x-from"] for _ in range(20)} == {
        "backend-1",
        "backend-2",
    }


def test_weights_and_backends_that_are_not_there(mesh: RouteMesh) -> None:
    assert {mesh.web.call("backend", path="/half").status for _ in range(40)} == {200, 500}
    assert mesh.web.call("backend", path="/none").status == 500


@pytest.mark.parametrize("status", [303, 307, 308])
def test_redirect_status_codes(mesh: RouteMesh, status: int) -> None:
    answer = mesh.web.call("backend", path=f"/to-{status}")
    assert answer.status == status
    assert answer.headers["location"] == f"http://other.example/to-{status}"


@pytest.fixture(scope="module")
def plain(mesh: RouteMesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Echo]:
    """A service without a proxy, that has a certificate of its own, and its CA in a ConfigMap."""
    authority = Authority()
    echo = Echo(tls=authority.server(tmp_path_factory.mktemp("x"), "plain.example"), name="plain")
    inbound = {
        "port": echo.port,
        "name": "http",
        "tags": {"kuma.io/service": "plain", "kuma.io/protocol": "http"},
    }
    networking = {"address": "127.0.0.1", "inbound": [inbound]}
    mesh.apply_and_wait({"type": "Dataplane", "name": "plain-1", "networking": networking})
    mesh.create(
        f"/api/v1/namespaces/{NAMESPACE}/configmaps",
        apiVersion="v1",
        kind="ConfigMap",
        metadata={"name": "ca", "namespace": NAMESPACE},
        data={"ca.crt": authority.pem[0]},
    )
    yield echo
    echo.stop()


@pytest.mark.parametrize(
    ("validation", "status"),
    [
        ({"hostname": "plain.example"}, 200),
        ({"hostname": "other.example"}, 503),
        (
            {
                "hostname": "other.example",
                "subjectAltNames": [{"type": "Hostname", "hostname": "plain.example"}],
            },
            200,
        ),
    ],
)
@pytest.mark.usefixtures("plain")
def test_backend_tls_policy_and_san_validation(mesh: RouteMesh, validation: Any, status: int) -> None:
    policies = f"{GATEWAY_API}/namespaces/{NAMESPACE}/backendtlspolicies"
    refs = [{"group": "", "kind": "ConfigMap", "name": "ca"}]
    mesh.create(
        policies,
        apiVersion="gateway.networking.k8s.io/v1",
        kind="BackendTLSPolicy",
        metadata={"name": "plain", "namespace": NAMESPACE},
        spec={
            "targetRefs": [{"group": "", "kind": "Service", "name": "plain"}],
            "validation": {"caCertificateRefs": refs, **validation},
        },
    )
    try:
        until(lambda: mesh.web.call("plain").status == status, f"calls get {status}")
    finally:
        assert mesh.request("DELETE", f"{policies}/plain").status == 200
        mesh.wait_until_synced(mesh.revision())
