"""Lists: pages of one revision, what a revision means, and selectors."""

import pytest

from koguma.api.kube import finding, reading
from tests.kube_client import CORE, KOGUMA, KUMA, TABLE, failure_with_causes, names, resource_version

FAR = 10**9  # a revision that nobody has written


def event(name, about, **fields):
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name},
        "involvedObject": about,
        "message": f"{name} happened",
        **fields,
    }


@pytest.fixture
def seven(config_maps):
    for name in "abcdefg":
        config_maps.put(name, "first")
    return config_maps


def test_a_list_says_of_which_revision_it_is_and_is_sorted_by_name(config_maps):
    for name in ("c", "a", "b"):
        newest = config_maps.put(name)
    listed = config_maps.list().json
    assert (listed["kind"], listed["apiVersion"], names(listed)) == ("ConfigMapList", "v1", ["a", "b", "c"])
    assert set(listed["metadata"]) == {"resourceVersion"}
    assert int(resource_version(listed)) >= int(resource_version(newest))
    everywhere = config_maps.plane("GET", config_maps.all_namespaces_path).json["items"]
    places = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in everywhere]
    assert places == sorted(places)
    assert {(config_maps.namespace, "a"), (config_maps.namespace, "c")} <= set(places)


def test_items_of_kubernetes_own_kinds_leave_their_kind_to_the_list(config_maps):
    config_maps.put("a")
    item = config_maps.list().json["items"][0]
    assert next(iter(item)) == "metadata"
    assert not {"apiVersion", "kind"} & set(item)
    assert item == {n: v for n, v in config_maps.get("a").items() if n not in ("apiVersion", "kind")}
    for version in (KUMA, KOGUMA):
        meshes = config_maps.other(version, "Mesh", "").list().json["items"]
        assert {(mesh["apiVersion"], mesh["kind"]) for mesh in meshes} == {(version, "Mesh")}


def test_a_namespace_that_is_not_there_has_an_empty_list(config_maps):
    listed = config_maps.list()
    assert (listed.status, listed.json["items"]) == (200, [])


def test_all_pages_are_of_one_revision_although_others_write_meanwhile(seven):
    first = seven.list(limit=3).json
    assert (names(first), first["metadata"]["remainingItemCount"]) == (["a", "b", "c"], 4)
    seven.put("e", "second")
    seven.put("cc", "new")
    seven.put("h", "new")
    seven.delete("f")
    second = seven.list(limit=3, **{"continue": first["metadata"]["continue"]}).json
    assert (names(second), second["metadata"]["remainingItemCount"]) == (["d", "e", "f"], 1)
    last = seven.list(limit=3, **{"continue": second["metadata"]["continue"]}).json
    assert (names(last), last["metadata"]) == (["g"], {"resourceVersion": resource_version(first)})
    assert resource_version(second) == resource_version(first)
    assert {item["data"]["text"] for item in second["items"]} == {"first"}
    assert names(seven.list().json) == ["a", "b", "c", "cc", "d", "e", "g", "h"]


def test_a_page_of_the_rest_may_be_of_another_size(seven):
    first = seven.list(limit=2).json
    assert names(seven.list(**{"continue": first["metadata"]["continue"]}).json) == list("cdefg")


def test_pages_of_a_selection_do_not_count_what_is_left(seven):
    for name in "aceg":
        seven.put(name, "first", odd="yes")
    first = seven.list(limit=3, labelSelector="odd=yes").json
    assert (names(first), "remainingItemCount" in first["metadata"]) == (["a", "c", "e"], False)
    token = first["metadata"]["continue"]
    assert names(seven.list(limit=3, labelSelector="odd=yes", **{"continue": token}).json) == ["g"]


def test_tables_come_in_pages_too(seven):
    first = seven.list(TABLE, limit=4).json
    assert (first["kind"], len(first["rows"])) == ("Table", 4)
    rest = seven.list(TABLE, limit=4, **{"continue": first["metadata"]["continue"]}).json
    assert [row["cells"][0] for row in rest["rows"]] == list("efg")
    assert "continue" not in rest["metadata"]


def test_pages_through_an_alias_are_of_the_same_revisions(config_maps):
    timeouts = config_maps.other(KUMA, "MeshTimeout")
    clean = config_maps.other(KOGUMA, "MeshTimeout")
    spec = {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "5s"}}]}
    for name in "ab":
        timeouts.write(
            {
                "apiVersion": "kuma.io/v1alpha1",
                "kind": "MeshTimeout",
                "metadata": {"name": name},
                "spec": spec,
            }
        )
    first = timeouts.list(limit=1).json
    rest = clean.list(limit=1, **{"continue": first["metadata"]["continue"]}).json
    assert (names(rest), resource_version(rest)) == (["b"], resource_version(first))
    assert rest["items"][0]["apiVersion"] == "koguma.io/v1"


