"""Insights and overviews: what Kuma's tools are shown of proxies, meshes and services, and who sees it."""

import pytest

from koguma.cli import main
from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, SECRET
from koguma.fleet.shared_states import SharedStates
from koguma.xds.contract import ResponseCount
from tests import build
from tests.build import dataplane, inbound
from tests.control_plane import LocalControlPlane
from tests.kube_client import KubeClient, bind_role, create_role, failure, names
from tests.kumactl import Kumactl
from tests.proxy_connections import connect, synced
from tests.waiting import until

VERSIONS = {
    "kumaDp": {"version": "2.13.10", "gitTag": "v2.13.10", "gitCommit": "abc", "buildDate": "today"},
    "envoy": {"version": "1.36.8", "build": "c0/1.36.8/Clean/RELEASE/BoringSSL", "kumaDpCompatible": True},
    "dependencies": {"coredns": "1.11.1"},
}
READ = ["get", "list", "watch"]


def zone_token(plane):
    return plane("POST", "/tokens/zone", {"zone": "default", "scope": ["egress"]}).text


def put(plane, document):
    base = f"/meshes/{document['mesh']}" if "mesh" in document else ""
    path = {"Dataplane": "dataplanes", "Mesh": "meshes"}[document["type"]]
    answer = plane("PUT", f"{base}/{path}/{document['name']}", document)
    assert answer.status in (200, 201), answer.text


