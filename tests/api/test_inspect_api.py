"""The Inspect API on a real control plane: the founding documents' tables, and what is asked wrongly."""

import itertools
from pathlib import Path

import pytest

from koguma.cli import output
from koguma.model import documents
from tests import build
from tests.build import timeout
from tests.control_plane import LocalControlPlane

CASES = Path(__file__).parent.parent / "core" / "cases" / "rules"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def inspected(tmp_path_factory):
    """A control plane of its own, since the founding documents name namespaces."""
    with LocalControlPlane(tmp_path_factory.mktemp("inspected")) as plane:
        yield plane


def apply(plane, *objects):
    answer = plane("POST", "/_apply", {"objects": list(objects)})
    assert answer.status == 200, answer.json


def case(plane, name):
    """The objects of a case of the engine, in a mesh and namespaces of their own; gives the mesh."""
    number = next(_numbers)
    text = (CASES / f"{name}.yaml").read_text().partition("\n---- ")[0]
    objects = [document.value for document in documents.load(text.replace("-ns", f"-ns{number}"))]
    mesh = f"case{number}"
    for each in objects:
        if "apiVersion" in each:
            each["metadata"].setdefault("labels", {})["kuma.io/mesh"] = mesh
        elif each["type"] == "Mesh":
            quiet = {"skipCreatingInitialPolicies": ["*"], "meshServices": {"mode": "Disabled"}}
            each |= {"name": mesh, **quiet}
        else:
            each["mesh"] = mesh
    apply(plane, *objects)
    return mesh, f"-ns{number}"


def rules(plane, mesh, proxy, query=""):
    answer = plane("GET", f"/meshes/{mesh}/dataplanes/{proxy}/_rules{query}")
    assert answer.status == 200, answer.json
    return {entry["type"]: entry for entry in answer.json["rules"]}


def table(entry):
    """Outbound rules as the founding document writes them: what by which name."""
    return {rule["resourceMeta"]["name"]: rule["conf"] for rule in entry["toResourceRules"]}


def limits(request, idle):
    return [{"http": {"requestTimeout": request, "streamIdleTimeout": idle}}]


def test_a_consumers_proxy_has_the_founding_documents_table(inspected):
    mesh, ns = case(inspected, "seed_002_namespaces")
    assert table(rules(inspected, mesh, f"web.frontend{ns}")["MeshTimeout"]) == {
        f"backend.backend{ns}": limits("2s", "2h"),
        f"route-to-backend.backend{ns}": limits("15s", "2h"),
    }
    assert table(rules(inspected, mesh, f"other.other{ns}")["MeshTimeout"]) == {
        f"backend.backend{ns}": limits("2s", "1h"),
        f"route-to-backend.backend{ns}": limits("10s", "1h"),
    }


def test_the_same_table_on_universal(inspected):
    mesh, _ = case(inspected, "seed_002_universal")
    entry = rules(inspected, mesh, "web", "?origins=fields")["MeshTimeout"]
    assert table(entry) == {"backend": limits("2s", "2h"), "route-to-backend": limits("15s", "2h")}
    (route,) = [rule for rule in entry["toResourceRules"] if rule["resourceMeta"]["type"] == "MeshHTTPRoute"]
    set_by = {field: origin["kri"].split("_")[5] for field, origin in route["origins"].items()}
    assert set_by == {
        "http.requestTimeout": "timeout-on-backend-route-override",
        "http.streamIdleTimeout": "timeout-on-backend-service-override",
    }
    origin = [each["resourceMeta"]["name"] for each in route["origin"]]
    assert origin == [
        "timeout-on-backend-service",
        "timeout-on-backend-service-override",
        "timeout-on-backend-route",
        "timeout-on-backend-route-override",
    ]


def test_a_policy_and_a_route_for_different_proxies_warn(inspected):
    mesh, ns = case(inspected, "seed_002_disjoint")
    entry = rules(inspected, mesh, f"other.some-other{ns}")["MeshTimeout"]
    assert table(entry) == {f"backend.backend{ns}": [{"http": {"requestTimeout": "2s"}}]}
    assert any("no proxy is selected by both" in warning for warning in entry["warnings"])


def test_rules_with_equal_matches_merge_and_others_stay(inspected):
    mesh, _ = case(inspected, "seed_003_owner_and_consumer")
    (conf,) = table(rules(inspected, mesh, "frontend-1")["MeshHTTPRoute"])["backend"]
    assert [(rule["matches"][0]["path"]["value"], sorted(rule["default"])) for rule in conf["rules"]] == [
        ("/v2", ["backendRefs", "filters"]),
        ("/v1", ["backendRefs"]),
    ]


