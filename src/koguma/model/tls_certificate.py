"""TLS certificate: what a server presents, read from one text with its chain and its private key.

A text is good if Envoy takes it: what Envoy would refuse is found here, with the reason, as measured on 1.40
(keys, curves, names, OCSP). Where Kuma has words for a reason, they are used. Dates and names do not make a
certificate unusable, since Envoy presents it and some clients accept it: they are warnings, and the time is
an argument. No key is part of a reason.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from koguma.model.redacted import Redacted

KeyType = Literal["RSA", "ECDSA"]

LENGTH_MAX: Final = 128 * 1024  # characters of a text; more than clients read of a chain
CERTIFICATES_MAX: Final = 16
RSA_BITS_MIN, RSA_BITS_MAX = 2048, 8192
NO_CERTIFICATE: Final = "missing server certificate"
NO_KEY: Final = "missing private key"

_CERTIFICATE: Final = "CERTIFICATE"
_KEYS: Final = ("PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY")
_ENCRYPTED: Final = "ENCRYPTED PRIVATE KEY"
_IGNORED: Final = ("EC PARAMETERS",)  # which `openssl ecparam -genkey` writes before a key
_CURVES: Final = ("secp256r1", "secp384r1", "secp521r1")
_SOON: Final = timedelta(days=14)
_PEM: Final = serialization.Encoding.PEM
_BEGIN: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,64})-----")
_NAMES: Final = (x509.DNSName, x509.IPAddress, x509.UniformResourceIdentifier)


class TlsCertificate(msgspec.Struct, frozen=True):
    """A chain, leaf first, and the key of the leaf."""

    chain: str  # as PEM
    key: Redacted  # as PEM
    key_type: KeyType
    names: tuple[str, ...]  # DNS names of the leaf, in lower case
    not_before: datetime
    not_after: datetime


class _Block(NamedTuple):
    """A block of PEM with its two marks."""

    type: str
    text: str


def read(text: str) -> TlsCertificate | str:
    """The certificate, or the reason why a server cannot present it."""
    if len(text) > LENGTH_MAX:
        return f"is longer than {LENGTH_MAX} characters"
    blocks: list[_Block] = []
    for block in _blocks(text):
        if isinstance(block, str):
            return block
        if block.type not in _IGNORED:
            blocks.append(block)
    problem = _block_problem(blocks)
    if problem:
        return problem
    key = next(block.text for block in blocks if block.type in _KEYS)
    return _read([block.text for block in blocks if block.type == _CERTIFICATE], key)


def read_pair(chain: str, key: str) -> TlsCertificate | str:
    """The same of two texts, as a Kubernetes Secret of type kubernetes.io/tls has them."""
    return read(f"{key}\n{chain}")


def date_problem(not_before: datetime, not_after: datetime, now: datetime) -> str:
    """Why clients refuse a certificate now; empty where its dates are good."""
    if now >= not_after:
        return f"has expired at {_shown(not_after)}"
    if now < not_before:
        return f"is not valid before {_shown(not_before)}"
    return ""


def ends_soon(not_before: datetime, not_after: datetime, now: datetime) -> bool:
    """Whether a certificate is in the last two weeks of its life, or in the last fifth of a short one."""
    return now < not_after < now + min(_SOON, (not_after - not_before) / 5)


def name_problem(certificate: TlsCertificate, hostname: str) -> str:
    """Why clients of a host refuse a certificate; empty where its names cover the host, or all are served."""
    host = hostname.lower().removesuffix(".")
    if host in ("", "*") or host in certificate.names:
        return ""
    is_wildcard, (_, _, parent) = host.startswith("*."), host.partition(".")
    if not is_wildcard and parent and f"*.{parent}" in certificate.names:
        return ""
    names = ", ".join(certificate.names[:5]) + (", ..." if len(certificate.names) > 5 else "")  # noqa: PLR2004 - as many as are shown
    return f'has no name for "{host}"; it is for {names or "no DNS name"}'


def _shown(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _blocks(text: str) -> Iterator[_Block | str]:
    """The blocks of a text in order, or why it cannot be read further; other text is ignored."""
    at = 0
    while (begin := _BEGIN.search(text, at)) is not None:
        end_mark = f"-----END {begin[1]}-----"
        end = text.find(end_mark, begin.end())
        if end < 0:
            yield f'PEM block "{begin[1]}" has no end'
            return
        at = end + len(end_mark)
        yield _Block(begin[1], f"{text[begin.start() : at]}\n")


def _block_problem(blocks: list[_Block]) -> str:
    """What is wrong with the number and types of blocks."""
    types = [block.type for block in blocks]
    unknown = [type_ for type_ in types if type_ not in (_CERTIFICATE, *_KEYS, _ENCRYPTED)]
    n_keys = sum(type_ in (*_KEYS, _ENCRYPTED) for type_ in types)
    n_certificates = len(types) - n_keys
    if unknown:
        return f'unsupported PEM block "{unknown[0]}"'
    if n_keys > 1:
        return "secret contains multiple private keys"
    if not n_certificates:
        return NO_CERTIFICATE
    if not n_keys:
        return NO_KEY
    if n_certificates > CERTIFICATES_MAX:
        return f"has {n_certificates} certificates; {CERTIFICATES_MAX} are the most"
    if _ENCRYPTED in types or any("ENCRYPTED" in block.text for block in blocks if block.type in _KEYS):
        return "the private key is encrypted, and nobody can enter its password; write it without one"
    return ""


def _read(chain: list[str], key_text: str) -> TlsCertificate | str:
    certificates: list[x509.Certificate] = []
    for number, text in enumerate(chain, 1):
        try:
            certificates.append(x509.load_pem_x509_certificate(text.encode()))
        except ValueError:
            return f"certificate {number} of its chain cannot be read"
    leaf = certificates[0]
    problem = _public_key_problem(leaf)
    if problem:
        return problem
    key = _private_key(certificates, key_text)
    if isinstance(key, str):
        return key
    key_type: KeyType = "RSA" if isinstance(key, rsa.RSAPrivateKey) else "ECDSA"
    problem = _leaf_problem(leaf, key_type)
    if problem:
        return problem
    # Written anew, so that Envoy reads nothing that was not read here.
    form, no_password = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return TlsCertificate(
        chain="".join(each.public_bytes(_PEM).decode() for each in certificates),
        key=Redacted(key.private_bytes(_PEM, form, no_password).decode()),
        key_type=key_type,
        names=tuple(sorted({name.lower() for name in _alternative_names(leaf, x509.DNSName)})),
        not_before=leaf.not_valid_before_utc,
        not_after=leaf.not_valid_after_utc,
    )


def _public_key_problem(leaf: x509.Certificate) -> str:
    """Why Envoy does not take the type or size of a certificate's key."""
    try:
        public = leaf.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return "the key of its certificate cannot be read; use RSA or ECDSA"
    if isinstance(public, rsa.RSAPublicKey):
        if RSA_BITS_MIN <= public.key_size <= RSA_BITS_MAX:
            return ""
        return f"its RSA key has {public.key_size} bits; {RSA_BITS_MIN} to {RSA_BITS_MAX} are legal"
    if isinstance(public, ec.EllipticCurvePublicKey):
        if public.curve.name in _CURVES:
            return ""
        return f"its curve is {public.curve.name}; P-256, P-384 and P-521 are legal"
    return "its key is neither RSA nor ECDSA"


