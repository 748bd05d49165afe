"""Objects of custom resources: pruned, defaulted and checked by their definition, and stored like others."""

import hashlib
import itertools

import pytest

from tests.control_plane import LocalControlPlane
from tests.custom_resources import SCALE, WIDGET, defined, definitions_of, version
from tests.kube_client import (
    APPLY,
    JSON_PATCH,
    KUMA,
    STRATEGIC,
    TABLE,
    accepted,
    bind_role,
    causes,
    create_role,
    failure,
    managers,
    timeout_spec,
)
from tests.waiting import until

SIZE = {"size": 5}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """Definitions change discovery for all, so that these tests have a control plane of their own."""
    with LocalControlPlane(tmp_path_factory.mktemp("custom")) as plane:
        yield plane


@pytest.fixture(scope="module")
def shared(plane):
    """Widgets with a status and replicas, for tests that need nothing else of the definition."""
    column = {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 0}
    ready = {"name": "Phase", "type": "string", "jsonPath": ".status.phase"}
    return defined(
        plane,
        version(
            subresources={"status": {}, "scale": SCALE},
            additionalPrinterColumns=[column, ready],
            selectableFields=[{"jsonPath": ".spec.color"}],
        ),
    )


@pytest.fixture
def widgets(shared):
    """The same in a namespace of the test's own."""
    return shared.other(namespace=f"custom{next(_numbers)}")


def name_of(widgets):
    return f"{widgets.kind.lower()}s.{widgets.version.partition('/')[0]}"


def test_an_object_has_defaults_and_no_unknown_fields(widgets):
    answer = widgets.create("a", spec={**SIZE, "extra": 1, "open": {"any": [1]}}, other=1)
    assert sorted(answer.warnings) == ['unknown field "other"', 'unknown field "spec.extra"']
    made = accepted(answer)
    assert made["spec"] == {"size": 5, "color": "red", "replicas": 1, "open": {"any": [1]}}
    assert made["metadata"]["generation"] == 1
    assert widgets.get("a") == made
    strict = widgets.create("b", spec={**SIZE, "extra": 1}, query={"fieldValidation": "Strict"})
    assert failure(strict) == (400, "BadRequest")
    assert 'unknown field "spec.extra"' in strict.json["message"]


def test_all_that_is_wrong_is_told_with_paths(widgets):
    wrong = {"size": 0, "color": "blue", "replicas": "one", "tags": ["x", "x"]}
    answer = widgets.create("a", spec=wrong)
    assert failure(answer) == (422, "Invalid")
    assert causes(answer) == [
        ("spec.size", "FieldValueInvalid"),
        ("spec.color", "FieldValueNotSupported"),
        ("spec.replicas", "FieldValueTypeInvalid"),
        ("spec.tags[1]", "FieldValueDuplicate"),
    ]
    text = answer.json["message"]
    assert f'Widget.{widgets.version.partition("/")[0]} "a" is invalid: [' in text
    assert "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1" in text
    assert causes(widgets.create("a")) == [("spec", "FieldValueRequired")]
    for body in (5, [], None, "text"):
        assert widgets.send("POST", "", body).status in (400, 422)


def test_the_status_has_a_path_of_its_own(widgets):
    made = accepted(widgets.create("a", spec=SIZE, status={"phase": "told"}))
    assert "status" not in made
    done = accepted(widgets.patch("a/status", {"status": {"phase": "Done", "x": 1}, "spec": {"size": 9}}))
    assert (done["status"], done["spec"]["size"]) == ({"phase": "Done"}, 5)
    assert done["metadata"]["generation"] == 1
    assert ("unknown", "Update", "status") in [
        (each["manager"], each["operation"], each.get("subresource"))
        for each in done["metadata"]["managedFields"]
    ]
    changed = accepted(widgets.patch("a", {"spec": {"size": 6}, "status": {"phase": "ignored"}}))
    assert (changed["status"], changed["metadata"]["generation"]) == ({"phase": "Done"}, 2)
    assert failure(widgets.patch("a/status", {"status": {"phase": 5}})) == (422, "Invalid")


def test_without_a_status_path_the_status_is_a_field_like_others(plane):
    plain = defined(plane, version())
    made = accepted(plain.create("a", spec=SIZE, status={"phase": "told"}))
    assert made["status"] == {"phase": "told"}
    assert accepted(plain.patch("a", {"status": {"phase": "other"}}))["metadata"]["generation"] == 2
    assert plain.send("GET", "a/status").status == 404


