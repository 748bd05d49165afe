"""Watches: what is there, then what changes, in one order for everybody."""

import time
from contextlib import ExitStack
from datetime import timedelta

import pytest

from koguma.api.kube import reading, watching
from tests.control_plane import LocalControlPlane
from tests.kube_room import TABLE, Room, cause, ends, names, revision, told

FAR = 10**9
LIST_FIRST = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
END_OF_FIRST = {"k8s.io/initial-events-end": "true"}


def timeout(name, idle="5s"):
    spec = {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": idle}}]}
    return {"apiVersion": "kuma.io/v1alpha1", "kind": "MeshTimeout", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}, {"watch": "1"}, {"watch": ""}], ids=str)
def test_without_a_revision_what_is_there_comes_first(room, query):
    room.put("b")
    room.put("a")
    with room.watch(**query) as watch:
        there = [watch.next(), watch.next()]
        room.put("c")
        room.put("a", "new")
        room.delete("b")
        then = [watch.next() for _ in range(3)]
    assert told(there) == [("ADDED", "a"), ("ADDED", "b")]
    assert told(then) == [("ADDED", "c"), ("MODIFIED", "a"), ("DELETED", "b")]
    revisions = [int(revision(event["object"])) for event in then]
    assert revisions == sorted(revisions)
    assert then[1]["object"]["data"] == {"text": "new"}


def test_from_a_revision_on_only_later_changes_come(room):
    room.put("a")
    after = revision(room.put("b"))
    room.put("c")
    with room.watch(resourceVersion=after) as watch:
        room.delete("a")
        assert told([watch.next(), watch.next()]) == [("ADDED", "c"), ("DELETED", "a")]


def test_a_deletion_carries_the_last_state_and_its_own_revision(room):
    before = room.put("a", "last")
    with room.watch(resourceVersion=revision(before)) as watch:
        room.delete("a")
        gone = watch.next()
    assert (gone["type"], gone["object"]["data"]) == ("DELETED", {"text": "last"})
    assert int(revision(gone["object"])) > int(revision(before))


def test_a_write_that_changes_nothing_is_not_told(room):
    before = room.put("a", "same")
    with room.watch(resourceVersion=revision(before)) as watch:
        assert revision(room.put("a", "same")) == revision(before)
        room.put("b")
        assert told([watch.next()]) == [("ADDED", "b")]


def test_a_list_and_a_watch_from_its_revision_miss_nothing(room):
    room.put("a")
    listed = room.list().json
    room.put("b")
    with room.watch(resourceVersion=revision(listed)) as watch:
        assert (names(listed), told([watch.next()])) == (["a"], [("ADDED", "b")])


def test_a_revision_still_to_come_is_waited_for(room):
    now = int(revision(room.put("a")))
    with room.watch(resourceVersion=now + 2) as watch:
        room.put("a", "second")
        room.put("a", "third")
        room.put("a", "fourth")
        assert int(revision(watch.next()["object"])) > now + 2


def test_a_watch_of_a_revision_far_away_says_nothing_and_marks_nothing(room):
    with room.watch(resourceVersion=FAR, timeoutSeconds=1, allowWatchBookmarks="true") as watch:
        room.put("a")
        assert (watch.status, ends(watch)) == (200, True)


def test_a_revision_that_is_no_number_is_refused(room):
    assert cause(room.list(watch="true", resourceVersion="new")) == (400, "BadRequest", [])
    assert cause(room.list(watch="true", labelSelector="a=b=c")) == (400, "BadRequest", [])
    assert cause(room.list(watch="true", fieldSelector="data=x")) == (400, "BadRequest", [])


def test_bookmarks_come_now_and_then_and_move_with_what_happens_elsewhere(room, monkeypatch):
    monkeypatch.setattr(watching, "BOOKMARK_SECONDS", 0.05)
    here = revision(room.put("a"))
    with room.watch(resourceVersion=here, allowWatchBookmarks="true") as watch:
        first = watch.next()
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "elsewhere"}}
        newer = revision(room.sibling("secrets").write(secret))
        while int(revision((mark := watch.next())["object"])) < int(newer):
            assert mark["type"] == "BOOKMARK"
    assert first["type"] == "BOOKMARK"
    assert int(revision(first["object"])) >= int(here)
    assert {key: first["object"][key] for key in ("kind", "apiVersion")} == {
        "kind": "ConfigMap",
        "apiVersion": "v1",
    }
    assert set(first["object"]["metadata"]) == {"resourceVersion", "creationTimestamp"}


def test_a_last_bookmark_comes_before_the_end(room):
    here = revision(room.put("a"))
    with room.watch(resourceVersion=here, timeoutSeconds=1, allowWatchBookmarks="1") as watch:
        mark = watch.next()
        assert ends(watch)
    assert (mark["type"], int(revision(mark["object"])) >= int(here)) == ("BOOKMARK", True)


