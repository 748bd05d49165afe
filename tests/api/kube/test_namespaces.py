"""Namespaces: they come with the first write, and what is in them goes before they do."""

from datetime import timedelta

import pytest

from koguma.application import namespaces
from tests.control_plane import LocalControlPlane
from tests.kube_client import (
    CORE,
    JSON_PATCH,
    KOGUMA,
    PROTOBUF,
    accepted,
    causes,
    config_maps_in,
    failure,
    protobuf_body,
    timeout_spec,
    wire,
)
from tests.waiting import until

HELD = {"finalizers": ["example.com/hold"]}


@pytest.fixture
def spaces(timeouts):
    return timeouts.other(CORE, "Namespace", namespace="")


def test_the_first_write_into_a_namespace_makes_it(timeouts, spaces):
    assert not spaces.exists(timeouts.namespace)
    assert timeouts.create("a", spec=timeout_spec(), query={"dryRun": "All"}).status == 201
    assert not spaces.exists(timeouts.namespace)
    accepted(timeouts.create("a", spec=timeout_spec()))
    space = spaces.get(timeouts.namespace)
    assert space["metadata"]["labels"] == {"kubernetes.io/metadata.name": timeouts.namespace}
    assert (space["spec"], space["status"]) == ({"finalizers": ["kubernetes"]}, {"phase": "Active"})


def test_a_namespace_can_be_made_by_hand(spaces, timeouts):
    body = protobuf_body("v1", "Namespace", wire((1, wire((1, timeouts.namespace)))))
    answer = spaces.send("POST", "", body, Content_Type=PROTOBUF)
    assert answer.status == 201
    assert answer.json["spec"] == {"finalizers": ["kubernetes"]}
    assert failure(spaces.create(timeouts.namespace)) == (409, "AlreadyExists")
    labelled = accepted(spaces.patch(timeouts.namespace, {"metadata": {"labels": {"a": "b"}}}))
    assert labelled["metadata"]["labels"]["kubernetes.io/metadata.name"] == timeouts.namespace
    unheld = accepted(spaces.patch(timeouts.namespace, {"spec": {"finalizers": []}}))
    assert unheld["spec"] == {"finalizers": ["kubernetes"]}


@pytest.mark.parametrize("name", ["A", "a.b", "x" * 64, "-a"])
def test_a_namespace_has_the_name_of_a_host(spaces, name):
    assert failure(spaces.create(name)) == (422, "Invalid")


def test_a_deleted_namespace_takes_what_is_in_it_along(timeouts, config_maps, spaces):
    accepted(timeouts.create("a", spec=timeout_spec()))
    accepted(config_maps.create("a"))
    accepted(timeouts.other("coordination.k8s.io/v1", "Lease").create("a", spec={}))
    ends = spaces.delete(timeouts.namespace)
    assert (ends.status, ends.json["kind"]) == (200, "Namespace")
    assert ends.json["status"]["phase"] == "Terminating"
    assert ends.json["metadata"]["deletionTimestamp"]
    until(lambda: not spaces.exists(timeouts.namespace))
    assert not timeouts.exists("a")
    assert not config_maps.exists("a")
    assert timeouts.plane("GET", f"/meshes/default/meshtimeouts/a.{timeouts.namespace}").status == 404


def test_a_deleted_namespace_does_not_come_back_with_a_client_that_did_not_notice(
    timeouts, config_maps, spaces
):
    name = timeouts.namespace
    accepted(config_maps.create("a"))
    accepted(spaces.delete(name))
    until(lambda: not spaces.exists(name))
    leases = timeouts.other("coordination.k8s.io/v1", "Lease")
    for answer in (
        config_maps.create("a"),
        config_maps.create("a", query={"dryRun": "All"}),
        config_maps.apply("a"),
        timeouts.create("a", spec=timeout_spec()),
        timeouts.other(KOGUMA).apply("a", spec=timeout_spec()),
        leases.replace(leases.document("a", spec={})),  # a kind that an update creates
    ):
        assert failure(answer) == (404, "NotFound")
        assert answer.json["message"].startswith(f'namespaces "{name}" not found: it was deleted at 20')
    assert failure(config_maps.patch("a", {"data": {}})) == (404, "NotFound")
    assert not spaces.exists(name)
    accepted(spaces.create(name))
    accepted(config_maps.create("a"))


