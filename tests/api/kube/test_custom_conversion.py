"""Custom objects whose versions a webhook converts: a real HTTPS server, called only where it is allowed."""

import base64
import json
from pathlib import Path

import pytest

from tests.control_plane import LocalControlPlane
from tests.custom_resources import defined, definitions_of, version
from tests.https_server import HttpsServer, Reply
from tests.kube_client import TABLE, accepted, failure

OLD = {
    "type": "object",
    "properties": {"spec": {"type": "object", "properties": {"hostPort": {"type": "string"}}}},
}
NEW = {
    "type": "object",
    "properties": {
        "spec": {"type": "object", "properties": {"host": {"type": "string"}, "port": {"type": "string"}}},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    },
}


def converted(document, to):
    """`hostPort: a:1` in v1, `host: a, port: 1` in v2."""
    spec = document.get("spec") or {}
    if to.endswith("/v2") and "hostPort" in spec:
        host, _, port = spec["hostPort"].partition(":")
        spec = {"host": host, "port": port}
    elif to.endswith("/v1") and "host" in spec:
        spec = {"hostPort": f"{spec['host']}:{spec['port']}"}
    labels = {**(document["metadata"].get("labels") or {}), "converted": "yes"}
    return {
        **document,
        "apiVersion": to,
        "spec": spec,
        "metadata": {**document["metadata"], "labels": labels},
    }


def convert(asked):
    request = asked.json["request"]
    objects = [converted(each, request["desiredAPIVersion"]) for each in request["objects"]]
    return answer(request, convertedObjects=objects)


def answer(request, status="Success", **fields):
    response = {"uid": request["uid"], "result": {"status": status}, **fields}
    body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response}
    return Reply(json.dumps(body).encode())


@pytest.fixture(scope="module")
def webhook(tmp_path_factory):
    with HttpsServer(tmp_path_factory.mktemp("webhook")) as server:
        yield server


@pytest.fixture(autouse=True)
def _converts(webhook):
    webhook.reply = convert
    webhook.requests.clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("converting")


def started(folder: Path, webhook: HttpsServer) -> LocalControlPlane:
    store = f"sqlite:///{folder / 'koguma.db'}"
    return LocalControlPlane(folder, store=store, outgoing_hosts=[f"127.0.0.1:{webhook.port}"])


@pytest.fixture(scope="module")
def plane(folder, webhook):
    with started(folder, webhook) as plane:
        yield plane


def conversion(server, **client):
    config = {"url": f"{server.url}/convert", "caBundle": base64.b64encode(server.ca).decode(), **client}
    return {"strategy": "Webhook", "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]}}


def both(*, storage="v1"):
    return (
        version("v1", storage=storage == "v1", schema=OLD),
        version("v2", storage=storage == "v2", schema=NEW, selectableFields=[{"jsonPath": ".spec.host"}]),
    )


@pytest.fixture
def older(plane, webhook):
    return defined(plane, *both(), conversion=conversion(webhook))


@pytest.fixture
def newer(older):
    return older.other(older.version.replace("/v1", "/v2"))


def test_each_version_shows_what_the_webhook_makes_of_an_object(older, newer, webhook):
    accepted(older.create("a", spec={"hostPort": "example.com:80"}))
    assert webhook.requests == [], "the version of storage needs no conversion"
    shown = newer.get("a")
    assert (shown["apiVersion"], shown["spec"]) == (newer.version, {"host": "example.com", "port": "80"})
    assert shown["metadata"]["labels"] == {"converted": "yes"}
    review = webhook.requests[0]
    assert (review.path, review.json["kind"]) == ("/convert", "ConversionReview")
    sent = review.json["request"]["objects"][0]
    assert (sent["apiVersion"], sent["spec"]) == (older.version, {"hostPort": "example.com:80"})
    assert "resourceVersion" not in sent["metadata"]
    newer.get("a")
    assert newer.list().json["items"][0]["spec"]["host"] == "example.com"
    assert len(webhook.requests) == 1, "what was converted is kept"


def test_writes_are_converted_to_the_version_of_storage(older, newer):
    made = accepted(newer.create("a", spec={"host": "h", "port": "1"}))
    assert made["spec"] == {"host": "h", "port": "1"}
    assert older.get("a")["spec"] == {"hostPort": "h:1"}
    patched = accepted(newer.patch("a", {"spec": {"port": "2"}}))
    assert patched["spec"] == {"host": "h", "port": "2"}
    assert older.get("a")["spec"] == {"hostPort": "h:2"}
    applied = accepted(newer.apply("a", "one", force=True, spec={"host": "g", "port": "2"}))
    assert applied["spec"]["host"] == "g"
    assert accepted(newer.replace(newer.get("a")))["metadata"] == newer.get("a")["metadata"], (
        "nothing changed"
    )
    tried = accepted(newer.patch("a", {"spec": {"port": "3"}}, query={"dryRun": "All"}))
    assert tried["spec"]["port"] == "3"
    assert older.get("a")["spec"] == {"hostPort": "g:2"}
    assert newer.create("b", spec={"host": 5}).status == 422


def test_lists_tables_selectors_and_watches_are_converted(older, newer):
    for name in ("a", "b"):
        accepted(older.create(name, spec={"hostPort": f"{name}:80"}))
    assert [row["cells"][0] for row in newer.list(TABLE).json["rows"]] == ["a", "b"]
    found = newer.list(fieldSelector="spec.host=b").json["items"]
    assert [item["spec"]["host"] for item in found] == ["b"]
    with newer.watch() as events:
        assert {events.next()["object"]["spec"]["host"] for _ in "ab"} == {"a", "b"}
        accepted(older.patch("a", {"spec": {"hostPort": "c:1"}}))
        assert events.next()["object"]["spec"] == {"host": "c", "port": "1"}
        assert newer.delete("a").status == 200
        assert events.next()["type"] == "DELETED"


def test_another_storage_version_takes_effect_with_the_next_write(older, newer, plane):
    accepted(older.create("a", spec={"hostPort": "h:1"}))
    name = f"widgets.{older.version.partition('/')[0]}"
    changed = definitions_of(plane).patch(name, {"spec": {"versions": list(both(storage="v2"))}})
    assert accepted(changed)["status"]["storedVersions"] == ["v1", "v2"]
    assert newer.get("a")["spec"] == {"host": "h", "port": "1"}
    before = older.get("a")["metadata"]
    rewritten = accepted(older.replace(older.get("a")))["metadata"]
    assert int(rewritten["resourceVersion"]) > int(before["resourceVersion"])
    assert accepted(older.replace(older.get("a")))["metadata"] == rewritten, "it is rewritten once"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (lambda asked: answer(asked.json["request"], "Failed"), "it says no reason"),
        (lambda asked: answer(asked.json["request"], convertedObjects=[]), "has another number"),
        (lambda _asked: answer({"uid": "other"}), "for another request"),
        (
            lambda asked: answer(asked.json["request"], convertedObjects=asked.json["request"]["objects"]),
            "not converted to",
        ),
        (lambda _asked: Reply(b"nonsense"), "JSON is malformed"),
        (lambda _asked: Reply(status=500), "answers with status 500"),
    ],
)
def test_a_webhook_that_does_not_convert_is_named(older, newer, webhook, reply, why):
    accepted(older.create("a", spec={"hostPort": "h:1"}))
    webhook.reply = reply
    for response in (newer.send("GET", "a"), newer.send("GET", ""), newer.create("b", spec={"host": "x"})):
        assert failure(response) == (500, "InternalError")
        assert "conversion webhook for" in response.json["message"]
        assert why in response.json["message"]
    assert older.get("a")["spec"] == {"hostPort": "h:1"}, "the version of storage needs nobody"
    assert older.send("DELETE", "a").status == 200


