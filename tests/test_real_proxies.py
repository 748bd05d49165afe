"""A control plane with real proxies: policies that tie, a proof, and an end without a goodbye."""

import pytest

from tests import build
from tests.kumactl import Kumactl
from tests.live_mesh import LiveMesh
from tests.waiting import until

pytestmark = pytest.mark.slow

TO_BACKEND = {"kind": "MeshService", "name": "backend"}
TO_ALL = {"kind": "Mesh"}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    with LiveMesh(tmp_path_factory.mktemp("real"), proof_interval="1s") as running:
        running.sidecar("backend-1", "backend", wait=False)
        running.web = running.sidecar("web-1", "web", serves=False, outbounds=["backend"], wait=False)
        running.web.wait_for_output("is ready")
        until(lambda: running.web.call("backend").status == 200, "backend answers")
        running.wait_until_synced(running.revision())
        yield running


def timeout(name, target, seconds):
    conf = {"connectionTimeout": f"{seconds}s", "http": {"requestTimeout": f"{10 + seconds}s"}}
    return build.policy("MeshTimeout", name, (target, conf))


def route(name, header):
    return build.http_route(name, build.http_rule(filters=[build.response_header("x", header)]))


def number(mesh, name):
    page = mesh.request("GET", "/metrics").text
    return float(next(line.split()[1] for line in page.splitlines() if line.startswith(f"{name} ")))


def test_policies_that_tie_reach_the_proxies_in_rounds_that_do_not_fail(mesh):
    for one, other in (
        (timeout("t1", TO_BACKEND, 1), timeout("t2", TO_BACKEND, 2)),
        (route("r1", "one"), route("r2", "two")),
        (timeout("all-1", TO_ALL, 3), timeout("all-2", TO_ALL, 4)),
    ):
        mesh.apply_and_wait(one)
        mesh.apply_and_wait(other)
    assert mesh.web.call("backend").headers["x"] == "one"
    mesh.delete_and_wait("meshhttproutes", "r1")
    assert mesh.web.call("backend").headers["x"] == "two"
    mesh.delete_and_wait("meshtimeouts", "all-1")
    assert number(mesh, "koguma_push_rounds_failed_total") == 0
    assert number(mesh, "koguma_background_failures_total") == 0


def test_insights_show_what_real_proxies_were_sent_and_took(mesh):
    kumactl = Kumactl(mesh.request)
    before = kumactl.dataplanes()
    assert {name: row["status"] for name, row in before.items()} == {
        "backend-1": "Online",
        "web-1": "Offline",
    }
    assert {(row["envoy"].startswith("1."), row["errors"]) for row in before.values()} == {(True, 0)}
    mesh.apply_and_wait(route("counted", "x"))
    mesh.delete_and_wait("meshhttproutes", "counted")
    changed = kumactl.dataplanes()
    assert changed["web-1"]["updates"] - before["web-1"]["updates"] >= 2
    (subscription,) = mesh.request("GET", "/meshes/default/dataplane-insights/web-1").json["subscriptions"]
    counts = subscription["status"]
    assert {
        each["responsesSent"] == each["responsesAcknowledged"]
        for each in map(counts.get, ("cds", "lds", "rds"))
    } == {True}
    assert kumactl.meshes() == {"default": "2/2"}, "a client that is connected is online"
    assert kumactl.services() == {"backend": ("online", "1/1")}


def test_proofs_are_made_while_proxies_are_connected_and_nothing_is_forked(mesh):
    before = number(mesh, "koguma_proof_runs_total")
    until(lambda: number(mesh, "koguma_proof_runs_total") >= before + 3, "three more proofs", 60)
    assert number(mesh, "koguma_proof_failures_total") == 0
    assert "fork_posix" not in mesh.control_plane.output  # gRPC's handlers, which abort sooner or later
    checked = mesh.koguma("check")
    assert "server: proof: last made at " in checked.stdout
    assert " 0 wrong" in checked.stdout


def test_a_control_plane_that_is_killed_comes_back_to_its_proxies(mesh):
    mesh.control_plane.kill()
    assert mesh.web.call("backend").status == 200
    mesh.start_control_plane()
    until(lambda: set(mesh.proxies()) == {"backend-1", "web-1"}, "both are back")
    mesh.wait_until_synced(mesh.revision())
    mesh.apply_and_wait(route("r2", "after"))
    assert mesh.web.call("backend").headers["x"] == "after"
    assert number(mesh, "koguma_push_rounds_failed_total") == 0
