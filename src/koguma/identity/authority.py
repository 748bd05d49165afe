"""Authority: the CA of an mTLS backend, builtin or provided.

A builtin CA is created with its backend, and kept in two Secrets of the mesh; a provided one is read from
where the Mesh says. Problems of a CA are sentences and affect nothing else: a certificate without its key is
still trusted, and a CA that cannot be read does not affect the others.
"""

import base64
import binascii
import stat
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from koguma.identity.certificates import KeyPair, UnusableCertificate
from koguma.kinds import mesh
from koguma.kinds.data_source import DataSource
from koguma.kinds.mesh import MeshBuiltinCert, MeshMtlsBackend
from koguma.model.redacted import Redacted

CLOCK_SKEW: Final = timedelta(seconds=10)  # how far clocks of proxies may be behind ours
LIFETIME: Final = timedelta(days=3650)
LIFETIME_MAX: Final = timedelta(days=36500)
FILE_BYTES_MAX: Final = 1024 * 1024

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
_KEY_USAGES: Final = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)

T = TypeVar("T")
E = TypeVar("E", bound=x509.ExtensionType)

SecretData = Callable[[str], str | None]  # the base64 data of a Secret of the mesh, by name


class CaProblem(msgspec.Struct, frozen=True, order=True):
    """Why the CA of a backend does not work, or soon will not."""

    mesh: str
    backend: str
    text: str

    def __str__(self) -> str:
        return f'Mesh "{self.mesh}", mTLS backend "{self.backend}": {self.text}'


class Authority(msgspec.Struct, frozen=True, eq=False):
    """A CA. Two with the same `id` are the same; without `signer` it can be trusted, but cannot issue."""

    id: str  # the SHA-256 of its certificate
    certificate: x509.Certificate
    bundle: str  # its trust bundle: all its certificates, as PEM
    chain: str  # its intermediate certificates, sent with each issued one
    signer: PrivateKey | None

    @property
    def not_before(self) -> datetime:
        """When it becomes valid."""
        return self.certificate.not_valid_before_utc

    @property
    def not_after(self) -> datetime:
        """When it expires."""
        return self.certificate.not_valid_after_utc

    def is_valid(self, now: datetime) -> bool:
        """Whether it is valid now."""
        return self.not_before <= now < self.not_after


class ReadCa(msgspec.Struct, frozen=True, eq=False):
    """The CA of a backend, if it is usable, and its problems."""

    authority: Authority | None
    problems: tuple[str, ...] = ()


def secret_names(mesh_name: str, backend: str) -> tuple[str, str]:
    """The names of the Secrets with the certificate and the key of a builtin CA."""
    return f"{mesh_name}.ca-builtin-cert-{backend}", f"{mesh_name}.ca-builtin-key-{backend}"


def sources(mesh_name: str, backend: MeshMtlsBackend) -> tuple[DataSource, DataSource]:
    """Where the certificate and the key of a backend come from."""
    if backend.type == "builtin":
        cert, key = secret_names(mesh_name, backend.name or "")
        return DataSource(secret=cert), DataSource(secret=key)
    conf = mesh.provided_conf(backend)
    return conf.cert or DataSource(), conf.key or DataSource()


def make(mesh_name: str, conf: MeshBuiltinCert, now: datetime) -> KeyPair:
    """A new self-signed CA for a mesh."""
    key = _new_key(conf.rsa_bits or 0)
    names = ((NameOID.ORGANIZATION_NAME, "Kuma"), (NameOID.ORGANIZATIONAL_UNIT_NAME, "Mesh"))
    subject = x509.Name(
        [x509.NameAttribute(oid, text) for oid, text in (*names, (NameOID.COMMON_NAME, mesh_name))]
    )
    spiffe = x509.UniformResourceIdentifier(f"spiffe://{mesh_name}")
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + _lifetime(conf.expiration))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName([spiffe]), critical=False)
    )
    return KeyPair(pem(builder.sign(key, hashes.SHA256())), key_pem(key))


def _new_key(rsa_bits: int) -> PrivateKey:
    if not rsa_bits:
        return ec.generate_private_key(ec.SECP256R1())
    size = min(max(rsa_bits, mesh.RSA_BITS_MIN), mesh.RSA_BITS_MAX)  # a Mesh may skip its validation
    return rsa.generate_private_key(public_exponent=65537, key_size=size)


def _lifetime(text: str | None) -> timedelta:
    """How long a CA is valid; the default if the text is invalid or zero."""
    try:
        seconds = mesh.seconds(text or "0")
    except ValueError:
        return LIFETIME
    return timedelta(seconds=min(seconds, LIFETIME_MAX.total_seconds())) if seconds >= 1 else LIFETIME