def test_the_plain_form_makes_a_deleted_namespace_again(timeouts, spaces):
    accepted(spaces.create(timeouts.namespace))
    accepted(spaces.delete(timeouts.namespace))
    until(lambda: not spaces.exists(timeouts.namespace))
    name = f"a.{timeouts.namespace}"
    document = {"type": "MeshTimeout", "mesh": "default", "name": name, "spec": timeout_spec()}
    document["labels"] = {"k8s.kuma.io/namespace": timeouts.namespace}
    assert timeouts.plane("PUT", f"/meshes/default/meshtimeouts/{name}", document).status == 201
    assert spaces.get(timeouts.namespace)["status"] == {"phase": "Active"}
    accepted(timeouts.create("b", spec=timeout_spec()))


def test_a_restart_does_not_forget_that_a_namespace_was_deleted(tmp_path):
    for is_first in (True, False):
        with LocalControlPlane(tmp_path, store=f"sqlite:///{tmp_path / 'koguma.db'}") as plane:
            config_maps = config_maps_in(plane, "team")
            if is_first:
                accepted(config_maps.create("a"))
                delete_namespace(config_maps)
            assert failure(config_maps.create("a")) == (404, "NotFound")


def delete_namespace(config_maps):
    spaces = config_maps.other(kind="Namespace", namespace="")
    accepted(spaces.delete(config_maps.namespace))
    until(lambda: not spaces.exists(config_maps.namespace))


def test_what_was_deleted_long_ago_is_made_by_the_first_write(timeouts, config_maps, spaces, monkeypatch):
    monkeypatch.setattr(namespaces, "DELETED_FOR", timedelta(0))
    accepted(spaces.create(timeouts.namespace))
    accepted(spaces.delete(timeouts.namespace))
    until(lambda: not spaces.exists(timeouts.namespace))
    accepted(config_maps.create("a"))


def test_while_it_ends_its_conditions_say_what_is_left(timeouts, config_maps, spaces):
    name = timeouts.namespace
    accepted(timeouts.create("held", metadata=HELD, spec=timeout_spec()))
    accepted(config_maps.create("held", metadata=HELD))
    accepted(config_maps.create("free"))
    accepted(spaces.delete(name))

    def conditions():
        return {each["type"]: each for each in spaces.get(name)["status"].get("conditions", ())}

    def left():
        return conditions().get("NamespaceContentRemaining", {}).get("message", "")

    until(
        lambda: left().endswith(
            "configmaps. has 1 resource instances, meshtimeouts.kuma.io has 1 resource instances"
        )
    )
    assert spaces.get(name)["status"]["phase"] == "Terminating"
    facts = {type_: (each["status"], each["reason"]) for type_, each in conditions().items()}
    assert facts == {
        "NamespaceDeletionDiscoveryFailure": ("False", "ResourcesDiscovered"),
        "NamespaceDeletionGroupVersionParsingFailure": ("False", "ParsedGroupVersions"),
        "NamespaceDeletionContentFailure": ("False", "ContentDeleted"),
        "NamespaceContentRemaining": ("True", "SomeResourcesRemain"),
        "NamespaceFinalizersRemaining": ("True", "SomeFinalizersRemain"),
    }
    finalizer = HELD["finalizers"][0]
    held = f"Some content in the namespace has finalizers remaining: {finalizer} in 2 resource instances"
    assert conditions()["NamespaceFinalizersRemaining"]["message"] == held
    accepted(config_maps.patch("held", {"metadata": {"finalizers": None}}))
    until(lambda: "configmaps" not in left())
    accepted(timeouts.patch("held", {"metadata": {"finalizers": None}}))
    until(lambda: not spaces.exists(name))