def test_lines_are_those_of_the_printed_yaml(inspected):
    mesh, _ = case(inspected, "seed_003_owner_and_consumer")
    entry = rules(inspected, mesh, "frontend-1", "?origins=fields")["MeshHTTPRoute"]
    (rule,) = entry["toResourceRules"]
    assert rule["origins"]
    for field, origin in rule["origins"].items():
        printed = output.yaml_text(inspected("GET", f"/_kri/{origin['kri']}").json).splitlines()
        assert f"{field.rpartition('.')[2]}:" in printed[origin["line"] - 1], field


def proxy(mesh, name, **tags):
    inbound = build.inbound("web", 80, name="main", protocol="", tags=tags)
    return build.dataplane(name, mesh=mesh, address="10.0.0.1", inbound=[inbound])


@pytest.fixture
def web(plane, mesh):
    """The path of a proxy in a mesh with a service and a timeout."""
    ports = [{"port": 80, "name": "http", "appProtocol": "http"}]
    service = {"type": "MeshService", "mesh": mesh, "name": "backend", "spec": {"ports": ports}}
    apply(plane, proxy(mesh, "web"), service, timeout(mesh=mesh))
    return f"/meshes/{mesh}/dataplanes/web"


def test_everything_below_a_proxy_answers(plane, mesh, web):
    layout = plane("GET", f"{web}/_layout").json
    assert [inbound["kri"] for inbound in layout["inbounds"]] == [f"kri_dp_{mesh}_default__web_main"]
    backend = f"kri_msvc_{mesh}_default__backend_http"
    assert backend in [outbound["kri"] for outbound in layout["outbounds"]]
    conf = {"kind": "MeshTimeout", "conf": [{"idleTimeout": "5s"}]}
    (found,) = plane("GET", f"{web}/_outbounds/{backend}/_policies").json["policies"]
    assert found == {**conf, "origins": [{"kri": f"kri_mt_{mesh}_default__slow_"}]}
    (found,) = plane("GET", f"{web}/_outbounds/{backend}/_policies?origins=fields").json["policies"]
    assert found["fieldOrigins"]["idleTimeout"]["kri"] == f"kri_mt_{mesh}_default__slow_"
    assert plane("GET", f"{web}/_policies").json == {"policies": []}
    assert plane("GET", f"{web}/_inbounds/kri_dp_{mesh}_default__web_main/_policies").json == {"policies": []}


def test_what_the_proxy_does_not_have_is_an_empty_list(plane, mesh, web):
    for other in (
        f"kri_msvc_{mesh}_default__other_http",
        f"kri_msvc_{mesh}_default__backend_",
        "kri_m____x_",
    ):
        assert plane("GET", f"{web}/_outbounds/{other}/_policies").json == {"policies": []}
        assert plane("GET", f"{web}/_outbounds/{other}/_routes").json == {"routes": []}
    backend, route = f"kri_msvc_{mesh}_default__backend_http", f"kri_mhttpr_{mesh}_default__none_"
    assert plane("GET", f"{web}/_outbounds/{backend}/_routes").json == {"routes": []}
    assert plane("GET", f"{web}/_outbounds/{backend}/_routes/{route}/_policies").json == {"policies": []}
    assert plane("GET", f"{web}/_inbounds/kri_dp_{mesh}_default__other_main/_policies").json == {
        "policies": []
    }


def test_an_inbound_that_is_not_there_is_not_found(plane, mesh, web):
    answer = plane("GET", f"{web}/_inbounds/kri_dp_{mesh}_default__web_admin/_policies")
    assert answer.status == 404
    assert answer.json["detail"] == 'Dataplane "web" has no inbound "admin"; it has main'


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("_rules?origins=all", 'query parameter "origins" must be "fields", not "all"'),
        ("_inbounds/nonsense/_policies", 'bad request: invalid identifier string: "nonsense"'),
        ("_outbounds/kri_zz____x_/_routes", 'bad request: unknown short name of resource type: "zz"'),
        ("_outbounds/kri_m____x_/_routes/x/_policies", 'bad request: invalid identifier string: "x"'),
    ],
)
def test_what_cannot_be_read_is_a_bad_request(plane, web, path, detail):
    answer = plane("GET", f"{web}/{path}")
    assert (answer.status, answer.json["detail"]) == (400, detail)


