"""Creating and replacing objects through the Kubernetes form."""

import json
import secrets

import pytest
import yaml

from tests.build import timeout as plain_timeout
from tests.kube_client import (
    APPLY,
    KOGUMA,
    PROTOBUF,
    YAML,
    KubeClient,
    accepted,
    causes,
    failure,
    managers,
    patch_spec,
    protobuf_body,
    revision,
    timeout_spec,
    wire,
)


@pytest.fixture
def patches(timeouts):
    return timeouts.other(kind="MeshProxyPatch")


def test_a_new_object_has_what_the_server_gives_and_nothing_that_only_it_may_say(timeouts):
    said = {
        "uid": "mine",
        "generation": 7,
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z",
        "selfLink": "/here",
    }
    answer = timeouts.create(
        "a", metadata=said, spec=timeout_spec(), status={"conditions": [{"type": "Mine"}]}
    )
    assert answer.status == 201
    metadata = answer.json["metadata"]
    assert (metadata["generation"], metadata["namespace"]) == (1, timeouts.namespace)
    assert metadata["uid"] not in ("", "mine")
    assert not metadata["creationTimestamp"].startswith("2001")
    assert {"deletionTimestamp", "selfLink"}.isdisjoint(metadata)
    assert answer.json.get("status", {}) == {}
    assert timeouts.get("a") == answer.json


def test_the_same_object_is_in_the_plain_form(timeouts):
    accepted(timeouts.create("a", spec=timeout_spec("7s")))
    shown = timeouts.plane("GET", f"/meshes/default/meshtimeouts/a.{timeouts.namespace}").json
    assert shown["spec"] == timeout_spec("7s")
    assert shown["labels"]["k8s.kuma.io/namespace"] == timeouts.namespace


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
def test_what_cannot_be_created_is_told_why(timeouts, config_maps, wrong):
    metadata, status, reason, text = WRONG[wrong]
    for each, fields in ((timeouts, {"spec": timeout_spec()}), (config_maps, {"data": {}})):
        answer = each.create("a", metadata=metadata, **fields)
        assert failure(answer) == (status, reason)
        assert text in answer.json["message"]


def test_two_controllers_are_one_too_many(config_maps):
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u", "controller": True}
    answer = config_maps.create("a", metadata={"ownerReferences": [owner, {**owner, "uid": "v"}]})
    assert failure(answer) == (422, "Invalid")
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
def test_a_document_of_another_type_is_refused(timeouts, said, expected):
    document = {**timeouts.document("a", spec=timeout_spec()), **said}
    assert failure(timeouts.send("POST", "", document)) == expected
    accepted(timeouts.create("a", spec=timeout_spec()))
    assert failure(timeouts.replace(document)) == expected


def test_documents_of_kubernetes_own_kinds_need_not_say_what_they_are(config_maps):
    answer = config_maps.send("POST", "", {"metadata": {"name": "a"}, "data": {"x": "y"}})
    assert (answer.json["apiVersion"], answer.json["kind"]) == ("v1", "ConfigMap")
    assert accepted(config_maps.send("PUT", "a", {"metadata": {"name": "a"}}))["kind"] == "ConfigMap"


def test_what_exists_is_not_created_again(timeouts):
    accepted(timeouts.create("a", spec=timeout_spec()))
    answer = timeouts.create("a", spec=timeout_spec("9s"))
    assert failure(answer) == (409, "AlreadyExists")
    assert answer.json["message"] == 'meshtimeouts.kuma.io "a" already exists'
    assert answer.json["details"] == {"name": "a", "group": "kuma.io", "kind": "meshtimeouts"}
    assert failure(timeouts.other(KOGUMA).create("a", spec=timeout_spec())) == (409, "AlreadyExists")


