"""What real Envoys show, asked through either of two control planes on one PostgreSQL."""

import json

import pytest

from tests import build
from tests.control_plane import store_key
from tests.live_mesh import LiveMesh, load
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def planes(postgres, tmp_path_factory):
    store = postgres.database()
    key = store_key(tmp_path_factory.mktemp("k"))
    settings = {"store": store, "store_key_file": key}
    with (
        LiveMesh(tmp_path_factory.mktemp("a"), **settings) as here,
        LiveMesh(tmp_path_factory.mktemp("b"), **settings) as there,
    ):
        here.apply(build.mesh(mtls=build.builtin_mtls()), build.allow_all())
        both = ("--cp-address", f"https://127.0.0.1:{there.dp}")
        here.sidecar("backend-1", service="backend", flags=both)
        here.sidecar("web-1", service="web", outbounds=["backend"])
        yield here, there


def page(plane, path, name="web-1"):
    return plane.request("GET", f"/meshes/default/dataplanes/{name}/{path}")


def shown(plane, path, name="web-1"):
    """A page of a proxy, as soon as its agent has its channel."""
    until(lambda: page(plane, path, name).status == 200, f"{name} shows {path}")
    return page(plane, path, name)


@pytest.mark.parametrize("which", [0, 1], ids=["at its control plane", "at another one"])
def test_a_proxy_shows_its_pages_at_every_control_plane(planes, which):
    plane = planes[which]
    dump = shown(plane, "xds").json
    types = [config["@type"].rpartition(".")[2] for config in dump["configs"]]
    assert "ClustersConfigDump" in types
    assert "EndpointsConfigDump" not in types
    with_endpoints = shown(plane, "xds?include_eds=true").json
    assert "EndpointsConfigDump" in [each["@type"].rpartition(".")[2] for each in with_endpoints["configs"]]
    text = json.dumps(with_endpoints)
    assert "default.web-1" in text
    assert "PRIVATE KEY" not in text
    assert "eyJ" not in text
    used, every = shown(plane, "stats").text, shown(plane, "stats?usedonly=false").text
    assert "cluster_manager.cluster_added: " in used
    assert len(every) > len(used)
    stats = shown(plane, "stats?format=json").json["stats"]
    assert any(stat.get("name") == "cluster_manager.cluster_added" for stat in stats)
    assert "::added_via_api::true" in shown(plane, "clusters").text
    assert shown(plane, "clusters?format=json").json["cluster_statuses"]
    assert "default.backend-1" in shown(plane, "xds", "backend-1").text


def test_the_command_line_prints_them(planes):
    plane = planes[1]
    shown(plane, "stats")
    stats = plane.koguma("inspect", "dataplane", "web-1", "--type", "stats").stdout
    assert "cluster_manager.cluster_added: " in stats
    words = ("inspect", "dataplane", "web-1", "--type", "config-dump", "--include-eds")
    assert "EndpointsConfigDump" in plane.koguma(*words).stdout
    wrong = plane.koguma("inspect", "dataplane", "web-1", "--include-eds", check=False)
    assert "--include-eds is for --type config-dump" in wrong.stderr
    missing = plane.koguma("inspect", "dataplane", "web-9", "--type", "stats", check=False)
    assert 'there is no Dataplane "web-9"' in missing.stderr


@pytest.mark.parametrize("which", [0, 1], ids=["at one control plane", "at the other one"])
def test_figures_are_of_the_whole_fleet(planes, which):
    here, plane = planes[0], planes[which]
    for name in ("web-1", "backend-1"):
        shown(plane, "stats", name)
    web = next(each for each in here._sidecars if each.name == "web-1")
    with load(lambda: web.call("backend"), 1, 0.01):
        top = plane.request("GET", "/meshes/default/_top?seconds=0.5").json
        served = plane.request("GET", "/meshes/default/meshservices/backend/_endpoints?seconds=0.5").json
    assert (top["proxies"]["of"], top["proxies"]["answered"]) == (2, 2)
    assert [row["requests"] > 0 for row in top["items"] if row["name"] == "backend"] == [True]
    assert (served["state"], served["callers"]["calling"]) == ("healthy", 1)
    assert served["servers"]["answered"] == 1


def test_a_zone_egress_shows_its_pages_too(planes):
    here, there = planes
    here.egress()
    path = "/zoneegresses/egress-1/stats"
    for plane in planes:
        until(lambda plane=plane: plane.request("GET", path).status == 200, "the egress shows its counters")
    command = ("inspect", "zoneegress", "egress-1", "--type", "clusters", "-o", "json")
    assert json.loads(there.koguma(*command).stdout)["cluster_statuses"]
    # It calls external services for others, so it is asked about their endpoints.
    endpoints = [{"address": "127.0.0.1", "port": 9}]
    in_mesh = build.mesh(mtls=build.builtin_mtls(), routing={"zoneEgress": True})
    here.apply_and_wait(in_mesh, build.external_service("outside", endpoints=endpoints))
    answer = there.request("GET", "/meshes/default/meshexternalservices/outside/_endpoints?seconds=0.1").json
    assert [(each["address"], each["state"]) for each in answer["endpoints"]] == [("127.0.0.1:9", "healthy")]
    assert answer["callers"]["calling"] >= 1


@pytest.mark.expected_errors("a control plane is gone", "ads closed", "no channel")
def test_after_its_control_plane_was_killed_a_proxy_is_away_and_comes_back(planes):
    here, there = planes
    shown(there, "stats")
    here.control_plane.kill()
    answer = page(there, "stats")
    assert answer.status == 503
    assert answer.json["title"] == "Could not execute admin operation"
    assert "cluster_manager" in shown(there, "stats", "backend-1").text  # which has both control planes
    until(lambda: "is not connected" in page(there, "stats").text, "it is known to be away")
    here.start_control_plane()
    assert "cluster_manager" in shown(there, "stats").text
