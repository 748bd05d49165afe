"""What is read out of a MeshExternalService, in either of its shapes, and what cannot be built."""

import json

import pytest
from external_services import (
    AT,
    CERTIFICATE,
    ENCODER,
    KEY,
    KINDS,
    VIP,
    WHERE,
    base64_of,
    built,
    key_of,
    load,
    regular,
    released,
    tls,
)

from koguma.core import admission, pipeline, world
from koguma.core.build import external
from koguma.model import forms
from koguma.model.control_plane_info import ControlPlaneInfo


def cluster(found):
    assert found.problem == ""
    return found.parts["cluster"]


def context(found):
    return cluster(found)["transport_socket"]["typed_config"]


def places(found):
    return [
        (group.get("priority", 0), *each["endpoint"]["address"]["socket_address"].values())
        for group in cluster(found)["load_assignment"]["endpoints"]
        for each in group["lb_endpoints"]
    ]


def test_a_port_that_is_not_there_is_nothing():
    assert built(regular(), section="81") is None
    db = load(regular())
    assert external.of(db, key_of(db)._replace(name="other"), "80") is None


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (regular(endpoints=[{"address": "1.1.1.1", "port": 9}]), [(0, "1.1.1.1", 9)]),
        (regular(), [(0, "1.1.1.1", 80)]),  # without a port it is the called one
        (released(), [(0, "1.1.1.1", 80)]),
        (
            released(
                endpoints=[
                    {"address": "1.1.1.1", "port": 1, "priority": 9},
                    {"address": "a.com", "port": 2},
                ]
            ),
            [(0, "a.com", 2), (1, "1.1.1.1", 1)],
        ),
    ],
)
def test_both_shapes_say_where_the_service_is(spec, expected):
    assert places(built(spec)) == expected


def test_each_port_has_a_cluster_named_by_its_kri_with_its_own_protocol():
    second = {"type": "Domain", "value": "a.com", "port": 443, "protocol": "grpc"}
    spec = {**regular(), "match": [VIP, second]}
    found = {section: built(spec, section=section) for section in ("80", "443")}
    names = [cluster(each)["name"] for each in found.values()]
    assert names == ["kri_extsvc_default_east__out_80", "kri_extsvc_default_east__out_443"]
    spoken = [next(iter(each.parts["http_options"]["explicit_http_config"])) for each in found.values()]
    assert spoken == ["http_protocol_options", "http2_protocol_options"]
    assert [places(each)[0][2] for each in found.values()] == [80, 443]


@pytest.mark.parametrize(("match", "is_http"), [({}, False), ({"protocol": "http2"}, True)])
def test_a_port_without_a_protocol_speaks_tcp(match, is_http):
    assert ("http_options" in built(released(**match)).parts) is is_http


def test_calls_pass_through_unless_said_otherwise():
    match = {"type": "Domain", "value": "*.a.com", "port": 80, "protocol": "tls"}
    for destination in ({}, {"destination": {}}, {"destination": {"type": "Passthrough"}}):
        found = built({"match": [match], **destination})
        assert cluster(found)["type"] == "ORIGINAL_DST"
        assert "http_options" not in found.parts


def test_tls_that_is_not_enabled_is_not_started():
    assert "transport_socket" not in cluster(built(regular({"caCert": {"secret": "gone"}})))


def test_where_programs_start_tls_themselves_the_proxy_does_not():
    match = {"type": "Domain", "value": "a.com", "port": 80, "protocol": "tls"}
    assert "transport_socket" not in cluster(built(regular({"enabled": True}, match=match)))


@pytest.mark.parametrize(
    "source",
    [
        {"inlineString": CERTIFICATE},
        {"inline": base64_of(CERTIFICATE)},
        {"secret": "ca"},
        {"type": "Secret", "secretRef": {"kind": "Secret", "name": "ca"}},
        {"type": "InsecureInline", "insecureInline": {"value": CERTIFICATE}},
    ],
)
@pytest.mark.parametrize("shape", ["first", "released"])
def test_a_ca_is_found_wherever_it_stands(source, shape):
    spec = regular({"enabled": True, "caCert": source}) if shape == "first" else released(tls(caCert=source))
    validation = context(built(spec, ca=CERTIFICATE))["common_tls_context"]["validation_context"]
    assert validation["trusted_ca"] == {"inline_string": CERTIFICATE}


