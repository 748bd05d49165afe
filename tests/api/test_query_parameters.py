"""Query parameters: what a path does not have is refused, on every path; what it has filters."""

import pytest

from koguma.api import parameters
from koguma.main import all_kinds
from tests.build import timeout

pytestmark = pytest.mark.slow

PARTS = {
    "{mesh}": "default",
    "{name}": "nobody",
    "{kri}": "kri_mt_default___nobody_",
    "{route}": "kri_mhttpr_default___nobody_",
}
OPERATIONS = [
    (method, path, known)
    for path, declared in parameters.table(all_kinds()).items()
    for method, known in declared.queries.items()
]


def at(path):
    for part, value in PARTS.items():
        path = path.replace(part, value)
    return path


def test_every_path_refuses_a_parameter_that_it_does_not_have(plane):
    for method, path, _ in OPERATIONS:
        answer = plane(method, f"{at(path)}?sizee=1", {} if method in ("PUT", "PATCH", "POST") else None)
        assert answer.status == 400, (method, path)
        (wrong,) = answer.json["invalid_parameters"]
        assert (wrong["field"], wrong["rule"]) == ("sizee", "unknown-parameter"), (method, path)
        assert "sizee" in wrong["reason"]


def test_every_path_takes_the_parameters_that_it_has(plane):
    for method, path, known in OPERATIONS:
        for parameter in known:
            name = "filter[labels.team]" if parameter.name == "filter[" else parameter.name
            value = parameter.schema.get("enum", ["1"])[0]
            if parameter.name in ("watch", "revision"):  # a watch does not end by itself
                continue
            answer = plane(method, f"{at(path)}?{name}={value}", None if method == "GET" else {})
            rules = (
                [each.get("rule") for each in answer.json.get("invalid_parameters", ())]
                if (answer.headers.get("Content-Type", "").startswith("application/json"))
                else []
            )
            assert "unknown-parameter" not in rules, (method, path, name)


def test_every_path_refuses_a_word_that_a_parameter_does_not_take(plane, mesh):
    """On objects that exist, so that nothing else is wrong."""
    inbound = {"port": 80, "tags": {"kuma.io/service": "web"}}
    networking = {"address": "10.0.0.1", "inbound": [inbound]}
    objects = [
        {"type": "Dataplane", "mesh": mesh, "name": "nobody", "networking": networking},
        timeout("nobody", mesh),
    ]
    assert plane("POST", "/_apply", {"objects": objects}).status == 200
    for method, path, known in OPERATIONS:
        if method != "GET" or not ("dataplanes" in path or "meshtimeouts" in path or path.count("/") == 1):
            continue
        for parameter in known:
            if "enum" in parameter.schema:
                where = at(path.replace("{mesh}", mesh).replace("{kri}", f"kri_dp_{mesh}_default__nobody_80"))
                answer = plane("GET", f"{where}?{parameter.name}=trrrue")
                assert answer.status == 400, (path, parameter.name)
                assert parameter.name in answer.body.decode()


def test_the_nearest_parameter_is_named(plane):
    answer = plane("GET", "/meshes/default/dataplanes?gatway=true&siz=3")
    assert [(field, reason.partition("; ")[2]) for field, reason in answer.fields] == [
        ("gatway", 'did you mean "gateway"?'),
        ("siz", 'did you mean "size"?'),
    ]
    assert answer.json["title"] == "Could not retrieve resources"
    answer = plane("GET", "/meshes/default/meshtimeouts/x?revision=60")
    ((field, reason),) = answer.fields
    assert (answer.status, field) == (400, "revision")
    assert "format" in reason
    assert plane("GET", "/config?x=1").fields == [
        ("x", 'there is no query parameter "x" here; there are none')
    ]


def test_a_list_refuses_a_revision_without_a_watch(plane):
    assert plane("GET", "/meshes/default/meshtimeouts?revision=60").status == 400


@pytest.mark.parametrize(
    "path",
    [
        "/meshes/default/meshtimeouts/mesh-timeout-all-default?format=kubernetes&mesh=default&include=k8s",
        "/meshes/default/meshtimeouts?size=5&offset=0&name=&include=k8s&mesh=default",
        "/_resources?size=100&offset=0",
        "/policies?mesh=default",
    ],
)
def test_what_kumas_programs_send_with_any_read_goes_on_working(plane, path):
    assert plane("GET", path).status == 200


