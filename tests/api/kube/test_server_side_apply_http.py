"""Server-side apply over HTTP: who owns which field, whichever way it is written."""

import json

import pytest

from tests.kube_client import (
    APPLY,
    CORE,
    KOGUMA,
    accepted,
    causes,
    failure,
    managers,
    patch_spec,
    revision,
    timeout_spec,
)


def test_an_apply_creates_what_is_not_there(config_maps, timeouts):
    answer = config_maps.apply("a", "one", data={"x": "1"})
    assert answer.status == 201
    assert managers(answer.json) == {("one", "Apply"): {"f:data": {"f:x": {}}}}
    ours = timeouts.apply("a", "one", spec=timeout_spec())
    assert ours.status == 201
    (entry,) = ours.json["metadata"]["managedFields"]
    assert (entry["operation"], entry["apiVersion"], entry["fieldsType"]) == (
        "Apply",
        timeouts.version,
        "FieldsV1",
    )
    assert set(entry["fieldsV1"]) == {"f:spec"}


def test_the_same_apply_again_changes_nothing(timeouts):
    first = accepted(timeouts.apply("a", "one", spec=timeout_spec()))
    again = timeouts.apply("a", "one", spec=timeout_spec())
    assert (again.status, again.json) == (200, first)


def test_what_another_owns_is_a_conflict_unless_forced(config_maps):
    accepted(config_maps.apply("a", "one", data={"x": "1", "y": "1"}))
    answer = config_maps.apply("a", "two", data={"x": "2"})
    assert failure(answer) == (409, "Conflict")
    assert causes(answer) == [(".data.x", "FieldManagerConflict")]
    assert answer.json["message"] == 'Apply failed with 1 conflict: conflict with "one": .data.x'
    forced = accepted(config_maps.apply("a", "two", force=True, data={"x": "2"}))
    assert forced["data"] == {"x": "2", "y": "1"}
    assert managers(forced) == {
        ("one", "Apply"): {"f:data": {"f:y": {}}},
        ("two", "Apply"): {"f:data": {"f:x": {}}},
    }


def test_what_several_want_alike_belongs_to_all_of_them(config_maps):
    accepted(config_maps.apply("a", "one", data={"x": "1"}))
    both = accepted(config_maps.apply("a", "two", data={"x": "1"}))
    assert managers(both) == {(name, "Apply"): {"f:data": {"f:x": {}}} for name in ("one", "two")}
    left = accepted(config_maps.apply("a", "one"))
    assert left["data"] == {"x": "1"}
    assert "data" not in accepted(config_maps.apply("a", "two"))


def test_what_is_left_out_goes_unless_somebody_else_owns_it(config_maps):
    accepted(config_maps.apply("a", "one", data={"x": "1", "y": "1"}))
    accepted(config_maps.patch("a", {"data": {"z": "1"}}, query={"fieldManager": "three"}))
    assert accepted(config_maps.apply("a", "one", data={"y": "1"}))["data"] == {"y": "1", "z": "1"}


def test_labels_of_the_server_belong_to_nobody_who_applies(timeouts):
    accepted(timeouts.apply("a", "one", metadata={"labels": {"mine": "x"}}, spec=timeout_spec()))
    bare = accepted(timeouts.apply("a", "one", spec=timeout_spec()))
    assert "mine" not in bare["metadata"]["labels"]
    assert bare["metadata"]["labels"]["kuma.io/mesh"] == "default"


def test_a_conflict_with_a_writer_that_does_not_apply_says_when_it_wrote(config_maps):
    accepted(config_maps.create("a", data={"x": "1"}, query={"fieldManager": "hand"}))
    answer = config_maps.apply("a", "one", data={"x": "2"})
    assert failure(answer) == (409, "Conflict")
    assert 'conflict with "hand" using v1' in answer.json["message"]


