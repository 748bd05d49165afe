"""Keys that stand in an object itself are seen by who may read Secrets, and survive what others write."""

import base64
import copy
import json

import msgspec
import pytest
from msgspec import inspect as shape

from koguma.application.inline_secrets import LAST_APPLIED
from koguma.kinds import KINDS
from koguma.model import typed_parts
from koguma.model.kind import Kinds
from tests.control_plane import LocalControlPlane
from tests.kube_client import bind_role
from tests.secret_values import with_secrets

KEY = "-----BEGIN PRIVATE KEY-----\nVeryPrivateText\n-----END PRIVATE KEY-----\n"
OTHER_KEY = KEY.replace("VeryPrivateText", "OtherPrivateText")
ENCODED = base64.b64encode(KEY.encode()).decode()
PLAIN = "/meshes/default/meshexternalservices/bank"
KUMA = "/apis/kuma.io/v1alpha1/namespaces/mesh-default/meshexternalservices"
CLEAN = "/apis/koguma.io/v1/namespaces/mesh-default/meshexternalservices"
AS_EDITOR = {"Impersonate_User": "editor"}
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"

SOURCES = {
    "text": {"inlineString": KEY},
    "bytes": {"inline": ENCODED},
    "newer": {"type": "InsecureInline", "insecureInline": {"value": KEY}},
}


def bank(source, name="bank"):
    tls = {"enabled": True, "verification": {"clientCert": {"secret": "cert"}, "clientKey": source}}
    spec = {
        "match": {"type": "HostnameGenerator", "port": 443, "protocol": "tcp"},
        "endpoints": [{"address": "bank.example.com", "port": 443}],
        "tls": tls,
    }
    return {"type": "MeshExternalService", "mesh": "default", "name": name, "spec": spec}


def in_kubernetes_form(document):
    applied = {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": "MeshExternalService",
        "metadata": {"name": document["name"], "namespace": "mesh-default"},
        "spec": document["spec"],
    }
    metadata = {**applied["metadata"], "annotations": {LAST_APPLIED: json.dumps(applied) + "\n"}}
    return {**applied, "metadata": metadata}


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("inline")) as plane:
        for user, role in (("viewer", "view"), ("editor", "edit"), ("keeper", "admin")):
            bind_role(plane, user, role)
        data = base64.b64encode(b"a certificate").decode()
        secret = {"type": "Secret", "mesh": "default", "name": "cert", "data": data}
        assert plane("PUT", "/meshes/default/secrets/cert", secret).status == 201
        yield plane


@pytest.fixture(params=SOURCES)
def stored(plane, request):
    """One service with a key in one of the spellings, as kubectl applies it."""
    plane("DELETE", PLAIN)
    answer = plane("POST", KUMA, in_kubernetes_form(bank(SOURCES[request.param])))
    assert answer.status == 201, answer.body
    return plane


def key_of(plane, **headers):
    tls = plane("GET", PLAIN, **headers).json["spec"]["tls"]
    return tls.get("clientKey") or tls["verification"]["clientKey"]  # koguma.io/v1 writes it beside


def is_told(body):
    """Whether an answer gives the key away, in any of its spellings."""
    return b"VeryPrivateText" in body or ENCODED.encode() in body


