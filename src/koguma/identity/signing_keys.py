"""Signing keys: RSA keys that sign and verify tokens, kept in Secrets.

A key is the `data` of a secret, base64 of a PEM, and the number at the end of the secret's name is its
serial. The newest signs, all verify: so a rotation is a new secret, and the old one goes when its
tokens are gone. A secret that cannot be read is a problem with its name on it and blocks nothing else;
its content is told to nobody.
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
    """All that is needed to issue and verify the tokens of one purpose, read from its secrets.

    `revoked` is None where the list cannot be read: then no token holds, because any could be on it.
    """

    purpose: Purpose[C]
    mesh: str
    verifiers: Mapping[str, RSAPublicKey]  # by serial, as text
    signer: tuple[str, RSAPrivateKey] | None
    revoked: frozenset[str] | None
    problems: tuple[str, ...]
    generation: bytes  # equal exactly where the same tokens hold

    def missing(self, serial: str) -> str:
        """What to say where a key is not there, in Kuma's words."""
        name, kind = self.purpose.key_name(int(serial), self.mesh), self.purpose.secret_kind
        where = f' in mesh "{self.mesh}"' if self.mesh else ""
        return (
            f'there is no signing key with serial number {serial}. {kind} of name "{name}"{where} is not'
            " found. If signing key was rotated, regenerate the token"
        )


def generate() -> Redacted:
    """A new signing key, as the `data` of a secret."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,  # "RSA PRIVATE KEY", the form that Kuma reads
        serialization.NoEncryption(),
    )
    return Redacted(base64.b64encode(pem).decode())


def is_serial(text: str) -> bool:
    """Whether `text` is the serial of a key, as it stands in names and in tokens."""
    return _SERIAL.fullmatch(text) is not None


def key_ring(purpose: Purpose[C], secrets: Mapping[str, str], mesh: str = "") -> KeyRing[C]:
    """The key ring in `secrets` (data by name); those of other purposes are passed over."""
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
        generation=_generation(purpose.word, mesh, verifiers, revoked),
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


def _problem(purpose: Purpose[C], name: str, wanted: str) -> str:
    return f'{purpose.secret_kind} "{name}" does not hold an {wanted}; replace it or delete it'


def _decoded(data: str) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


# Rings are made anew with every change of a revocation list, and the first proxy after a start waits for one.
@functools.lru_cache(maxsize=1024)
def _private(data: bytes | None) -> RSAPrivateKey | None:
    """A private key from PEM, or from bare DER as early Kumas stored it; only one that can sign.

    Whether its primes are primes is not looked at: that would take 40 ms and protect nobody, since whoever
    can write this secret can sign what he likes. A key whose parts do not fit together shows when it signs.
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
            f'{purpose.secret_kind} "{name}" is not base64, so every {purpose.word} token is refused;'
            " write the ids of revoked tokens into it, with commas between, or delete it"
        )
        return None
    ids = data.decode("utf-8", "replace").replace("\n", ",").split(",")
    return frozenset(stripped for each in ids if (stripped := each.strip()))


def _generation(
    word: str, mesh: str, verifiers: Mapping[str, RSAPublicKey], revoked: frozenset[str] | None
) -> bytes:
    keys = {serial: _der(key).hex() for serial, key in sorted(verifiers.items())}
    listed = None if revoked is None else sorted(revoked)
    return hashlib.sha256(msgspec.json.encode([word, mesh, keys, listed])).digest()


def _der(key: RSAPublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
