"""What stands around a spec in a PUT: type, name, mesh and labels, beside those of the path."""

import json

import pytest

from tests.build import timeout

MERGE = "application/merge-patch+json"
CHANGED = 'is immutable, cannot be changed from "{}" to "{}"'


def url(mesh, name="slow", path="meshtimeouts"):
    return f"/meshes/{mesh}/{path}/{name}"


def without(document, *names):
    return {name: value for name, value in document.items() if name not in names}


def kubernetes(name="slow", **labels):
    spec = timeout()["spec"]
    metadata = {"name": name, "namespace": "mesh-default", "labels": labels}
    return {"apiVersion": "kuma.io/v1alpha1", "kind": "MeshTimeout", "metadata": metadata, "spec": spec}


def test_a_body_without_a_mesh_takes_that_of_the_path(plane, mesh):
    assert plane("PUT", url(mesh), without(timeout(), "mesh")).status == 201
    assert plane("GET", url(mesh)).json["mesh"] == mesh
    assert plane("PUT", url(mesh), timeout(mesh="")).status == 200
    body = kubernetes()
    body["metadata"]["namespace"] = f"mesh-{mesh}"
    assert plane("PUT", url(mesh), body).status == 200
    answer = plane("PATCH", url(mesh), json.dumps({"mesh": None}).encode(), Content_Type=MERGE)
    assert answer.status == 200, answer.json
    assert plane("GET", url("default")).status == 404


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"mesh": "default"}, "mesh"),
        ({"name": "fast"}, "name"),
        ({"name": None}, "name"),
        ({"type": "MeshRetry"}, "type"),
        ({"type": None}, "type"),
    ],
)
def test_what_contradicts_the_path_is_refused(plane, mesh, change, field):
    answer = plane("PUT", url(mesh), {**timeout(mesh=mesh), **change})
    assert answer.status == 400
    assert answer.fields == [(field, f"{field} from the URL has to be the same as in body")]


@pytest.mark.parametrize(
    ("label", "before", "after"),
    [("kuma.io/origin", "zone", "global"), ("kuma.io/display-name", "slow", "x")],
)
def test_labels_that_are_computed_once_cannot_change_in_any_form(plane, mesh, label, before, after):
    assert plane("PUT", url(mesh), timeout(mesh=mesh)).status == 201
    reason = CHANGED.format(before, after)
    wrong = timeout(mesh=mesh, labels={label: after})
    answer = plane("PUT", url(mesh), wrong)
    assert (answer.status, answer.json["title"]) == (400, "Could not update a resource")
    assert answer.fields == [(f'labels["{label}"]', reason)]
    patch = {"labels": {label: after}}
    answer = plane("PATCH", url(mesh), json.dumps(patch).encode(), Content_Type=MERGE)
    assert (answer.status, answer.fields) == (400, [(f'labels["{label}"]', reason)])
    answer = plane("POST", "/_apply", {"objects": [wrong]})
    assert (answer.status, answer.fields) == (400, [(f'objects[0].labels["{label}"]', reason)])
    body = kubernetes(**{label: after, "kuma.io/mesh": mesh})
    body["metadata"]["namespace"] = f"mesh-{mesh}"
    answer = plane("PUT", url(mesh), body)
    assert (answer.status, answer.fields) == (400, [(f'metadata.labels["{label}"]', reason)])
    where = f"/apis/kuma.io/v1alpha1/namespaces/mesh-{mesh}/meshtimeouts/slow"
    stored = plane("GET", where).json
    stored["metadata"]["labels"][label] = after
    patch = json.dumps({"metadata": {"labels": {label: after}}}).encode()
    stored_again = {**stored, "metadata": {**stored["metadata"], "managedFields": None}}
    for answer in (
        plane("PUT", where, stored),
        plane("PATCH", where, patch, Content_Type=MERGE),
        plane(
            "PATCH",
            f"{where}?fieldManager=me&force=true",
            json.dumps(stored_again).encode(),
            Content_Type="application/apply-patch+yaml",
        ),
    ):
        assert answer.status in (400, 422), answer.json
        assert reason in answer.json["message"]
    assert plane("GET", url(mesh)).json["labels"][label] == before


def test_a_new_object_says_which_of_its_labels_are_not_kept(plane, mesh):
    answer = plane("PUT", url(mesh), timeout(mesh=mesh, labels={"kuma.io/display-name": "x", "team": "a"}))
    assert (answer.status, answer.json["warnings"]) == (
        201,
        ['labels["kuma.io/display-name"]: is computed, and becomes "slow"; "x" is not kept'],
    )
    assert plane("GET", url(mesh)).json["labels"]["kuma.io/display-name"] == "slow"


@pytest.mark.parametrize(
    ("networking", "proxy_type"),
    [
        ({"inbound": [{"port": 80, "tags": {"kuma.io/service": "web"}}]}, "sidecar"),
        ({"gateway": {"tags": {"kuma.io/service": "web"}}}, "gateway"),
        ({"gateway": {"type": "BUILTIN", "tags": {"kuma.io/service": "web"}}}, "gateway"),
    ],
)
def test_the_type_of_a_proxy_is_a_label(plane, mesh, networking, proxy_type):
    proxy = {"type": "Dataplane", "mesh": mesh, "name": "web", "labels": {"kuma.io/proxy-type": "other"}}
    proxy["networking"] = {"address": "10.0.0.1", **networking}
    assert plane("PUT", url(mesh, "web", "dataplanes"), proxy).status == 201
    assert plane("GET", url(mesh, "web", "dataplanes")).json["labels"]["kuma.io/proxy-type"] == proxy_type
    found = plane("GET", f"/meshes/{mesh}/dataplanes?filter[labels.kuma.io/proxy-type]={proxy_type}").json
    assert found["total"] == 1


def test_zone_proxies_have_their_type_too(plane):
    ingress = {"type": "ZoneIngress", "name": "in", "networking": {"address": "10.0.0.1", "port": 10001}}
    ingress["networking"] |= {"advertisedAddress": "10.0.0.2", "advertisedPort": 10001}
    egress = {"type": "ZoneEgress", "name": "out", "networking": {"address": "10.0.0.1", "port": 10002}}
    for path, document, proxy_type in (
        ("/zoneingresses/in", ingress, "zoneingress"),
        ("/zoneegresses/out", egress, "zoneegress"),
    ):
        answer = plane("PUT", path, document)
        assert answer.status == 201, answer.json
        assert plane("GET", path).json["labels"]["kuma.io/proxy-type"] == proxy_type
        assert plane("DELETE", path).status == 200
