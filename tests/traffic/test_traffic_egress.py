"""External services through a zone egress, with real Envoys: sidecar, egress, and a TLS server outside.

web, guest ──mTLS + SNI──▶ egress-1 ──TLS──▶ api (HTTP), db (TCP)
"""

import contextlib
import json
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from egress_mesh import API, API_SNI, DB, GUEST, WEB, EgressMesh, started

from tests import build
from tests.core.external_servers import AUTHORITY, Server, Serving, made
from tests.http_client import call
from tests.kuma_dp import KumaDp
from tests.live_mesh import Echo, echoed_bytes, steady_traffic
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EgressMesh]:
    with started(tmp_path_factory.mktemp("eg")) as mesh:
        yield mesh


@pytest.fixture
def usual(mesh: EgressMesh) -> EgressMesh:
    """The mesh as most tests need it: calls of web go through the egress."""
    mesh.permit(WEB)
    mesh.route_through_egress()
    until(lambda: mesh.web.call(API).status == 200, "web reaches the API")
    return mesh


def test_calls_leave_through_the_egress(usual: EgressMesh):
    before = usual.calls_through("api", 443)
    answer = usual.web.call(API, path="/through")
    assert answer.status == 200
    assert usual.outside.seen[-1]["headers"]["host"] == "127.0.0.1"
    assert not {"x-forwarded-client-cert", "x-forwarded-for"} & usual.outside.seen[-1]["headers"].keys()
    assert usual.calls_through("api", 443) >= max(before, 1)
    assert echoed_bytes(usual.web.outbounds[DB]) == b"hello"
    assert usual.calls_through("db", 5432) >= 1


def test_the_egress_is_shown_with_its_certificate_and_its_chains(usual: EgressMesh):
    certificates = json.loads(usual.out.admin("/certs"))["certificates"]
    ids = {
        san["uri"]
        for each in certificates
        for part in each["cert_chain"]
        for san in part["subject_alt_names"]
    }
    assert "spiffe://default/zone-egress" in ids
    shown = usual.proxies()["egress-1"]
    assert (shown["state"], shown["kind"], shown["failures"]) == ("synced", "ZoneEgress", [])
    assert "egress-1" in usual.koguma("get", "proxies").stdout
    assert "127.0.0.1" in usual.koguma("get", "zoneegresses").stdout
    inspected = usual.koguma("inspect", "zoneegress", "egress-1").stdout
    assert API_SNI in inspected
    assert "MeshTrafficPermission" in inspected
    assert usual.koguma("inspect", "zoneegress", "none", check=False).returncode == 1


def test_who_is_not_permitted_is_denied_by_the_egress(usual: EgressMesh):
    denied = usual.guest.call(API)
    assert (denied.status, denied.headers["x-koguma-denied-by"]) == (403, "no-permission(deny-by-default)")
    assert echoed_bytes(usual.guest.outbounds[DB]) == b""
    assert usual.web.call(API).status == 200


def test_a_permission_may_name_one_external_service(usual: EgressMesh):
    usual.permit(WEB, GUEST, sni={"type": "Exact", "value": API_SNI})
    until(lambda: usual.guest.call(API).status == 200, "guest may call the API")
    assert echoed_bytes(usual.guest.outbounds[DB]) == b""
    assert echoed_bytes(usual.web.outbounds[DB]) == b""


def handshake(port: int, sni: str, context: ssl.SSLContext) -> str:
    """What comes of TLS with the egress: the first bytes of an answer, or why there is none."""
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        try:
            secure = stack.enter_context(context.wrap_socket(plain, server_hostname=sni))
            secure.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            return secure.recv(64).decode(errors="replace") or "closed"
        except (OSError, ssl.SSLError) as error:
            return type(error).__name__
    return ""


def stranger() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_nobody_without_an_identity_of_the_mesh_gets_through(usual: EgressMesh, tmp_path):
    port, seen = usual.out.inbound, len(usual.outside.seen)
    assert "200" not in handshake(port, API_SNI, stranger())
    foreign = stranger()
    pair = made("web", (WEB,), AUTHORITY)  # the right name, by another CA
    (tmp_path / "web.pem").write_text(pair.pem + pair.key_pem)
    foreign.load_cert_chain(tmp_path / "web.pem")
    assert "200" not in handshake(port, API_SNI, foreign)
    assert "200" not in handshake(port, "sni.extsvc.default.default.none.443", stranger())
    with socket.create_connection(("127.0.0.1", port), 60) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nhost: api\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert plain.recv(64) == b""
    assert len(usual.outside.seen) == seen
    assert usual.web.call(API).status == 200


def test_switching_the_egress_off_and_on_fails_no_request(usual: EgressMesh):
    with steady_traffic(usual.web.outbounds[API]) as counts:
        for on in (False, True, False, True):
            usual.route_through_egress(on=on)
            until(lambda: len(usual.outside.seen) > 0, "traffic flows")
    assert set(counts) == {"200"}, counts


def test_a_second_egress_takes_over_and_a_drained_one_fails_no_request(usual: EgressMesh):
    other = usual.egress("egress-2")
    usual.wait_until_synced()
    stat = "cluster.kri_extsvc_default_default__api_443.upstream_rq_total"
    with steady_traffic(usual.web.outbounds[API]) as counts:
        until(lambda: other.stats(f"^{stat}$").get(stat, 0) > 0, "the second egress is used")
        assert other.stop() == 0
    assert set(counts) == {"200"}, counts