def test_who_may_not_read_secrets_sees_no_key_at_any_door(stored):
    kri = "/_kri/" + stored("GET", PLAIN).json["kri"]
    table = {"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}
    paths = (PLAIN, f"{PLAIN}?format=kubernetes", "/meshes/default/meshexternalservices", kri)
    paths += ("/meshexternalservices", "/meshexternalservices?format=kubernetes")
    paths += (f"{KUMA}/bank", KUMA, f"{CLEAN}/bank", CLEAN)
    for path in paths:
        for user in ("viewer", "editor"):
            answer = stored("GET", path, Impersonate_User=user)
            assert answer.status == 200, (path, answer.body)
            assert b"bank.example.com" in answer.body, path
            assert not is_told(answer.body), (path, user)
        assert is_told(stored("GET", path, Impersonate_User="keeper").body), path
    answer = stored("GET", f"{KUMA}?includeObject=Object", **table, **AS_EDITOR)
    assert b"bank.example.com" in answer.body
    assert not is_told(answer.body)


@pytest.mark.parametrize("path", ["/meshes/default/meshexternalservices", KUMA, CLEAN])
def test_watches_of_one_change_show_the_key_only_to_who_may_read_it(stored, path):
    headers = [{"Impersonate-User": user} for user in ("keeper", "editor", "keeper")]
    at = stored("GET", KUMA).json["metadata"]["resourceVersion"]
    query = "watch=true" if path.startswith("/meshes") else f"watch=true&resourceVersion={at}"
    streams = [stored.watch(f"{path}?{query}", **each) for each in headers]
    body = [{"op": "add", "path": "/metadata/annotations/note", "value": "b"}]
    assert stored("PATCH", f"{KUMA}/bank", body, Content_Type=JSON_PATCH).status == 200
    told = []
    for stream in streams:
        with stream:
            lines = [stream.next()]
            while lines[-1]["type"] != "MODIFIED":
                lines.append(stream.next())
            told.append(is_told(json.dumps(lines).encode()))
    assert told == [True, False, True]


def test_what_is_read_can_be_written_back(stored):
    before = key_of(stored)
    for path in (PLAIN, f"{PLAIN}?format=kubernetes", f"{KUMA}/bank", f"{CLEAN}/bank"):
        document = stored("GET", path, **AS_EDITOR).json
        document.get("metadata", {}).pop("resourceVersion", None)  # its status is written meanwhile
        answer = stored("PUT", path.partition("?")[0], document, **AS_EDITOR)
        assert answer.status == 200, (path, answer.body)
        assert not is_told(answer.body), path
        assert key_of(stored) == before, path
    annotations = stored("GET", f"{KUMA}/bank").json["metadata"]["annotations"]
    assert is_told(annotations[LAST_APPLIED].encode()), "what kubectl keeps is whole again too"


def test_another_field_can_be_changed_by_every_kind_of_patch(stored):
    before = key_of(stored)
    merge = {"spec": {"endpoints": [{"address": "other.example.com", "port": 443}]}}
    replace = [{"op": "replace", "path": "/spec/endpoints/0/port", "value": 444}]
    for path in (PLAIN, f"{KUMA}/bank", f"{CLEAN}/bank"):
        for media, body in ((MERGE, merge), (JSON_PATCH, replace)):
            answer = stored("PATCH", path, body, Content_Type=media, **AS_EDITOR)
            assert answer.status == 200, (path, answer.body)
            assert not is_told(answer.body), path
            assert stored("GET", f"{KUMA}/bank").json["spec"]["endpoints"] != []
    seen = stored("GET", f"{KUMA}/bank", **AS_EDITOR).json
    applied = {name: seen[name] for name in ("apiVersion", "kind", "spec")}
    applied["metadata"] = {"name": "bank", "namespace": "mesh-default"}
    apply = {"Content_Type": "application/apply-patch+yaml", **AS_EDITOR}
    answer = stored("PATCH", f"{KUMA}/bank?fieldManager=editor", applied, **apply)
    assert answer.status == 200, answer.body
    assert not is_told(answer.body)
    assert stored("POST", "/_apply", [stored("GET", PLAIN, **AS_EDITOR).json], **AS_EDITOR).status == 200
    assert is_told(json.dumps(key_of(stored)).encode())
    assert set(key_of(stored)) == set(before)


def test_a_patch_copies_a_placeholder_and_no_key(stored):
    leaf = stored("GET", PLAIN, **AS_EDITOR).json["spec"]["tls"]["verification"]["clientKey"]
    at = "/spec/tls/verification/clientKey/" + (
        "insecureInline/value" if "insecureInline" in leaf else next(iter(leaf))
    )
    for path, to in ((PLAIN, "/labels/a"), (f"{KUMA}/bank", "/metadata/annotations/a")):
        body = [{"op": "copy", "from": at, "path": to}]
        stored("PATCH", path, body, Content_Type=JSON_PATCH, **AS_EDITOR)
        for form in (PLAIN, f"{KUMA}/bank"):
            assert not is_told(stored("GET", form, **AS_EDITOR).body)
    key = key_of(stored)
    assert stored("GET", f"{KUMA}/bank").json["metadata"]["annotations"]["a"].encode() not in (
        KEY.encode(),
        ENCODED.encode(),
    )
    assert is_told(json.dumps(key).encode()), "the key itself is still there"


def test_a_placeholder_that_stands_for_nothing_here_is_refused_with_its_field(stored):
    seen = stored("GET", PLAIN, **AS_EDITOR).json
    for user in ("editor", "keeper"):
        copied = {**seen, "name": "copy"}
        del copied["kri"]
        copied["labels"] = {}
        answer = stored("PUT", PLAIN.replace("bank", "copy"), copied, Impersonate_User=user)
        if user == "editor":  # she may not refer to the Secret with the certificate
            assert answer.status in (400, 403)
            continue
        assert answer.status == 400
        ((field, reason),) = answer.fields
        assert field.startswith("spec.tls.verification.clientKey.")
        assert "write the text itself, or refer to a Secret" in reason
    moved = copy.deepcopy(seen)
    verification = moved["spec"]["tls"]["verification"]
    verification["caCert"] = verification["clientKey"]
    answer = stored("PUT", PLAIN, moved, **AS_EDITOR)
    assert answer.status == 400, "a key does not become what everybody gets"
    assert answer.fields[0][0].startswith("spec.tls.verification.caCert.")


def test_entries_of_a_list_may_change_places(plane):
    def listener(port, key):
        tls = {"mode": "TERMINATE", "certificates": [{"inlineString": key}]}
        return {"port": port, "protocol": "HTTPS", "hostname": "a.com", "tls": tls}

    gateway = {
        "type": "MeshGateway",
        "mesh": "default",
        "name": "edge",
        "selectors": [{"match": {"kuma.io/service": "edge"}}],
        "conf": {"listeners": [listener(443, KEY), listener(444, OTHER_KEY)]},
    }
    path = "/meshes/default/meshgateways/edge"
    answer = plane("PUT", path, gateway)
    assert answer.status == 201, answer.body
    seen = plane("GET", path, **AS_EDITOR)
    assert b"PrivateText" not in seen.body
    changed = seen.json
    changed["conf"]["listeners"].reverse()
    changed["conf"]["listeners"][0]["hostname"] = "b.com"
    assert plane("PUT", path, changed, **AS_EDITOR).status == 200
    stored = plane("GET", path).json["conf"]["listeners"]
    texts = {each["port"]: each["tls"]["certificates"][0]["inlineString"] for each in stored}
    assert texts == {443: KEY, 444: OTHER_KEY}


def test_a_key_of_a_mesh_is_hidden_and_survives(plane):
    conf = {"cert": {"inlineString": "a certificate"}, "key": {"inlineString": KEY}}
    backends = [{"name": "ca", "type": "provided", "conf": conf}]
    mesh = {"type": "Mesh", "name": "own", "mtls": {"backends": backends, "skipValidation": True}}
    answer = plane("PUT", "/meshes/own", mesh)
    assert answer.status == 201, answer.body
    for path in ("/meshes/own", "/meshes", "/apis/kuma.io/v1alpha1/meshes/own"):
        seen = plane("GET", path, **AS_EDITOR)
        assert b"provided" in seen.body, seen.body
        assert not is_told(seen.body), path
    for path in ("/meshes/own", "/apis/kuma.io/v1alpha1/meshes/own"):
        answer = plane("PUT", path, plane("GET", path, Impersonate_User="viewer").json)
        assert answer.status == 200, answer.body
        assert plane("GET", "/meshes/own").json["mtls"]["backends"][0]["conf"]["key"] == conf["key"]


def test_the_placeholder_of_bytes_is_base64_as_typed_clients_need_it(plane):
    plane("DELETE", PLAIN)
    assert plane("PUT", PLAIN, bank(SOURCES["bytes"])).status == 201
    shown = base64.b64decode(key_of(plane, **AS_EDITOR)["inline"], validate=True)
    assert shown.startswith(b"*****(")


def test_every_secret_text_of_every_kind_has_a_path():
    """What replaces secret texts sees each of them, wherever a schema has one."""
    counted = {}
    for kind in Kinds(KINDS):
        if kind.admin_only or not typed_parts.holds(kind.spec, frozenset({"sensitive"})):
            continue
        paths = []
        sample = with_secrets(shape.type_info(kind.spec), KEY)
        changed = typed_parts.secrets_replaced(
            kind.spec, sample, lambda part, at=paths: at.append(part.path) or "x"
        )
        assert KEY not in msgspec.json.encode(changed).decode()
        counted[kind.name] = len(paths)
    assert counted.keys() == {"Mesh", "MeshExternalService", "MeshGateway", "MeshIdentity"}
    assert all(counted.values())