def acknowledge(plane, connection, counts):
    """The proxy has taken all that it was offered, after a NACK."""

    async def report():
        secrets = {name: each.version for name, each in connection.offered.of_type(SECRET).items()}
        connection.report(synced(connection._offer, acked_versions={SECRET: secrets}, responses=counts))

    plane.run(report())


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A mesh with mTLS in which proxies are in every state, and an empty one."""
    with LocalControlPlane(tmp_path_factory.mktemp("i")) as running:
        put(running, build.mesh(mtls=build.builtin_mtls("ca-1")))
        put(running, build.mesh("other"))
        put(running, dataplane("gone-1"))
        put(running, dataplane("never-1", "cold"))
        parts = [
            inbound("web", 10080),
            inbound("admin", 10081, state="NotReady"),
            inbound("x", 1, state="Ignored"),
        ]
        put(running, dataplane("half-1", inbound=parts))
        edge = {"type": "BUILTIN", "tags": {"kuma.io/service": "edge"}}
        put(
            running,
            build.document("Dataplane", "edge-1", networking={"address": "127.0.0.1", "gateway": edge}),
        )
        client = {"address": "127.0.0.1"}
        put(running, build.document("Dataplane", "client-1", labels={"team": "blue"}, networking=client))
        put(running, dataplane("elsewhere-1", mesh="other"))
        shown = {
            name: running.dataplane_token(name=name)
            for name in ("gone-1", "half-1", "edge-1", "client-1", "web-1")
        }
        running.web = connect(running, dataplane(), version=VERSIONS)
        for name in ("gone-1", "half-1", "edge-1", "client-1"):
            connection = connect(running, name=name, shown=shown[name])
            if name == "gone-1":
                running.run(connection.close())
        egress = build.document(
            "ZoneEgress", "egress-1", "", networking={"address": "127.0.0.1", "port": 10002}
        )
        connect(
            running,
            egress,
            "egress-1",
            "",
            zone_token(running),
            **{"dataplane.proxyType": "egress", "workdir": "/w"},
        )
        until(lambda: running.web.offered.of_type(SECRET), "certificates")
        counts = {
            CLUSTER: ResponseCount(2, 1, 1),
            ENDPOINTS: ResponseCount(1, 1),
            SECRET: ResponseCount(1, 1),
        }
        acknowledge(running, running.web, counts)
        yield running


def test_kumactl_inspects_dataplanes(plane):
    rows = Kumactl(plane).dataplanes()
    assert {name: row["status"] for name, row in rows.items()} == {
        "client-1": "Offline",  # kumactl's own rule for a proxy without inbounds; see `mesh-insights`
        "edge-1": "Online",
        "gone-1": "Offline",
        "half-1": "Partially degraded",
        "never-1": "Offline",
        "web-1": "Online",
    }
    web = rows["web-1"]
    assert (web["updates"], web["errors"]) == (4, 1)
    assert (web["agent"], web["envoy"]) == ("2.13.10", "1.40.0")  # Envoy's own word counts
    assert (web["backend"], web["supported"], web["regenerations"]) == ("ca-1", ["ca-1"], 1)
    assert web["expires"] > web["connected"]
    assert rows["never-1"]["connected"] is None
    assert rows["gone-1"]["connected"] is not None


def test_kumactl_inspects_meshes_services_and_zones(plane):
    kumactl = Kumactl(plane)
    assert kumactl.meshes() == {"default": "3/6", "other": "0/1"}
    assert kumactl.services() == {
        "admin": ("offline", "0/1"),
        "cold": ("offline", "0/1"),
        "edge": ("online", "1/1"),
        "web": ("partially_degraded", "2/3"),
    }
    assert kumactl.services("?type=gateway_builtin,external") == {"edge": ("online", "1/1")}
    assert list(kumactl.services("?type=internal&name=o")) == ["cold"]
    assert kumactl.zones()["default"][0] == "Online"
    assert kumactl.zone_egresses() == {"egress-1": "Online"}
    assert kumactl.zone_ingresses() == {}


def test_a_mesh_insight_has_all_numbers(plane):
    insight = plane("GET", "/mesh-insights/default").json
    counts = {"total": 6, "online": 3, "offline": 2, "partiallyDegraded": 1}
    assert insight["dataplanes"] == counts, "a connected proxy without inbounds is online here"
    assert insight["dataplanesByType"] == {
        "standard": {"total": 5, "online": 2, "offline": 2, "partiallyDegraded": 1},
        "gateway": {"total": 1, "online": 1},
        "gatewayBuiltin": {"total": 1, "online": 1},
        "gatewayDelegated": {},
    }
    assert insight["services"] == {"total": 4, "internal": 4}
    assert insight["mTLS"]["issuedBackends"] == {"ca-1": {"total": 1, "online": 1}}
    assert insight["mTLS"]["supportedBackends"] == {"ca-1": {"total": 1, "online": 1}}
    assert insight["dpVersions"]["kumaDp"] == {"2.13.10": {"total": 1, "online": 1}}
    assert insight["dpVersions"]["envoy"]["1.40.0"]["total"] == 5
    assert insight["policies"]["MeshTimeout"] == {"total": 2}
    assert insight["resources"]["Dataplane"] == {"total": 6}
    assert "Secret" not in insight["resources"]


def test_a_service_insight_has_all_fields_and_an_unknown_one_is_not_found(plane):
    web = plane("GET", "/meshes/default/service-insights/web").json
    assert {name: web[name] for name in ("status", "dataplanes", "issuedBackends", "zones")} == {
        "status": "partially_degraded",
        "dataplanes": {"total": 3, "online": 2, "offline": 1},
        "issuedBackends": {"ca-1": 1},
        "zones": ["default"],
    }
    assert "serviceType" not in web
    edge = plane("GET", "/meshes/default/service-insights/edge").json
    assert edge["serviceType"] == "gateway_builtin"
    missing = plane("GET", "/meshes/default/service-insights/wed")
    (cause,) = missing.json["invalid_parameters"]
    assert (missing.status, 'did you mean "web"?' in cause["reason"]) == (404, True)
    wrong = plane("GET", "/meshes/default/service-insights?type=internal,nonsense")
    assert (wrong.status, wrong.json["detail"]) == (400, "bad request: unsupported service type")


def test_the_global_insight_counts_everything_also_zeros(plane):
    insight = plane("GET", "/global-insight").json
    assert insight["dataplanes"] == {
        "standard": {"online": 2, "offline": 3, "partiallyDegraded": 1, "total": 6},
        "gatewayBuiltin": {"online": 1, "offline": 0, "partiallyDegraded": 0, "total": 1},
        "gatewayDelegated": {"online": 0, "offline": 0, "partiallyDegraded": 0, "total": 0},
    }
    assert insight["meshes"] == {"total": 2}
    assert insight["services"]["internal"] == {"online": 0, "offline": 3, "partiallyDegraded": 1, "total": 4}
    assert insight["services"]["external"] == {"total": 0}
    assert insight["zones"] == {
        "controlPlanes": {"online": 1, "total": 1},
        "zoneIngresses": {"online": 0, "total": 0},
        "zoneEgresses": {"online": 1, "total": 1},
    }
    assert insight["policies"]["total"] == sum(
        total["total"]
        for kind, total in insight["resources"].items()
        if kind in ("MeshTimeout", "MeshRetry", "MeshCircuitBreaker")
    )
    totals = plane("GET", "/global-insights").json
    assert (totals["type"], totals["resources"]["Mesh"]) == ("GlobalInsights", {"total": 2})
    assert "Config" not in totals["resources"]


def overviews(plane, path):
    answer = plane("GET", path)
    assert answer.status == 200, answer.text
    return [item["name"] for item in answer.json["items"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?gateway=true", ["edge-1"]),
        ("?gateway=builtin", ["edge-1"]),
        ("?gateway=delegated", []),
        ("?gateway=false&name=1&ingress=true", ["client-1", "gone-1", "half-1", "never-1", "web-1"]),
        ("?tag=kuma.io/service:we", ["gone-1", "half-1", "web-1"]),
        ("?filter[labels.team]=blue", ["client-1"]),
        ("?name=never", ["never-1"]),
    ],
)
def test_overviews_are_filtered_as_dataplanes_are(plane, query, expected):
    assert overviews(plane, f"/meshes/default/dataplanes/_overview{query}") == expected
    assert overviews(plane, f"/meshes/default/dataplanes+insights{query}") == expected


def test_overviews_come_in_pages_and_the_next_link_leads_on(plane):
    found, path = [], "/meshes/default/dataplanes/_overview?size=4&gateway=false"
    while path:
        page = plane("GET", path).json
        assert page["total"] == 5
        found += [item["name"] for item in page["items"]]
        address = page["next"]
        assert address is None or address.startswith(f"http://127.0.0.1:{plane.port}/meshes/default/")
        path = address.partition(str(plane.port))[2] if address else ""
    assert found == ["client-1", "gone-1", "half-1", "never-1", "web-1"]
    assert plane("GET", "/meshes/default/dataplanes/_overview?size=x").json["detail"] == "Invalid page size"
    assert plane("GET", "/meshes/default/dataplanes/_overview?gateway=maybe").status == 400


def test_kumas_older_paths_answer_the_same(plane):
    one = plane("GET", "/meshes/default/dataplanes/web-1/_overview").json
    assert (one["type"], one["kri"]) == ("DataplaneOverview", "kri_dp_default_default__web-1_")
    assert plane("GET", "/meshes/default/dataplanes+insights/web-1").json == one
    assert len(overviews(plane, "/dataplanes+insights")) == 7
    assert overviews(plane, "/dataplanes/_overview?mesh=other") == ["elsewhere-1"]
    for path in ("/zones+insights", "/zones/_overview"):
        assert overviews(plane, path) == ["default"]
    for path in ("/zoneegressoverviews", "/zoneegresses/_overview"):
        assert overviews(plane, path) == ["egress-1"]
    for path in ("/zoneingresses+insights", "/zoneingresses/_overview", "/zone-ingresses/_overview"):
        assert overviews(plane, path) == []
    assert plane("GET", "/zoneegressoverviews/egress-1").json["type"] == "ZoneEgressOverview"
    assert plane("GET", "/zones/default/_overview").json["zone"] == {"enabled": True}
    assert plane("GET", "/meshes/default/dataplanes/web-9/_overview").status == 404
    assert plane("GET", "/meshes/nowhere/dataplanes/_overview").json["title"] == "Failed to retrieve Mesh"
    assert plane("GET", "/meshes/default/zones/_overview").status == 404


def test_insights_are_read_and_never_written_or_watched(plane):
    path = "/meshes/default/dataplane-insights/web-1"
    shown = plane("GET", path)
    assert [each["id"] for each in shown.json["subscriptions"]] == [plane.web.subscription]
    assert "ETag" not in shown.headers
    for method in ("PUT", "DELETE", "PATCH"):
        answer = plane(method, path, {"type": "DataplaneInsight", "name": "web-1", "mesh": "default"})
        assert (answer.status, answer.json["title"]) == (405, "Method not allowed")
    assert plane("GET", "/mesh-insights?watch=true").status == 405
    assert plane("GET", "/meshes/default/dataplane-insights/nobody").status == 404
    assert [each["name"] for each in plane("GET", "/zone-insights").json["items"]] == ["default"]
    assert plane("GET", "/zoneegressinsights/egress-1").json["subscriptions"]


def test_what_is_shown_is_of_the_moment_and_never_cached(plane):
    kube = KubeClient(plane, "mesh-default", "kuma.io/v1alpha1", "DataplaneInsight")
    path = "/meshes/default/dataplane-insights/web-1"
    for number in (7, 8):
        acknowledge(plane, plane.web, {CLUSTER: ResponseCount(number, number)})
        assert Kumactl(plane).dataplanes()["web-1"]["updates"] == number
        for shown in (plane("GET", path).json, kube.get("web-1")["spec"]):
            counts = shown["subscriptions"][0]["status"]["cds"]
            assert counts == {"responsesSent": str(number), "responsesAcknowledged": str(number)}


def test_answers_say_when_the_states_of_other_control_planes_are_old(plane, monkeypatch):
    paths = (
        "/mesh-insights",
        "/meshes/default/dataplane-insights/web-1",
        "/meshes/default/dataplanes/_overview",
        "/zones/default/_overview",
        "/global-insight",
        "/apis/kuma.io/v1alpha1/meshinsights",
        "/apis/kuma.io/v1alpha1/meshinsights/default",
    )
    assert {plane("GET", path).headers.get("Warning") for path in paths} == {None}
    monkeypatch.setattr(SharedStates, "problem", "the store has not answered")
    assert {plane("GET", path).headers.get("Warning") for path in paths} == {
        '299 - "the store has not answered"'
    }
    assert plane("GET", "/meshes").headers.get("Warning") is None


# The Kubernetes form.


def test_kubectl_lists_insights_and_cannot_write_or_watch_them(plane):
    insights = KubeClient(plane, "mesh-default", "kuma.io/v1alpha1", "DataplaneInsight")
    listed = insights.list().json
    assert names(listed) == ["client-1", "edge-1", "gone-1", "half-1", "never-1", "web-1"]
    assert "uid" not in listed["items"][0]["metadata"]
    first = insights.list(limit=4).json
    rest = insights.list(**{"limit": 4, "continue": first["metadata"]["continue"]}).json
    assert names(first) + names(rest) == names(listed)
    assert all(
        "subscriptions" in item["spec"] for item in rest["items"] if item["metadata"]["name"] == "web-1"
    )
    assert names(insights.list(labelSelector="team=blue").json) == ["client-1"]
    for answer in (insights.send("PUT", "web-1", {}), insights.send("DELETE", "web-1"), insights.create("x")):
        assert failure(answer) == (405, "MethodNotAllowed")
    assert failure(insights.list(watch="true")) == (405, "MethodNotAllowed")
    resources = plane("GET", "/apis/kuma.io/v1alpha1").json["resources"]
    verbs = {each["name"]: each["verbs"] for each in resources}
    assert verbs["dataplaneinsights"] == verbs["meshinsights"] == ["get", "list"]


def test_kubectl_shows_tables_of_insights(plane):
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    rows = KubeClient(plane, "mesh-default", "kuma.io/v1alpha1", "DataplaneInsight").list(table).json["rows"]
    assert {row["cells"][0]: row["cells"][2] for row in rows}["web-1"] == "Online"
    assert {row["cells"][0]: row["cells"][2] for row in rows}["never-1"] == "Offline"
    services = KubeClient(plane, "mesh-default", "koguma.io/v1", "ServiceInsight").list(table).json["rows"]
    assert [row["cells"][0] for row in services] == ["admin", "cold", "edge", "web"]


# Rights.


def statuses(plane, user, *paths):
    return [plane("GET", path, Impersonate_User=user).status for path in paths]


INSIGHTS = ["dataplane-insights", "mesh-insights", "service-insights", "zone-insights", "zoneegressinsights"]
KUBE_INSIGHTS = [name.replace("-", "") for name in INSIGHTS]
OF_DEFAULT = (
    "/meshes/default/dataplane-insights",
    "/meshes/default/dataplane-insights/web-1",
    "/meshes/default/service-insights",
    "/meshes/default/service-insights/web",
    "/mesh-insights/default",
)
IN_KUBE = (
    "/apis/kuma.io/v1alpha1/namespaces/mesh-default/dataplaneinsights",
    "/apis/kuma.io/v1alpha1/namespaces/mesh-default/dataplaneinsights/web-1",
    "/apis/kuma.io/v1alpha1/namespaces/mesh-default/serviceinsights",
    "/apis/kuma.io/v1alpha1/namespaces/mesh-default/serviceinsights/web",
    "/apis/kuma.io/v1alpha1/meshinsights/default",
)


def test_who_may_not_read_dataplanes_sees_none_of_their_insights(plane):
    create_role(
        plane,
        "insights-only",
        {"apiGroups": ["rest.koguma.io"], "resources": INSIGHTS, "verbs": READ},
        {"apiGroups": ["kuma.io"], "resources": KUBE_INSIGHTS, "verbs": READ},
    )
    bind_role(plane, "ivy", "insights-only")
    assert statuses(plane, "ivy", *OF_DEFAULT, *IN_KUBE) == [403] * 10
    for path in (*INSIGHTS, *(f"apis/kuma.io/v1alpha1/{name}" for name in KUBE_INSIGHTS)):
        answer = plane("GET", f"/{path}", Impersonate_User="ivy")
        assert answer.status == 403 or answer.json["items"] == [], path
    assert statuses(plane, "ivy", "/meshes/default/dataplanes/_overview", "/zones+insights") == [403, 403]
    insight = plane("GET", "/global-insight", Impersonate_User="ivy").json
    assert (insight["meshes"], insight["resources"], insight["zones"]["zoneEgresses"]["total"]) == (
        {"total": 0},
        {},
        0,
    )


def test_who_may_read_dataplanes_and_insights_sees_them(plane):
    create_role(
        plane,
        "proxies-and-insights",
        {"apiGroups": ["rest.koguma.io"], "resources": [*INSIGHTS, "dataplanes"], "verbs": READ},
        {"apiGroups": ["kuma.io"], "resources": [*KUBE_INSIGHTS, "dataplanes"], "verbs": READ},
    )
    bind_role(plane, "ines", "proxies-and-insights")
    assert statuses(plane, "ines", *OF_DEFAULT, *IN_KUBE) == [200] * 10
    assert plane("GET", "/mesh-insights", Impersonate_User="ines").json["total"] == 2
    assert plane("GET", "/zone-insights", Impersonate_User="ines").json["total"] == 0
    insight = plane("GET", "/global-insight", Impersonate_User="ines").json
    assert (insight["meshes"], insight["resources"]) == ({"total": 2}, {"Dataplane": {"total": 7}})


def test_the_right_in_one_namespace_shows_the_insights_of_that_one(plane):
    bind_role(plane, "nora", "proxies-and-insights", "mesh-default")
    found = [plane("GET", path, Impersonate_User="nora").status for path in IN_KUBE]
    assert found == [200, 200, 403, 403, 403], "summaries are about all of a mesh, in whichever namespace"
    assert statuses(plane, "nora", *OF_DEFAULT) == [403, 200, 403, 403, 403]
    elsewhere = "/apis/kuma.io/v1alpha1/namespaces/mesh-other/dataplaneinsights"
    assert statuses(plane, "nora", elsewhere, "/apis/kuma.io/v1alpha1/dataplaneinsights") == [403, 403]


def test_strangers_see_nothing(plane):
    paths = ("/global-insight", "/mesh-insights", "/dataplanes+insights", *OF_DEFAULT, *IN_KUBE)
    assert {plane("GET", path, Impersonate_User="system:anonymous").status for path in paths} == {403}


# The command line.


def printed(plane, capsys, monkeypatch, *words):
    monkeypatch.setenv("KOGUMA_ADDRESS", plane.address)
    code = main(words)
    out, err = capsys.readouterr()
    return code, [line.split() for line in out.splitlines()], err


def test_koguma_get_shows_insights_as_tables(plane, capsys, monkeypatch):
    _, meshes, _ = printed(plane, capsys, monkeypatch, "get", "mesh-insights")
    assert [row[:3] for row in meshes] == [
        ["NAME", "ONLINE", "SERVICES"],
        ["default", "3/6", "4"],
        ["other", "0/1", "1"],
    ]
    _, services, _ = printed(plane, capsys, monkeypatch, "get", "serviceinsights")
    assert ["edge", "default", "online", "1/1", "gateway_builtin"] in [row[:5] for row in services]
    _, proxies, _ = printed(plane, capsys, monkeypatch, "get", "dataplane-insights", "-o", "wide")
    rows = {row[0]: row for row in proxies}
    assert rows["web-1"][2:4] == ["Online", plane("GET", "/").json["instanceId"]]
    assert "1.40.0" in rows["web-1"]
    assert rows["never-1"][2] == "Offline"
    code, _, words = printed(plane, capsys, monkeypatch, "get", "mesh-insights", "-w")
    assert (code != 0, "cannot be watched; ask again" in words) == (True, True)
