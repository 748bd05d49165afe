"""Who makes an object refer to a Secret must be allowed to read it, in every form and for every kind."""

import json

import pytest

from koguma import kinds
from koguma.identity import authority
from koguma.identity.claims import DATAPLANE, USER, ZONE
from koguma.kinds import secret_references
from koguma.model import labels, reserved_secrets
from koguma.model.kind import Kinds
from tests import build
from tests.control_plane import LocalControlPlane
from tests.kube_client import bind_role

pytestmark = pytest.mark.slow

KINDS = Kinds(kinds.KINDS)
RBAC = "/apis/rbac.authorization.k8s.io/v1"
KUBE = "/apis/kuma.io/v1alpha1/namespaces/mesh-default"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
SERVER_SIDE = "application/apply-patch+yaml"
MATCH = {"type": "HostnameGenerator", "port": 443, "protocol": "http"}


@pytest.fixture
def plane(tmp_path):
    with LocalControlPlane(tmp_path) as plane:
        bind_role(plane, "editor", "edit")
        bind_role(plane, "keeper", "admin")  # which has the secrets of meshes
        assert write_secret(plane, "mine").status == 201
        yield plane


def write_secret(plane, name):
    return plane("PUT", f"/meshes/default/secrets/{name}", build.secret(name))


def external(secret="", name="ext", port=443):
    tls = {"enabled": True, "verification": {"caCert": {"type": "Secret", "secretRef": ref(secret)}}}
    endpoints = [{"address": "1.2.3.4", "port": port}]
    return plain(
        "MeshExternalService",
        name,
        {"match": MATCH, "endpoints": endpoints} | ({"tls": tls} if secret else {}),
    )


def ref(secret):
    return {"kind": "Secret", "name": secret}


def plain(kind, name, spec):
    return {"type": kind, "mesh": "default", "name": name, "spec": spec}


def kube(document):
    return {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": document["type"],
        "metadata": {"name": document["name"], "namespace": "mesh-default"},
        "spec": document["spec"],
    }


PATH = "/meshes/default/meshexternalservices"
TLS = external("mine")["spec"]["tls"]


# Every way to make a service refer to the Secret, over one that does not: what is sent, and how.
DOORS = {
    "put": lambda: ("PUT", f"{PATH}/ext", external("mine"), {}),
    "put of a Kubernetes body": lambda: ("PUT", f"{PATH}/ext", kube(external("mine")), {}),
    "merge patch": lambda: ("PATCH", f"{PATH}/ext", {"spec": {"tls": TLS}}, {"Content_Type": MERGE}),
    "JSON patch": lambda: (
        "PATCH",
        f"{PATH}/ext",
        [{"op": "add", "path": "/spec/tls", "value": TLS}],
        {"Content_Type": JSON_PATCH},
    ),
    "apply": lambda: ("POST", "/_apply", [external("mine")], {}),
    "apply of a Kubernetes body": lambda: ("POST", "/_apply", [kube(external("mine"))], {}),
    "kube create": lambda: (
        "POST",
        f"{KUBE}/meshexternalservices",
        kube(external("mine", name="new")),
        {},
    ),
    "kube update": lambda: ("PUT", f"{KUBE}/meshexternalservices/ext", kube(external("mine")), {}),
    "kube merge patch": lambda: (
        "PATCH",
        f"{KUBE}/meshexternalservices/ext",
        {"spec": {"tls": TLS}},
        {"Content_Type": MERGE},
    ),
    "kube JSON patch": lambda: (
        "PATCH",
        f"{KUBE}/meshexternalservices/ext",
        [{"op": "add", "path": "/spec/tls", "value": TLS}],
        {"Content_Type": JSON_PATCH},
    ),
    "kube apply": lambda: (
        "PATCH",
        f"{KUBE}/meshexternalservices/ext?fieldManager=test&force=true",
        kube(external("mine")),
        {"Content_Type": SERVER_SIDE},
    ),
}


