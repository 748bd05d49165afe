"""Certificates and CAs change under load, and nobody notices."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.build import allow_all
from tests.http_client import Response
from tests.live_mesh import LiveMesh, Sidecar, TcpEcho, echoed_bytes, load, steady_traffic
from tests.waiting import until

pytestmark = pytest.mark.slow

SHORTEST = "10s"  # that a certificate can live: it is renewed after four fifths of that


def ca(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "builtin", "dpCert": {"rotation": {"expiration": SHORTEST}}, **more}


def mtls(enabled: str, *names: str) -> dict[str, Any]:
    field = {"enabledBackend": enabled, "backends": [ca(name) for name in names]}
    return {"type": "Mesh", "name": "default", "mtls": field}


class CertificateHistory:
    """The certificates that a proxy's Envoy has had."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self.own: dict[str, None] = {}  # serial numbers, in order
        self.trusted: set[str] = set()  # now

    def look(self) -> None:
        certificates = json.loads(self._sidecar.admin("/certs"))["certificates"]
        # One without a chain is the CA of the connection to the control plane.
        pairs = [pair for pair in certificates if pair["cert_chain"]]
        self.own |= dict.fromkeys(leaf["serial_number"] for pair in pairs for leaf in pair["cert_chain"])
        self.trusted = {ca["serial_number"] for pair in pairs for ca in pair["ca_cert"]}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    with LiveMesh(tmp_path_factory.mktemp("rotation")) as mesh:
        mesh.delete("meshretries", "mesh-retry-all-default")  # a second try would hide what failed
        mesh.apply(mtls("ca-1", "ca-1"))
        mesh.apply(allow_all())
        yield mesh


def test_certificates_and_cas_rotate_without_a_failed_call_or_a_dropped_connection(mesh: LiveMesh) -> None:
    echo = TcpEcho()
    backend = mesh.sidecar("backend-1", "backend", wait=False)
    database = mesh.sidecar("db-1", "db", protocol="tcp", target=echo.port, wait=False)
    web = mesh.sidecar("web-1", "web", serves=False, outbounds=("backend", "db"), wait=False)
    for sidecar in (backend, database, web):
        sidecar.wait_for_output("is ready")
    until(lambda: web.call("backend").status == 200, "web reaches backend")
    until(lambda: echoed_bytes(web.outbounds["db"]) == b"hello", "web reaches db")
    histories = [CertificateHistory(sidecar) for sidecar in (backend, database, web)]

    def look() -> None:
        time.sleep(0.1)
        for history in histories:
            history.look()

    look()
    (first,) = histories[0].trusted
    with (
        steady_traffic(web.outbounds["backend"]) as requests,
        load(lambda: handshake(web.outbounds["db"]), 1) as connections,
        socket.create_connection(("127.0.0.1", web.outbounds["db"]), 60) as open_all_the_time,
    ):
        mesh.apply(mtls("ca-2", "ca-1", "ca-2"))  # added and chosen in one write
        trust(histories, look, 2)
        issued_before = [len(history.own) for history in histories]
        until(lambda: look() or more(histories, issued_before), "the new CA issues")
        mesh.apply(mtls("ca-2", "ca-2"))
        trust(histories, look, 1)
        open_all_the_time.sendall(b"still here")
        assert open_all_the_time.recv(100) == b"still here"
    echo.stop()
    assert all(history.trusted == histories[0].trusted != {first} for history in histories)
    # The one from before, one of the new CA, and what was renewed meanwhile because it grew old.
    assert all(len(history.own) >= 4 for history in histories), [len(history.own) for history in histories]
    assert requests.keys() == {"200"}, requests
    assert connections.keys() == {"200"}, connections
    assert min(requests["200"], connections["200"]) > 300


def handshake(port: int) -> Response:
    """A call that no connection between the proxies is kept for."""
    return Response(200 if echoed_bytes(port) == b"hello" else 0, {}, b"")


def trust(histories: list[CertificateHistory], look: Any, n_cas: int) -> None:
    until(
        lambda: look() or all(len(history.trusted) == n_cas for history in histories),
        f"{n_cas} CAs are trusted",
    )


def more(histories: list[CertificateHistory], than: list[int]) -> bool:
    return all(len(history.own) > before for history, before in zip(histories, than, strict=True))
