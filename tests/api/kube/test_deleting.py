"""Deleting: what is gone at once, what waits, and what is only gone if it is what was meant."""

import pytest

from tests.kube_client import (
    CORE,
    KOGUMA,
    PROTOBUF,
    KubeClient,
    accepted,
    causes,
    failure,
    protobuf_body,
    revision,
    timeout_spec,
    wire,
)
from tests.waiting import until

HELD = {"finalizers": ["example.com/hold"]}


def test_what_nothing_holds_is_gone_at_once(timeouts, config_maps):
    uid = accepted(timeouts.create("a", spec=timeout_spec()))["metadata"]["uid"]
    answer = timeouts.delete("a")
    details = {"name": "a", "group": "kuma.io", "kind": "meshtimeouts", "uid": uid}
    assert (answer.status, answer.json["kind"], answer.json["status"]) == (200, "Status", "Success")
    assert answer.json["details"] == details
    assert failure(timeouts.delete("a")) == (404, "NotFound")
    accepted(config_maps.create("a"))
    assert "group" not in config_maps.delete("a").json["details"]


@pytest.mark.parametrize("version", ["kuma.io/v1alpha1", KOGUMA, CORE])
def test_what_has_a_finalizer_goes_with_the_last_of_them(timeouts, version):
    kind = "ConfigMap" if version == CORE else "MeshTimeout"
    held = timeouts.other(version, kind)
    fields = {} if version == CORE else {"spec": timeout_spec()}
    finalizers = ["example.com/one", "example.com/two"]
    first = accepted(held.create("a", metadata={"finalizers": finalizers}, **fields))
    ends = accepted(held.delete("a"))
    assert ends["kind"] == kind
    assert ends["metadata"]["deletionTimestamp"]
    assert ends["metadata"]["deletionGracePeriodSeconds"] == 0
    assert revision(ends) > revision(first)
    assert ends["metadata"].get("generation", 2) == 2
    assert accepted(held.delete("a")) == ends
    one_left = accepted(held.patch("a", {"metadata": {"finalizers": ["example.com/two"]}}))
    assert one_left["metadata"]["deletionTimestamp"] == ends["metadata"]["deletionTimestamp"]
    with held.plane.watch(f"{held.path}?watch=true&resourceVersion={revision(one_left)}") as events:
        assert held.patch("a", {"metadata": {"finalizers": None}}).status == 200
        gone = events.next()
    assert (gone["type"], gone["object"]["metadata"]["name"]) == ("DELETED", "a")
    assert not held.exists("a")


def test_nothing_may_hold_what_is_on_its_way_out_anew(timeouts):
    accepted(timeouts.create("a", metadata=HELD, spec=timeout_spec()))
    accepted(timeouts.delete("a"))
    answer = timeouts.patch("a", {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}})
    assert failure(answer) == (422, "Invalid")
    assert causes(answer) == [("metadata.finalizers", "FieldValueForbidden")]
    assert answer.json["message"] == (
        'MeshTimeout.kuma.io "a" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added'
        ' if the object is being deleted, found new finalizers []string{"example.com/more"}'
    )
    assert accepted(timeouts.patch("a", {"spec": timeout_spec("6s")}))["spec"] == timeout_spec("6s")
    assert accepted(timeouts.replace({**timeouts.get("a"), "metadata": {"name": "a"}}))
    assert not timeouts.exists("a")


def test_a_finalizer_without_a_domain_is_told(timeouts):
    answer = timeouts.create("a", metadata={"finalizers": ["hold"]}, spec=timeout_spec())
    assert answer.status == 201
    assert any('metadata.finalizers: "hold": prefer a domain-qualified' in text for text in answer.warnings)
    assert timeouts.patch("a", {"spec": timeout_spec("6s")}).warnings == []
    accepted(timeouts.patch("a", {"metadata": {"finalizers": None}}))


def test_finalizers_hold_what_the_plain_form_deletes(timeouts):
    accepted(timeouts.create("a", metadata=HELD, spec=timeout_spec()))
    path = f"/meshes/default/meshtimeouts/a.{timeouts.namespace}"
    assert timeouts.plane("DELETE", path).status == 200
    assert timeouts.get("a")["metadata"]["deletionTimestamp"]
    plain = timeouts.plane("GET", path).json
    assert timeouts.plane("PUT", path, {**plain, "spec": timeout_spec("6s")}).status == 200
    held = timeouts.get("a")
    assert (held["spec"], held["metadata"]["finalizers"]) == (timeout_spec("6s"), HELD["finalizers"])
    assert held["metadata"]["deletionTimestamp"]
    accepted(timeouts.patch("a", {"metadata": {"finalizers": []}}))
    assert timeouts.plane("GET", path).status == 404


