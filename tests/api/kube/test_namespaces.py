"""Namespaces: they come with the first write, and what is in them goes before they do."""

import pytest

from tests.kube_door import (
    CORE,
    JSON_PATCH,
    KOGUMA,
    PROTOBUF,
    causes,
    made,
    protobuf_body,
    refused,
    timeout,
    until,
    wire,
)

HELD = {"finalizers": ["example.com/hold"]}


@pytest.fixture
def spaces(door):
    return door.other(CORE, "Namespace", namespace="")


def test_the_first_write_into_a_namespace_makes_it(door, spaces):
    assert not spaces.exists(door.namespace)
    assert door.create("a", spec=timeout(), query={"dryRun": "All"}).status == 201
    assert not spaces.exists(door.namespace)
    made(door.create("a", spec=timeout()))
    space = spaces.get(door.namespace)
    assert space["metadata"]["labels"] == {"kubernetes.io/metadata.name": door.namespace}
    assert (space["spec"], space["status"]) == ({"finalizers": ["kubernetes"]}, {"phase": "Active"})


def test_a_namespace_can_be_made_by_hand(spaces, door):
    body = protobuf_body("v1", "Namespace", wire((1, wire((1, door.namespace)))))
    answer = spaces.send("POST", "", body, Content_Type=PROTOBUF)
    assert answer.status == 201
    assert answer.json["spec"] == {"finalizers": ["kubernetes"]}
    assert refused(spaces.create(door.namespace)) == (409, "AlreadyExists")
    labelled = made(spaces.patch(door.namespace, {"metadata": {"labels": {"a": "b"}}}))
    assert labelled["metadata"]["labels"]["kubernetes.io/metadata.name"] == door.namespace
    unheld = made(spaces.patch(door.namespace, {"spec": {"finalizers": []}}))
    assert unheld["spec"] == {"finalizers": ["kubernetes"]}


@pytest.mark.parametrize("name", ["A", "a.b", "x" * 64, "-a"])
def test_a_namespace_has_the_name_of_a_host(spaces, name):
    assert refused(spaces.create(name)) == (422, "Invalid")


def test_a_deleted_namespace_takes_what_is_in_it_along(door, maps, spaces):
    made(door.create("a", spec=timeout()))
    made(maps.create("a"))
    made(door.other("coordination.k8s.io/v1", "Lease").create("a", spec={}))
    ends = spaces.delete(door.namespace)
    assert (ends.status, ends.json["kind"]) == (200, "Namespace")
    assert ends.json["status"]["phase"] == "Terminating"
    assert ends.json["metadata"]["deletionTimestamp"]
    until(lambda: not spaces.exists(door.namespace))
    assert not door.exists("a")
    assert not maps.exists("a")
    assert door.plane("GET", f"/meshes/default/meshtimeouts/a.{door.namespace}").status == 404
    assert made(maps.create("a"))["metadata"]["namespace"] == door.namespace
    assert spaces.get(door.namespace)["status"] == {"phase": "Active"}


@pytest.mark.parametrize("policy", ["Foreground", "Orphan", "Background"])
def test_however_it_is_deleted_it_is_emptied_first(maps, spaces, policy):
    made(maps.create("a"))
    assert spaces.delete(maps.namespace, {"propagationPolicy": policy}).status == 200
    until(lambda: not spaces.exists(maps.namespace))
    assert not maps.exists("a")


def test_while_it_ends_nothing_new_comes_in_and_what_is_there_can_be_let_go(door, maps, spaces):
    made(door.create("held", metadata=HELD, spec=timeout()))
    made(maps.create("free"))
    assert spaces.delete(door.namespace).json["status"]["phase"] == "Terminating"
    until(lambda: not maps.exists("free"))
    for each, fields in ((door, {"spec": timeout()}), (door.other(KOGUMA), {"spec": timeout()}), (maps, {})):
        answer = each.create("new", **fields)
        assert refused(answer) == (403, "Forbidden")
        assert causes(answer) == [("metadata.namespace", "NamespaceTerminating")]
        text = f"unable to create new content in namespace {door.namespace} because it is being terminated"
        assert text in answer.json["message"]
        assert refused(each.apply("new", **fields)) == (403, "Forbidden")
    name = f"new.{door.namespace}"
    document = {"type": "MeshTimeout", "mesh": "default", "name": name, "spec": timeout()}
    document["labels"] = {"k8s.kuma.io/namespace": door.namespace}
    assert door.plane("PUT", f"/meshes/default/meshtimeouts/{name}", document).status == 403
    labelled = spaces.patch(door.namespace, {"metadata": {"labels": {"still": "here"}}})
    assert made(labelled)["metadata"]["labels"]["still"] == "here"
    assert spaces.exists(door.namespace)
    until(lambda: "deletionTimestamp" in door.get("held")["metadata"])
    assert made(door.patch("held", {"spec": timeout("6s")}))["spec"] == timeout("6s")
    made(door.patch("held", {"metadata": {"finalizers": None}}))
    until(lambda: not spaces.exists(door.namespace))


