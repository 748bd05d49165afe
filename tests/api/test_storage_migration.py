"""Storage migration: what is outdated is rewritten once, by its set; a killed one goes on."""

import json
import sqlite3

import pytest

from koguma.application import storage_migration
from koguma.cli import main
from tests.control_plane import LocalControlPlane
from tests.custom_resources import defined, definitions_of, version
from tests.kube_client import accepted

pytestmark = pytest.mark.slow

PATH = "/_migrations/storage"
N_OBJECTS = 30


def timeout(name):
    spec = {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"connectionTimeout": "2s"}}]}
    return {"type": "MeshTimeout", "mesh": "default", "name": name, "spec": spec}


def revision(plane):
    return plane.plane.store.state.revision


def migrated_since(plane, begin):
    """What was rewritten since a revision; the control plane may have written other things by itself."""
    changes = plane.run(plane.plane.store.log.since(begin))
    return [change.resource.key for change in changes if change.reason == storage_migration._REASON]


def aged(folder):
    """Put fields into stored objects that a write of today would not store."""
    with sqlite3.connect(folder / "koguma.db") as database:
        rows = database.execute("SELECT revision, body FROM changes WHERE name LIKE 'old-%'").fetchall()
        for at, body in rows:
            value = json.loads(body)
            value["spec"]["colour"] = "blue"
            database.execute("UPDATE changes SET body = ? WHERE revision = ?", (json.dumps(value), at))
    database.close()


@pytest.fixture
def store(tmp_path):
    """The settings of a store with outdated objects of several kinds."""
    settings = {"store": f"sqlite:///{tmp_path}/koguma.db"}
    with LocalControlPlane(tmp_path, **settings) as plane:
        objects = [timeout(f"old-{index:02}") for index in range(N_OBJECTS)] + [timeout("new")]
        assert plane("POST", "/_apply", objects).status == 200
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "old-settings"}}
        assert plane("POST", "/api/v1/namespaces/team/configmaps", config_map).status == 201
    aged(tmp_path)
    return tmp_path, settings


def test_each_outdated_object_is_written_once_and_a_second_run_writes_none(store, monkeypatch, capsys):
    monkeypatch.setattr(storage_migration, "STEP_SIZE", 7)
    folder, settings = store
    with LocalControlPlane(folder, **settings) as plane:
        shown = {each["resource"]: each for each in plane("GET", PATH).json["sets"]}
        assert shown["meshtimeouts.kuma.io"]["outdated"] == N_OBJECTS
        assert shown["configmaps"]["outdated"] == 1
        before = plane("GET", "/meshes/default/meshtimeouts/old-03").json
        watch = plane.plane.store.watch(None, revision(plane))
        at = ("--address", plane.address)
        assert main(("migrate", "storage", "--dry-run", *at)) == 0
        assert f"{N_OBJECTS + 1} of" in capsys.readouterr().out
        assert main(("migrate", "storage", *at)) == 0
        assert f"{N_OBJECTS + 1} objects rewritten" in capsys.readouterr().out
        changes = plane.run(watch.next_batch(1))
        written = [change.resource.key for change in changes if change.resource.name.startswith("old-")]
        assert len(written) == len(set(written)) == N_OBJECTS + 1
        assert set(written) <= set(migrated_since(plane, 0))
        after = plane("GET", "/meshes/default/meshtimeouts/old-03").json
        assert after["modificationTime"] == before["modificationTime"]
        assert "colour" not in str(after["spec"])
        done = revision(plane)
        assert main(("migrate", "storage", *at)) == 0
        assert "0 objects rewritten" in capsys.readouterr().out
        assert migrated_since(plane, done) == []
        progress = f"/api/v1/namespaces/kuma-system/configmaps/{storage_migration.PROGRESS}"
        assert plane("GET", progress).status == 404


