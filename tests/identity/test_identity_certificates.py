"""Certificates: what is made here is accepted by a real TLS client, and bad ones are explained."""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from koguma.identity import certificates
from koguma.identity.certificates import KeyPair, UnusableCertificate
from koguma.model.redacted import Redacted

NAMES = ("localhost", "Control-Plane.example", "127.0.0.1", "::1")
SECOND = timedelta(seconds=1)


def _authority(now) -> KeyPair:
    return certificates.make_authority(certificates.make_key(), now)


def _parsed(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def _shake_hands(server: KeyPair, ca: str, name: str, tmp_path) -> str:
    """A whole TLS handshake in memory; gives the version that the two agreed on."""
    paths = tmp_path / "tls.pem", tmp_path / "tls-key.pem"
    paths[0].write_text(server.certificate)
    paths[1].write_text(server.key.reveal())
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*paths)
    asking = ssl.create_default_context(cadata=ca)
    asking.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(back, there, server_hostname=name)
    waiting = [client, serving.wrap_bio(there, back, server_side=True)]
    for _ in range(10):
        waiting = [each for each in waiting if not _step(each)]
    assert not waiting
    return client.version() or ""


def _step(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


@pytest.fixture
def today() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)  # OpenSSL asks the real clock


@pytest.mark.parametrize("name", ["localhost", "control-plane.example", "127.0.0.1", "::1"])
def test_a_client_with_the_ca_trusts_the_server_by_each_name(name, today, tmp_path) -> None:
    authority = _authority(today)
    server = certificates.make_server(authority, NAMES, today)
    assert _shake_hands(server, authority.certificate, name, tmp_path) == "TLSv1.3"


def test_a_client_refuses_another_name(today, tmp_path) -> None:
    authority = _authority(today)
    server = certificates.make_server(authority, NAMES, today)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        _shake_hands(server, authority.certificate, "elsewhere.example", tmp_path)


def test_a_client_with_another_ca_refuses_the_server(today, tmp_path) -> None:
    server = certificates.make_server(_authority(today), NAMES, today)
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake_hands(server, _authority(today).certificate, "localhost", tmp_path)


def test_an_expired_server_is_refused(today, tmp_path) -> None:
    then = today - timedelta(days=400)
    authority = _authority(then)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        _shake_hands(
            certificates.make_server(authority, NAMES, then), authority.certificate, "localhost", tmp_path
        )


def test_the_ca_signs_for_ten_years_and_nothing_below_it_signs(now) -> None:
    ca = _parsed(_authority(now).certificate)
    assert ca.not_valid_after_utc == now + timedelta(days=3650)
    assert ca.not_valid_before_utc == now - timedelta(minutes=5)
    basic = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)


def test_the_server_certificate_is_for_a_year_for_its_names_and_signs_nothing(now) -> None:
    leaf = _parsed(certificates.make_server(_authority(now), NAMES, now).certificate)
    assert leaf.not_valid_after_utc == now + timedelta(days=365)
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert list(leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value) == [
        x509.DNSName("localhost"),
        x509.DNSName("control-plane.example"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]


def test_the_server_certificate_does_not_outlive_its_ca(now) -> None:
    authority = _authority(now)
    later = now + timedelta(days=3600)
    server = certificates.make_server(authority, NAMES, later)
    assert certificates.expires_at(server.certificate) == certificates.expires_at(authority.certificate)


def test_renewal_is_due_at_four_fifths_of_life(now) -> None:
    server = certificates.make_server(_authority(now), NAMES, now)
    leaf = _parsed(server.certificate)
    life = leaf.not_valid_after_utc - leaf.not_valid_before_utc
    due = leaf.not_valid_before_utc + life * 4 / 5
    assert not certificates.needs_renewal(server.certificate, due - SECOND)
    assert certificates.needs_renewal(server.certificate, due)


def test_the_fingerprint_is_what_other_tools_show(now) -> None:
    server = certificates.make_server(_authority(now), NAMES, now)
    shown = certificates.fingerprint(server.certificate)
    assert len(shown.split(":")) == 32
    der = ssl.PEM_cert_to_DER_cert(server.certificate)
    import hashlib

    assert shown.replace(":", "").lower() == hashlib.sha256(der).hexdigest()


def test_a_certificate_covers_its_names_and_no_others(now) -> None:
    server = certificates.make_server(_authority(now), NAMES, now)
    assert certificates.covers(server.certificate, ["::1", "LOCALHOST"])
    assert certificates.covers(server.certificate, [])
    assert not certificates.covers(server.certificate, ["localhost", "other"])
    assert not certificates.covers(_authority(now).certificate, ["localhost"])


def test_a_certificate_is_issued_by_its_own_ca_only(now) -> None:
    authority = _authority(now)
    server = certificates.make_server(authority, NAMES, now)
    assert certificates.is_issued_by(server.certificate, authority.certificate)
    assert not certificates.is_issued_by(server.certificate, _authority(now).certificate)
    assert not certificates.is_issued_by(authority.certificate, server.certificate)


@pytest.mark.parametrize("name", ["", "bücher.example", "a\nb", "x" * 254])
def test_a_name_that_cannot_stand_in_a_certificate_is_named(name, now) -> None:
    with pytest.raises(UnusableCertificate, match="DNS name or an IP address"):
        certificates.make_server(_authority(now), [name], now)


def test_a_key_pair_does_not_print_its_key(now) -> None:
    assert "PRIVATE KEY" not in repr(_authority(now))


def test_a_good_pair_has_no_problems(now) -> None:
    authority = _authority(now)
    server = certificates.make_server(authority, NAMES, now)
    assert list(certificates.problems(server.certificate, server.key, now)) == []
    chain = server.certificate + authority.certificate
    assert list(certificates.problems(chain, server.key, now)) == []
    assert list(certificates.problems(server.certificate, None, now)) == []


@pytest.mark.parametrize(
    ("days", "words"),
    [(-1, "is not valid before 2026-11-15 11:55 UTC"), (365, "expired on 2027-11-15 12:00 UTC")],
)
def test_a_pair_out_of_date_says_so(days, words, now) -> None:
    server = certificates.make_server(_authority(now), NAMES, now)
    (problem,) = certificates.problems(server.certificate, server.key, now + timedelta(days=days))
    assert words in problem


def test_a_pair_that_does_not_match_says_so(now) -> None:
    server = certificates.make_server(_authority(now), NAMES, now)
    (problem,) = certificates.problems(server.certificate, certificates.make_key(), now)
    assert "do not belong together" in problem


def _locked_key() -> str:
    encryption = serialization.BestAvailableEncryption(b"word")
    key = rsa.generate_private_key(65537, 1024)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    ).decode()


@pytest.mark.parametrize("text", ["", "hunter2", "\udcff", _locked_key()])
def test_what_cannot_be_read_is_said_for_both_at_once_without_its_content(text, now) -> None:
    found = list(certificates.problems(text, Redacted(text), now))
    assert [problem.split(";")[0] for problem in found] == [
        "the certificate cannot be read",
        "the private key cannot be read",
    ]
    assert not any("hunter2" in problem for problem in found)


def test_a_ca_of_ours_needs_a_curve_key(now) -> None:
    key = rsa.generate_private_key(65537, 1024).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(UnusableCertificate, match="elliptic-curve"):
        certificates.make_authority(Redacted(key.decode()), now)