def test_a_namespace_waits_for_those_who_finalize_it(maps, spaces):
    name = maps.namespace
    body = spaces.document(name, spec={"finalizers": ["example.com/me"]})
    space = made(spaces.send("POST", "", body))
    assert space["spec"]["finalizers"] == ["example.com/me", "kubernetes"]
    made(maps.create("a"))
    made(spaces.delete(name))
    until(lambda: spaces.get(name)["spec"]["finalizers"] == ["example.com/me"])
    assert not maps.exists("a")
    stale = spaces.replace({**space, "spec": {"finalizers": []}}, part="finalize")
    assert refused(stale) == (409, "Conflict")
    now = spaces.get(name)
    assert refused(spaces.replace({**now, "spec": {"finalizers": "x"}}, part="finalize")) == (422, "Invalid")
    assert spaces.replace({**now, "spec": {}}, part="finalize").status == 200
    until(lambda: not spaces.exists(name))


def test_finalizing_does_not_end_what_is_not_ending(maps, spaces):
    made(maps.create("a"))
    space = spaces.get(maps.namespace)
    assert made(spaces.replace({**space, "spec": {}}, part="finalize"))["spec"].get("finalizers", []) == []
    made(spaces.delete(maps.namespace))
    until(lambda: not spaces.exists(maps.namespace))
    assert not maps.exists("a")


@pytest.mark.parametrize("name", ["default", "kuma-system", "mesh-default", "mesh-global"])
def test_some_namespaces_are_always_there(spaces, name):
    assert spaces.get(name)["status"] == {"phase": "Active"}
    answer = spaces.delete(name)
    assert refused(answer) == (403, "Forbidden")
    assert answer.json["message"].startswith(f'namespaces "{name}" is forbidden: ')
    assert spaces.get(name)["status"] == {"phase": "Active"}


def test_the_names_of_meshes_are_not_for_namespaces(spaces, maps):
    answer = spaces.create("mesh-of-mine")
    assert refused(answer) == (403, "Forbidden")
    assert 'it comes with the mesh "of-mine"' in answer.json["message"]
    inside = maps.other(namespace="mesh-of-mine")
    missing = inside.create("a")
    assert refused(missing) == (404, "NotFound")
    assert 'namespaces "mesh-of-mine" not found: there is no mesh "of-mine"' in missing.json["message"]
    ours = maps.other("kuma.io/v1alpha1", "MeshTimeout", namespace="mesh-of-mine")
    assert refused(ours.create("a", spec=timeout())) == (404, "NotFound")
    assert not spaces.exists("mesh-of-mine")


# Meshes.


@pytest.fixture
def meshes(door):
    return door.other("kuma.io/v1alpha1", "Mesh", namespace="")


def test_a_mesh_comes_with_its_companions_and_its_namespace(meshes, spaces, maps, door):
    name = door.namespace
    assert meshes.create(name, spec={}).status == 201
    policies = door.other(namespace=f"mesh-{name}")
    shown = policies.send("GET", "").json["items"]
    assert shown, "the first policies of a mesh"
    assert {item["metadata"]["labels"]["kuma.io/mesh"] for item in shown} == {name}
    secrets = door.other(kind="Secret", namespace=f"mesh-{name}").send("GET", "").json["items"]
    assert [item["metadata"]["name"] for item in secrets] == [f"dataplane-token-signing-key-{name}-1"]
    until(lambda: spaces.exists(f"mesh-{name}"))
    inside = maps.other(namespace=f"mesh-{name}")
    made(inside.create("a"))
    assert meshes.delete(name).json["status"] == "Success"
    until(lambda: not spaces.exists(f"mesh-{name}"))
    assert not inside.exists("a")
    assert refused(meshes.delete(name)) == (404, "NotFound")


