"""Short-lived certificates of proxies (leaf certificates of the mesh CA).

A certificate is renewed at the end of an epoch. Epochs last four fifths of its lifetime and depend only on
the clock and the proxy, so that all control planes agree on them: a certificate outlives its epoch, and a
proxy that reconnects to another control plane keeps its certificate. Each proxy has its own phase, so that
not all are renewed at once.
"""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from koguma.identity import authority
from koguma.identity.authority import CLOCK_SKEW, Authority, PrivateKey
from koguma.identity.certificates import UnusableCertificate
from koguma.kinds import mesh
from koguma.kinds.mesh import MeshCertRotation, MeshDpCert, MeshMtlsBackend
from koguma.model.redacted import Redacted

LIFETIME: Final = timedelta(hours=24)
LIFETIME_MIN: Final = timedelta(seconds=10)  # below this a proxy would only change certificates
LIFETIME_MAX: Final = timedelta(days=3650)

_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(milliseconds=1)


class ProxyCertificate(msgspec.Struct, frozen=True):
    """A certificate with its chain, its key, and its validity."""

    certificate: str  # PEM, then its chain
    key: Redacted
    not_before: datetime
    not_after: datetime
    serial: int


class RenewalEpoch(msgspec.Struct, frozen=True):
    """A period in which the certificate of a proxy is not renewed."""

    number: int
    ends: datetime


def lifetime(backend: MeshMtlsBackend) -> timedelta:
    """How long the certificates of a backend are valid."""
    rotation = (backend.dp_cert or MeshDpCert()).rotation or MeshCertRotation()
    try:
        seconds = mesh.seconds(rotation.expiration or "0")
    except ValueError:
        return LIFETIME
    if not seconds:
        return LIFETIME
    return timedelta(seconds=min(max(seconds, LIFETIME_MIN.total_seconds()), LIFETIME_MAX.total_seconds()))


def epoch(proxy: str, lifetime: timedelta, now: datetime) -> RenewalEpoch:
    """The current epoch of a proxy; `proxy` is any unique text."""
    length = lifetime // _TICK * 4 // 5
    phase = int.from_bytes(hashlib.blake2b(proxy.encode(), digest_size=8).digest()) % length
    number = ((now - _UNIX_EPOCH) // _TICK - phase) // length
    return RenewalEpoch(number, _UNIX_EPOCH + ((number + 1) * length + phase) * _TICK)


def issue(ca: Authority, uris: tuple[str, ...], lifetime: timedelta, now: datetime) -> ProxyCertificate:
    """A new certificate with these URIs; it expires with its CA at the latest."""
    if ca.signer is None:
        raise UnusableCertificate("the CA has no key here, so it cannot issue; give its private key")
    not_before, not_after = now - CLOCK_SKEW, min(now + lifetime, ca.not_after)
    if not_before >= not_after:
        raise UnusableCertificate(f"the CA expired on {ca.not_after:%Y-%m-%d %H:%M} UTC; it cannot issue")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(ca, ca.signer, key, uris).not_valid_before(not_before).not_valid_after(not_after)
    certificate = builder.sign(ca.signer, hashes.SHA256())
    return ProxyCertificate(
        certificate=authority.pem(certificate) + ca.chain,
        key=authority.key_pem(key),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        serial=certificate.serial_number,
    )


def _builder(
    ca: Authority, signer: PrivateKey, key: ec.EllipticCurvePrivateKey, uris: tuple[str, ...]
) -> x509.CertificateBuilder:
    # URIs in a certificate are ASCII. An old tag that is not must not break the other URIs.
    names = x509.SubjectAlternativeName(
        [x509.UniformResourceIdentifier(uri) for uri in uris if uri.isascii()]
    )
    usage = authority.key_usage(digital_signature=True, key_agreement=True)
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(ca.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(usages, critical=False)
        # With an empty subject the names identify the proxy, so the extension is critical (RFC 5280 4.2.1.6).
        .add_extension(names, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_authority_key_identifier(ca, signer), critical=False)
    )


def _authority_key_identifier(ca: Authority, signer: PrivateKey) -> x509.AuthorityKeyIdentifier:
    """Tells apart several CAs with the same name."""
    try:
        identifier = ca.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