def test_our_certificate_is_a_secret_of_its_own_that_the_cluster_names():
    pair = {"clientCert": {"secret": "cert"}, "clientKey": {"inlineString": KEY}}
    found = built(regular({"enabled": True, **pair}), cert=CERTIFICATE)
    name = "cert:secret:kri_extsvc_default_east__out_"
    (sent,) = context(found)["common_tls_context"]["tls_certificate_sds_secret_configs"]
    assert sent["name"] == name
    (secret,) = found.secrets
    assert secret.id == ("secret", name)
    own = ENCODER.decoded(secret)["tls_certificate"]
    assert own["certificate_chain"] == {"inline_string": CERTIFICATE}
    assert own["private_key"] == {"inline_string": KEY}
    assert KEY not in json.dumps(found.parts)


_ZONE_CA = CERTIFICATE.replace("MIIB", "Zone")
_GLOBAL_CA = CERTIFICATE.replace("MIIB", "Root")


@pytest.mark.parametrize("field", ["caCert", "clientCert"])
@pytest.mark.parametrize("source", ["secret", "inlineString", "inline"])
def test_only_certificates_leave_what_holds_a_key_too(field, source):
    bundle = f"a note\n{KEY}{CERTIFICATE}{KEY}{_ZONE_CA}"
    said = {"secret": "bundle", "inlineString": bundle, "inline": base64_of(bundle)}[source]
    pair = {"clientCert": {"inlineString": CERTIFICATE}, "clientKey": {"inlineString": KEY}}
    tls = {"enabled": True, **pair, field: {source: said}}
    found = built(regular(tls), bundle=bundle)
    assert not found.problem
    bodies = str(found.parts) + "".join(each.body.decode("latin-1") for each in found.secrets)
    assert "MIIB" in bodies
    assert "Zone" in bodies
    assert bodies.count("PRIVATE KEY") == 2, "the begin and the end of the client's own key"
    assert "a note" not in bodies


def test_only_a_private_key_leaves_a_key_reference():
    bundle = f"{CERTIFICATE}a note\n{KEY}"
    tls = {"enabled": True, "clientCert": {"inlineString": _ZONE_CA}, "clientKey": {"secret": "bundle"}}
    (secret,) = built(regular(tls), bundle=bundle).secrets
    assert KEY.encode() in secret.body
    assert b"MIIB" not in secret.body
    assert b"a note" not in secret.body


def test_a_key_of_the_control_plane_is_never_delivered_even_where_it_is_stored():
    for name in ("dataplane-token-signing-key-default-1", "default.ca-builtin-key-ca-1"):
        tls = {
            "enabled": True,
            "clientCert": {"inlineString": CERTIFICATE},
            "clientKey": {"type": "Secret", "secretRef": {"kind": "Secret", "name": name}},
        }
        found = built(regular(tls), **{name: KEY})
        assert not found.secrets
        assert f'{AT}.tls.clientKey: "{name}" is a key, a CA or a list' in found.problem


def test_a_secret_of_the_services_own_zone_comes_first():
    db = load(regular({"enabled": True, "caCert": {"secret": "ca"}}), ca=_ZONE_CA)
    (near,) = world.BY_KIND.items(db, ("Secret", "default"))
    far = admission.admitted(
        forms.read(
            {
                "type": "Secret",
                "name": "ca",
                "mesh": "default",
                "data": base64_of(_GLOBAL_CA),
            },
            KINDS,
        ),
        None,
        ControlPlaneInfo(),
    ).resource
    assert far.key != near[0]
    pipeline.take(db, [far])

    def ca():
        found = external.of(db, key_of(db), "80")
        return context(found)["common_tls_context"]["validation_context"]["trusted_ca"]["inline_string"]

    assert ca() == _ZONE_CA
    pipeline.take(db, [], [near[0]])
    assert ca() == _GLOBAL_CA


def test_a_secret_that_changes_is_read_again_and_no_other():
    db = load(regular({"enabled": True, "caCert": {"secret": "ca"}}), ca=CERTIFICATE, other="x")
    db.watch(external.of, key_of(db), "80")
    (ca, other) = (row for _, row in world.BY_KIND.items(db, ("Secret", "default")))
    new = base64_of(_ZONE_CA)
    pipeline.take(db, [type(other)(**{**_fields(other), "spec": {"data": new}})])
    assert db.changed() == []
    pipeline.take(db, [type(ca)(**{**_fields(ca), "spec": {"data": new}})])
    assert len(db.changed()) == 1


def _fields(resource):
    return {name: getattr(resource, name) for name in resource.__struct_fields__}


@pytest.mark.parametrize("word", ["TLSv1_2", "TLS12"])
def test_versions_have_two_spellings(word):
    parameters = context(built(regular({"enabled": True, "version": {"min": word, "max": word}})))
    assert set(parameters["common_tls_context"]["tls_params"].values()) == {"TLSv1_2"}


