"""Two real proxies on one port: calls to one are never answered by the other, and everybody is told."""

import contextlib
import http.client
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests import build
from tests.http_client import call
from tests.live_mesh import Echo, LiveMesh, Sidecar
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

N_CALLS = 40


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    # Virtual addresses that any program may bind.
    with LiveMesh(tmp_path_factory.mktemp("ports"), mesh_service_cidr="127.241.0.0/16") as running:
        yield running


@pytest.fixture(scope="module")
def api(mesh: LiveMesh) -> Sidecar:
    return mesh.sidecar("api-1", "api")


@pytest.fixture(scope="module")
def client(mesh: LiveMesh, api: Sidecar) -> Sidecar:
    made = mesh.sidecar("client-1", "client", outbounds=["api"], serves=False)
    until(lambda: made.call("api").status == 200, f"{api.name} answers")
    return made


def answered(client: Sidecar) -> Counter[str]:
    """Who answers calls to `api`, each on a connection of its own."""
    return Counter(client.call("api").headers.get("x-from", "") for _ in range(N_CALLS))


def dataplane_on(name: str, port: int, target: int) -> dict[str, Any]:
    return build.dataplane(name, inbound=[build.inbound(name, port, servicePort=target)])


def test_a_second_proxy_on_the_port_does_not_start(mesh: LiveMesh, api: Sidecar, client: Sidecar):
    other = mesh.sidecar("other-1", "other", flags=("--port", str(api.inbound)), wait=False)
    assert other._popen.wait(60) == 1
    assert f"cannot listen on 127.0.0.1:{api.inbound}: envoy (process {api.envoy_pid()})" in other.output
    assert "choose another port with --port" in other.output
    assert answered(client) == {"api-1": N_CALLS}
    assert "other-1" not in mesh.proxies()


@pytest.mark.expected_errors("Address already in use")
def test_an_envoy_does_not_share_the_port_and_all_are_told(mesh: LiveMesh, api: Sidecar, client: Sidecar):
    """The Dataplane is stored, so that `dp run` cannot know the port before its Envoy does."""
    service = Echo(name="rival")
    mesh.apply(dataplane_on("rival", api.inbound, service.port))
    rival = mesh.sidecar("rival", serves=False, wait=False)
    try:
        rival.wait_for_output(
            f"is not ready: it cannot listen on 127.0.0.1:{api.inbound}: Address already in use"
        )
        assert f"by envoy (process {api.envoy_pid()}); stop that" in rival.output
        until(lambda: mesh.proxies()["rival"]["state"] == "nack")
        assert mesh.proxies()["api-1"]["state"] == "synced"
        assert answered(client) == {"api-1": N_CALLS}
        checked = mesh.koguma("check", check=False)
        assert checked.returncode == 1
        assert f"are both reached at 127.0.0.1:{api.inbound}" in checked.stdout
        assert "Address already in use" in checked.stdout
        assert " is ready" not in rival.output
    finally:
        rival.stop()
        mesh.delete("dataplanes", "rival")
        service.stop()
    until(lambda: "rival" not in mesh.koguma("check", check=False).stdout)


@pytest.mark.expected_errors("Address already in use")
def test_one_port_for_the_metrics_of_two_proxies_is_told_and_stops_no_calls(
    mesh: LiveMesh, api: Sidecar, client: Sidecar
):
    port = free_port()
    backend = {"type": "Prometheus", "prometheus": {"port": port}}
    default = {"default": {"backends": [backend]}}
    # One after the other: two Envoys that bind in the same moment both can, and then one fails to listen.
    first = {"kind": "MeshSubset", "tags": {"kuma.io/service": "api"}}
    mesh.apply_and_wait({"type": "MeshMetric", "name": "all", "spec": {"targetRef": first, **default}})
    mesh.apply({"type": "MeshMetric", "name": "all", "spec": default})
    until(lambda: sorted(refused_metrics(mesh, port)) == [False, True], "one of the two has the port")
    late = mesh.sidecar("late-1", "late")
    assert f"cannot be scraped: it cannot listen on 127.0.0.1:{port}: Address already in use" in late.output
    assert call(late.inbound).status == 200
    assert answered(client) == {"api-1": N_CALLS}
    assert (
        f"cannot bind '127.0.0.1:{port}': Address already in use" in mesh.koguma("check", check=False).stdout
    )
    mesh.delete("meshmetrics", "all")
    until(lambda: not any(refused_metrics(mesh, port)))
    late.stop()


def refused_metrics(mesh: LiveMesh, port: int) -> list[bool]:
    """Whether the port was refused to each proxy."""
    return [f"127.0.0.1:{port}" in str(each["quarantined"]) for each in mesh.proxies().values()]


def test_an_outbound_that_leads_nowhere_is_said_at_the_start_with_the_nearest_name(
    mesh: LiveMesh, api: Sidecar
):
    lost = mesh.sidecar("lost-1", "lost", outbounds=["apii"], serves=False)
    warning = f'the outbound on port {lost.outbounds["apii"]} of Dataplane "lost-1"'
    assert f"koguma dp: lost-1 (mesh default) warning: {warning}" in lost.output
    assert 'there is no MeshService "apii"; did you mean "api"?' in lost.output
    until(lambda: warning in mesh.koguma("check").stdout)
    assert warning in mesh.koguma("inspect", "dataplane", "lost-1").stdout
    assert lost.output.index("leads nowhere") < lost.output.index("is ready")
    lost.stop()


def test_two_proxies_on_one_machine_both_answer_dns_and_lead_to_services(mesh: LiveMesh, api: Sidecar):
    flags = ("--bind-outbounds", "--dns", "--dns-upstream", "127.0.0.1:9")
    one, two = (mesh.sidecar(f"named-{n}", "named", flags=flags) for n in (1, 2))
    ports = {each.output.rpartition("; answers DNS at 127.0.0.1:")[2].split()[0] for each in (one, two)}
    assert len(ports) == 2
    service = mesh.request("GET", "/meshes/default/meshservices/api").json
    place = service["status"]["vips"][0]["ip"], service["spec"]["ports"][0]["port"]
    for each in (one, two):  # through both, and through the second alone
        assert {answer(*place) for _ in range(10)} == {api.name}
        assert each.stop() == 0


def answer(address: str, port: int) -> str:
    """Who answers a call to an address."""
    with contextlib.closing(http.client.HTTPConnection(address, port, timeout=60)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().headers["x-from"]


def test_a_service_can_be_called_through_one_more_port_while_the_proxy_runs(mesh: LiveMesh, api: Sidecar):
    ports = [free_port(), free_port()]

    def calling(*ports: int) -> dict[str, Any]:
        outbound = [{"port": port, "tags": {"kuma.io/service": "api"}} for port in ports]
        return {
            "type": "Dataplane",
            "name": "grows",
            "networking": {"address": "127.0.0.1", "outbound": outbound},
        }

    mesh.apply(calling(ports[0]))
    mesh.sidecar("grows", serves=False)
    mesh.apply_and_wait(calling(*ports))
    assert [call(port).headers.get("x-from") for port in ports] == ["api-1", "api-1"]
    mesh.apply_and_wait(calling(ports[1]))
    assert call(ports[1]).headers.get("x-from") == "api-1"
