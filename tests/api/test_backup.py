"""A backup has every stored object once, and another control plane can be restored from it, on any store."""

import hashlib
import json
import stat

import pytest

from koguma.cli import main
from tests.control_plane import LocalControlPlane
from tests.custom_resources import defined
from tests.kube_client import accepted

CONTENT_TYPE = "application/x-ndjson"
SERVICE = {
    "type": "MeshExternalService",
    "mesh": "shop",
    "name": "api",
    "spec": {
        "match": [{"type": "InternalVIP", "value": "api.ext.local", "port": 80, "protocol": "http"}],
        "destination": {"type": "Regular", "endpoints": [{"address": "192.0.2.1", "port": 80}]},
    },
}
TIMEOUT = {
    "apiVersion": "koguma.io/v1",
    "kind": "MeshTimeout",
    "metadata": {"name": "quick", "namespace": "team", "labels": {"kuma.io/mesh": "shop"}},
    "spec": {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"connectionTimeout": "2s"}}]},
}
SETTINGS = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "settings", "namespace": "team", "finalizers": ["example.com/kept"]},
    "data": {"colour": "blue"},
}


def exported(plane, **headers):
    answer = plane("GET", "/_export", **headers)
    assert answer.status == 200, answer.body
    return answer.body


def restored(plane, data, query="", **headers):
    return plane("POST", f"/_import{query}", data, Content_Type=CONTENT_TYPE, **headers)


def objects(data):
    """The objects of a backup, by kind, mesh and name."""
    values = [json.loads(line) for line in data.splitlines()[1:-1]]
    return {(v["kind"], v["mesh"], v["namespace"], v["name"]): v for v in values}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    with LocalControlPlane(folder, store=f"sqlite:///{folder}/koguma.db", zone_name="east") as plane:
        assert plane("PUT", "/meshes/shop", {"type": "Mesh", "name": "shop"}).status == 201
        assert plane("PUT", "/meshes/shop/meshexternalservices/api", SERVICE).status == 201
        path = "/apis/koguma.io/v1/namespaces/team/meshtimeouts"
        assert plane("POST", path, TIMEOUT).status == 201
        assert plane("POST", "/api/v1/namespaces/team/configmaps", SETTINGS).status == 201
        widgets = defined(plane, namespace="team", group="example.com")
        accepted(widgets.create("round", spec={"size": 3}))
        yield plane


def vips(plane):
    return plane("GET", "/meshes/shop/meshexternalservices/api").json["status"]["vips"]


def test_every_object_stands_once_although_three_endpoints_serve_it(source):
    lines = exported(source).splitlines()
    head, end = json.loads(lines[0]), json.loads(lines[-1])
    stored = objects(exported(source))
    assert len(stored) == end["objects"] == len(lines) - 2 == sum(one["objects"] for one in head["sets"])
    assert [key for key in stored if key[0] == "MeshTimeout" and key[3] == "quick"] == [
        ("MeshTimeout", "shop", "team", "quick")
    ]
    served = source("GET", "/apis/koguma.io/v1").json["resources"]
    (timeouts,) = [one for one in served if one["name"] == "meshtimeouts"]
    ids = [one["resourceID"] for one in head["sets"] if one["resourceID"]]  # what no endpoint serves has none
    assert timeouts["resourceID"] in ids
    assert len(ids) == len(set(ids))


@pytest.fixture(params=["memory", "postgres"])
def target(request, tmp_path):
    store = "memory://"
    if request.param == "postgres":
        store = request.getfixturevalue("postgres").database()
    with LocalControlPlane(tmp_path / "target", store=store, zone_name="west") as plane:
        yield plane


