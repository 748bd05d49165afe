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
    given = {"enabledBackend": enabled, "backends": [ca(name) for name in names]}
    return {"type": "Mesh", "name": "default", "mtls": given}


class Seen:
    """The certificates that a proxy's Envoy has had."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self.own: dict[str, None] = {}  # serial numbers, in order
        self.trusted: set[str] = set()  # now

    def look(self) -> None:
        shown = json.loads(self._sidecar.admin("/certs"))["certificates"]
        found = [each for each in shown if each["cert_chain"]]  # else it is how it knows the control plane
        self.own |= dict.fromkeys(each["serial_number"] for one in found for each in one["cert_chain"])
        self.trusted = {each["serial_number"] for one in found for each in one["ca_cert"]}


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
    for each in (backend, database, web):
        each.wait_for_output("is ready")
    until(lambda: web.call("backend").status == 200, "web reaches backend")
    until(lambda: echoed_bytes(web.outbounds["db"]) == b"hello", "web reaches db")
    seen = [Seen(each) for each in (backend, database, web)]

    def look() -> None:
        time.sleep(0.1)
        for each in seen:
            each.look()

    look()
    (first,) = seen[0].trusted
    with (
        steady_traffic(web.outbounds["backend"]) as requests,
        load(lambda: handshake(web.outbounds["db"]), 1) as connections,
        socket.create_connection(("127.0.0.1", web.outbounds["db"]), 5) as open_all_the_time,
    ):
        mesh.apply(mtls("ca-2", "ca-1", "ca-2"))  # added and chosen in one write
        trust(seen, look, 2)
        issued_before = [len(each.own) for each in seen]
        until(lambda: look() or more(seen, issued_before), "the new CA issues")
        mesh.apply(mtls("ca-2", "ca-2"))
        trust(seen, look, 1)
        open_all_the_time.sendall(b"still here")
        assert open_all_the_time.recv(100) == b"still here"
    echo.stop()
    assert all(each.trusted == seen[0].trusted != {first} for each in seen)
    # The one from before, one of the new CA, and what was renewed meanwhile because it grew old.
    assert all(len(each.own) >= 4 for each in seen), [len(each.own) for each in seen]
    assert requests.keys() == {"200"}, requests
    assert connections.keys() == {"200"}, connections
    assert min(requests["200"], connections["200"]) > 1000


def handshake(port: int) -> Response:
    """A call that no connection between the proxies is kept for."""
    return Response(200 if echoed_bytes(port) == b"hello" else 0, {}, b"")


def trust(seen: list[Seen], look: Any, n_cas: int) -> None:
    until(lambda: look() or all(len(each.trusted) == n_cas for each in seen), f"{n_cas} CAs are trusted", 40)


def more(seen: list[Seen], than: list[int]) -> bool:
    return all(len(each.own) > before for each, before in zip(seen, than, strict=True))
