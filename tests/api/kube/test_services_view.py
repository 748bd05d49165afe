"""MeshServices as Kubernetes' Services, and kinds that are always empty: read, watched, and never written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.kube import catalog
from koguma.kube.kinds import services, workloads
from koguma.kube.registry import READ_VERBS, KubeEndpoint, Registry
from koguma.main import all_kinds
from tests.kube_client import (
    CORE,
    KOGUMA,
    KUMA,
    TABLE,
    KubeClient,
    accepted,
    bind_role,
    create_role,
    failure,
    names,
)
from tests.waiting import until

SPEC = {
    "selector": {"dataplaneTags": {"kuma.io/service": "backend"}},
    "ports": [{"name": "http", "port": 80, "targetPort": 8080, "appProtocol": "http"}, {"port": 9000}],
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda below: (
        st.lists(below, max_size=2)
        | st.dictionaries(st.sampled_from(("ports", "port", "vips", "ip", "selector")), below, max_size=3)
    ),
    max_leaves=6,
)


@pytest.fixture
def mesh_services(config_maps):
    return config_maps.other(KUMA, "MeshService")


@pytest.fixture
def seen(mesh_services):
    """Services of the test's own namespace."""
    return mesh_services.other(CORE, "Service")


def test_a_mesh_service_is_a_service_under_the_same_name_and_uid(mesh_services, seen):
    stored = accepted(mesh_services.create("backend", spec=SPEC))
    until(lambda: seen.get("backend")["spec"]["clusterIP"] != "None")
    service = seen.get("backend")
    assert (service["apiVersion"], service["kind"]) == (CORE, "Service")
    assert service["metadata"]["uid"] == stored["metadata"]["uid"]
    address = mesh_services.get("backend")["status"]["vips"][0]["ip"]
    assert service["spec"]["clusterIP"] == service["spec"]["clusterIPs"][0] == address
    assert service["spec"]["selector"] == {"kuma.io/service": "backend"}
    assert service["spec"]["ports"] == [
        {"name": "http", "protocol": "TCP", "appProtocol": "http", "port": 80, "targetPort": 8080},
        {"name": "9000", "protocol": "TCP", "port": 9000, "targetPort": 9000},
    ]
    assert not {"managedFields", "generation"} & set(service["metadata"])
    assert names(seen.list().json) == ["backend"]
    assert names(seen.list(fieldSelector=f"spec.clusterIP={address}").json) == ["backend"]
    row = seen.list(TABLE).json["rows"][0]["cells"]
    assert row[:5] == ["backend", "ClusterIP", address, "<none>", "80/TCP,9000/TCP"]


def test_a_service_is_watched_while_its_mesh_service_changes(mesh_services, seen):
    with seen.watch(resourceVersion=seen.resource_version) as watch:
        accepted(mesh_services.create("backend", spec=SPEC))
        event = watch.next()
        assert (event["type"], event["object"]["kind"]) == ("ADDED", "Service")
        assert mesh_services.delete("backend").status == 200
        while (event := watch.next())["type"] != "DELETED":
            assert event["object"]["kind"] == "Service"


def test_a_service_cannot_be_written_and_the_error_says_what_can(mesh_services, seen):
    accepted(mesh_services.create("backend", spec=SPEC))
    service = seen.get("backend")
    answers = [seen.create("new", spec={}), seen.replace(service), seen.patch("backend", {})]
    answers += [seen.apply("backend"), seen.delete("backend"), seen.send("DELETE", "")]
    for answer in answers:
        assert failure(answer) == (405, "MethodNotAllowed")
        assert "it is a MeshService: write meshservices.kuma.io" in answer.json["message"]
    assert mesh_services.exists("backend")


def test_a_right_on_services_is_none_on_mesh_services(plane, mesh_services, seen):
    accepted(mesh_services.create("backend", spec=SPEC))
    create_role(plane, "sees-services", {"apiGroups": [""], "resources": ["services"], "verbs": ["get"]})
    bind_role(plane, "sam", "sees-services")
    as_sam = {"Impersonate_User": "sam"}
    assert seen.send("GET", "backend", **as_sam).status == 200
    for version in (KUMA, KOGUMA):
        assert mesh_services.other(version).send("GET", "backend", **as_sam).status == 403


@given(spec=json_values, status=json_values)
def test_whatever_is_stored_is_shown(spec, status):
    document = {"metadata": {"name": "a"}, "spec": spec, "status": status}
    service = services.shown(document)
    assert service["spec"]["type"] == "ClusterIP"
    for column in services.SERVICE.columns:
        assert isinstance(column.value(service["spec"], service["status"]), str)


def test_a_view_can_only_be_read():
    registry = catalog.of(all_kinds()).registry
    view = registry.find("", "v1", "services")
    assert view.verbs == READ_VERBS
    writable = KubeEndpoint(
        group="x.example", version="v1", plural="s", set=view.set, namespaced=True, view=view.view
    )
    with pytest.raises(ValueError, match="are a view, so they can only be read"):
        Registry((writable,))


@pytest.mark.parametrize("kind", workloads.EMPTY_KINDS, ids=lambda kind: kind.plural)
def test_kinds_of_a_cluster_are_empty_and_stay_so(plane, kind):
    version = f"{kind.group}/v1" if kind.group else "v1"
    root = f"/apis/{version}" if kind.group else "/api/v1"
    listed = plane("GET", f"{root}/{kind.plural}")
    assert (listed.status, listed.json["kind"], listed.json["items"]) == (200, f"{kind.name}List", [])
    objects = KubeClient(plane, "default" if kind.namespaced else "", version, kind.name)
    path = objects.path.rpartition("/")[0]
    answer = plane("POST", f"{path}/{kind.plural}", objects.document("a"))
    assert failure(answer) == (405, "MethodNotAllowed")
    assert "Koguma runs no programs" in answer.json["message"]
    assert failure(plane("GET", f"{path}/{kind.plural}/a")) == (404, "NotFound")
