"""What Global shows of the proxies of a zone, over the zone's connection, with real Envoys."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from koguma.cli import main
from tests import build
from tests.control_plane import LocalControlPlane
from tests.live_mesh import LiveMesh
from tests.sync.test_zones import Federation, _token
from tests.waiting import until

pytestmark = pytest.mark.slow


class OneZone(NamedTuple):
    """Global, and a zone with proxies."""

    top: LocalControlPlane
    zone: LiveMesh
    name: str  # of web-1 on Global

    def on_global(self, path: str = "", **headers: str) -> Any:
        return self.top("GET", f"/meshes/default/dataplanes/{self.name}{path}", **headers)

    def in_zone(self, path: str = "") -> Any:
        return self.zone.request("GET", f"/meshes/default/dataplanes/web-1{path}")


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneZone]:
    directory = tmp_path_factory.mktemp("z")
    federation = Federation(directory)
    top = federation.top
    token = directory / "east.token"
    with federation.stack:
        token.write_text(_token(top, "east"))
        zone = LiveMesh(
            directory / "east",
            mode="zone",
            zone_name="east",
            global_address=f"grpcs://127.0.0.1:{federation.sync_port}",
            global_ca=str(directory / "global" / "ca.pem"),
            zone_token_file=str(token),
        )
        with zone:
            assert top("PUT", "/meshes/default", build.mesh(mtls=build.builtin_mtls())).status == 200
            until(lambda: "mtls" in zone.request("GET", "/meshes/default").text, "the mesh is there")
            zone.sidecar("backend-1", "backend", wait=False)
            zone.sidecar("web-1", "web", outbounds=["backend"])
            until(lambda: len(_proxies(top)) == 2, "Global knows both proxies")
            yield OneZone(top, zone, next(name for name in _proxies(top) if name.startswith("web-1")))


def _proxies(plane: LocalControlPlane) -> dict[str, Any]:
    return {proxy["name"]: proxy for proxy in plane("GET", "/_proxies").json["items"]}


def test_proxies_are_listed_with_their_zone_and_state(planes: OneZone) -> None:
    top, zone = planes.top, planes.zone
    until(lambda: _proxies(top)[planes.name]["state"] == "synced", "it is synced")

    def both() -> tuple[dict[str, Any], dict[str, Any]]:
        shown, own = _proxies(top)[planes.name], zone.proxies()["web-1"]
        assert shown["name"] != own["name"]
        return shown, {**own, "name": shown["name"]}

    until(lambda: both()[0] == both()[1], "Global shows what the zone does, at the zone's revision")
    shown, _ = both()
    assert (shown["zone"], shown["envoy"] != "") == ("east", True)
    assert top("GET", "/_proxies").json["zones"] == ["east"]
    assert "warning" not in top("GET", "/_proxies").json


def test_insights_and_checks_count_them(planes: OneZone) -> None:
    top = planes.top
    overview = planes.on_global("/_overview").json
    (subscription,) = overview["dataplaneInsight"]["subscriptions"]
    own = planes.in_zone("/_overview").json["dataplaneInsight"]["subscriptions"][0]
    assert subscription["id"] == own["id"]
    assert subscription["controlPlaneInstanceId"] == planes.zone.request("GET", "/").json["instanceId"]
    assert subscription["version"]["envoy"]["version"]
    assert overview["dataplaneInsight"]["mTLS"]["certificateRegenerations"] >= 1
    until(
        lambda: top("GET", "/mesh-insights/default").json["dataplanes"].get("online") == 2,
        "the mesh counts two that are online",
    )
    checks = top("GET", "/_check").json["checks"]
    assert [check["message"] for check in checks if check["name"] == "proxies"] == ["2 connected"]
    assert [check["message"] for check in checks if check["name"] == "zones"] == ["1 connected: east"]
    assert "koguma_fleet_proxies 2.0" in top("GET", "/metrics").text


PATHS = (
    "/_rules",
    "/_rules?origins=fields",
    "/_policies",
    "/_layout",
    "/_config",
    "/_config?shadow=true&include=diff",
    "/_explain?path=clusters",
)


def test_the_zone_answers_what_acts_on_them(planes: OneZone) -> None:
    layout = planes.in_zone("/_layout").json
    inbound, outbound = layout["inbounds"][0]["kri"], layout["outbounds"][0]["kri"]
    below = (
        f"/_inbounds/{inbound}/_policies",
        f"/_outbounds/{outbound}/_policies?origins=fields",
        f"/_outbounds/{outbound}/_routes",
    )

    def is_same(path: str) -> bool:
        answers = planes.on_global(path), planes.in_zone(path)
        assert [each.status for each in answers] == [200, 200]
        return bool(answers[0].body == answers[1].body)

    for path in (*PATHS, *below):
        until(lambda path=path: is_same(path), f"Global says the same as the zone: {path}")
    cluster = planes.in_zone("/_explain?path=clusters").json["resources"][0]
    until(lambda: is_same(f"/_explain?path={cluster}"), "Global says who set the fields of an Envoy")
    assert planes.on_global(f"/_explain?path={cluster}").json["fields"]
    missing = planes.on_global(f"/_explain?path={cluster}.conect_timeout")
    assert (missing.status, "the nearest are connect_timeout" in missing.json["detail"]) == (400, True)
    assert planes.on_global("/_explain?path=clustrs").status == 400
    wrong = planes.on_global(f"/_inbounds/{inbound.rpartition('_')[0]}_nine/_policies")
    assert (wrong.status, 'zone "east" answers' in wrong.json["detail"]) == (404, True)
    assert planes.on_global("/_outbounds/nonsense/_policies").status == 400
    assert planes.on_global("/_config?shadow=7").status == 400


def test_the_zone_says_who_set_what_its_zone_proxies_have(planes: OneZone) -> None:
    top, zone = planes.top, planes.zone
    match = [{"type": "InternalVIP", "value": "api.ext", "port": 80, "protocol": "http"}]
    to = {"type": "Regular", "endpoints": [{"address": "192.0.2.1", "port": 80}]}
    document = build.document(
        "MeshExternalService", "api", "default", spec={"match": match, "destination": to}
    )
    assert top("PUT", "/meshes/default/meshexternalservices/api", document).status == 201
    for kind, path in (("ZoneEgress", "zoneegresses"), ("ZoneIngress", "zoneingresses")):
        document = build.document(kind, "edge-1", "", networking={"address": "127.0.0.1", "port": 10009})
        assert zone.request("PUT", f"/{path}/edge-1", document).status in (200, 201)
        until(lambda path=path: top("GET", f"/{path}").json["total"] == 1, f"Global has the {kind}")
        name = top("GET", f"/{path}").json["items"][0]["name"]

        def is_same(query: str, path: str = path, name: str = name) -> bool:
            answers = [
                top("GET", f"/{path}/{name}/_explain?path={query}"),
                zone.request("GET", f"/{path}/edge-1/_explain?path={query}"),
            ]
            assert [each.status for each in answers] == [200, 200]
            return bool(answers[0].body == answers[1].body)

        until(
            lambda path=path: len(zone.request("GET", f"/{path}/edge-1/_explain").json["resources"]) > 1,
            "the zone has what it serves",
        )
        for resource in zone.request("GET", f"/{path}/edge-1/_explain").json["resources"]:
            until(lambda resource=resource: is_same(resource), f"Global says what the zone does: {resource}")
        wrong = top("GET", f"/{path}/{name}/_explain?path=clusters[x].y")
        assert (wrong.status, "there is no resource in cluster" in wrong.text) == (400, True)
        assert top("GET", f"/{path}/{name}/_explain", Impersonate_User="nobody").status == 403
        assert zone.request("DELETE", f"/{path}/edge-1").status == 200
        until(lambda path=path: top("GET", f"/{path}").json["total"] == 0, "it is gone")
    assert top("DELETE", "/meshes/default/meshexternalservices/api").status == 200


def test_envoys_show_their_pages_through_global(planes: OneZone) -> None:
    until(lambda: planes.on_global("/xds").status == 200, "its agent has its channel")
    dump = planes.on_global("/xds?include_eds=true")
    types = [config["@type"].rpartition(".")[2] for config in dump.json["configs"]]
    assert {"ClustersConfigDump", "EndpointsConfigDump"} <= set(types)
    assert "PRIVATE KEY" not in dump.text
    assert "eyJ" not in dump.text
    assert "cluster_manager.cluster_added: " in planes.on_global("/stats").text
    assert planes.on_global("/clusters?format=json").json["cluster_statuses"]

    def asked() -> tuple[int, int]:
        top = planes.top("GET", "/meshes/default/_top?seconds=0.2").json["proxies"]
        return top["of"], top["answered"]

    until(lambda: asked() == (2, 2), "both say what they count")


def test_a_plan_on_global_is_what_their_envoys_get(planes: OneZone) -> None:
    top = planes.top
    until(lambda: len(_proxies(top)) == 2, "both are connected")

    def configs() -> dict[str, Any]:
        return {
            name: top("GET", f"/meshes/default/dataplanes/{name}/_config").json["xds"]
            for name in _proxies(top)
        }

    conf = {"http": {"requestTimeout": "3s"}}
    spec = {"to": [{"targetRef": build.ANY, "default": conf}]}
    change = build.document("MeshTimeout", "a-quick", "default", spec=spec)
    before = configs()
    plan = top("POST", "/_plan", {"objects": [change]}).json
    assert (plan["total"], plan["unknownZones"]) == (2, [])
    said = {each["name"]: each["zone"] for group in plan["groups"] for each in group["proxies"]}
    assert said[planes.name] == "east"
    (group,) = (each for each in plan["groups"] if planes.name in str(each["proxies"]))
    assert {(value["before"], value["after"]) for value in group["values"]} == {("15s", "3s")}
    url = "/meshes/default/meshtimeouts/a-quick"
    assert top("PUT", url, change).status == 201
    until(lambda: configs()[planes.name] != before[planes.name], "the change is there")
    after = configs()
    assert {name for name in after if after[name] != before[name]} == set(said)
    until(lambda: '"3s"' in planes.on_global("/xds").text, "and its Envoy has it")
    assert top("DELETE", url).status == 200
    until(lambda: configs() == before, "it is gone again")


def test_rights_are_those_on_global(planes: OneZone) -> None:
    user = {"Impersonate-User": "nobody"}
    for path in (*PATHS, "/xds", "/stats", "/clusters", "/_overview"):
        assert planes.on_global(path, **user).status in (403, 404), path
    assert planes.top("GET", "/_proxies", **user).json["items"] == []


def test_the_command_line_shows_all_of_it(planes: OneZone, capsys: pytest.CaptureFixture[str]) -> None:
    def koguma(*words: str) -> str:
        capsys.readouterr()
        assert main([*words, "--address", planes.top.address]) == 0
        return capsys.readouterr().out

    header, *rows = koguma("get", "proxies").splitlines()
    assert header.split()[:4] == ["NAME", "ZONE", "MESH", "STATE"]
    assert [row.split()[1] for row in rows] == ["east", "east"]
    assert "cluster_added" in koguma("inspect", "dataplane", planes.name, "--type", "stats")
    assert json.loads(koguma("inspect", "dataplane", planes.name, "--type", "config-dump"))["configs"]

    def is_same() -> bool:
        own = planes.zone.koguma("inspect", "dataplane", "web-1").stdout
        return "Calls" in own and koguma("inspect", "dataplane", planes.name) == own

    until(is_same, "Global shows what the zone does")
    assert "MeshTimeout" in koguma("explain", "dataplane", planes.name, "--to", "backend")


def test_when_a_change_has_arrived_on_global_every_envoy_of_the_zone_has_it(
    planes: OneZone, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def koguma(*words: str) -> str:
        capsys.readouterr()
        assert main([*words, "--address", planes.top.address]) == 0
        return capsys.readouterr().out

    def timeouts() -> list[str]:
        """The timeouts in the inbound listeners of all Envoys, as these say themselves."""
        pages = (
            planes.zone.request("GET", f"/meshes/default/dataplanes/{name}/xds")
            for name in ("backend-1", "web-1")
        )
        return [page.text.split('"request_headers_timeout": "')[1].split('"')[0] for page in pages]

    file = tmp_path / "policy.json"
    for seconds in range(20, 25):
        rules = [{"default": {"http": {"requestHeadersTimeout": f"{seconds}s"}}}]
        file.write_text(json.dumps(build.policy("MeshTimeout", "waited", rules=rules)))
        printed = koguma("apply", "-f", str(file), "--wait", "--timeout", "60s")
        assert timeouts() == [f"{seconds}s"] * 2, printed
        assert "2 of 2 proxies have it" in printed
    koguma("delete", "meshtimeout", "waited", "--wait", "--timeout", "60s")
    assert "24s" not in timeouts()


@pytest.mark.expected_errors("zone is gone", "stream of a zone ended")
def test_of_an_offline_zone_nothing_is_claimed(planes: OneZone) -> None:
    planes.zone.control_plane.stop()
    top = planes.top
    until(lambda: not _proxies(top), "its proxies are not shown as connected")
    words = 'zone "east" is offline since '
    assert words in top("GET", "/_proxies").json["warning"]
    for path in ("/_rules", "/_config", "/xds", "/stats"):
        answer = planes.on_global(path)
        assert (answer.status, words in answer.json["detail"]) == (503, True), answer.text
    overview = planes.on_global("/_overview")
    assert overview.json["dataplaneInsight"]["subscriptions"][0]["disconnectTime"]
    assert words in overview.warnings[0]
    assert words in str(top("GET", "/_check").json)
    until(
        lambda: "online" not in top("GET", "/mesh-insights/default").json["dataplanes"],
        "none counts as online",
    )
    planes.zone.start_control_plane()
    until(lambda: len(_proxies(top)) == 2, "they are back with their zone")
    until(lambda: planes.on_global("/stats").status == 200, "and can be asked again")
    assert "warning" not in top("GET", "/_proxies").json
