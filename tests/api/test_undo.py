"""Undo: a new transaction that takes one back, within the rights of the user, never silently over others."""

import random

import pytest
from msgspec.structs import replace

from koguma.store.contract import Put, Transaction
from tests.api.test_history import put, user
from tests.build import dataplane, mesh, timeout
from tests.waiting import until

pytestmark = pytest.mark.slow

COMPUTED = ("creationTime", "modificationTime")


def contents(plane, mesh):
    """All timeouts and retries of a mesh, without their times."""
    items = [
        item
        for kind in ("meshtimeouts", "meshretries")
        for item in plane("GET", f"/meshes/{mesh}/{kind}?size=1000").json["items"]
    ]
    return [{name: part for name, part in item.items() if name not in COMPUTED} for item in items]


def retry(name, mesh, attempts=1):
    conf = {"tcp": {"maxConnectAttempt": attempts}}
    spec = {"to": [{"targetRef": {"kind": "Mesh"}, "default": conf}]}
    return {"type": "MeshRetry", "mesh": mesh, "name": name, "spec": spec}


def undo(plane, revision, *flags, **headers):
    return plane("POST", "/_undo?" + "&".join((f"revision={revision}", *flags)), **headers)


def test_a_whole_transaction_is_taken_back_and_the_undo_too(history_plane, own_mesh):
    plane, mesh = history_plane, own_mesh
    put(plane, timeout("a", mesh, "1s"))
    put(plane, timeout("old", mesh))
    before = contents(plane, mesh)
    body = {"objects": [timeout("a", mesh, "2s"), retry("new", mesh)], "set": "s", "prune": True}
    applied = plane("POST", "/_apply", body)
    assert applied.status == 200, applied.text
    after = contents(plane, mesh)
    revision = applied.json["revision"]
    tried = undo(plane, revision, "dryRun=All").json
    assert {(each["name"], each["action"]) for each in tried["changes"]} == {
        ("a", "changed"),
        ("new", "deleted"),
    }
    assert contents(plane, mesh) == after
    for part in (revision, revision - 1):  # each revision stands for its transaction
        assert len(undo(plane, part, "dryRun=All").json["undone"]) == 2
    done = undo(plane, revision, Koguma_Reason="it was wrong")
    assert done.status == 200, done.text
    assert contents(plane, mesh) == before
    item = plane("GET", f"/_history?mesh={mesh}&size=1").json["items"][0]
    assert (item["reason"], item["revision"]) == ("it was wrong", done.json["revision"])
    again = undo(plane, done.json["revision"])
    assert again.status == 200, again.text
    assert contents(plane, mesh) == after
    assert plane("GET", f"/_history?mesh={mesh}&size=1").json["items"][0]["reason"] == (
        f"undo of revision {done.json['revision']}"
    )


def test_a_deleted_object_comes_back_with_its_labels_and_a_new_uid(history_plane, own_mesh):
    plane, mesh = history_plane, own_mesh
    put(plane, timeout("a", mesh, labels={"team": "blue"}))
    before = contents(plane, mesh)
    path = f"/apis/kuma.io/v1alpha1/namespaces/mesh-{mesh}/meshtimeouts/a"
    uid = plane("GET", path).json["metadata"]["uid"]
    plane("DELETE", f"/meshes/{mesh}/meshtimeouts/a")
    revision = plane("GET", f"/_history?mesh={mesh}&size=1").json["items"][0]["revision"]
    assert undo(plane, revision).status == 200
    assert contents(plane, mesh) == before
    assert plane("GET", path).json["metadata"]["uid"] != uid
    nothing = undo(plane, revision)
    assert nothing.json["warnings"] == ["nothing is left to take back"]


def test_later_writes_are_named_and_lost_only_where_the_user_says_so(history_plane, own_mesh):
    plane, mesh = history_plane, own_mesh
    put(plane, timeout("a", mesh, "1s"))
    revision = put(plane, timeout("a", mesh, "2s"))
    later = put(plane, timeout("a", mesh, "3s"), **user(plane, "ed"))
    refused = undo(plane, revision)
    assert refused.status == 409
    (named,) = refused.json["invalid_parameters"]
    assert f"revision {later} by ed at " in named["reason"]
    tried = undo(plane, revision, "dryRun=All", "discardLater=true").json
    assert [each["revision"] for each in tried["discarded"]] == [later]
    newest = put(plane, timeout("a", mesh, "4s"))
    unseen = undo(plane, revision, "discardLater=true", f"asOf={tried['asOf']}")
    assert (unseen.status, f"revision {newest}" in unseen.text) == (409, True)
    assert undo(plane, revision, "discardLater=true").status == 200
    assert "1s" in plane("GET", f"/meshes/{mesh}/meshtimeouts/a").text


def test_a_dry_run_says_what_it_would_do_to_proxies(history_plane, own_mesh):
    plane, mesh = history_plane, own_mesh
    put(plane, dataplane("web-1", mesh=mesh))
    put(plane, timeout("a", mesh, "1s"))
    revision = put(plane, timeout("a", mesh, "2s"))
    assert "plan" not in undo(plane, revision, "dryRun=All").json
    plan = undo(plane, revision, "dryRun=All", "plan=true").json["plan"]
    assert [(each["name"], each["action"]) for each in plan["objects"]] == [("a", "configured")]
    reader = user(plane, "view-only")
    assert undo(plane, revision, "dryRun=All", "plan=true", **reader).status == 403


