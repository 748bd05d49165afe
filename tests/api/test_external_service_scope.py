"""Where external services may be: in the system namespace or in none, and in the zone that made them."""

import json

import pytest

from tests.control_plane import LocalControlPlane

PLAIN = "/meshes/default/meshexternalservices"
KUBE = "/apis/kuma.io/v1alpha1/namespaces/{}/meshexternalservices"
CLEAN = "/apis/koguma.io/v1/namespaces/{}/meshexternalservices"
MATCH = {"type": "InternalVIP", "value": "db.ext.svc.local", "port": 80, "protocol": "http"}
SPEC = {"match": [MATCH], "destination": {"type": "Regular", "endpoints": [{"address": "127.0.0.1"}]}}
WORDS = "MeshExternalService is allowed in namespace kuma-system only"


def plain(name, **labels):
    return {"type": "MeshExternalService", "name": name, "mesh": "default", "labels": labels, "spec": SPEC}


def kube(name, namespace, version="kuma.io/v1alpha1", **labels):
    metadata = {"name": name, "namespace": namespace, "labels": {"kuma.io/mesh": "default", **labels}}
    return {"apiVersion": version, "kind": "MeshExternalService", "metadata": metadata, "spec": SPEC}


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("x")) as made:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}}
        assert made("POST", "/api/v1/namespaces", namespace).status == 201
        yield made


def doors(labels, namespace):
    """Every way to write one, as a request; with labels for the plain form and a namespace for the other."""
    query = "?dryRun=All"
    yield "PUT", f"{PLAIN}/db", plain("db", **labels), {}
    yield "PUT", f"{PLAIN}/db{query}", plain("db", **labels), {}
    yield "POST", "/_apply", [plain("db", **labels)], {}
    yield "POST", "/_apply", [kube("db", namespace)], {}
    for url, version in ((KUBE, "kuma.io/v1alpha1"), (CLEAN, "koguma.io/v1")):
        collection, document = url.format(namespace), kube("db", namespace, version)
        yield "POST", collection, document, {}
        yield "POST", collection + query, document, {}
        yield "PUT", f"{collection}/db", document, {}
        apply = {"Content_Type": "application/apply-patch+yaml"}
        yield "PATCH", f"{collection}/db?fieldManager=me", document, apply


@pytest.mark.parametrize(
    ("method", "path", "body", "headers"), [*doors({"k8s.kuma.io/namespace": "demo"}, "demo")]
)
def test_one_in_another_namespace_is_refused_through_every_door(plane, method, path, body, headers):
    data = json.dumps(body).encode() if headers else body
    response = plane(method, path, data, **headers)
    assert response.status in (400, 404, 422), response.body
    if response.status != 404:  # a PUT of the Kubernetes form creates nothing
        assert WORDS in response.text
        assert any(at in response.text for at in ("metadata.namespace", r"labels[\"k8s.kuma.io/namespace\"]"))
    assert plane("GET", PLAIN).json["total"] == 0


def test_one_in_the_system_namespace_or_without_one_is_taken(plane):
    assert plane("PUT", f"{PLAIN}/bare", plain("bare")).status == 201
    assert plane("POST", KUBE.format("kuma-system"), kube("kubectl", "kuma-system")).status == 201
    labels = {"k8s.kuma.io/namespace": "kuma-system"}
    assert plane("PUT", f"{PLAIN}/rest.kuma-system", plain("rest.kuma-system", **labels)).status == 201
    items = {each["name"]: each["labels"] for each in plane("GET", PLAIN).json["items"]}
    assert sorted(items) == ["bare", "kubectl.kuma-system", "rest.kuma-system"]
    assert {labels["kuma.io/zone"] for labels in items.values()} == {"default"}
    for name in items:
        assert plane("DELETE", f"{PLAIN}/{name}").status == 200


@pytest.mark.parametrize("path", [f"{PLAIN}/db", "/_apply", KUBE.format("kuma-system")])
def test_one_for_another_zone_is_refused(plane, path):
    zone = {"kuma.io/zone": "west"}
    if path == "/_apply":
        response = plane("POST", path, [plain("db", **zone)])
    elif path.startswith("/apis"):
        response = plane("POST", path, kube("db", "kuma-system", **zone))
    else:
        response = plane("PUT", path, plain("db", **zone))
    assert response.status in (400, 422)
    assert "kuma.io/zone label should have default value" in response.text


def test_a_control_plane_of_another_zone_leaves_one_alone(tmp_path):
    """As after a start with the wrong --zone-name: the service keeps its address, and new ones get others."""
    store = f"sqlite:///{tmp_path}/koguma.db"
    with LocalControlPlane(tmp_path / "a", store=store, zone_name="east") as east:
        assert east("PUT", f"{PLAIN}/db", plain("db")).status == 201
        before = with_address(east, "db")
    with LocalControlPlane(tmp_path / "b", store=store, zone_name="west") as west:
        other = {**plain("mine"), "spec": {**SPEC, "match": [{**MATCH, "value": "mine.ext.svc.local"}]}}
        answer = west("PUT", f"{PLAIN}/mine", other)
        assert answer.status == 201, answer.text
        assert with_address(west, "mine")["status"]["vips"][0]["ip"] != before["status"]["vips"][0]["ip"]
        assert west("GET", f"{PLAIN}/db").json["status"] == before["status"]


def with_address(plane, name):
    with plane.watch(f"{PLAIN}?watch=true") as watch:
        while True:
            found = watch.next().get("object", {})
            if found.get("name") == name and found.get("status"):
                return found
