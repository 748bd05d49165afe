"""Server-side apply over HTTP: who owns which field, whichever way it is written."""

import json

import pytest

from tests.kube_door import (
    APPLY,
    CORE,
    KOGUMA,
    causes,
    made,
    managers,
    patch_spec,
    refused,
    revision,
    timeout,
)


def test_an_apply_creates_what_is_not_there(maps, door):
    answer = maps.apply("a", "one", data={"x": "1"})
    assert answer.status == 201
    assert managers(answer.json) == {("one", "Apply"): {"f:data": {"f:x": {}}}}
    ours = door.apply("a", "one", spec=timeout())
    assert ours.status == 201
    (entry,) = ours.json["metadata"]["managedFields"]
    assert (entry["operation"], entry["apiVersion"], entry["fieldsType"]) == (
        "Apply",
        door.version,
        "FieldsV1",
    )
    assert set(entry["fieldsV1"]) == {"f:spec"}


def test_the_same_apply_again_changes_nothing(door):
    first = made(door.apply("a", "one", spec=timeout()))
    again = door.apply("a", "one", spec=timeout())
    assert (again.status, again.json) == (200, first)


def test_what_another_owns_is_a_conflict_unless_forced(maps):
    made(maps.apply("a", "one", data={"x": "1", "y": "1"}))
    answer = maps.apply("a", "two", data={"x": "2"})
    assert refused(answer) == (409, "Conflict")
    assert causes(answer) == [(".data.x", "FieldManagerConflict")]
    assert answer.json["message"] == 'Apply failed with 1 conflict: conflict with "one": .data.x'
    forced = made(maps.apply("a", "two", force=True, data={"x": "2"}))
    assert forced["data"] == {"x": "2", "y": "1"}
    assert managers(forced) == {
        ("one", "Apply"): {"f:data": {"f:y": {}}},
        ("two", "Apply"): {"f:data": {"f:x": {}}},
    }


def test_what_several_want_alike_belongs_to_all_of_them(maps):
    made(maps.apply("a", "one", data={"x": "1"}))
    both = made(maps.apply("a", "two", data={"x": "1"}))
    assert managers(both) == {(name, "Apply"): {"f:data": {"f:x": {}}} for name in ("one", "two")}
    left = made(maps.apply("a", "one"))
    assert left["data"] == {"x": "1"}
    assert "data" not in made(maps.apply("a", "two"))


def test_what_is_left_out_goes_unless_somebody_else_owns_it(maps):
    made(maps.apply("a", "one", data={"x": "1", "y": "1"}))
    made(maps.patch("a", {"data": {"z": "1"}}, query={"fieldManager": "three"}))
    assert made(maps.apply("a", "one", data={"y": "1"}))["data"] == {"y": "1", "z": "1"}


def test_labels_of_the_server_belong_to_nobody_who_applies(door):
    made(door.apply("a", "one", metadata={"labels": {"mine": "x"}}, spec=timeout()))
    bare = made(door.apply("a", "one", spec=timeout()))
    assert "mine" not in bare["metadata"]["labels"]
    assert bare["metadata"]["labels"]["kuma.io/mesh"] == "default"


def test_a_conflict_with_a_writer_that_does_not_apply_says_when_it_wrote(maps):
    made(maps.create("a", data={"x": "1"}, query={"fieldManager": "hand"}))
    answer = maps.apply("a", "one", data={"x": "2"})
    assert refused(answer) == (409, "Conflict")
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
def test_an_apply_that_cannot_be_is_refused(maps, wrong):
    query, said, status, reason = WRONG[wrong]
    document = {**maps.document("a", data={"x": "1"}), **said}
    for _ in ("creates", "changes"):
        assert refused(maps.patch("a", document, APPLY, query)) == (status, reason)
        made(maps.apply("a", "other", metadata={"labels": {"x": "y"}}))


@pytest.mark.parametrize("text", [b"[]", b"5", b"null", b"a: [", b"a: 1\n---\nb: 2\n", b""])
def test_an_apply_of_no_object_is_refused(maps, text):
    answer = maps.patch("a", text, APPLY, {"fieldManager": "one"})
    assert refused(answer) == (400, "BadRequest")


def test_an_apply_may_be_yaml(maps):
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  x: 'on'\n"
    assert maps.patch("a", text, APPLY, {"fieldManager": "one"}).json["data"] == {"x": "on"}
    flow = b"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {x: 'off'}}"
    assert maps.patch("a", flow, APPLY, {"fieldManager": "one"}).json["data"] == {"x": "off"}


def test_a_dry_run_of_an_apply_stores_nothing(maps):
    query = {"fieldManager": "one", "dryRun": "All"}
    tried = maps.patch("a", maps.document("a", data={"x": "1"}), APPLY, query)
    assert (tried.status, tried.json["data"]) == (201, {"x": "1"})
    assert "resourceVersion" not in tried.json["metadata"]
    assert not maps.exists("a")


def test_unknown_fields_of_an_apply_are_told(door):
    document = door.document("a", spec={**timeout(), "tos": []})
    strict = door.patch("a", document, APPLY, {"fieldManager": "one", "fieldValidation": "Strict"})
    assert refused(strict) == (422, "Invalid")
    loose = door.patch("a", document, APPLY, {"fieldManager": "one"})
    assert (loose.status, loose.warnings) == (201, ['unknown field "spec.tos"; did you mean "to"?'])


