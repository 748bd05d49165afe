"""Traffic between zones on real Envoys: web in east calls backend in west through the ingress of west."""

from pathlib import Path

import pytest

from tests import build
from tests.live_mesh import LiveMesh
from tests.ports import free_port
from tests.sync.test_zones import Federation, _token
from tests.waiting import until

WEST = {"kuma.io/display-name": "backend", "kuma.io/zone": "west"}


def _zone(federation: Federation, directory: Path, name: str) -> LiveMesh:
    token = directory / f"{name}.token"
    token.write_text(_token(federation.top, name))
    return LiveMesh(
        directory / name,
        mode="zone",
        zone_name=name,
        global_address=f"grpcs://127.0.0.1:{federation.sync_port}",
        global_ca=str(directory / "global" / "ca.pem"),
        zone_token_file=str(token),
    )


def _permission(identity: str) -> dict[str, object]:
    allow = [{"spiffeID": {"type": "Exact", "value": identity}}]
    spec = {"rules": [{"default": {"allow": allow}}]}
    return build.document("MeshTrafficPermission", "callers", spec=spec)


def test_a_service_is_called_through_the_ingress_of_its_zone(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tmp_path = tmp_path_factory.mktemp("z")
    federation = Federation(tmp_path)
    permissions = "/meshes/default/meshtrafficpermissions/callers"
    with (
        federation.stack,
        _zone(federation, tmp_path, "east") as east,
        _zone(federation, tmp_path, "west") as west,
    ):
        assert federation.top("PUT", "/meshes/default", build.mesh(mtls=build.builtin_mtls())).status == 200
        assert federation.top("PUT", permissions, _permission("spiffe://default/web")).status == 201
        for zone in (east, west):
            until(
                lambda zone=zone: "mtls" in zone.request("GET", "/meshes/default").text, "the mesh is there"
            )
        ingress = str(free_port())
        token = _token(federation.top, "west", ("ingress",))
        described = ("--proxy-type", "ingress", "--name", "ingress-1", "--port", ingress)
        west._proxy("ingress-1", token, *described)
        backend = west.sidecar("backend-1", "backend", wait=False)
        local = free_port()
        file = tmp_path / "web.yaml"
        outbound = {
            "port": local,
            "backendRef": {"kind": "MeshService", "labels": WEST, "port": backend.inbound},
        }
        file.write_text(str(build.dataplane("web-1", "web", outbound=[outbound])))
        web = east._proxy("web-1", east.service_token("web-1", "web"), "--dataplane-file", str(file))
        web.outbounds = {"backend": local}
        web.wait_for_output("is ready")

        def status() -> int:
            try:
                return web.call("backend").status
            except OSError:
                return 0

        until(lambda: status() == 200, "the call arrives in the other zone")
        assert federation.top("PUT", permissions, _permission("spiffe://default/other")).status == 200
        until(lambda: status() == 403, "the callee denies it")
