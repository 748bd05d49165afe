"""A control plane that keeps its history for a moment only: what clients get that are too far behind."""

import json

import pytest
from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException

from tests.control_plane import LocalControlPlane
from tests.kube_clients.connections import connected, left
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    folder = tmp_path_factory.mktemp("short")
    with LocalControlPlane(folder, store=f"sqlite:///{folder / 'koguma.db'}", history="1s") as plane:
        yield plane
        left(plane)


@pytest.fixture(scope="module")
def core(plane):
    with connected(plane, (plane.data_dir / "admin-token").read_text().strip()) as connection:
        yield client.CoreV1Api(connection)


def test_a_watch_and_a_page_from_before_the_history_are_gone(core, plane):
    for name in ("a", "b", "c"):
        core.create_namespaced_config_map("short", {"metadata": {"name": name}, "data": {"n": "0"}})
    page = core.list_namespaced_config_map("short", limit=1)
    follow = {"namespace": "short", "_continue": page.metadata._continue, "limit": 1}
    assert [each.metadata.name for each in core.list_namespaced_config_map(**follow).items] == ["b"]
    old = page.metadata.resource_version
    core.patch_namespaced_config_map("b", "short", {"data": {"n": "1"}})
    core.patch_namespaced_config_map("b", "short", {"data": {"n": "2"}})
    until(lambda: plane.plane.store.state.compacted > int(old), "the first revisions of b are compacted")

    events = watch.Watch().stream(core.list_namespaced_config_map, "short", resource_version=old)
    with pytest.raises(ApiException) as gone:
        next(events)
    assert (gone.value.status, "too old resource version" in gone.value.reason) == (410, True)

    with pytest.raises(ApiException) as expired:
        core.list_namespaced_config_map(**follow)
    assert expired.value.status == 410
    told = json.loads(expired.value.body)
    assert told["reason"] == "Expired"
    left_over = core.list_namespaced_config_map("short", _continue=told["metadata"]["continue"])
    assert [each.metadata.name for each in left_over.items] == ["b", "c"]
    newest = core.list_namespaced_config_map("short").metadata.resource_version
    stream = watch.Watch().stream(core.list_namespaced_config_map, "short", resource_version=newest)
    core.patch_namespaced_config_map("c", "short", {"data": {"n": "1"}})
    assert next(stream)["object"].metadata.name == "c"
    stream.close()