def test_a_status_is_applied_by_its_own_path(door):
    patches = door.other(kind="MeshProxyPatch")
    made(patches.apply("a", "one", spec=patch_spec()))
    status = {"conditions": [{"type": "Tried", "status": "True", "reason": "Tried", "message": ""}]}
    document = patches.document("a", spec={"default": {}}, status=status)
    query = {"fieldManager": "two"}
    told = made(patches.patch("a/status", document, APPLY, query))
    assert (told["spec"], told["status"]) == (patch_spec(), status)
    parts = {one["manager"]: one.get("subresource", "") for one in told["metadata"]["managedFields"]}
    assert parts == {"one": "", "two": "status"}
    wrong = patches.document("a", status={"conditions": [{"type": 5}]})
    assert refused(patches.patch("a/status", wrong, APPLY, query)) == (422, "Invalid")
    assert refused(patches.patch("no/status", patches.document("no"), APPLY, query)) == (404, "NotFound")


def test_tracking_can_be_given_up_and_taken_up_again(maps):
    made(maps.apply("a", "one", data={"x": "1"}))
    assert "managedFields" not in made(maps.patch("a", {"metadata": {"managedFields": [{}]}}))["metadata"]
    assert managers(made(maps.patch("a", {"data": {"y": "1"}}))) == {}
    again = made(maps.apply("a", "one", data={"x": "1"}))
    assert set(managers(again)) == {("before-first-apply", "Update"), ("one", "Apply")}
    assert managers(again)["before-first-apply", "Update"]["f:data"] == {".": {}, "f:x": {}, "f:y": {}}


def test_an_apply_needs_the_right_to_create_too(maps):
    roles = maps.other("rbac.authorization.k8s.io/v1", "Role")
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]}]
    made(roles.create("patcher", rules=rules))
    bindings = maps.other("rbac.authorization.k8s.io/v1", "RoleBinding")
    made(
        bindings.create(
            "patcher",
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "patcher"},
            subjects=[{"kind": "User", "name": "pat", "apiGroup": "rbac.authorization.k8s.io"}],
        )
    )

    def apply(name):
        query = {"fieldManager": "pat"}
        return maps.patch(name, maps.document(name, data={"x": "1"}), APPLY, query, Impersonate_User="pat")

    answer = apply("a")
    assert refused(answer) == (403, "Forbidden")
    assert 'cannot create resource "configmaps"' in answer.json["message"]
    made(maps.create("a"))
    assert apply("a").status == 200


# Objects that are written through the other doors too.


def test_what_the_plain_form_changes_belongs_to_it(door):
    """An apply of somebody else finds a conflict, and not that its change is gone."""
    made(door.apply("a", "one", metadata={"labels": {"x": "1"}}, spec=timeout("5s")))
    path = f"/meshes/default/meshtimeouts/a.{door.namespace}"
    plain = door.plane("GET", path).json
    changed = {**plain, "spec": timeout("6s")}
    assert door.plane("PUT", path, changed).status == 200
    now = door.get("a")
    found = managers(now)
    assert set(found) == {("one", "Apply"), ("koguma-rest", "Update")}
    assert set(found["koguma-rest", "Update"]) == {"f:spec"}
    assert "f:spec" not in json.dumps(found["one", "Apply"]["f:metadata"])
    answer = door.apply("a", "one", metadata={"labels": {"x": "1"}}, spec=timeout("5s"))
    assert refused(answer) == (409, "Conflict")
    assert 'conflict with "koguma-rest" using kuma.io/v1alpha1' in answer.json["message"]


WAYS = {
    "put": lambda plane, path, plain: plane("PUT", path, plain),
    "patch": lambda plane, path, plain: plane(
        "PATCH", path, {"spec": plain["spec"]}, Content_Type="application/merge-patch+json"
    ),
    "apply": lambda plane, _path, plain: plane("POST", "/_apply", [plain]),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_plain_form_keeps_what_only_the_other_form_knows(door, way):
    owner = made(door.other(CORE, "ConfigMap").create("owner"))["metadata"]["uid"]
    meta = {
        "finalizers": ["example.com/keep"],
        "annotations": {"note": "x"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner}],
    }
    before = made(door.create("a", metadata=meta, spec=timeout()))
    path = f"/meshes/default/meshtimeouts/a.{door.namespace}"
    plain = door.plane("GET", path).json
    assert WAYS[way](door.plane, path, {**plain, "spec": timeout("6s")}).status == 200
    after = door.get("a")
    assert after["spec"] == timeout("6s")
    assert revision(after) > revision(before)
    for field in ("finalizers", "ownerReferences", "annotations", "uid", "labels"):
        assert after["metadata"][field] == before["metadata"][field]
    assert ("koguma-rest", "Update") in managers(after)
    assert WAYS[way](door.plane, path, {**plain, "spec": timeout("6s")}).status == 200
    assert door.get("a") == after


def test_the_plain_form_makes_no_owners_where_there_are_none(door):
    name = f"a.{door.namespace}"
    document = {"type": "MeshTimeout", "mesh": "default", "name": name, "spec": timeout()}
    document["labels"] = {"k8s.kuma.io/namespace": door.namespace}
    path = f"/meshes/default/meshtimeouts/{name}"
    assert door.plane("PUT", path, document).status == 201
    assert door.plane("PUT", path, {**document, "spec": timeout("6s")}).status == 200
    assert managers(door.get("a")) == {}


def test_owners_hold_across_versions(door):
    clean = door.other(KOGUMA)
    made(door.apply("a", "one", spec=timeout("5s")))
    answer = clean.apply("a", "two", spec=timeout("6s"))
    assert refused(answer) == (409, "Conflict")
    forced = made(clean.apply("a", "two", force=True, spec=timeout("6s")))
    assert ("two", "Apply") in managers(forced)
    assert refused(door.apply("a", "one", spec=timeout("5s"))) == (409, "Conflict")