def _private_key(chain: list[x509.Certificate], text: str) -> PrivateKeyTypes | str:
    """The key of a chain's leaf, or what is wrong with it."""
    try:
        # Primes are not tested, which takes seconds; Envoy does not do that either.
        key = serialization.load_pem_private_key(text.encode(), None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return "the private key cannot be read"
    if isinstance(key, rsa.RSAPrivateKey) and not _is_consistent(key):
        return "the private key cannot be read: its numbers contradict each other"
    owner = next((number for number, each in enumerate(chain) if _is_of(key, each)), None)
    if owner is None:
        return "the private key does not belong to the certificate"
    if owner:
        return f"the private key belongs to certificate {owner + 1} of the chain; write that one first"
    return key


def _is_of(key: PrivateKeyTypes, certificate: x509.Certificate) -> bool:
    try:
        return bool(key.public_key() == certificate.public_key())
    except (ValueError, UnsupportedAlgorithm):
        return False


def _is_consistent(key: rsa.RSAPrivateKey) -> bool:
    """What BoringSSL verifies of an RSA key before it uses it."""
    numbers = key.private_numbers()
    p, q, d, public = numbers.p, numbers.q, numbers.d, numbers.public_numbers
    if p <= 1 or q <= 1 or p * q != public.n:
        return False
    exponents = d * public.e % (p - 1) == 1 and d * public.e % (q - 1) == 1
    shortcuts = numbers.dmp1 == d % (p - 1) and numbers.dmq1 == d % (q - 1)
    return exponents and shortcuts and numbers.iqmp * q % p == 1


def _leaf_problem(leaf: x509.Certificate, key_type: KeyType) -> str:
    """What Envoy refuses in a certificate beside its key."""
    try:
        extensions = leaf.extensions
        common_names = leaf.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        names = [name for type_ in _NAMES for name in _alternative_names(leaf, type_)]
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return "the extensions of its certificate cannot be read"
    if not names and not common_names:
        return "its certificate is for no name"
    for extension in extensions:
        value = extension.value
        if isinstance(value, x509.TLSFeature) and x509.TLSFeatureType.status_request in value:
            return "its certificate must be stapled (OCSP), and gateways staple none; order one without"
        if isinstance(value, x509.KeyUsage) and key_type == "ECDSA" and not value.digital_signature:
            return "the key usage of its certificate has no digital signature, which TLS needs"
    return ""


def _alternative_names(
    leaf: x509.Certificate,
    type_: type[x509.DNSName] | type[x509.IPAddress] | type[x509.UniformResourceIdentifier],
) -> list[str]:
    try:
        alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name) for name in alternatives.get_values_for_type(type_)]
