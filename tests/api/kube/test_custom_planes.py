"""Custom resources over restarts, and on several control planes of one store."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.control_plane import LocalControlPlane
from tests.custom_resources import defined, definitions_of, version
from tests.kube_client import KubeClient, accepted
from tests.waiting import until

pytestmark = pytest.mark.slow
SIZE = {"size": 5}


def test_definitions_and_objects_are_there_after_a_restart(tmp_path):
    store = f"sqlite:///{tmp_path / 'koguma.db'}"
    with LocalControlPlane(tmp_path, store=store) as first:
        widgets = defined(first, version(subresources={"status": {}}), group="again.example.com")
        accepted(widgets.create("a", spec=SIZE))
        before = accepted(widgets.patch("a/status", {"status": {"phase": "Done"}}))
    with LocalControlPlane(tmp_path, store=store) as second:
        again = KubeClient(second, "custom", widgets.version, "Widget")
        assert again.get("a") == before
        assert definitions_of(second).delete("widgets.again.example.com").status == 200
        until(lambda: not definitions_of(second).exists("widgets.again.example.com"))
    with LocalControlPlane(tmp_path, store=store) as third:
        assert KubeClient(third, "custom", widgets.version, "Widget").send("GET", "").status == 404
        assert [key for key in third.plane.store.state.stored_keys() if key.kind.startswith("widgets")] == []


@pytest.fixture(scope="module")
def planes(tmp_path_factory, postgres):
    """Two control planes on one database."""
    store = postgres.database()
    with (
        LocalControlPlane(tmp_path_factory.mktemp("one"), store=store) as one,
        LocalControlPlane(tmp_path_factory.mktemp("two"), store=store) as two,
    ):
        yield one, two


def test_what_one_control_plane_defines_all_serve(planes):
    one, two = planes
    widgets = defined(one, group="both.example.com")
    there = KubeClient(two, "custom", widgets.version, "Widget")
    until(lambda: there.send("GET", "").status == 200)
    accepted(there.create("a", spec=SIZE))
    until(lambda: widgets.exists("a"))
    accepted(widgets.patch("a", {"spec": {"size": 6}}))
    until(lambda: there.get("a")["spec"]["size"] == 6)
    assert definitions_of(two).delete("widgets.both.example.com").status == 200
    until(lambda: widgets.send("GET", "").status == 404)
    until(lambda: not definitions_of(one).exists("widgets.both.example.com"))


def test_no_object_outlives_its_definition_whoever_writes(planes):
    one, two = planes
    for number in range(3):
        widgets = defined(one, group=f"race{number}.example.com")
        there = KubeClient(two, "custom", widgets.version, "Widget")
        until(lambda client=there: client.send("GET", "").status == 200)

        def write(index, widgets=widgets, there=there):
            client = there if index % 2 else widgets
            if index == 10:
                return definitions_of(two).delete(f"widgets.{widgets.version.partition('/')[0]}").status
            return client.create(f"w{index}", spec=SIZE).status

        with ThreadPoolExecutor(8) as pool:
            statuses = set(pool.map(write, range(30)))
        assert statuses <= {200, 201, 404, 405, 409}
        name = f"widgets.{widgets.version.partition('/')[0]}"
        if definitions_of(two).exists(name):
            definitions_of(two).delete(name)
        for plane in planes:
            until(lambda plane=plane, name=name: not definitions_of(plane).exists(name))
            keys = [key for key in plane.plane.store.state.stored_keys() if key.kind == name]
            assert keys == []
