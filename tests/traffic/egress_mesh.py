"""A mesh whose calls to the outside leave through a zone egress, with real Envoys and a TLS server outside.

web, guest ──mTLS + SNI──▶ egress-1 ──TLS──▶ api (HTTP), db (TCP)
"""

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import build
from tests.core.external_servers import AUTHORITY, made
from tests.live_mesh import Echo, LiveMesh, Sidecar, TcpEcho

WEB, GUEST = "spiffe://default/web", "spiffe://default/guest"
API, DB = "extsvc/api", "extsvc/db"
API_SNI = "sni.extsvc.default.default.api.443"


class EgressMesh(LiveMesh):
    """A mesh with an egress, two callers, and two services outside."""

    outside: Echo
    database: TcpEcho
    web: Sidecar
    guest: Sidecar
    out: Sidecar
    layout: str = "egress"

    def route_through_egress(self, *, on: bool = True) -> None:
        self.apply_and_wait(build.mesh(mtls=build.builtin_mtls(), routing={"zoneEgress": on}))

    def external(
        self, name: str, port: int, protocol: str, target: int, **destination: Any
    ) -> dict[str, Any]:
        match = {"type": "InternalVIP", "value": f"{name}.ext", "port": port, "protocol": protocol}
        endpoints = [{"address": "127.0.0.1", "port": target}]
        fields = {"type": "Regular", "endpoints": endpoints, **destination}
        spec = {"match": [match], "destination": fields}
        return {"type": "MeshExternalService", "name": name, "spec": spec}

    def permit(self, *ids: str, **match: Any) -> None:
        allow = [{"spiffeID": {"type": "Exact", "value": each}, **match} for each in ids]
        spec = {"rules": [{"default": {"allow": allow}}]}
        self.apply_and_wait({"type": "MeshTrafficPermission", "name": "callers", "spec": spec})

    def calls_through(self, name: str, section: int) -> int:
        """How many connections the egress has made to a service."""
        stat = f"cluster.kri_extsvc_default_default__{name}_{section}.upstream_cx_total"
        return self.out.stats(f"^{stat}$").get(stat, 0)


def _server_tls(directory: Path) -> ssl.SSLContext:
    pair = made("api", ("127.0.0.1", "api.example"), AUTHORITY)
    file = directory / "api.pem"
    file.write_text(pair.pem + pair.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


@contextlib.contextmanager
def started(directory: Path) -> Iterator[EgressMesh]:
    """The mesh, with all its processes; web may call everything."""
    db = TcpEcho()
    with EgressMesh(directory) as mesh:
        mesh.outside, mesh.database = Echo(tls=_server_tls(directory), name="api"), db
        mesh._echoes.append(mesh.outside)
        mesh.delete("meshretries", "mesh-retry-all-default")  # a second try would hide what failed
        tls = {"enabled": True, "caCert": {"inlineString": AUTHORITY.pem}}
        mesh.apply(
            build.mesh(mtls=build.builtin_mtls(), routing={"zoneEgress": True}),
            mesh.external("api", 443, "http", mesh.outside.port, tls=tls),
            mesh.external("db", 5432, "tcp", db.port),
            build.mesh_service("backend"),  # which nobody serves
        )
        mesh.out = mesh.egress(wait=False)
        mesh.web = mesh.sidecar("web-1", "web", serves=False, outbounds=(API, DB, "backend"), wait=False)
        mesh.guest = mesh.sidecar("guest-1", "guest", serves=False, outbounds=(API, DB), wait=False)
        for proxy in (mesh.out, mesh.web, mesh.guest):
            proxy.wait_for_output("is ready")
        mesh.permit(WEB)
        yield mesh
    db.stop()
