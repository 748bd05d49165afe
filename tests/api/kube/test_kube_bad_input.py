"""Whatever is sent, the Kubernetes form answers with a Status, never with a failure of its own."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kube_client import (
    APPLY,
    CORE,
    JSON_PATCH,
    MERGE,
    PROTOBUF,
    STRATEGIC,
    YAML,
    KubeClient,
    accepted,
    failure,
    timeout_spec,
)

WORDS = (
    "metadata",
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "spec",
    "data",
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(("", "a", "a b", "\0", "é", "9" * 30)),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(WORDS), below, max_size=3),
    max_leaves=8,
)
FIELDS = (
    ("metadata",),
    ("metadata", "name"),
    ("metadata", "generateName"),
    ("metadata", "namespace"),
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("metadata", "finalizers"),
    ("metadata", "ownerReferences"),
    ("metadata", "managedFields"),
    ("metadata", "resourceVersion"),
    ("metadata", "uid"),
    ("metadata", "generation"),
    ("metadata", "deletionTimestamp"),
    ("apiVersion",),
    ("kind",),
    ("mesh",),
    ("kri",),
    ("spec",),
    ("spec", "to"),
    ("spec", "finalizers"),
    ("data",),
    ("status",),
    ("rules",),
)
KINDS = (
    ("kuma.io/v1alpha1", "MeshTimeout", {"spec": timeout_spec()}),
    ("koguma.io/v1", "MeshTimeout", {"spec": timeout_spec()}),
    ("kuma.io/v1alpha1", "Dataplane", {"spec": {"networking": {}}}),
    (CORE, "ConfigMap", {"data": {"x": "y"}}),
    (CORE, "Event", {"involvedObject": {}}),
    ("rbac.authorization.k8s.io/v1", "Role", {"rules": []}),
)


@pytest.fixture
def config_maps(config_maps):
    accepted(config_maps.create("a"))
    return config_maps


def put(document, path, value):
    *outer, last = path
    inner = document
    for name in outer:
        inner = inner.setdefault(name, {})
    inner[last] = value
    return document


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(KINDS),
    st.sampled_from(FIELDS),
    values,
    st.sampled_from(("POST", "PUT", MERGE, APPLY, "status", "finalize")),
)
def test_any_value_in_any_field_is_taken_or_refused(plane, kind, field, value, way):
    version, word, fields = kind
    timeouts = KubeClient(plane, "bad-input", version, word)
    document = put(json.loads(json.dumps(timeouts.document("a", **fields))), field, value)
    match way:
        case "POST":
            answer = timeouts.send("POST", "", document, {"dryRun": "All"})
        case "PUT":
            answer = timeouts.send("PUT", "a", document, {"dryRun": "All"})
        case "status" | "finalize":
            space = plane("PUT", f"/api/v1/namespaces/default/{way}?dryRun=All", document)
            answer = space
        case media:
            query = {"dryRun": "All", **({"fieldManager": "one"} if media == APPLY else {})}
            answer = timeouts.patch("a", document, media, query)
    assert answer.status < 500, answer.body
    said = answer.json
    assert answer.status < 300 or (said["kind"], said["code"]) == ("Status", answer.status)


BODIES = (
    b"",
    b"{",
    b"[]",
    b"5",
    b"null",
    b'"x"',
    b"\xff\xfe",
    b'{"a": NaN',
    b"[" * 500,
    b"k8s\0",
    b"k8s\0\x0a\xff",
    b"a: &a [*a]",
)


@pytest.mark.parametrize("body", BODIES, ids=repr)
@pytest.mark.parametrize("media", ["application/json", YAML, PROTOBUF, MERGE, JSON_PATCH, STRATEGIC, APPLY])
def test_any_bytes_are_refused_politely(config_maps, body, media):
    is_patch = media in (MERGE, JSON_PATCH, STRATEGIC, APPLY)
    query = {"fieldManager": "one"} if media == APPLY else {}
    method, name = ("PATCH", "a") if is_patch else ("POST", "")
    answer = config_maps.send(method, name, body, query, Content_Type=media)
    if (media, body) == (JSON_PATCH, b"[]"):
        assert answer.status == 200
    else:
        assert failure(answer)[0] in (400, 415)


@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", MERGE, APPLY, "application/cbor"]
)
def test_an_object_of_an_unknown_encoding_is_refused(config_maps, media):
    answer = config_maps.send("POST", "", json.dumps(config_maps.document("b")).encode(), Content_Type=media)
    assert failure(answer) == (415, "UnsupportedMediaType")
    assert "application/json, application/yaml, application/vnd.kubernetes.protobuf" in answer.json["message"]


def test_a_body_that_is_too_large_is_refused_before_it_is_read(config_maps):
    for method, name, media in (("POST", "", "application/json"), ("PATCH", "a", MERGE), ("DELETE", "a", "")):
        answer = config_maps.send(method, name, b" " * (3 * 1024 * 1024 + 1), Content_Type=media)
        assert failure(answer) == (413, "RequestEntityTooLarge")


def test_methods_that_a_path_does_not_have_are_told(config_maps):
    assert failure(config_maps.send("POST", "a", {})) == (405, "MethodNotAllowed")
    assert failure(config_maps.send("PUT", "", {})) == (405, "MethodNotAllowed")
    assert failure(config_maps.send("PATCH", "", {})) == (405, "MethodNotAllowed")
    assert failure(config_maps.plane("POST", "/api/v1/configmaps", config_maps.document("b"))) == (
        405,
        "MethodNotAllowed",
    )