@pytest.fixture
def fleet(plane, mesh):
    def put(name, labels=None, **networking):
        document = {"type": "Dataplane", "mesh": mesh, "name": name, "labels": labels or {}}
        document["networking"] = {"address": "10.0.0.1", **networking}
        assert plane("PUT", f"/meshes/{mesh}/dataplanes/{name}", document).status == 201

    def tagged(**tags):
        return {"kuma.io/service": tags.pop("service"), **tags}

    put("api", inbound=[{"port": 80, "tags": tagged(service="api", version="v1-beta")}])
    put(
        "web",
        {"team": "red"},
        inbound=[
            {"port": 80, "tags": tagged(service="web")},
            {"port": 81, "tags": tagged(service="admin", version="v1")},
        ],
    )
    put("kong", gateway={"tags": tagged(service="kong")})
    put("edge", gateway={"type": "BUILTIN", "tags": tagged(service="edge")})
    return f"/meshes/{mesh}/dataplanes"


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("gateway=true", ["edge", "kong"]),
        ("gateway=false", ["api", "web"]),
        ("gateway=builtin", ["edge"]),
        ("gateway=delegated", ["kong"]),
        ("gateway=", ["api", "edge", "kong", "web"]),
        ("tag=kuma.io/service:we", ["web"]),
        ("tag=version:v1", ["api", "web"]),
        ("tag=version:*", ["api", "web"]),
        ("tag=kuma.io/service:web&tag=version:v1", []),  # of two inbounds
        ("tag=kuma.io/service:admin&tag=version:v1", ["web"]),
        ("tag=kuma.io/service:edge", ["edge"]),
        ("tag=team:red", ["web"]),
        ("tag=version:v1&gateway=true", []),
        ("tag=version:v1&name=ap", ["api"]),
    ],
)
def test_dataplanes_by_tags_and_gateways(plane, fleet, query, names):
    found = plane("GET", f"{fleet}?{query}").json
    assert [item["name"] for item in found["items"]] == names
    assert found["total"] == len(names)


def test_pages_of_a_filtered_list_keep_the_filter(plane, fleet):
    page = plane("GET", f"{fleet}?gateway=true&tag=kuma.io/service:*&size=1").json
    assert [item["name"] for item in page["items"]] == ["edge"]
    rest = plane("GET", page["next"].removeprefix(plane.address)).json
    assert ([item["name"] for item in rest["items"]], rest["next"]) == (["kong"], None)


def test_wrong_filters_are_refused(plane, fleet):
    answer = plane("GET", f"{fleet}?gateway=foo")
    text = "shoud use `true`, `false`, 'builtin' or 'delegated' instead of foo"
    assert (answer.status, answer.fields) == (400, [(f"{fleet}.gateway", text)])
    answer = plane("GET", f"{fleet}?tag=version")
    assert (answer.status, answer.fields) == (400, [("tag", 'must be <tag>:<value>, not "version"')])
    assert plane("GET", f"{fleet}?mesh=other").fields[0][0] == "mesh"
    assert plane("GET", "/meshes/default/meshtimeouts?tag=a:b").fields[0][0] == "tag"


def test_lists_by_namespace_and_mesh(plane, mesh):
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"ns-{mesh}"}}
    assert plane("POST", "/api/v1/namespaces", namespace).status == 201
    labels = {"k8s.kuma.io/namespace": f"ns-{mesh}"}
    objects = [timeout("plain", mesh), timeout(f"spaced.ns-{mesh}", mesh, labels=labels)]
    answer = plane("POST", "/_apply", {"objects": objects})
    assert answer.status == 200, answer.json
    found = plane("GET", f"/meshes/{mesh}/meshtimeouts?namespace=ns-{mesh}").json["items"]
    assert [item["name"] for item in found] == [f"spaced.ns-{mesh}"]
    found = plane("GET", f"/meshtimeouts?mesh={mesh}").json["items"]
    assert [item["name"] for item in found] == ["plain", f"spaced.ns-{mesh}"]


def test_a_watch_filters_as_a_list_does(plane, fleet):
    with plane.watch(f"{fleet}?watch=true&gateway=builtin") as lines:
        assert [event["object"]["name"] for event in lines.until("BOOKMARK")] == ["edge"]
    with plane.watch(f"{fleet}?watch=true&gateway=foo") as lines:
        assert lines.status == 400


def test_a_list_in_the_kubernetes_form(plane, mesh):
    plane("PUT", f"/meshes/{mesh}/meshtimeouts/slow", timeout(mesh=mesh))
    (item,) = plane("GET", f"/meshes/{mesh}/meshtimeouts?format=kubernetes").json["items"]
    assert (item["kind"], item["metadata"]["name"]) == ("MeshTimeout", "slow")
