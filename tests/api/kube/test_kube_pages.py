"""What describes the API: discovery in two forms, OpenAPI in two versions, and who answers."""

import hashlib

import pytest

from tests.control_plane import LocalControlPlane
from tests.kube import gnostic
from tests.kube_client import ANONYMOUS, failure, failure_with_causes

pytestmark = pytest.mark.slow

JSON = "application/json"
V2, V2BETA1 = (
    f"{JSON};g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList" for version in ("v2", "v2beta1")
)
PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
GATEWAY_API = "gateway.networking.k8s.io"
GROUPS = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "batch",
    "coordination.k8s.io",
    "events.k8s.io",
    "extensions",
    GATEWAY_API,
    "kuma.io",
    "networking.k8s.io",
    "rbac.authorization.k8s.io",
    "koguma.io",
]


def plain(plane):
    """All resources of the plain form, by group version and name."""
    roots = ["/api/v1"]
    for group in plane("GET", "/apis").json["groups"]:
        roots += [f"/apis/{version['groupVersion']}" for version in group["versions"]]
    lists = [plane("GET", root).json for root in roots]
    return {(one["groupVersion"], entry["name"]): entry for one in lists for entry in one["resources"]}


def aggregated(plane, accept=V2):
    """The same of the aggregated form."""
    found = {}
    for path in ("/api", "/apis"):
        for item in plane("GET", path, Accept=accept).json["items"]:
            group = item["metadata"].get("name", "")
            for version in item["versions"]:
                name = f"{group}/{version['version']}" if group else version["version"]
                found |= {(name, entry["resource"]): entry for entry in version["resources"]}
    return found


def test_groups_and_versions_are_told_step_by_step(plane):
    assert plane("GET", "/api").json["versions"] == ["v1"]
    listed = plane("GET", "/apis").json
    assert [group["name"] for group in listed["groups"]] == GROUPS
    for group in listed["groups"]:
        alone = plane("GET", f"/apis/{group['name']}").json
        assert alone == {"kind": "APIGroup", "apiVersion": "v1", **group}
        preferred = group["preferredVersion"]["groupVersion"]
        assert plane("GET", f"/apis/{preferred}").json["groupVersion"] == preferred


@pytest.mark.parametrize("accept", [V2, V2BETA1])
def test_both_forms_name_the_same_resources_and_the_same_sets(plane, accept):
    by_step, at_once = plain(plane), aggregated(plane, accept)
    whole = {key: entry for key, entry in by_step.items() if "/" not in key[1]}
    assert set(whole) == set(at_once)
    for key, entry in whole.items():
        other = at_once[key]
        assert entry["resourceID"] == other["resourceID"]
        assert entry.get("storageVersionHash") == other.get("storageVersionHash")
        assert (entry["kind"], entry["verbs"]) == (other["responseKind"]["kind"], other["verbs"])
        assert ("Namespaced" if entry["namespaced"] else "Cluster") == other["scope"]


def test_the_same_objects_have_one_id_and_others_another(plane):
    ids = {key: entry.get("resourceID", "") for key, entry in plain(plane).items()}
    for (version, name), found in ids.items():
        assert bool(found) is ("/" not in name), "parts of objects have none"
        if version == "koguma.io/v1" and found:
            assert found == ids["kuma.io/v1alpha1", name]
    assert ids["v1", "events"] == ids["events.k8s.io/v1", "events"]
    assert ids["v1", "secrets"] != ids["kuma.io/v1alpha1", "secrets"]
    assert ids["v1", "configmaps"] == hashlib.sha256(b"/registry/configmaps").hexdigest()
    reviews = ids["authentication.k8s.io/v1", "tokenreviews"]
    assert reviews == hashlib.sha256(b"/registry/tokenreviews").hexdigest()
    sets = {found for found in ids.values() if found}
    older = {f"{GATEWAY_API}/{version}" for version in ("v1beta1", "v1alpha3", "v1alpha2")}
    aliases = sum(
        version in ("koguma.io/v1", "events.k8s.io/v1", "extensions/v1beta1", "batch/v1beta1", *older)
        for version, name in ids
        if ids[version, name]
    )
    assert ids["v1", "services"] == ids["kuma.io/v1alpha1", "meshservices"]
    assert ids["extensions/v1beta1", "ingresses"] == ids["networking.k8s.io/v1", "ingresses"]
    aliases += 1  # services
    assert len(sets) == sum(bool(found) for found in ids.values()) - aliases


