"""Watches: what is there, then what changes, in one order for everybody."""

import time
from contextlib import ExitStack
from datetime import timedelta

import pytest

from koguma.api.kube import reading, watching
from tests.control_plane import LocalControlPlane
from tests.kube_client import (
    CORE,
    KOGUMA,
    KUMA,
    TABLE,
    accepted,
    config_maps_in,
    failure_with_causes,
    has_ended,
    names,
    resource_version,
    types_and_names,
)

pytestmark = pytest.mark.slow

FAR = 10**9
LIST_FIRST = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
END_OF_FIRST = {"k8s.io/initial-events-end": "true"}


def timeout(name, idle="5s"):
    spec = {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": idle}}]}
    return {"apiVersion": "kuma.io/v1alpha1", "kind": "MeshTimeout", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}, {"watch": "1"}, {"watch": ""}], ids=str)
def test_without_a_revision_what_is_there_comes_first(config_maps, query):
    config_maps.put("b")
    config_maps.put("a")
    with config_maps.watch(**query) as watch:
        there = [watch.next(), watch.next()]
        config_maps.put("c")
        config_maps.put("a", "new")
        accepted(config_maps.delete("b"))
        then = [watch.next() for _ in range(3)]
    assert types_and_names(there) == [("ADDED", "a"), ("ADDED", "b")]
    assert types_and_names(then) == [("ADDED", "c"), ("MODIFIED", "a"), ("DELETED", "b")]
    revisions = [int(resource_version(event["object"])) for event in then]
    assert revisions == sorted(revisions)
    assert then[1]["object"]["data"] == {"text": "new"}


def test_from_a_revision_on_only_later_changes_come(config_maps):
    config_maps.put("a")
    after = resource_version(config_maps.put("b"))
    config_maps.put("c")
    with config_maps.watch(resourceVersion=after) as watch:
        accepted(config_maps.delete("a"))
        assert types_and_names([watch.next(), watch.next()]) == [("ADDED", "c"), ("DELETED", "a")]


def test_a_deletion_carries_the_last_state_and_its_own_revision(config_maps):
    before = config_maps.put("a", "last")
    with config_maps.watch(resourceVersion=resource_version(before)) as watch:
        accepted(config_maps.delete("a"))
        gone = watch.next()
    assert (gone["type"], gone["object"]["data"]) == ("DELETED", {"text": "last"})
    assert int(resource_version(gone["object"])) > int(resource_version(before))


def test_a_write_that_changes_nothing_is_not_told(config_maps):
    before = config_maps.put("a", "same")
    with config_maps.watch(resourceVersion=resource_version(before)) as watch:
        assert resource_version(config_maps.put("a", "same")) == resource_version(before)
        config_maps.put("b")
        assert types_and_names([watch.next()]) == [("ADDED", "b")]


def test_a_list_and_a_watch_from_its_revision_miss_nothing(config_maps):
    config_maps.put("a")
    listed = config_maps.list().json
    config_maps.put("b")
    with config_maps.watch(resourceVersion=resource_version(listed)) as watch:
        assert (names(listed), types_and_names([watch.next()])) == (["a"], [("ADDED", "b")])


def test_a_revision_still_to_come_is_waited_for(config_maps):
    now = int(resource_version(config_maps.put("a")))
    with config_maps.watch(resourceVersion=now + 2) as watch:
        config_maps.put("a", "second")
        config_maps.put("a", "third")
        config_maps.put("a", "fourth")
        assert int(resource_version(watch.next()["object"])) > now + 2


def test_a_watch_of_a_revision_far_away_says_nothing_and_marks_nothing(config_maps):
    with config_maps.watch(resourceVersion=FAR, timeoutSeconds=1, allowWatchBookmarks="true") as watch:
        config_maps.put("a")
        assert (watch.status, has_ended(watch)) == (200, True)


def test_a_revision_that_is_no_number_is_refused(config_maps):
    assert failure_with_causes(config_maps.list(watch="true", resourceVersion="new")) == (
        400,
        "BadRequest",
        [],
    )
    assert failure_with_causes(config_maps.list(watch="true", labelSelector="a=b=c")) == (
        400,
        "BadRequest",
        [],
    )
    assert failure_with_causes(config_maps.list(watch="true", fieldSelector="data=x")) == (
        400,
        "BadRequest",
        [],
    )