def test_finalizers_hold_what_a_set_has_lost(timeouts):
    document = {"type": "MeshTimeout", "mesh": "default", "spec": timeout_spec()}
    document |= {"name": f"a.{timeouts.namespace}", "labels": {"k8s.kuma.io/namespace": timeouts.namespace}}
    whole = {"set": timeouts.namespace, "prune": True, "objects": [document]}
    assert timeouts.plane("POST", "/_apply", whole).status == 200
    accepted(timeouts.patch("a", {"metadata": HELD}))
    assert timeouts.plane("POST", "/_apply", {**whole, "objects": []}).status == 200
    assert timeouts.get("a")["metadata"]["deletionTimestamp"]
    accepted(timeouts.patch("a", {"metadata": {"finalizers": []}}))
    assert not timeouts.exists("a")


def test_only_what_was_meant_is_deleted(config_maps):
    found = accepted(config_maps.create("a"))["metadata"]
    for wrong in ({"uid": "other"}, {"resourceVersion": "1"}, {"uid": found["uid"], "resourceVersion": "1"}):
        answer = config_maps.delete("a", {"preconditions": wrong})
        assert failure(answer) == (409, "Conflict")
        assert "Precondition failed" in answer.json["message"]
    right = {"uid": found["uid"], "resourceVersion": found["resourceVersion"]}
    assert (
        config_maps.delete("a", {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": right}).status
        == 200
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
def test_options_come_in_several_ways(config_maps, way):
    body, query, media = WAYS[way]
    accepted(config_maps.create("a", metadata=HELD))
    held = accepted(config_maps.delete("a", body, query, Content_Type=media))
    wanted = "orphan" if way.startswith("older") else "foregroundDeletion"
    assert wanted in held["metadata"]["finalizers"]
    until(lambda: config_maps.get("a")["metadata"]["finalizers"] == HELD["finalizers"])
    accepted(config_maps.patch("a", {"metadata": {"finalizers": None}}))


@pytest.mark.parametrize("query", [{}, {"dryRun": "All"}], ids=str)
def test_a_dry_run_deletes_nothing(config_maps, query):
    accepted(config_maps.create("a"))
    body = {"dryRun": ["All"]} if not query else None
    answer = config_maps.delete("a", body, query)
    assert (answer.status, answer.json["status"]) == (200, "Success")
    assert config_maps.exists("a")


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
def test_options_that_cannot_be_are_refused(config_maps, wrong):
    body, status, reason = WRONG[wrong]
    accepted(config_maps.create("a"))
    assert failure(config_maps.delete("a", body)) == (status, reason)
    assert config_maps.exists("a")


def test_many_are_deleted_by_what_they_are_called(config_maps):
    for name, colour in (("a", "red"), ("b", "blue"), ("c", "red"), ("d", "red")):
        accepted(config_maps.create(name, metadata={"labels": {"colour": colour}}))
    accepted(config_maps.patch("d", {"metadata": HELD}))
    tried = config_maps.delete("", query={"labelSelector": "colour=red", "dryRun": "All"})
    assert [item["metadata"]["name"] for item in tried.json["items"]] == ["a", "c", "d"]
    assert config_maps.exists("a")
    answer = config_maps.delete(
        "", query={"labelSelector": "colour=red", "fieldSelector": "metadata.name!=c"}
    )
    assert (answer.status, answer.json["kind"]) == (200, "ConfigMapList")
    assert [item["metadata"]["name"] for item in answer.json["items"]] == ["a", "d"]
    left = config_maps.send("GET", "").json["items"]
    assert [item["metadata"]["name"] for item in left] == ["b", "c", "d"]
    assert left[2]["metadata"]["deletionTimestamp"]
    assert failure(config_maps.delete("", query={"labelSelector": "a b"})) == (400, "BadRequest")
    accepted(config_maps.patch("d", {"metadata": {"finalizers": None}}))


def test_no_one_deletes_everything_of_all_namespaces_at_once(config_maps, plane):
    accepted(config_maps.create("a"))
    assert failure(plane("DELETE", "/api/v1/configmaps")) == (405, "MethodNotAllowed")
    assert failure(plane("DELETE", "/api/v1/namespaces")) == (405, "MethodNotAllowed")
    assert config_maps.exists("a")
    assert plane("GET", f"/api/v1/namespaces/{config_maps.namespace}").status == 200


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
    services = KubeClient(plane, f"mesh-{mesh}", kind="MeshService")
    until(lambda: services.exists("web"))
    held = accepted(services.patch("web", {"metadata": HELD}))
    assert held["metadata"]["finalizers"] == HELD["finalizers"]
    inbound["port"] = 81
    assert plane("PUT", f"/meshes/{mesh}/dataplanes/web", proxy).status == 200
    until(lambda: services.get("web")["spec"]["ports"][0]["port"] == 81)
    assert services.get("web")["metadata"]["finalizers"] == HELD["finalizers"]
