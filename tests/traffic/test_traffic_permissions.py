"""mTLS and permissions on real traffic: who is let in, who is not, and how each side learns why."""

import base64
import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.authority import Authority
from tests.http_client import PersistentConnection, call
from tests.live_mesh import LiveMesh, Sidecar, TcpEcho, echoed_bytes, steady_traffic
from tests.waiting import until

pytestmark = pytest.mark.slow

WEB, GUEST = "spiffe://default/web", "spiffe://default/guest"


class PermissionMesh(LiveMesh):
    """A mesh with a service for requests, one for bytes, and two that call both."""

    backend: Sidecar
    database: Sidecar
    web: Sidecar
    guest: Sidecar

    def mtls(self, mode: str = "STRICT", **backend: Any) -> None:
        """Switch mTLS on, with a backend of its own name."""
        whole = {"name": "ca-1", "type": "builtin", "mode": mode, **backend}
        field = {"enabledBackend": whole["name"], "backends": [whole]}
        self.apply_and_wait({"type": "Mesh", "name": self.name, "mtls": field})

    @contextlib.contextmanager
    def policy(self, kind: str, name: str, spec: Any) -> Iterator[str]:
        """A policy that is there while the block runs; gives its KRI."""
        self.apply_and_wait({"type": kind, "name": name, "spec": spec})
        plural = {"MeshTrafficPermission": "meshtrafficpermissions", "MeshTLS": "meshtlses"}[kind]
        try:
            yield self.request("GET", f"/meshes/{self.name}/{plural}/{name}").json["kri"]
        finally:
            self.delete_and_wait(plural, name)

    def permits(self, name: str, **rule: list[str]) -> contextlib.AbstractContextManager[str]:
        """A permission with SPIFFE ids by what happens to them."""
        default = {
            action: [{"spiffeID": {"type": "Exact", "value": each}} for each in ids]
            for action, ids in rule.items()
        }
        return self.policy("MeshTrafficPermission", name, {"rules": [{"default": default}]})


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PermissionMesh]:
    echo = TcpEcho()
    with PermissionMesh(tmp_path_factory.mktemp("mesh")) as mesh:
        mesh.delete("meshretries", "mesh-retry-all-default")  # a second try would hide what failed
        mesh.apply({"type": "Mesh", "name": "default", "mtls": _builtin()})
        mesh.backend = mesh.sidecar("backend-1", "backend", wait=False)
        mesh.database = mesh.sidecar("db-1", "db", protocol="tcp", target=echo.port, wait=False)
        mesh.web = mesh.sidecar("web-1", "web", serves=False, outbounds=("backend", "db"), wait=False)
        mesh.guest = mesh.sidecar("guest-1", "guest", serves=False, outbounds=("backend", "db"), wait=False)
        for sidecar in (mesh.backend, mesh.database, mesh.web, mesh.guest):
            sidecar.wait_for_output("is ready")
        until(
            lambda: all(outbounds_of(sidecar) == 2 for sidecar in (mesh.web, mesh.guest)),
            "outbounds are there",
        )
        mesh.wait_until_synced()
        yield mesh
    echo.stop()


def _builtin() -> dict[str, Any]:
    return {"enabledBackend": "ca-1", "backends": [{"name": "ca-1", "type": "builtin"}]}


def outbounds_of(sidecar: Sidecar) -> int:
    return sidecar.admin("/listeners").count("kri_msvc_")


def wait_for_line(sidecar: Sidecar, line: str) -> None:
    """Wait for a line in a sidecar's log; Envoy writes access logs in rounds."""
    until(lambda: line in sidecar.output, f"{sidecar.name} says {line!r}")


def test_an_allowed_caller_gets_in_and_the_service_sees_who_it_is(mesh: PermissionMesh) -> None:
    with mesh.permits("web-may", allow=[WEB]):
        answer = mesh.web.call("backend", x_forwarded_client_cert="URI=spiffe://default/somebody-else")
        assert answer.status == 200, answer
        (identity,) = answer.json["headers"]["x-forwarded-client-cert"].split(",")
        assert f"URI={WEB}" in identity.split(";")
        assert "somebody-else" not in identity


def test_whom_nothing_allows_is_told_that_nobody_did(mesh: PermissionMesh) -> None:
    with mesh.permits("web-may", allow=[WEB]):
        answer = mesh.guest.call("backend", path="/of-guest?key=secret")
        assert (answer.status, answer.headers["x-koguma-denied-by"]) == (
            403,
            "no-permission(deny-by-default)",
        )
        wait_for_line(mesh.backend, f"no-permission(deny-by-default) denied GET /of-guest from {GUEST}")
        assert "key=secret" not in mesh.backend.output