def test_bookmarks_come_now_and_then_and_move_with_what_happens_elsewhere(config_maps, monkeypatch):
    monkeypatch.setattr(watching, "BOOKMARK_SECONDS", 0.05)
    here = resource_version(config_maps.put("a"))
    with config_maps.watch(resourceVersion=here, allowWatchBookmarks="true") as watch:
        first = watch.next()
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "elsewhere"}}
        newer = resource_version(config_maps.other(CORE, "Secret").write(secret))
        while int(resource_version((mark := watch.next())["object"])) < int(newer):
            assert mark["type"] == "BOOKMARK"
    assert first["type"] == "BOOKMARK"
    assert int(resource_version(first["object"])) >= int(here)
    assert {key: first["object"][key] for key in ("kind", "apiVersion")} == {
        "kind": "ConfigMap",
        "apiVersion": "v1",
    }
    assert set(first["object"]["metadata"]) == {"resourceVersion", "creationTimestamp"}


def test_a_last_bookmark_comes_before_the_end(config_maps):
    here = resource_version(config_maps.put("a"))
    with config_maps.watch(resourceVersion=here, timeoutSeconds=1, allowWatchBookmarks="1") as watch:
        mark = watch.next()
        assert has_ended(watch)
    assert (mark["type"], int(resource_version(mark["object"])) >= int(here)) == ("BOOKMARK", True)


def test_bookmarks_come_also_where_nothing_that_changes_is_selected(config_maps, monkeypatch):
    monkeypatch.setattr(watching, "BOOKMARK_SECONDS", 0.05)
    here = resource_version(config_maps.put("a"))
    query = {"resourceVersion": here, "allowWatchBookmarks": "true", "labelSelector": "never=ever"}
    with config_maps.watch(**query) as watch:
        for number in range(20):
            here = resource_version(config_maps.put("a", str(number)))
        while int(resource_version(watch.next()["object"])) < int(here):
            pass


def test_without_being_asked_for_no_bookmarks_come(config_maps, monkeypatch):
    monkeypatch.setattr(watching, "BOOKMARK_SECONDS", 0.05)
    with config_maps.watch(resourceVersion=resource_version(config_maps.put("a")), timeoutSeconds=1) as watch:
        assert has_ended(watch)


@pytest.mark.parametrize("revision_asked", [{}, {"resourceVersion": "0"}, {"resourceVersion": "1"}], ids=str)
def test_a_list_can_come_as_events_with_a_bookmark_where_it_ends(config_maps, revision_asked):
    config_maps.put("a")
    newest = config_maps.put("b")
    with config_maps.watch(**LIST_FIRST, allowWatchBookmarks="true", **revision_asked) as watch:
        there = [watch.next(), watch.next()]
        mark = watch.next()
        config_maps.put("c")
        assert types_and_names([watch.next()]) == [("ADDED", "c")]
    assert types_and_names(there) == [("ADDED", "a"), ("ADDED", "b")]
    assert (mark["type"], mark["object"]["metadata"]["annotations"]) == ("BOOKMARK", END_OF_FIRST)
    assert int(resource_version(mark["object"])) >= int(resource_version(newest))


