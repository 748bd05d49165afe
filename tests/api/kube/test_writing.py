"""Creating and replacing objects through the Kubernetes form."""

import json
import secrets

import pytest
import yaml

from tests.control_plane import timeout as plain_timeout
from tests.kube_door import (
    KOGUMA,
    PROTOBUF,
    YAML,
    Door,
    causes,
    made,
    managers,
    patch_spec,
    protobuf_body,
    refused,
    revision,
    timeout,
    wire,
)


@pytest.fixture
def patches(door):
    return door.other(kind="MeshProxyPatch")


def test_a_new_object_has_what_the_server_gives_and_nothing_that_only_it_may_say(door):
    said = {
        "uid": "mine",
        "generation": 7,
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z",
        "selfLink": "/here",
    }
    answer = door.create("a", metadata=said, spec=timeout(), status={"conditions": [{"type": "Mine"}]})
    assert answer.status == 201
    metadata = answer.json["metadata"]
    assert (metadata["generation"], metadata["namespace"]) == (1, door.namespace)
    assert metadata["uid"] not in ("", "mine")
    assert not metadata["creationTimestamp"].startswith("2001")
    assert {"deletionTimestamp", "selfLink"}.isdisjoint(metadata)
    assert answer.json.get("status", {}) == {}
    assert door.get("a") == answer.json


def test_the_same_object_is_in_the_plain_form(door):
    made(door.create("a", spec=timeout("7s")))
    shown = door.plane("GET", f"/meshes/default/meshtimeouts/a.{door.namespace}").json
    assert shown["spec"] == timeout("7s")
    assert shown["labels"]["k8s.kuma.io/namespace"] == door.namespace


WRONG = {
    "a revision": ({"resourceVersion": "7"}, 400, "BadRequest", "resourceVersion should not be set"),
    "another namespace": ({"namespace": "elsewhere"}, 400, "BadRequest", "does not match the namespace"),
    "no name": ({"name": ""}, 422, "Invalid", "name or generateName is required"),
    "a bad name": ({"name": "A_B"}, 422, "Invalid", '"A_B" is invalid'),
    "bad labels": ({"labels": {"a b": "c"}}, 422, "Invalid", "metadata.labels"),
    "labels that are no texts": ({"labels": {"a": 5}}, 422, "Invalid", "metadata.labels"),
    "half an owner": ({"ownerReferences": [{"kind": "ConfigMap"}]}, 422, "Invalid", "ownerReferences[0].uid"),
    "a bad finalizer": ({"finalizers": ["a b"]}, 422, "Invalid", "metadata.finalizers[0]"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_created_is_told_why(door, maps, wrong):
    metadata, status, reason, text = WRONG[wrong]
    for each, fields in ((door, {"spec": timeout()}), (maps, {"data": {}})):
        answer = each.create("a", metadata=metadata, **fields)
        assert refused(answer) == (status, reason)
        assert text in answer.json["message"]


def test_two_controllers_are_one_too_many(maps):
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u", "controller": True}
    answer = maps.create("a", metadata={"ownerReferences": [owner, {**owner, "uid": "v"}]})
    assert refused(answer) == (422, "Invalid")
    assert "Only one reference can have Controller set to true" in answer.json["message"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"apiVersion": "koguma.io/v1"}, (400, "BadRequest")),
        ({"apiVersion": None}, (400, "BadRequest")),
        ({"kind": "MeshRetry"}, (422, "Invalid")),
        ({"kind": ""}, (400, "BadRequest")),
    ],
    ids=str,
)
def test_a_document_of_another_type_is_refused(door, said, expected):
    document = {**door.document("a", spec=timeout()), **said}
    assert refused(door.send("POST", "", document)) == expected
    made(door.create("a", spec=timeout()))
    assert refused(door.replace(document)) == expected


def test_documents_of_kubernetes_own_kinds_need_not_say_what_they_are(maps):
    answer = maps.send("POST", "", {"metadata": {"name": "a"}, "data": {"x": "y"}})
    assert (answer.json["apiVersion"], answer.json["kind"]) == ("v1", "ConfigMap")
    assert made(maps.send("PUT", "a", {"metadata": {"name": "a"}}))["kind"] == "ConfigMap"