def test_a_denial_names_its_policy_to_the_caller_and_in_the_log(mesh: PermissionMesh) -> None:
    with mesh.permits("all-may", allow=[WEB, GUEST]), mesh.permits("no-guest", deny=[GUEST]) as kri:
        answer = mesh.guest.call("backend", path="/denied")
        assert (answer.status, answer.headers["x-koguma-denied-by"]) == (403, kri)
        assert kri.startswith("kri_mtp_default_")
        assert mesh.web.call("backend").status == 200
        wait_for_line(mesh.backend, f"{kri} denied GET /denied from {GUEST}")


def test_a_planned_denial_lets_in_and_is_counted(mesh: PermissionMesh) -> None:
    def shadow_denied() -> int:
        return sum(mesh.backend.stats(r"rbac\.shadow_denied$").values())

    with mesh.permits("guest-soon-not", allow=[WEB], allowWithShadowDeny=[GUEST]):
        before = shadow_denied()
        assert [mesh.guest.call("backend").status for _ in range(3)] == [200] * 3
        assert mesh.web.call("backend").status == 200
        assert shadow_denied() == before + 3


def test_callers_can_be_named_by_their_tags(mesh: PermissionMesh) -> None:
    callers = {"kind": "MeshSubset", "tags": {"kuma.io/service": "web"}}
    spec = {
        "targetRef": {"kind": "Mesh"},
        "from": [
            {"targetRef": {"kind": "Mesh"}, "default": {"action": "Deny"}},
            {"targetRef": callers, "default": {"action": "Allow"}},
        ],
    }
    with mesh.policy("MeshTrafficPermission", "by-tags", spec) as kri:
        assert mesh.web.call("backend").status == 200
        denied = mesh.guest.call("backend")
        assert (denied.status, denied.headers["x-koguma-denied-by"]) == (403, kri)


def test_callers_can_be_named_by_their_zone(mesh: PermissionMesh) -> None:
    def allowed(zone: str) -> dict[str, Any]:
        callers = {"kind": "MeshSubset", "tags": {"kuma.io/zone": zone}}
        return {"from": [{"targetRef": callers, "default": {"action": "Allow"}}]}

    with mesh.policy("MeshTrafficPermission", "by-zone", allowed("elsewhere")):
        assert mesh.web.call("backend").status == 403
    with mesh.policy("MeshTrafficPermission", "by-zone", allowed("default")):
        assert mesh.web.call("backend").status == 200
        assert echoed_bytes(mesh.web.outbounds["db"]) == b"hello"


def test_a_denial_bites_on_an_open_connection_and_leaves_it_open(mesh: PermissionMesh) -> None:
    with (
        mesh.permits("web-may", allow=[WEB]),
        contextlib.closing(PersistentConnection(mesh.web.outbounds["backend"])) as kept,
    ):
        assert kept.call().status == 200
        client_side, mesh_side = kept.connection.sock, connections(mesh.web, "backend")
        mesh.apply(
            {
                "type": "MeshTrafficPermission",
                "name": "no-web",
                "spec": {"rules": [{"default": {"deny": [{"spiffeID": {"type": "Exact", "value": WEB}}]}}]},
            }
        )
        until(lambda: kept.call().status == 403, "the open connection is denied")
        mesh.delete("meshtrafficpermissions", "no-web")
        until(lambda: kept.call().status == 200, "it is let in again")
        assert kept.connection.sock is client_side
        assert connections(mesh.web, "backend") == mesh_side


def connections(sidecar: Sidecar, to: str) -> int:
    (found,) = sidecar.stats(rf"^cluster\.kri_msvc_.*_{to}_.*\.upstream_cx_total$").values()
    return found


def test_connections_without_requests_are_denied_by_closing_them(mesh: PermissionMesh) -> None:
    assert echoed_bytes(mesh.web.outbounds["db"]) == b""
    wait_for_line(mesh.database, f"no-permission(deny-by-default) denied a connection from {WEB}")
    with mesh.permits("web-may", allow=[WEB]):
        until(lambda: echoed_bytes(mesh.web.outbounds["db"]) == b"hello", "web reaches the database")
        assert echoed_bytes(mesh.guest.outbounds["db"]) == b""


def test_nobody_without_a_certificate_reaches_a_strict_service(mesh: PermissionMesh) -> None:
    with mesh.permits("all-may", allow=[WEB, GUEST]):
        seen = len(mesh.backend.service.seen)
        with pytest.raises(OSError, match=r"reset|closed|aborted"):
            call(mesh.backend.inbound)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            over_tls(mesh.backend.inbound, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        assert len(mesh.backend.service.seen) == seen


def over_tls(port: int, context: ssl.SSLContext) -> bytes:
    """A request with one's own TLS to an inbound, which nobody's name is checked for here."""
    context.check_hostname = False
    if not context.get_ca_certs():
        context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 60) as plain, context.wrap_socket(plain) as secured:
        secured.sendall(b"GET /own-tls HTTP/1.1\r\nhost: backend\r\nconnection: close\r\n\r\n")
        answer = b""
        while data := secured.recv(4096):
            answer += data
        return answer


