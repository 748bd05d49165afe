"""Service probes on real Envoys: nobody calls a proxy whose application does not answer."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests import build
from tests.live_mesh import Echo, LiveMesh, Sidecar, steady_traffic
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow


class ProbedMesh(LiveMesh):
    """Two proxies of backend, one of them with a stored Dataplane, both with probes; web calls them."""

    web: Sidecar
    first: Echo
    second: Echo

    def names(self) -> set[str]:
        """Who answers."""
        return {self.web.call("backend").headers.get("x-from", "") for _ in range(10)}

    def state(self, name: str) -> Any:
        answer = self.request("GET", f"/meshes/{self.name}/dataplanes/{name}")
        (inbound,) = answer.json["networking"]["inbound"]
        return inbound["state"], inbound["health"]["ready"]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbedMesh]:
    with ProbedMesh(tmp_path_factory.mktemp("probed")) as mesh:
        mesh.apply(build.mesh_service("backend", build.port(name="http", targetPort="http")))
        mesh.first, mesh.second = Echo(name="first"), Echo(name="second")
        flags = ("--service-probe",)
        mesh.sidecar("backend-1", "backend", target=mesh.first.port, flags=flags, wait=False)
        mesh.apply(probed_dataplane("backend-2", mesh.second.port))
        mesh.sidecar("backend-2", serves=False, wait=False)
        mesh.web = mesh.sidecar("web-1", "web", serves=False, outbounds=("backend",))
        until(lambda: mesh.names() == {"first", "second"}, "both proxies answer")
        yield mesh
        mesh.first.stop()


def probed_dataplane(name: str, service_port: int) -> dict[str, Any]:
    probe = {"interval": "0.2s", "timeout": "1s", "unhealthyThreshold": 2, "tcp": {}}
    served = {"servicePort": service_port, "name": "http", "serviceProbe": probe}
    return build.dataplane(name, inbound=[build.inbound("backend", free_port(), **served)])


def test_a_proxy_whose_application_is_down_is_not_called_until_it_is_up_again(mesh):
    assert mesh.state("backend-1") == mesh.state("backend-2") == ("Ready", True)
    port = mesh.second.port
    mesh.second.stop()
    until(lambda: mesh.state("backend-2") == ("NotReady", False), "the control plane knows that it is down")
    until(lambda: mesh.names() == {"first"}, "nobody calls it any more")
    shown = mesh.koguma("get", "proxies", "-m", "default").stdout
    assert "backend-2: inbound[port=" in shown
    assert f"its application has not answered on 127.0.0.1:{port}" in shown
    assert "NotReady" in mesh.koguma("inspect", "dataplane", "backend-2", "-m", "default").stdout
    rows = [line.split() for line in mesh.koguma("get", "dataplanes", "-m", "default").stdout.splitlines()]
    assert {row[0]: row[3] for row in rows if row[0].startswith("backend")} == {
        "backend-1": "1/1",
        "backend-2": "0/1",
    }
    assert "is not ready: its application has not answered" in mesh.koguma("check").stdout
    with steady_traffic(mesh.web.outbounds["backend"]) as counts:
        again = Echo(name="again", port=port)
        until(lambda: mesh.names() == {"first", "again"}, "it is called again")
    again.stop()
    assert set(counts) == {"200"}, counts