def test_a_name_is_generated_from_the_part_that_fits(config_maps):
    base = "x" * 57 + "-this-is-cut"
    name = accepted(config_maps.create(metadata={"generateName": base}))["metadata"]["name"]
    assert (len(name), name[:58]) == (63, "x" * 57 + "-")
    assert set(name[58:]) <= set("bcdfghjklmnpqrstvwxz2456789")
    assert accepted(config_maps.create("said", metadata={"generateName": "b-"}))["metadata"]["name"] == "said"


def test_a_generated_name_that_is_taken_is_generated_again(config_maps, monkeypatch):
    letters = iter("bbbbb" + "bbbbb" + "bbbbb" + "ccccc")
    monkeypatch.setattr(secrets, "choice", lambda _letters: next(letters))
    assert accepted(config_maps.create(metadata={"generateName": "a-"}))["metadata"]["name"] == "a-bbbbb"
    assert accepted(config_maps.create(metadata={"generateName": "a-"}))["metadata"]["name"] == "a-ccccc"
    monkeypatch.setattr(secrets, "choice", lambda _letters: "b")
    answer = config_maps.create(metadata={"generateName": "a-"})
    assert failure(answer) == (409, "AlreadyExists")
    assert answer.json["details"]["name"] == "a-bbbbb"


def test_sizes_are_limited(config_maps):
    large = {"a": "x" * (1024 * 1024 + 1)}
    assert failure(config_maps.create("a", data=large)) == (422, "Invalid")
    annotations = {"example.com/a": "é" * (128 * 1024)}
    answer = config_maps.create("a", metadata={"annotations": annotations})
    assert failure(answer) == (422, "Invalid")
    assert causes(answer) == [("metadata.annotations", "FieldValueTooLong")]
    assert failure(config_maps.create("a", data={"a": "x" * (3 * 1024 * 1024)})) == (
        413,
        "RequestEntityTooLarge",
    )


def test_bodies_come_in_several_encodings(config_maps):
    document = config_maps.document("yaml", data={"x": "y"})
    text = yaml.safe_dump(document).encode()
    assert accepted(config_maps.send("POST", "", text, Content_Type=YAML))["data"] == {"x": "y"}
    plain = json.dumps(config_maps.document("bare", data={"x": "y"})).encode()
    assert accepted(config_maps.send("POST", "", plain, Content_Type=""))["data"] == {"x": "y"}
    packed = wire((1, wire((1, "packed"))), (2, wire((1, "x"), (2, "y"))))
    sent = config_maps.send("POST", "", protobuf_body("v1", "ConfigMap", packed), Content_Type=PROTOBUF)
    assert (sent.status, sent.json["data"]) == (201, {"x": "y"})
    assert sent.headers["Content-Type"].startswith("application/json")
    again = wire((1, wire((1, "packed"))), (2, wire((1, "x"), (2, "z"))))
    put = config_maps.send("PUT", "packed", protobuf_body("v1", "ConfigMap", again), Content_Type=PROTOBUF)
    assert accepted(put)["data"] == {"x": "z"}


def test_what_cannot_be_read_in_protobuf_is_told(timeouts):
    body = protobuf_body("kuma.io/v1alpha1", "MeshTimeout", b"")
    assert failure(timeouts.send("POST", "", body, Content_Type=PROTOBUF)) == (415, "UnsupportedMediaType")


# Replacing.


def test_a_replacement_of_what_somebody_else_changed_is_a_conflict(timeouts):
    first = accepted(timeouts.create("a", spec=timeout_spec()))
    second = accepted(timeouts.replace({**first, "spec": timeout_spec("6s")}))
    assert revision(second) > revision(first)
    answer = timeouts.replace({**first, "spec": timeout_spec("7s")})
    assert failure(answer) == (409, "Conflict")
    assert answer.json["message"] == (
        'Operation cannot be fulfilled on meshtimeouts.kuma.io "a": the object has been modified;'
        " please apply your changes to the latest version and try again"
    )
    assert timeouts.get("a") == second


