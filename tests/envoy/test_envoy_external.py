"""External clusters as plain data: where endpoints are, which TLS is started, what the other side must prove.

What comes out goes through the real encoder, and Envoy reads all of it once. How a running Envoy then treats
real servers is tested where services are read, in tests/core.
"""

import json
import subprocess
from datetime import UTC, datetime

import pytest

from koguma.envoy import external, schema
from koguma.envoy.encode import Encoder
from koguma.envoy.external import ExternalEndpoint, San, Tls
from koguma.envoy.snapshot import CLUSTER, SECRET
from koguma.identity import certificates

ENVOY = schema.find_envoy()
AUTHORITY = certificates.make_authority(certificates.make_key(), datetime.now(UTC))
CA = AUTHORITY.certificate
OWN = "cert:secret:kri_extsvc_default___mongo_"
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

IP, IP6 = ExternalEndpoint("10.0.0.1", 1), ExternalEndpoint("fd00:0::1", 2)
DOMAIN, DOTTED = ExternalEndpoint("Example.com", 3), ExternalEndpoint("example.org.", 4)
SOCKET = ExternalEndpoint("unix:///run/x.sock")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(schema.load(ENVOY))


def context(endpoints, tls, *, nameless=False):
    cluster = external.cluster("x", endpoints, tls)
    if nameless:
        (chosen,) = cluster["transport_socket_matches"]
        return chosen["transport_socket"]["typed_config"]
    return cluster["transport_socket"]["typed_config"]


def common(*args, **options):
    return context(*args, **options)["common_tls_context"]


def checked(*args, **options):
    """The names that a certificate may have: `type how value`."""
    found = common(*args, **options)["validation_context"].get("match_typed_subject_alt_names", [])
    return [f"{each['san_type']} {how} {value}" for each in found for how, value in each["matcher"].items()]


def places(cluster):
    """Endpoints as `priority address hostname`."""
    return [
        f"{group.get('priority', 0)} {_place(each['endpoint']['address'])} {each['endpoint'].get('hostname')}"
        for group in cluster["load_assignment"]["endpoints"]
        for each in group["lb_endpoints"]
    ]


def _place(address):
    if "pipe" in address:
        return address["pipe"]["path"]
    return "{address}:{port_value}".format(**address["socket_address"])


@pytest.mark.parametrize(
    ("endpoints", "type_", "expected"),
    [
        ([IP], "STATIC", ["0 10.0.0.1:1 10.0.0.1"]),
        ([IP, SOCKET], "STATIC", ["0 10.0.0.1:1 10.0.0.1", "0 /run/x.sock None"]),
        ([IP6], "STATIC", ["0 fd00:0::1:2 [fd00::1]"]),
        ([SOCKET], "STATIC", ["0 /run/x.sock None"]),
        ([DOMAIN], "STRICT_DNS", ["0 Example.com:3 example.com"]),
        ([DOTTED], "STRICT_DNS", ["0 example.org.:4 example.org"]),
        ([DOMAIN, IP], "STRICT_DNS", ["0 Example.com:3 example.com", "0 10.0.0.1:1 10.0.0.1"]),
    ],
)
def test_names_are_resolved_and_addresses_are_taken_as_they_are(endpoints, type_, expected):
    cluster = external.cluster("x", endpoints)
    assert cluster["type"] == type_
    assert cluster.get("dns_lookup_family") == ("V4_PREFERRED" if type_ == "STRICT_DNS" else None)
    assert places(cluster) == expected


def test_a_cluster_is_called_by_one_name_and_waits_five_seconds():
    cluster = external.cluster("kri_x", [IP])
    assert cluster["name"] == cluster["load_assignment"]["cluster_name"] == "kri_x"
    assert cluster["connect_timeout"] == "5s"
    assert "transport_socket" not in cluster


def test_priorities_have_no_gaps():
    endpoints = [
        ExternalEndpoint("10.0.0.1", 1, 128),
        ExternalEndpoint("10.0.0.2", 1, 3),
        ExternalEndpoint("10.0.0.3", 1, 128),
    ]
    ranked = ["0 10.0.0.2:1 10.0.0.2", "1 10.0.0.1:1 10.0.0.1", "1 10.0.0.3:1 10.0.0.3"]
    assert places(external.cluster("x", endpoints)) == ranked


@pytest.mark.parametrize(
    ("endpoints", "is_mixed"),
    [([DOMAIN, SOCKET], True), ([IP, SOCKET], False), ([IP, DOMAIN], False), ([SOCKET], False)],
)
def test_only_domains_and_unix_sockets_do_not_mix(endpoints, is_mixed):
    assert external.is_mixed(endpoints) is is_mixed


@pytest.mark.parametrize(
    ("protocol", "version"),
    [
        ("http", "http_protocol_options"),
        ("http2", "http2_protocol_options"),
        ("grpc", "http2_protocol_options"),
        ("tcp", None),
        ("tls", None),
    ],
)
def test_each_protocol_has_its_own_options(protocol, version):
    options = external.http_options(protocol)
    expected = {
        "common_http_protocol_options": {"idle_timeout": "3600s"},
        "explicit_http_config": {version: {}},
    }
    assert options == (expected if version else None)


