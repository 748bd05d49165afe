"""Deleting: what is gone at once, what waits, and what is only gone if it is what was meant."""

import pytest

from tests.kube_door import (
    CORE,
    KOGUMA,
    PROTOBUF,
    Door,
    causes,
    made,
    protobuf_body,
    refused,
    revision,
    timeout,
    until,
    wire,
)

HELD = {"finalizers": ["example.com/hold"]}


def test_what_nothing_holds_is_gone_at_once(door, maps):
    uid = made(door.create("a", spec=timeout()))["metadata"]["uid"]
    answer = door.delete("a")
    details = {"name": "a", "group": "kuma.io", "kind": "meshtimeouts", "uid": uid}
    assert (answer.status, answer.json["kind"], answer.json["status"]) == (200, "Status", "Success")
    assert answer.json["details"] == details
    assert refused(door.delete("a")) == (404, "NotFound")
    made(maps.create("a"))
    assert "group" not in maps.delete("a").json["details"]


@pytest.mark.parametrize("version", ["kuma.io/v1alpha1", KOGUMA, CORE])
def test_what_has_a_finalizer_goes_with_the_last_of_them(door, version):
    kind = "ConfigMap" if version == CORE else "MeshTimeout"
    held = door.other(version, kind)
    fields = {} if version == CORE else {"spec": timeout()}
    finalizers = ["example.com/one", "example.com/two"]
    first = made(held.create("a", metadata={"finalizers": finalizers}, **fields))
    ends = made(held.delete("a"))
    assert ends["kind"] == kind
    assert ends["metadata"]["deletionTimestamp"]
    assert ends["metadata"]["deletionGracePeriodSeconds"] == 0
    assert revision(ends) > revision(first)
    assert ends["metadata"].get("generation", 2) == 2
    assert made(held.delete("a")) == ends
    one_left = made(held.patch("a", {"metadata": {"finalizers": ["example.com/two"]}}))
    assert one_left["metadata"]["deletionTimestamp"] == ends["metadata"]["deletionTimestamp"]
    with held.plane.watch(f"{held.path}?watch=true&resourceVersion={revision(one_left)}") as events:
        assert held.patch("a", {"metadata": {"finalizers": None}}).status == 200
        gone = events.next()
    assert (gone["type"], gone["object"]["metadata"]["name"]) == ("DELETED", "a")
    assert not held.exists("a")


def test_nothing_may_hold_what_is_on_its_way_out_anew(door):
    made(door.create("a", metadata=HELD, spec=timeout()))
    made(door.delete("a"))
    answer = door.patch("a", {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}})
    assert refused(answer) == (422, "Invalid")
    assert causes(answer) == [("metadata.finalizers", "FieldValueForbidden")]
    assert answer.json["message"] == (
        'MeshTimeout.kuma.io "a" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added'
        ' if the object is being deleted, found new finalizers []string{"example.com/more"}'
    )
    assert made(door.patch("a", {"spec": timeout("6s")}))["spec"] == timeout("6s")
    assert made(door.replace({**door.get("a"), "metadata": {"name": "a"}}))
    assert not door.exists("a")


def test_a_finalizer_without_a_domain_is_told(door):
    answer = door.create("a", metadata={"finalizers": ["hold"]}, spec=timeout())
    assert answer.status == 201
    assert any('metadata.finalizers: "hold": prefer a domain-qualified' in text for text in answer.warnings)
    assert door.patch("a", {"spec": timeout("6s")}).warnings == []
    made(door.patch("a", {"metadata": {"finalizers": None}}))


def test_finalizers_hold_what_the_plain_form_deletes(door):
    made(door.create("a", metadata=HELD, spec=timeout()))
    path = f"/meshes/default/meshtimeouts/a.{door.namespace}"
    assert door.plane("DELETE", path).status == 200
    assert door.get("a")["metadata"]["deletionTimestamp"]
    plain = door.plane("GET", path).json
    assert door.plane("PUT", path, {**plain, "spec": timeout("6s")}).status == 200
    held = door.get("a")
    assert (held["spec"], held["metadata"]["finalizers"]) == (timeout("6s"), HELD["finalizers"])
    assert held["metadata"]["deletionTimestamp"]
    made(door.patch("a", {"metadata": {"finalizers": []}}))
    assert door.plane("GET", path).status == 404


def test_finalizers_hold_what_a_set_has_lost(door):
    document = {"type": "MeshTimeout", "mesh": "default", "spec": timeout()}
    document |= {"name": f"a.{door.namespace}", "labels": {"k8s.kuma.io/namespace": door.namespace}}
    whole = {"set": door.namespace, "prune": True, "objects": [document]}
    assert door.plane("POST", "/_apply", whole).status == 200
    made(door.patch("a", {"metadata": HELD}))
    assert door.plane("POST", "/_apply", {**whole, "objects": []}).status == 200
    assert door.get("a")["metadata"]["deletionTimestamp"]
    made(door.patch("a", {"metadata": {"finalizers": []}}))
    assert not door.exists("a")


