"""Certificates of proxies: what is in them, when they are renewed, and what real TLS makes of them."""

import base64
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from koguma.identity import authority, proxy_certificates
from koguma.identity.certificates import UnusableCertificate
from koguma.kinds.mesh import MeshBuiltinCert, MeshCertRotation, MeshDpCert, MeshMtlsBackend

DAY = timedelta(days=1)
URIS = ("spiffe://shop/web", "kuma://kuma.io/service/web", "kuma://version/1")
EC, RSA = MeshBuiltinCert(), MeshBuiltinCert(rsa_bits=2048)


def make_ca(now, wanted=EC):
    """A CA, as it is read back from its Secrets."""
    pair = authority.make("shop", wanted, now)
    texts = (pair.certificate, pair.key.reveal())
    names = authority.secret_names("shop", "ca-1")
    stored = {n: base64.b64encode(t.encode()).decode() for n, t in zip(names, texts, strict=True)}
    reading = authority.read("shop", MeshMtlsBackend(name="ca-1", type="builtin"), stored.get)
    assert reading.problems == ()
    return reading.authority


def parsed(leaf):
    return x509.load_pem_x509_certificate(leaf.certificate.encode())


@pytest.fixture
def today():
    return datetime.now(UTC).replace(microsecond=0)  # OpenSSL asks the real clock


def test_a_leaf_is_nothing_but_its_uris(now):
    ca = make_ca(now)
    leaf = proxy_certificates.issue(ca, URIS, DAY, now)
    found = parsed(leaf)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.critical
    assert tuple(names.value.get_values_for_type(x509.UniformResourceIdentifier)) == URIS
    assert list(found.subject) == []
    assert found.issuer == ca.certificate.subject
    found.verify_directly_issued_by(ca.certificate)


def test_a_leaf_may_serve_and_call_and_not_sign(now):
    found = parsed(proxy_certificates.issue(make_ca(now), URIS, DAY, now)).extensions
    roles = found.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(roles) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    usage = found.get_extension_for_class(x509.KeyUsage).value
    assert usage.digital_signature
    assert usage.key_agreement
    assert not usage.key_cert_sign
    assert not found.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_leaf_says_when_it_holds(now):
    leaf = proxy_certificates.issue(make_ca(now), URIS, timedelta(hours=1), now)
    assert leaf.not_before == now - timedelta(seconds=10)
    assert leaf.not_after == now + timedelta(hours=1)
    assert leaf.serial == parsed(leaf).serial_number


def test_a_leaf_ends_with_its_ca(now):
    ca = make_ca(now, MeshBuiltinCert(expiration="2h"))
    assert proxy_certificates.issue(ca, URIS, DAY, now).not_after == ca.not_after
    with pytest.raises(UnusableCertificate, match="expired"):
        proxy_certificates.issue(ca, URIS, DAY, ca.not_after + DAY)


def test_a_uri_that_no_certificate_can_hold_does_not_cost_the_others(now):
    found = parsed(proxy_certificates.issue(make_ca(now), (*URIS, "kuma://täg/1"), DAY, now))
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert tuple(names.get_values_for_type(x509.UniformResourceIdentifier)) == URIS


def test_every_leaf_has_a_key_and_a_number_of_its_own(now):
    ca = make_ca(now)
    one, other = (proxy_certificates.issue(ca, URIS, DAY, now) for _ in range(2))
    assert one.serial != other.serial
    assert one.key != other.key


def test_a_leaf_never_shows_its_key(now):
    leaf = proxy_certificates.issue(make_ca(now), URIS, DAY, now)
    assert leaf.key.reveal().splitlines()[1] not in repr(leaf)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, DAY),
        ("1d", DAY),
        ("12h", timedelta(hours=12)),
        ("0", DAY),
        ("never", DAY),
        ("1ms", timedelta(seconds=10)),
        ("99999999999y", timedelta(days=3650)),
    ],
)
def test_the_lifetime_is_what_the_mesh_says_within_reason(text, expected):
    backend = MeshMtlsBackend(dp_cert=MeshDpCert(rotation=MeshCertRotation(expiration=text)))
    assert proxy_certificates.lifetime(backend) == expected
    assert proxy_certificates.lifetime(MeshMtlsBackend()) == DAY


