"""Proxies that Kuma's own agent runs, beside ours: they serve, are measured, and end without a lost call."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests import build
from tests.http_client import call
from tests.kuma_dp import KumaDp
from tests.live_mesh import Echo, LiveMesh, Sidecar, steady_traffic
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow


class MixedMesh(LiveMesh):
    """Two proxies of backend, one of them of Kuma's agent; web calls them."""

    web: Sidecar
    backend: KumaDp
    service: Echo
    inbound: int
    metrics_port: int

    def names(self) -> set[str]:
        """Who answers."""
        return {self.web.call("backend").headers.get("x-from", "") for _ in range(10)}

    def state(self, name: str) -> Any:
        """What the first inbound of a Dataplane says about itself."""
        answer = self.request("GET", f"/meshes/{self.name}/dataplanes/{name}")
        (inbound,) = answer.json["networking"]["inbound"]
        return inbound.get("state"), (inbound.get("health") or {}).get("ready")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedMesh]:
    with MixedMesh(tmp_path_factory.mktemp("mixed")) as mesh, contextlib.ExitStack() as stack:
        mesh.service, mesh.inbound, mesh.metrics_port = Echo(name="kuma-1"), free_port(), free_port()
        stack.callback(mesh.service.stop)
        tcp = {"type": "Tcp", "tcp": {"address": "127.0.0.1:1"}}
        backends = [{"type": "Prometheus", "prometheus": {"port": mesh.metrics_port, "path": "/all"}}]
        only_kuma = {"kind": "Dataplane", "labels": {"kuma.io/display-name": "kuma-1"}}
        mesh.apply(
            build.mesh_service("backend", build.port(name="http", targetPort="http")),
            build.policy(
                "MeshAccessLog", "all", targetRef=only_kuma, rules=[{"default": {"backends": [tcp]}}]
            ),
            build.policy("MeshMetric", "all", targetRef=only_kuma, default={"backends": backends}),
        )
        admin = {"port": free_port()}
        inbound = build.inbound("backend", mesh.inbound, servicePort=mesh.service.port, name="http")
        document = build.dataplane("kuma-1", inbound=[inbound], admin=admin)
        mesh.backend = KumaDp(mesh, document)
        stack.callback(mesh.backend.close)
        mesh.web = mesh.sidecar("web-1", "web", serves=False, outbounds=("backend",), wait=False)
        mesh.sidecar("ours-1", "backend")
        mesh.web.wait_for_output("is ready")
        mesh.backend.wait()
        until(lambda: mesh.names() == {"kuma-1", "ours-1"}, "both proxies answer")
        yield mesh


def test_the_agent_finds_envoys_admin_on_a_port_of_the_loopback_address(mesh):
    assert mesh.backend.bootstrap["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    assert mesh.backend.bootstrap["node"]["metadata"]["dataplane.admin.port"] == str(mesh.backend.admin_port)
    assert mesh.backend.admin("/server_info").json["state"] == "LIVE"
    assert not mesh.proxies()["kuma-1"]["failures"]


def test_metrics_come_from_the_agent_by_the_socket_that_it_has(mesh):
    page = until(lambda: (found := call(mesh.metrics_port, path="/all")).status == 200 and found)
    assert "envoy_cluster_upstream_cx_total" in page.text
    metrics = mesh.backend.mesh_metric_config("/meshmetric").json["observability"]["metrics"]
    assert metrics["backends"] == [{"type": "Prometheus", "name": "default"}]


def test_what_has_no_resource_has_the_internal_names(mesh):
    dump = mesh.backend.admin("/config_dump").text
    names = {name for name in re.findall(r'"(_kuma_\w+)"', dump) if "_permission_" not in name}
    assert names == {
        "_kuma_access_log_sink",
        "_kuma_ads",
        "_kuma_dynamicconfig",
        "_kuma_metrics",
        "_kuma_metrics_prometheus_default",
        "_kuma_readiness",
        "_kuma_route_default",
    }, "no admin listener on the loopback address, where Envoy itself listens"


def test_envoy_listens_where_the_agent_was_told_that_the_kernel_redirects_to(mesh):
    ports = {"inbound": free_port(), "outbound": free_port(), "dns": free_port()}
    config = {
        "ipFamilyMode": "ipv4",
        "redirect": {name: {"enabled": name != "dns", "port": port} for name, port in ports.items()},
    }
    document = build.dataplane("redirected-1", "other", free_port(), admin={"port": free_port()})
    with contextlib.closing(KumaDp(mesh, document, dataplaneConfig=config, dnsPort=free_port())) as proxy:
        proxy.wait()
        listeners = proxy.admin("/listeners?format=json").json["listener_statuses"]
        listening = {
            each["name"]: each["local_address"]["socket_address"]["port_value"]
            for each in listeners
            if "socket_address" in each["local_address"]
        }
    assert listening["_kuma_passthrough_inbound_ipv4"] == ports["inbound"]
    assert listening["_kuma_passthrough_outbound_ipv4"] == ports["outbound"]
    assert not [name for name in listening if "ipv6" in name or "dns" in name]


def test_a_proxy_that_is_told_to_end_loses_no_call(mesh):
    with steady_traffic(mesh.web.outbounds["backend"]) as counts:
        mesh.backend.drain()
        until(lambda: mesh.state("kuma-1") == ("NotReady", False), "the control plane knows that it drains")
        until(lambda: mesh.names() == {"ours-1"}, "nobody calls it any more")
        mesh.backend.close()
        until(lambda: "kuma-1" not in mesh.proxies(), "it has gone")
    assert set(counts) == {"200"}, counts
    until(lambda: mesh.backend.lines, "its access log has come to the agent")
    assert {line["address"] for line in mesh.backend.lines} == {"127.0.0.1:1"}