def test_a_webhook_may_not_change_who_an_object_is(older, newer, webhook):
    accepted(older.create("a", spec={"hostPort": "h:1"}))

    def renamed(asked):
        request = asked.json["request"]
        objects = [converted(each, request["desiredAPIVersion"]) for each in request["objects"]]
        objects[0]["metadata"]["name"] = "other"
        return answer(request, convertedObjects=objects)

    webhook.reply = renamed
    assert "metadata.name of a was changed" in newer.send("GET", "a").json["message"]


def test_no_object_is_stored_whose_definition_went_in_the_meantime(older, newer, webhook, plane):
    name = f"widgets.{older.version.partition('/')[0]}"

    def too_late(asked):
        assert definitions_of(plane).delete(name).json["status"] == "Success"
        return convert(asked)

    webhook.reply = too_late
    response = newer.create("a", spec={"host": "h", "port": "1"})
    assert failure(response) == (404, "NotFound")
    assert "was deleted in the meantime" in response.json["message"]
    assert [key for key in plane.plane.store.state.stored_keys() if key.kind == name] == []


def test_only_hosts_that_the_operator_allowed_and_that_prove_themselves_are_called(plane, webhook, tmp_path):
    elsewhere = {"url": "https://127.0.0.2:4/convert"}
    for client, why in ((elsewhere, "may not call"), ({"caBundle": None}, "certificate")):
        older = defined(plane, *both(), conversion=conversion(webhook, **client))
        accepted(older.create("a", spec={"hostPort": "h:1"}))
        message = older.other(older.version.replace("/v1", "/v2")).send("GET", "a").json["message"]
        assert why in message
    assert webhook.requests == []


def test_after_a_restart_objects_are_converted_again(folder, webhook, tmp_path):
    with started(tmp_path, webhook) as first:
        older = defined(first, *both(), conversion=conversion(webhook), group="again.example.com")
        accepted(older.create("a", spec={"hostPort": "h:1"}))
    with started(tmp_path, webhook) as second:
        newer = older.other("again.example.com/v2")
        newer.plane = second
        assert newer.get("a")["spec"] == {"host": "h", "port": "1"}


def test_a_webhook_that_fails_holds_up_the_migration_of_its_own_objects_only(older, newer, webhook):
    for name in ("a", "b"):
        accepted(older.create(name, spec={"hostPort": f"{name}:80"}))
    others = defined(older.plane, version("v1"), version("v2", storage=False))
    accepted(others.create("c", spec={"size": 1}))
    definitions = definitions_of(older.plane)
    name, other = (f"{each.kind.lower()}s.{each.version.partition('/')[0]}" for each in (older, others))
    accepted(definitions.patch(name, {"spec": {"versions": list(both(storage="v2"))}}))
    flipped = [version("v1", storage=False), version("v2")]
    accepted(definitions.patch(other, {"spec": {"versions": flipped}}))
    webhook.requests.clear()
    webhook.reply = lambda _asked: Reply(b"", 500)
    answer = older.plane("POST", "/_migrations/storage").json
    assert name in answer["failed"]
    assert "conversion webhook" in answer["failed"][name]
    assert len(webhook.requests) == 1, "the other objects are not asked about"
    assert definitions.get(other)["status"]["storedVersions"] == ["v2"]
    assert definitions.get(name)["status"]["storedVersions"] == ["v1", "v2"]
    webhook.reply = convert
    assert older.plane("POST", "/_migrations/storage").json["failed"] == {}
    assert definitions.get(name)["status"]["storedVersions"] == ["v2"]
