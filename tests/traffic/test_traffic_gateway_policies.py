"""Policies on a built-in gateway, on a real Envoy: each value is seen in the answers to requests."""

import contextlib
import http.client
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http_client import Response, joined_headers
from tests.live_mesh import Echo, LiveMesh, Sidecar
from tests.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.slow]
EDGE = {"kind": "MeshGateway", "name": "edge"}
WEB = {**EDGE, "sectionName": "web"}
CA = {"enabledBackend": "ca-1", "backends": [{"name": "ca-1", "type": "builtin"}]}
ALLOWED = {
    "rules": [{"default": {"allow": [{"spiffeID": {"type": "Prefix", "value": "spiffe://default/"}}]}}]
}
ABORT = {"abort": {"httpStatus": 418, "percentage": 100}}
LOG = {
    "type": "File",
    "file": {
        "path": "/dev/stdout",
        "format": {
            "type": "Plain",
            "plain": "LINE %KUMA_SOURCE_SERVICE% %KUMA_DESTINATION_SERVICE% %REQ(:PATH)%",
        },
    },
}


class EdgeMesh(LiveMesh):
    """A mesh with a service of two instances, an external service, and a gateway with two HTTP listeners."""

    edge: Sidecar
    ports: dict[str, int]


def route(name: str, kind: str, backend: str, path: str, rewritten: str = "/") -> dict[str, Any]:
    rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": rewritten}}
    conf = {
        "filters": [{"type": "URLRewrite", "urlRewrite": rewrite}],
        "backendRefs": [{"kind": kind, "name": backend}],
    }
    rules = [{"matches": [{"path": {"type": "PathPrefix", "value": path}}], "default": conf}]
    to = [{"targetRef": {"kind": "Mesh"}, "rules": rules}]
    return {"type": "MeshHTTPRoute", "name": name, "spec": {"targetRef": EDGE, "to": to}}


def policy(kind: str, name: str, top: Any, to: Any, conf: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "name": name,
        "spec": {"targetRef": top, "to": [{"targetRef": to, "default": conf}]},
    }


MESH = {"kind": "Mesh"}


def on(name: str) -> dict[str, str]:
    return {"kind": "MeshHTTPRoute", "name": name}


POLICIES = [
    policy("MeshTimeout", "short", WEB, on("slow"), {"http": {"requestTimeout": "300ms"}}),
    policy(
        "MeshTimeout",
        "bank",
        WEB,
        {"kind": "MeshExternalService", "name": "bank"},
        {"http": {"requestTimeout": "300ms"}},
    ),
    policy("MeshRetry", "again", EDGE, on("retried"), {"http": {"numRetries": 3, "retryOn": ["5xx"]}}),
    policy("MeshRetry", "never", EDGE, MESH, {"http": {"numRetries": 0}}),
    policy(
        "MeshRateLimit",
        "few",
        WEB,
        on("limited"),
        {"local": {"http": {"requestRate": {"num": 2, "interval": "1h"}}}},
    ),
    policy("MeshFaultInjection", "broken", WEB, on("broken"), {"http": [ABORT]}),
    policy(
        "MeshLoadBalancingStrategy",
        "by-user",
        EDGE,
        MESH,
        {
            "loadBalancer": {"type": "RingHash"},
            "hashPolicies": [{"type": "Header", "header": {"name": "x-user"}}],
        },
    ),
    policy("MeshAccessLog", "lines", EDGE, MESH, {"backends": [LOG]}),
]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeMesh]:
    outside = Echo(name="bank")
    with EdgeMesh(tmp_path_factory.mktemp("gp")) as mesh:
        mesh.ports = {"web": free_port(), "other": free_port()}
        listeners = [{"name": name, "port": port, "protocol": "HTTP"} for name, port in mesh.ports.items()]
        selectors = [{"match": {"kuma.io/service": "edge"}}]
        bank = {
            "match": {"type": "HostnameGenerator", "port": 80, "protocol": "http"},
            "endpoints": [{"address": "127.0.0.1", "port": outside.port}],
        }
        mesh.apply(
            {"type": "Mesh", "name": "default", "mtls": CA},
            {"type": "MeshTrafficPermission", "name": "all", "spec": ALLOWED},
            {"type": "MeshExternalService", "name": "bank", "spec": bank},
            {"type": "MeshGateway", "name": "edge", "selectors": selectors, "conf": {"listeners": listeners}},
            *(
                route(name, "MeshService", "shop", f"/{name}")
                for name in ("retried", "limited", "broken", "plain")
            ),
            route("slow", "MeshService", "shop", "/slow", "/sleep"),
            route("bank", "MeshExternalService", "bank", "/bank"),
            *POLICIES,
        )
        proxies = [mesh.sidecar(f"shop-{number}", "shop", wait=False) for number in (1, 2)]
        mesh.edge = mesh.gateway(wait=False)
        for proxy in (*proxies, mesh.edge):
            proxy.wait_for_output("is ready")
        until(lambda: ask(mesh, "/plain").status == 200, "the gateway answers")
        until(lambda: ask(mesh, "/bank").status == 200, "the gateway reaches the outside")
        mesh.wait_until_synced()
        yield mesh
    outside.stop()


def ask(mesh: EdgeMesh, path: str, listener: str = "web", **headers: str) -> Response:
    connection = http.client.HTTPConnection("127.0.0.1", mesh.ports[listener], timeout=60)
    with contextlib.closing(connection):
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", path, headers={"Host": "shop.lan", **sent})
        response = connection.getresponse()
        return Response(response.status, joined_headers(response.getheaders()), response.read())


def test_a_timeout_holds_for_its_route_and_its_listener(mesh: EdgeMesh) -> None:
    assert ask(mesh, "/slow/1").status == 504
    assert ask(mesh, "/slow/1", "other").status == 200
    assert ask(mesh, "/plain/sleep/1").status == 200


def test_a_timeout_for_an_external_service_holds_where_it_is_the_only_backend(mesh: EdgeMesh) -> None:
    assert ask(mesh, "/bank/sleep/1").status == 504
    assert ask(mesh, "/bank/sleep/1", "other").status == 200


def test_what_fails_is_tried_again_on_one_route_and_not_on_others(mesh: EdgeMesh) -> None:
    assert ask(mesh, "/retried/fail-first/1/one").status == 200
    assert ask(mesh, "/plain/status/503").status == 503


def test_a_limit_is_counted_by_the_gateway(mesh: EdgeMesh) -> None:
    assert [ask(mesh, "/limited").status for _ in range(4)] == [200, 200, 429, 429]
    assert {ask(mesh, "/limited", "other").status for _ in range(4)} == {200}
    assert ask(mesh, "/plain").status == 200


def test_a_fault_hits_one_route_of_one_listener(mesh: EdgeMesh) -> None:
    assert ask(mesh, "/broken").status == 418
    assert ask(mesh, "/broken", "other").status == 200


def test_a_hash_leads_a_user_to_one_instance(mesh: EdgeMesh) -> None:
    by_user = {
        user: {ask(mesh, "/plain", x_user=user).json["name"] for _ in range(3)} for user in map(str, range(8))
    }
    assert {len(names) for names in by_user.values()} == {1}
    assert {name for names in by_user.values() for name in names} == {"shop-1", "shop-2"}


def test_a_line_of_the_log_says_who_sends_on(mesh: EdgeMesh) -> None:
    ask(mesh, "/plain/for-the-log")
    mesh.edge.wait_for_output("LINE edge * /for-the-log")
