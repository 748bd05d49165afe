"""Certificates of servers for tests: one CA, and what it issued, as text with the key and the chain."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import (
    CertificateIssuerPrivateKeyTypes,
    CertificatePublicKeyTypes,
)

NOW = datetime.now(UTC).replace(microsecond=0)
PEM = serialization.Encoding.PEM
DAY = timedelta(days=1)


@cache
def rsa_key(bits: int = 2048, number: int = 0) -> rsa.RSAPrivateKey:
    """A key that all tests share, since making one takes its time; `number` tells several apart."""
    return rsa.generate_private_key(65537, bits)


@cache
def ecdsa_key(number: int = 0, curve: type[ec.EllipticCurve] = ec.SECP256R1) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(curve())


@cache
def root() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """The CA that clients trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name.from_rfc4514_string("CN=test root")
    ca = x509.BasicConstraints(ca=True, path_length=None)
    builder = _builder(name, name, key.public_key(), NOW - DAY, NOW + DAY)
    return key, builder.add_extension(ca, critical=True).sign(key, hashes.SHA256())


def root_pem() -> str:
    return pem(root()[1])


def certificate(
    key: CertificateIssuerPrivateKeyTypes,
    *names: str,
    common_name: str = "",
    not_before: datetime = NOW - DAY,
    not_after: datetime = NOW + DAY,
    extensions: Sequence[x509.ExtensionType] = (),
) -> str:
    """A certificate of the CA for these names, as PEM."""
    subject = x509.Name.from_rfc4514_string(f"CN={common_name}") if common_name else x509.Name([])
    issuer_key, issuer = root()
    builder = _builder(subject, issuer.subject, key.public_key(), not_before, not_after)
    if names:
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = builder.add_extension(alternatives, critical=True)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return pem(builder.sign(issuer_key, hashes.SHA256()))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: CertificatePublicKeyTypes,
    not_before: datetime,
    not_after: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
    )


def pem(value: x509.Certificate | CertificateIssuerPrivateKeyTypes, *, traditional: bool = False) -> str:
    if isinstance(value, x509.Certificate):
        return value.public_bytes(PEM).decode()
    form = (
        serialization.PrivateFormat.TraditionalOpenSSL if traditional else serialization.PrivateFormat.PKCS8
    )
    return value.private_bytes(PEM, form, serialization.NoEncryption()).decode()


def server(*names: str, key: CertificateIssuerPrivateKeyTypes | None = None, **fields: datetime) -> str:
    """Key and certificate in one text, as a Secret of a gateway has them."""
    own = key or ecdsa_key()
    return pem(own) + certificate(own, *names, **fields)