def test_a_killed_migration_goes_on_where_it_was(store, monkeypatch):
    monkeypatch.setattr(storage_migration, "STEP_SIZE", 10)
    folder, settings = store
    n_rewritten, step = 0, ""
    with LocalControlPlane(folder, **settings) as plane:
        while n_rewritten < N_OBJECTS // 2:
            answer = plane("POST", f"{PATH}?after={step}").json
            n_rewritten, step = n_rewritten + answer["rewritten"], answer["next"]
    with LocalControlPlane(folder, **settings) as plane:
        begun = revision(plane)
        done = sum(each["done"] for each in plane("GET", PATH).json["sets"])
        assert done >= n_rewritten
        answer = plane("POST", PATH).json
        while answer["next"]:
            n_rewritten += answer["rewritten"]
            answer = plane("POST", f"{PATH}?after={answer['next']}").json
        n_rewritten += answer["rewritten"]
        assert n_rewritten == N_OBJECTS + 1
        assert begun < revision(plane)
        assert sum(each["outdated"] for each in plane("GET", PATH).json["sets"]) == 0


def test_it_is_safe_beside_writers(store, monkeypatch):
    monkeypatch.setattr(storage_migration, "STEP_SIZE", 5)
    folder, settings = store
    with LocalControlPlane(folder, **settings) as plane:
        answer = {"next": ""}
        for index in range(N_OBJECTS):
            changed = timeout(f"old-{index:02}")
            changed["spec"]["to"][0]["default"]["connectionTimeout"] = "9s"
            assert plane("PUT", f"/meshes/default/meshtimeouts/{changed['name']}", changed).status == 200
            if not index % 3:
                answer = plane("POST", f"{PATH}?after={answer['next']}").json
        while answer["next"]:
            answer = plane("POST", f"{PATH}?after={answer['next']}").json
        listed = plane("GET", "/meshes/default/meshtimeouts?size=1000").json["items"]
        old = [each for each in listed if each["name"].startswith("old-")]
        assert {each["spec"]["to"][0]["default"]["connectionTimeout"] for each in old} == {"9s"}


def test_only_who_has_a_rule_for_the_path_may_migrate(store):
    folder, settings = store
    with LocalControlPlane(folder, **settings) as plane:
        begun = revision(plane)
        for method in ("GET", "POST"):
            assert plane(method, PATH, Impersonate_User="ann").status == 403
        assert migrated_since(plane, begun) == []
        refused = plane("POST", f"{PATH}?after=nonsense")
        assert (refused.status, '"after"' in refused.json["detail"]) == (400, True)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_new_storage_version_is_written_once_although_three_endpoints_serve_it(
    kind, tmp_path, request, monkeypatch
):
    monkeypatch.setattr(storage_migration, "STEP_SIZE", 4)
    store = f"sqlite:///{tmp_path}/koguma.db"
    if kind == "postgres":
        store = request.getfixturevalue("postgres").database()
    versions = [version(name, storage=name == "v1alpha1") for name in ("v1alpha1", "v1beta1", "v1")]
    with LocalControlPlane(tmp_path, store=store) as plane:
        oldest = defined(plane, *versions)
        group = oldest.version.partition("/")[0]
        endpoints = [oldest.other(f"{group}/{each['name']}") for each in versions]
        for index in range(9):
            accepted(endpoints[index % 3].create(f"w{index}", spec={"size": 1 + index}))
        definitions, name = definitions_of(plane), f"widgets.{group}"
        newer = [{**each, "storage": each["name"] == "v1"} for each in versions]
        accepted(definitions.patch(name, {"spec": {"versions": newer}}))
        assert definitions.get(name)["status"]["storedVersions"] == ["v1alpha1", "v1"]
        gone = definitions.patch(name, {"spec": {"versions": newer[1:]}})
        assert (gone.status, "storedVersions" in gone.text) == (422, True)
        shown = {endpoint.version: endpoint.get("w4") for endpoint in endpoints}
        watch = plane.plane.store.watch(None, revision(plane))
        assert main(("migrate", "storage", "--address", plane.address)) == 0
        keys = [change.resource.key for change in plane.run(watch.next_batch(1))]
        assert sorted(key.name for key in keys if key.kind == name) == [f"w{index}" for index in range(9)]
        for endpoint in endpoints:
            after = endpoint.get("w4")
            assert after["spec"] == shown[endpoint.version]["spec"]
            assert after["metadata"]["generation"] == 1
        assert definitions.get(name)["status"]["storedVersions"] == ["v1"]
        done = revision(plane)
        assert main(("migrate", "storage", "--address", plane.address)) == 0
        assert migrated_since(plane, done) == []
        accepted(definitions.patch(name, {"spec": {"versions": newer[1:]}}))