@pytest.mark.parametrize("is_dry", [False, True], ids=["written", "dry run"])
def test_no_door_lets_an_editor_refer_to_a_secret_that_she_may_not_read(plane, is_dry):
    assert plane("PUT", f"{PATH}/ext", external()).status == 201
    for door, request in DOORS.items():
        method, path, body, headers = request()
        if is_dry:
            path += ("&" if "?" in path else "?") + "dryRun=All"
        refused = plane(method, path, body, Impersonate_User="editor", **headers)
        assert refused.status == 403, (door, refused.body)
        assert b'refer to Secret \\"mine\\" in spec.tls.verification.caCert.secretRef.name' in refused.body, (
            door
        )
        assert b"get secrets.rest.koguma.io" in refused.body, door
        allowed = plane(method, path, body, Impersonate_User="keeper", **headers)
        assert allowed.status in (200, 201), (door, allowed.body)
        assert plane("PUT", f"{PATH}/ext", external()).status == 200


def extended(type_, **config):
    """A service that leads to a plugin, in both shapes."""
    extension = {"type": type_, "config": config}
    match = {"type": "InternalVIP", "value": "a.ext", "port": 80, "protocol": "http"}
    yield {"match": MATCH, "extension": extension}
    yield {"match": [match], "destination": {"type": "Extension", "extension": extension}}


ARN = "arn:aws:lambda:us-west-2:123456789012:function:f"
SOURCED = {
    "MeshExternalService": [
        external("mine")["spec"],
        *extended("Lambda", arn=ARN, credentials={"secret": "mine"}),
        *extended("Lambda", arn=ARN, endpoint="https://a", caCert={"secret": "mine"}),
        *extended("NotInstalled", some=[{"thing": {"secret": "mine"}}]),
        {
            "match": [{**MATCH, "type": "InternalVIP", "value": "a.ext"}],
            "destination": {
                "type": "Regular",
                "endpoints": [{"address": "1.2.3.4"}],
                "tls": {"enabled": False, "caCert": {"secret": "mine"}},
            },
        },
        {  # not used as long as the type is another one
            "match": MATCH,
            "endpoints": [{"address": "1.2.3.4", "port": 1}],
            "tls": {
                "enabled": True,
                "verification": {
                    "caCert": {
                        "type": "InsecureInline",
                        "insecureInline": {"value": "x"},
                        "secretRef": ref("mine"),
                    }
                },
            },
        },
    ],
    "MeshGateway": [
        {
            "selectors": [{"match": {"kuma.io/service": "edge"}}],
            "conf": {
                "listeners": [
                    {
                        "port": 443,
                        "protocol": "HTTPS",
                        "hostname": "a.example",
                        "tls": {"mode": "TERMINATE", "certificates": [{"secret": "mine"}]},
                    }
                ]
            },
        }
    ],
    "MeshIdentity": [
        {
            "selector": {"dataplane": {"matchLabels": {}}},
            "spiffeID": {"trustDomain": "a.b", "path": "/x"},
            "provider": {
                "type": "Bundled",
                "bundled": {
                    "ca": {
                        "certificate": {"type": "Secret", "secretRef": ref("mine")},
                        "privateKey": {"type": "Secret", "secretRef": ref("mine")},
                    }
                },
            },
        }
    ],
    "Mesh": [
        {
            "mtls": {
                "backends": [
                    {
                        "name": "ca",
                        "type": "provided",
                        "conf": {"cert": {"secret": "mine"}, "key": {"secret": "mine"}},
                    }
                ]
            }
        }
    ],
}


def document(kind, spec):
    if KINDS[kind].inline:
        return {"type": kind, "name": "default" if kind == "Mesh" else "a", **spec} | (
            {} if kind == "Mesh" else {"mesh": "default"}
        )
    return plain(kind, "a", spec)


def test_every_kind_that_has_a_data_source_is_in_this_table():
    assert {kind.name for kind in KINDS if secret_references.is_referring(kind)} == set(SOURCED)