def test_bookmarks_come_also_where_nothing_that_changes_is_selected(room, monkeypatch):
    monkeypatch.setattr(watching, "BOOKMARK_SECONDS", 0.05)
    here = revision(room.put("a"))
    query = {"resourceVersion": here, "allowWatchBookmarks": "true", "labelSelector": "never=ever"}
    with room.watch(**query) as watch:
        for number in range(20):
            here = revision(room.put("a", str(number)))
        while int(revision(watch.next()["object"])) < int(here):
            pass


def test_without_being_asked_for_no_bookmarks_come(room, monkeypatch):
    monkeypatch.setattr(watching, "BOOKMARK_SECONDS", 0.05)
    with room.watch(resourceVersion=revision(room.put("a")), timeoutSeconds=1) as watch:
        assert ends(watch)


@pytest.mark.parametrize("revision_asked", [{}, {"resourceVersion": "0"}, {"resourceVersion": "1"}], ids=str)
def test_a_list_can_come_as_events_with_a_bookmark_where_it_ends(room, revision_asked):
    room.put("a")
    newest = room.put("b")
    with room.watch(**LIST_FIRST, allowWatchBookmarks="true", **revision_asked) as watch:
        there = [watch.next(), watch.next()]
        mark = watch.next()
        room.put("c")
        assert told([watch.next()]) == [("ADDED", "c")]
    assert told(there) == [("ADDED", "a"), ("ADDED", "b")]
    assert (mark["type"], mark["object"]["metadata"]["annotations"]) == ("BOOKMARK", END_OF_FIRST)
    assert int(revision(mark["object"])) >= int(revision(newest))


def test_without_first_events_a_bookmark_is_not_needed(room):
    room.put("a")
    query = {"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
    with room.watch(**query, resourceVersion=room.revision) as watch:
        room.put("b")
        assert told([watch.next()]) == [("ADDED", "b")]


@pytest.mark.parametrize(
    "query",
    [
        {"sendInitialEvents": "true"},
        {"sendInitialEvents": "true", "resourceVersionMatch": "Exact"},
        {"resourceVersionMatch": "NotOlderThan"},
    ],
    ids=str,
)
def test_first_events_need_to_know_how_old_they_may_be(room, query):
    assert cause(room.list(watch="true", **query)) == (422, "Invalid", ["FieldValueForbidden"])


def test_first_events_of_a_revision_that_is_not_written_yet_can_be_asked_for_again(room, monkeypatch):
    monkeypatch.setattr(reading, "_WAIT_SECONDS", 0.05)
    refused = room.list(watch="true", resourceVersion=FAR, **LIST_FIRST)
    assert cause(refused) == (504, "Timeout", ["ResourceVersionTooLarge"])


def test_first_events_outside_a_watch_are_refused(room):
    assert cause(room.list(**LIST_FIRST, resourceVersion="1")) == (422, "Invalid", ["FieldValueForbidden"])


def test_what_stops_to_fit_is_told_as_gone_with_what_it_was(room):
    here = revision(room.put("a", "red", team="red"))
    room.put("other", team="blue")
    with room.watch(resourceVersion=here, labelSelector="team=red") as watch:
        changed = room.put("a", "blue", team="blue")
        gone = watch.next()
        back = room.put("a", "again", team="red")
        again = watch.next()
        room.put("a", "more", team="red")
        more = watch.next()
        room.delete("other")
        room.delete("a")
        end = watch.next()
    assert told([gone, again, more, end]) == [
        ("DELETED", "a"),
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
    ]
    assert gone["object"]["data"] == {"text": "red"}
    assert gone["object"]["metadata"]["labels"] == {"team": "red"}
    assert revision(gone["object"]) == revision(changed)
    assert revision(again["object"]) == revision(back)


def test_a_watch_of_one_namespace_or_of_all(room):
    other = Room(room.plane, f"{room.namespace}-other")
    other.put("first")
    here = revision(room.put("a"))
    with (
        room.watch(resourceVersion=here) as inside,
        room.plane.watch(f"{room.everywhere}?watch=true&resourceVersion={here}") as everywhere,
    ):
        other.put("b")
        room.put("c")
        assert told([inside.next()]) == [("ADDED", "c")]
        assert told([everywhere.next(), everywhere.next()]) == [("ADDED", "b"), ("ADDED", "c")]


def test_a_watch_of_one_name(room):
    room.put("a")
    room.put("b")
    with room.watch(fieldSelector="metadata.name=b", resourceVersion="0") as watch:
        room.put("a", "new")
        room.put("b", "new")
        assert told([watch.next(), watch.next()]) == [("ADDED", "b"), ("MODIFIED", "b")]


def test_the_older_paths_of_watches_work(room):
    room.put("a")
    here = revision(room.put("b"))
    inside = f"/api/v1/watch/namespaces/{room.namespace}/configmaps"
    with (
        room.plane.watch(f"/api/v1/watch/configmaps?resourceVersion={here}") as everywhere,
        room.plane.watch(inside) as namespaced,
        room.plane.watch(f"{inside}/b?resourceVersion=0") as named,
    ):
        room.put("a", "new")
        room.put("b", "new")
        assert told([everywhere.next()]) == [("MODIFIED", "a")]
        assert told([namespaced.next() for _ in range(3)]) == [
            ("ADDED", "a"),
            ("ADDED", "b"),
            ("MODIFIED", "a"),
        ]
        assert told([named.next(), named.next()]) == [("ADDED", "b"), ("MODIFIED", "b")]


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/watch",
        "/api/v1/watch/nothing",
        "/apis/authorization.k8s.io/v1/watch/selfsubjectaccessreviews",
    ],
)
def test_the_older_path_of_what_cannot_be_watched_leads_nowhere(plane, path):
    assert cause(plane("GET", path)) == (404, "NotFound", [])


