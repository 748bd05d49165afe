"""The CA of a mesh: what is made, what is read, and what is said about one that cannot be used."""

import base64
import os
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from koguma.identity import authority
from koguma.identity.authority import CaProblem
from koguma.kinds.mesh import MeshBuiltinCert, MeshMtlsBackend

CERT, KEY = authority.secret_names("shop", "ca-1")


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def secrets_of(pair):
    """The Secrets of a builtin CA, by name."""
    return {CERT: encoded(pair.certificate), KEY: encoded(pair.key.reveal())}


def builtin(**conf):
    return MeshMtlsBackend(name="ca-1", type="builtin", conf=conf or None)


def provided(cert, key):
    return MeshMtlsBackend(name="ca-1", type="provided", conf={"cert": cert, "key": key})


@pytest.fixture
def made(now):
    return authority.make("shop", MeshBuiltinCert(), now)


def parsed(pair):
    return x509.load_pem_x509_certificate(pair.certificate.encode())


def extension(pair, kind):
    return parsed(pair).extensions.get_extension_for_class(kind)


def test_a_builtin_ca_says_whose_it_is(made, now):
    found = parsed(made)
    assert found.subject.rfc4514_string() == "CN=shop,OU=Mesh,O=Kuma"
    assert found.issuer == found.subject
    names = extension(made, x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://shop"]
    assert found.not_valid_before_utc == now - timedelta(seconds=10)
    assert found.not_valid_after_utc == now + timedelta(days=3650)


def test_a_builtin_ca_may_sign_certificates_and_nothing_else(made):
    basic, usage = extension(made, x509.BasicConstraints), extension(made, x509.KeyUsage)
    assert basic.critical
    assert basic.value.ca
    assert usage.critical
    assert usage.value.key_cert_sign
    assert usage.value.crl_sign
    assert not usage.value.digital_signature


@pytest.mark.parametrize(
    ("wanted", "kind", "bits"),
    [
        (MeshBuiltinCert(), ec.EllipticCurvePublicKey, 256),
        (MeshBuiltinCert(rsa_bits=0), ec.EllipticCurvePublicKey, 256),
        (MeshBuiltinCert(rsa_bits=2048), rsa.RSAPublicKey, 2048),
        (MeshBuiltinCert(rsa_bits=16), rsa.RSAPublicKey, 2048),
    ],
)
def test_the_key_is_as_the_mesh_says(wanted, kind, bits, now):
    found = parsed(authority.make("shop", wanted, now)).public_key()
    assert isinstance(found, kind)
    assert found.key_size == bits


@pytest.mark.parametrize(
    ("text", "days"),
    [("1y", 365), ("2w", 14), ("0", 3650), ("soon", 3650), (None, 3650), ("99999999999999y", 36500)],
)
def test_a_builtin_ca_lives_as_long_as_the_mesh_says(text, days, now):
    found = parsed(authority.make("shop", MeshBuiltinCert(expiration=text), now))
    assert found.not_valid_after_utc == now + timedelta(days=days)


def test_what_was_made_can_be_read(made):
    reading = authority.read("shop", builtin(), secrets_of(made).get)
    assert reading.problems == ()
    assert reading.authority.bundle == made.certificate
    assert reading.authority.chain == ""
    assert reading.authority.signer is not None
    assert reading.authority.id == parsed(made).fingerprint(hashes.SHA256()).hex()


@pytest.mark.parametrize("place", ["inline", "inlineString", "secret", "file"])
def test_a_provided_ca_is_read_from_every_place(place, made, tmp_path):
    def source(name, text):
        path = tmp_path / name
        path.write_text(text)
        words = {"inline": encoded(text), "inlineString": text, "secret": name, "file": str(path)}
        return {place: words[place]}

    sources = source(CERT, made.certificate), source(KEY, made.key.reveal())
    reading = authority.read("shop", provided(*sources), secrets_of(made).get)
    assert reading.problems == ()
    assert reading.authority.signer is not None


def test_an_intermediate_goes_along_with_leaves_and_its_root_does_not(now):
    root, between = issued(now, "root"), issued(now, "between", by="root")
    backend = provided({"inlineString": between[0] + root[0]}, {"inlineString": between[1]})
    reading = authority.read("shop", backend, {}.get)
    assert reading.problems == ()
    assert reading.authority.chain == between[0]
    assert reading.authority.bundle == between[0] + root[0]


_KEYS = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("root", "between", "other")}