def test_a_replacement_without_a_revision_is_written_over_whatever_is_there(timeouts):
    accepted(timeouts.create("a", spec=timeout_spec()))
    accepted(timeouts.replace(timeouts.document("a", spec=timeout_spec("6s"))))
    answer = timeouts.replace(
        timeouts.document("a", metadata={"resourceVersion": "0"}, spec=timeout_spec("7s"))
    )
    assert accepted(answer)["spec"] == timeout_spec("7s")


def test_a_replacement_of_another_object_of_the_name_is_a_conflict(config_maps):
    first = accepted(config_maps.create("a"))
    assert config_maps.delete("a").status == 200
    second = accepted(config_maps.create("a"))
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    answer = config_maps.replace(config_maps.document("a", metadata={"uid": first["metadata"]["uid"]}))
    assert failure(answer) == (409, "Conflict")
    assert "Precondition failed: UID in precondition" in answer.json["message"]


def test_what_is_not_there_is_not_replaced_except_for_a_few_kinds(timeouts):
    answer = timeouts.replace(timeouts.document("a", spec=timeout_spec()))
    assert failure(answer) == (404, "NotFound")
    assert answer.json["message"] == 'meshtimeouts.kuma.io "a" not found'
    leases = timeouts.other("coordination.k8s.io/v1", "Lease")
    assert leases.replace(leases.document("a", spec={"holderIdentity": "me"})).status == 201
    assert leases.replace(leases.document("a", spec={"holderIdentity": "you"})).status == 200


def test_the_name_in_the_path_counts(config_maps):
    accepted(config_maps.create("a"))
    answer = config_maps.replace(config_maps.document("b"), name="a")
    assert failure(answer) == (400, "BadRequest")
    assert answer.json["message"] == "the name of the object (b) does not match the name on the URL (a)"


def test_a_write_that_changes_nothing_changes_no_revision_and_nobody_hears_of_it(timeouts, config_maps):
    for each, fields in ((timeouts, {"spec": timeout_spec()}), (config_maps, {"data": {"x": "y"}})):
        first = accepted(each.create("a", **fields))
        with each.plane.watch(f"{each.path}?watch=true&resourceVersion={revision(first)}") as events:
            assert accepted(each.replace(first)) == first
            assert accepted(each.replace(each.document("a", **fields))) == first
            assert accepted(each.patch("a", {"metadata": {"labels": {"gone": None}}})) == first
            accepted(each.create("b", **fields))
            assert events.next()["object"]["metadata"]["name"] == "b"


def test_only_what_is_asked_for_makes_a_generation(patches):
    timeouts = patches
    first = accepted(timeouts.create("a", spec=patch_spec()))
    labelled = accepted(timeouts.patch("a", {"metadata": {"labels": {"x": "y"}, "annotations": {"x": "y"}}}))
    assert revision(labelled) > revision(first)
    assert labelled["metadata"]["generation"] == 1
    assert accepted(timeouts.patch("a/status", {"status": STATUS}))["metadata"]["generation"] == 1
    assert accepted(timeouts.patch("a", {"spec": patch_spec("y")}))["metadata"]["generation"] == 2
    accepted(timeouts.patch("a", {"metadata": {"finalizers": ["example.com/x"]}}))
    assert accepted(timeouts.delete("a"))["metadata"]["generation"] == 3


def test_labels_that_a_replacement_leaves_out_go_but_not_those_of_the_server(timeouts):
    first = accepted(timeouts.create("a", metadata={"labels": {"mine": "x"}}, spec=timeout_spec()))
    bare = accepted(timeouts.replace(timeouts.document("a", spec=timeout_spec())))
    assert set(first["metadata"]["labels"]) - set(bare["metadata"]["labels"]) == {"mine"}
    assert bare["metadata"]["labels"]["kuma.io/mesh"] == "default"
    assert bare["metadata"]["labels"]["k8s.kuma.io/namespace"] == timeouts.namespace