def test_one_object_with_a_watch_in_its_query_is_only_read(room):
    room.put("a")
    answer = room.plane("GET", f"{room.path}/a?watch=true")
    assert (answer.status, answer.json["kind"]) == (200, "ConfigMap")


def test_all_watchers_see_one_order_and_the_same_revisions_under_every_path(room):
    timeouts = room.sibling("meshtimeouts", "/apis/kuma.io/v1alpha1")
    clean = room.sibling("meshtimeouts", "/apis/koguma.io/v1")
    here = revision(timeouts.write(timeout("first")))
    with ExitStack() as stack:
        ways = (timeouts, clean, timeouts, clean)
        watches = [stack.enter_context(way.watch(resourceVersion=here)) for way in ways]
        for number in range(5):
            timeouts.write(timeout("first", f"{number}s"))
            timeouts.write(timeout(f"t{number}"))
            timeouts.delete(f"t{number}")
        seen = [[watch.next() for _ in range(15)] for watch in watches]
    orders = [[(*one, revision(e["object"])) for one, e in zip(told(s), s, strict=True)] for s in seen]
    assert orders[0] == orders[1] == orders[2] == orders[3]
    assert [each[0]["object"]["apiVersion"] for each in seen[:2]] == ["kuma.io/v1alpha1", "koguma.io/v1"]


def test_events_are_the_same_set_under_both_groups(room):
    events, newer = room.sibling("events"), room.sibling("events", "/apis/events.k8s.io/v1")
    about = {"kind": "Mesh", "name": "web", "namespace": room.namespace}
    with newer.watch(resourceVersion=newer.revision) as watch:
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
    assert revision(event) == revision(made)


def test_tables_of_a_watch_say_their_columns_once(room):
    room.put("a")
    room.put("b")
    with room.watch(TABLE, **LIST_FIRST, allowWatchBookmarks="true") as watch:
        first, second, mark = watch.next(), watch.next(), watch.next()
        room.put("a", "new")
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
    assert change["object"]["metadata"]["resourceVersion"] == revision(change["object"]["rows"][0]["object"])


def test_who_may_not_watch_is_told_so_before_anything_streams(room):
    refused = room.plane("GET", f"{room.path}?watch=true", X_Forwarded_For="192.0.2.1")
    assert cause(refused) == (403, "Forbidden", [])
    assert 'cannot watch resource "configmaps"' in refused.json["message"]


def test_a_watch_that_is_left_is_over(room):
    def running():
        shown = room.plane("GET", "/metrics").body.decode()
        return float(shown.partition("\nkoguma_api_watches ")[2].split()[0])

    def wait_for(number):
        while running() != number:
            time.sleep(0.01)

    wait_for(0)
    with room.watch(resourceVersion="0"):
        wait_for(1)
    wait_for(0)


def test_history_that_is_gone_is_an_event_of_its_own(tmp_path):
    with LocalControlPlane(tmp_path) as plane:
        room = Room(plane, "short")
        old = revision(room.put("a"))
        for number in range(3):
            room.put("a", str(number))
        plane.run(plane.plane.store.compact((), -timedelta(minutes=1)))
        with room.watch(resourceVersion=old) as watch:
            assert watch.status == 200
            gone = watch.next()
            assert ends(watch)
        said = gone["object"]
        assert (gone["type"], said["kind"], said["code"], said["reason"]) == (
            "ERROR",
            "Status",
            410,
            "Expired",
        )
        with room.watch(resourceVersion=room.revision) as watch:
            room.put("a", "later")
            assert told([watch.next()]) == [("MODIFIED", "a")]


def test_a_server_that_stops_ends_the_stream_and_the_watch_can_go_on_at_the_next(tmp_path):
    store = f"sqlite:///{tmp_path / 'koguma.db'}"
    with LocalControlPlane(tmp_path, store=store) as plane:
        room = Room(plane, "stopped")
        watch = room.watch(resourceVersion=revision(room.put("a")))
        room.put("b")
        last = watch.next()
    assert (told([last]), ends(watch)) == ([("ADDED", "b")], True)
    watch.__exit__()
    with LocalControlPlane(tmp_path, store=store) as plane:
        room = Room(plane, "stopped")
        room.put("c")
        with room.watch(resourceVersion=revision(last["object"])) as watch:
            assert told([watch.next()]) == [("ADDED", "c")]
