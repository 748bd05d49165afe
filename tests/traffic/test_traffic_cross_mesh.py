"""A gateway's listener for other meshes on a real Envoy: who is let in, by whose certificate, and who is not.

Most clients are made by hand: each says who it is with a certificate of a CA that the test holds, or of
nobody's. The listener has no routes at first: 404 says that a request was let in. Last come real sidecars.
"""

import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gateway_clients
import pytest
from gateway_clients import Answer

from tests.authority import Authority
from tests.live_mesh import LiveMesh, Sidecar, load, steady_traffic
from tests.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.expected_errors(r"has no mTLS, by which the gateway")]

ORDERS, OTHER = "orders.shop", "other.shop"
WEB, ADMIN = "spiffe://tea/web", "spiffe://tea/admin"


class TwoMeshes(LiveMesh):
    """A gateway in mesh default, and the CAs of it and of mesh tea."""

    edge: Sidecar
    port: int
    own: Authority
    tea: Authority
    folder: Path

    def write_mesh(self, name: str, **authorities: Authority) -> None:
        """A mesh that trusts these CAs; the last one issues."""
        backends = [
            {
                "name": each,
                "type": "provided",
                "conf": {"cert": {"inlineString": made.pem[0]}, "key": {"inlineString": made.pem[1]}},
            }
            for each, made in authorities.items()
        ]
        mtls = {"enabledBackend": list(authorities)[-1], "backends": backends} if authorities else {}
        self.apply({"type": "Mesh", "name": name, "mtls": mtls})

    def client(self, authority: Authority, *uris: str) -> ssl.SSLContext:
        context = authority.client(uris[0], self.folder, *uris[1:])
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def ask(self, context: ssl.SSLContext, host: str = ORDERS, server_name: str | None = None) -> Answer:
        """One request; a handshake that was refused is an answer with status 0."""
        with (
            socket.create_connection(("127.0.0.1", self.port), gateway_clients.SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=server_name or host) as connection,
        ):
            connection.sendall(f"GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
            received = b""
            while not gateway_clients.is_whole(received) and (data := connection.recv(65536)):
                received += data
        return gateway_clients.parsed(received)

    def is_refused(self, context: ssl.SSLContext) -> bool:
        """Whether the handshake fails; in TLS 1.3 a client learns that when it reads."""
        try:
            return self.ask(context).status == 0
        except (ssl.SSLError, ConnectionError):
            return True


def gateway(port: int) -> dict[str, Any]:
    listeners = [
        {"name": "orders", "port": port, "protocol": "HTTP", "hostname": ORDERS, "crossMesh": True},
        {"name": "other", "port": port, "protocol": "HTTP", "hostname": OTHER, "crossMesh": True},
    ]
    match = {"match": {"kuma.io/service": "edge"}}
    return {"type": "MeshGateway", "name": "edge", "selectors": [match], "conf": {"listeners": listeners}}


def permission(name: str, listener: str, **lists: Any) -> dict[str, Any]:
    ref = {"kind": "MeshGateway", "name": "edge", "sectionName": listener}
    conf = {
        field: [{"spiffeID": {"type": "Exact", "value": each}} for each in lists[field]] for field in lists
    }
    spec = {"targetRef": ref, "rules": [{"default": conf}]}
    return {"type": "MeshTrafficPermission", "name": name, "spec": spec}


def everybody() -> dict[str, Any]:
    entry = {"targetRef": {"kind": "Mesh"}, "default": {"action": "Allow"}}
    return {"type": "MeshTrafficPermission", "name": "everybody", "spec": {"from": [entry]}}


@pytest.fixture(scope="module")
def meshes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoMeshes]:
    with TwoMeshes(tmp_path_factory.mktemp("xm")) as meshes:
        meshes.folder = tmp_path_factory.mktemp("certs")
        meshes.port, meshes.own, meshes.tea = free_port(), Authority(), Authority()
        meshes.write_mesh("default", ca=meshes.own)
        meshes.write_mesh("tea", ca=meshes.tea)
        meshes.apply(everybody(), permission("web", "orders", allow=[WEB]), gateway(meshes.port))
        meshes.edge = meshes.gateway()
        meshes.wait_until_synced()
        web = meshes.client(meshes.tea, WEB)
        until(lambda: not meshes.is_refused(web), "the gateway answers")
        yield meshes