def test_an_egress_that_cannot_be_reached_is_left_out(usual: EgressMesh):
    dead = {"type": "ZoneEgress", "name": "dead", "networking": {"address": "127.0.0.1", "port": free_port()}}
    assert usual.request("PUT", "/zoneegresses/dead", dead).status in (200, 201)
    until(lambda: usual.web.call(API).status == 503, "it is called")
    try:
        until(lambda: {usual.web.call(API).status for _ in range(20)} == {200}, "it is left out")
    finally:
        assert usual.request("DELETE", "/zoneegresses/dead").status in (200, 204)


@pytest.mark.expected_errors("Envoy was ended by SIGKILL")
def test_an_egress_that_crashes_comes_back(usual: EgressMesh):
    os.kill(usual.out.envoy_pid(), signal.SIGKILL)
    usual.out.wait_for_output("is ready again")
    until(lambda: usual.web.call(API).status == 200, "calls are answered again")


def test_without_an_egress_calls_fail_and_the_reason_is_shown(usual: EgressMesh):
    port = usual.out.inbound
    assert usual.out.stop() == 0
    until(lambda: usual.web.call(API).status == 503, "there is nowhere to go")
    assert "KG021" in usual.koguma("lint", "--live", check=False).stdout
    usual.out = usual.egress(port=port)
    until(lambda: usual.web.call(API).status == 200, "the new egress is used")
    assert "KG021" not in usual.koguma("lint", "--live", check=False).stdout


def test_one_egress_serves_several_meshes_whatever_is_wrong_with_one_of_them(usual: EgressMesh):
    other, name = Echo(name="other-api"), usual.name
    usual._echoes.append(other)
    missing = {"cert": {"secret": "nowhere"}, "key": {"secret": "nowhere"}}
    broken = {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "provided", "conf": missing}]}
    external = usual.external("api", 443, "http", other.port)
    usual.name = "other"
    try:
        usual.apply(
            build.mesh("other", mtls=build.builtin_mtls(), routing={"zoneEgress": True}),
            external,
            {"type": "MeshTrafficPermission", "name": "all", "spec": permission("spiffe://other/")},
        )
        caller = usual.sidecar("far-1", "far", serves=False, outbounds=(API,), wait=False)
        caller.wait_for_output("is ready")
        until(lambda: caller.call(API).status == 200, "the other mesh is served")
        assert caller.call(API).json["name"] == "other-api"
    finally:
        usual.name = name
    assert usual.web.call(API).json["name"] == "api"
    usual.apply(build.mesh("broken", mtls={**broken, "skipValidation": True}), {**external, "mesh": "broken"})
    usual.apply({**usual.external("late", 80, "http", other.port)})
    sni = "sni.extsvc.default.default.late.80"
    until(lambda: sni in usual.out.admin("/config_dump?resource=dynamic_listeners"), "chains still come", 40)
    assert usual.web.call(API).status == 200
    port = usual.out.inbound
    assert usual.out.stop() == 0
    usual.out = usual.egress(port=port)  # one that starts is not held up either
    until(lambda: usual.web.call(API).status == 200, "the new egress serves", 40)


def permission(prefix: str) -> dict[str, Any]:
    allow = [{"spiffeID": {"type": "Prefix", "value": prefix}}]
    return {"rules": [{"default": {"allow": allow}}]}


def test_endpoints_are_found_from_the_egress(usual: EgressMesh, tmp_path_factory: pytest.TempPathFactory):
    local = Server(tmp_path_factory.mktemp("u"), "s", Serving(is_unix=True))
    named = Echo(name="named")
    usual._echoes.append(named)
    ref = {"kind": "MeshExternalService", "name": "other", "port": 80}
    rule = {"matches": [{"path": {"type": "PathPrefix", "value": "/"}}], "default": {"backendRefs": [ref]}}
    target = {"kind": "MeshExternalService", "name": "api"}
    route = {"type": "MeshHTTPRoute", "name": "r", "spec": {"to": [{"targetRef": target, "rules": [rule]}]}}
    stat = "cluster.kri_extsvc_default_default__other_80.upstream_rq_2xx"
    try:
        for endpoint, told in (
            (
                {"address": "localhost", "port": named.port},
                lambda: usual.web.call(API).json.get("name") == "named",
            ),
            ({"address": local.address}, lambda: usual.web.call(API).json.get("server") == "s"),
        ):
            usual.apply_only(usual.external("other", 80, "http", 0, endpoints=[endpoint]), route)
            until(told, f"{endpoint} answers")
            until(lambda: usual.out.stats(f"^{stat}$").get(stat, 0) > 0, "through the egress")
    finally:
        usual.apply_only()
        local.close()


def test_an_egress_of_kumas_agent_serves_as_ours_does(usual: EgressMesh):
    networking = {"address": "127.0.0.1", "port": free_port(), "admin": {"port": free_port()}}
    document = {"type": "ZoneEgress", "name": "kuma-1", "networking": networking}
    token = usual.request("POST", "/tokens/zone", {"scope": ["egress"]}).text
    fields = {"proxyType": "egress", "dataplaneToken": token, "dataplaneResource": json.dumps(document)}
    with contextlib.closing(KumaDp(usual, document, **fields)) as kuma:
        assert kuma.bootstrap["node"]["id"] == ".kuma-1"
        stat = "cluster.kri_extsvc_default_default__api_443.upstream_rq_total"

        def is_used() -> bool:
            assert usual.web.call(API).status == 200
            stats = call(kuma.admin_port, path=f"/stats?filter={stat}").text
            return int(stats.rpartition(": ")[2] or 0) > 0

        until(is_used, "it takes its share of the calls")
        assert usual.proxies()["kuma-1"]["state"] == "synced"
    until(lambda: "kuma-1" not in usual.proxies(), "it has left")