def test_what_exists_is_not_created_again(door):
    made(door.create("a", spec=timeout()))
    answer = door.create("a", spec=timeout("9s"))
    assert refused(answer) == (409, "AlreadyExists")
    assert answer.json["message"] == 'meshtimeouts.kuma.io "a" already exists'
    assert answer.json["details"] == {"name": "a", "group": "kuma.io", "kind": "meshtimeouts"}
    assert refused(door.other(KOGUMA).create("a", spec=timeout())) == (409, "AlreadyExists")


def test_a_name_is_generated_from_the_part_that_fits(maps):
    base = "x" * 57 + "-this-is-cut"
    name = made(maps.create(metadata={"generateName": base}))["metadata"]["name"]
    assert (len(name), name[:58]) == (63, "x" * 57 + "-")
    assert set(name[58:]) <= set("bcdfghjklmnpqrstvwxz2456789")
    assert made(maps.create("said", metadata={"generateName": "b-"}))["metadata"]["name"] == "said"


def test_a_generated_name_that_is_taken_is_generated_again(maps, monkeypatch):
    letters = iter("bbbbb" + "bbbbb" + "bbbbb" + "ccccc")
    monkeypatch.setattr(secrets, "choice", lambda _letters: next(letters))
    assert made(maps.create(metadata={"generateName": "a-"}))["metadata"]["name"] == "a-bbbbb"
    assert made(maps.create(metadata={"generateName": "a-"}))["metadata"]["name"] == "a-ccccc"
    monkeypatch.setattr(secrets, "choice", lambda _letters: "b")
    answer = maps.create(metadata={"generateName": "a-"})
    assert refused(answer) == (409, "AlreadyExists")
    assert answer.json["details"]["name"] == "a-bbbbb"


def test_sizes_are_limited(maps):
    large = {"a": "x" * (1024 * 1024 + 1)}
    assert refused(maps.create("a", data=large)) == (422, "Invalid")
    annotations = {"example.com/a": "é" * (128 * 1024)}
    answer = maps.create("a", metadata={"annotations": annotations})
    assert refused(answer) == (422, "Invalid")
    assert causes(answer) == [("metadata.annotations", "FieldValueTooLong")]
    assert refused(maps.create("a", data={"a": "x" * (3 * 1024 * 1024)})) == (413, "RequestEntityTooLarge")


def test_bodies_come_in_several_encodings(maps):
    document = maps.document("yaml", data={"x": "y"})
    text = yaml.safe_dump(document).encode()
    assert made(maps.send("POST", "", text, Content_Type=YAML))["data"] == {"x": "y"}
    plain = json.dumps(maps.document("bare", data={"x": "y"})).encode()
    assert made(maps.send("POST", "", plain, Content_Type=""))["data"] == {"x": "y"}
    packed = wire((1, wire((1, "packed"))), (2, wire((1, "x"), (2, "y"))))
    sent = maps.send("POST", "", protobuf_body("v1", "ConfigMap", packed), Content_Type=PROTOBUF)
    assert (sent.status, sent.json["data"]) == (201, {"x": "y"})
    assert sent.headers["Content-Type"].startswith("application/json")
    again = wire((1, wire((1, "packed"))), (2, wire((1, "x"), (2, "z"))))
    put = maps.send("PUT", "packed", protobuf_body("v1", "ConfigMap", again), Content_Type=PROTOBUF)
    assert made(put)["data"] == {"x": "z"}


def test_what_cannot_be_read_in_protobuf_is_told(door):
    body = protobuf_body("kuma.io/v1alpha1", "MeshTimeout", b"")
    assert refused(door.send("POST", "", body, Content_Type=PROTOBUF)) == (415, "UnsupportedMediaType")


# Replacing.


def test_a_replacement_of_what_somebody_else_changed_is_a_conflict(door):
    first = made(door.create("a", spec=timeout()))
    second = made(door.replace({**first, "spec": timeout("6s")}))
    assert revision(second) > revision(first)
    answer = door.replace({**first, "spec": timeout("7s")})
    assert refused(answer) == (409, "Conflict")
    assert answer.json["message"] == (
        'Operation cannot be fulfilled on meshtimeouts.kuma.io "a": the object has been modified;'
        " please apply your changes to the latest version and try again"
    )
    assert door.get("a") == second


def test_a_replacement_without_a_revision_is_written_over_whatever_is_there(door):
    made(door.create("a", spec=timeout()))
    made(door.replace(door.document("a", spec=timeout("6s"))))
    answer = door.replace(door.document("a", metadata={"resourceVersion": "0"}, spec=timeout("7s")))
    assert made(answer)["spec"] == timeout("7s")


