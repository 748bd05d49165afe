"""Protobuf answers over HTTP: by the order of Accept, for kinds that have a message; else JSON or 406."""

import http.client

import pytest

from koguma.kube import protobuf
from koguma.kube.protobuf_tables import MESSAGES
from koguma.model.protobuf_wire import fields
from tests.kube_client import (
    META,
    PROTOBUF,
    TABLE,
    KubeClient,
    accepted,
    failure,
    protobuf_body,
    timeout_spec,
    wire,
)

BOTH = f"{PROTOBUF},application/json"


def parts(data):
    found = {}
    for field in fields(data):
        found.setdefault(field.number, []).append(data[field.start : field.end])
    return found


def opened(data, kind):
    """The message in an envelope of a kind."""
    assert data.startswith(protobuf.MAGIC)
    envelope = parts(data[len(protobuf.MAGIC) :])
    assert parts(envelope[1][0])[2] == [kind.encode()]
    return envelope[2][0]


def test_objects_are_written_in_what_is_accepted_first(config_maps):
    stored = config_maps.put("a", "text")
    answer = config_maps.send("GET", "a", Accept=BOTH)
    assert answer.headers["Content-Type"] == PROTOBUF
    assert protobuf.decode(answer.body) == stored
    for accept in (f"application/json,{PROTOBUF}", "*/*", "application/*"):
        assert config_maps.send("GET", "a", Accept=accept).headers["Content-Type"] == "application/json"
    table = config_maps.send("GET", "a", Accept=f"{PROTOBUF};as=Table;v=v1;{META},{TABLE}")
    assert table.json["kind"] == "Table"
    created = config_maps.send("POST", "", config_maps.document("b", data={"x": "y"}), Accept=BOTH)
    assert (created.status, protobuf.decode(created.body)["data"]) == (201, {"x": "y"})
    dry = config_maps.send(
        "POST", "", config_maps.document("c", data={"x": "y"}), {"dryRun": "All"}, Accept=BOTH
    )
    assert protobuf.decode(dry.body)["metadata"]["name"] == "c"


@pytest.mark.parametrize("number", [0, 3, 150])
def test_lists_are_written_with_all_of_their_items(config_maps, number):
    for index in range(number):
        config_maps.put(f"c-{index:03}", str(index))
    answer = config_maps.list(BOTH, limit=500)
    whole = parts(opened(answer.body, "ConfigMapList"))
    table = MESSAGES["v1", "ConfigMap"]
    items = [protobuf.message(item, table) for item in whole.get(2, ())]
    assert items == config_maps.list().json["items"]
    page = config_maps.list(BOTH, limit=2)
    if number > 2:
        meta = protobuf.message(
            parts(opened(page.body, "ConfigMapList"))[1][0], MESSAGES["v1", "Status"][1].type
        )
        assert meta["remainingItemCount"] == number - 2


def test_metadata_alone_is_written_for_every_kind(timeouts):
    stored = accepted(timeouts.create("a", spec=timeout_spec()))
    accept = f"{PROTOBUF};as=PartialObjectMetadata;v=v1;{META}"
    answer = timeouts.send("GET", "a", Accept=accept)
    message = opened(answer.body, "PartialObjectMetadata")
    decoded = protobuf.message(message, MESSAGES["meta.k8s.io/v1", "PartialObjectMetadata"])
    assert decoded["metadata"]["uid"] == stored["metadata"]["uid"]
    many = timeouts.list(f"{PROTOBUF};as=PartialObjectMetadataList;v=v1;{META}")
    message = opened(many.body, "PartialObjectMetadataList")
    decoded = protobuf.message(message, MESSAGES["meta.k8s.io/v1", "PartialObjectMetadataList"])
    assert [item["metadata"]["name"] for item in decoded["items"]] == ["a"]


def test_a_kind_without_a_message_is_answered_in_json_or_not_at_all(timeouts):
    accepted(timeouts.create("a", spec=timeout_spec()))
    assert timeouts.send("GET", "a", Accept=BOTH).headers["Content-Type"] == "application/json"
    refused = timeouts.send("GET", "a", Accept=PROTOBUF)
    assert failure(refused) == (406, "NotAcceptable")
    assert PROTOBUF not in refused.json["message"]
    with timeouts.watch(BOTH, timeoutSeconds=1) as watch:
        assert watch.next()["object"]["kind"] == "MeshTimeout"


def test_reviews_are_answered_in_protobuf(plane):
    message = wire((2, wire((2, wire((1, "/metrics"), (2, "get"))))))
    body = protobuf_body("authorization.k8s.io/v1", "SelfSubjectAccessReview", message)
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = plane("POST", path, body, Content_Type=PROTOBUF, Accept=BOTH)
    assert protobuf.decode(answer.body)["status"]["allowed"] is True


class Events:
    """The events of a watch in protobuf, as they come."""

    def __init__(self, objects: KubeClient, query: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", objects.plane.port, timeout=60)
        self._connection.request("GET", f"{objects.path}?watch=true&{query}", headers={"Accept": BOTH})
        self._response = self._connection.getresponse()
        self.content_type = self._response.headers["Content-Type"]

    def next(self):
        """The type and the bytes of the object of the next event."""
        event = parts(self._response.read(int.from_bytes(self._response.read(4), "big")))
        return event[1][0].decode(), parts(event[2][0])[1][0]

    def close(self) -> None:
        self._connection.close()


def test_watches_are_written_event_by_event(config_maps):
    stored = config_maps.put("a", "first")
    events = Events(config_maps, "timeoutSeconds=2&allowWatchBookmarks=true")
    assert events.content_type == f"{PROTOBUF};stream=watch"
    type_, encoded = events.next()
    assert (type_, protobuf.decode(encoded)) == ("ADDED", stored)
    changed = config_maps.put("a", "second")
    with config_maps.watch(resourceVersion=stored["metadata"]["resourceVersion"]) as in_json:
        assert in_json.next()["object"] == changed  # the bytes of one media are not those of the other
    type_, encoded = events.next()
    assert (type_, protobuf.decode(encoded)) == ("MODIFIED", changed)
    config_maps.delete("a")
    type_, encoded = events.next()
    assert (type_, protobuf.decode(encoded)["metadata"]["name"]) == ("DELETED", "a")
    type_, encoded = events.next()
    assert (type_, protobuf.decode(encoded)["kind"]) == ("BOOKMARK", "ConfigMap")
    events.close()


def test_objects_that_leave_a_selection_are_written_as_they_were(config_maps):
    config_maps.put("a", "first", team="web")
    events = Events(config_maps, "labelSelector=team%3Dweb&timeoutSeconds=5")
    assert events.next()[0] == "ADDED"
    config_maps.put("a", "second")
    type_, encoded = events.next()
    assert (type_, protobuf.decode(encoded)["data"]) == ("DELETED", {"text": "first"})
    events.close()