def test_the_stored_version_is_told_of_what_is_stored(plane):
    found = plain(plane)
    assert found["v1", "events"]["storageVersionHash"] == "r2yiGXH7wu8="
    assert found["events.k8s.io/v1", "events"]["storageVersionHash"] == "r2yiGXH7wu8="
    assert "storageVersionHash" not in found["authentication.k8s.io/v1", "tokenreviews"]


def test_the_plain_form_names_the_same_ids(plane):
    ids = {entry["name"]: entry["resourceID"] for entry in plane("GET", "/_resources").json["resources"]}
    timeouts = plain(plane)["kuma.io/v1alpha1", "meshtimeouts"]
    assert ids["MeshTimeout"] == timeouts["resourceID"]


def test_the_gate_hides_the_ids_everywhere_and_nothing_else(plane, tmp_path):
    with LocalControlPlane(tmp_path, feature_gates="ResourceID=false") as gated:
        assert "resourceID" not in gated("GET", "/_resources").body.decode()
        for found, with_ids in (
            (plain(gated), plain(plane)),
            (aggregated(gated), aggregated(plane)),
            (aggregated(gated, V2BETA1), aggregated(plane, V2BETA1)),
        ):
            without = {
                key: {name: value for name, value in entry.items() if name != "resourceID"}
                for key, entry in with_ids.items()
            }
            assert found == without
            assert found["v1", "configmaps"]["storageVersionHash"]


@pytest.mark.parametrize("path", ["/api", "/apis"])
@pytest.mark.parametrize("accept", [JSON, V2, V2BETA1])
def test_discovery_is_asked_for_again_only_when_it_changed(plane, path, accept):
    first = plane("GET", path, Accept=accept)
    assert (first.headers["Vary"], first.headers["Cache-Control"]) == ("Accept", "public")
    assert first.headers["Content-Type"] == accept
    again = plane("GET", path, Accept=accept, If_None_Match=first.headers["ETag"])
    assert (again.status, again.body, again.headers["ETag"]) == (304, b"", first.headers["ETag"])
    assert again.headers["Vary"] == "Accept"
    assert plane("GET", path, Accept=accept, If_None_Match='"other"').status == 200


def test_each_form_has_its_own_etag(plane):
    assert len({plane("GET", "/apis", Accept=accept).headers["ETag"] for accept in (JSON, V2, V2BETA1)}) == 3


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (f"{V2},{V2BETA1},{JSON}", "APIGroupDiscoveryList"),
        (f"{V2.replace('v=v2', 'v=v9')},{JSON}", "APIGroupList"),
        ("*/*", "APIGroupList"),
        (f"application/vnd.kubernetes.protobuf,{JSON}", "APIGroupList"),
    ],
)
def test_the_first_form_that_we_have_is_served(plane, accept, kind):
    assert plane("GET", "/apis", Accept=accept).json["kind"] == kind


def test_a_form_that_we_do_not_have_is_refused(plane):
    for accept in (V2.replace("v=v2", "v=v9"), "application/vnd.kubernetes.protobuf"):
        assert failure_with_causes(plane("GET", "/apis", Accept=accept)) == (406, "NotAcceptable", [])


def test_the_index_of_openapi_leads_to_documents_by_their_hashes(plane):
    index = plane("GET", "/openapi/v3")
    paths = index.json["paths"]
    assert {"api/v1", "apis/kuma.io/v1alpha1", "apis/koguma.io/v1"} <= set(paths)
    assert plane("GET", "/openapi/v3", If_None_Match=index.headers["ETag"]).status == 304
    for name in ("api/v1", "apis/kuma.io/v1alpha1"):
        address = paths[name]["serverRelativeURL"]
        assert address.startswith(f"/openapi/v3/{name}?hash=")
        document = plane("GET", address)
        assert document.json["openapi"].startswith("3.0")
        assert document.headers["ETag"].strip('"') == address.partition("hash=")[2]
        assert f"/{name}/{'configmaps' if name == 'api/v1' else 'meshtimeouts'}" in document.json["paths"]
        assert plane("GET", address, If_None_Match=document.headers["ETag"]).status == 304


