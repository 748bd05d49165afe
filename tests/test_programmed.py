"""The condition Programmed: there once every proxy has an object as it is, in answers and in watches."""

import copy

import pytest

from tests.build import dataplane
from tests.control_plane import LocalControlPlane
from tests.kube_client import KOGUMA, KUMA, TABLE, KubeClient, accepted
from tests.proxy_connections import connect, next_offer
from tests.test_arrival import look_each_time, settled, take
from tests.waiting import until

pytestmark = pytest.mark.slow

NAMESPACE = "kuma-system"


@pytest.fixture
def plane(tmp_path, monkeypatch):
    look_each_time(monkeypatch)
    with LocalControlPlane(tmp_path) as running:
        yield running


@pytest.fixture
def timeouts(plane):
    return KubeClient(plane, NAMESPACE, KUMA)


@pytest.fixture
def web(plane):
    connection = connect(plane, dataplane(), name="web-1")
    plane.run(next_offer(connection))
    settled(plane, connection)
    return connection


def written(client, seconds, name="t", **metadata):
    """Write a policy that every proxy gets."""
    rules = [{"default": {"http": {"requestHeadersTimeout": f"{seconds}s"}}}]
    labels = {"kuma.io/mesh": "default", **metadata.pop("labels", {})}
    document = client.document(name, metadata={"labels": labels}, spec={"rules": rules})
    known = client.send("GET", name)
    if known.status == 404:
        return accepted(client.send("POST", "", document))
    document["metadata"]["resourceVersion"] = known.json["metadata"]["resourceVersion"]
    return accepted(client.replace(document))


def programmed(document):
    """The generation that the condition is about; None where it is not there."""
    conditions = (document.get("status") or {}).get("conditions") or []
    return next((each["observedGeneration"] for each in conditions if each["type"] == "Programmed"), None)


def test_it_is_there_once_all_proxies_have_the_object_and_no_longer_after_a_change(plane, timeouts, web):
    assert programmed(written(timeouts, 3)) is None
    until(lambda: web.behind_since is not None)
    assert programmed(timeouts.get("t")) is None
    take(plane, web)
    until(lambda: programmed(timeouts.get("t")) == 1)
    condition = timeouts.get("t")["status"]["conditions"][0]
    assert (condition["status"], condition["lastTransitionTime"][:2]) == ("True", "20")
    for version in (KUMA, KOGUMA):
        items = timeouts.other(version=version).list().json["items"]
        assert {item["metadata"]["name"]: programmed(item) for item in items}["t"] == 1
    changed = written(timeouts, 4)
    assert programmed(changed) is None, "the new version has not arrived"
    until(lambda: web.behind_since is not None)
    assert programmed(timeouts.get("t")) is None
    take(plane, web)
    until(lambda: programmed(timeouts.get("t")) == 2)
    versions = [each["metadata"]["resourceVersion"] for each in (timeouts.get("t"), changed)]
    assert versions[0] == versions[1], "it is no write"
    assert "status" not in plane("GET", f"/meshes/default/meshtimeouts/t.{NAMESPACE}").json


def test_a_change_of_labels_alone_has_to_arrive_too(plane, timeouts, web):
    written(timeouts, 3)
    until(lambda: web.behind_since is not None)
    take(plane, web)
    until(lambda: programmed(timeouts.get("t")) == 1)
    assert programmed(written(timeouts, 3, labels={"kuma.io/effect": "shadow"})) is None
    until(lambda: web.behind_since is not None)
    assert programmed(timeouts.get("t")) is None, "its generation is the same, and proxies have the older one"
    take(plane, web)
    until(lambda: programmed(timeouts.get("t")) == 1)


def test_it_stays_whoever_connects_later(plane, timeouts, web):
    written(timeouts, 3)
    until(lambda: web.behind_since is not None)
    take(plane, web)
    until(lambda: programmed(timeouts.get("t")) == 1)
    late = connect(plane, dataplane("late", port=10081), name="late")
    assert late.behind_since is not None
    assert programmed(timeouts.get("t")) == 1


def test_without_proxies_nothing_is_programmed(timeouts):
    written(timeouts, 3)
    assert "status" not in timeouts.get("t")


@pytest.mark.parametrize("has_initial_events", [False, True])
def test_a_watch_tells_of_it(plane, timeouts, web, has_initial_events):
    document = written(timeouts, 3)
    until(lambda: web.behind_since is not None)
    query = {"fieldSelector": "metadata.name=t", "timeoutSeconds": 20}
    if has_initial_events:
        query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        query |= {"allowWatchBookmarks": "true"}
    else:
        query |= {"resourceVersion": document["metadata"]["resourceVersion"]}
    with timeouts.watch(**query) as watch:
        if has_initial_events:
            assert [programmed(event["object"]) for event in watch.until("BOOKMARK")] == [None]
        take(plane, web)
        event = watch.next()
        assert (event["type"], programmed(event["object"])) == ("MODIFIED", 1)
        written(timeouts, 4)
        event = watch.next()
        assert (event["type"], programmed(event["object"])) == ("MODIFIED", None)
        until(lambda: web.behind_since is not None)
        take(plane, web)
        assert programmed(watch.next()["object"]) == 2


def test_what_came_between_a_list_and_its_watch_is_told(plane, timeouts, web):
    document = written(timeouts, 3)
    until(lambda: web.behind_since is not None)
    take(plane, web)
    until(lambda: programmed(timeouts.get("t")) == 1)
    with timeouts.watch(resourceVersion=document["metadata"]["resourceVersion"]) as watch:
        names = [(event := watch.next())["object"]["metadata"]["name"]]
        while names[-1] != "t":
            names.append((event := watch.next())["object"]["metadata"]["name"])
        assert programmed(event["object"]) == 1


def test_what_was_read_can_be_written_and_changes_nothing(plane, timeouts, web):
    patches = timeouts.other(kind="MeshProxyPatch")
    modification = {"cluster": {"operation": "Patch", "value": "connect_timeout: 7s"}}
    spec = {"default": {"appendModifications": [modification]}}
    document = patches.document("p", metadata={"labels": {"kuma.io/mesh": "default"}}, spec=spec)
    accepted(patches.send("POST", "", document))
    written(timeouts, 3)
    for client, name in ((timeouts, "t"), (patches, "p")):

        def shown(client=client, name=name):
            take(plane, web)
            return programmed(client.get(name))

        until(shown)
        read = client.get(name)
        answer = client.replace(copy.deepcopy(read), query={"fieldValidation": "Strict"})
        assert accepted(answer)["metadata"]["resourceVersion"] == read["metadata"]["resourceVersion"]
        dry = accepted(client.replace(read, query={"dryRun": "All"}))
        assert dry["status"] == read["status"]
        changed = {
            **read,
            "metadata": {**read["metadata"], "labels": {**read["metadata"]["labels"], "a": "b"}},
        }
        dry = accepted(client.replace(changed, query={"dryRun": "All"}))
        assert dry["status"] == read["status"], "else a diff would show it"
    assert accepted(timeouts.list(accept=TABLE))["kind"] == "Table"