def test_a_restored_store_has_the_same_objects(source, target):
    before, backup = vips(source), exported(source)
    token = source("POST", "/tokens/user", {"name": "dora", "validFor": "1h"}).text
    counts = restored(target, backup, "?prune=true")
    assert counts.status == 200, counts.body
    assert counts.json["created"] > 0
    assert vips(target) == before, "addresses stay as they are"
    here, there = objects(exported(target)), objects(backup)
    assert {key: here[key] for key in there} == there, "uid, times, status and managed fields too"
    as_dora = {"Authorization": f"Bearer {token}"}
    assert target("GET", "/who-am-i", **as_dora).json["name"] == "dora"
    widget = target("GET", "/apis/example.com/v1/namespaces/team/widgets/round").json
    assert widget["spec"]["size"] == 3
    again = restored(target, backup).json
    assert (again["created"], again["configured"]) == (0, 0)
    assert again["unchanged"] == len(there)


def test_a_dry_run_writes_nothing_and_pruning_deletes_what_the_backup_lacks(source, target):
    assert target("PUT", "/meshes/extra", {"type": "Mesh", "name": "extra"}).status == 201
    backup = exported(source)
    tried = restored(target, backup, "?dryRun=All&prune=true").json
    assert tried["created"] > 0
    assert tried["deleted"] > 0
    assert target("GET", "/meshes/shop").status == 404
    assert restored(target, backup).json["deleted"] < tried["deleted"]
    assert target("GET", "/meshes/extra").status == 200
    assert restored(target, backup, "?prune=true").status == 200
    assert target("GET", "/meshes/extra").status == 404


def _rewritten(data, index, line):
    lines = data.splitlines(keepends=True)
    lines[index] = line
    body = b"".join(lines[:-1])
    end = {"objects": len(lines) - 2, "sha256": hashlib.sha256(body).hexdigest()}
    return body + json.dumps(end).encode() + b"\n"


def test_what_is_not_a_whole_backup_is_refused_and_changes_nothing(source):
    backup, before = exported(source), exported(source)
    lines = backup.splitlines(keepends=True)
    newer = {**json.loads(lines[0]), "version": 2}
    other = {**json.loads(lines[1]), "kind": "Nothing"}
    for data, words in (
        (b"".join(lines[:-1]), "the file is not complete"),
        (b"".join(lines[:3] + lines[4:]), "the backup is damaged"),
        (backup.replace(b"api.ext.local", b"API.ext.local"), "the backup is damaged"),
        (b"type: Mesh\nname: shop\n", "this is no backup"),
        (b"", "this is no backup"),
        (_rewritten(backup, 0, json.dumps(newer).encode() + b"\n"), "a newer release wrote it"),
        (_rewritten(backup, 2, b'{"kind": 1}\n'), "line 3 of the backup is no stored object"),
        (_rewritten(backup, 1, json.dumps(other).encode() + b"\n"), "does not have"),
    ):
        answer = restored(source, data)
        assert answer.status == 400, answer.body
        assert words in answer.text
    assert exported(source) == before
    assert source("POST", "/_import", backup, Content_Type="application/x-www-form-urlencoded").status == 415


def test_only_who_has_a_rule_for_the_path_may_export_or_import(source):
    backup = exported(source)
    for role in ("view", "edit"):
        user = {"Impersonate_User": role, "Impersonate_Group": role}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{role}s"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": role, "apiGroup": "rbac.authorization.k8s.io"}],
        }
        path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        assert source("POST", path, binding).status == 201
        assert source("GET", "/meshes/shop", **user).status == 200
        for answer in (source("GET", "/_export", **user), restored(source, backup, **user)):
            assert answer.status == 403
            assert "docs/access.md" in answer.text


def test_the_commands_keep_the_file_to_its_owner(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "backup.jsonl"
    to = ("--address", source.address)
    assert main(["export", "-o", str(file), *to]) == 0
    assert "objects of" in capsys.readouterr().err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file], "nothing unfinished is left"
    assert file.read_bytes() == exported(source)
    assert main(["import", str(file), "--dry-run", *to]) == 0
    assert "unchanged" in capsys.readouterr().out
    assert main(["import", str(tmp_path / "none"), *to]) == 1
    assert "cannot be read: No such file" in capsys.readouterr().err
