"""Signing keys: RSA keys that sign and verify tokens, kept in Secrets.

A key is the `data` of a Secret, base64 of a PEM, and the number at the end of the Secret's name is its
serial. The newest key signs, all keys verify: a rotation adds a Secret, and removes the old one when its
tokens have expired. A Secret that cannot be read is a problem that names it and affects nothing else; its
content is never shown.
"""

import base64
import binascii
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Final, Generic

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

from koguma.identity.claims import C, Purpose
from koguma.model.redacted import Redacted

KEY_BITS: Final = 2048
FIRST_SERIAL: Final = 1
PADDING: Final = padding.PKCS1v15()  # this and the hash are RS256
HASH: Final = hashes.SHA256()

_SERIAL = re.compile(r"0|[1-9][0-9]{0,8}")


class KeyRing(msgspec.Struct, Generic[C], frozen=True):
    """The keys and revocations to issue and verify tokens of one purpose, read from its Secrets.

    `revoked` is None if the list cannot be read: then no token is valid, because any could be on it.
    """

    purpose: Purpose[C]
    mesh: str
    verifiers: Mapping[str, RSAPublicKey]  # by serial
    signer: tuple[str, RSAPrivateKey] | None
    revoked: frozenset[str] | None
    problems: tuple[str, ...]
    generation: bytes  # equal if and only if the same tokens are valid

    def missing_key(self, serial: str) -> str:
        """The message for a missing key, as in Kuma."""
        name, kind = self.purpose.key_name(int(serial), self.mesh), self.purpose.secret_kind
        where = f' in mesh "{self.mesh}"' if self.mesh else ""
        return (
            f'there is no signing key with serial number {serial}. {kind} of name "{name}"{where} is not'
            " found. If signing key was rotated, regenerate the token"
        )


def generate() -> Redacted:
    """A new signing key, as the `data` of a Secret."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,  # "RSA PRIVATE KEY", the format that Kuma reads
        serialization.NoEncryption(),
    )
    return Redacted(base64.b64encode(pem).decode())


def public_half(data: str) -> str | None:
    """The public key of a signing key, as the `data` of a Secret that can only verify; None: no such key."""
    key = _private(_decoded(data))
    if key is None:
        return None
    pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return base64.b64encode(pem).decode()


def is_serial(text: str) -> bool:
    """Whether `text` is the serial of a key, as in names and in tokens."""
    return _SERIAL.fullmatch(text) is not None


def key_ring(purpose: Purpose[C], secrets: Mapping[str, str], mesh: str = "") -> KeyRing[C]:
    """The key ring in `secrets` (data by name); Secrets of other purposes are ignored."""
    problems: list[str] = []
    signers = dict(_signers(purpose, secrets, mesh, problems))
    verifiers = dict(_verifiers(purpose, secrets, mesh, problems))
    verifiers |= {serial: key.public_key() for serial, key in signers.items()}
    revoked = _revoked(purpose, secrets, mesh, problems)
    newest = max(signers, key=int, default=None)
    return KeyRing(
        purpose=purpose,
        mesh=mesh,
        verifiers=verifiers,
        signer=None if newest is None else (newest, signers[newest]),
        revoked=revoked,
        problems=tuple(problems),
        generation=_generation(purpose.name, mesh, verifiers, revoked),
    )


def _signers(
    purpose: Purpose[C], secrets: Mapping[str, str], mesh: str, problems: list[str]
) -> Iterator[tuple[str, RSAPrivateKey]]:
    for serial, name in _names(secrets, purpose.key_prefix(mesh)):
        key = _private(_decoded(secrets[name]))
        if key is not None and key.key_size >= KEY_BITS:
            yield serial, key
        else:
            problems.append(_problem(purpose, name, f"RSA private key of {KEY_BITS} bits or more"))


def _verifiers(
    purpose: Purpose[C], secrets: Mapping[str, str], mesh: str, problems: list[str]
) -> Iterator[tuple[str, RSAPublicKey]]:
    for serial, name in _names(secrets, purpose.key_prefix(mesh, public=True)):
        key = _public(_decoded(secrets[name]))
        if key is not None and key.key_size >= KEY_BITS:
            yield serial, key
        else:
            problems.append(_problem(purpose, name, f"RSA public key of {KEY_BITS} bits or more"))


def _names(secrets: Mapping[str, str], prefix: str) -> Iterator[tuple[str, str]]:
    for name in sorted(secrets):
        if name.startswith(prefix) and is_serial(name[len(prefix) :]):
            yield name[len(prefix) :], name


def _problem(purpose: Purpose[C], name: str, expected: str) -> str:
    return f'{purpose.secret_kind} "{name}" does not hold an {expected}; replace it or delete it'


def _decoded(data: str) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


# Cached: key rings are built again with every change of revocations, and proxies wait for that after a start.
@functools.lru_cache(maxsize=1024)
def _private(data: bytes | None) -> RSAPrivateKey | None:
    """A private key from PEM, or from DER as early versions of Kuma stored it; only one that can sign.

    Its primes are not checked: that would take 40 ms and protect nobody, since whoever can write this Secret
    can sign any token. An inconsistent key fails when it signs.
    """
    try:
        if data is None:
            return None
        is_pem = data.lstrip().startswith(b"-----")
        load = serialization.load_pem_private_key if is_pem else serialization.load_der_private_key
        key = load(data, password=None, unsafe_skip_rsa_key_validation=True)
        if not isinstance(key, RSAPrivateKey):
            return None
        key.public_key().verify(key.sign(b"", PADDING, HASH), b"", PADDING, HASH)
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        return None
    return key


def _public(data: bytes | None) -> RSAPublicKey | None:
    try:
        key = None if data is None else serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, RSAPublicKey) else None


def _revoked(
    purpose: Purpose[C], secrets: Mapping[str, str], mesh: str, problems: list[str]
) -> frozenset[str] | None:
    name = purpose.revocations_name(mesh)
    if name not in secrets:
        return frozenset()
    data = _decoded(secrets[name])
    if data is None:
        problems.append(
            f'{purpose.secret_kind} "{name}" is not base64, so every {purpose.name} token is refused;'
            " write the ids of revoked tokens into it, with commas between, or delete it"
        )
        return None
    ids = data.decode("utf-8", "replace").replace("\n", ",").split(",")
    return frozenset(stripped for id_ in ids if (stripped := id_.strip()))


def _generation(
    purpose: str, mesh: str, verifiers: Mapping[str, RSAPublicKey], revoked: frozenset[str] | None
) -> bytes:
    keys = {serial: _der(key).hex() for serial, key in sorted(verifiers.items())}
    listed = None if revoked is None else sorted(revoked)
    return hashlib.sha256(msgspec.json.encode([purpose, mesh, keys, listed])).digest()


def _der(key: RSAPublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