def test_replicas_are_scaled(widgets):
    accepted(widgets.create("a", spec={**SIZE, "replicas": 2}))
    accepted(widgets.patch("a/status", {"status": {"replicas": 1, "selector": "app=a"}}))
    scale = widgets.get("a/scale")
    assert (scale["apiVersion"], scale["kind"], scale["spec"]) == ("autoscaling/v1", "Scale", {"replicas": 2})
    assert scale["status"] == {"replicas": 1, "selector": "app=a"}
    assert accepted(widgets.patch("a/scale", {"spec": {"replicas": 7}}))["spec"] == {"replicas": 7}
    assert widgets.get("a")["spec"] == {"size": 5, "replicas": 7, "color": "red"}
    scale["spec"]["replicas"] = 9
    assert failure(widgets.replace(scale, part="scale")) == (409, "Conflict")
    scale["metadata"]["resourceVersion"] = widgets.get("a")["metadata"]["resourceVersion"]
    accepted(widgets.replace(scale, part="scale"))
    assert widgets.get("a")["spec"]["replicas"] == 9
    for wrong in (-1, "x", 2**40):
        assert widgets.patch("a/scale", {"spec": {"replicas": wrong}}).status == 422
    tried = accepted(widgets.patch("a/scale", {"spec": {"replicas": 1}}, query={"dryRun": "All"}))
    assert (tried["kind"], tried["spec"]) == ("Scale", {"replicas": 1})
    assert widgets.get("a")["spec"]["replicas"] == 9
    config = {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 3}}
    conflict = widgets.patch("a/scale", config, APPLY, {"fieldManager": "scaler"})
    assert causes(conflict) == [(".spec.replicas", "FieldManagerConflict")]
    applied = accepted(widgets.patch("a/scale", config, APPLY, {"fieldManager": "scaler", "force": "true"}))
    assert (applied["kind"], applied["spec"]) == ("Scale", {"replicas": 3})
    whole = widgets.get("a")
    assert whole["spec"] == {"size": 5, "replicas": 3, "color": "red"}
    assert ("scaler", "Apply") in managers(whole)
    wrong = widgets.patch("a/scale", widgets.document("a"), APPLY, {"fieldManager": "scaler"})
    assert failure(wrong) == (400, "BadRequest")


def test_updates_name_the_revision_that_they_saw(widgets):
    made = accepted(widgets.create("a", spec=SIZE))
    answer = widgets.replace(widgets.document("a", spec={"size": 6}))
    assert failure(answer) == (422, "Invalid")
    assert (
        "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        in answer.json["message"]
    )
    made["spec"]["size"] = 6
    changed = accepted(widgets.replace(made))
    assert failure(widgets.replace(made)) == (409, "Conflict")
    assert accepted(widgets.replace(changed))["metadata"] == changed["metadata"], "no change, no revision"


def test_patches(widgets):
    accepted(widgets.create("a", spec=SIZE))
    assert accepted(widgets.patch("a", {"spec": {"size": 6}}))["spec"]["size"] == 6
    operations = [{"op": "replace", "path": "/spec/size", "value": 7}]
    assert accepted(widgets.patch("a", operations, JSON_PATCH))["spec"]["size"] == 7
    assert failure(widgets.patch("a", {}, STRATEGIC)) == (415, "UnsupportedMediaType")
    assert accepted(widgets.patch("a", {"spec": {"color": None}}))["spec"]["color"] == "red"


def test_server_side_apply_merges_by_the_definition(widgets):
    accepted(widgets.apply("a", "one", spec={**SIZE, "tags": ["x"]}))
    merged = accepted(widgets.apply("a", "two", spec={"tags": ["y"]}))
    assert sorted(merged["spec"]["tags"]) == ["x", "y"]
    conflict = widgets.apply("a", "two", spec={"size": 6})
    assert failure(conflict) == (409, "Conflict")
    assert causes(conflict) == [(".spec.size", "FieldManagerConflict")]
    forced = accepted(widgets.apply("a", "two", force=True, spec={"size": 6, "tags": ["y"]}))
    assert forced["spec"]["size"] == 6
    assert {("one", "Apply"), ("two", "Apply")} <= set(managers(forced))


def test_tables_show_what_the_definition_says(widgets):
    accepted(widgets.create("a", spec=SIZE))
    accepted(widgets.create("b", spec={"size": 7}))
    accepted(widgets.patch("b/status", {"status": {"phase": "Done"}}))
    table = widgets.list(TABLE).json
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Size", "Phase"]
    assert [row["cells"] for row in table["rows"]] == [["a", 5, None], ["b", 7, "Done"]]