def test_a_permission_by_identity_lets_a_proxy_of_another_mesh_in(meshes: TwoMeshes) -> None:
    answer = meshes.ask(meshes.client(meshes.tea, WEB, "kuma://kuma.io/service/web"))
    assert (answer.status, answer.header("x-koguma-denied-by")) == (404, None)


def test_who_is_not_allowed_is_told_which_permission_is_missing(meshes: TwoMeshes) -> None:
    answer = meshes.ask(meshes.client(meshes.tea, ADMIN))
    assert (answer.status, answer.header("x-koguma-denied-by")) == (403, "no-permission(deny-by-default)")


def test_a_denial_names_its_policy_and_acts_at_once(meshes: TwoMeshes) -> None:
    web = meshes.client(meshes.tea, WEB)
    meshes.apply_and_wait(permission("no-web", "orders", deny=[WEB]))
    answer = meshes.ask(web)
    assert answer.status == 403
    assert "no-web" in (answer.header("x-koguma-denied-by") or "")
    meshes.delete_and_wait("meshtrafficpermissions", "no-web")
    assert meshes.ask(web).status == 404
    meshes.edge.wait_for_output("denied GET / from spiffe://tea/web")


def test_kind_mesh_in_from_is_the_gateways_own_mesh(meshes: TwoMeshes) -> None:
    """A permission that lets in all of a mesh opens its gateway for no other mesh."""
    meshes.delete_and_wait("meshtrafficpermissions", "web")  # `from` counts where there are no `rules`
    try:
        assert meshes.ask(meshes.client(meshes.own, "spiffe://default/web")).status == 404
        assert meshes.ask(meshes.client(meshes.tea, WEB)).status == 403
    finally:
        meshes.apply_and_wait(permission("web", "orders", allow=[WEB]))


def test_a_permission_for_one_listener_opens_no_other_on_its_port(meshes: TwoMeshes) -> None:
    web = meshes.client(meshes.tea, WEB)
    assert meshes.ask(web, OTHER).status == 403
    assert meshes.ask(web, OTHER, server_name=ORDERS).status == 421, (
        "the chain says who may call, not the host"
    )


@pytest.mark.parametrize(
    "uris",
    [
        ("spiffe://default/web",),
        ("spiffe://default/web", WEB),
        ("spiffe://nowhere/web",),
        ("kuma://kuma.io/service/web", WEB),
        ("https://tea/web",),
    ],
)
def test_a_certificate_is_good_only_for_the_mesh_whose_ca_issued_it(
    meshes: TwoMeshes, uris: tuple[str, ...]
) -> None:
    assert meshes.is_refused(meshes.client(meshes.tea, *uris))


def test_a_second_identity_of_another_mesh_counts_for_nothing(meshes: TwoMeshes) -> None:
    """The CA of mesh default vouches for its own names, and wrongly for one of tea, which is allowed."""
    answer = meshes.ask(meshes.client(meshes.own, "spiffe://default/web", WEB))
    assert answer.status == 403
    assert meshes.ask(meshes.client(meshes.own, f"spiffe://default/web,{WEB}")).status == 403


def test_a_certificate_of_nobody_and_none_at_all_are_refused(meshes: TwoMeshes) -> None:
    assert meshes.is_refused(meshes.client(Authority(), WEB))
    nobody = ssl.create_default_context()
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
    assert meshes.is_refused(nobody)
    plain = gateway_clients.http1(meshes.port, "/", f"host: {ORDERS}")
    assert plain.status == 0, "nothing is said in plain text"


def test_the_gateway_shows_its_identity_in_its_own_mesh(meshes: TwoMeshes) -> None:
    web = meshes.client(meshes.tea, WEB)
    web.load_verify_locations(cadata=meshes.own.pem[0])
    web.verify_mode = ssl.CERT_REQUIRED
    with (
        socket.create_connection(("127.0.0.1", meshes.port), gateway_clients.SECONDS) as plain,
        web.wrap_socket(plain, server_hostname=ORDERS) as connection,
    ):
        certificate = connection.getpeercert() or {}
    assert ("URI", "spiffe://default/edge") in certificate["subjectAltName"]