def test_a_status_of_a_namespace_comes_with_its_labels_and_annotations(spaces, config_maps):
    name = config_maps.namespace
    space = accepted(spaces.create(name, metadata={"labels": {"a": "1"}, "annotations": {"x": "1"}}))
    condition = {"type": "Seen", "status": "True", "reason": "Seen", "message": "by a test"}
    change = {
        "metadata": {"labels": {"b": "2"}, "annotations": {"x": None, "y": "2"}},
        "spec": {"finalizers": ["example.com/ignored"]},
        "status": {"conditions": [condition]},
    }
    patched = accepted(spaces.patch(f"{name}/status", change))
    assert patched["metadata"]["labels"] == {"a": "1", "b": "2", "kubernetes.io/metadata.name": name}
    assert patched["metadata"]["annotations"] == {"y": "2"}
    assert patched["spec"] == space["spec"]
    assert patched["status"] == {"phase": "Active", "conditions": [condition]}
    document = {
        **patched,
        "metadata": {**patched["metadata"], "labels": {"c": "3"}},
        "status": {"phase": "Active"},
    }
    replaced = accepted(spaces.replace(document, part="status"))
    assert replaced["metadata"]["labels"] == {"c": "3", "kubernetes.io/metadata.name": name}
    assert replaced["status"] == {"phase": "Active"}
    wrong = spaces.patch(f"{name}/status", {"metadata": {"labels": {"not a label": "x"}}})
    assert failure(wrong) == (422, "Invalid")


@pytest.mark.parametrize("policy", ["Foreground", "Orphan", "Background"])
def test_however_it_is_deleted_it_is_emptied_first(config_maps, spaces, policy):
    accepted(config_maps.create("a"))
    assert spaces.delete(config_maps.namespace, {"propagationPolicy": policy}).status == 200
    until(lambda: not spaces.exists(config_maps.namespace))
    assert not config_maps.exists("a")


def test_while_it_ends_nothing_new_comes_in_and_what_is_there_can_be_let_go(timeouts, config_maps, spaces):
    accepted(timeouts.create("held", metadata=HELD, spec=timeout_spec()))
    accepted(config_maps.create("free"))
    assert spaces.delete(timeouts.namespace).json["status"]["phase"] == "Terminating"
    until(lambda: not config_maps.exists("free"))
    for each, fields in (
        (timeouts, {"spec": timeout_spec()}),
        (timeouts.other(KOGUMA), {"spec": timeout_spec()}),
        (config_maps, {}),
    ):
        answer = each.create("new", **fields)
        assert failure(answer) == (403, "Forbidden")
        assert causes(answer) == [("metadata.namespace", "NamespaceTerminating")]
        text = (
            f"unable to create new content in namespace {timeouts.namespace} because it is being terminated"
        )
        assert text in answer.json["message"]
        assert failure(each.apply("new", **fields)) == (403, "Forbidden")
    name = f"new.{timeouts.namespace}"
    document = {"type": "MeshTimeout", "mesh": "default", "name": name, "spec": timeout_spec()}
    document["labels"] = {"k8s.kuma.io/namespace": timeouts.namespace}
    assert timeouts.plane("PUT", f"/meshes/default/meshtimeouts/{name}", document).status == 403
    labelled = spaces.patch(timeouts.namespace, {"metadata": {"labels": {"still": "here"}}})
    assert accepted(labelled)["metadata"]["labels"]["still"] == "here"
    assert spaces.exists(timeouts.namespace)
    until(lambda: "deletionTimestamp" in timeouts.get("held")["metadata"])
    assert accepted(timeouts.patch("held", {"spec": timeout_spec("6s")}))["spec"] == timeout_spec("6s")
    accepted(timeouts.patch("held", {"metadata": {"finalizers": None}}))
    until(lambda: not spaces.exists(timeouts.namespace))


