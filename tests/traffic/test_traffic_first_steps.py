"""What people try first, on real Envoys: instances on one machine, versions, one thing that is broken.

The tests share one mesh and run in order.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests import build
from tests.http_client import call
from tests.live_mesh import Echo, LiveMesh, Sidecar
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

PERMISSION = build.allow_all("everybody")
BROKEN = build.external_service("broken", extension={"type": "Nowhere", "config": {}})
SPLIT = build.http_route(
    "split",
    build.http_rule(
        "/split",
        backends=[
            build.service_ref("api", weight=1),
            {"kind": "MeshExternalService", "name": "broken", "weight": 1},
        ],
    ),
    to="api",
)


class NewMesh(LiveMesh):
    """Two instances of `api` as one starts them, on ports of their own, without names for these."""

    instances: dict[str, Sidecar]
    web: Sidecar

    def instance(self, name: str, version: str, wait: bool = True) -> Sidecar:  # noqa: FBT001, FBT002
        echo = Echo(name=name)
        self._echoes.append(echo)
        port = ("--port", str(free_port()), "--service-port", str(echo.port), "--protocol", "http")
        flags = (*port, "--tag", f"version={version}")
        return self.sidecar(name, "api", serves=False, flags=flags, wait=wait)

    def answers(self, port: int, n: int = 20, path: str = "/") -> set[Any]:
        """Who answered, or with which status nobody did."""
        found = [call(port, path=path) for _ in range(n)]
        return {each.json["name"] if each.status == 200 else each.status for each in found}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewMesh]:
    with NewMesh(tmp_path_factory.mktemp("first")) as mesh:
        mesh.apply(PERMISSION)
        mesh.instances = {name: mesh.instance(name, "v1", wait=False) for name in ("api-1", "api-2")}
        for each in mesh.instances.values():
            each.wait_for_output("is ready")
        until(lambda: mesh.request("GET", "/meshes/default/meshservices/api").status == 200)
        yield mesh


def _service(mesh: NewMesh) -> Any:
    return mesh.request("GET", "/meshes/default/meshservices/api").json


@pytest.mark.expected_errors("a part of the configuration cannot be built")
def test_a_new_proxy_is_synced_beside_something_that_cannot_be_built(mesh: NewMesh):
    mesh.apply(BROKEN, SPLIT)
    ports = {name: free_port() for name in ("api", "v1", "v2", "broken")}
    tags = {"kuma.io/service": "api"}
    outbounds = [
        {"port": ports["api"], "tags": tags},
        {"port": ports["v1"], "tags": {**tags, "version": "v1"}},
        {"port": ports["v2"], "tags": {**tags, "version": "v2"}},
        {
            "port": ports["broken"],
            "backendRef": {"kind": "MeshExternalService", "name": "broken", "port": 80},
        },
    ]
    inbound = [{"port": free_port(), "servicePort": 1, "tags": {"kuma.io/service": "web"}}]
    networking = {"address": "127.0.0.1", "inbound": inbound, "outbound": outbounds}
    mesh.apply({"type": "Dataplane", "name": "web", "networking": networking})
    mesh.web = mesh.sidecar("web", serves=False)
    mesh.web.outbounds = ports
    until(lambda: mesh.proxies()["web"]["state"] == "synced", "the proxy is synced")
    assert mesh.answers(ports["api"]) == {"api-1", "api-2"}
    assert mesh.answers(ports["broken"], 3) == {503}
    assert mesh.answers(ports["api"], path="/split") == {"api-1", "api-2", 503}
    name = "kri_extsvc_default_default__broken_80"
    shown = mesh.koguma("get", "proxies").stdout
    assert f"web has no cluster {name}:\n" in shown
    assert 'no plugin "Nowhere" is installed' in shown
    checked = mesh.koguma("check", check=False).stdout
    assert f"cluster {name} cannot be built" in checked
    assert "proxies go without it, and have all else" in checked
    mesh.delete_and_wait("meshhttproutes", "split")


def test_what_was_there_stays_when_it_breaks(mesh: NewMesh):
    outside = Echo(name="outside")
    mesh._echoes.append(outside)
    endpoints = [{"address": "127.0.0.1", "port": outside.port}]
    good = {**BROKEN, "spec": {"match": BROKEN["spec"]["match"], "endpoints": endpoints}}
    mesh.apply_and_wait(good)
    until(lambda: mesh.answers(mesh.web.outbounds["broken"], 1) == {"outside"}, "it is mended")
    mesh.apply_and_wait(BROKEN)
    assert mesh.answers(mesh.web.outbounds["broken"], 5) == {"outside"}
    assert "web keeps its former cluster kri_extsvc_default" in mesh.koguma("get", "proxies").stdout
    mesh.delete_and_wait("meshexternalservices", "broken")


def test_two_instances_with_different_ports_are_one_service(mesh: NewMesh):
    (port,) = _service(mesh)["spec"]["ports"]
    assert port["targetPort"] == "http"
    assert mesh.answers(mesh.web.outbounds["api"]) == {"api-1", "api-2"}
    mesh.apply_and_wait(build.mesh(mtls=build.builtin_mtls()))
    until(lambda: mesh.answers(mesh.web.outbounds["api"]) == {"api-1", "api-2"}, "both answer over mTLS")
    stats = mesh.web.stats(r"kri_msvc_default_default__api_\d+\.ssl\.handshake")
    assert sum(stats.values()) > 0


def test_an_outbound_for_a_version_that_is_not_there_reaches_nobody_until_it_comes(mesh: NewMesh):
    ports = mesh.web.outbounds
    assert mesh.answers(ports["v1"]) == {"api-1", "api-2"}
    assert mesh.answers(ports["v2"], 5) == {503}
    mesh.instance("api-3", "v2")
    until(lambda: mesh.answers(ports["v2"], 1) == {"api-3"}, "version 2 answers")
    assert mesh.answers(ports["v2"]) == {"api-3"}
    assert mesh.answers(ports["v1"]) == {"api-1", "api-2"}
    assert mesh.answers(ports["api"], 40) == {"api-1", "api-2", "api-3"}


def test_the_port_of_the_service_stays_when_the_instance_that_had_it_goes(mesh: NewMesh):
    before = _service(mesh)
    (port,) = before["spec"]["ports"]
    (gone,) = [name for name in mesh.instances if _port_of(mesh, name) == port["port"]]
    assert mesh.instances[gone].stop() == 0
    left = {"api-1", "api-2", "api-3"} - {gone}
    until(lambda: mesh.answers(mesh.web.outbounds["api"]) == left, "the others answer")
    mesh.delete("dataplanes", gone)
    mesh.wait_until_synced(mesh.revision())
    after = _service(mesh)
    assert after["spec"]["ports"] == before["spec"]["ports"]
    assert after["status"]["vips"] == before["status"]["vips"]
    assert mesh.answers(mesh.web.outbounds["api"]) == left


def _port_of(mesh: NewMesh, name: str) -> int:
    found = mesh.request("GET", f"/meshes/default/dataplanes/{name}").json
    return int(found["networking"]["inbound"][0]["port"])
