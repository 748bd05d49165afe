"""Callers of a gateway of another mesh on real Envoys: whom they trust, who they are, and a rotation.

The gateway is a server of the test's own, with certificates of CAs that the other mesh was given.
"""

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h2.config
import h2.connection
import h2.events
import pytest
from cryptography import x509

from tests.authority import Authority
from tests.live_mesh import LiveMesh, Sidecar, steady_traffic
from tests.waiting import until

pytestmark = pytest.mark.slow

HOST = "orders.shop"
OUTBOUND = f"extsvc/{HOST}"
GATEWAY = "spiffe://shop/edge"


# Certificates are shown when connections begin.
NEW_CONNECTIONS = {
    "type": "MeshTimeout",
    "name": "short",
    "spec": {
        "to": [
            {
                "targetRef": {"kind": "MeshExternalService", "name": HOST},
                "default": {"http": {"maxConnectionDuration": "300ms"}},
            }
        ]
    },
}


class Seen(NamedTuple):
    """What the gateway sees of a request."""

    server_name: str
    identities: tuple[str, ...]
    headers: dict[str, str]
    shown: ssl.SSLContext


class GatewayServer:
    """Speaks HTTP/2 over TLS as a gateway does, and asks callers for certificates of one CA."""

    def __init__(self, callers: Authority) -> None:
        self._callers = callers
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.seen: list[Seen] = []
        self.context: ssl.SSLContext
        threading.Thread(target=self._accept, daemon=True).start()

    def present(self, authority: Authority, folder: Path, identity: str = GATEWAY) -> None:
        """From now on, show a certificate of this CA with this identity on new connections."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        file = folder / f"{len(list(folder.iterdir()))}.pem"  # which the authority is about to write
        authority.client(identity, folder)
        context.load_cert_chain(file)
        context.load_verify_locations(cadata=self._callers.pem[0])
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["kuma"])
        self.context = context

    def stop(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was stopped
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        names: list[str] = []
        context = self.context
        context.sni_callback = lambda _socket, name, _context: names.append(name or "")
        with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
            certificate = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
            found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            uris = found.value.get_values_for_type(x509.UniformResourceIdentifier)
            self._answer(secured, Seen(names[0] if names else "", tuple(uris), {}, context))

    def _answer(self, connection: ssl.SSLSocket, caller: Seen) -> None:
        server = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="latin-1")
        )
        server.initiate_connection()
        connection.sendall(server.data_to_send())
        while data := connection.recv(65536):
            for event in server.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    headers = {str(name): str(value) for name, value in event.headers}
                    self.seen.append(caller._replace(headers=headers))
                    server.send_headers(event.stream_id, [(":status", "200")], end_stream=True)
            connection.sendall(server.data_to_send())


class CrossMesh(LiveMesh):
    """A mesh that calls a gateway of mesh shop, and the gateway."""

    cas: dict[str, Authority]
    server: GatewayServer
    web: Sidecar


def mesh_of(name: str, enabled: str, **cas: Authority) -> dict[str, Any]:
    backends = [
        {
            "name": ca,
            "type": "provided",
            "conf": {
                part: {"inlineString": text} for part, text in zip(("cert", "key"), own.pem, strict=True)
            },
        }
        for ca, own in cas.items()
    ]
    return {"type": "Mesh", "name": name, "mtls": {"enabledBackend": enabled, "backends": backends}}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrossMesh]:
    with CrossMesh(tmp_path_factory.mktemp("m")) as mesh, contextlib.ExitStack() as stack:
        mesh.cas = {name: Authority() for name in ("default", "first", "second")}
        mesh.server = GatewayServer(mesh.cas["default"])
        stack.callback(mesh.server.stop)
        mesh.server.present(mesh.cas["first"], tmp_path_factory.mktemp("c"))
        listener = {"port": mesh.server.port, "protocol": "HTTP", "hostname": HOST, "crossMesh": True}
        gateway = {"type": "BUILTIN", "tags": {"kuma.io/service": "edge"}}
        mesh.apply(
            mesh_of("default", "own", own=mesh.cas["default"]),
            mesh_of("shop", "first", first=mesh.cas["first"]),
            {
                "type": "MeshGateway",
                "mesh": "shop",
                "name": "edge",
                "selectors": [{"match": gateway["tags"]}],
                "conf": {"listeners": [listener]},
            },
            {
                "type": "Dataplane",
                "mesh": "shop",
                "name": "edge-1",
                "networking": {"address": "127.0.0.1", "gateway": gateway},
            },
        )
        mesh.delete("meshretries", "mesh-retry-all-default")  # a second try would hide what failed
        mesh.apply(NEW_CONNECTIONS)
        mesh.web = mesh.sidecar("web-1", "web", serves=False, outbounds=(OUTBOUND,))
        until(lambda: mesh.web.call(OUTBOUND).status == 200, "web reaches the gateway of the other mesh")
        yield mesh


def trusted(sidecar: Sidecar) -> set[int]:
    """The serial numbers of all CAs that an Envoy has beside its own certificate."""
    certificates = json.loads(sidecar.admin("/certs"))["certificates"]
    pairs = [pair for pair in certificates if pair["cert_chain"]]
    return {int(ca["serial_number"], 16) for pair in pairs for ca in pair["ca_cert"]}


def serial(authority: Authority) -> int:
    return authority.certificate.serial_number


def test_a_caller_shows_its_own_identity_and_asks_for_the_host(mesh: CrossMesh) -> None:
    assert mesh.web.call(OUTBOUND, path="/a?b=c").status == 200
    seen = mesh.server.seen[-1]
    assert seen.server_name == HOST
    assert seen.identities[0] == "spiffe://default/web"
    assert seen.headers[":authority"] == HOST
    assert seen.headers[":path"] == "/a?b=c"


def test_it_is_shown_by_inspect_and_not_in_lists(mesh: CrossMesh) -> None:
    layout = mesh.request("GET", "/meshes/default/dataplanes/web-1/_layout").json
    name = f"kri_extsvc_default_default__{HOST}_{mesh.server.port}"
    assert [each["kri"] for each in layout["outbounds"]] == [name]
    answer = mesh.request("GET", f"/meshes/default/dataplanes/web-1/_outbounds/{name}/_policies")
    assert answer.status == 200, answer.text
    assert mesh.request("GET", "/meshes/default/meshexternalservices").json["items"] == []
    assert mesh.request("GET", f"/meshes/default/meshexternalservices/{HOST}").status == 404
    explained = mesh.koguma("explain", "dataplane", "web-1", "--to", HOST)
    assert "maxConnectionDuration" in explained.stdout


def test_only_who_calls_another_mesh_gets_its_cas(mesh: CrossMesh) -> None:
    other = mesh.sidecar("api-1", "api", outbounds=("web",))
    until(lambda: serial(mesh.cas["default"]) in trusted(other), "its certificate")
    assert "mesh_ca:secret:shop" in mesh.web.admin("/config_dump?resource=dynamic_active_secrets")
    assert "mesh_ca:secret:shop" not in other.admin("/config_dump?resource=dynamic_active_secrets")
    assert {serial(mesh.cas["default"])} == trusted(other)


@pytest.mark.parametrize(
    ("ca", "identity"),
    [("first", "spiffe://shop/other"), ("first", "spiffe://default/edge"), ("default", GATEWAY)],
    ids=["another service", "another mesh", "of the caller's CA"],
)
def test_nobody_else_is_taken_for_the_gateway(
    mesh: CrossMesh, tmp_path: Path, ca: str, identity: str
) -> None:
    mesh.server.present(mesh.cas[ca], tmp_path, identity)
    until(lambda: mesh.web.call(OUTBOUND).status == 503, "no call")
    n_seen = len(mesh.server.seen)
    assert [mesh.web.call(OUTBOUND).status for _ in range(3)] == [503] * 3
    assert len(mesh.server.seen) == n_seen
    mesh.server.present(mesh.cas["first"], tmp_path)
    until(lambda: mesh.web.call(OUTBOUND).status == 200, "the gateway is called again")


def test_a_ca_of_the_other_mesh_rotates_without_a_failed_call(mesh: CrossMesh, tmp_path: Path) -> None:
    first, second = mesh.cas["first"], mesh.cas["second"]
    with steady_traffic(mesh.web.outbounds[OUTBOUND]) as counts:
        mesh.apply(mesh_of("shop", "second", first=first, second=second))
        until(lambda: {serial(first), serial(second)} <= trusted(mesh.web), "both CAs")
        mesh.server.present(second, tmp_path)
        until(lambda: n_shown(mesh) >= 20, "calls with the new one")
        mesh.apply_and_wait(mesh_of("shop", "second", second=second))
    assert counts.keys() == {"200"}


def n_shown(mesh: CrossMesh) -> int:
    """How many calls came over connections that began with the certificate that is shown now."""
    return sum(seen.shown is mesh.server.context for seen in list(mesh.server.seen))


def is_called(mesh: CrossMesh) -> bool:
    try:
        return mesh.web.call(OUTBOUND).status == 200
    except OSError:
        return False


def test_a_mesh_that_loses_mtls_is_called_no_more(mesh: CrossMesh) -> None:
    until(lambda: mesh.web.call(OUTBOUND).status == 200, "the gateway is called")
    mesh.apply({"type": "Mesh", "name": "shop"})
    until(lambda: not is_called(mesh), "it is called no more")
    n_seen = len(mesh.server.seen)
    assert not any(is_called(mesh) for _ in range(5))
    assert len(mesh.server.seen) == n_seen