def test_an_object_stays_in_its_mesh(timeouts, mesh):
    accepted(timeouts.create("a", metadata={"labels": {"kuma.io/mesh": mesh}}, spec=timeout_spec()))
    kept = accepted(timeouts.replace(timeouts.document("a", spec=timeout_spec("6s"))))
    assert kept["metadata"]["labels"]["kuma.io/mesh"] == mesh
    moved = timeouts.document("a", metadata={"labels": {"kuma.io/mesh": "default"}}, spec=timeout_spec())
    answer = timeouts.replace(moved)
    assert failure(answer) == (422, "Invalid")
    assert causes(answer) == [('metadata.labels["kuma.io/mesh"]', "FieldValueForbidden")]


def test_a_mesh_that_is_not_there_is_named(timeouts):
    answer = timeouts.create("a", metadata={"labels": {"kuma.io/mesh": "no-such"}}, spec=timeout_spec())
    assert failure(answer) == (404, "NotFound")
    assert 'there is no mesh "no-such"' in answer.json["message"]


# One name in one namespace.


def test_a_namespace_has_a_name_once_whatever_the_mesh(timeouts, mesh):
    accepted(timeouts.create("a", spec=timeout_spec()))
    labelled = {"labels": {"kuma.io/mesh": mesh}}
    assert failure(timeouts.create("a", metadata=labelled, spec=timeout_spec())) == (409, "AlreadyExists")
    document = plain_timeout("a", mesh, labels={"k8s.kuma.io/namespace": timeouts.namespace})
    answer = timeouts.plane("PUT", f"/meshes/{mesh}/meshtimeouts/a", document)
    assert answer.status == 409
    for word in ("mesh default", f"mesh {mesh}", f"namespace {timeouts.namespace}"):
        assert word in answer.json["detail"]
    assert timeouts.plane("POST", "/_apply", [document]).status == 409


def test_two_objects_of_one_request_may_not_have_the_same_name_in_a_namespace(timeouts):
    placed = {"labels": {"k8s.kuma.io/namespace": timeouts.namespace}}
    meshes = [{"type": "Mesh", "name": f"{timeouts.namespace}{word}"} for word in "ab"]
    objects = [plain_timeout("a", each["name"], **placed) for each in meshes]
    answer = timeouts.plane("POST", "/_apply", [*meshes, *objects])
    assert answer.status == 400
    assert "same name in the same namespace" in answer.json["detail"] + str(answer.json)


def test_the_first_write_of_the_plain_form_makes_a_namespace_too(timeouts):
    name = f"a.{timeouts.namespace}"
    document = plain_timeout(name, labels={"k8s.kuma.io/namespace": timeouts.namespace})
    assert timeouts.plane("PUT", f"/meshes/default/meshtimeouts/{name}", document).status == 201
    space = timeouts.plane("GET", f"/api/v1/namespaces/{timeouts.namespace}").json
    assert space["status"] == {"phase": "Active"}


# Fields that do not exist, and fields that are given twice.


def test_unknown_fields_are_refused_told_or_ignored(timeouts):
    for each, spec in ((timeouts, timeout_spec()), (timeouts.other(KOGUMA), timeout_spec())):
        document = each.document("a", metadata={"colour": "red"}, spec={**spec, "tos": []})
        strict = each.send("POST", "", document, {"fieldValidation": "Strict"})
        assert failure(strict) == (400, "BadRequest")
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
        assert failure(wrong) == (422, "Invalid")


def test_a_patch_with_an_unknown_field_is_invalid(timeouts):
    accepted(timeouts.create("a", spec=timeout_spec()))
    answer = timeouts.patch("a", {"spec": {"tos": []}}, query={"fieldValidation": "Strict"})
    assert failure(answer) == (422, "Invalid")
    assert [field for field, _ in causes(answer)] == ["spec.tos"]