def test_a_replacement_of_another_object_of_the_name_is_a_conflict(maps):
    first = made(maps.create("a"))
    assert maps.delete("a").status == 200
    second = made(maps.create("a"))
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    answer = maps.replace(maps.document("a", metadata={"uid": first["metadata"]["uid"]}))
    assert refused(answer) == (409, "Conflict")
    assert "Precondition failed: UID in precondition" in answer.json["message"]


def test_what_is_not_there_is_not_replaced_except_for_a_few_kinds(door):
    answer = door.replace(door.document("a", spec=timeout()))
    assert refused(answer) == (404, "NotFound")
    assert answer.json["message"] == 'meshtimeouts.kuma.io "a" not found'
    leases = door.other("coordination.k8s.io/v1", "Lease")
    assert leases.replace(leases.document("a", spec={"holderIdentity": "me"})).status == 201
    assert leases.replace(leases.document("a", spec={"holderIdentity": "you"})).status == 200


def test_the_name_in_the_path_counts(maps):
    made(maps.create("a"))
    answer = maps.replace(maps.document("b"), name="a")
    assert refused(answer) == (400, "BadRequest")
    assert answer.json["message"] == "the name of the object (b) does not match the name on the URL (a)"


def test_a_write_that_changes_nothing_changes_no_revision_and_nobody_hears_of_it(door, maps):
    for each, fields in ((door, {"spec": timeout()}), (maps, {"data": {"x": "y"}})):
        first = made(each.create("a", **fields))
        with each.plane.watch(f"{each.path}?watch=true&resourceVersion={revision(first)}") as events:
            assert made(each.replace(first)) == first
            assert made(each.replace(each.document("a", **fields))) == first
            assert made(each.patch("a", {"metadata": {"labels": {"gone": None}}})) == first
            made(each.create("b", **fields))
            assert events.next()["object"]["metadata"]["name"] == "b"


def test_only_what_is_asked_for_makes_a_generation(patches):
    door = patches
    first = made(door.create("a", spec=patch_spec()))
    labelled = made(door.patch("a", {"metadata": {"labels": {"x": "y"}, "annotations": {"x": "y"}}}))
    assert revision(labelled) > revision(first)
    assert labelled["metadata"]["generation"] == 1
    assert made(door.patch("a/status", {"status": STATUS}))["metadata"]["generation"] == 1
    assert made(door.patch("a", {"spec": patch_spec("y")}))["metadata"]["generation"] == 2
    made(door.patch("a", {"metadata": {"finalizers": ["example.com/x"]}}))
    assert made(door.delete("a"))["metadata"]["generation"] == 3


def test_labels_that_a_replacement_leaves_out_go_but_not_those_of_the_server(door):
    first = made(door.create("a", metadata={"labels": {"mine": "x"}}, spec=timeout()))
    bare = made(door.replace(door.document("a", spec=timeout())))
    assert set(first["metadata"]["labels"]) - set(bare["metadata"]["labels"]) == {"mine"}
    assert bare["metadata"]["labels"]["kuma.io/mesh"] == "default"
    assert bare["metadata"]["labels"]["k8s.kuma.io/namespace"] == door.namespace


def test_an_object_stays_in_its_mesh(door, mesh):
    made(door.create("a", metadata={"labels": {"kuma.io/mesh": mesh}}, spec=timeout()))
    kept = made(door.replace(door.document("a", spec=timeout("6s"))))
    assert kept["metadata"]["labels"]["kuma.io/mesh"] == mesh
    moved = door.document("a", metadata={"labels": {"kuma.io/mesh": "default"}}, spec=timeout())
    answer = door.replace(moved)
    assert refused(answer) == (422, "Invalid")
    assert causes(answer) == [('metadata.labels["kuma.io/mesh"]', "FieldValueForbidden")]


def test_a_mesh_that_is_not_there_is_named(door):
    answer = door.create("a", metadata={"labels": {"kuma.io/mesh": "no-such"}}, spec=timeout())
    assert refused(answer) == (404, "NotFound")
    assert 'there is no mesh "no-such"' in answer.json["message"]


# One name in one namespace.


