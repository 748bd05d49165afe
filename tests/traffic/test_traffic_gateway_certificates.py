"""Certificates of a gateway on a real Envoy: chosen by name and key, rotated under load, one bad one alone.

No listener has a route: that a request is answered with 404 says that its connection was accepted.
"""

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from cryptography import x509

from tests import tls_certificates
from tests.live_mesh import LiveMesh, Sidecar
from tests.ports import free_port
from tests.tls_certificates import DAY, NOW, ecdsa_key, rsa_key, server
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.expected_errors(r"bad\.lan|mended\.lan")]

RSA_ONLY = "ECDHE-RSA-AES128-GCM-SHA256"
LISTENERS = r"listener_manager\.listener_(added|modified|removed)"
LOADED = 4  # clients that connect again and again


class CertifiedMesh(LiveMesh):
    """A mesh with nothing but a gateway."""

    edge: Sidecar
    port: int


def listener(port: int, hostname: str, *secrets: str) -> dict[str, Any]:
    tls = {"mode": "TERMINATE", "certificates": [{"secret": name} for name in secrets]}
    return {"port": port, "protocol": "HTTPS", "hostname": hostname, "tls": tls}


def gateway(port: int) -> dict[str, Any]:
    listeners = [
        listener(port, "*", "any"),
        listener(port, "shop.lan", "shop", "shop-rsa"),
        listener(port, "*.shop.lan", "below"),
        listener(port, "old.lan", "old"),
        listener(port, "bad.lan", "bad"),
        listener(port, "mended.lan", "mended"),
    ]
    match = {"match": {"kuma.io/service": "edge"}}
    return {"type": "MeshGateway", "name": "edge", "selectors": [match], "conf": {"listeners": listeners}}


def secret(name: str, text: str) -> dict[str, Any]:
    data = base64.b64encode(text.encode()).decode()
    return {"type": "Secret", "mesh": "default", "name": name, "data": data}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CertifiedMesh]:
    with CertifiedMesh(tmp_path_factory.mktemp("gc")) as mesh:
        mesh.port = free_port()
        mesh.apply(
            secret("any", server("any.lan")),
            secret("shop", server("shop.lan", "first.lan")),
            secret("shop-rsa", server("shop.lan", key=rsa_key())),
            secret("below", server("*.shop.lan")),
            secret("old", server("old.lan", not_before=NOW - 2 * DAY, not_after=NOW - DAY)),
            secret("bad", tls_certificates.pem(ecdsa_key())),
            gateway(mesh.port),
        )
        mesh.edge = mesh.gateway()
        mesh.wait_until_synced()
        until(lambda: "any.lan" in names(mesh, "nowhere.org"), "the gateway answers")
        yield mesh


@contextlib.contextmanager
def connected(
    mesh: CertifiedMesh, server_name: str | None, *, ciphers: str = "", is_verifying: bool = False
) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cadata=tls_certificates.root_pem())
    if not is_verifying:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if ciphers:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(ciphers)
    with (
        socket.create_connection(("127.0.0.1", mesh.port), 60) as raw,
        context.wrap_socket(raw, server_hostname=server_name) as connection,
    ):
        yield connection


def presented(connection: ssl.SSLSocket) -> x509.Certificate:
    return x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"")


def names(mesh: CertifiedMesh, server_name: str | None, **how: Any) -> list[str]:
    """The names in the certificate that a client gets."""
    with connected(mesh, server_name, **how) as connection:
        found = presented(connection).extensions.get_extension_for_class(x509.SubjectAlternativeName)
        return found.value.get_values_for_type(x509.DNSName)


def refused(mesh: CertifiedMesh, server_name: str) -> str:
    with pytest.raises(ssl.SSLError) as caught, connected(mesh, server_name):
        pass
    return str(caught.value)


def test_the_most_exact_listener_presents_its_own(mesh: CertifiedMesh):
    assert names(mesh, "shop.lan", is_verifying=True) == ["shop.lan", "first.lan"]
    assert names(mesh, "a.shop.lan", is_verifying=True) == ["*.shop.lan"]
    assert names(mesh, "a.b.shop.lan") == ["*.shop.lan"]
    assert names(mesh, "nowhere.org") == ["any.lan"]
    assert names(mesh, None) == ["any.lan"]


def test_clients_of_either_key_type_are_served(mesh: CertifiedMesh):
    assert names(mesh, "shop.lan", ciphers=RSA_ONLY, is_verifying=True) == ["shop.lan"]
    ecdsa = RSA_ONLY.replace("RSA", "ECDSA")
    assert names(mesh, "shop.lan", ciphers=ecdsa, is_verifying=True) == ["shop.lan", "first.lan"]