def test_a_list_that_is_kept_no_more_says_how_to_go_on(seven):
    first = seven.list(limit=3).json
    for number in range(finding.SNAPSHOTS_MAX):
        seven.put("e", str(number))
        seven.list(limit=3)
    refused = seven.list(limit=3, **{"continue": first["metadata"]["continue"]})
    assert failure_with_causes(refused) == (410, "Expired", [])
    assert "continue" in refused.json["message"]
    token = refused.json["metadata"]["continue"]
    seven.delete("f")
    rest = seven.list(limit=2, **{"continue": token}).json
    assert names(rest) == ["d", "e"]
    assert int(resource_version(rest)) > int(resource_version(first))
    assert names(seven.list(**{"continue": rest["metadata"]["continue"]}).json) == ["g"]


def test_a_revision_asks_for_nothing_older(seven):
    now = seven.resource_version
    for query in (
        {"resourceVersion": now},
        {"resourceVersion": "0"},
        {"resourceVersion": "0", "limit": 500},
        {"resourceVersion": "1", "resourceVersionMatch": "NotOlderThan"},
        {"resourceVersion": now, "resourceVersionMatch": "NotOlderThan", "limit": 500},
        {"resourceVersion": "0", "resourceVersionMatch": "NotOlderThan"},
    ):
        answer = seven.list(**query)
        assert (answer.status, names(answer.json)) == (200, list("abcdefg")), query
        assert int(resource_version(answer.json)) >= int(now), query


@pytest.mark.parametrize("words", [{"resourceVersionMatch": "Exact"}, {"limit": 500}], ids=str)
def test_an_exact_revision_asks_for_that_very_state(seven, words):
    first = seven.list(limit=1).json  # somebody pages through it, so it is kept
    seven.put("b", "second")
    exact = seven.list(resourceVersion=resource_version(first), **words).json
    assert resource_version(exact) == resource_version(first)
    assert exact["items"][1]["data"]["text"] == "first"
    gone = seven.list(resourceVersion="1", **words)
    assert failure_with_causes(gone) == (410, "Expired", [])
    assert "resourceVersion" in gone.json["message"]


