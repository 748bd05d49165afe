"""An object that is stored and cannot be read, or is of no known shape: it breaks no list and no watch."""

import json
import re
import sqlite3

import pytest

from tests.control_plane import LocalControlPlane
from tests.kube_client import (
    CORE,
    KOGUMA,
    KUMA,
    PARTIAL,
    TABLE,
    KubeClient,
    config_maps_in,
    failure_with_causes,
    names,
)

ODD = (None, 5, "text", [], {}, {"to": 5}, {"to": [5]}, {"to": [{"default": "x", "targetRef": []}]})
TIMEOUT = {"apiVersion": "kuma.io/v1alpha1", "kind": "MeshTimeout"}
EVENT = {"apiVersion": "v1", "kind": "Event", "message": "it happened"}
SPEC = {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "5s"}}]}
ENDPOINTS = (
    (CORE, "ConfigMap"),
    (CORE, "Event"),
    ("events.k8s.io/v1", "Event"),
    (KUMA, "MeshTimeout"),
    (KOGUMA, "MeshTimeout"),
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane over a store that somebody else has written into."""
    folder = tmp_path_factory.mktemp("broken")
    store = f"sqlite:///{folder / 'koguma.db'}"
    with LocalControlPlane(folder, store=store) as sound:
        config_maps = config_maps_in(sound, "odd")
        events, timeouts = config_maps.other(CORE, "Event"), config_maps.other(KUMA, "MeshTimeout")
        for name in ("older", "sound", "torn", *(f"odd-{number}" for number in range(len(ODD)))):
            config_maps.put(name)
            events.write({**EVENT, "metadata": {"name": name}, "involvedObject": {"namespace": "odd"}})
            timeouts.write({**TIMEOUT, "metadata": {"name": name}, "spec": SPEC})
    with sqlite3.connect(folder / "koguma.db") as database:
        damage(database, "torn", lambda _: "{")
        damage(database, "older", lambda body: json.dumps({**body, "storedAs": "kuma.io/v0"}))
        for number, spec in enumerate(ODD):
            damage(database, f"odd-{number}", lambda body, spec=spec: json.dumps({**body, "spec": spec}))
    database.close()
    with LocalControlPlane(folder, store=store) as plane:
        yield plane


def damage(database, name, change):
    rows = database.execute("SELECT revision, body FROM changes WHERE name = ?", (name,)).fetchall()
    assert rows
    for revision, body in rows:
        changed = change(json.loads(body)).encode()
        database.execute("UPDATE changes SET body = ? WHERE revision = ?", (changed, revision))


@pytest.fixture(params=ENDPOINTS, ids=" ".join)
def listed(plane, request):
    """Each kind, through each API version that serves it."""
    return KubeClient(plane, "odd", *request.param)


READABLE = ["sound", *(f"odd-{number}" for number in range(len(ODD)))]


def test_all_others_are_listed_and_the_list_says_what_it_lacks(listed):
    answer = listed.list()
    assert answer.status == 200, answer.body
    assert sorted(names(answer.json)) == sorted(READABLE)
    assert re.search(r'(torn|older)\\".* is not in this list', answer.headers["Warning"])


@pytest.mark.parametrize("accept", [TABLE, PARTIAL])
def test_all_others_are_in_tables_and_lists_of_metadata(listed, accept):
    answer = listed.list(accept)
    assert answer.status == 200
    assert len(answer.json.get("rows") or answer.json.get("items")) == len(READABLE)


def test_selectors_pages_and_watches_pass_by(listed):
    assert names(listed.list(fieldSelector="metadata.name=sound").json) == ["sound"]
    assert names(listed.list(labelSelector="!nothing", limit=100).json) == sorted(READABLE)
    with listed.watch(sendInitialEvents="true", resourceVersionMatch="NotOlderThan") as watch:
        found = watch.until("BOOKMARK")
    assert {event["type"] for event in found} == {"ADDED"}
    assert sorted(event["object"]["metadata"]["name"] for event in found) == sorted(READABLE)


def test_what_cannot_be_read_says_why_and_what_to_do(listed):
    for name, why in (("torn", "cannot be read"), ("older", "kuma.io/v0")):
        answer = listed.plane("GET", f"{listed.path}/{name}")
        assert failure_with_causes(answer) == (500, "InternalError", [])
        assert why in answer.json["message"]
        assert "delete it, or write it again" in answer.json["message"]
