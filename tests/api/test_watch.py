"""Watches: what is there, then what changes, in order."""

import pytest

from tests.build import timeout


@pytest.fixture
def base(mesh):
    return f"/meshes/{mesh}/meshtimeouts"


def test_a_watch_shows_what_is_there_and_then_every_change(plane, mesh, base):
    plane("PUT", f"{base}/a", timeout("a", mesh))
    with plane.watch(f"{base}?watch=true") as watch:
        (there,) = watch.until("BOOKMARK")
        assert (there["type"], there["object"]["name"]) == ("ADDED", "a")
        plane("PUT", f"{base}/b", timeout("b", mesh))
        plane("PUT", f"{base}/a", timeout("a", mesh, idle="6s"))
        plane("DELETE", f"{base}/b")
        events = [watch.next() for _ in range(3)]
    assert [(event["type"], event["object"]["name"]) for event in events] == [
        ("ADDED", "b"),
        ("MODIFIED", "a"),
        ("DELETED", "b"),
    ]
    revisions = [there["revision"], *(event["revision"] for event in events)]
    assert revisions == sorted(revisions)


def test_a_watch_goes_on_after_a_revision(plane, mesh, base):
    first = plane("PUT", f"{base}/a", timeout("a", mesh)).headers["Koguma-Revision"]
    plane("PUT", f"{base}/b", timeout("b", mesh))
    with plane.watch(f"{base}?watch=true&revision={first}") as watch:
        assert watch.next() == {"type": "BOOKMARK", "revision": int(first)}
        assert watch.next()["object"]["name"] == "b"


def test_a_watch_sees_its_own_mesh_and_labels_only(plane, mesh, base):
    with plane.watch(f"{base}?watch=true&filter[labels.team]=red") as watch:
        watch.until("BOOKMARK")
        plane("PUT", "/meshes/default/meshtimeouts/elsewhere", timeout("elsewhere", labels={"team": "red"}))
        plane("PUT", f"{base}/blue", timeout("blue", mesh, labels={"team": "blue"}))
        plane("PUT", f"{base}/red", timeout("red", mesh, labels={"team": "red"}))
        events = watch.until("ADDED") or []
    assert all(event["type"] == "BOOKMARK" for event in events)


def test_a_revision_that_is_not_there_yet_is_refused(plane, base):
    answer = plane("GET", f"{base}?watch=true&revision=999999")
    assert (answer.status, "not written yet" in answer.json["detail"]) == (400, True)
    assert plane("GET", f"{base}?watch=true&revision=x").status == 400
    assert plane("GET", f"{base}?watch=perhaps").status == 400
