"""Commands of kubectl whose library asks for protobuf first: what the real Go client makes of our answers."""

import json

import pytest

from tests.kubectl.documents import config_map

pytestmark = pytest.mark.slow

PROTOBUF_CLIENTS = 32  # older ones ask for JSON
EVENTS = 26  # has the command `events`
TYPE = "application/vnd.kubernetes.protobuf"


def event(kube, name, message):
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name},
        "involvedObject": {"kind": "ConfigMap", "name": "a", "namespace": kube.namespace},
        "reason": "Tested",
        "message": message,
        "type": "Normal",
        "firstTimestamp": "2026-01-01T12:00:00Z",
        "lastTimestamp": "2026-01-01T12:00:00Z",
        "count": 3,
    }


def test_what_is_created_and_described_is_what_was_meant(kube):
    created = kube("create", "secret", "generic", "key", "--from-literal=password=hunter2", "-o", "json")
    assert json.loads(created)["data"] == {"password": "aHVudGVyMg=="}
    assert "password:  7 bytes" in kube("describe", "secret", "key")
    kube.applied(config_map("a", {"team": "web"}, colour="red"))
    described = kube.run("describe", "cm", "a", "-v=8")
    assert "team=web" in described.out
    assert "colour:" in described.out
    assert (f"Content-Type: {TYPE}" in described.err) is (kube.minor >= PROTOBUF_CLIENTS)
    kube("create", "role", "reader", "--verb=get,list", "--resource=configmaps")
    assert "configmaps" in kube("describe", "role", "reader")
    kube("create", "rolebinding", "reads", "--role=reader", "--user=sam")
    assert "sam" in kube("describe", "rolebinding", "reads")
    assert "Active" in kube("describe", "ns", kube.namespace)
    assert kube("auth", "can-i", "list", "configmaps") == "yes"
    assert "[*]" in kube("auth", "can-i", "--list")


def test_events_are_listed_and_watched(kube):
    words = ("events",) if kube.minor >= EVENTS else ("get", "events")
    kube("create", "-f", "-", stdin=json.dumps(event(kube, "first", "it happened")))
    assert "it happened" in kube(*words)
    with kube.runs(*words, "-w", "-v=8") as watch:
        watch.wait_for_output("it happened")
        kube("create", "-f", "-", stdin=json.dumps(event(kube, "second", "once more")))
        watch.wait_for_output("once more")
        asks_for_it = kube.minor >= PROTOBUF_CLIENTS
        assert (f"Content-Type: {TYPE};stream=watch" in watch.output) is asks_for_it
