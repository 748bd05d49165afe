"""Policies on calls to external services, in both layouts: directly, and through a zone egress."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from egress_mesh import API, API_SNI, DB, GUEST, WEB, EgressMesh, started

from tests import build
from tests.live_mesh import Echo, TcpEcho, echoed_bytes
from tests.waiting import until

pytestmark = pytest.mark.slow

LAYOUTS = ("direct", "egress")
TO_API = {"kind": "MeshExternalService", "name": "api"}
CLUSTER = "cluster.kri_extsvc_default_default__api_443"
_names = (f"n{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EgressMesh]:
    with started(tmp_path_factory.mktemp("ep")) as mesh:
        yield mesh


@pytest.fixture(scope="module", params=LAYOUTS)
def mesh(everything: EgressMesh, request: pytest.FixtureRequest) -> EgressMesh:
    """The mesh in each of the layouts."""
    everything.layout = request.param
    everything.route_through_egress(on=request.param == "egress")
    everything.permit(WEB)
    until(lambda: everything.web.call(API).status == 200, "web reaches the API")
    return everything


@pytest.fixture(autouse=True)
def _clean(mesh: EgressMesh) -> Iterator[None]:
    yield
    mesh.apply_only()


def policy(kind: str, conf: dict[str, Any], *, to: Any = None, **spec: Any) -> dict[str, Any]:
    entries = {"to": [{"targetRef": to or TO_API, "default": conf}]} if conf else {}
    return {"type": kind, "name": next(_names), "spec": {**entries, **spec}}


def route(kind: str, conf: dict[str, Any], to: str = "api") -> dict[str, Any]:
    match = {"matches": [{"path": {"type": "PathPrefix", "value": "/"}}]} if "HTTP" in kind else {}
    target = {"kind": "MeshExternalService", "name": to}
    spec = {"to": [{"targetRef": target, "rules": [{**match, "default": conf}]}]}
    return {"type": kind, "name": next(_names), "spec": spec}


def test_a_timeout_ends_a_slow_request(mesh: EgressMesh):
    assert mesh.web.call(API, path="/sleep/0.4").status == 200
    mesh.apply_only(policy("MeshTimeout", {"http": {"requestTimeout": "200ms"}}))
    assert mesh.web.call(API, path="/sleep/0.4").status == 504


def test_a_retry_hides_a_failure(mesh: EgressMesh):
    assert mesh.web.call(API, path=f"/fail-first/1/{next(_names)}").status == 503
    mesh.apply_only(policy("MeshRetry", {"http": {"numRetries": 2, "retryOn": ["5xx"]}}))
    assert mesh.web.call(API, path=f"/fail-first/1/{next(_names)}").status == 200


def test_outlier_detection_ejects_the_real_endpoint_where_it_is_called(mesh: EgressMesh):
    detectors = {"totalFailures": {"consecutive": 3}}
    detection = {"interval": "100ms", "baseEjectionTime": "1s", "detectors": detectors}
    mesh.apply_only(policy("MeshCircuitBreaker", {"outlierDetection": detection}))
    caller = mesh.out if mesh.layout == "egress" else mesh.web
    stat = f"{CLUSTER}.outlier_detection.ejections_enforced_consecutive_5xx"
    before = caller.stats(f"^{stat}$").get(stat, 0)
    statuses = [mesh.web.call(API, path="/status/500").status for _ in range(6)]
    assert statuses[:3] == [500] * 3
    until(lambda: caller.stats(f"^{stat}$").get(stat, 0) > before, "the endpoint is ejected")
    other = mesh.web if mesh.layout == "egress" else mesh.out
    assert other.stats(f"^{stat}$").get(stat, 0) == 0
    until(lambda: mesh.web.call(API).status == 200, "it is back")


def test_requests_are_routed_to_another_external_service(mesh: EgressMesh):
    other = Echo(name="other")
    mesh._echoes.append(other)
    ref = {"kind": "MeshExternalService", "name": "other", "port": 80}
    mesh.apply_only(
        mesh.external("other", 80, "http", other.port), route("MeshHTTPRoute", {"backendRefs": [ref]})
    )
    until(lambda: mesh.web.call(API).json["name"] == "other", "requests go elsewhere")
    both = [{**ref, "weight": 50}, {**TO_API, "port": 443, "weight": 50}]
    mesh.apply_only(
        mesh.external("other", 80, "http", other.port), route("MeshHTTPRoute", {"backendRefs": both})
    )
    assert {mesh.web.call(API).json["name"] for _ in range(30)} == {"api", "other"}


def test_requests_to_a_service_of_the_mesh_are_routed_outside(mesh: EgressMesh):
    split = route("MeshHTTPRoute", {"backendRefs": [{**TO_API, "port": 443}]}, to="backend")
    split["spec"]["to"][0]["targetRef"]["kind"] = "MeshService"
    mesh.apply_only(split)
    until(lambda: mesh.web.call("backend").status == 200, "the API answers for the service")
    assert mesh.web.call("backend").json["name"] == "api"


def test_connections_are_routed_to_another_external_service(mesh: EgressMesh):
    unused = TcpEcho()
    ref = {"kind": "MeshExternalService", "name": "db2", "port": 5433}
    mesh.apply_only(
        mesh.external("db2", 5433, "tcp", unused.port), route("MeshTCPRoute", {"backendRefs": [ref]}, to="db")
    )
    caller = mesh.out if mesh.layout == "egress" else mesh.web
    stat = "cluster.kri_extsvc_default_default__db2_5433.upstream_cx_total"
    until(lambda: echoed_bytes(mesh.web.outbounds[DB]) == b"hello", "connections go through")
    assert caller.stats(f"^{stat}$")[stat] >= 1
    unused.stop()


def test_a_route_sets_the_host_and_the_path(mesh: EgressMesh):
    assert mesh.web.call(API).json["headers"]["host"] == "127.0.0.1"
    rewrite = {
        "hostname": "partner.example",
        "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/v2"},
    }
    mesh.apply_only(route("MeshHTTPRoute", {"filters": [{"type": "URLRewrite", "urlRewrite": rewrite}]}))
    until(lambda: mesh.web.call(API).json["headers"]["host"] == "partner.example", "the host is set")
    seen = mesh.web.call(API, path="/a", **{"x-kuma-egress-host": "kept"}).json
    assert (seen["path"], seen["headers"]["host"]) == ("/v2/a", "partner.example")
    assert mesh.layout == "direct" or "x-kuma-egress-host" not in seen["headers"]
    mesh.apply_only()
    until(lambda: mesh.web.call(API).json["headers"]["host"] == "127.0.0.1", "the host is the endpoint's")
    # A program cannot say it itself.
    spoofed = mesh.web.call(API, host="evil.example", **{"x-kuma-egress-host": "kept"}).json["headers"]
    assert spoofed["host"] == "127.0.0.1"


def access_log(path: Path, **spec: Any) -> dict[str, Any]:
    line = {"type": "Plain", "plain": "%REQ(:PATH)% %RESPONSE_CODE%"}
    conf = {"backends": [{"type": "File", "file": {"path": str(path), "format": line}}]}
    if spec.pop("arriving", False):
        return {"type": "MeshAccessLog", "name": next(_names), "spec": {"rules": [{"default": conf}], **spec}}
    return policy("MeshAccessLog", conf)


def is_logged(mesh: EgressMesh, file: Path) -> bool:
    assert mesh.web.call(API, path="/logged").status == 200
    until(lambda: file.exists() or mesh.layout == "direct", "the file is there")
    with contextlib.suppress(AssertionError):
        return bool(until(lambda: file.exists() and "/logged 200" in file.read_text(), seconds=1))
    return False


def test_access_logs_are_written_by_caller_and_egress(mesh: EgressMesh, tmp_path: Path):
    of_caller, of_egress = tmp_path / "caller.log", tmp_path / "egress.log"
    only_egress = {"kind": "Dataplane", "labels": {"kuma.io/listener-zoneegress": "enabled"}}
    mesh.apply_only(access_log(of_caller), access_log(of_egress, arriving=True, targetRef=only_egress))
    assert is_logged(mesh, of_caller)
    if mesh.layout == "egress":
        until(
            lambda: is_logged(mesh, of_egress), "the egress logs, once connections from before have drained"
        )
    else:
        assert not of_egress.exists() or "/logged" not in of_egress.read_text()


def test_rate_limits_act_where_calls_arrive(mesh: EgressMesh):
    limit = {"local": {"http": {"requestRate": {"num": 2, "interval": "60s"}}}}
    only_egress = {"kind": "Dataplane", "labels": {"kuma.io/listener-zoneegress": "enabled"}}
    mesh.apply_only(
        {
            "type": "MeshRateLimit",
            "name": next(_names),
            "spec": {"targetRef": only_egress, "rules": [{"default": limit}]},
        }
    )
    statuses = {mesh.web.call(API).status for _ in range(6)}
    assert statuses == ({200, 429} if mesh.layout == "egress" else {200})


def test_health_checks_watch_the_real_endpoint_where_it_is_called(mesh: EgressMesh):
    check = {
        "interval": "200ms",
        "timeout": "1s",
        "healthyThreshold": 1,
        "unhealthyThreshold": 1,
        "http": {"path": "/"},
    }
    mesh.apply_only(policy("MeshHealthCheck", check))
    caller, other = (mesh.out, mesh.web) if mesh.layout == "egress" else (mesh.web, mesh.out)
    stat = f"{CLUSTER}.health_check.success"
    until(lambda: caller.stats(f"^{stat}$").get(stat, 0) > 0, "it is checked")
    before = other.stats(f"^{stat}$").get(stat, 0)
    assert mesh.web.call(API).status == 200
    assert other.stats(f"^{stat}$").get(stat, 0) == before


def test_external_services_are_forbidden_unless_a_permission_names_them(mesh: EgressMesh):
    forbids = {"zoneEgress": mesh.layout == "egress", "defaultForbidMeshExternalServiceAccess": True}
    mesh.permit(WEB, GUEST)
    assert mesh.web.call(API).status == 200
    try:
        mesh.apply_and_wait(build.mesh(mtls=build.builtin_mtls(), routing=forbids))
        denied = 403 if mesh.layout == "egress" else 503  # without a proxy at the other end: nowhere to go
        until(lambda: mesh.web.call(API).status == denied, "web may not call the API")
        until(lambda: echoed_bytes(mesh.web.outbounds[DB]) == b"", "nor the database")
        mesh.permit(WEB, sni={"type": "Exact", "value": API_SNI})
        until(lambda: mesh.web.call(API).status == 200, "web may")
        assert mesh.guest.call(API).status == denied
        assert echoed_bytes(mesh.web.outbounds[DB]) == b""
    finally:
        mesh.route_through_egress(on=mesh.layout == "egress")
        mesh.permit(WEB)
        until(lambda: mesh.web.call(API).status == 200, "all is as before")