@pytest.mark.parametrize("kind", SOURCED)
def test_every_kind_with_a_data_source_is_asked_about(plane, kind):
    for spec in SOURCED[kind]:
        refused = plane("POST", "/_apply", [document(kind, spec)], Impersonate_User="editor")
        assert refused.status == 403, refused.body
        assert b'refer to Secret \\"mine\\"' in refused.body
        allowed = plane("POST", "/_apply", [document(kind, spec)], Impersonate_User="keeper")
        assert allowed.status == 200, allowed.body
        assert readers(plane, kind) == {"mine": "keeper"}


def readers(plane, kind, name="a"):
    name = "default" if kind == "Mesh" else name
    path = "meshes/default" if kind == "Mesh" else f"meshes/default/{KINDS[kind].plural}/{name}"
    annotations = plane("GET", f"/{path}?format=kubernetes").json["metadata"].get("annotations") or {}
    written = json.loads(annotations.get(labels.SECRET_READERS, "{}"))
    return {secret: reader["user"] for secret, reader in written.items()}


def test_a_reference_that_was_there_may_stay_and_no_other_may_come(plane):
    assert plane("PUT", f"{PATH}/ext", external("mine"), Impersonate_User="keeper").status == 201
    moved = plane("PUT", f"{PATH}/ext", external("mine", port=8443), Impersonate_User="editor")
    assert moved.status == 200, moved.body
    assert readers(plane, "MeshExternalService", "ext") == {"mine": "keeper"}
    other = plane("PUT", f"{PATH}/ext", external("other"), Impersonate_User="editor")
    assert other.status == 403
    as_key = external("mine")
    as_key["spec"]["tls"]["verification"] |= {
        "clientCert": {"type": "InsecureInline", "insecureInline": {"value": "x"}},
        "clientKey": {"type": "Secret", "secretRef": ref("mine")},
    }
    again = plane("PUT", f"{PATH}/ext", as_key, Impersonate_User="editor")
    assert again.status == 403, "the same Secret for another purpose"


def gateway(certificate, *services):
    listener = {"port": 443, "protocol": "HTTPS", "hostname": "a.lan"}
    tls = {"mode": "TERMINATE", "certificates": [certificate]}
    selectors = [{"match": {"kuma.io/service": service}} for service in services]
    return document("MeshGateway", {"selectors": selectors, "conf": {"listeners": [listener | {"tls": tls}]}})


def test_a_certificate_that_was_there_goes_to_no_other_proxies(plane):
    path = "/meshes/default/meshgateways/a"
    for certificate in ({"secret": "mine"}, {"inlineString": "a key"}):
        assert (
            plane("PUT", path, gateway(certificate, "edge", "door"), Impersonate_User="keeper").status < 300
        )
        seen = plane("GET", path, Impersonate_User="editor").json["conf"]["listeners"][0]["tls"]
        (shown,) = seen["certificates"]
        fewer = plane("PUT", path, gateway(shown, "door"), Impersonate_User="editor")
        assert fewer.status == 200, fewer.body
        for dry in ("", "?dryRun=All"):
            mine = plane("PUT", path + dry, gateway(shown, "door", "mine"), Impersonate_User="editor")
            assert mine.status == 403, mine.body
            assert b"needs the right to get secrets" in mine.body
        patch = [{"op": "replace", "path": "/selectors/0/match/kuma.io~1service", "value": "mine"}]
        patched = plane("PATCH", path, patch, Impersonate_User="editor", Content_Type=JSON_PATCH)
        assert patched.status == 403, patched.body
        more = plane("PUT", path, gateway(certificate, "door", "more"), Impersonate_User="keeper")
        assert more.status == 200, more.body
    own = plane("PUT", path, gateway({"inlineString": "my own"}, "mine"), Impersonate_User="editor")
    assert own.status == 200, own.body


