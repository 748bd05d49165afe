"""Apply: many objects of both forms, all or none."""

import msgspec
import pytest

from koguma.api.plain import PlainObjects
from koguma.store.contract import Delete, Put, Transaction
from tests.build import timeout


def apply(plane, *objects, query="", **envelope):
    return plane("POST", f"/_apply{query}", {"objects": list(objects), **envelope})


def actions(answer):
    assert answer.status == 200, answer.body
    return [(result["name"], result["action"]) for result in answer.json["results"]]


def in_namespace(name, namespace, mesh):
    return {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": "MeshTimeout",
        "metadata": {"name": name, "namespace": namespace, "labels": {"kuma.io/mesh": mesh}},
        "spec": timeout()["spec"],
    }


def test_both_forms_and_their_mesh_in_one_go(plane):
    mesh = {"type": "Mesh", "name": "applied", "skipCreatingInitialPolicies": ["*"]}
    objects = [timeout("plain", "applied"), in_namespace("kube", "demo", "applied"), mesh]
    assert actions(apply(plane, *objects)) == [
        ("plain", "created"),
        ("kube.demo", "created"),
        ("applied", "created"),
    ]
    assert actions(apply(plane, *objects)) == [
        ("plain", "unchanged"),
        ("kube.demo", "unchanged"),
        ("applied", "unchanged"),
    ]
    read = plane("GET", "/meshes/applied/meshtimeouts/kube.demo").json
    assert read["kri"] == "kri_mt_applied_default_demo_kube_"
    assert read["labels"]["kuma.io/policy-role"] == "consumer"


def test_nothing_is_written_when_one_is_wrong(plane, mesh):
    answer = apply(plane, timeout("good", mesh), timeout("bad", mesh, idle="x"), {"type": "MeshTimout"})
    assert answer.status == 400
    assert [field for field, _ in answer.fields] == ["objects[2].type"]
    answer = apply(plane, timeout("good", mesh), timeout("bad", mesh, idle="x"))
    assert [field for field, _ in answer.fields] == ["objects[1].spec.to[0].default.idleTimeout"]
    assert plane("GET", f"/meshes/{mesh}/meshtimeouts/good").status == 404


def test_an_object_in_a_mesh_that_is_not_there(plane):
    answer = apply(plane, timeout("a", "nowhere"))
    assert (answer.status, answer.json["title"]) == (404, "Failed to retrieve Mesh")
    assert answer.fields == [("objects[0].mesh", 'there is no mesh "nowhere"')]
    typo = apply(plane, timeout("a"), timeout("b", "defualt"))
    assert typo.fields == [("objects[1].mesh", 'there is no mesh "defualt"; did you mean "default"?')]


def test_the_same_object_twice_is_a_mistake(plane, mesh):
    answer = apply(plane, timeout("a", mesh), timeout("a", mesh, idle="6s"))
    assert answer.fields == [("objects[1]", "is the same object as objects[0]")]


def test_a_dry_run_says_what_would_happen(plane, mesh):
    plane("PUT", f"/meshes/{mesh}/meshtimeouts/a", timeout("a", mesh))
    answer = apply(plane, timeout("a", mesh, idle="6s"), timeout("b", mesh), query="?dryRun=All")
    assert actions(answer) == [("a", "configured"), ("b", "created")]
    assert plane("GET", f"/meshes/{mesh}/meshtimeouts/b").status == 404


def test_a_set_is_pruned_of_what_is_left_out(plane, mesh):
    apply(plane, timeout("a", mesh), timeout("b", mesh), set="shop")
    plane("PUT", f"/meshes/{mesh}/meshtimeouts/other", timeout("other", mesh))
    answer = apply(plane, timeout("a", mesh), set="shop", prune=True)
    assert actions(answer) == [("a", "unchanged"), ("b", "deleted")]
    left = [item["name"] for item in plane("GET", f"/meshes/{mesh}/meshtimeouts").json["items"]]
    assert left == ["a", "other"]
    assert apply(plane, prune=True).fields[0][0] == "prune"


def test_a_prune_looks_again_when_somebody_writes_what_it_removes(plane, mesh, monkeypatch):
    apply(plane, timeout("a", mesh), timeout("b", mesh), set="met")
    commit, met = PlainObjects.commit, []

    async def late(self, call, operations):
        if not met:
            met.append(True)
            now = plane.plane.store.state.named("MeshTimeout", mesh, "b")
            put = Put(msgspec.structs.replace(now, status={"seen": True}), now.revision)
            await plane.plane.store.write(Transaction((put,), "test", "status"))
        return await commit(self, call, operations)

    monkeypatch.setattr(PlainObjects, "commit", late)
    assert actions(apply(plane, timeout("a", mesh), set="met", prune=True))[1] == ("b", "deleted")


@pytest.mark.parametrize("gone", ["a", "b"])
def test_an_apply_looks_again_when_somebody_deletes_what_it_writes_or_removes(plane, mesh, monkeypatch, gone):
    apply(plane, timeout("a", mesh), timeout("b", mesh), set=mesh)
    commit, met = PlainObjects.commit, []

    async def late(self, call, operations):
        if not met:
            met.append(True)
            key = plane.plane.store.state.named("MeshTimeout", mesh, gone).key
            await plane.plane.store.write(Transaction((Delete(key),), "test", "another"))
        return await commit(self, call, operations)

    monkeypatch.setattr(PlainObjects, "commit", late)
    done = actions(apply(plane, timeout("a", mesh, idle="9s"), set=mesh, prune=True))
    assert done == ([("a", "created"), ("b", "deleted")] if gone == "a" else [("a", "configured")])
    assert plane("DELETE", f"/meshes/{mesh}/meshtimeouts/b").status == 404


def test_yaml_streams_are_read_too(plane, mesh):
    text = "---\n".join(msgspec.yaml.encode(timeout(name, mesh)).decode() for name in ("y1", "y2"))
    answer = plane("POST", "/_apply", text.encode(), Content_Type="application/yaml")
    assert actions(answer) == [("y1", "created"), ("y2", "created")]


def test_a_core_name_has_one_owner(plane, mesh):
    apply(plane, in_namespace("a", "demo", mesh))
    clash = plane("PUT", f"/meshes/{mesh}/meshtimeouts/other", timeout("other", mesh))
    assert clash.status == 201
    taken = apply(plane, timeout("a.demo", mesh, labels={"k8s.kuma.io/namespace": "demo"}))
    assert actions(taken) == [("a.demo", "configured")] or actions(taken) == [("a.demo", "unchanged")]