def test_a_created_mesh_goes_with_what_it_has_got_since_only_where_told(history_plane, own_mesh):
    plane, mesh = history_plane, own_mesh
    created = plane("GET", f"/meshes/{mesh}/_history").json["items"][-1]["revision"]
    put(plane, timeout("a", mesh))
    refused = undo(plane, created)
    assert (refused.status, '\\"a\\"' in refused.text) == (409, True)
    done = undo(plane, created, "discardLater=true")
    assert done.status == 200, done.text
    assert plane("GET", f"/meshes/{mesh}").status == 404
    back = undo(plane, done.json["revision"])
    assert back.status == 200, back.text
    assert plane("GET", f"/meshes/{mesh}").status == 200
    assert [each["name"] for each in contents(plane, mesh)] == ["a"]


def test_a_mesh_that_was_applied_with_its_proxies_goes_with_them(history_plane):
    plane, name = history_plane, "applied"
    objects = [mesh(name), dataplane("web-1", mesh=name), timeout("a", name)]
    applied = plane("POST", "/_apply", objects)
    assert applied.status == 200, applied.text
    done = undo(plane, applied.json["revision"], "discardLater=true")
    assert done.status == 200, done.text
    assert plane("GET", f"/meshes/{name}").status == 404
    assert undo(plane, done.json["revision"]).status == 200
    assert plane("GET", f"/meshes/{name}/dataplanes/web-1").status == 200


def test_a_deleted_mesh_comes_back_as_it_was(history_plane):
    """Also where a generated service went along, and without a default policy that was gone before."""
    plane, name = history_plane, "comesback"
    assert plane("POST", "/_apply", [mesh(name), dataplane("web-1", mesh=name)]).status == 200
    until(lambda: plane("GET", f"/meshes/{name}/meshservices").json["items"])
    assert plane("DELETE", f"/meshes/{name}/dataplanes/web-1").status == 200
    assert plane("DELETE", f"/meshes/{name}/meshretries/mesh-retry-all-{name}").status == 200
    before = contents(plane, name)
    assert plane("DELETE", f"/meshes/{name}").status == 200
    deleted = plane("GET", f"/meshes/{name}/_history").json["items"][0]["revision"]
    done = undo(plane, deleted)
    assert done.status == 200, done.text
    assert contents(plane, name) == before
    (warning,) = done.json["warnings"]
    assert warning.startswith("not taken back: 1 object that went along")


def test_statuses_that_were_written_along_are_in_nobodys_way(history_plane):
    """As those of generated services, where a mesh switches mTLS on again."""
    plane, name = history_plane, "along"
    assert plane("POST", "/_apply", [mesh(name), dataplane("web-1", mesh=name)]).status == 200
    until(lambda: plane("GET", f"/meshes/{name}/meshservices").json["items"])
    state = plane.plane.store.state
    changed = replace(state.named("Mesh", "", name), spec={"metrics": {}})
    service = state.named("MeshService", name, "web")
    puts = Put(changed, None), Put(replace(service, status={"tls": {"status": "NotReady"}}), None)
    written = plane.run(plane.plane.store.write(Transaction(puts, "ed", "")))
    done = undo(plane, written[0].revision)
    assert done.status == 200, done.text
    assert "metrics" not in plane("GET", f"/meshes/{name}").json


def test_what_others_own_is_refused_with_the_reason(history_plane, own_mesh):
    plane, mesh = history_plane, own_mesh
    own = plane("GET", "/_history?by=system&size=1").json["items"][0]["revision"]
    refused = undo(plane, own)
    assert (refused.status, "the control plane wrote that by itself" in refused.text) == (400, True)
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": mesh}}
    assert plane("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", role).status == 201
    (item,) = plane("GET", "/_history?size=1&people=true").json["items"]
    native = undo(plane, item["revision"])
    assert (native.status, "kubectl" in native.text) == (400, True)
    assert undo(plane, 99999999).status == 404
    assert undo(plane, "x").status == 400
    assert plane("POST", "/_undo").status == 400


def test_an_undo_is_admitted_as_any_write(history_plane, own_mesh):
    """A mesh with a Dataplane cannot be deleted, by an undo neither."""
    plane, mesh = history_plane, own_mesh
    created = plane("GET", f"/meshes/{mesh}/_history").json["items"][-1]["revision"]
    put(plane, dataplane("web-1", mesh=mesh))
    refused = undo(plane, created, "discardLater=true")
    assert (refused.status, "dataplanes attached" in refused.text) == (400, True)


@pytest.mark.parametrize("seed", range(2))
def test_undo_restores_what_was_there_whatever_was_written(history_plane, own_mesh, seed):
    """A property: the contents after the undo are those of before, for random transactions."""
    plane, mesh, chance = history_plane, own_mesh, random.Random(seed)
    for _ in range(6):
        before = contents(plane, mesh)
        stored = {(item["type"], item["name"]) for item in before}
        if stored and chance.random() < 0.3:
            kind, name = chance.choice(sorted(stored))
            path = {"MeshTimeout": "meshtimeouts", "MeshRetry": "meshretries"}[kind]
            assert plane("DELETE", f"/meshes/{mesh}/{path}/{name}").status == 200
            revision = plane("GET", f"/_history?mesh={mesh}&size=1").json["items"][0]["revision"]
        else:
            objects = [timeout(name, mesh, f"{chance.randint(1, 9)}s") for name in chance.sample("abc", 2)]
            objects += [retry(name, mesh, chance.randint(1, 9)) for name in chance.sample("abc", 1)]
            applied = plane("POST", "/_apply", objects).json
            if all(each["action"] == "unchanged" for each in applied["results"]):
                continue
            revision = applied["revision"]
        after = contents(plane, mesh)
        done = undo(plane, revision)
        assert (done.status, contents(plane, mesh)) == (200, before), done.text
        assert undo(plane, done.json["revision"]).status == 200
        assert contents(plane, mesh) == after
