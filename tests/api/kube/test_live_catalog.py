"""Endpoints that come at run time: discovery, OpenAPI and requests follow at once."""

import pytest

from koguma.kube import catalog
from koguma.kube.registry import KubeEndpoint
from koguma.main import all_kinds
from tests.control_plane import LocalControlPlane
from tests.kube_client import KOGUMA, KUMA, KubeClient, accepted, failure, timeout_spec

LATER = "later.example.com/v1"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@pytest.fixture(scope="module")
def lively(tmp_path_factory):
    """A control plane that may get more endpoints than others share."""
    with LocalControlPlane(tmp_path_factory.mktemp("lively")) as plane:
        yield plane


def test_an_alias_that_is_added_at_run_time_is_served_at_once(lively):
    stored, later = KubeClient(lively, "live", KUMA), KubeClient(lively, "live", LATER)
    accepted(stored.create("a", spec=timeout_spec()))
    assert later.send("GET", "a").status == 404
    etags = {path: _etag(lively, path) for path in ("/apis", "/openapi/v3", "/openapi/v2")}
    documents = lively("GET", "/openapi/v3").json["paths"]
    clean = catalog.of(all_kinds()).registry.find("koguma.io", "v1", "meshtimeouts")
    lively.plane.catalogs.serve(
        KubeEndpoint(
            group="later.example.com",
            version="v1",
            plural="meshtimeouts",
            set=clean.set,
            namespaced=True,
            converter=clean.converter,
        )
    )
    assert later.get("a")["metadata"]["uid"] == stored.get("a")["metadata"]["uid"]
    accepted(later.create("b", spec=timeout_spec()))
    assert stored.exists("b")
    assert _resource_id(lively, LATER) == _resource_id(lively, KUMA) == _resource_id(lively, KOGUMA)
    for path, before in etags.items():
        assert _etag(lively, path) != before, path
    listed = lively("GET", "/apis", Accept=AGGREGATED).json["items"]
    assert "later.example.com" in [item["metadata"]["name"] for item in listed]
    paths = lively("GET", f"/openapi/v3/apis/{LATER}").json["paths"]
    assert f"/apis/{LATER}/meshtimeouts" in paths
    now = lively("GET", "/openapi/v3").json["paths"]
    assert {root: now[root] for root in documents} == documents, "other groups' documents stay as they are"
    denied = later.send("GET", "a", Impersonate_User="nobody")
    assert failure(denied) == (403, "Forbidden"), "a right on one endpoint opens no other"


def _etag(plane, path):
    answer = plane("GET", path)
    assert answer.status == 200
    return answer.headers["ETag"]


def _resource_id(plane, version):
    resources = plane("GET", f"/apis/{version}").json["resources"]
    return next(entry["resourceID"] for entry in resources if entry["name"] == "meshtimeouts")