@pytest.mark.parametrize(
    ("query", "refusal"),
    [
        ({"resourceVersionMatch": "Exact"}, (422, "Invalid", ["FieldValueForbidden"])),
        ({"resourceVersionMatch": "NotOlderThan"}, (422, "Invalid", ["FieldValueForbidden"])),
        (
            {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
            (422, "Invalid", ["FieldValueForbidden"]),
        ),
        (
            {"resourceVersionMatch": "Later", "resourceVersion": "1"},
            (422, "Invalid", ["FieldValueNotSupported"]),
        ),
        ({"resourceVersion": "new"}, (400, "BadRequest", [])),
        ({"resourceVersion": "-1"}, (400, "BadRequest", [])),
        ({"continue": "garbage"}, (400, "BadRequest", [])),
        ({"continue": "bm90IGpzb24="}, (400, "BadRequest", [])),
        ({"continue": "\u00e9"}, (400, "BadRequest", [])),
        ({"limit": "many"}, (400, "BadRequest", [])),
        ({"labelSelector": "a=b=c"}, (400, "BadRequest", [])),
        ({"labelSelector": "a in b"}, (400, "BadRequest", [])),
        ({"labelSelector": "-a"}, (400, "BadRequest", [])),
        ({"fieldSelector": "data.text=a"}, (400, "BadRequest", [])),
        ({"fieldSelector": "involvedObject.name=a"}, (400, "BadRequest", [])),
        ({"fieldSelector": "metadata.name"}, (400, "BadRequest", [])),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(seven, query, refusal):
    assert failure_with_causes(seven.list(**query)) == refusal


def test_a_token_and_a_revision_exclude_each_other(seven):
    token = seven.list(limit=1).json["metadata"]["continue"]
    assert failure_with_causes(seven.list(resourceVersion="5", **{"continue": token})) == (
        400,
        "BadRequest",
        [],
    )
    refused = seven.list(resourceVersion="5", resourceVersionMatch="Exact", **{"continue": token})
    assert failure_with_causes(refused) == (422, "Invalid", ["FieldValueForbidden"])
    assert seven.list(resourceVersion="0", **{"continue": token}).status == 200


@pytest.mark.parametrize("words", [{}, {"resourceVersionMatch": "Exact"}, {"limit": 500}], ids=str)
def test_a_revision_that_is_not_written_yet_can_be_asked_for_again(seven, monkeypatch, words):
    monkeypatch.setattr(reading, "_WAIT_SECONDS", 0.05)
    one = seven.plane("GET", f"{seven.path}/a?resourceVersion={FAR}")
    for answer in (one, seven.list(resourceVersion=FAR, **words)):
        assert failure_with_causes(answer) == (504, "Timeout", ["ResourceVersionTooLarge"])
        assert answer.headers["Retry-After"] == "1"
        assert answer.json["details"]["retryAfterSeconds"] == 1


def test_one_object_is_read_as_new_as_asked(seven):
    for given in ("", "0", "1", seven.resource_version):
        answer = seven.plane("GET", f"{seven.path}/a?resourceVersion={given}")
        assert (answer.status, answer.json["kind"]) == (200, "ConfigMap")
    assert failure_with_causes(seven.plane("GET", f"{seven.path}/a?resourceVersion=x")) == (
        400,
        "BadRequest",
        [],
    )


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("app=web", ["one", "two"]),
        ("app==web,tier!=b", ["one"]),
        ("app", ["four", "one", "two"]),
        ("!app", ["three"]),
        ("app!=web", ["four", "three"]),
        ("app in (web, db)", ["four", "one", "two"]),
        ("app notin (web)", ["four", "three"]),
        ("size>2", ["two"]),
        ("size<2", ["one"]),
        ("", ["four", "one", "three", "two"]),
    ],
)
def test_labels_select(config_maps, selector, found):
    config_maps.put("one", app="web", tier="a", size="1")
    config_maps.put("two", app="web", tier="b", size="3")
    config_maps.put("three", size="2")
    config_maps.put("four", app="db")
    assert names(config_maps.list(labelSelector=selector).json) == found


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("metadata.name=b", ["b"]),
        ("metadata.name!=b", list("acdefg")),
        ("metadata.name=b,metadata.name!=b", []),
        ("metadata.namespace=elsewhere", []),
        ("metadata.name=b,metadata.namespace!=elsewhere", ["b"]),
    ],
)
def test_names_select(seven, selector, found):
    assert names(seven.list(fieldSelector=selector).json) == found


def test_types_of_secrets_and_phases_of_namespaces_select(config_maps):
    secrets = config_maps.other(CORE, "Secret")
    for name, kind in (("plain", "Opaque"), ("key", "example.com/key")):
        secrets.write({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind})
    assert names(secrets.list(fieldSelector="type=example.com/key").json) == ["key"]
    asked = "/api/v1/namespaces?fieldSelector=status.phase%3D"
    assert config_maps.namespace in names(config_maps.plane("GET", f"{asked}Active").json)
    assert names(config_maps.plane("GET", f"{asked}Unheard").json) == []


def test_events_are_found_by_what_they_are_about_under_both_of_their_groups(config_maps):
    events, newer = config_maps.other(CORE, "Event"), config_maps.other("events.k8s.io/v1", "Event")
    web = {"kind": "Mesh", "name": "web", "uid": "1", "namespace": config_maps.namespace}
    db = {"kind": "Mesh", "name": "db", "uid": "2", "namespace": config_maps.namespace}
    events.write(event("e1", web, reason="Began", type="Normal", source={"component": "cook"}))
    events.write(event("e2", db, reason="Burned", type="Warning", reportingComponent="cook"))
    events.write(event("e3", web, reason="Burned", type="Warning"))
    for selector, found in (
        ("involvedObject.name=web", ["e1", "e3"]),
        ("involvedObject.kind=Mesh,involvedObject.uid=2", ["e2"]),
        (f"involvedObject.namespace={config_maps.namespace},type=Warning", ["e2", "e3"]),
        ("involvedObject.name!=web", ["e2"]),
        ("reason=Began", ["e1"]),
        ("source=cook", ["e1", "e2"]),
        ("reportingComponent=cook", ["e2"]),
    ):
        assert names(events.list(fieldSelector=selector).json) == found, selector
    for selector, found in (
        ("regarding.name=web", ["e1", "e3"]),
        ("regarding.kind=Mesh,reason=Burned", ["e2", "e3"]),
        ("reportingController=cook", ["e2"]),
    ):
        assert names(newer.list(fieldSelector=selector).json) == found, selector
    assert failure_with_causes(newer.list(fieldSelector="involvedObject.name=web")) == (400, "BadRequest", [])