def test_calls_that_pass_through_go_to_where_they_were_going():
    cluster = external.original_destination("x")
    assert (cluster["type"], cluster["lb_policy"]) == ("ORIGINAL_DST", "CLUSTER_PROVIDED")
    assert "load_assignment" not in cluster


def test_a_domain_is_asked_for_by_its_name_and_must_prove_it():
    found = context([DOMAIN, DOTTED], Tls())
    assert found["auto_host_sni"] is found["auto_sni_san_validation"] is True
    assert "sni" not in found
    assert "transport_socket_matches" not in external.cluster("x", [DOMAIN, DOTTED], Tls())


def test_an_ip_is_not_asked_for_by_name_and_must_prove_its_address():
    endpoints = [IP, IP6, SOCKET]
    found = context(endpoints, Tls())
    assert not {"auto_host_sni", "auto_sni_san_validation", "sni"} & set(found)
    assert checked(endpoints, Tls()) == ["IP_ADDRESS exact 10.0.0.1", "IP_ADDRESS exact fd00::1"]


def test_domains_and_addresses_of_one_service_are_asked_differently():
    endpoints = [DOMAIN, IP]
    cluster = external.cluster("x", endpoints, Tls())
    (group,) = cluster["load_assignment"]["endpoints"]
    chosen = [each.get("metadata") for each in group["lb_endpoints"]]
    assert chosen == [None, {"filter_metadata": {"envoy.transport_socket_match": {"named": "no"}}}]
    assert context(endpoints, Tls())["auto_sni_san_validation"] is True
    assert checked(endpoints, Tls(), nameless=True) == ["IP_ADDRESS exact 10.0.0.1"]
    assert "auto_host_sni" not in context(endpoints, Tls(), nameless=True)


@pytest.mark.parametrize("endpoints", [[DOMAIN], [IP], [SOCKET], [DOMAIN, IP]])
def test_a_given_name_is_asked_for_and_must_be_proved(endpoints):
    tls = Tls(server_name="db.example.com")
    found = context(endpoints, tls)
    assert found["sni"] == "db.example.com"
    assert "auto_host_sni" not in found
    assert checked(endpoints, tls) == ["DNS exact db.example.com"]
    assert "transport_socket_matches" not in external.cluster("x", endpoints, tls)


def test_a_given_name_is_asked_for_while_the_certificate_may_have_others():
    tls = Tls(server_name="a.com", sans=(San("b.com"),))
    assert context([IP], tls)["sni"] == "a.com"
    assert checked([IP], tls) == ["DNS exact b.com"]


@pytest.mark.parametrize(
    ("san", "expected"),
    [
        (San("a.com"), ["DNS exact a.com"]),
        (San("*.a.com"), ["DNS exact *.a.com"]),
        (San("spiffe://a/b"), ["URI exact spiffe://a/b"]),
        (San("urn:service:a"), ["URI exact urn:service:a"]),
        (San("10.0.0.9"), ["IP_ADDRESS exact 10.0.0.9"]),
        (San("fd00:0::9"), ["IP_ADDRESS exact fd00::9"]),
        (San("spiffe://a/", is_prefix=True), ["URI prefix spiffe://a/"]),
        (San("a", is_prefix=True), ["DNS prefix a", "URI prefix a", "IP_ADDRESS prefix a"]),
    ],
)
def test_a_name_is_looked_for_where_it_can_stand(san, expected):
    assert checked([DOMAIN], Tls(sans=(san,))) == expected


@pytest.mark.parametrize(
    ("sans", "sni"),
    [
        (("spiffe://a/b", "a.com", "b.com"), "a.com"),
        (("*.a.com",), None),
        (("10.0.0.9",), None),
    ],
)
def test_an_ip_is_asked_for_by_the_first_whole_domain_that_it_must_prove(sans, sni):
    tls = Tls(sans=tuple(San(each) for each in sans))
    assert context([IP], tls).get("sni") == sni
    assert context([DOMAIN], tls)["auto_host_sni"] is True


def test_the_ca_is_the_given_one_or_those_of_the_system():
    assert common([IP], Tls(ca=CA))["validation_context"]["trusted_ca"] == {"inline_string": CA}
    system = {"filename": "/etc/ssl/certs/ca-certificates.crt"}
    assert common([IP], Tls())["validation_context"]["trusted_ca"] == system


@pytest.mark.parametrize("endpoints", [[DOMAIN], [IP], [SOCKET]])
def test_without_names_the_ca_is_still_checked(endpoints):
    found = context(endpoints, Tls(checks_names=False, ca=CA, sans=(San("a.com"),)))
    assert found["common_tls_context"]["validation_context"] == {"trusted_ca": {"inline_string": CA}}
    assert "auto_sni_san_validation" not in found