@pytest.mark.parametrize("accept", [JSON, "*/*", f"{JSON}, {PROTOBUF}"])
def test_openapi_v2_is_json_for_most(plane, accept):
    answer = plane("GET", "/openapi/v2", Accept=accept)
    assert (answer.json["swagger"], answer.headers["Content-Type"]) == ("2.0", JSON)
    assert "/apis/kuma.io/v1alpha1/meshtimeouts" in answer.json["paths"]
    assert plane("GET", "/openapi/v2", Accept=accept, If_None_Match=answer.headers["ETag"]).status == 304


def test_openapi_v2_is_protobuf_for_who_asks(plane):
    answer = plane("GET", "/openapi/v2", Accept=PROTOBUF)
    assert answer.headers["Content-Type"] == PROTOBUF.replace("@", ".")
    assert answer.headers["Vary"] == "Accept, Accept-Encoding"
    document = gnostic.read(answer.body)
    assert set(document["paths"]) == set(plane("GET", "/openapi/v2", Accept=JSON).json["paths"])
    assert failure_with_causes(plane("GET", "/openapi/v2", Accept="text/html")) == (406, "NotAcceptable", [])


@pytest.mark.parametrize(
    "path",
    ["/version", "/api", "/apis", "/apis/kuma.io", "/apis/kuma.io/v1alpha1", "/api/v1", "/api/v1/namespaces"],
)
def test_a_slash_at_the_end_does_no_harm(plane, path):
    assert plane("GET", f"{path}/").json == plane("GET", path).json


def test_the_version_is_told_to_everybody(plane):
    told = plane("GET", "/version", **ANONYMOUS).json
    assert (told["major"], told["gitVersion"].startswith(f"v1.{told['minor']}.")) == ("1", True)
    assert set(told) >= {"gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"}


@pytest.mark.parametrize("word", ["healthz", "livez", "readyz"])
def test_health_is_told_to_everybody(plane, word):
    answer = plane("GET", f"/{word}", **ANONYMOUS)
    assert (answer.status, answer.text, answer.headers["Content-Type"]) == (
        200,
        "ok",
        "text/plain; charset=utf-8",
    )
    lines = plane("GET", f"/{word}?verbose", **ANONYMOUS).text.splitlines()
    assert (lines[0], lines[-1]) == ("[+]ping ok", f"{word} check passed")
    assert plane("GET", f"/{word}/ping", **ANONYMOUS).text == "ok"
    assert plane("GET", f"/{word}/nothing", **ANONYMOUS).status == 404
    lines = plane("GET", f"/{word}?verbose&exclude=ping&exclude=nothing", **ANONYMOUS).text.splitlines()
    assert lines[0] == "[+]ping excluded: ok"
    assert lines[-2] == 'warn: some health checks cannot be excluded: no matches for "nothing"'


@pytest.mark.parametrize("path", ["/api", "/apis", "/apis/kuma.io/v1alpha1/meshes", "/openapi/v3"])
@pytest.mark.parametrize(
    ("timeout", "problem"),
    [
        ("abc", 'time: invalid duration "abc"'),
        ("5", 'time: missing unit in duration "5"'),
        ("1h5x", 'time: unknown unit "x" in duration "1h5x"'),
        ("-", 'time: invalid duration "-"'),
    ],
)
def test_a_timeout_is_a_duration(plane, path, timeout, problem):
    answer = plane("GET", f"{path}?timeout={timeout}")
    assert failure(answer) == (400, "BadRequest")
    assert answer.json["message"] == f"invalid timeout specified in the request URL - {problem}"
    for valid in ("32s", "1h1.5m", "0", ".5s", "-1ms", ""):
        assert plane("GET", f"{path}?timeout={valid}").status == 200