WRONG = {
    "nobody": ({}, {}, 422, "Invalid"),
    "a manager of too many letters": ({"fieldManager": "x" * 129}, {}, 422, "Invalid"),
    "owners": ({"fieldManager": "one"}, {"metadata": {"managedFields": []}}, 400, "BadRequest"),
    "no version": ({"fieldManager": "one"}, {"apiVersion": ""}, 400, "BadRequest"),
    "no kind": ({"fieldManager": "one"}, {"kind": None}, 400, "BadRequest"),
    "another name": ({"fieldManager": "one"}, {"metadata": {"name": "b"}}, 400, "BadRequest"),
    "metadata that are none": ({"fieldManager": "one"}, {"metadata": "x"}, 422, "Invalid"),
    "a shape that does not fit": ({"fieldManager": "one"}, {"data": ["x"]}, 422, "Invalid"),
    "an old revision": ({"fieldManager": "one"}, {"metadata": {"resourceVersion": "1"}}, 409, "Conflict"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_apply_that_cannot_be_is_refused(config_maps, wrong):
    query, said, status, reason = WRONG[wrong]
    document = {**config_maps.document("a", data={"x": "1"}), **said}
    for _ in ("creates", "changes"):
        assert failure(config_maps.patch("a", document, APPLY, query)) == (status, reason)
        accepted(config_maps.apply("a", "other", metadata={"labels": {"x": "y"}}))


@pytest.mark.parametrize("text", [b"[]", b"5", b"null", b"a: [", b"a: 1\n---\nb: 2\n", b""])
def test_an_apply_of_no_object_is_refused(config_maps, text):
    answer = config_maps.patch("a", text, APPLY, {"fieldManager": "one"})
    assert failure(answer) == (400, "BadRequest")


def test_an_apply_may_be_yaml(config_maps):
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  x: 'on'\n"
    assert config_maps.patch("a", text, APPLY, {"fieldManager": "one"}).json["data"] == {"x": "on"}
    flow = b"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {x: 'off'}}"
    assert config_maps.patch("a", flow, APPLY, {"fieldManager": "one"}).json["data"] == {"x": "off"}


def test_a_dry_run_of_an_apply_stores_nothing(config_maps):
    query = {"fieldManager": "one", "dryRun": "All"}
    tried = config_maps.patch("a", config_maps.document("a", data={"x": "1"}), APPLY, query)
    assert (tried.status, tried.json["data"]) == (201, {"x": "1"})
    assert "resourceVersion" not in tried.json["metadata"]
    assert not config_maps.exists("a")


def test_unknown_fields_of_an_apply_are_told(timeouts):
    document = timeouts.document("a", spec={**timeout_spec(), "tos": []})
    strict = timeouts.patch("a", document, APPLY, {"fieldManager": "one", "fieldValidation": "Strict"})
    assert failure(strict) == (422, "Invalid")
    loose = timeouts.patch("a", document, APPLY, {"fieldManager": "one"})
    assert (loose.status, loose.warnings) == (201, ['unknown field "spec.tos"; did you mean "to"?'])


def test_a_status_is_applied_by_its_own_path(timeouts):
    patches = timeouts.other(kind="MeshProxyPatch")
    accepted(patches.apply("a", "one", spec=patch_spec()))
    status = {"conditions": [{"type": "Tried", "status": "True", "reason": "Tried", "message": ""}]}
    document = patches.document("a", spec={"default": {}}, status=status)
    query = {"fieldManager": "two"}
    told = accepted(patches.patch("a/status", document, APPLY, query))
    assert (told["spec"], told["status"]) == (patch_spec(), status)
    parts = {one["manager"]: one.get("subresource", "") for one in told["metadata"]["managedFields"]}
    assert parts == {"one": "", "two": "status"}
    wrong = patches.document("a", status={"conditions": [{"type": 5}]})
    assert failure(patches.patch("a/status", wrong, APPLY, query)) == (422, "Invalid")
    assert failure(patches.patch("no/status", patches.document("no"), APPLY, query)) == (404, "NotFound")


def test_tracking_can_be_given_up_and_taken_up_again(config_maps):
    accepted(config_maps.apply("a", "one", data={"x": "1"}))
    assert (
        "managedFields"
        not in accepted(config_maps.patch("a", {"metadata": {"managedFields": [{}]}}))["metadata"]
    )
    assert managers(accepted(config_maps.patch("a", {"data": {"y": "1"}}))) == {}
    again = accepted(config_maps.apply("a", "one", data={"x": "1"}))
    assert set(managers(again)) == {("before-first-apply", "Update"), ("one", "Apply")}
    assert managers(again)["before-first-apply", "Update"]["f:data"] == {".": {}, "f:x": {}, "f:y": {}}


def test_an_apply_needs_the_right_to_create_too(config_maps):
    roles = config_maps.other("rbac.authorization.k8s.io/v1", "Role")
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]}]
    accepted(roles.create("patcher", rules=rules))
    bindings = config_maps.other("rbac.authorization.k8s.io/v1", "RoleBinding")
    accepted(
        bindings.create(
            "patcher",
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "patcher"},
            subjects=[{"kind": "User", "name": "pat", "apiGroup": "rbac.authorization.k8s.io"}],
        )
    )

    def apply(name):
        query = {"fieldManager": "pat"}
        return config_maps.patch(
            name, config_maps.document(name, data={"x": "1"}), APPLY, query, Impersonate_User="pat"
        )

    answer = apply("a")
    assert failure(answer) == (403, "Forbidden")
    assert 'cannot create resource "configmaps"' in answer.json["message"]
    accepted(config_maps.create("a"))
    assert apply("a").status == 200