def test_the_ca_of_another_mesh_changes_without_a_refused_call(meshes: TwoMeshes) -> None:
    old, new = meshes.tea, Authority()
    web, renewed = meshes.client(old, WEB), meshes.client(new, WEB)
    assert meshes.is_refused(renewed)
    with load(lambda: meshes.ask(web), 2) as calls:
        meshes.write_mesh("tea", ca=old, next=new)
        until(lambda: not meshes.is_refused(renewed), "the gateway trusts the new CA")
    assert set(calls) == {"404"}, calls
    meshes.tea = new


def test_a_mesh_that_comes_or_goes_is_admitted_or_refused(meshes: TwoMeshes) -> None:
    coffee = Authority()
    barista = meshes.client(coffee, "spiffe://coffee/barista")
    assert meshes.is_refused(barista)
    meshes.write_mesh("coffee", ca=coffee)
    until(lambda: not meshes.is_refused(barista), "a new mesh is known")
    assert meshes.ask(barista).status == 403
    meshes.write_mesh("coffee")
    until(lambda: meshes.is_refused(barista), "a mesh without mTLS has nobody who could call")


def is_open(meshes: TwoMeshes) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", meshes.port)) == 0


def test_a_mesh_that_loses_mtls_closes_its_port(meshes: TwoMeshes) -> None:
    """What Envoy had of it is not kept: nobody would look after the CAs that it trusts."""
    meshes.write_mesh("default")
    until(lambda: not is_open(meshes), "the port is closed")
    meshes.write_mesh("default", ca=meshes.own)
    web = meshes.client(meshes.tea, WEB)
    until(lambda: not meshes.is_refused(web), "the port is served again")


def serials(proxy: Sidecar) -> set[str]:
    """The certificates of its own that a proxy's Envoy has."""
    certificates = json.loads(proxy.admin("/certs"))["certificates"]
    return {leaf["serial_number"] for pair in certificates for leaf in pair["cert_chain"]}


def test_sidecars_of_another_mesh_call_a_service_through_the_gateway(meshes: TwoMeshes) -> None:
    meshes.delete("meshretries", "mesh-retry-all-default")  # a second try would hide what failed
    port = meshes.sidecar("backend-1", "backend").inbound
    backend = {"kind": "MeshService", "name": "backend", "port": port}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "default": {"backendRefs": [backend]},
    }
    route = {
        "targetRef": {"kind": "MeshGateway", "name": "edge", "sectionName": "orders"},
        "to": [{"targetRef": {"kind": "Mesh"}, "rules": [rule]}],
    }
    short = {"targetRef": {"kind": "Mesh"}, "default": {"http": {"maxConnectionDuration": "300ms"}}}
    meshes.apply(
        {"type": "MeshHTTPRoute", "name": "orders", "spec": route},
        {"type": "MeshTimeout", "mesh": "tea", "name": "short", "spec": {"to": [short]}},  # handshakes
    )
    meshes.name = "tea"
    try:
        meshes.delete("meshretries", "mesh-retry-all-default")
        outbound = f"extsvc/{ORDERS}"
        web = meshes.sidecar("web-1", "web", outbounds=(outbound,))
        admin = meshes.sidecar("admin-1", "admin", outbounds=(outbound,))
    finally:
        meshes.name = "default"
    until(lambda: web.call(outbound).status == 200, "web of tea reaches backend of default")
    assert web.call(outbound, path="/x").json["service"] == "backend"
    denied = admin.call(outbound)
    assert (denied.status, denied.headers["x-koguma-denied-by"]) == (403, "no-permission(deny-by-default)")
    tea, own = Authority(), Authority()
    with steady_traffic(web.outbounds[outbound]) as calls:
        before = serials(web), serials(meshes.edge)
        meshes.write_mesh("tea", next=meshes.tea, last=tea)
        meshes.write_mesh("default", ca=meshes.own, next=own)
        until(lambda: serials(web) != before[0] and serials(meshes.edge) != before[1], "both CAs issue")
        meshes.write_mesh("tea", last=tea)
        meshes.write_mesh("default", next=own)
        meshes.wait_until_synced()
    assert calls.keys() == {"200"}, calls
    meshes.delete_and_wait("meshtrafficpermissions", "web")
    assert web.call(outbound).status == 403