@given(
    proxy=st.text(max_size=5),
    seconds=st.integers(10, 10**8),
    at=st.datetimes(datetime(2020, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)
def test_an_epoch_is_four_fifths_of_a_life_and_ends_before_what_was_issued_in_it(proxy, seconds, at):
    life = timedelta(seconds=seconds)
    epoch = proxy_certificates.epoch(proxy, life, at)
    assert at < epoch.ends <= at + life * 4 / 5
    following = proxy_certificates.epoch(proxy, life, epoch.ends)
    assert following.number == epoch.number + 1
    assert following.ends - epoch.ends == timedelta(milliseconds=int(life.total_seconds() * 1000) * 4 // 5)
    just_before = epoch.ends - timedelta(milliseconds=1)
    assert proxy_certificates.epoch(proxy, life, max(just_before, at)) == epoch


def test_proxies_are_not_renewed_all_at_once(now):
    ends = {proxy_certificates.epoch(f"web-{number}", DAY, now).ends for number in range(100)}
    assert len(ends) == 100
    assert max(ends) - min(ends) > timedelta(hours=12)


# Real TLS, over real sockets.


def context(side, leaf, bundle, tmp_path):
    """What one end knows: its own certificate, and whom it trusts."""
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_text(leaf.certificate)
    key.write_text(leaf.key.reveal())
    made = ssl.SSLContext(side)
    made.check_hostname = False  # Envoy compares URIs, not host names
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_cert_chain(chain, key)
    made.load_verify_locations(cadata=bundle)
    return made


def call(client, server):
    """A call over loopback; gives the server's and the client's URIs as the other end sees them."""
    seen = {}

    def serve():
        try:
            with server.wrap_socket(accepting.accept()[0], server_side=True) as stream:
                seen["client"] = uris_of(stream)
                stream.sendall(b"ok")
        except (ssl.SSLError, OSError) as error:
            seen["refusal"] = error

    with socket.create_server(("127.0.0.1", 0)) as accepting:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(accepting.getsockname(), timeout=60) as plain,
                client.wrap_socket(plain) as stream,
            ):
                seen["server"] = uris_of(stream)
                assert stream.recv(2) == b"ok"  # with TLS 1.3 a refusal of the client comes only here
        finally:
            thread.join()
    return seen


def uris_of(stream):
    found = x509.load_der_x509_certificate(stream.getpeercert(binary_form=True))
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(names.get_values_for_type(x509.UniformResourceIdentifier))


def both_ends(server_leaf, client_leaf, server_trusts, client_trusts, tmp_path):
    server = context(ssl.PROTOCOL_TLS_SERVER, server_leaf, server_trusts, tmp_path)
    client = context(ssl.PROTOCOL_TLS_CLIENT, client_leaf, client_trusts, tmp_path)
    return client, server


@pytest.mark.parametrize("wanted", [EC, RSA], ids=["P-256", "RSA"])
def test_two_proxies_of_a_mesh_know_each_other(wanted, today, tmp_path):
    ca = make_ca(today, wanted)
    web, api = (
        proxy_certificates.issue(ca, (f"spiffe://shop/{name}",), DAY, today) for name in ("web", "api")
    )
    seen = call(*both_ends(web, api, ca.bundle, ca.bundle, tmp_path))
    assert seen == {"server": ("spiffe://shop/web",), "client": ("spiffe://shop/api",)}


def test_a_proxy_of_another_ca_is_refused_by_both_ends(today, tmp_path):
    ours, theirs = make_ca(today), make_ca(today)
    web, stranger = (
        proxy_certificates.issue(ours, URIS, DAY, today),
        proxy_certificates.issue(theirs, URIS, DAY, today),
    )
    with pytest.raises(ssl.SSLCertVerificationError):
        call(*both_ends(stranger, web, ours.bundle, ours.bundle, tmp_path))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        call(*both_ends(web, stranger, ours.bundle, ours.bundle, tmp_path))


def test_an_expired_proxy_is_refused(today, tmp_path):
    ca = make_ca(today - DAY)
    old, fresh = (
        proxy_certificates.issue(ca, URIS, timedelta(hours=1), at)
        for at in (today - timedelta(hours=2), today)
    )
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        call(*both_ends(old, fresh, ca.bundle, ca.bundle, tmp_path))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        call(*both_ends(fresh, old, ca.bundle, ca.bundle, tmp_path))


def test_two_cas_of_one_mesh_have_one_name_and_are_told_apart(today, tmp_path):
    first, second = make_ca(today), make_ca(today)
    assert first.certificate.subject == second.certificate.subject
    web, api = (
        proxy_certificates.issue(first, URIS, DAY, today),
        proxy_certificates.issue(second, URIS, DAY, today),
    )
    for bundle in (first.bundle + second.bundle, second.bundle + first.bundle):
        assert call(*both_ends(web, api, bundle, bundle, tmp_path))["server"] == URIS
