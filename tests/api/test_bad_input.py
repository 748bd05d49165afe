"""Bad input of every sort: a clear refusal with the place, and a server that goes on."""

import socket

import pytest

from tests.build import timeout

URL = "/meshes/default/meshtimeouts/bad"


def refused(plane, body, status=400, path=URL, method="PUT", **headers):
    answer = plane(method, path, body, **headers)
    assert answer.status == status, answer.body
    assert plane("GET", "/ready").status == 200
    assert plane("GET", URL).status == 404
    return answer.json


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"type": "MeshTimeout",', "line 1, column 24"),
        (b'{"type":\n "a", "type": "b"}', "line 2, column 7"),
        (b'{"a": "\xff"}', "line 1, column 8"),
        (b"[" * 200_000, "line 1, column 1"),
        (b'{"a":' * 100_000, "line 1, column 1"),
        (b"", "line 1, column 1"),
        (b'{"a": 1e400}', "line 1, column 1"),
        (b'{"a": "\\ud800"}', "line 1, column 1"),
    ],
)
def test_text_that_cannot_be_read(plane, body, place):
    answer = refused(plane, body)
    assert answer["title"] == "Bad Request"
    assert answer["detail"].startswith('invalid MeshTimeout object: "')
    assert answer["invalid_parameters"][0]["field"] == place


def test_a_tab_in_yaml_is_named_with_its_place(plane):
    answer = refused(plane, b"type: MeshTimeout\nspec:\n\tto: []\n", Content_Type="application/yaml")
    words = "a tab stands here, and YAML forbids tabs for indentation: use spaces"
    assert answer["invalid_parameters"] == [{"field": "line 3, column 1", "reason": words, "rule": "syntax"}]


def test_broken_yaml(plane):
    answer = refused(plane, b"type: [\n", Content_Type="application/yaml")
    assert answer["invalid_parameters"][0]["field"] == "line 2, column 1"


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ([], None),
        ("text", None),
        (5, None),
        (None, None),
        ({**timeout("bad"), "spec": []}, "spec"),
        ({**timeout("bad"), "spec": "x"}, "spec"),
        ({**timeout("bad"), "labels": []}, "labels"),
        ({**timeout("bad"), "labels": {"a": 1}}, 'labels["a"]'),
        ({**timeout("bad"), "name": 5}, "name"),
        ({**timeout("bad"), "mesh": {}}, "mesh"),
        ({**timeout("bad"), "type": ["MeshTimeout"]}, "type"),
        (timeout("bad", "other"), "mesh"),
        (timeout("bad", spec={"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": 5}}]}),
         "spec.to[0].default.idleTimeout"),
        (timeout("bad", spec={"to": {"a": 1}}), "spec.to"),
        (timeout("bad", spec={"to": [None]}), "spec.to[0]"),
    ],
)  # fmt: skip
def test_values_of_the_wrong_shape(plane, document, field):
    body = document if document is not None else b"null"
    answer = refused(plane, body)
    if field is not None:
        assert answer["invalid_parameters"][0]["field"] == field


def test_a_body_of_fifty_megabytes_is_refused_before_it_is_read(plane):
    answer = refused(plane, b"x" * 50_000_000, 413)
    assert answer["detail"] == "the body is larger than 4194304 bytes"


def test_a_body_without_a_declared_length_is_limited_too(plane):
    with socket.create_connection(("127.0.0.1", plane.port), timeout=20) as raw:
        head = f"PUT {URL} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        raw.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        answer = b""
        try:
            for _ in range(20):
                raw.sendall(chunk)
            raw.sendall(b"0\r\n\r\n")
            answer = raw.recv(100)
        except (ConnectionError, TimeoutError):
            answer = b"HTTP/1.1 413"  # the server hung up while we were still talking
        assert answer.startswith(b"HTTP/1.1 413")
    assert plane("GET", "/ready").status == 200


def test_an_unknown_kind_gets_the_nearest_one(plane):
    answer = refused(plane, [{"type": "MeshTimeot", "name": "a"}], path="/_apply", method="POST")
    parameter = answer["invalid_parameters"][0]
    assert parameter["field"] == "objects[0].type"
    assert parameter["reason"] == 'unknown kind "MeshTimeot"; did you mean "MeshTimeout"?'


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    ],
)
def test_requests_that_are_no_http(plane, line):
    with socket.create_connection(("127.0.0.1", plane.port), timeout=20) as raw:
        raw.sendall(line)
        assert raw.recv(20).startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
    assert plane("GET", "/ready").status == 200


@pytest.mark.parametrize("name", ["UPPER", "a_b", "a" * 254, "%2e%2e", "a%00b", "é"])
def test_names_that_are_none(plane, name):
    path = f"/meshes/default/meshtimeouts/{name.replace('é', '%C3%A9')}"
    answer = plane("PUT", path, timeout(name.replace("%2e", ".").replace("%00", "\0")))
    assert answer.status == 400
    assert answer.fields[0][0] == "name"


def test_copies_of_copies_in_a_json_patch_are_limited(plane):
    plane("PUT", "/meshes/default/meshtimeouts/copied", timeout("copied"))
    doubling = [{"op": "copy", "from": "/labels", "path": f"/labels/{number}"} for number in range(30)]
    path = "/meshes/default/meshtimeouts/copied"
    answer = plane("PATCH", path, doubling, Content_Type="application/json-patch+json")
    assert answer.status == 413
    assert "the copies of a JSON patch add at most" in answer.json["detail"]
    assert plane("DELETE", path).status == 200