def test_a_namespace_has_a_name_once_whatever_the_mesh(door, mesh):
    made(door.create("a", spec=timeout()))
    labelled = {"labels": {"kuma.io/mesh": mesh}}
    assert refused(door.create("a", metadata=labelled, spec=timeout())) == (409, "AlreadyExists")
    document = plain_timeout("a", mesh, labels={"k8s.kuma.io/namespace": door.namespace})
    answer = door.plane("PUT", f"/meshes/{mesh}/meshtimeouts/a", document)
    assert answer.status == 409
    for word in ("mesh default", f"mesh {mesh}", f"namespace {door.namespace}"):
        assert word in answer.json["detail"]
    assert door.plane("POST", "/_apply", [document]).status == 409


def test_two_objects_of_one_request_may_not_have_the_same_name_in_a_namespace(door):
    placed = {"labels": {"k8s.kuma.io/namespace": door.namespace}}
    meshes = [{"type": "Mesh", "name": f"{door.namespace}{word}"} for word in "ab"]
    objects = [plain_timeout("a", each["name"], **placed) for each in meshes]
    answer = door.plane("POST", "/_apply", [*meshes, *objects])
    assert answer.status == 400
    assert "same name in the same namespace" in answer.json["detail"] + str(answer.json)


def test_the_first_write_of_the_plain_form_makes_a_namespace_too(door):
    name = f"a.{door.namespace}"
    document = plain_timeout(name, labels={"k8s.kuma.io/namespace": door.namespace})
    assert door.plane("PUT", f"/meshes/default/meshtimeouts/{name}", document).status == 201
    space = door.plane("GET", f"/api/v1/namespaces/{door.namespace}").json
    assert space["status"] == {"phase": "Active"}


# Fields that do not exist, and fields that are given twice.


def test_unknown_fields_are_refused_told_or_ignored(door):
    for each, spec in ((door, timeout()), (door.other(KOGUMA), timeout())):
        document = each.document("a", metadata={"colour": "red"}, spec={**spec, "tos": []})
        strict = each.send("POST", "", document, {"fieldValidation": "Strict"})
        assert refused(strict) == (400, "BadRequest")
        version = each.version.partition("/")[2]
        assert strict.json["message"] == (
            f'MeshTimeout in version "{version}" cannot be handled as a MeshTimeout: strict decoding error:'
            ' unknown field "metadata.colour", unknown field "spec.tos"; did you mean "to"?'
        )
        ignored = each.send("POST", "", document, {"fieldValidation": "Ignore", "dryRun": "All"})
        assert (ignored.status, ignored.headers.get("Warning")) == (201, None)
        warned = each.send("POST", "", document, {"dryRun": "All"})
        assert warned.status == 201
        assert warned.warnings == [
            'unknown field "metadata.colour"',
            'unknown field "spec.tos"; did you mean "to"?',
        ]
        wrong = each.send("POST", "", document, {"fieldValidation": "Loud"})
        assert refused(wrong) == (422, "Invalid")


def test_a_patch_with_an_unknown_field_is_invalid(door):
    made(door.create("a", spec=timeout()))
    answer = door.patch("a", {"spec": {"tos": []}}, query={"fieldValidation": "Strict"})
    assert refused(answer) == (422, "Invalid")
    assert [field for field, _ in causes(answer)] == ["spec.tos"]


def test_of_a_field_that_is_given_twice_the_last_counts(maps):
    text = b'{"metadata": {"name": "a", "name": "b"}, "data": {"x": "1", "x": "2"}}'
    strict = maps.send("POST", "", text, {"fieldValidation": "Strict"})
    assert refused(strict) == (400, "BadRequest")
    assert 'strict decoding error: duplicate field "data.x", duplicate' in strict.json["message"]
    answer = maps.send("POST", "", text)
    assert (answer.json["metadata"]["name"], answer.json["data"]) == ("b", {"x": "2"})
    assert sorted(answer.warnings) == ['duplicate field "data.x"', 'duplicate field "metadata.name"']
    quiet = maps.send("PUT", "b", text, {"fieldValidation": "Ignore"})
    assert (quiet.status, quiet.warnings) == (200, [])


# Dry runs.


def test_a_dry_run_stores_nothing(door, maps):
    for each, fields in ((door, {"spec": timeout()}), (maps, {"data": {"x": "y"}})):
        tried = each.create("a", query={"dryRun": "All"}, **fields)
        assert (tried.status, tried.json["kind"]) == (201, each.kind)
        assert "resourceVersion" not in tried.json["metadata"]
        assert tried.json["metadata"]["uid"]
        assert not each.exists("a")
        first = made(each.create("a", **fields))
        patched = each.patch("a", {"metadata": {"labels": {"x": "y"}}}, query={"dryRun": "All"})
        assert patched.json["metadata"]["labels"]["x"] == "y"
        assert revision(patched.json) == revision(first)
        assert each.delete("a", query={"dryRun": "All"}).status == 200
        assert each.get("a") == first
        assert refused(each.create("a", query={"dryRun": "All"}, **fields)) == (409, "AlreadyExists")


