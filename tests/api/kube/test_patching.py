"""Patches: JSON, merge and strategic, and what each of them may do to which object."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kube_client import (
    CORE,
    JSON_PATCH,
    KOGUMA,
    MERGE,
    STRATEGIC,
    accepted,
    causes,
    failure,
    revision,
    timeout_spec,
)


@pytest.fixture
def config_maps(config_maps):
    labels, data = {"x": "1", "y": "2"}, {"one": "1", "two": "2"}
    accepted(config_maps.create("a", metadata={"labels": labels}, data=data))
    return config_maps


CHANGES = {
    "merge": (MERGE, {"data": {"one": None, "three": "3"}, "metadata": {"labels": {"x": None}}}),
    "strategic": (STRATEGIC, {"data": {"one": None, "three": "3"}, "metadata": {"labels": {"x": None}}}),
    "json": (
        JSON_PATCH,
        [
            {"op": "test", "path": "/data/one", "value": "1"},
            {"op": "remove", "path": "/data/one"},
            {"op": "replace", "path": "/data/three", "value": "3"},  # acts as add
            {"op": "test", "path": "/data/four", "value": None},  # holds where nothing is
            {"op": "remove", "path": "/metadata/labels/x"},
        ],
    ),
}


@pytest.mark.parametrize("way", CHANGES)
def test_a_patch_changes_what_it_names_and_nothing_else(config_maps, way):
    media, change = CHANGES[way]
    before = config_maps.get("a")
    after = accepted(config_maps.patch("a", change, media))
    assert after["data"] == {"two": "2", "three": "3"}
    assert after["metadata"]["labels"] == {"y": "2"}
    assert revision(after) > revision(before)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert config_maps.get("a") == after


def test_a_strategic_patch_merges_lists_by_their_keys(timeouts):
    accounts = timeouts.other(CORE, "ServiceAccount")
    accepted(accounts.create("a", secrets=[{"name": "one"}, {"name": "two"}]))
    added = accepted(accounts.patch("a", {"secrets": [{"name": "three"}]}, STRATEGIC))
    assert sorted(each["name"] for each in added["secrets"]) == ["one", "three", "two"]
    gone = accepted(accounts.patch("a", {"secrets": [{"$patch": "delete", "name": "one"}]}, STRATEGIC))
    assert sorted(each["name"] for each in gone["secrets"]) == ["three", "two"]


@pytest.mark.parametrize("version", ["kuma.io/v1alpha1", KOGUMA])
def test_strategic_patches_are_for_kubernetes_own_kinds(timeouts, version):
    accepted(timeouts.create("a", spec=timeout_spec()))
    answer = timeouts.other(version).patch("a", {"spec": {}}, STRATEGIC)
    assert failure(answer) == (415, "UnsupportedMediaType")
    taken = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    assert answer.json["message"].endswith(f"accepted media types include: {taken}")
    assert accepted(timeouts.other(version).patch("a", {"spec": timeout_spec("6s")}))["spec"] == timeout_spec(
        "6s"
    )


@pytest.mark.parametrize("media", ["", "application/json", "application/yaml", "text/plain"])
def test_a_patch_says_what_it_is(config_maps, media):
    answer = config_maps.patch("a", {"data": {}}, media)
    assert failure(answer) == (415, "UnsupportedMediaType")


@pytest.mark.parametrize(
    ("media", "change"),
    [
        (MERGE, {"metadata": {"resourceVersion": "{}"}}),
        (STRATEGIC, {"metadata": {"resourceVersion": "{}"}}),
        (JSON_PATCH, [{"op": "replace", "path": "/metadata/resourceVersion", "value": "{}"}]),
    ],
    ids=["merge", "strategic", "json"],
)
def test_a_revision_in_a_patch_is_a_condition(config_maps, media, change):
    def with_revision(number):
        if isinstance(change, list):
            return [{**change[0], "value": str(number)}, {"op": "add", "path": "/data/x", "value": "y"}]
        return {"metadata": {"resourceVersion": str(number)}, "data": {"x": "y"}}

    before = revision(config_maps.get("a"))
    accepted(config_maps.patch("a", {"data": {"between": "1"}}))
    stale = config_maps.patch("a", with_revision(before), media)
    assert failure(stale) == (409, "Conflict")
    assert "the object has been modified" in stale.json["message"]
    assert (
        accepted(config_maps.patch("a", with_revision(revision(config_maps.get("a"))), media))["data"]["x"]
        == "y"
    )


def test_another_uid_in_a_patch_is_a_conflict(config_maps):
    assert failure(config_maps.patch("a", {"metadata": {"uid": "other"}})) == (409, "Conflict")


WRONG = {
    "a test that fails": (JSON_PATCH, [{"op": "test", "path": "/data/one", "value": "2"}], 422, "Invalid"),
    "a place that is not there": (JSON_PATCH, [{"op": "remove", "path": "/data/no"}], 422, "Invalid"),
    "a word that is none": (JSON_PATCH, [{"op": "burn", "path": "/data"}], 422, "Invalid"),
    "no list": (JSON_PATCH, {"data": {}}, 400, "BadRequest"),
    "a list": (MERGE, [{"data": {}}], 400, "BadRequest"),
    "no JSON": (MERGE, b"{", 400, "BadRequest"),
    "a whole that is no object": (JSON_PATCH, [{"op": "replace", "path": "", "value": 5}], 400, "BadRequest"),
    "another kind": (MERGE, {"kind": "Secret"}, 422, "Invalid"),
    "another version": (MERGE, {"apiVersion": "v2"}, 400, "BadRequest"),
    "another name": (MERGE, {"metadata": {"name": "b"}}, 400, "BadRequest"),
    "another namespace": (MERGE, {"metadata": {"namespace": "b"}}, 400, "BadRequest"),
    "metadata that are none": (MERGE, {"metadata": "x"}, 422, "Invalid"),
    "data that are none": (MERGE, {"data": "x"}, 422, "Invalid"),
    "a bad directive": (STRATEGIC, {"$patch": "burn"}, 422, "Invalid"),
    "forced": (MERGE, {"data": {}}, 422, "Invalid"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_patch_that_does_not_fit_is_refused_and_changes_nothing(config_maps, wrong):
    media, change, status, reason = WRONG[wrong]
    before = config_maps.get("a")
    query = {"force": "true"} if wrong == "forced" else ()
    assert failure(config_maps.patch("a", change, media, query)) == (status, reason)
    assert config_maps.get("a") == before


def test_too_many_operations_are_refused(config_maps):
    change = [{"op": "test", "path": "/data/one", "value": "1"}] * 10_001
    assert failure(config_maps.patch("a", change, JSON_PATCH)) == (413, "RequestEntityTooLarge")


def test_what_is_not_there_is_not_patched(config_maps):
    for media, change in CHANGES.values():
        assert failure(config_maps.patch("no", change, media)) == (404, "NotFound")


def test_a_patch_of_the_spec_is_judged_as_a_whole(timeouts):
    accepted(timeouts.create("a", spec=timeout_spec()))
    path = "/spec/to/0/default/idleTimeout"
    answer = timeouts.patch("a", [{"op": "replace", "path": path, "value": "soon"}], JSON_PATCH)
    assert failure(answer) == (422, "Invalid")
    assert [field for field, _ in causes(answer)] == ["spec.to[0].default.idleTimeout"]
    changed = accepted(timeouts.patch("a", [{"op": "replace", "path": path, "value": "9s"}], JSON_PATCH))
    assert changed["spec"] == timeout_spec("9s")


def test_what_only_the_server_says_cannot_be_patched(config_maps):
    before = config_maps.get("a")
    said = {
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "generation": 9,
        "deletionTimestamp": "2001-01-01T00:00:00Z",
    }
    assert accepted(config_maps.patch("a", {"metadata": said})) == before


def test_many_may_patch_at_once_without_a_condition(config_maps):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: config_maps.patch("a", {"data": {f"key{n}": str(n)}}), range(24)))
    assert {answer.status for answer in answers} == {200}
    assert {f"key{n}" for n in range(24)} <= set(config_maps.get("a")["data"])
    assert len({revision(answer.json) for answer in answers}) == 24