@pytest.mark.parametrize("word", ["TLS_AUTO", "TLSAuto"])
def test_automatic_versions_reach_up_to_the_newest(word):
    parameters = context(built(regular({"enabled": True, "version": {"min": word, "max": word}})))
    assert parameters["common_tls_context"]["tls_params"] == {"tls_maximum_protocol_version": "TLSv1_3"}


NO_PLUGIN = 'extension.type: no plugin "Nowhere" is installed beside the control plane; installed are: Lambda'
VIRTUAL = "port 80: " + external._VIRTUAL_ONLY
NOWHERE = "endpoints: there are none, so calls have nowhere to go; write one"
NO_ADDRESS = "is no IP, domain, or unix:// and a path"
MISSING = 'there is no Secret "gone" in mesh "default"; write it, or name another one'
ON_UNIX = [{"address": "unix:///run/x.sock"}]


@pytest.mark.parametrize(
    ("spec", "problems"),
    [
        (
            {"match": [VIP], "destination": {"type": "Extension", "extension": {"type": "Nowhere"}}},
            [f"{AT}.{NO_PLUGIN}"],
        ),
        (
            {**released(endpoints=[{"address": "<", "port": 0}]), "extension": {"type": "Nowhere"}},
            [f"spec.{NO_PLUGIN}"],
        ),
        ({"match": [VIP]}, [VIRTUAL]),
        (
            {"match": [VIP], "destination": {"endpoints": WHERE}},
            [
                f"{AT}.endpoints: does not go with type Passthrough; take it away, or choose another type",
                VIRTUAL,
            ],
        ),
        ({"match": {"port": 80}}, [f"spec.{NOWHERE}"]),
        (regular(endpoints=[]), [f"{AT}.{NOWHERE}"]),
        (
            regular(endpoints=[*WHERE, {"address": "*.a.com"}, {"address": "unix://"}]),
            [
                f'{AT}.endpoints[1].address: "*.a.com" {NO_ADDRESS}',
                f'{AT}.endpoints[2].address: "unix://" {NO_ADDRESS}',
            ],
        ),
        (
            regular(endpoints=[{"address": "unix:///run/a\0b"}]),
            [f'{AT}.endpoints[0].address: "unix:///run/a\0b" {NO_ADDRESS}'],
        ),
        (
            regular(endpoints=[{"address": "fe80::1%eth0"}]),
            [f'{AT}.endpoints[0].address: "fe80::1%eth0" {NO_ADDRESS}'],
        ),
        (regular(endpoints=[{"address": "a.com"}, *ON_UNIX]), [f"{AT}.endpoints: {external._MIXED}"]),
        (
            regular({"enabled": True}, endpoints=ON_UNIX),
            [f"{AT}.tls.verification: {external._NAMELESS}"],
        ),
        (
            regular(tls(subjectAltNames=["a.com", ""])),
            [f"{AT}.tls.verification.subjectAltNames[1]: is empty; write a name, or take it away"],
        ),
        (regular({"enabled": True, "caCert": {"secret": "gone"}}), [f"{AT}.tls.caCert: {MISSING}"]),
        (
            released(tls(clientCert={"secret": "gone"}, clientKey={"inlineString": "x"})),
            [
                f"spec.tls.verification.clientCert: {MISSING}",
                "spec.tls.verification.clientKey: holds no unencrypted private key as PEM",
            ],
        ),
        (
            regular({"enabled": True, "caCert": {"inline": base64_of("nothing")}}),
            [f"{AT}.tls.caCert: holds no certificate as PEM"],
        ),
        (
            regular({"enabled": True, "caCert": {"inlineString": ""}}),
            [f"{AT}.tls.caCert: names no Secret and holds nothing itself"],
        ),
    ],
)
def test_what_cannot_be_built_is_said(spec, problems):
    found = built(spec)
    assert found.problem == "; ".join(problems)
    assert (found.parts, found.secrets) == ({}, ())


def test_what_is_not_checked_may_be_missing():
    found = built(released(tls(mode="SkipCA", caCert={"secret": "gone"})))
    assert "validation_context" not in context(found)["common_tls_context"]


def test_the_problem_is_gone_as_soon_as_the_secret_is_there():
    db = load(regular({"enabled": True, "caCert": {"secret": "ca"}}))
    db.watch(external.of, key_of(db), "80")
    assert "there is no Secret" in external.of(db, key_of(db), "80").problem
    other = load(regular(), ca=CERTIFICATE)
    (secret,) = world.BY_KIND.items(other, ("Secret", "default"))
    pipeline.take(db, [secret[1]])
    assert len(db.changed()) == 1
    assert external.of(db, key_of(db), "80").problem == ""