def test_field_selectors_know_what_the_definition_declares(widgets):
    accepted(widgets.create("a", spec=SIZE))
    accepted(widgets.create("b", spec={"size": 5, "color": "green"}))
    found = widgets.list(fieldSelector="spec.color=green").json["items"]
    assert [item["metadata"]["name"] for item in found] == ["b"]
    assert failure(widgets.list(fieldSelector="spec.size=5")) == (400, "BadRequest")


def test_a_watch_sees_objects_as_they_come(widgets):
    accepted(widgets.create("a", spec=SIZE))
    with widgets.watch() as events:
        assert events.next()["object"]["spec"]["color"] == "red"
        accepted(widgets.patch("a", {"spec": {"size": 6}}))
        event = events.next()
        assert (event["type"], event["object"]["spec"]["size"]) == ("MODIFIED", 6)
        widgets.delete("a")
        assert events.next()["type"] == "DELETED"


def test_rules_in_cel_hold(plane):
    rules = [
        {"rule": "self.low <= self.high", "message": "low must not be above high", "fieldPath": ".low"},
        {"rule": "self.low >= oldSelf.low", "messageExpression": "'low was ' + string(oldSelf.low)"},
        {"rule": "!has(self.b__dash__c) || self.b__dash__c.startsWith('x')", "reason": "FieldValueForbidden"},
    ]
    spec = {
        "type": "object",
        "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}, "b-c": {"type": "string"}},
        "x-kubernetes-validations": rules,
    }
    ranges = defined(plane, version(schema={"type": "object", "properties": {"spec": spec}}), kind="Range")
    accepted(ranges.create("a", spec={"low": 2, "high": 3}))
    answer = ranges.create("b", spec={"low": 4, "high": 3})
    assert answer.json["message"].endswith('spec.low: Invalid value: "object": low must not be above high')
    assert (
        ranges.patch("a", {"spec": {"low": 1}}).json["message"].endswith('Invalid value: "object": low was 2')
    )
    assert causes(ranges.create("b", spec={"low": 1, "high": 3, "b-c": "y"})) == [
        ("spec", "FieldValueForbidden")
    ]
    missing = ranges.create("b", spec={"high": 3})
    assert "no such key: low evaluating rule: low must not be above high" in missing.json["message"]


def test_a_definition_that_changes_changes_what_is_shown(plane):
    """Older objects get new defaults when they are read, and lose fields that are gone."""
    widgets = defined(plane, version())
    accepted(widgets.create("a", spec={**SIZE, "tags": ["x"]}))
    begin = widgets.get("a")["metadata"]["resourceVersion"]
    spec = WIDGET["properties"]["spec"]
    fields = {**spec["properties"], "shape": {"type": "string", "default": "round"}}
    fields["size"] = {"type": "integer", "maximum": 3}
    del fields["tags"]
    schema = {"type": "object", "properties": {"spec": {**spec, "properties": fields}}}
    accepted(definitions_of(plane).patch(name_of(widgets), {"spec": {"versions": [version(schema=schema)]}}))
    shown = widgets.get("a")
    assert shown["spec"] == {"size": 5, "color": "red", "replicas": 1, "shape": "round"}
    assert shown["metadata"]["resourceVersion"] == begin
    assert [item["spec"] for item in widgets.list().json["items"]] == [shown["spec"]]
    # What was stored under older rules stays until somebody changes it.
    assert accepted(widgets.patch("a", {"spec": {"replicas": 2}}))["spec"]["size"] == 5
    assert failure(widgets.patch("a", {"spec": {"size": 6}})) == (422, "Invalid")