def test_an_expired_one_is_presented_and_reported(mesh: CertifiedMesh):
    assert names(mesh, "old.lan") == ["old.lan"]
    with pytest.raises(ssl.SSLCertVerificationError), connected(mesh, "old.lan", is_verifying=True):
        pass
    checked = mesh.koguma("check", check=False).stdout
    assert f"listener {mesh.port}:old.lan" in checked
    assert 'Secret "old" has expired at' in checked


def test_a_bad_one_takes_its_own_name_away_until_it_is_mended(mesh: CertifiedMesh):
    assert "UNRECOGNIZED_NAME" in refused(mesh, "bad.lan")  # and is not answered for by `*`
    assert "UNRECOGNIZED_NAME" in refused(mesh, "mended.lan")  # whose Secret is missing
    where = f"listener {mesh.port}:mended.lan"
    assert where in mesh.koguma("lint", "--live", check=False).stdout
    mesh.apply_and_wait(secret("mended", server("mended.lan")))
    until(lambda: names(mesh, "mended.lan") == ["mended.lan"], "the mended name is served")
    assert where not in mesh.koguma("lint", "--live", check=False).stdout
    mesh.delete_and_wait("secrets", "mended")
    until(lambda: is_refused(mesh, "mended.lan"), "its handshakes are refused")
    assert names(mesh, "shop.lan") == ["shop.lan", "first.lan"]


def is_refused(mesh: CertifiedMesh, server_name: str) -> bool:
    try:
        with connected(mesh, server_name):
            return False
    except ssl.SSLError:
        return True


class Clients:
    """Clients that connect and ask all the time; and one connection that stays open."""

    def __init__(self, mesh: CertifiedMesh) -> None:
        self._mesh = mesh
        self._stopped = threading.Event()
        self.failures: list[str] = []
        self.n_answers = 0
        self._threads = [threading.Thread(target=self._run) for _ in range(LOADED)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with connected(self._mesh, "shop.lan", is_verifying=True) as connection:
                    assert asked(connection) == 404
                    self.n_answers += 1
            except (OSError, AssertionError, http.client.HTTPException) as error:
                self.failures.append(repr(error))


def asked(connection: ssl.SSLSocket) -> int:
    plain = http.client.HTTPConnection("127.0.0.1", timeout=60)
    plain.sock = connection
    plain.request("GET", "/", headers={"Host": "shop.lan"})
    response = plain.getresponse()
    response.read()
    return response.status


def test_a_new_one_is_presented_at_once_and_closes_no_connection(mesh: CertifiedMesh):
    before = mesh.edge.stats(LISTENERS)
    with Clients(mesh) as clients, connected(mesh, "shop.lan", is_verifying=True) as kept:
        serials = {presented(kept).serial_number}
        for number in range(5):
            mesh.apply(secret("shop", server("shop.lan", "first.lan", key=ecdsa_key(number % 2))))
            until(lambda: serial(mesh) not in serials, "the new certificate is presented")
            serials.add(serial(mesh))
            assert asked(kept) == 404
    assert clients.failures == []
    assert clients.n_answers > LOADED
    assert mesh.edge.stats(LISTENERS) == before


def serial(mesh: CertifiedMesh) -> int:
    with connected(mesh, "shop.lan", is_verifying=True) as connection:
        return presented(connection).serial_number


def test_no_write_replaces_a_presented_one_by_one_that_cannot_be(mesh: CertifiedMesh, tmp_path: Path):
    before = serial(mesh)
    broken = secret("shop", "nothing")
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(broken))
    for words in (("apply", "-f", str(file)), ("apply", "-f", str(file), "--dry-run")):
        ended = mesh.koguma(*words, check=False)
        assert ended.returncode == 1
        assert f"listener {mesh.port}:shop.lan" in ended.stderr
        assert "missing server certificate; it keeps the stored one" in ended.stderr
    assert serial(mesh) == before


def test_no_key_is_shown(mesh: CertifiedMesh):
    key = tls_certificates.pem(ecdsa_key()).splitlines()[1]
    shown = mesh.edge.admin("/config_dump?include_eds")
    logs = mesh.control_plane.output
    inspected = mesh.request("GET", "/meshes/default/dataplanes/edge-1/_config").text
    assert "cert:secret:default:shop" in shown
    assert not [text for text in (shown, logs, inspected) if key in text]