@pytest.mark.parametrize("by", ["MeshTLS", "backend"])
def test_a_permissive_service_takes_plain_callers_beside_proxies_that_use_mtls(
    mesh: PermissionMesh, by: str
) -> None:
    if by == "backend":
        mesh.mtls("PERMISSIVE")
        permissive: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    else:
        spec = {
            "targetRef": {"kind": "MeshSubset", "tags": {"kuma.io/service": "backend"}},
            "rules": [{"default": {"mode": "Permissive"}}],
        }
        permissive = mesh.policy("MeshTLS", "move-in", spec)
    with permissive, mesh.permits("web-may", allow=[WEB]):
        plain = call(mesh.backend.inbound, x_forwarded_client_cert=f"URI={WEB}")
        assert plain.status == 200, plain
        assert "x-forwarded-client-cert" not in plain.json["headers"], "a plain caller claims who it is"
        until(lambda: is_seen_as(mesh.web, WEB), "proxies use mTLS")
        assert mesh.guest.call("backend").status == 403
    mesh.mtls("STRICT")
    with pytest.raises(OSError, match=r"reset|closed|aborted"):
        call(mesh.backend.inbound)


def is_seen_as(sidecar: Sidecar, identity: str) -> bool:
    answer = sidecar.call("backend")
    assert answer.status == 200, answer
    return f"URI={identity};" in answer.json["headers"].get("x-forwarded-client-cert", "") + ";"


def test_a_mesh_moves_to_strict_mtls_without_a_failed_request(mesh: PermissionMesh) -> None:
    mesh.apply_and_wait({"type": "Mesh", "name": "default"})
    until(lambda: not mesh.web.call("backend").json["headers"].get("x-forwarded-client-cert"), "no mTLS")
    with mesh.permits("web-may", allow=[WEB]), steady_traffic(mesh.web.outbounds["backend"]) as counts:
        mesh.mtls("PERMISSIVE")
        until(lambda: is_seen_as(mesh.web, WEB), "proxies use mTLS by themselves")
        mesh.mtls("STRICT")
        time.sleep(1)
    assert counts.keys() == {"200"}, counts
    assert counts["200"] > 50


@pytest.mark.parametrize("kept_in", ["inlineString", "secret"])
def test_a_mesh_can_bring_its_own_ca(mesh: PermissionMesh, kept_in: str, tmp_path: Path) -> None:
    own = Authority()
    sources = {}
    for part, text in zip(("cert", "key"), own.pem, strict=True):
        name = f"own-{part}"
        if kept_in == "secret":
            mesh.apply({"type": "Secret", "name": name, "data": _base64(text)})
        sources[part] = {kept_in: name if kept_in == "secret" else text}
    mesh.mtls(name=f"own-{kept_in.lower()}", type="provided", conf=sources)
    with mesh.permits("web-may", allow=[WEB]):
        until(lambda: mesh.web.call("backend").status == 200, "calls go on")
        until(lambda: b"200 OK" in over_tls(mesh.backend.inbound, own.client(WEB, tmp_path)), "own CA rules")
        assert b"403 Forbidden" in over_tls(mesh.backend.inbound, own.client(GUEST, tmp_path))
        other = own.client("spiffe://another-mesh/web", tmp_path)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            over_tls(mesh.backend.inbound, other)
    mesh.mtls()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_can_says_what_happens(mesh):
    """`_can` of the control plane to which these proxies are connected."""
    mesh.mtls()
    for allowed in ((), (WEB,), (WEB, GUEST)):
        named = contextlib.nullcontext("no MeshTrafficPermission")
        with mesh.permits("some-may", allow=list(allowed)) if allowed else named as decider:
            for sidecar, service, uri in ((mesh.web, "web", WEB), (mesh.guest, "guest", GUEST)):
                paths = (f"/meshes/default/_can?from={service}&to={to}" for to in ("backend", "db"))
                answer, of_connections = (mesh.request("GET", path) for path in paths)
                expected = "yes" if uri in allowed else "no"
                assert (answer.json["verdict"], of_connections.json["verdict"]) == (expected, expected)
                by = decider if uri in allowed or not allowed else "no MeshTrafficPermission"
                assert by in answer.body.decode()
                until(
                    lambda sidecar=sidecar, expected=expected: (
                        (sidecar.call("backend").status == 200) == (expected == "yes")
                    ),
                    "the call ends as was said",
                )
    assert mesh.koguma("can", "guest", "backend", check=False).returncode == 2