def test_a_mesh_that_comes_back_has_its_namespace_again(meshes, spaces, maps, door):
    name = door.namespace
    made(meshes.create(name, spec={"skipCreatingInitialPolicies": ["*"]}))
    until(lambda: spaces.exists(f"mesh-{name}"))
    held = maps.other(namespace=f"mesh-{name}")
    made(held.create("a", metadata=HELD))
    assert meshes.delete(name).status == 200
    until(lambda: spaces.get(f"mesh-{name}")["status"]["phase"] == "Terminating")
    made(meshes.create(name, spec={"skipCreatingInitialPolicies": ["*"]}))
    until(lambda: "deletionTimestamp" in held.get("a")["metadata"])
    first = spaces.get(f"mesh-{name}")["metadata"]["uid"]
    made(held.patch("a", {"metadata": {"finalizers": None}}))

    def is_new():
        answer = spaces.send("GET", f"mesh-{name}")
        return answer.status == 200 and answer.json["metadata"]["uid"] != first

    until(is_new)
    assert spaces.get(f"mesh-{name}")["status"] == {"phase": "Active"}
    assert meshes.delete(name).status == 200


PROXY = {"networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "web"}}]}}


@pytest.mark.parametrize("options", [None, {"propagationPolicy": "Foreground"}], ids=str)
def test_a_mesh_with_proxies_is_not_deleted(meshes, door, mesh, options):
    proxies = door.other(kind="Dataplane", namespace=f"mesh-{mesh}")
    made(proxies.create("web", spec=PROXY))
    answer = meshes.delete(mesh, options)
    assert refused(answer) == (422, "Invalid")
    assert "unable to delete mesh, there are still some dataplanes attached" in answer.json["message"]
    assert "deletionTimestamp" not in meshes.get(mesh)["metadata"]
    assert proxies.delete("web").status == 200
    assert meshes.delete(mesh, options).status == 200
    until(lambda: not meshes.exists(mesh))


def test_a_mesh_that_was_held_takes_what_is_in_it_along(meshes, door, mesh):
    policies = door.other(namespace=f"mesh-{mesh}")
    made(policies.create("a", spec=timeout()))
    made(meshes.patch(mesh, {"metadata": HELD}))
    assert made(meshes.delete(mesh))["metadata"]["deletionTimestamp"]
    assert policies.exists("a")
    change = [{"op": "remove", "path": "/metadata/finalizers"}]
    assert meshes.patch(mesh, change, JSON_PATCH).status == 200
    assert not meshes.exists(mesh)
    assert door.plane("GET", f"/meshes/{mesh}/meshtimeouts/a").status == 404
    made(meshes.create(mesh, spec={"skipCreatingInitialPolicies": ["*"]}))
    assert not policies.exists("a")


def test_a_secret_in_use_is_held_by_its_mesh(meshes, door, mesh):
    conf = {"cert": {"secret": "ca"}, "key": {"secret": "ca"}}
    secrets = door.other(kind="Secret", namespace=f"mesh-{mesh}")
    made(secrets.create("ca", spec={"data": "eA=="}))
    backend = {"name": "ca", "type": "provided", "conf": conf}
    answer = meshes.patch(mesh, {"spec": {"mtls": {"backends": [backend]}}})
    assert made(answer)["spec"]["mtls"]["backends"] == [backend]
    assert refused(secrets.delete("ca")) == (422, "Invalid")
    assert refused(secrets.delete("ca", {"propagationPolicy": "Foreground"})) == (422, "Invalid")
    assert secrets.exists("ca")


def test_a_provided_ca_needs_its_secrets(meshes, mesh):
    conf = {"cert": {"inlineString": "x"}, "key": {"secret": "absent"}}
    backend = {"name": "ca", "type": "provided", "conf": conf}
    answer = meshes.patch(mesh, {"spec": {"mtls": {"backends": [backend]}}})
    assert refused(answer) == (422, "Invalid")
    assert [field for field, _ in causes(answer)] == ["spec.mtls.backends[0].conf.key"]


def test_errors_of_a_mesh_point_into_its_spec(meshes, door):
    answer = meshes.create(door.namespace, spec={"mtls": {"enabledBackend": "no"}})
    assert refused(answer) == (422, "Invalid")
    assert [field for field, _ in causes(answer)] == ["spec.mtls.enabledBackend"]