def test_without_first_events_a_bookmark_is_not_needed(config_maps):
    config_maps.put("a")
    query = {"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
    with config_maps.watch(**query, resourceVersion=config_maps.resource_version) as watch:
        config_maps.put("b")
        assert types_and_names([watch.next()]) == [("ADDED", "b")]


@pytest.mark.parametrize(
    "query",
    [
        {"sendInitialEvents": "true"},
        {"sendInitialEvents": "true", "resourceVersionMatch": "Exact"},
        {"resourceVersionMatch": "NotOlderThan"},
    ],
    ids=str,
)
def test_first_events_need_to_know_how_old_they_may_be(config_maps, query):
    assert failure_with_causes(config_maps.list(watch="true", **query)) == (
        422,
        "Invalid",
        ["FieldValueForbidden"],
    )


def test_first_events_of_a_revision_that_is_not_written_yet_can_be_asked_for_again(config_maps, monkeypatch):
    monkeypatch.setattr(reading, "_WAIT_SECONDS", 0.05)
    refused = config_maps.list(watch="true", resourceVersion=FAR, **LIST_FIRST)
    assert failure_with_causes(refused) == (504, "Timeout", ["ResourceVersionTooLarge"])


def test_first_events_outside_a_watch_are_refused(config_maps):
    assert failure_with_causes(config_maps.list(**LIST_FIRST, resourceVersion="1")) == (
        422,
        "Invalid",
        ["FieldValueForbidden"],
    )


def test_what_stops_to_fit_is_told_as_gone_with_what_it_was(config_maps):
    here = resource_version(config_maps.put("a", "red", team="red"))
    config_maps.put("other", team="blue")
    with config_maps.watch(resourceVersion=here, labelSelector="team=red") as watch:
        changed = config_maps.put("a", "blue", team="blue")
        gone = watch.next()
        back = config_maps.put("a", "again", team="red")
        again = watch.next()
        config_maps.put("a", "more", team="red")
        more = watch.next()
        accepted(config_maps.delete("other"))
        accepted(config_maps.delete("a"))
        end = watch.next()
    assert types_and_names([gone, again, more, end]) == [
        ("DELETED", "a"),
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
    ]
    assert gone["object"]["data"] == {"text": "red"}
    assert gone["object"]["metadata"]["labels"] == {"team": "red"}
    assert resource_version(gone["object"]) == resource_version(changed)
    assert resource_version(again["object"]) == resource_version(back)


def test_a_watch_of_one_namespace_or_of_all(config_maps):
    other = config_maps_in(config_maps.plane, f"{config_maps.namespace}-other")
    other.put("first")
    here = resource_version(config_maps.put("a"))
    with (
        config_maps.watch(resourceVersion=here) as inside,
        config_maps.plane.watch(
            f"{config_maps.all_namespaces_path}?watch=true&resourceVersion={here}"
        ) as everywhere,
    ):
        other.put("b")
        config_maps.put("c")
        assert types_and_names([inside.next()]) == [("ADDED", "c")]
        assert types_and_names([everywhere.next(), everywhere.next()]) == [("ADDED", "b"), ("ADDED", "c")]


def test_a_watch_of_one_name(config_maps):
    config_maps.put("a")
    config_maps.put("b")
    with config_maps.watch(fieldSelector="metadata.name=b", resourceVersion="0") as watch:
        config_maps.put("a", "new")
        config_maps.put("b", "new")
        assert types_and_names([watch.next(), watch.next()]) == [("ADDED", "b"), ("MODIFIED", "b")]


def test_the_older_paths_of_watches_work(config_maps):
    config_maps.put("a")
    here = resource_version(config_maps.put("b"))
    inside = f"/api/v1/watch/namespaces/{config_maps.namespace}/configmaps"
    with (
        config_maps.plane.watch(f"/api/v1/watch/configmaps?resourceVersion={here}") as everywhere,
        config_maps.plane.watch(inside) as namespaced,
        config_maps.plane.watch(f"{inside}/b?resourceVersion=0") as named,
    ):
        config_maps.put("a", "new")
        config_maps.put("b", "new")
        assert types_and_names([everywhere.next()]) == [("MODIFIED", "a")]
        assert types_and_names([namespaced.next() for _ in range(3)]) == [
            ("ADDED", "a"),
            ("ADDED", "b"),
            ("MODIFIED", "a"),
        ]
        assert types_and_names([named.next(), named.next()]) == [("ADDED", "b"), ("MODIFIED", "b")]


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/watch",
        "/api/v1/watch/nothing",
        "/apis/authorization.k8s.io/v1/watch/selfsubjectaccessreviews",
    ],
)
def test_the_older_path_of_what_cannot_be_watched_leads_nowhere(plane, path):
    assert failure_with_causes(plane("GET", path)) == (404, "NotFound", [])


def test_one_object_with_a_watch_in_its_query_is_only_read(config_maps):
    config_maps.put("a")
    answer = config_maps.plane("GET", f"{config_maps.path}/a?watch=true")
    assert (answer.status, answer.json["kind"]) == (200, "ConfigMap")


def test_all_watchers_see_one_order_and_the_same_revisions_under_every_path(config_maps):
    timeouts = config_maps.other(KUMA, "MeshTimeout")
    clean = config_maps.other(KOGUMA, "MeshTimeout")
    here = resource_version(timeouts.write(timeout("first")))
    with ExitStack() as stack:
        ways = (timeouts, clean, timeouts, clean)
        watches = [stack.enter_context(way.watch(resourceVersion=here)) for way in ways]
        for number in range(5):
            timeouts.write(timeout("first", f"{number}s"))
            timeouts.write(timeout(f"t{number}"))
            timeouts.delete(f"t{number}")
        seen = [[watch.next() for _ in range(15)] for watch in watches]
    orders = [
        [(*one, resource_version(e["object"])) for one, e in zip(types_and_names(s), s, strict=True)]
        for s in seen
    ]
    assert orders[0] == orders[1] == orders[2] == orders[3]
    assert [each[0]["object"]["apiVersion"] for each in seen[:2]] == ["kuma.io/v1alpha1", "koguma.io/v1"]


