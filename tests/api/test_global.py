"""A Global control plane: no zone of its own, zones' kinds are read-only, and what it writes is Global's."""

import pytest

from tests.build import timeout
from tests.control_plane import LocalControlPlane


@pytest.fixture(scope="module")
def above(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("global"), mode="global") as plane:
        yield plane


def test_what_it_writes_has_no_zone(above):
    assert above("PUT", "/meshes/default/meshtimeouts/slow", timeout()).status == 201
    read = above("GET", "/meshes/default/meshtimeouts/slow").json
    assert read["kri"] == "kri_mt_default___slow_"
    assert read["labels"]["kuma.io/origin"] == "global"
    assert "kuma.io/zone" not in read["labels"]
    assert above("GET", "/_kri/kri_mt_default___slow_").status == 200
    assert above("GET", "/").json["mode"] == "global"


def test_what_came_from_a_zone_is_of_no_zone_there(above):
    written = timeout("moved", labels={"kuma.io/zone": "east", "team": "red"})
    answer = above("PUT", "/meshes/default/meshtimeouts/moved", written)
    text = 'labels["kuma.io/zone"]: is computed, and is not set on Global; "east" is not kept'
    assert (answer.status, answer.json["warnings"][0]) == (201, text)
    read = above("GET", "/meshes/default/meshtimeouts/moved").json
    assert read["kri"] == "kri_mt_default___moved_"
    assert "kuma.io/zone" not in read["labels"]
    assert above("PUT", "/meshes/default/meshtimeouts/moved", written).status == 200


def test_it_knows_of_no_proxies_and_says_so_in_numbers(above):
    assert above("GET", "/mesh-insights/default").json["dataplanes"] == {}
    assert above("GET", "/meshes/default/service-insights").json["total"] == 0
    assert above("GET", "/zones/_overview").json["items"] == []
    assert above("GET", "/global-insight").json["zones"]["controlPlanes"] == {"online": 0, "total": 0}


def test_names_of_services_are_shown_with_the_zones_that_have_them(above):
    assert above("PUT", "/zones/east", {"type": "Zone", "name": "east"}).status == 201
    spec = {"selector": {"meshService": {"matchLabels": {"team": "red"}}}, "ports": [{"port": 80}]}
    service = {"type": "MeshMultiZoneService", "mesh": "default", "name": "all", "spec": spec}
    assert above("PUT", "/meshes/default/meshmultizoneservices/all", service).status == 201
    shown = above("GET", "/meshes/default/meshmultizoneservices/all/_hostnames").json
    assert shown == {
        "total": 1,
        "items": [{"hostname": "all.mzsvc.mesh.local", "zones": [{"name": "east"}]}],
    }
    assert above("DELETE", "/meshes/default/meshmultizoneservices/all").status == 200
    assert above("DELETE", "/zones/east").status == 200


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
