"""Unknown fields: the Kubernetes form does not store them, however they come; the plain form refuses them."""

import msgspec
import pytest

from koguma.model.resource import Key
from koguma.store.contract import Put, Transaction
from tests.kube_client import (
    APPLY,
    JSON_PATCH,
    KOGUMA,
    KUMA,
    MERGE,
    RBAC,
    STRATEGIC,
    accepted,
    causes,
    failure,
    patch_spec,
    timeout_spec,
)

DEEP = {"idleTimeout": "5s", "http": {"requestTimeout": "1s", "shape": "round"}}
SPEC = {"to": [{"targetRef": {"kind": "Mesh"}, "default": DEEP}], "size": 1}
PRUNED = {
    "to": [{"targetRef": {"kind": "Mesh"}, "default": {**DEEP, "http": {"requestTimeout": "1s"}}}],
}
WARNINGS = ['unknown field "spec.to[0].default.http.shape"', 'unknown field "spec.size"']


def plain(timeouts, name):
    return timeouts.plane("GET", f"/meshes/default/meshtimeouts/{name}.{timeouts.namespace}").json


@pytest.mark.parametrize("version", [KUMA, KOGUMA])
def test_every_write_of_our_kinds_prunes(timeouts, version):
    client = timeouts.other(version)
    created = client.create("a", spec=SPEC)
    assert (accepted(created)["spec"], created.warnings) == (PRUNED, WARNINGS)
    replaced = client.replace({**created.json, "spec": {**SPEC, "size": 2}})
    assert (accepted(replaced)["spec"], replaced.warnings) == (PRUNED, WARNINGS)
    assert replaced.json["metadata"]["resourceVersion"] == created.json["metadata"]["resourceVersion"]
    for media, change in (
        (MERGE, {"spec": {"size": 3}}),
        (JSON_PATCH, [{"op": "add", "path": "/spec/size", "value": 3}]),
    ):
        patched = client.patch("a", change, media)
        assert (accepted(patched)["spec"], patched.warnings) == (PRUNED, WARNINGS[1:])
    applied = client.apply("b", "one", spec=SPEC)
    assert (accepted(applied)["spec"], applied.warnings) == (PRUNED, WARNINGS)
    again = client.apply("b", "one", spec=SPEC)
    assert accepted(again)["metadata"] == applied.json["metadata"]
    assert "size" not in str(applied.json["metadata"]["managedFields"])
    for name in ("a", "b"):
        assert plain(timeouts, name)["spec"] == PRUNED


def test_every_write_of_native_kinds_prunes(config_maps):
    document = config_maps.document("a", data={"x": "1"}, status={"kopf": {"progress": {}}})
    created = config_maps.send("POST", "", document)
    assert "status" not in accepted(created)
    assert created.warnings == ['unknown field "status"']
    for media, change in ((MERGE, {"status": {"kopf": {}}}), (STRATEGIC, {"status": {"kopf": {}}})):
        patched = config_maps.patch("a", change, media)
        assert "status" not in accepted(patched)
        assert patched.warnings == ['unknown field "status"']
    roles = config_maps.other(RBAC, "Role")
    rule = {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "since": "2001"}
    nested = roles.create("r", rules=[rule])
    assert nested.warnings == ['unknown field "rules[0].since"']
    del rule["since"]
    assert accepted(nested)["rules"] == [rule]
    assert accepted(roles.replace(roles.get("r"), query={"fieldValidation": "Strict"}))["rules"] == [rule]


def test_unknown_fields_of_a_status_and_of_an_owner_are_pruned(timeouts):
    patches = timeouts.other(kind="MeshProxyPatch")
    accepted(patches.create("a", spec=patch_spec()))
    condition = {"type": "Tried", "status": "True", "reason": "Tried", "message": "", "mood": "good"}
    answer = patches.patch("a/status", {"status": {"conditions": [condition], "kopf": {}}})
    assert answer.warnings == ['unknown field "status.conditions[0].mood"', 'unknown field "status.kopf"']
    status = accepted(answer)["status"]
    assert "kopf" not in status
    assert "mood" not in status["conditions"][0]
    strict = patches.patch("a/status", {"status": {"kopf": {}}}, query={"fieldValidation": "Strict"})
    assert failure(strict) == (422, "Invalid")
    assert [field for field, _ in causes(strict)] == ["status.kopf"]
    applied = patches.send(
        "PATCH",
        "a/status",
        patches.document("a", status={"kopf": {}}),
        {"fieldManager": "one"},
        Content_Type=APPLY,
    )
    assert accepted(applied)["status"] == status
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "1"}
    owned = timeouts.create(
        "b", spec=timeout_spec(), metadata={"ownerReferences": [{**owner, "x": 1}]}, query={"dryRun": "All"}
    )
    assert accepted(owned)["metadata"]["ownerReferences"] == [owner]
    assert owned.warnings == ['unknown field "metadata.ownerReferences[0].x"']


@pytest.mark.parametrize("version", [KUMA, KOGUMA])
def test_what_was_stored_with_an_unknown_field_can_be_written(timeouts, version):
    """As older servers stored it; the plain form still does, where it is asked to."""
    name = f"old.{timeouts.namespace}"
    path = f"/meshes/default/meshtimeouts/{name}"
    labels = {"k8s.kuma.io/namespace": timeouts.namespace}
    document = {"type": "MeshTimeout", "name": name, "mesh": "default", "labels": labels, "spec": SPEC}
    refused = timeouts.plane("PUT", path, document)
    assert refused.status == 400
    assert "unknown field" in str(refused.json)
    assert timeouts.plane("PUT", f"{path}?fieldValidation=Ignore", document).status == 201
    assert plain(timeouts, "old")["spec"] == SPEC
    client, strict = timeouts.other(version), {"fieldValidation": "Strict"}
    seen = client.get("old")
    assert seen["spec"] == PRUNED
    assert client.list().json["items"][0]["spec"] == PRUNED
    merged = client.patch("old", {"metadata": {"labels": {"team": "red"}}}, query=strict)
    assert accepted(merged)["spec"] == PRUNED
    assert plain(timeouts, "old")["spec"] == PRUNED
    assert accepted(client.replace(client.get("old"), query=strict))["spec"] == PRUNED


def test_a_native_object_of_an_older_server_can_be_written(plane, config_maps):
    """As kopf left it there: a status in a ConfigMap, which kopf owns."""
    stored = accepted(config_maps.apply("old", "team", data={"x": "1"}))
    key = Key("ConfigMap.core", "", "", config_maps.namespace, "old")
    before = plane.plane.store.state.get(key)
    status = {"kopf": {"progress": {}}}
    entry = {
        "manager": "kopf",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:status": {".": {}, "f:kopf": {".": {}, "f:progress": {}}}},
    }
    meta = msgspec.structs.replace(before.meta, managed_fields=(*before.meta.managed_fields, entry))
    spec = {**before.spec, "status": status}
    older = msgspec.structs.replace(before, spec=spec, meta=meta)
    plane.run(plane.plane.store.write(Transaction((Put(older),), "test")))
    strict = {"fieldValidation": "Strict"}
    assert "status" not in config_maps.get("old")
    applied = config_maps.patch(
        "old", config_maps.document("old", data={"x": "2"}), APPLY, {"fieldManager": "team", **strict}
    )
    assert accepted(applied)["data"] == {"x": "2"}
    assert config_maps.replace(stored, query=strict).status == 409  # an older revision
    assert accepted(config_maps.replace(config_maps.get("old"), query=strict))["data"] == {"x": "2"}
    assert "status" not in plane.plane.store.state.get(key).spec