# Objects that are written through the other doors too.


def test_what_the_plain_form_changes_belongs_to_it(timeouts):
    """An apply of somebody else finds a conflict, and not that its change is gone."""
    accepted(timeouts.apply("a", "one", metadata={"labels": {"x": "1"}}, spec=timeout_spec("5s")))
    path = f"/meshes/default/meshtimeouts/a.{timeouts.namespace}"
    plain = timeouts.plane("GET", path).json
    changed = {**plain, "spec": timeout_spec("6s")}
    assert timeouts.plane("PUT", path, changed).status == 200
    now = timeouts.get("a")
    found = managers(now)
    assert set(found) == {("one", "Apply"), ("koguma-rest", "Update")}
    assert set(found["koguma-rest", "Update"]) == {"f:spec"}
    assert "f:spec" not in json.dumps(found["one", "Apply"]["f:metadata"])
    answer = timeouts.apply("a", "one", metadata={"labels": {"x": "1"}}, spec=timeout_spec("5s"))
    assert failure(answer) == (409, "Conflict")
    assert 'conflict with "koguma-rest" using kuma.io/v1alpha1' in answer.json["message"]


WAYS = {
    "put": lambda plane, path, plain: plane("PUT", path, plain),
    "patch": lambda plane, path, plain: plane(
        "PATCH", path, {"spec": plain["spec"]}, Content_Type="application/merge-patch+json"
    ),
    "apply": lambda plane, _path, plain: plane("POST", "/_apply", [plain]),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_plain_form_keeps_what_only_the_other_form_knows(timeouts, way):
    owner = accepted(timeouts.other(CORE, "ConfigMap").create("owner"))["metadata"]["uid"]
    meta = {
        "finalizers": ["example.com/keep"],
        "annotations": {"note": "x"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner}],
    }
    before = accepted(timeouts.create("a", metadata=meta, spec=timeout_spec()))
    path = f"/meshes/default/meshtimeouts/a.{timeouts.namespace}"
    plain = timeouts.plane("GET", path).json
    assert WAYS[way](timeouts.plane, path, {**plain, "spec": timeout_spec("6s")}).status == 200
    after = timeouts.get("a")
    assert after["spec"] == timeout_spec("6s")
    assert revision(after) > revision(before)
    for field in ("finalizers", "ownerReferences", "annotations", "uid", "labels"):
        assert after["metadata"][field] == before["metadata"][field]
    assert ("koguma-rest", "Update") in managers(after)
    assert WAYS[way](timeouts.plane, path, {**plain, "spec": timeout_spec("6s")}).status == 200
    assert timeouts.get("a") == after


