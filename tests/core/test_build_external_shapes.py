"""The two shapes of a MeshExternalService mean the same: Envoys get equal bytes for both."""

import pytest

from tests import build
from tests.core.building import NodeMetadata, bodies, database, of, stored
from tests.core.external_services import CERTIFICATE, KEY, base64_of

HOST = "out.extsvc.mesh.local"
WHERE = [{"address": "10.0.0.1", "port": 9}, {"address": "out.example.com", "port": 9}]
NODE = NodeMetadata(("feature-bind-outbounds", "feature-embedded-dns"), "/workdir")


def first(protocol, **destination):
    """As the founding document has it."""
    match = {"type": "InternalVIP", "value": HOST, "port": 24080, "protocol": protocol}
    spec = {"match": [match], "destination": {"type": "Regular", "endpoints": WHERE, **destination}}
    return {"spec": spec, "status": {"vips": [{"ip": "127.0.0.101", "type": "Kuma", "hostname": HOST}]}}


def released(protocol, **spec):
    """As Kuma released it."""
    match = {"type": "HostnameGenerator", "port": 24080, "protocol": protocol}
    spec = {"match": match, "endpoints": WHERE, **spec}
    return {"spec": spec, "status": {"vips": [{"ip": "127.0.0.101"}], "vip": {"ip": "127.0.0.101"}}}


def inline(value):
    return {"type": "InsecureInline", "insecureInline": {"value": value}}


def secret(name):
    return {"type": "Secret", "secretRef": {"kind": "Secret", "name": name}}


# TLS by what it shows: as the founding document has it, and as Kuma released it.
TLS = {
    "plain": ({}, {}),
    "not-enabled": ({"enabled": False}, {"enabled": False}),
    "enabled": ({"enabled": True}, {"enabled": True, "verification": {"mode": "Secured"}}),
    "versions": (
        {"enabled": True, "version": {"min": "TLSv1_2", "max": "TLSv1_3"}},
        {"enabled": True, "version": {"min": "TLS12", "max": "TLS13"}},
    ),
    "automatic-versions": (
        {"enabled": True, "version": {"min": "TLS_AUTO", "max": "TLS_AUTO"}, "allowRenegotiation": True},
        {"enabled": True, "version": {"min": "TLSAuto", "max": "TLSAuto"}, "allowRenegotiation": True},
    ),
    "skip": (
        {"enabled": True, "verification": {"skip": True}},
        {"enabled": True, "verification": {"mode": "SkipSAN"}},
    ),
    "names": (
        {"enabled": True, "verification": {"subjectAltNames": ["a.example.com", "spiffe://x/y"]}},
        {
            "enabled": True,
            "verification": {
                "subjectAltNames": [
                    {"type": "Exact", "value": "a.example.com"},
                    {"value": "spiffe://x/y"},
                ]
            },
        },
    ),
    "own-ca": (
        {"enabled": True, "caCert": {"inlineString": CERTIFICATE}},
        {"enabled": True, "verification": {"caCert": inline(CERTIFICATE)}},
    ),
    "own-ca-in-base64": (
        {"enabled": True, "caCert": {"inline": base64_of(CERTIFICATE)}},
        {"enabled": True, "verification": {"caCert": {"inlineString": CERTIFICATE}}},
    ),
    "own-certificate": (
        {"enabled": True, "clientCert": {"secret": "cert"}, "clientKey": {"secret": "key"}},
        {"enabled": True, "verification": {"clientCert": secret("cert"), "clientKey": secret("key")}},
    ),
}


def snapshot(service):
    generator = {
        "type": "HostnameGenerator",
        "name": "all",
        "spec": {
            "selector": {"meshExternalService": {"matchLabels": {}}},
            "template": "{{ .DisplayName }}.extsvc.mesh.local",
        },
    }
    secrets = [
        {"type": "Secret", "mesh": "default", "name": name, "data": base64_of(text)}
        for name, text in (("cert", CERTIFICATE), ("key", KEY))
    ]
    timeout = build.timeout("slow", idle="7s")
    web = build.dataplane("web", inbound=[build.inbound("web", port=21080)])
    outside = {"type": "MeshExternalService", "mesh": "default", "name": "out", **service}
    documents = [build.mesh("default"), generator, web, outside, timeout, *secrets]
    db = database([stored(document) for document in documents], {"web": NODE})
    built = of(db, "web")
    assert not built.failures
    return bodies(built)


@pytest.mark.parametrize("protocol", ["tcp", "http", "http2", "grpc"])
@pytest.mark.parametrize("tls", TLS)
def test_both_shapes_give_equal_bytes(protocol, tls):
    one, other = TLS[tls]
    with_tls = ({"tls": one} if one else {}), ({"tls": other} if other else {})
    built = snapshot(first(protocol, **with_tls[0]))
    assert "kri_extsvc_default_east__out_24080" in {name for _, name in built[0]}
    assert built == snapshot(released(protocol, **with_tls[1]))


def test_an_endpoint_without_a_port_has_that_of_the_match():
    endpoints = [{"address": "10.0.0.1"}, {"address": "10.0.0.2", "port": 9}]
    written = [{"address": "10.0.0.1", "port": 24080}, {"address": "10.0.0.2", "port": 9}]
    omitted = snapshot(first("http", endpoints=endpoints))
    assert (
        omitted == snapshot(first("http", endpoints=written)) == snapshot(released("http", endpoints=written))
    )


def test_a_plugin_is_named_by_both_shapes():
    arn = "arn:aws:lambda:us-west-2:123456789012:function:my-function"
    extension = {"type": "Lambda", "config": {"arn": arn}}
    one = first("http")
    one["spec"]["destination"] = {"type": "Extension", "extension": extension}
    other = released("http", extension=extension)
    del other["spec"]["endpoints"]
    assert snapshot(one) == snapshot(other)