def test_only_what_was_meant_is_deleted(maps):
    found = made(maps.create("a"))["metadata"]
    for wrong in ({"uid": "other"}, {"resourceVersion": "1"}, {"uid": found["uid"], "resourceVersion": "1"}):
        answer = maps.delete("a", {"preconditions": wrong})
        assert refused(answer) == (409, "Conflict")
        assert "Precondition failed" in answer.json["message"]
    right = {"uid": found["uid"], "resourceVersion": found["resourceVersion"]}
    assert (
        maps.delete("a", {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": right}).status == 200
    )


WAYS = {
    "body": ({"propagationPolicy": "Foreground"}, (), "application/json"),
    "query": (None, {"propagationPolicy": "Foreground"}, ""),
    "protobuf": (protobuf_body("v1", "DeleteOptions", wire((4, "Foreground"))), (), PROTOBUF),
    "yaml": (b"kind: DeleteOptions\npropagationPolicy: Foreground\n", (), "application/yaml"),
    "older": ({"orphanDependents": True}, (), ""),
    "older query": (None, {"orphanDependents": ""}, ""),
}


@pytest.mark.parametrize("way", WAYS)
def test_options_come_in_several_ways(maps, way):
    body, query, media = WAYS[way]
    made(maps.create("a", metadata=HELD))
    held = made(maps.delete("a", body, query, Content_Type=media))
    wanted = "orphan" if way.startswith("older") else "foregroundDeletion"
    assert wanted in held["metadata"]["finalizers"]
    until(lambda: maps.get("a")["metadata"]["finalizers"] == HELD["finalizers"])
    made(maps.patch("a", {"metadata": {"finalizers": None}}))


@pytest.mark.parametrize("query", [{}, {"dryRun": "All"}], ids=str)
def test_a_dry_run_deletes_nothing(maps, query):
    made(maps.create("a"))
    body = {"dryRun": ["All"]} if not query else None
    answer = maps.delete("a", body, query)
    assert (answer.status, answer.json["status"]) == (200, "Success")
    assert maps.exists("a")


WRONG = {
    "a policy that is none": ({"propagationPolicy": "Sideways"}, 422, "Invalid"),
    "both forms": ({"propagationPolicy": "Orphan", "orphanDependents": True}, 422, "Invalid"),
    "another dry run": ({"dryRun": ["Some"]}, 422, "Invalid"),
    "no revision": ({"preconditions": {"resourceVersion": "x"}}, 400, "BadRequest"),
    "no preconditions": ({"preconditions": 5}, 400, "BadRequest"),
    "a list": ([], 400, "BadRequest"),
    "no JSON": (b"{", 400, "BadRequest"),
    "a policy of no text": ({"propagationPolicy": {"a": 1}}, 422, "Invalid"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_options_that_cannot_be_are_refused(maps, wrong):
    body, status, reason = WRONG[wrong]
    made(maps.create("a"))
    assert refused(maps.delete("a", body)) == (status, reason)
    assert maps.exists("a")


def test_many_are_deleted_by_what_they_are_called(maps):
    for name, colour in (("a", "red"), ("b", "blue"), ("c", "red"), ("d", "red")):
        made(maps.create(name, metadata={"labels": {"colour": colour}}))
    made(maps.patch("d", {"metadata": HELD}))
    tried = maps.delete("", query={"labelSelector": "colour=red", "dryRun": "All"})
    assert [item["metadata"]["name"] for item in tried.json["items"]] == ["a", "c", "d"]
    assert maps.exists("a")
    answer = maps.delete("", query={"labelSelector": "colour=red", "fieldSelector": "metadata.name!=c"})
    assert (answer.status, answer.json["kind"]) == (200, "ConfigMapList")
    assert [item["metadata"]["name"] for item in answer.json["items"]] == ["a", "d"]
    left = maps.send("GET", "").json["items"]
    assert [item["metadata"]["name"] for item in left] == ["b", "c", "d"]
    assert left[2]["metadata"]["deletionTimestamp"]
    assert refused(maps.delete("", query={"labelSelector": "a b"})) == (400, "BadRequest")
    made(maps.patch("d", {"metadata": {"finalizers": None}}))


def test_no_one_deletes_everything_of_all_namespaces_at_once(maps, plane):
    made(maps.create("a"))
    assert refused(plane("DELETE", "/api/v1/configmaps")) == (405, "MethodNotAllowed")
    assert refused(plane("DELETE", "/api/v1/namespaces")) == (405, "MethodNotAllowed")
    assert maps.exists("a")
    assert plane("GET", f"/api/v1/namespaces/{maps.namespace}").status == 200


def test_what_the_control_plane_makes_is_held_too(plane, mesh):
    """The control plane's own writers respect finalizers, as everybody does."""
    inbound = {"port": 80, "tags": {"kuma.io/service": "web", "app": "web"}}
    proxy = {
        "type": "Dataplane",
        "mesh": mesh,
        "name": "web",
        "labels": {"kuma.io/service": "web"},
        "networking": {"address": "10.0.0.1", "inbound": [inbound]},
    }
    change = {"type": "Mesh", "name": mesh, "meshServices": {"mode": "Exclusive"}}
    assert plane("PUT", f"/meshes/{mesh}", change).status == 200
    assert plane("PUT", f"/meshes/{mesh}/dataplanes/web", proxy).status == 201
    services = Door(plane, f"mesh-{mesh}", kind="MeshService")
    until(lambda: services.exists("web"))
    held = made(services.patch("web", {"metadata": HELD}))
    assert held["metadata"]["finalizers"] == HELD["finalizers"]
    inbound["port"] = 81
    assert plane("PUT", f"/meshes/{mesh}/dataplanes/web", proxy).status == 200
    until(lambda: services.get("web")["spec"]["ports"][0]["port"] == 81)
    assert services.get("web")["metadata"]["finalizers"] == HELD["finalizers"]