def test_the_plain_form_makes_no_owners_where_there_are_none(timeouts):
    name = f"a.{timeouts.namespace}"
    document = {"type": "MeshTimeout", "mesh": "default", "name": name, "spec": timeout_spec()}
    document["labels"] = {"k8s.kuma.io/namespace": timeouts.namespace}
    path = f"/meshes/default/meshtimeouts/{name}"
    assert timeouts.plane("PUT", path, document).status == 201
    assert timeouts.plane("PUT", path, {**document, "spec": timeout_spec("6s")}).status == 200
    assert managers(timeouts.get("a")) == {}


def test_owners_hold_across_versions(timeouts):
    clean = timeouts.other(KOGUMA)
    accepted(timeouts.apply("a", "one", spec=timeout_spec("5s")))
    answer = clean.apply("a", "two", spec=timeout_spec("6s"))
    assert failure(answer) == (409, "Conflict")
    forced = accepted(clean.apply("a", "two", force=True, spec=timeout_spec("6s")))
    assert ("two", "Apply") in managers(forced)
    assert failure(timeouts.apply("a", "one", spec=timeout_spec("5s"))) == (409, "Conflict")


@pytest.mark.parametrize("version", ["", KOGUMA])
def test_two_managers_own_two_ports_of_a_service(timeouts, version):
    services = timeouts.other(version, "MeshService")
    selector = {"dataplaneTags": {"kuma.io/service": "web"}}
    http, admin = {"port": 80, "targetPort": 8080, "appProtocol": "http"}, {"port": 9000, "targetPort": 9000}
    accepted(services.apply("web", "team", spec={"selector": selector, "ports": [http]}))
    both = accepted(services.apply("web", "operator", spec={"ports": [admin]}))
    assert both["spec"]["ports"] == [http, admin]
    owned = managers(both)
    assert list(owned["operator", "Apply"]["f:spec"]["f:ports"]) == ['k:{"port":9000}']
    conflict = services.apply("web", "operator", spec={"ports": [{**http, "targetPort": 1}]})
    assert failure(conflict) == (409, "Conflict")
    assert causes(conflict) == [(".spec.ports[port=80].targetPort", "FieldManagerConflict")]
    left = accepted(services.apply("web", "operator", spec={}))
    assert left["spec"]["ports"] == [http]
    twice = services.apply("web", "operator", spec={"ports": [admin, admin]})
    assert failure(twice) == (422, "Invalid")


def test_two_managers_own_two_inbounds_of_a_proxy(timeouts):
    proxies = timeouts.other(kind="Dataplane")
    tags = {"kuma.io/service": "web"}
    main, other, second = ({"port": port, "tags": tags} for port in (80, 81, 81))
    second = {**second, "address": "127.0.0.2"}
    networking = {"address": "127.0.0.1", "inbound": [main]}
    accepted(proxies.apply("web-1", "one", spec={"networking": networking}))
    both = accepted(proxies.apply("web-1", "two", spec={"networking": {"inbound": [other, second]}}))
    assert both["spec"]["networking"]["inbound"] == [main, other, second]
    fields = managers(both)["two", "Apply"]["f:spec"]["f:networking"]["f:inbound"]
    assert sorted(fields) == ['k:{"address":"","port":81}', 'k:{"address":"127.0.0.2","port":81}']
    accepted(proxies.delete("web-1"))  # who writes a policy in this mesh is told what it selects
