"""Both shapes of a MeshExternalService are stored and returned as written, through both forms of the API."""

import pytest

from tests.control_plane import LocalControlPlane

PLAIN = "/meshes/default/meshexternalservices"
KUBE = "/apis/kuma.io/v1alpha1/namespaces/kuma-system/meshexternalservices"
SHAPES = {
    "first": {
        "match": [
            {"type": "InternalVIP", "value": "Example.ext.svc.local", "port": 80, "protocol": "http"},
            {"type": "Domain", "value": "httpbin.com", "port": 80, "protocol": "http"},
            {"type": "CIDR", "value": "10.1.1.0/24", "port": 80, "protocol": "http"},
            {"type": "IP", "value": "192.168.0.1", "port": 80, "protocol": "http"},
        ],
        "destination": {
            "type": "Regular",
            "endpoints": [
                {"address": "1.1.1.1", "port": 12345},
                {"address": "1.1.1.2"},
                {"address": "unix:///run/app.sock"},
            ],
            "tls": {
                "enabled": True,
                "version": {"min": "TLSv1_2", "max": "TLS_AUTO"},
                "allowRenegotiation": False,
                "verification": {"skip": True, "subjectAltNames": ["example.com", "spiffe://example/ns"]},
                "caCert": {"secret": "ca"},
            },
        },
    },
    "first-with-nothing-but-a-match": {
        "match": [{"type": "Domain", "value": "*.eu-west-3.aws.cloud", "port": 9092, "protocol": "tls"}]
    },
    "first-with-a-plugin": {
        "match": [{"type": "InternalVIP", "value": "fn.ext.svc.local", "port": 80, "protocol": "http"}],
        "destination": {
            "type": "Extension",
            "extension": {
                "type": "Lambda",
                "config": {"arn": "arn:aws:lambda:us-west-2:123456789012:function:my-function"},
            },
        },
    },
    "released": {
        "match": {"type": "HostnameGenerator", "port": 443, "protocol": "http2"},
        "endpoints": [{"address": "example.com", "port": 443, "priority": 1}],
        "tls": {
            "enabled": True,
            "version": {"min": "TLS12", "max": "TLSAuto"},
            "verification": {
                "mode": "SkipSAN",
                "serverName": "example.com",
                "subjectAltNames": [{"type": "Prefix", "value": "spiffe://example/"}, {"value": "a"}],
                "caCert": {"type": "Secret", "secretRef": {"kind": "Secret", "name": "ca"}},
            },
        },
    },
    "released-without-words": {
        "match": {"port": 80},
        "endpoints": [{"address": "example.com", "port": 443}],
    },
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("x")) as made:
        yield made


def plain(spec):
    labels = {"k8s.kuma.io/namespace": "kuma-system"}
    name = "db.kuma-system"
    return {"type": "MeshExternalService", "name": name, "mesh": "default", "labels": labels, "spec": spec}


def kube(spec):
    metadata = {"name": "db", "namespace": "kuma-system", "labels": {"kuma.io/mesh": "default"}}
    kind = {"apiVersion": "kuma.io/v1alpha1", "kind": "MeshExternalService"}
    return {**kind, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("door", ["plain", "kube", "apply"])
def test_a_shape_is_returned_as_it_was_written(plane, shape, door):
    spec = SHAPES[shape]
    match door:
        case "plain":
            made = plane("PUT", f"{PLAIN}/db.kuma-system", plain(spec))
        case "kube":
            made = plane("POST", KUBE, kube(spec))
        case _:
            made = plane("POST", "/_apply", [kube(spec)])
    assert made.status in (200, 201), made.text
    assert plane("GET", f"{PLAIN}/db.kuma-system").json["spec"] == spec
    assert plane("GET", f"{KUBE}/db").json["spec"] == spec
    assert plane("GET", KUBE).json["items"][0]["spec"] == spec
    # what was read and is written back changes nothing
    again = plane("GET", f"{KUBE}/db").json
    del again["metadata"]["resourceVersion"]  # its status may change meanwhile
    assert plane("PUT", f"{KUBE}/db", again).json["metadata"]["generation"] == 1
    assert plane("DELETE", f"{KUBE}/db").status == 200


def test_the_shapes_are_not_mixed(plane):
    mixed = {**SHAPES["released-without-words"], "destination": {"type": "Passthrough"}}
    refused = plane("PUT", f"{PLAIN}/db.kuma-system", plain(mixed))
    assert refused.status == 400
    assert [each["field"] for each in refused.json["invalid_parameters"]] == ["spec.destination"]
    mixed = {**SHAPES["first"], "endpoints": [{"address": "example.com", "port": 443}]}
    refused = plane("POST", KUBE, kube(mixed))
    assert refused.status == 422
    assert "spec.endpoints" in refused.text
