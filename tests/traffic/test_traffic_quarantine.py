"""A rejected object harms nobody: it is named, and held back where it is refused; the rest flows on."""

import os
import signal
import socket

import pytest

from tests import build
from tests.http_client import call
from tests.live_mesh import LiveMesh
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

PATCH = "kri_mpp_default_default__wild_"


def patch(value, name="wild"):
    change = {"operation": "Patch", "match": {"origin": "outbound"}, "value": value}
    spec = {
        "targetRef": {"kind": "Dataplane", "labels": {"app": "web"}},
        "default": {"appendModifications": [{"cluster": change}]},
    }
    return {"type": "MeshProxyPatch", "name": name, "spec": spec}


# Envoy's rules for fields allow this; Envoy itself does not, in a cluster whose endpoints come by EDS.
REFUSED = {"lbPolicy": "CLUSTER_PROVIDED"}


def route(value):
    return build.http_route("marked", build.http_rule(filters=[build.response_header("x", value)]))


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    with LiveMesh(tmp_path_factory.mktemp("mesh")) as running:
        running.backend = running.sidecar("backend-1", "backend")
        flags = ("--label", "app=web")
        running.web = running.sidecar("web-1", "web", outbounds=["backend"], serves=False, flags=flags)
        running.other = running.sidecar("other-1", "other", outbounds=["backend"], serves=False)
        for client in (running.web, running.other):
            until(lambda client=client: client.call("backend").status == 200)
        yield running


def condition(mesh):
    stored = mesh.request("GET", "/meshes/default/meshproxypatches/wild").json
    return ((stored.get("status") or {}).get("conditions") or [{}])[0]


def test_a_patch_that_envoy_refuses_is_named_and_held_back_where_it_is_refused(mesh):
    mesh.apply(patch(REFUSED))
    web = until(lambda: (found := mesh.proxies()["web-1"])["quarantined"] and found)
    assert web["state"] == "nack"
    (held,) = web["quarantined"]
    assert held["type"] == "cluster"
    assert "cluster provided LB specified" in held["text"]
    until(lambda: mesh.proxies()["web-1"]["quarantined"][0]["policies"] == [PATCH])
    until(lambda: mesh.proxies()["other-1"]["state"] == "synced")
    until(lambda: condition(mesh).get("reason") == "Refused")
    assert 'Dataplane "web-1"' in condition(mesh)["message"]
    shown = mesh.koguma("get", "proxies", check=False).stdout
    assert PATCH in shown
    assert "NACK" in shown
    assert PATCH in mesh.koguma("check", check=False).stdout

    # Everything else flows on, also to the proxy that refused something.
    assert mesh.web.call("backend").status == 200
    mesh.apply(route("one"))
    for client in (mesh.web, mesh.other):
        until(lambda client=client: client.call("backend").headers.get("x") == "one")


@pytest.mark.expected_errors("Envoy was ended by SIGKILL")
def test_its_last_good_configuration_outlives_restarts_of_both_sides(mesh):
    mesh.control_plane.kill()
    mesh.start_control_plane()
    until(lambda: "web-1" in mesh.proxies())
    until(lambda: mesh.proxies()["web-1"]["quarantined"])
    os.kill(mesh.web.envoy_pid(), signal.SIGKILL)
    until(
        lambda: mesh.web.call("backend").headers.get("x") == "one", "the new Envoy has what the old one had"
    )
    (held,) = until(lambda: mesh.proxies()["web-1"]["quarantined"])
    assert held["has"] == "the version before"


def test_correcting_it_releases_it(mesh):
    mesh.apply(patch({"perConnectionBufferLimitBytes": 32768}))
    until(lambda: mesh.proxies()["web-1"]["state"] == "synced")
    assert mesh.proxies()["web-1"]["quarantined"] == []
    until(lambda: "32768" in mesh.web.admin("/config_dump?resource=dynamic_active_clusters"))
    assert mesh.web.call("backend").status == 200
    until(lambda: condition(mesh) == {})


@pytest.mark.expected_errors("Address already in use")
def test_a_listener_whose_port_another_program_had_comes_when_the_port_is_free(mesh):
    port, service = free_port(), mesh.backend.service.port
    inbound = {"port": port, "servicePort": service, "tags": {"kuma.io/service": "late"}}
    mesh.apply(
        {"type": "Dataplane", "name": "late", "networking": {"address": "127.0.0.1", "inbound": [inbound]}}
    )
    with socket.create_server(("127.0.0.1", port)):
        late = mesh.sidecar("late", serves=False, wait=False)
        late.wait_for_output(
            f"is not ready: it cannot listen on 127.0.0.1:{port}: Address already in use, by "
        )
        (held,) = until(lambda: mesh.proxies()["late"]["quarantined"])
        assert (held["type"], held["has"]) == ("listener", "none")
        assert "Address already in use" in held["text"]
        checked = mesh.koguma("check", check=False).stdout
        assert checked.count("Address already in use") == 1
        assert "stop what uses the address" in checked
        assert " is ready" not in late.output
    until(lambda: mesh.proxies()["late"]["state"] == "synced")
    until(lambda: call(port).status == 200)
    late.wait_for_output(f"is ready: serves 127.0.0.1:{port}")
    until(lambda: "late" not in mesh.koguma("check", check=False).stdout)
