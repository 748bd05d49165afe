"""Certificates: the control plane's own CA, the server certificate that it signs, and checks of others.

Keys are P-256. New certificates are valid a little before `now`, because the clocks of clients differ.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from koguma.model.errors import KogumaError
from koguma.model.names import NAME_LENGTH_MAX
from koguma.model.redacted import Redacted

AUTHORITY_LIFETIME: Final = timedelta(days=3650)
SERVER_LIFETIME: Final = timedelta(days=365)
CLOCK_SKEW: Final = timedelta(minutes=5)


class UnusableCertificate(KogumaError):
    """A certificate or key cannot be used; the message says which, why, and what to do."""


class KeyPair(msgspec.Struct, frozen=True):
    """A certificate and its private key, both as PEM."""

    certificate: str
    key: Redacted


def make_key() -> Redacted:
    """A new P-256 key."""
    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return Redacted(pem.decode())


def make_authority(key: Redacted, now: datetime) -> KeyPair:
    """A self-signed CA with `key`, valid for ten years."""
    private = _signing_key(key)
    name = _common_name("Koguma control plane CA")
    builder = (
        _builder(name, name, private, now, now + AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return KeyPair(_pem(builder.sign(private, hashes.SHA256())), key)


def make_server(authority: KeyPair, names: Sequence[str], now: datetime) -> KeyPair:
    """A server certificate for DNS names and IP addresses, valid for a year but no longer than the CA."""
    alternative = x509.SubjectAlternativeName([_general_name(name) for name in names])
    return _issued(authority, "Koguma control plane", ExtendedKeyUsageOID.SERVER_AUTH, alternative, now)


def make_client(authority: KeyPair, name: str, now: datetime) -> KeyPair:
    """A client certificate for a common name, valid for a year but no longer than the CA."""
    return _issued(authority, name, ExtendedKeyUsageOID.CLIENT_AUTH, None, now)


def _issued(
    authority: KeyPair,
    name: str,
    usage: x509.ObjectIdentifier,
    alternative: x509.SubjectAlternativeName | None,
    now: datetime,
) -> KeyPair:
    ca, ca_key = _leaf(authority.certificate), _signing_key(authority.key)
    key = make_key()
    private = _signing_key(key)
    not_after = min(now + SERVER_LIFETIME, ca.not_valid_after_utc)
    builder = (
        _builder(_common_name(name), ca.subject, private, now, not_after)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    if alternative is not None:
        builder = builder.add_extension(alternative, critical=False)
    return KeyPair(_pem(builder.sign(ca_key, hashes.SHA256())), key)


def needs_renewal(certificate: str, now: datetime) -> bool:
    """Whether four fifths of a certificate's lifetime are over."""
    leaf = _leaf(certificate)
    not_before, not_after = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    return now >= not_before + (not_after - not_before) * 4 / 5


def expires_at(certificate: str) -> datetime:
    """When a certificate expires."""
    return _leaf(certificate).not_valid_after_utc


def first(certificate: str) -> str:
    """The first certificate of a PEM, alone."""
    return _pem(_leaf(certificate))


def fingerprint(certificate: str) -> str:
    """The SHA-256 of a certificate, as openssl prints it: `AB:CD:...`."""
    return _leaf(certificate).fingerprint(hashes.SHA256()).hex(":").upper()


def covers(certificate: str, names: Sequence[str]) -> bool:
    """Whether a certificate contains all of `names`."""
    try:
        alternative = _leaf(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return False
    return {_general_name(name) for name in names} <= set(alternative.value)


def is_issued_by(certificate: str, authority: str) -> bool:
    """Whether the CA signed the certificate."""
    try:
        _leaf(certificate).verify_directly_issued_by(_leaf(authority))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def problems(certificate: str, key: Redacted | None, now: datetime) -> Iterator[str]:
    """All reasons why a certificate, and its key if given, cannot be used."""
    leaf = private = None
    try:
        leaf = _leaf(certificate)
    except UnusableCertificate as error:
        yield error.detail
    try:
        private = None if key is None else _key(key)
    except UnusableCertificate as error:
        yield error.detail
    if leaf is not None:
        yield from _date_problems(leaf, now)
    if leaf is not None and private is not None and leaf.public_key() != private.public_key():
        yield "the certificate and the private key do not belong together; give the key that it was made for"


def _date_problems(leaf: x509.Certificate, now: datetime) -> Iterator[str]:
    not_before, not_after = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if now < not_before:
        yield f"the certificate is not valid before {not_before:%Y-%m-%d %H:%M} UTC; is the clock right?"
    if now >= not_after:
        yield f"the certificate expired on {not_after:%Y-%m-%d %H:%M} UTC; give a newer one"


def bundle(texts: Iterable[str], now: datetime) -> str:
    """The certificates in some texts as one PEM, each once; without those that expired or cannot be read."""
    unique: dict[str, None] = {}
    for text in texts:
        try:
            listed = x509.load_pem_x509_certificates(text.encode())
        except ValueError:
            continue
        unique.update((_pem(each), None) for each in listed if each.not_valid_after_utc > now)
    return "".join(unique)


def _leaf(certificate: str) -> x509.Certificate:
    """The first certificate of a PEM; those after it are its chain."""
    try:
        return x509.load_pem_x509_certificates(certificate.encode("utf-8", "replace"))[0]
    except ValueError as error:
        raise UnusableCertificate("the certificate cannot be read; give X.509 in PEM form") from error


def _key(key: Redacted) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(key.reveal().encode("utf-8", "replace"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UnusableCertificate(
            "the private key cannot be read; give it in PEM form, without a password"
        ) from error


def _signing_key(key: Redacted) -> ec.EllipticCurvePrivateKey:
    private = _key(key)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise UnusableCertificate("the private key is not an elliptic-curve key, which a CA of ours needs")
    return private


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    lowered = name.lower()
    if not lowered.isascii() or not lowered.isprintable() or not 0 < len(lowered) <= NAME_LENGTH_MAX:
        raise UnusableCertificate(f"{name!r} cannot stand in a certificate; give a DNS name or an IP address")
    return x509.DNSName(lowered)


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    not_before: datetime,
    not_after: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before - CLOCK_SKEW)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
