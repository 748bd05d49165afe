"""Refusals of a fleet: what proxies refused is known at every control plane of their store."""

import pytest

from tests.control_plane import LocalControlPlane
from tests.proxy_connections import connect, next_offer
from tests.test_arrival import asked, is_there, joined, look_each_time, refuse, settled, take, written
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    look_each_time(monkeypatch)
    monkeypatch.setattr("koguma.fleet.quarantine.REPORT_SECONDS", 0.3)


@pytest.fixture
def planes(own_postgres, tmp_path):
    store = own_postgres.database()
    with (
        LocalControlPlane(tmp_path / "a", store=store) as first,
        LocalControlPlane(tmp_path / "b", store=store) as second,
    ):
        yield first, second


def patched(plane, limit):
    """Write a MeshProxyPatch that changes the inbound listeners of all proxies; its revision."""
    value = f"perConnectionBufferLimitBytes: {limit}"
    listener = {"operation": "Patch", "match": {"origin": "inbound"}, "value": value}
    spec = {"targetRef": {"kind": "Mesh"}, "default": {"appendModifications": [{"listener": listener}]}}
    document = {"type": "MeshProxyPatch", "mesh": "default", "name": "bad", "spec": spec}
    return written(plane, document, "meshproxypatches")


def refuses(plane, web, revision):
    until(lambda: web.offered_revision >= revision)
    refused = web._offer
    refuse(plane, web, "no")
    until(lambda: web._offer is not refused)
    take(plane, web)


def condition(plane):
    """What the patch's status says of the proxies that refuse it."""
    policy = plane("GET", "/apis/kuma.io/v1alpha1/namespaces/mesh-default/meshproxypatches/bad").json
    conditions = (policy.get("status") or {}).get("conditions", [])
    return next((each["message"] for each in conditions if each["reason"] == "Refused"), "")


def test_a_proxy_that_moves_keeps_what_it_took_last_and_later_changes_arrive(planes):
    first, second = planes
    web = joined(first, "web-1")
    settled(first, web)
    revision = patched(first, 1000)
    refuses(first, web, revision)
    until(lambda: "web-1" in condition(second), "it is stored")
    good = web._offer.snapshot
    first.run(web.close())
    moved = connect(second, name="web-1")
    offered = second.run(next_offer(moved)).snapshot
    assert {each.id: each.version for each in offered} == {each.id: each.version for each in good}
    take(second, moved)
    (lack,) = asked(second, revision)["lacking"]
    assert (lack["reason"], lack["text"].endswith(": no")) == ("refused", True)
    until(lambda: is_there(second, second.plane.store.state.revision), "all else it has")
    mended = patched(second, 2000)
    until(lambda: moved.offered_revision >= mended)
    take(second, moved)
    until(lambda: is_there(first, mended))
    until(lambda: condition(first) == "")

    second.run(moved.close())
    back = connect(first, name="web-1")
    first.run(next_offer(back))
    take(first, back)
    until(lambda: is_there(first, revision), "what it had refused here before is over")


def test_the_status_of_a_policy_names_the_proxies_of_all_control_planes_and_none_that_is_gone(planes):
    first, second = planes
    one, other = joined(first, "web-1"), joined(second, "web-2", "127.0.0.2")
    until(
        lambda: (
            take(first, one),
            take(second, other),
            len(first.plane.store.state.listed("Dataplane")) == 2,
        )[2]
    )
    revision = patched(first, 1000)
    refuses(first, one, revision)
    refuses(second, other, revision)
    for plane in planes:
        until(lambda plane=plane: '"web-1"' in condition(plane) and '"web-2"' in condition(plane))
    second.run(other.close())
    assert second("DELETE", "/meshes/default/dataplanes/web-2").status in (200, 204)
    for plane in planes:
        until(lambda plane=plane: '"web-1"' in condition(plane) and '"web-2"' not in condition(plane))