def test_only_what_exists_is_inspected(plane, mesh, web):
    for path in ("_rules", "_policies", "_layout", "_outbounds/kri_m____x_/_policies"):
        gone = plane("GET", f"/meshes/{mesh}/dataplanes/gone/{path}")
        assert (gone.status, gone.json["title"]) == (404, "Could not retrieve a resource")
        nowhere = plane("GET", f"/meshes/nowhere/dataplanes/web/{path}")
        assert (nowhere.status, nowhere.json["title"]) == (404, "Failed to retrieve Mesh")
    assert plane("GET", f"/meshes/{mesh}/meshtimeouts/gone/_resources/dataplanes").status == 404
    assert plane("GET", f"{web}/_outbounds").json["detail"].startswith("there is nothing at")
    assert plane("GET", f"/meshes/{mesh}/meshtimeouts/slow/_dataplanes").status == 404
    assert plane("GET", f"/meshes/{mesh}/secrets/x/_resources/dataplanes").status == 404
    put = plane("PUT", f"{web}/_rules", {})
    assert (put.status, put.headers["Allow"]) == (405, "GET")


def test_whom_a_policy_selects_comes_in_pages(plane, mesh):
    policy = timeout(mesh=mesh)
    policy["spec"]["targetRef"] = {"kind": "MeshSubset", "tags": {"version": "v1"}}
    apply(plane, policy, *(proxy(mesh, f"web-{n}", version=f"v{1 + n // 3}") for n in range(4)))
    base = f"/meshes/{mesh}/meshtimeouts/slow"
    for word in ("_resources", "-resources"):
        found = plane("GET", f"{base}/{word}/dataplanes").json
        assert (found["total"], [item["name"] for item in found["items"]]) == (3, ["web-0", "web-1", "web-2"])
        assert "next" not in found
    assert found["items"][0]["kri"] == f"kri_dp_{mesh}_default__web-0_"
    page = plane("GET", f"{base}/_resources/dataplanes?size=2&name=web").json
    assert (page["total"], len(page["items"])) == (3, 2)
    rest = plane("GET", page["next"].removeprefix(plane.address)).json
    assert [item["name"] for item in rest["items"]] == ["web-2"]
    assert plane("GET", f"{base}/_resources/dataplanes?name=1").json["total"] == 1
    assert plane("GET", f"{base}/_resources/dataplanes?size=x").status == 400


def test_the_proxies_of_a_service(plane, mesh):
    spec = {"selector": {"dataplaneTags": {"version": "v1"}}, "ports": [{"port": 80}]}
    service = {"type": "MeshService", "mesh": mesh, "name": "v1", "spec": spec}
    apply(plane, service, proxy(mesh, "a", version="v1"), proxy(mesh, "b", version="v2"))
    for path in ("_resources/dataplanes", "_dataplanes"):
        found = plane("GET", f"/meshes/{mesh}/meshservices/v1/{path}").json
        assert [item["name"] for item in found["items"]] == ["a"]


def test_who_may_read_an_object_may_inspect_it(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(
        """
        access:
          roles:
            - name: proxies
              rules: [{verbs: [get], resources: [dataplanes], names: [web]}]
          bindings: [{role: proxies, users: [dora]}]
        """
    )
    with LocalControlPlane(tmp_path, str(file), localhost_is_admin=False) as plane:
        admin = {"Authorization": f"Bearer {(plane.data_dir / 'admin-token').read_text()}"}
        objects = [proxy("default", "web"), proxy("default", "other"), timeout()]
        assert plane("POST", "/_apply", {"objects": objects}, **admin).status == 200
        token = plane("POST", "/tokens/user", {"name": "dora", "validFor": "1h"}, **admin).body.decode()
        dora = {"Authorization": f"Bearer {token}"}
        assert plane("GET", "/meshes/default/dataplanes/web/_rules", **dora).status == 200
        assert plane("GET", "/meshes/default/dataplanes/other/_rules", **dora).status == 403
        assert plane("GET", "/meshes/default/dataplanes/gone/_layout", **dora).status == 403
        assert plane("GET", "/meshes/default/meshtimeouts/slow/_resources/dataplanes", **dora).status == 403
        assert plane("GET", "/meshes/default/dataplanes/web/_rules").status == 403


def test_a_change_is_seen_at_once(plane, mesh, web):
    def idle():
        (rule,) = plane("GET", f"{web}/_rules").json["rules"][0]["toResourceRules"]
        return rule["conf"]

    assert idle() == [{"idleTimeout": "5s"}]
    apply(plane, timeout(mesh=mesh, idle="7s"))
    assert idle() == [{"idleTimeout": "7s"}]
    assert plane("DELETE", f"/meshes/{mesh}/meshtimeouts/slow").status == 200
    assert plane("GET", f"{web}/_rules").json["rules"] == []