@pytest.mark.parametrize("name", ["limit", "timeoutSeconds"])
def test_numbers_in_a_query_are_numbers(plane, name):
    for text, problem in (("abc", "invalid syntax"), ("9" * 30, "value out of range")):
        answer = plane("GET", f"/api/v1/namespaces?{name}={text}")
        assert failure(answer) == (400, "BadRequest")
        assert answer.json["message"] == f'strconv.ParseInt: parsing "{text}": {problem}'
    assert plane("GET", f"/api/v1/namespaces?{name}=-1").status == 200


def test_a_document_of_openapi_never_changes_under_its_digest(plane):
    index = plane("GET", "/openapi/v3").json["paths"]
    url = index["apis/kuma.io/v1alpha1"]["serverRelativeURL"]
    answer = plane("GET", url)
    assert (answer.status, "immutable" in answer.headers["Cache-Control"]) == (200, True)
    assert "immutable" in plane("GET", url, If_None_Match=answer.headers["ETag"]).headers["Cache-Control"]
    path = url.partition("?")[0]
    assert "immutable" not in plane("GET", path).headers["Cache-Control"]
    moved = plane("GET", f"{path}?hash=0123")
    assert (moved.status, moved.headers["Location"]) == (301, url)


@pytest.mark.parametrize(
    "path",
    [
        "/api/v2",
        "/api/v2/configmaps",
        "/apis/nothing.example.com",
        "/apis/nothing.example.com/v1",
        "/apis/nothing.example.com/v1/things",
        "/apis/kuma.io/v7",
        "/apis/kuma.io/v7/meshes",
        "/openapi/v3/apis/nothing",
    ],
)
def test_a_path_that_nobody_knows_is_told_in_plain_text(plane, path):
    answer = plane("GET", path)
    assert (answer.status, answer.body) == (404, b"404 page not found\n")
    assert answer.headers["Content-Type"].startswith("text/plain")


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/nothings",
        "/api/v1/namespaces/default/nothings/x",
        "/api/v1/namespaces/default/configmaps/x/scale",
        "/apis/kuma.io/v1alpha1/nothings",
    ],
)
def test_a_resource_that_a_known_version_does_not_have_is_a_status(plane, path):
    answer = plane("GET", path)
    assert failure_with_causes(answer) == (404, "NotFound", [])
    assert answer.json["message"].startswith("the server could not find the requested resource")


def test_an_object_that_is_not_there_is_named(plane):
    answer = plane("GET", "/apis/kuma.io/v1alpha1/namespaces/default/meshtimeouts/none")
    assert failure_with_causes(answer) == (404, "NotFound", [])
    assert answer.json["message"] == 'meshtimeouts.kuma.io "none" not found'
    assert answer.json["details"] == {"name": "none", "group": "kuma.io", "kind": "meshtimeouts"}


def test_a_method_that_a_path_does_not_have_is_refused(plane):
    for method, path in (("POST", "/api/v1/configmaps"), ("PUT", "/api"), ("DELETE", "/api/v1/namespaces")):
        assert failure_with_causes(plane(method, path))[:2] == (405, "MethodNotAllowed")


@pytest.mark.parametrize("path", ["/api", "/apis/kuma.io/v1alpha1", "/openapi/v2", "/api/v1/configmaps"])
def test_who_is_unknown_gets_a_status(plane, path):
    assert failure_with_causes(plane("GET", path, **ANONYMOUS)) == (403, "Forbidden", [])
    assert failure_with_causes(plane("GET", path, Authorization="Bearer wrong")) == (401, "Unauthorized", [])


def test_a_refusal_says_who_cannot_do_what_where(plane):
    answer = plane("GET", "/apis/kuma.io/v1alpha1/namespaces/shop/meshtimeouts", **ANONYMOUS)
    said = 'cannot list resource "meshtimeouts" in API group "kuma.io" in the namespace "shop"'
    assert answer.json["message"].startswith("meshtimeouts.kuma.io is forbidden: User ")
    assert answer.json["message"].endswith(said)