def test_strict_validation_lists_duplicate_and_unknown_fields_together(config_maps):
    text = b'{"metadata": {"name": "a"}, "data": {"x": "1", "x": "2"}, "colour": "red", "size": 1}'
    strict = config_maps.send("POST", "", text, {"fieldValidation": "Strict"})
    assert failure(strict) == (400, "BadRequest")
    assert strict.json["message"] == (
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: duplicate field'
        ' "data.x", unknown field "colour", unknown field "size"'
    )
    assert len(strict.json["details"]["causes"]) == 3
    assert not config_maps.exists("a")


def test_keys_that_yaml_gives_twice_follow_field_validation(config_maps):
    text = b"metadata:\n  name: a\ndata:\n  x: '1'\n  y: '0'\n  x: '2'\ncolour: red\n"
    strict = config_maps.send("POST", "", text, {"fieldValidation": "Strict"}, Content_Type=YAML)
    assert failure(strict) == (400, "BadRequest")
    assert strict.json["message"].endswith(
        'strict decoding error: yaml: unmarshal errors:\n  line 6: key "x" already set in map, unknown field'
        ' "colour"'
    )
    loud = config_maps.send("POST", "", text, Content_Type=YAML)
    assert (loud.status, loud.json["data"]) == (201, {"x": "2", "y": "0"})
    assert loud.warnings == ['line 6: key "x" already set in map', 'unknown field "colour"']
    query = {"fieldValidation": "Ignore", "fieldManager": "tester", "force": "1"}
    applied = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: '3', x: '4'}\n"
    quiet = config_maps.patch("a", applied, APPLY, query)
    assert (accepted(quiet)["data"]["x"], quiet.warnings) == ("4", [])
    refused = config_maps.patch("a", applied, APPLY, {**query, "fieldValidation": "Strict"})
    assert failure(refused) == (422, "Invalid")
    assert 'line 4: key "x" already set in map' in refused.json["message"]


def test_of_a_field_that_is_given_twice_the_last_counts(config_maps):
    text = b'{"metadata": {"name": "a", "name": "b"}, "data": {"x": "1", "x": "2"}}'
    strict = config_maps.send("POST", "", text, {"fieldValidation": "Strict"})
    assert failure(strict) == (400, "BadRequest")
    assert 'strict decoding error: duplicate field "data.x", duplicate' in strict.json["message"]
    answer = config_maps.send("POST", "", text)
    assert (answer.json["metadata"]["name"], answer.json["data"]) == ("b", {"x": "2"})
    assert sorted(answer.warnings) == ['duplicate field "data.x"', 'duplicate field "metadata.name"']
    quiet = config_maps.send("PUT", "b", text, {"fieldValidation": "Ignore"})
    assert (quiet.status, quiet.warnings) == (200, [])


# Dry runs.


def test_a_dry_run_stores_nothing(timeouts, config_maps):
    for each, fields in ((timeouts, {"spec": timeout_spec()}), (config_maps, {"data": {"x": "y"}})):
        tried = each.create("a", query={"dryRun": "All"}, **fields)
        assert (tried.status, tried.json["kind"]) == (201, each.kind)
        assert "resourceVersion" not in tried.json["metadata"]
        assert tried.json["metadata"]["uid"]
        assert not each.exists("a")
        first = accepted(each.create("a", **fields))
        patched = each.patch("a", {"metadata": {"labels": {"x": "y"}}}, query={"dryRun": "All"})
        assert patched.json["metadata"]["labels"]["x"] == "y"
        assert revision(patched.json) == revision(first)
        assert each.delete("a", query={"dryRun": "All"}).status == 200
        assert each.get("a") == first
        assert failure(each.create("a", query={"dryRun": "All"}, **fields)) == (409, "AlreadyExists")


def test_there_is_one_word_for_dry_runs(config_maps):
    assert failure(config_maps.create("a", query={"dryRun": "Some"})) == (422, "Invalid")
    assert failure(config_maps.create("a", metadata={"name": "B"}, query={"dryRun": "All"})) == (
        422,
        "Invalid",
    )


# Status.