def test_nobody_writes_the_annotation_himself(plane):
    body = kube(external())
    body["metadata"]["annotations"] = {labels.SECRET_READERS: '{"mine":{"user":"keeper"}}', "a": "b"}
    made = plane("POST", f"{KUBE}/meshexternalservices", body, Impersonate_User="editor")
    assert made.status == 201, made.body
    assert made.json["metadata"]["annotations"] == {"a": "b"}
    refused = plane(
        "PATCH",
        f"{KUBE}/meshexternalservices/ext",
        {"spec": {"tls": TLS}},
        Impersonate_User="editor",
        Content_Type=MERGE,
    )
    assert refused.status == 403


def test_who_may_not_read_it_any_more_is_shown_until_somebody_else_answers_for_it(plane):
    assert plane("PUT", f"{PATH}/ext", external("mine"), Impersonate_User="keeper").status == 201
    assert lapsed(plane) == []
    assert plane("DELETE", f"{RBAC}/clusterrolebindings/keeper-admin").status == 200
    (found,) = lapsed(plane)
    assert 'refers to Secret "mine" in spec.tls.verification.caCert.secretRef.name' in found
    assert 'user "keeper", who wrote that, may not read it any more' in found
    told = plane("PUT", f"{PATH}/ext", external("mine", port=1), Impersonate_User="editor")
    assert any("may not read it any more" in warning for warning in told.json["warnings"])
    assert plane("PUT", f"{PATH}/ext", external("mine", port=1)).json == {}
    assert lapsed(plane) == []
    assert readers(plane, "MeshExternalService", "ext") == {"mine": "mesh-system:admin"}


def lapsed(plane):
    checks = plane("GET", "/_check").json["checks"]
    return [check["message"] for check in checks if check["name"] == "secrets"]


@pytest.mark.parametrize(
    "name",
    [
        "dataplane-token-signing-key-default-1",
        "dataplane-token-revocations-default",
        "default.ca-builtin-key-ca-1",
    ],
)
def test_nobody_refers_to_what_the_control_plane_keeps_for_itself(plane, name):
    for body, path in (
        (external(name), "spec.tls.verification.caCert.secretRef.name"),
        (kube(external(name)), "spec.tls.verification.caCert.secretRef.name"),
    ):
        refused = plane("PUT", f"{PATH}/ext", body)
        assert refused.status == 400, refused.body
        ((field, reason),) = refused.fields
        assert field == path
        assert reason.startswith(f'"{name}" is a key, a CA or a list that the control plane keeps for itself')


def test_a_mesh_refers_to_its_own_ca_and_to_no_key_of_tokens(plane):
    def backend(name):
        conf = {part: {"secret": name.format(part)} for part in ("cert", "key")}
        return {"backends": [{"name": "ca-1", "type": "provided", "conf": conf}], "skipValidation": True}

    def write(name, user):
        body = {"type": "Mesh", "name": "default", "mtls": backend(name)}
        return plane("PUT", "/meshes/default", body, Impersonate_User=user)

    assert write("default.ca-builtin-{}-ca-1", "keeper").status == 200, "as Kuma's export writes it"
    assert plane("PUT", "/meshes/default", {"type": "Mesh", "name": "default"}).status == 200
    assert write("default.ca-builtin-{}-ca-1", "editor").status == 403
    refused = write("dataplane-token-signing-key-default-1", "keeper")
    assert [field for field, _ in refused.fields] == [
        "mtls.backends[0].conf.cert.secret",
        "mtls.backends[0].conf.key.secret",
    ]


def test_the_reserved_names_are_those_that_are_used():
    used = [DATAPLANE.key_name(1, "m"), DATAPLANE.revocations_name("m"), *authority.secret_names("m", "ca-1")]
    used += [f"{DATAPLANE.key_prefix('m', public=True)}2", USER.key_name(1), ZONE.key_name(3)]
    used += [USER.revocations_name(), ZONE.revocations_name()]
    assert all(map(reserved_secrets.is_reserved, used))
    assert not any(map(reserved_secrets.is_reserved, ["my-ca-key", "dataplane-tokens", "ca-builtin"]))
