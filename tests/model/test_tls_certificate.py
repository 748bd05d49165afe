"""What a server can present: all texts that Envoy would refuse are found, each with its reason."""

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from koguma.model import tls_certificate
from koguma.model.tls_certificate import TlsCertificate
from tests.envoy.real_envoy import address, validated
from tests.tls_certificates import DAY, NOW, certificate, ecdsa_key, pem, root_pem, rsa_key, server

GOOD = server("shop.lan", "*.shop.lan")
KEY = pem(ecdsa_key())
ENCRYPTED = (
    ecdsa_key()
    .private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    .decode()
)
PARAMETERS = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
STAPLED = x509.TLSFeature([x509.TLSFeatureType.status_request])


def usage(*, digital_signature: bool) -> x509.KeyUsage:
    names = ("content_commitment", "key_encipherment", "data_encipherment", "key_cert_sign", "crl_sign")
    never = dict.fromkeys((*names, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=digital_signature, key_agreement=True, **never)


def contradicting() -> str:
    """A key whose public half is right and whose shortcuts are not."""
    numbers = rsa_key().private_numbers()
    wrong = rsa.RSAPrivateNumbers(
        p=numbers.p,
        q=numbers.q,
        d=numbers.d,
        dmp1=numbers.dmp1 + 2,
        dmq1=numbers.dmq1,
        iqmp=numbers.iqmp,
        public_numbers=numbers.public_numbers,
    )
    return pem(wrong.private_key(unsafe_skip_rsa_key_validation=True))


def self_signed_ed25519() -> str:
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name.from_rfc4514_string("CN=a.lan")
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + DAY)
        .sign(key, None)
    )
    return pem(key) + pem(made)


def with_mail_only() -> str:
    builder = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(x509.Name([]))
    mail = x509.SubjectAlternativeName([x509.RFC822Name("a@shop.lan")])
    made = (
        builder.public_key(ecdsa_key().public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + DAY)
        .add_extension(mail, critical=False)
        .sign(ecdsa_key(), hashes.SHA256())
    )
    return KEY + pem(made)


GOOD_TEXTS = {
    "ECDSA": GOOD,
    "RSA": server("shop.lan", key=rsa_key()),
    "certificate first": certificate(ecdsa_key(), "shop.lan") + KEY,
    "with its issuer": GOOD + root_pem(),
    "other text around": f"Bag Attributes\n  a: b\n{GOOD}\nthe end -----BEGIN",
    "the older form of keys": pem(rsa_key(), traditional=True) + certificate(rsa_key(), "shop.lan"),
    "parameters of the curve": PARAMETERS
    + pem(ecdsa_key(), traditional=True)
    + certificate(ecdsa_key(), "shop.lan"),
    "lines of Windows": GOOD.replace("\n", "\r\n"),
    "P-384": server("shop.lan", key=ecdsa_key(1, ec.SECP384R1)),
    "a common name alone": KEY + certificate(ecdsa_key(), common_name="shop.lan"),
    "expired": server("shop.lan", not_before=NOW - 2 * DAY, not_after=NOW - DAY),
    "not yet valid": server("shop.lan", not_before=NOW + DAY, not_after=NOW + 2 * DAY),
}
BAD_TEXTS = {
    "": "missing server certificate",
    "no PEM at all": "missing server certificate",
    KEY: "missing server certificate",
    certificate(ecdsa_key(), "shop.lan"): "missing private key",
    GOOD + KEY: "secret contains multiple private keys",
    GOOD + "-----BEGIN CSR-----\nAAAA\n-----END CSR-----\n": 'unsupported PEM block "CSR"',
    GOOD.replace("-----END CERTIFICATE-----", ""): 'PEM block "CERTIFICATE" has no end',
    GOOD + "x" * tls_certificate.LENGTH_MAX: "is longer than 131072 characters",
    GOOD + root_pem() * 16: "has 17 certificates; 16 are the most",
    ENCRYPTED + certificate(ecdsa_key(), "a.lan"): (
        "the private key is encrypted, and nobody can enter its password; write it without one"
    ),
    pem(ecdsa_key(1)) + certificate(ecdsa_key(), "a.lan"): (
        "the private key does not belong to the certificate"
    ),
    KEY + root_pem() + certificate(ecdsa_key(), "a.lan"): (
        "the private key belongs to certificate 2 of the chain; write that one first"
    ),
    GOOD + "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n": (
        "certificate 2 of its chain cannot be read"
    ),
    "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n" + certificate(ecdsa_key(), "a.lan"): (
        "the private key cannot be read"
    ),
    contradicting() + certificate(rsa_key(), "a.lan"): (
        "the private key cannot be read: its numbers contradict each other"
    ),
    server("a.lan", key=rsa_key(1024)): "its RSA key has 1024 bits; 2048 to 8192 are legal",
    server("a.lan", key=ecdsa_key(0, ec.SECP256K1)): (
        "its curve is secp256k1; P-256, P-384 and P-521 are legal"
    ),
    self_signed_ed25519(): "its key is neither RSA nor ECDSA",
    server(): "its certificate is for no name",
    with_mail_only(): "its certificate is for no name",
    KEY + certificate(ecdsa_key(), "a.lan", extensions=[STAPLED]): (
        "its certificate must be stapled (OCSP), and gateways staple none; order one without"
    ),
    KEY + certificate(ecdsa_key(), "a.lan", extensions=[usage(digital_signature=False)]): (
        "the key usage of its certificate has no digital signature, which TLS needs"
    ),
}


