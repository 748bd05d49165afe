"""A Global control plane: no zone of its own, zones' kinds are read-only, and what it writes is Global's."""

import pytest

from tests.plane import Plane, timeout


@pytest.fixture(scope="module")
def above(tmp_path_factory):
    with Plane(tmp_path_factory.mktemp("global"), mode="global") as plane:
        yield plane


def test_what_it_writes_has_no_zone(above):
    assert above("PUT", "/meshes/default/meshtimeouts/slow", timeout()).status == 201
    read = above("GET", "/meshes/default/meshtimeouts/slow").json
    assert read["kri"] == "kri_mt_default___slow_"
    assert read["labels"]["kuma.io/origin"] == "global"
    assert "kuma.io/zone" not in read["labels"]
    assert above("GET", "/_kri/kri_mt_default___slow_").status == 200
    assert above("GET", "/").json["mode"] == "global"


def test_kinds_of_zones_are_read_only(above):
    document = {"type": "Dataplane", "mesh": "default", "name": "d", "networking": {"address": "10.0.0.1"}}
    answer = above("PUT", "/meshes/default/dataplanes/d", document)
    assert answer.status == 405
    assert answer.json["detail"] == (
        "On this control plane Dataplane is read-only; write it on a zone control plane"
    )
    kinds = {kind["name"]: kind["readOnly"] for kind in above("GET", "/_resources").json["resources"]}
    assert kinds["Dataplane"]
    assert kinds["MeshService"]
    assert not kinds["MeshTimeout"]
    assert not kinds["Mesh"]


def test_a_zones_origin_is_refused(above):
    document = timeout(labels={"kuma.io/origin": "zone"})
    fields = above("PUT", "/meshes/default/meshtimeouts/slow", document).fields
    assert fields == [('labels["kuma.io/origin"]', "the origin label must be set to 'global'")]


def test_it_begins_with_names_for_what_zones_send(above):
    names = [item["name"] for item in above("GET", "/hostnamegenerators").json["items"]]
    assert names == [
        "synced-headless-kube-mesh-service",
        "synced-kube-mesh-service",
        "synced-mesh-external-service",
        "synced-mesh-multi-zone-service",
        "synced-universal-mesh-service",
    ]
    assert above("GET", "/zones").json["total"] == 0