def test_events_are_the_same_set_under_both_groups(config_maps):
    events, newer = config_maps.other(CORE, "Event"), config_maps.other("events.k8s.io/v1", "Event")
    about = {"kind": "Mesh", "name": "web", "namespace": config_maps.namespace}
    with newer.watch(resourceVersion=newer.resource_version) as watch:
        made = events.write(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": "e"},
                "involvedObject": about,
                "message": "it rains",
            }
        )
        event = watch.next()["object"]
    assert (event["apiVersion"], event["note"], event["regarding"]) == ("events.k8s.io/v1", "it rains", about)
    assert resource_version(event) == resource_version(made)


def test_tables_of_a_watch_say_their_columns_once(config_maps):
    config_maps.put("a")
    config_maps.put("b")
    with config_maps.watch(TABLE, **LIST_FIRST, allowWatchBookmarks="true") as watch:
        first, second, mark = watch.next(), watch.next(), watch.next()
        config_maps.put("a", "new")
        change = watch.next()
    assert [event["type"] for event in (first, second, mark, change)] == [
        "ADDED",
        "ADDED",
        "BOOKMARK",
        "MODIFIED",
    ]
    assert [column["name"] for column in first["object"]["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert all(event["object"]["columnDefinitions"] is None for event in (second, mark, change))
    assert first["object"]["rows"][0]["cells"][:2] == ["a", 1]
    (row,) = mark["object"]["rows"]
    assert (row["cells"], row["object"]["metadata"]["annotations"]) == ([], END_OF_FIRST)
    assert change["object"]["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert change["object"]["metadata"]["resourceVersion"] == resource_version(
        change["object"]["rows"][0]["object"]
    )


def test_who_may_not_watch_is_told_so_before_anything_streams(config_maps):
    refused = config_maps.plane("GET", f"{config_maps.path}?watch=true", X_Forwarded_For="192.0.2.1")
    assert failure_with_causes(refused) == (403, "Forbidden", [])
    assert 'cannot watch resource "configmaps"' in refused.json["message"]


def test_a_watch_that_is_left_is_over(config_maps):
    def running():
        shown = config_maps.plane("GET", "/metrics").body.decode()
        return float(shown.partition("\nkoguma_api_watches ")[2].split()[0])

    def wait_for(number):
        while running() != number:
            time.sleep(0.01)

    wait_for(0)
    with config_maps.watch(resourceVersion="0"):
        wait_for(1)
    wait_for(0)


def test_history_that_is_gone_is_an_event_of_its_own(tmp_path):
    with LocalControlPlane(tmp_path) as plane:
        config_maps = config_maps_in(plane, "short")
        old = resource_version(config_maps.put("a"))
        for number in range(3):
            config_maps.put("a", str(number))
        plane.run(plane.plane.store.compact((), -timedelta(minutes=1)))
        with config_maps.watch(resourceVersion=old) as watch:
            assert watch.status == 200
            gone = watch.next()
            assert has_ended(watch)
        said = gone["object"]
        assert (gone["type"], said["kind"], said["code"], said["reason"]) == (
            "ERROR",
            "Status",
            410,
            "Expired",
        )
        with config_maps.watch(resourceVersion=config_maps.resource_version) as watch:
            config_maps.put("a", "later")
            assert types_and_names([watch.next()]) == [("MODIFIED", "a")]


def test_a_server_that_stops_ends_the_stream_and_the_watch_can_go_on_at_the_next(tmp_path):
    store = f"sqlite:///{tmp_path / 'koguma.db'}"
    with LocalControlPlane(tmp_path, store=store) as plane:
        config_maps = config_maps_in(plane, "stopped")
        watch = config_maps.watch(resourceVersion=resource_version(config_maps.put("a")))
        config_maps.put("b")
        last = watch.next()
    assert (types_and_names([last]), has_ended(watch)) == ([("ADDED", "b")], True)
    watch.__exit__()
    with LocalControlPlane(tmp_path, store=store) as plane:
        config_maps = config_maps_in(plane, "stopped")
        config_maps.put("c")
        with config_maps.watch(resourceVersion=resource_version(last["object"])) as watch:
            assert types_and_names([watch.next()]) == [("ADDED", "c")]