def good(text: str) -> TlsCertificate:
    read = tls_certificate.read(text)
    assert isinstance(read, TlsCertificate), read
    return read


@pytest.mark.parametrize("text", GOOD_TEXTS.values(), ids=GOOD_TEXTS)
def test_good_ones_are_read(text: str):
    read = good(text)
    assert read.names in ((), ("*.shop.lan", "shop.lan"), ("shop.lan",))
    again = good(read.key.reveal() + read.chain)
    assert (again.chain, again.key, again.key_type) == (read.chain, read.key, read.key_type)


@pytest.mark.parametrize(("text", "reason"), BAD_TEXTS.items(), ids=BAD_TEXTS.values())
def test_each_bad_one_has_its_reason(text: str, reason: str):
    assert tls_certificate.read(text) == reason


def test_envoy_agrees_about_all_of_them():
    """The good ones in one configuration, which Envoy takes; each of the others alone, which it refuses."""
    pairs = [(read.chain, read.key.reveal()) for read in map(good, GOOD_TEXTS.values())]
    assert refusal(*pairs) == ""
    refused = {
        reason: refusal((text, text))
        for text, reason in BAD_TEXTS.items()
        if re.match("its (RSA|curve|certificate)|the key usage|the private key (does|belongs|cannot)", reason)
    }
    assert all(refused.values()), refused


def refusal(*pairs: tuple[str, str]) -> str:
    """What Envoy says against a listener that presents these chains and keys; empty where it takes them."""
    chains = [
        {"filter_chain_match": {"server_names": [f"{number}.lan"]}, "transport_socket": tls(chain, key)}
        for number, (chain, key) in enumerate(pairs)
    ]
    return validated([{"name": "one", "address": address(0), "filter_chains": chains}], [])


def tls(chain: str, key: str) -> dict[str, Any]:
    type_ = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
    pair = {"certificate_chain": {"inline_string": chain}, "private_key": {"inline_string": key}}
    context = {"@type": type_, "common_tls_context": {"tls_certificates": [pair]}}
    return {"name": "tls", "typed_config": context}


def test_a_kubernetes_secret_has_both_apart():
    chain = certificate(ecdsa_key(), "shop.lan")
    assert tls_certificate.read_pair(chain, KEY) == tls_certificate.read(KEY + chain)
    assert tls_certificate.read_pair(chain, "") == "missing private key"
    assert tls_certificate.read_pair("", KEY) == "missing server certificate"


def test_no_key_is_shown():
    assert "PRIVATE KEY" not in repr(good(GOOD))


@pytest.mark.parametrize(
    ("at", "problem"),
    [
        (NOW, ""),
        (NOW - DAY, ""),
        (NOW - DAY - timedelta(seconds=1), "is not valid before {before}"),
        (NOW + DAY, "has expired at {after}"),
    ],
)
def test_dates_are_judged_at_a_time(at: datetime, problem: str):
    shown = problem.format(before=f"{NOW - DAY:%Y-%m-%dT%H:%M:%SZ}", after=f"{NOW + DAY:%Y-%m-%dT%H:%M:%SZ}")
    read = good(GOOD)
    assert tls_certificate.date_problem(read.not_before, read.not_after, at) == shown


@pytest.mark.parametrize("host", ["", "*", "shop.lan", "SHOP.lan.", "a.shop.lan", "*.shop.lan"])
def test_names_that_are_covered(host: str):
    assert tls_certificate.name_problem(good(GOOD), host) == ""


@pytest.mark.parametrize(
    "host", ["lan", "a.b.shop.lan", "*.a.shop.lan", "*.lan", "xshop.lan", "shop.lan.org"]
)
def test_names_that_are_not_covered(host: str):
    problem = tls_certificate.name_problem(good(GOOD), host)
    assert problem == f'has no name for "{host}"; it is for *.shop.lan, shop.lan'


@given(st.data())
def test_no_text_makes_it_raise(data: st.DataObject):
    """Whatever bytes of a good text are replaced: an answer, and never a key in it."""
    text = data.draw(st.sampled_from([GOOD, GOOD_TEXTS["RSA"], GOOD_TEXTS["with its issuer"]]))
    at = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 40))
    put = data.draw(st.one_of(st.text(max_size=40), st.text("AQEBMIghx+/=\n- ", max_size=40)))
    read = tls_certificate.read(text[:at] + put + text[at + length :])
    assert isinstance(read, TlsCertificate) or len(read) < 200
