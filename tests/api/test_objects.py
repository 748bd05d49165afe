"""The plain form as a Kuma 2.13 user knows it, and what it does better."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.build import timeout


def url(mesh, name="slow", path="meshtimeouts"):
    return f"/meshes/{mesh}/{path}/{name}"


def test_create_read_replace_delete(plane, mesh):
    created = plane("PUT", url(mesh), timeout(mesh=mesh))
    assert (created.status, created.json) == (201, {})
    read = plane("GET", url(mesh))
    assert read.status == 200
    assert read.json["spec"] == timeout()["spec"]
    assert read.json["kri"] == f"kri_mt_{mesh}_default__slow_"
    assert read.json["labels"] == {
        "kuma.io/display-name": "slow",
        "kuma.io/env": "universal",
        "kuma.io/mesh": mesh,
        "kuma.io/origin": "zone",
        "kuma.io/zone": "default",
    }
    assert plane("PUT", url(mesh), timeout(mesh=mesh, idle="9s")).status == 200
    assert plane("GET", url(mesh)).json["spec"]["to"][0]["default"] == {"idleTimeout": "9s"}
    assert plane("DELETE", url(mesh)).json == {}
    gone = plane("GET", url(mesh))
    assert (gone.status, gone.json["title"], gone.json["detail"]) == (
        404,
        "Could not retrieve a resource",
        "Not found",
    )
    assert gone.fields == [("name", f'there is no MeshTimeout "slow" in mesh "{mesh}"')]
    assert plane("DELETE", url(mesh)).json["title"] == "Could not delete a resource"


def test_inline_kinds_have_their_fields_at_the_top(plane, mesh):
    networking = {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "web"}}]}
    document = {"type": "Dataplane", "name": "web-1", "mesh": mesh, "networking": networking}
    assert plane("PUT", url(mesh, "web-1", "dataplanes"), document).status == 201
    read = plane("GET", url(mesh, "web-1", "dataplanes")).json
    assert read["networking"] == networking
    assert "spec" not in read


def test_kinds_without_a_mesh_stand_at_the_root(plane):
    document = {"type": "Zone", "name": "west", "enabled": False}
    assert plane("PUT", "/zones/west", document).status == 201
    assert plane("GET", "/zones/west").json["enabled"] is False
    assert plane("DELETE", "/zones/west").status == 200


def test_an_alias_serves_the_same_objects(plane):
    document = {"type": "GlobalSecret", "name": "tea", "data": "dGVh"}
    assert plane("PUT", "/global-secrets/tea", document).status == 201
    assert plane("GET", "/globalsecrets/tea").json["data"] == "dGVh"


def test_a_missing_mesh_is_said_so(plane):
    for method, body in (("GET", None), ("PUT", timeout(mesh="nope")), ("DELETE", None)):
        answer = plane(method, url("nope"), body)
        assert (answer.status, answer.json["title"]) == (404, "Failed to retrieve Mesh")
    assert plane("GET", "/meshes/nope/meshtimeouts").status == 404


def test_the_body_must_say_what_the_url_says(plane, mesh):
    answer = plane("PUT", url(mesh), {**timeout("other", "another"), "type": "MeshRetry"})
    assert answer.status == 400
    assert answer.fields == [
        ("name", "name from the URL has to be the same as in body"),
        ("type", "type from the URL has to be the same as in body"),
        ("mesh", "mesh from the URL has to be the same as in body"),
    ]


DESTINATIONS = ("Mesh", "MeshService", "MeshExternalService", "MeshMultiZoneService", "MeshHTTPRoute")


def test_everything_wrong_comes_back_with_its_place(plane, mesh):
    spec = {"to": [{"targetRef": {"kind": "Dataplane"}, "default": {"idleTimeout": "-1s"}}], "form": []}
    answer = plane("PUT", url(mesh), timeout(mesh=mesh, spec=spec))
    assert answer.status == 400
    assert answer.json["title"] == "Could not process a resource"
    assert answer.json["detail"] == "Resource is not valid"
    assert answer.fields == [
        ("spec.form", 'unknown field "form"; did you mean "from"?'),
        (
            "spec.to[0].targetRef.kind",
            f"value 'Dataplane' is not supported; use {', '.join(DESTINATIONS)} or MeshTCPRoute here",
        ),
        ("spec.to[0].default.idleTimeout", "must not be negative when defined"),
    ]
    assert [cause["field"] for cause in answer.json["causes"]] == [field for field, _ in answer.fields]


def test_unknown_fields_can_be_let_through(plane, mesh):
    document = timeout(mesh=mesh, extra=1)
    ((field, reason),) = plane("PUT", url(mesh), document).fields
    assert field == "extra"
    assert reason.startswith('unknown field "extra"; known fields are type, name, mesh, labels')
    warned = plane("PUT", url(mesh) + "?fieldValidation=Warn", document)
    assert warned.status == 201
    assert warned.json["warnings"][0].startswith('extra: unknown field "extra"')
    assert plane("PUT", url(mesh) + "?fieldValidation=Ignore", document).json == {}
    assert plane("PUT", url(mesh) + "?fieldValidation=Perhaps", document).status == 400


def test_deprecations_are_warnings(plane, mesh):
    spec = {**timeout()["spec"], "targetRef": {"kind": "MeshSubset", "tags": {"a": "b"}}}
    answer = plane("PUT", url(mesh), timeout(mesh=mesh, spec=spec))
    assert answer.json == {
        "warnings": ["MeshSubset value for 'targetRef.kind' is deprecated, use Dataplane with labels instead"]
    }


def test_an_etag_guards_against_lost_updates(plane, mesh):
    first = plane("PUT", url(mesh), timeout(mesh=mesh)).headers["ETag"]
    assert plane("GET", url(mesh)).headers["ETag"] == first
    assert plane("GET", url(mesh), If_None_Match=first).status == 304
    second = plane("PUT", url(mesh), timeout(mesh=mesh, idle="6s"), If_Match=first).headers["ETag"]
    refused = plane("PUT", url(mesh), timeout(mesh=mesh, idle="7s"), If_Match=first)
    assert refused.status == 412
    assert f"the stored object is {second}" in refused.json["detail"]
    assert plane("PUT", url(mesh), timeout(mesh=mesh), If_None_Match="*").status == 412
    assert plane("DELETE", url(mesh), If_Match=first).status == 412
    assert plane("DELETE", url(mesh), If_Match=second).status == 200


def test_of_many_who_create_the_same_nobody_is_refused(plane, mesh):
    """Without a precondition the last one wins; with one, exactly one wins and the others hear 412."""
    with ThreadPoolExecutor(8) as pool:
        documents = [timeout("race", mesh, idle=f"{number}s") for number in range(1, 17)]
        statuses = [a.status for a in pool.map(lambda d: plane("PUT", url(mesh, "race"), d), documents)]
        assert set(statuses) == {200, 201}
        guarded = [timeout("once", mesh)] * 16
        answers = pool.map(lambda d: plane("PUT", url(mesh, "once"), d, If_None_Match="*"), guarded)
        assert sorted(answer.status for answer in answers) == [201] + [412] * 15
        applied = pool.map(lambda d: plane("POST", "/_apply", [{**d, "name": "applied"}]), documents)
        assert {answer.status for answer in applied} == {200}


def test_writing_the_same_again_changes_nothing(plane, mesh):
    first = plane("PUT", url(mesh), timeout(mesh=mesh)).headers["ETag"]
    assert plane("PUT", url(mesh), timeout(mesh=mesh)).headers["ETag"] == first


def test_patches(plane, mesh):
    plane("PUT", url(mesh), timeout(mesh=mesh))
    merge = {"labels": {"team": "red"}}
    assert plane("PATCH", url(mesh), merge, Content_Type="application/merge-patch+json").status == 200
    operations = [{"op": "replace", "path": "/spec/to/0/default/idleTimeout", "value": "8s"}]
    assert plane("PATCH", url(mesh), operations, Content_Type="application/json-patch+json").status == 200
    read = plane("GET", url(mesh)).json
    assert read["labels"]["team"] == "red"
    assert read["spec"]["to"][0]["default"]["idleTimeout"] == "8s"
    bad = plane("PATCH", url(mesh), {"spec": {"to": 5}}, Content_Type="application/merge-patch+json")
    assert bad.fields == [("spec.to", 'in body must be of type array: "integer"')]
    broken = plane(
        "PATCH", url(mesh), [{"op": "remove", "path": "/no"}], Content_Type="application/json-patch+json"
    )
    assert (broken.status, broken.fields[0][0]) == (400, "[0]")
    assert plane("PATCH", url(mesh), {}, Content_Type="application/json").status == 415


def test_a_dry_run_checks_and_writes_nothing(plane, mesh):
    assert plane("PUT", url(mesh) + "?dryRun=All", timeout(mesh=mesh)).status == 201
    assert plane("GET", url(mesh)).status == 404
    assert plane("PUT", url(mesh) + "?dryRun=All", timeout(mesh=mesh, idle="x")).status == 400
    plane("PUT", url(mesh), timeout(mesh=mesh))
    assert plane("DELETE", url(mesh) + "?dryRun=All").status == 200
    assert plane("GET", url(mesh)).status == 200


def test_a_mesh_with_dataplanes_stays(plane, mesh):
    document = {"type": "Dataplane", "name": "d", "mesh": mesh, "networking": {"address": "10.0.0.1"}}
    assert plane("PUT", url(mesh, "d", "dataplanes"), document).status == 201
    refused = plane("DELETE", f"/meshes/{mesh}")
    assert refused.fields == [("mesh", "unable to delete mesh, there are still some dataplanes attached")]
    plane("PUT", url(mesh), timeout(mesh=mesh))
    plane("DELETE", url(mesh, "d", "dataplanes"))
    assert plane("DELETE", f"/meshes/{mesh}").status == 200
    assert plane("GET", f"/meshes/{mesh}").status == 404
    assert mesh not in [item["mesh"] for item in plane("GET", "/meshtimeouts?size=1000").json["items"]]


def test_a_new_mesh_brings_its_policies_and_its_key(plane):
    plane("PUT", "/meshes/fresh", {"type": "Mesh", "name": "fresh"})
    names = [item["name"] for item in plane("GET", "/meshes/fresh/meshtimeouts").json["items"]]
    assert names == ["mesh-gateways-timeout-all-fresh", "mesh-timeout-all-fresh"]
    assert plane("GET", "/meshes/fresh/meshretries/mesh-retry-all-fresh").status == 200
    assert plane("GET", "/meshes/fresh/meshcircuitbreakers/mesh-circuit-breaker-all-fresh").status == 200
    assert plane("GET", "/meshes/fresh/secrets/dataplane-token-signing-key-fresh-1").status == 200


@pytest.mark.parametrize("query", ["", "?dryRun=All", "?fieldValidation=Ignore"])
def test_a_patch_is_judged_by_envoys_messages_when_it_is_written(plane, mesh, query):
    value = "connect_timeout: 1s\nlb_policy: NO_SUCH\n"
    changes = [
        {"cluster": {"operation": "Patch", "value": {"lb_polici": "RANDOM"}}},
        {"cluster": {"operation": "Patch", "value": value}},
        {"cluster": {"operation": "Patch", "jsonPatches": [{"op": "remove", "path": "/lbPolici"}]}},
    ]
    document = {"type": "MeshProxyPatch", "mesh": mesh, "name": "p"}
    spec = {"default": {"appendModifications": changes}}
    refused = plane("PUT", url(mesh, "p", "meshproxypatches") + query, {**document, "spec": spec})
    assert refused.status == 400
    at = "spec.default.appendModifications"
    assert [(field, reason.split("; ")[-1].split(" of ")[0]) for field, reason in refused.fields] == [
        (f"{at}[0].cluster.value.lb_polici", 'did you mean "lb_policy"?'),
        (f"{at}[1].cluster.value.lb_policy", 'line 2: "NO_SUCH" is not one'),
        (f"{at}[2].cluster.jsonPatches[0].path", 'did you mean "lbPolicy"?'),
    ]
    applied = plane("POST", f"/_apply{query}", [{**document, "spec": spec}])
    assert [field for field, _ in applied.fields] == [f"objects[0].{field}" for field, _ in refused.fields]
    changes[:] = [{"cluster": {"operation": "Patch", "value": {"lb_policy": "RANDOM"}}}]
    assert plane("PUT", url(mesh, "p", "meshproxypatches") + query, {**document, "spec": spec}).status < 300


def secret(mesh, name):
    return {"type": "Secret", "mesh": mesh, "name": name, "data": "YQ=="}


@pytest.mark.parametrize("query", ["", "?dryRun=All"])
def test_a_provided_ca_needs_its_secrets(plane, mesh, query):
    backend = {"name": "ca", "type": "provided", "conf": {"cert": {"secret": "c"}, "key": {"secret": "k"}}}
    document = {"type": "Mesh", "name": mesh, "mtls": {"backends": [backend]}}
    path = f"/meshes/{mesh}{query}"
    missing = [
        (
            f"mtls.backends[0].conf.{part}",
            (
                f'could not load data: Resource not found: type="Secret" name="{name}" mesh="{mesh}";'
                " write it first, or in the same apply"
            ),
        )
        for part, name in (("cert", "c"), ("key", "k"))
    ]
    refused = plane("PUT", path, document)
    assert (refused.status, refused.fields) == (400, missing)
    plane("PUT", f"/meshes/{mesh}/secrets/c", secret(mesh, "c"))
    assert plane("PUT", path, document).fields == missing[1:]
    applied = plane("POST", f"/_apply{query}", [document])
    assert applied.fields == [(f"objects[0].{field}", message) for field, message in missing[1:]]
    unchecked = {**document, "mtls": {"skipValidation": True, "backends": [backend]}}
    assert plane("PUT", path, unchecked).status == 200
    assert plane("POST", f"/_apply{query}", [document, secret(mesh, "k")]).status == 200


def test_a_secret_in_use_stays(plane):
    backend = {"name": "ca", "type": "provided", "conf": {"cert": {"secret": "c"}, "key": {"secret": "k"}}}
    document = {"type": "Mesh", "name": "tls", "mtls": {"backends": [backend]}}
    assert plane("POST", "/_apply", [document, *(secret("tls", name) for name in "ck")]).status == 200
    ((field, message),) = plane("DELETE", "/meshes/tls/secrets/c").fields
    assert field == "name"
    assert 'currently in use in Mesh "tls" in mTLS backend "ca"' in message


def test_a_read_only_kind_says_why(plane, mesh):
    answer = plane(
        "PUT", url(mesh, "x", "dataplane-insights"), {"type": "DataplaneInsight", "name": "x", "mesh": mesh}
    )
    assert (answer.status, answer.json["title"]) == (405, "Method not allowed")
    assert answer.json["detail"] == "DataplaneInsight is written by the control plane alone"


def test_methods_and_paths_that_are_not_there(plane):
    answer = plane("POST", "/meshes")
    assert (answer.status, answer.json["title"], answer.headers["Allow"]) == (
        405,
        "Method not Allowed",
        "GET",
    )
    unknown = plane("GET", "/meshez")
    assert unknown.status == 404
    assert "GET /_resources lists kinds" in unknown.json["detail"]


@pytest.mark.parametrize("word", ["k8s", "kubernetes"])
def test_the_kubernetes_form_can_be_asked_for(plane, mesh, word):
    plane("PUT", url(mesh), timeout(mesh=mesh))
    read = plane("GET", url(mesh) + f"?format={word}").json
    assert (read["apiVersion"], read["kind"]) == ("kuma.io/v1alpha1", "MeshTimeout")
    assert read["metadata"]["namespace"] == "kuma-system"
    assert read["metadata"]["labels"]["kuma.io/mesh"] == mesh
    bad = plane("GET", url(mesh) + "?format=xml")
    assert bad.fields == [("", '"format" must be one of ["k8s", "kubernetes", "universal"]')]
