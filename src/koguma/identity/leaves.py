"""Leaves: the certificates of proxies, which say who they are, for a short time.

A proxy's certificate is renewed at the end of an epoch. Epochs last four fifths of a certificate's life and
follow from the clock and the proxy alone, so that all control planes count the same ones: what was issued in
an epoch outlives it, and a proxy that comes back to another control plane keeps what it has. Each proxy has
its own phase, since all of them together would be a burst.
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
from koguma.identity.authority import SKEW, Authority, PrivateKey
from koguma.identity.certificates import UnusableCertificate
from koguma.kinds import mesh
from koguma.kinds.mesh import MeshCertRotation, MeshDpCert, MeshMtlsBackend
from koguma.model.redacted import Redacted

LIFETIME: Final = timedelta(hours=24)
LIFETIME_MIN: Final = timedelta(seconds=10)  # below this a proxy would do nothing but change certificates
LIFETIME_MAX: Final = timedelta(days=3650)

_ZERO: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(milliseconds=1)


class Leaf(msgspec.Struct, frozen=True):
    """A certificate with what leads to its root, its key, and when it is valid."""

    certificate: str  # PEM, the proxy's own first
    key: Redacted
    not_before: datetime
    not_after: datetime
    serial: int


class Epoch(msgspec.Struct, frozen=True):
    """A time during which a proxy's certificate is not renewed."""

    number: int
    ends: datetime


def lifetime(backend: MeshMtlsBackend) -> timedelta:
    """How long certificates of a backend are valid."""
    rotation = (backend.dp_cert or MeshDpCert()).rotation or MeshCertRotation()
    try:
        seconds = mesh.seconds(rotation.expiration or "0")
    except ValueError:
        return LIFETIME
    if not seconds:
        return LIFETIME
    return timedelta(seconds=min(max(seconds, LIFETIME_MIN.total_seconds()), LIFETIME_MAX.total_seconds()))


def epoch(proxy: str, life: timedelta, now: datetime) -> Epoch:
    """The epoch of a proxy; `proxy` is any text that is its own."""
    length = life // _TICK * 4 // 5
    phase = int.from_bytes(hashlib.blake2b(proxy.encode(), digest_size=8).digest()) % length
    number = ((now - _ZERO) // _TICK - phase) // length
    return Epoch(number, _ZERO + ((number + 1) * length + phase) * _TICK)


def issue(by: Authority, uris: tuple[str, ...], life: timedelta, now: datetime) -> Leaf:
    """A new certificate for whom these URIs name; it ends with its CA at the latest."""
    if by.signer is None:
        raise UnusableCertificate("the CA has no key here, so it cannot issue; give its private key")
    begins, ends = now - SKEW, min(now + life, by.ends)
    if begins >= ends:
        raise UnusableCertificate(f"the CA expired on {by.ends:%Y-%m-%d %H:%M} UTC; it cannot issue")
    key = ec.generate_private_key(ec.SECP256R1())
    made = _builder(by, by.signer, key, uris).not_valid_before(begins).not_valid_after(ends)
    certificate = made.sign(by.signer, hashes.SHA256())
    return Leaf(
        certificate=authority.pem(certificate) + by.chain,
        key=authority.key_pem(key),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        serial=certificate.serial_number,
    )


def _builder(
    by: Authority, signer: PrivateKey, key: ec.EllipticCurvePrivateKey, uris: tuple[str, ...]
) -> x509.CertificateBuilder:
    # A certificate can hold ASCII alone; a tag from before there were rules must not cost the others.
    names = x509.SubjectAlternativeName(
        [x509.UniformResourceIdentifier(uri) for uri in uris if uri.isascii()]
    )
    usage = authority.key_usage(digital_signature=True, key_agreement=True)
    roles = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(roles, critical=False)
        # With an empty subject the names are all there is, so nobody may pass over them (RFC 5280 4.2.1.6).
        .add_extension(names, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_issuer_key(by, signer), critical=False)
    )


def _issuer_key(by: Authority, signer: PrivateKey) -> x509.AuthorityKeyIdentifier:
    """Which of several CAs with the same name it was."""
    try:
        own = by.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