def test_there_is_one_word_for_dry_runs(maps):
    assert refused(maps.create("a", query={"dryRun": "Some"})) == (422, "Invalid")
    assert refused(maps.create("a", metadata={"name": "B"}, query={"dryRun": "All"})) == (422, "Invalid")


# Status.


STATUS = {"conditions": [{"type": "Tried", "status": "True", "reason": "Tried", "message": "it was"}]}


def test_the_status_is_written_by_its_own_path_alone(patches):
    first = made(patches.create("a", spec=patch_spec(), status=STATUS))
    assert first["status"] == {}
    ignored = made(patches.replace({**first, "spec": patch_spec("y"), "status": STATUS}))
    assert ignored["status"] == {}
    sent = {**ignored, "spec": {"default": "nonsense"}, "status": STATUS}
    sent["metadata"] = {**sent["metadata"], "labels": {"x": "y"}}
    told = made(patches.replace(sent, part="status"))
    assert (told["spec"], told["status"]) == (patch_spec("y"), STATUS)
    assert told["metadata"]["labels"] == ignored["metadata"]["labels"]
    assert revision(told) > revision(ignored)
    assert made(patches.patch("a", {"spec": patch_spec("z")}))["status"] == STATUS
    assert refused(patches.replace({**first, "status": {}}, part="status")) == (409, "Conflict")
    assert refused(patches.patch("a/status", {"status": {"conditions": "many"}})) == (422, "Invalid")


def test_who_writes_a_status_owns_it_and_nothing_else(patches):
    made(patches.create("a", spec=patch_spec(), query={"fieldManager": "one"}))
    query = {"fieldManager": "two"}
    told = made(patches.patch("a/status", {"status": STATUS, "spec": {"default": {}}}, query=query))
    by_part = {one.get("subresource", ""): one for one in told["metadata"]["managedFields"]}
    assert {part: one["manager"] for part, one in by_part.items()} == {"": "one", "status": "two"}
    assert set(by_part["status"]["fieldsV1"]) == {"f:status"}
    assert "f:status" not in by_part[""]["fieldsV1"]


def test_a_part_that_does_not_exist_is_no_path(door, patches):
    made(door.create("a", spec=timeout()))
    assert refused(door.send("PUT", "a/status", {})) == (404, "NotFound")
    assert refused(patches.send("DELETE", "a/status")) == (405, "MethodNotAllowed")


def test_what_the_control_plane_writes_alone_cannot_be_written(plane):
    insights = Door(plane, "", kind="MeshInsight")
    for method, name in (("POST", ""), ("PUT", "default"), ("PATCH", "default"), ("DELETE", "default")):
        answer = insights.send(method, name, {})
        assert refused(answer) == (405, "MethodNotAllowed")
        assert "is written by the control plane alone" in answer.json["message"]


def test_a_writer_owns_what_it_wrote_under_the_name_that_it_gives_itself(maps):
    document = maps.document("a", data={"x": "y"})
    first = maps.send("POST", "", document, {"fieldManager": "one"}).json
    second = maps.send(
        "PATCH", "a", {"data": {"z": "2"}}, Content_Type="application/merge-patch+json", User_Agent="two/1.0"
    )
    found = managers(made(second))
    assert set(found) == {("one", "Update"), ("two", "Update")}
    assert found["two", "Update"] == {"f:data": {"f:z": {}}}
    assert managers(first)["one", "Update"]["f:data"] == {".": {}, "f:x": {}}
    long = maps.create("b", query={"fieldManager": "x" * 129})
    assert refused(long) == (422, "Invalid")


def test_a_patch_of_envoys_configuration_is_judged_when_it_is_written(patches):
    change = {"cluster": {"operation": "Patch", "value": "lb_polici: RANDOM"}}
    answer = patches.create("p", spec={"default": {"appendModifications": [change]}})
    assert refused(answer) == (422, "Invalid")
    assert causes(answer) == [
        ("spec.default.appendModifications[0].cluster.value.lb_polici", "FieldValueInvalid")
    ]
    assert 'has no field "lb_polici"; did you mean "lb_policy"?' in answer.json["message"]