def issued(now, name, *, by="", ca=True, signs=True, agrees=False, key=None):
    """A certificate and a key of our choice, as PEM."""
    key = key or _KEYS[name]
    signer = _KEYS[by] if by else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, by or name)]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=10))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(
            authority.key_usage(key_cert_sign=signs, digital_signature=True, key_agreement=agrees),
            critical=True,
        )
    )
    algorithm = None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(encoding, form, serialization.NoEncryption()).decode()
    return authority.pem(builder.sign(signer, algorithm)), private


def read_inline(cert, key):
    return authority.read("shop", provided({"inlineString": cert}, {"inlineString": key}), {}.get)


@pytest.mark.parametrize(
    ("flaw", "said"),
    [
        ({"ca": False}, "basic constraint 'CA' must be set to 'true'"),
        ({"signs": False}, "key usage extension 'keyCertSign' must be set"),
        ({"agrees": True}, "key usage extension 'keyAgreement' must NOT be set"),
    ],
)
def test_what_may_not_sign_is_no_ca(flaw, said, now):
    reading = read_inline(*issued(now, "root", **flaw))
    assert reading.authority is None
    assert [text for text in reading.problems if text.startswith(said)]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (_KEYS["other"], "do not belong together"),
        (ed25519.Ed25519PrivateKey.generate(), "neither RSA nor elliptic-curve"),
        (None, "the private key cannot be read"),
    ],
    ids=["another", "odd", "none"],
)
def test_a_ca_without_its_key_is_trusted_and_cannot_issue(key, said, now):
    reading = read_inline(issued(now, "root")[0], issued(now, "it", key=key)[1] if key else "not a key")
    assert reading.authority is not None
    assert reading.authority.signer is None
    assert said in reading.problems[0]
    assert len(reading.problems) == 1


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"secret": "gone"}, 'there is no Secret "gone"'),
        ({"secret": "odd"}, 'the certificate in Secret "odd" is not base64'),
        ({"inline": encoded("PEM")}, "not a valid x509 certificate"),
        ({"inlineString": "PEM"}, "not a valid x509 certificate"),
        ({"file": "/does/not/exist"}, '"/does/not/exist" cannot be read: No such file or directory'),
        ({"file": "/dev/zero"}, "give a file of at most 1 MiB"),
        ({"file": "/tmp"}, "give a file of at most 1 MiB"),
        ({"file": "a\0b"}, "it is no path"),
        ({}, "no certificate is given"),
    ],
)
def test_every_bad_place_is_named(source, said):
    reading = authority.read("shop", provided(source, {"inlineString": "x"}), {"odd": "%%"}.get)
    assert reading.authority is None
    assert said in reading.problems[0]
    assert "private key" in reading.problems[1]


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    source = {"file": str(tmp_path / "pipe")}
    assert authority.read("shop", provided(source, source), {}.get).authority is None


def test_a_conf_that_was_never_checked_is_a_problem_and_no_crash():
    backend = MeshMtlsBackend(name="ca-1", type="provided", conf={"cert": 5})
    assert len(authority.read("shop", backend, {}.get).problems) == 2


@pytest.mark.parametrize(
    ("days", "said"), [(-1, "not valid before"), (0, ""), (7, ""), (9, "expires on"), (10, "expired on")]
)
def test_the_dates_of_a_ca_are_told_in_time(days, said, now):
    found = read_inline(*issued(now, "root")).authority
    told = list(authority.date_problems(found, now + timedelta(days=days)))
    assert bool(told) == bool(said)
    assert all(said in text for text in told)
    assert found.is_valid(now + timedelta(days=days)) == (said in ("", "expires on"))


def test_a_problem_names_the_mesh_and_the_backend():
    assert str(CaProblem("shop", "ca-1", "it is late")) == 'Mesh "shop", mTLS backend "ca-1": it is late'


def test_no_key_is_ever_shown(made):
    reading = authority.read("shop", builtin(), secrets_of(made).get)
    middle = made.key.reveal().splitlines()[1]
    for shown in (repr(made), repr(reading), str(reading.authority)):
        assert middle not in shown