def test_a_namespace_waits_for_those_who_finalize_it(config_maps, spaces):
    name = config_maps.namespace
    body = spaces.document(name, spec={"finalizers": ["example.com/me"]})
    space = accepted(spaces.send("POST", "", body))
    assert space["spec"]["finalizers"] == ["example.com/me", "kubernetes"]
    accepted(config_maps.create("a"))
    accepted(spaces.delete(name))
    until(lambda: spaces.get(name)["spec"]["finalizers"] == ["example.com/me"])
    assert not config_maps.exists("a")
    stale = spaces.replace({**space, "spec": {"finalizers": []}}, part="finalize")
    assert failure(stale) == (409, "Conflict")
    now = spaces.get(name)
    assert failure(spaces.replace({**now, "spec": {"finalizers": "x"}}, part="finalize")) == (422, "Invalid")
    assert spaces.replace({**now, "spec": {}}, part="finalize").status == 200
    until(lambda: not spaces.exists(name))


def test_finalizing_does_not_end_what_is_not_ending(config_maps, spaces):
    accepted(config_maps.create("a"))
    space = spaces.get(config_maps.namespace)
    assert (
        accepted(spaces.replace({**space, "spec": {}}, part="finalize"))["spec"].get("finalizers", []) == []
    )
    accepted(spaces.delete(config_maps.namespace))
    until(lambda: not spaces.exists(config_maps.namespace))
    assert not config_maps.exists("a")


@pytest.mark.parametrize("name", ["default", "kuma-system", "mesh-default", "mesh-global"])
def test_some_namespaces_are_always_there(spaces, name):
    assert spaces.get(name)["status"] == {"phase": "Active"}
    answer = spaces.delete(name)
    assert failure(answer) == (403, "Forbidden")
    assert answer.json["message"].startswith(f'namespaces "{name}" is forbidden: ')
    assert spaces.get(name)["status"] == {"phase": "Active"}


def test_the_names_of_meshes_are_not_for_namespaces(spaces, config_maps):
    answer = spaces.create("mesh-of-mine")
    assert failure(answer) == (403, "Forbidden")
    assert 'it comes with the mesh "of-mine"' in answer.json["message"]
    inside = config_maps.other(namespace="mesh-of-mine")
    missing = inside.create("a")
    assert failure(missing) == (404, "NotFound")
    assert 'namespaces "mesh-of-mine" not found: there is no mesh "of-mine"' in missing.json["message"]
    ours = config_maps.other("kuma.io/v1alpha1", "MeshTimeout", namespace="mesh-of-mine")
    assert failure(ours.create("a", spec=timeout_spec())) == (404, "NotFound")
    assert not spaces.exists("mesh-of-mine")


# Meshes.


@pytest.fixture
def meshes(timeouts):
    return timeouts.other("kuma.io/v1alpha1", "Mesh", namespace="")


def test_a_mesh_comes_with_its_companions_and_its_namespace(meshes, spaces, config_maps, timeouts):
    name = timeouts.namespace
    assert meshes.create(name, spec={}).status == 201
    policies = timeouts.other(namespace=f"mesh-{name}")
    shown = policies.send("GET", "").json["items"]
    assert shown, "the first policies of a mesh"
    assert {item["metadata"]["labels"]["kuma.io/mesh"] for item in shown} == {name}
    secrets = timeouts.other(kind="Secret", namespace=f"mesh-{name}").send("GET", "").json["items"]
    assert [item["metadata"]["name"] for item in secrets] == [f"dataplane-token-signing-key-{name}-1"]
    until(lambda: spaces.exists(f"mesh-{name}"))
    inside = config_maps.other(namespace=f"mesh-{name}")
    accepted(inside.create("a"))
    assert meshes.delete(name).json["status"] == "Success"
    until(lambda: not spaces.exists(f"mesh-{name}"))
    assert not inside.exists("a")
    assert failure(meshes.delete(name)) == (404, "NotFound")