def test_a_watch_ends_when_objects_look_otherwise(plane):
    widgets = defined(plane, version())
    accepted(widgets.create("a", spec=SIZE))
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    with widgets.watch() as events:
        assert events.next()["type"] == "ADDED"
        labels = {"metadata": {"labels": {"a": "b"}}}
        accepted(definitions_of(plane).patch(name_of(widgets), labels))
        accepted(widgets.patch("a", {"spec": {"size": 6}}))
        assert events.next()["type"] == "MODIFIED", "other changes of the definition do not matter"
        accepted(
            definitions_of(plane).patch(name_of(widgets), {"spec": {"versions": [version(schema=schema)]}})
        )
        event = events.next()
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_versions_show_the_same_objects(plane):
    beta = version("v1beta1", storage=False, deprecated=True, deprecationWarning="use v1")
    newer = defined(plane, version("v1"), beta)
    older = newer.other(newer.version.replace("/v1", "/v1beta1"))
    accepted(newer.create("a", spec=SIZE))
    answer = older.send("GET", "a")
    assert (answer.json["apiVersion"], answer.json["spec"]["size"]) == (older.version, 5)
    assert answer.warnings == ["use v1"]
    changed = accepted(older.patch("a", {"spec": {"size": 6}}))
    assert changed["metadata"]["resourceVersion"] == newer.get("a")["metadata"]["resourceVersion"]
    ids = {
        plane("GET", f"/apis/{each}").json["resources"][0]["resourceID"]
        for each in (newer.version, older.version)
    }
    group = newer.version.partition("/")[0]
    assert ids == {hashlib.sha256(f"/registry/{group}/widgets".encode()).hexdigest()}
    # The versions of storage and of the request differ: a write that changes nothing rewrites nothing.
    same = accepted(older.replace(older.get("a")))
    assert same["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


def test_a_change_of_the_storage_version_rewrites_an_object_once(plane):
    widgets = defined(plane, version("v1"), version("v2", storage=False))
    before = accepted(widgets.create("a", spec=SIZE))
    moved = [version("v1", storage=False), version("v2")]
    accepted(definitions_of(plane).patch(name_of(widgets), {"spec": {"versions": moved}}))
    first = accepted(widgets.replace(widgets.get("a")))["metadata"]
    assert int(first["resourceVersion"]) > int(before["metadata"]["resourceVersion"])
    assert first["generation"] == 1
    assert accepted(widgets.replace(widgets.get("a")))["metadata"] == first


def test_rights_deny_by_default(widgets):
    for method, name in (("GET", ""), ("POST", ""), ("GET", "a"), ("PATCH", "a/scale"), ("DELETE", "a")):
        answer = widgets.send(
            method, name, {} if method in ("POST", "PATCH") else None, Impersonate_User="nobody"
        )
        assert failure(answer) == (403, "Forbidden")


def test_names_of_our_kinds_in_another_group_are_other_objects(plane):
    """What has the same name is not the same: neither its objects, nor its id, nor the rights on it."""
    theirs = defined(plane, version(), kind="MeshTimeout", namespace="same")
    ours = theirs.other(KUMA)
    accepted(theirs.create("a", spec=SIZE))
    assert not ours.exists("a")
    accepted(ours.create("a", spec=timeout_spec()))
    assert theirs.get("a")["spec"]["size"] == 5
    ids = [
        next(
            each["resourceID"]
            for each in plane("GET", f"/apis/{at}").json["resources"]
            if each["name"] == "meshtimeouts"
        )
        for at in (ours.version, theirs.version)
    ]
    assert ids[0] != ids[1]
    create_role(plane, "timeouts", {"apiGroups": ["kuma.io"], "resources": ["meshtimeouts"], "verbs": ["*"]})
    bind_role(plane, "kim", "timeouts")
    assert ours.send("GET", "a", Impersonate_User="kim").status == 200
    assert theirs.send("GET", "a", Impersonate_User="kim").status == 403


def test_cluster_scoped_objects_have_no_namespace(plane):
    spaces = defined(plane, version(), scope="Cluster", kind="Space", namespace="")
    made = accepted(spaces.create("a", spec=SIZE))
    assert "namespace" not in made["metadata"]
    assert spaces.other(namespace="x").send("GET", "a").status == 404


def test_an_embedded_name_is_restricted_by_the_schema(plane):
    names = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}}
    schema = {"type": "object", "properties": {"metadata": names, "spec": {"type": "object"}}}
    short = defined(plane, version(schema=schema), kind="Short")
    accepted(short.create("abc"))
    assert causes(short.create("abcd")) == [("metadata.name", "FieldValueTooLong")]


def test_objects_are_collected_with_their_owners_and_namespaces(widgets, plane):
    accepted(widgets.create("owner", spec=SIZE))
    owner = {"apiVersion": widgets.version, "kind": "Widget", "name": "owner"}
    owner["uid"] = widgets.get("owner")["metadata"]["uid"]
    accepted(widgets.create("child", spec=SIZE, metadata={"ownerReferences": [owner]}))
    widgets.delete("owner")
    until(lambda: not widgets.exists("child"))
    accepted(widgets.create("last", spec=SIZE))
    assert plane("DELETE", f"/api/v1/namespaces/{widgets.namespace}").status == 200
    until(lambda: plane("GET", f"/api/v1/namespaces/{widgets.namespace}").status == 404)
    assert not widgets.exists("last")