def read(mesh_name: str, backend: MeshMtlsBackend, secret: SecretData) -> ReadCa:
    """Read the CA of a backend; its dates are checked by `date_problems`."""
    cert_source, key_source = sources(mesh_name, backend)
    problems: list[str] = []
    chain = _result_or_problem(problems, lambda: _certificates(_text(cert_source, secret, "certificate")))
    signer = _result_or_problem(problems, lambda: _signer(_text(key_source, secret, "private key")))
    if not chain:
        return ReadCa(None, tuple(problems))
    chain_problems = list(_chain_problems(chain))
    if chain_problems:
        return ReadCa(None, (*problems, *chain_problems))
    if signer is not None and chain[0].public_key() != signer.public_key():
        problems.append(
            "not a valid TLS key pair: the certificate and the private key do not belong together; give the"
            " key that the certificate was made for"
        )
        signer = None
    return ReadCa(_authority(chain, signer), tuple(problems))


def _authority(chain: list[x509.Certificate], signer: PrivateKey | None) -> Authority:
    intermediates = [certificate for certificate in chain if certificate.subject != certificate.issuer]
    return Authority(
        id=chain[0].fingerprint(hashes.SHA256()).hex(),
        certificate=chain[0],
        bundle="".join(map(pem, chain)),
        chain="".join(map(pem, intermediates)),
        signer=signer,
    )


def date_problems(authority: Authority, now: datetime) -> Iterator[str]:
    """Problems with the dates of a CA; also a warning in time before it expires."""
    not_before, not_after = authority.not_before, authority.not_after
    if now < not_before:
        yield f"the CA is not valid before {not_before:%Y-%m-%d %H:%M} UTC; is the clock right?"
    elif now >= not_after:
        yield f"the CA expired on {not_after:%Y-%m-%d %H:%M} UTC; add another backend and enable it"
    elif now >= not_before + (not_after - not_before) * 4 / 5:
        when = f"{not_after:%Y-%m-%d %H:%M} UTC"
        yield f"the CA expires on {when}; add another backend and enable it before that"


def _result_or_problem(problems: list[str], load: Callable[[], T]) -> T | None:
    """The result; where there is none, the reason is added to the problems."""
    try:
        return load()
    except UnusableCertificate as error:
        problems.append(error.detail)
        return None


def _text(source: DataSource, secret: SecretData, what: str) -> str:
    """The PEM of a data source."""
    if source.secret:
        return _decoded(_stored(source.secret, secret), f'the {what} in Secret "{source.secret}"')
    if source.inline:
        return _decoded(source.inline, f"the inline {what}")
    if source.inline_string:
        return source.inline_string
    if source.file:
        return _file(Path(source.file), what)
    raise UnusableCertificate(f"no {what} is given; name a Secret, a file, or write it inline")


def _stored(name: str, secret: SecretData) -> str:
    data = secret(name)
    if data is None:
        raise UnusableCertificate(
            f'there is no Secret "{name}"; write it, or for a builtin CA write the Mesh again'
        )
    return data


def _decoded(data: str, what: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError) as error:
        raise UnusableCertificate(f"{what} is not base64; write it as base64 of its PEM form") from error


def _file(path: Path, what: str) -> str:
    try:
        stats = path.stat()
        # No devices, which never end, and no pipes, which wait for a writer.
        if not stat.S_ISREG(stats.st_mode) or stats.st_size > FILE_BYTES_MAX:
            raise UnusableCertificate(f'the {what} in "{path}" cannot be read; give a file of at most 1 MiB')
        return path.read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no path"
        raise UnusableCertificate(f'the {what} in "{path}" cannot be read: {reason}') from error


def _certificates(text: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(text.encode())
    except ValueError as error:
        raise UnusableCertificate("not a valid x509 certificate; give it in PEM form") from error


def _signer(text: str) -> PrivateKey:
    try:
        key = serialization.load_pem_private_key(text.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UnusableCertificate(
            "the private key cannot be read; give it in PEM form, without a password"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise UnusableCertificate("the private key is neither RSA nor elliptic-curve; give one of these")
    return key


def _chain_problems(chain: list[x509.Certificate]) -> Iterator[str]:
    """Why certificates may not sign others, with Kuma's messages."""
    for certificate in chain:
        basic = _extension(certificate, x509.BasicConstraints)
        usage = _extension(certificate, x509.KeyUsage)
        if basic is None or not basic.ca:
            yield "basic constraint 'CA' must be set to 'true' (see X509-SVID: 4.1. Basic Constraints)"
        if usage is None or not usage.key_cert_sign:
            yield "key usage extension 'keyCertSign' must be set (see X509-SVID: 4.3. Key Usage)"
        if usage is not None and usage.key_agreement:
            yield (
                "key usage extension 'keyAgreement' must NOT be set"
                " (see X509-SVID: Appendix A. X.509 Field Reference)"
            )


def _extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return None


def key_usage(**allowed: bool) -> x509.KeyUsage:
    """The key usage extension with these usages, and no others."""
    return x509.KeyUsage(**{usage: allowed.get(usage, False) for usage in _KEY_USAGES})


def pem(certificate: x509.Certificate) -> str:
    """A certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def key_pem(key: PrivateKey) -> Redacted:
    """A private key as PEM."""
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Redacted(encoded.decode())