def test_a_mesh_that_comes_back_has_its_namespace_again(meshes, spaces, config_maps, timeouts):
    name = timeouts.namespace
    accepted(meshes.create(name, spec={"skipCreatingInitialPolicies": ["*"]}))
    until(lambda: spaces.exists(f"mesh-{name}"))
    held = config_maps.other(namespace=f"mesh-{name}")
    accepted(held.create("a", metadata=HELD))
    assert meshes.delete(name).status == 200
    until(lambda: spaces.get(f"mesh-{name}")["status"]["phase"] == "Terminating")
    accepted(meshes.create(name, spec={"skipCreatingInitialPolicies": ["*"]}))
    until(lambda: "deletionTimestamp" in held.get("a")["metadata"])
    first = spaces.get(f"mesh-{name}")["metadata"]["uid"]
    accepted(held.patch("a", {"metadata": {"finalizers": None}}))

    def is_new():
        answer = spaces.send("GET", f"mesh-{name}")
        return answer.status == 200 and answer.json["metadata"]["uid"] != first

    until(is_new)
    assert spaces.get(f"mesh-{name}")["status"] == {"phase": "Active"}
    assert meshes.delete(name).status == 200


PROXY = {"networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "web"}}]}}


@pytest.mark.parametrize("options", [None, {"propagationPolicy": "Foreground"}], ids=str)
def test_a_mesh_with_proxies_is_not_deleted(meshes, timeouts, mesh, options):
    proxies = timeouts.other(kind="Dataplane", namespace=f"mesh-{mesh}")
    accepted(proxies.create("web", spec=PROXY))
    answer = meshes.delete(mesh, options)
    assert failure(answer) == (422, "Invalid")
    assert "unable to delete mesh, there are still some dataplanes attached" in answer.json["message"]
    assert "deletionTimestamp" not in meshes.get(mesh)["metadata"]
    assert proxies.delete("web").status == 200
    assert meshes.delete(mesh, options).status == 200
    until(lambda: not meshes.exists(mesh))


def test_a_mesh_that_was_held_takes_what_is_in_it_along(meshes, timeouts, mesh):
    policies = timeouts.other(namespace=f"mesh-{mesh}")
    accepted(policies.create("a", spec=timeout_spec()))
    accepted(meshes.patch(mesh, {"metadata": HELD}))
    assert accepted(meshes.delete(mesh))["metadata"]["deletionTimestamp"]
    assert policies.exists("a")
    change = [{"op": "remove", "path": "/metadata/finalizers"}]
    assert meshes.patch(mesh, change, JSON_PATCH).status == 200
    assert not meshes.exists(mesh)
    assert timeouts.plane("GET", f"/meshes/{mesh}/meshtimeouts/a").status == 404
    accepted(meshes.create(mesh, spec={"skipCreatingInitialPolicies": ["*"]}))
    assert not policies.exists("a")


def test_a_secret_in_use_is_held_by_its_mesh(meshes, timeouts, mesh):
    conf = {"cert": {"secret": "ca"}, "key": {"secret": "ca"}}
    secrets = timeouts.other(kind="Secret", namespace=f"mesh-{mesh}")
    accepted(secrets.create("ca", spec={"data": "eA=="}))
    backend = {"name": "ca", "type": "provided", "conf": conf}
    answer = meshes.patch(mesh, {"spec": {"mtls": {"backends": [backend]}}})
    assert accepted(answer)["spec"]["mtls"]["backends"] == [backend]
    assert failure(secrets.delete("ca")) == (422, "Invalid")
    assert failure(secrets.delete("ca", {"propagationPolicy": "Foreground"})) == (422, "Invalid")
    assert secrets.exists("ca")


def test_a_provided_ca_needs_its_secrets(meshes, mesh):
    conf = {"cert": {"inlineString": "x"}, "key": {"secret": "absent"}}
    backend = {"name": "ca", "type": "provided", "conf": conf}
    answer = meshes.patch(mesh, {"spec": {"mtls": {"backends": [backend]}}})
    assert failure(answer) == (422, "Invalid")
    assert [field for field, _ in causes(answer)] == ["spec.mtls.backends[0].conf.key"]


def test_errors_of_a_mesh_point_into_its_spec(meshes, timeouts):
    answer = meshes.create(timeouts.namespace, spec={"mtls": {"enabledBackend": "no"}})
    assert failure(answer) == (422, "Invalid")
    assert [field for field, _ in causes(answer)] == ["spec.mtls.enabledBackend"]