STATUS = {"conditions": [{"type": "Tried", "status": "True", "reason": "Tried", "message": "it was"}]}


def test_the_status_is_written_by_its_own_path_alone(patches):
    first = accepted(patches.create("a", spec=patch_spec(), status=STATUS))
    assert first["status"] == {}
    ignored = accepted(patches.replace({**first, "spec": patch_spec("y"), "status": STATUS}))
    assert ignored["status"] == {}
    sent = {**ignored, "spec": {"default": "nonsense"}, "status": STATUS}
    sent["metadata"] = {**sent["metadata"], "labels": {"x": "y"}}
    told = accepted(patches.replace(sent, part="status"))
    assert (told["spec"], told["status"]) == (patch_spec("y"), STATUS)
    assert told["metadata"]["labels"] == ignored["metadata"]["labels"]
    assert revision(told) > revision(ignored)
    assert accepted(patches.patch("a", {"spec": patch_spec("z")}))["status"] == STATUS
    assert failure(patches.replace({**first, "status": {}}, part="status")) == (409, "Conflict")
    assert failure(patches.patch("a/status", {"status": {"conditions": "many"}})) == (422, "Invalid")


def test_who_writes_a_status_owns_it_and_nothing_else(patches):
    accepted(patches.create("a", spec=patch_spec(), query={"fieldManager": "one"}))
    query = {"fieldManager": "two"}
    told = accepted(patches.patch("a/status", {"status": STATUS, "spec": {"default": {}}}, query=query))
    by_part = {one.get("subresource", ""): one for one in told["metadata"]["managedFields"]}
    assert {part: one["manager"] for part, one in by_part.items()} == {"": "one", "status": "two"}
    assert set(by_part["status"]["fieldsV1"]) == {"f:status"}
    assert "f:status" not in by_part[""]["fieldsV1"]


def test_a_part_that_does_not_exist_is_no_path(timeouts, patches):
    accepted(timeouts.create("a", spec=timeout_spec()))
    assert failure(timeouts.send("PUT", "a/status", {})) == (404, "NotFound")
    assert failure(patches.send("DELETE", "a/status")) == (405, "MethodNotAllowed")


def test_what_the_control_plane_writes_alone_cannot_be_written(plane):
    insights = KubeClient(plane, "", kind="MeshInsight")
    for method, name in (("POST", ""), ("PUT", "default"), ("PATCH", "default"), ("DELETE", "default")):
        answer = insights.send(method, name, {})
        assert failure(answer) == (405, "MethodNotAllowed")
        assert "is written by the control plane alone" in answer.json["message"]


def test_a_writer_owns_what_it_wrote_under_the_name_that_it_gives_itself(config_maps):
    document = config_maps.document("a", data={"x": "y"})
    first = config_maps.send("POST", "", document, {"fieldManager": "one"}).json
    second = config_maps.send(
        "PATCH", "a", {"data": {"z": "2"}}, Content_Type="application/merge-patch+json", User_Agent="two/1.0"
    )
    found = managers(accepted(second))
    assert set(found) == {("one", "Update"), ("two", "Update")}
    assert found["two", "Update"] == {"f:data": {"f:z": {}}}
    assert managers(first)["one", "Update"]["f:data"] == {".": {}, "f:x": {}}
    long = config_maps.create("b", query={"fieldManager": "x" * 129})
    assert failure(long) == (422, "Invalid")


def test_a_patch_of_envoys_configuration_is_judged_when_it_is_written(patches):
    change = {"cluster": {"operation": "Patch", "value": "lb_polici: RANDOM"}}
    answer = patches.create("p", spec={"default": {"appendModifications": [change]}})
    assert failure(answer) == (422, "Invalid")
    assert causes(answer) == [
        ("spec.default.appendModifications[0].cluster.value.lb_polici", "FieldValueInvalid")
    ]
    assert 'has no field "lb_polici"; did you mean "lb_policy"?' in answer.json["message"]