@pytest.mark.parametrize("endpoints", [[DOMAIN], [IP], [SOCKET]])
def test_without_a_ca_nothing_is_checked(endpoints):
    found = context(endpoints, Tls(checks_ca=False, ca=CA))
    assert "validation_context" not in found["common_tls_context"]
    assert "auto_sni_san_validation" not in found


@pytest.mark.parametrize(
    ("endpoints", "tls", "is_nameless"),
    [
        ([SOCKET], Tls(), True),
        ([SOCKET], Tls(server_name="a.com"), False),
        ([SOCKET], Tls(sans=(San("a.com"),)), False),
        ([SOCKET], Tls(checks_names=False), False),
        ([SOCKET], Tls(checks_ca=False), False),
        ([SOCKET, IP], Tls(), False),
        ([DOMAIN], Tls(), False),
    ],
)
def test_names_can_be_checked_only_where_there_are_some(endpoints, tls, is_nameless):
    assert external.is_nameless(endpoints, tls) is is_nameless


@pytest.mark.parametrize(
    ("oldest", "newest", "expected", "has_old_ciphers"),
    [
        ("", "", (None, "TLSv1_3"), False),
        ("TLSv1_3", "", ("TLSv1_3", "TLSv1_3"), False),
        ("", "TLSv1_2", (None, "TLSv1_2"), False),
        ("TLSv1_2", "TLSv1_2", ("TLSv1_2", "TLSv1_2"), False),
        ("TLSv1_1", "", ("TLSv1_1", "TLSv1_3"), True),
        ("", "TLSv1_1", ("TLSv1_0", "TLSv1_1"), True),
    ],
)
def test_versions_reach_from_the_oldest_to_the_newest(oldest, newest, expected, has_old_ciphers):
    found = common([IP], Tls(version_min=oldest, version_max=newest))["tls_params"]
    span = found.get("tls_minimum_protocol_version"), found["tls_maximum_protocol_version"]
    assert span == expected
    assert ("AES128-SHA" in found.get("cipher_suites", [])) is has_old_ciphers


def test_our_certificate_comes_by_itself():
    (sent,) = common([IP], Tls(certificate=OWN))["tls_certificate_sds_secret_configs"]
    assert sent["name"] == OWN
    assert "tls_certificate_sds_secret_configs" not in common([IP], Tls())


def test_renegotiation_is_allowed_only_when_asked_for():
    assert context([IP], Tls(allow_renegotiation=True))["allow_renegotiation"] is True
    assert "allow_renegotiation" not in context([IP], Tls())


ENDPOINTS = ([DOMAIN, DOTTED], [IP, IP6, SOCKET], [DOMAIN, IP])
CONTEXTS = (
    None,
    Tls(),
    Tls(ca=CA, server_name="a.com", certificate=OWN, allow_renegotiation=True),
    Tls(ca=CA, sans=(San("a.com"), San("spiffe://a/", is_prefix=True), San("1.1.1.1"), San("1.", True))),  # noqa: FBT003
    Tls(ca=CA, checks_names=False, version_min="TLSv1_0"),
    Tls(checks_ca=False, version_max="TLSv1_1"),
)


def everything():
    """Clusters of every sort."""
    for index, tls in enumerate(CONTEXTS):
        for number, endpoints in enumerate(ENDPOINTS):
            yield external.cluster(f"regular-{index}-{number}", endpoints, tls)
    for protocol in ("tcp", "http", "http2", "grpc"):
        options = external.http_options(protocol)
        cluster = external.original_destination(f"passthrough-{protocol}")
        if options is not None:
            typed = {"@type": f"type.googleapis.com/{HTTP_OPTIONS}", **options}
            cluster["typed_extension_protocol_options"] = {HTTP_OPTIONS: typed}
        yield cluster


def without_sds(data):
    """Secrets come with the file; nobody serves them here."""
    if isinstance(data, dict):
        return {name: without_sds(value) for name, value in data.items() if name != "sds_config"}
    return [without_sds(each) for each in data] if isinstance(data, list) else data


def test_everything_can_be_encoded_and_read_back(encoder):
    for data in everything():
        read = encoder.decoded(encoder.resource(CLUSTER, data["name"], data))
        assert read["name"] == data["name"]
        assert len(read) == len(data)


@pytest.mark.slow
def test_envoy_accepts_everything(encoder, tmp_path):
    own = certificates.make_server(AUTHORITY, ["us"], datetime.now(UTC))
    secret = external.secret(OWN, own.certificate, own.key.reveal())
    clusters = [encoder.decoded(encoder.resource(CLUSTER, each["name"], each)) for each in everything()]
    secrets = [encoder.decoded(encoder.resource(SECRET, OWN, secret))]
    file = tmp_path / "envoy.json"
    static = {"static_resources": {"clusters": without_sds(clusters), "secrets": secrets}}
    file.write_text(json.dumps(static))
    done = subprocess.run(
        [str(ENVOY), "--mode", "validate", "-c", str(file), "-l", "warning"],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr
