"""Workloads made from Dataplanes, on a running control plane: made, counted, removed."""

import pytest

from tests import build
from tests.control_plane import LocalControlPlane
from tests.waiting import eventually

pytestmark = pytest.mark.slow

GENERATOR = "workload-generator"


@pytest.fixture
def plane(tmp_path):
    with LocalControlPlane(tmp_path) as running:
        mesh = {"type": "Mesh", "name": "shop", "skipCreatingInitialPolicies": ["*"]}
        assert running("PUT", "/meshes/shop", mesh).status == 201
        yield running


def write_dataplane(plane, name, workload=None, **inbound):
    labels = {"kuma.io/workload": workload} if workload else None
    body = build.dataplane(name, mesh="shop", labels=labels, inbound=[build.inbound(**inbound)])
    answer = plane("PUT", f"/meshes/shop/dataplanes/{name}", body)
    assert answer.status in (200, 201), answer.json


def delete(plane, name):
    assert plane("DELETE", f"/meshes/shop/dataplanes/{name}").status == 200


def workloads(plane):
    """The workloads of the mesh: how many proxies are healthy, and how many there are."""
    items = plane("GET", "/meshes/shop/workloads").json["items"]
    counts = {item["name"]: (item["status"] or {}).get("dataplaneProxies", {}) for item in items}
    return {name: (count.get("healthy"), count.get("total")) for name, count in counts.items()}


def test_a_workload_follows_its_dataplanes(plane):
    write_dataplane(plane, "web-1", "backend")
    eventually(lambda: workloads(plane), {"backend": (1, 1)})
    shown = plane("GET", "/meshes/shop/workloads/backend").json
    assert (shown["kri"], shown["spec"]) == ("kri_wl_shop_default__backend_", {})
    assert shown["labels"]["kuma.io/managed-by"] == GENERATOR
    assert shown["status"] == {"dataplaneProxies": {"connected": 0, "healthy": 1, "total": 1}}
    write_dataplane(plane, "web-2", "backend", state="NotReady")
    write_dataplane(plane, "web-3")
    eventually(lambda: workloads(plane), {"backend": (1, 2)})
    write_dataplane(plane, "web-1", "other")
    eventually(lambda: workloads(plane), {"backend": (0, 1), "other": (1, 1)})
    delete(plane, "web-2")
    eventually(lambda: workloads(plane), {"other": (1, 1)})
    delete(plane, "web-1")
    eventually(lambda: workloads(plane), {})


def test_one_that_somebody_wrote_is_counted_and_stays(plane):
    own = {"type": "Workload", "mesh": "shop", "name": "backend", "labels": {"team": "red"}, "spec": {}}
    assert plane("PUT", "/meshes/shop/workloads/backend", own).status == 201
    write_dataplane(plane, "web-1", "backend")
    eventually(lambda: workloads(plane), {"backend": (1, 1)})
    delete(plane, "web-1")
    eventually(lambda: workloads(plane), {"backend": (0, 0)})
    labels = plane("GET", "/meshes/shop/workloads/backend").json["labels"]
    assert labels["team"] == "red"
    assert "kuma.io/managed-by" not in labels


def test_one_that_is_deleted_comes_back_while_it_has_proxies(plane):
    write_dataplane(plane, "web-1", "backend")
    eventually(lambda: workloads(plane), {"backend": (1, 1)})
    assert plane("DELETE", "/meshes/shop/workloads/backend").status == 200
    eventually(lambda: workloads(plane), {"backend": (1, 1)})


def test_an_annotation_names_a_workload_too(plane):
    where = "/apis/kuma.io/v1alpha1/namespaces/mesh-shop/dataplanes"
    networking = {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "web"}}]}
    labels, annotations = {"kuma.io/mesh": "shop"}, {"kuma.io/workload": "noted"}
    metadata = {"name": "web-1", "labels": labels, "annotations": annotations}
    body = {"apiVersion": "kuma.io/v1alpha1", "kind": "Dataplane", "metadata": metadata}
    answer = plane("POST", where, {**body, "spec": {"networking": networking}})
    assert answer.status == 201, answer.json
    eventually(lambda: workloads(plane), {"noted": (1, 1)})


def test_a_name_that_cannot_be_a_workload_is_told_by_the_check(plane):
    write_dataplane(plane, "web-1", "back.end")
    write_dataplane(plane, "web-2", "ok")

    def told():
        checks = plane("GET", "/_check").json["checks"]
        return [each["status"] for each in checks if 'kuma.io/workload "back.end"' in each["message"]]

    eventually(told, ["warning"])
    eventually(lambda: workloads(plane), {"ok": (1, 1)})
