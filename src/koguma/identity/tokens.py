"""Tokens: issue and verify the JWTs of users, proxies and zones.

RS256 and nothing else, whatever a token's header asks for; the header's `kid` is the serial of the key.
A token of one purpose never passes for another's, even where keys were mixed up, because the shape of
its claims is checked too. Whatever is wrong with a token is `Unauthenticated` with a reason that
repeats nothing of the token.

Tokens are read here, in three steps, since every proxy shows one when it comes: a library that knows all
of JWS takes several times as long as the signature itself.
"""

import base64
import re
import uuid
from datetime import datetime, timedelta
from typing import Any, Final, Generic, NamedTuple

import jwt
import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers

from koguma.identity.claims import PURPOSE_CLAIMS, C, DataplaneClaims, Purpose, UserClaims
from koguma.identity.signing_keys import FIRST_SERIAL, HASH, PADDING, KeyRing, is_serial
from koguma.model.errors import NotFound, Unauthenticated
from koguma.model.redacted import Redacted

TOKEN_BYTES_MAX: Final = 8 * 1024
LEEWAY_SECONDS: Final = 5  # clocks of control planes differ

_ALGORITHM: Final = "RS256"
_JWS: Final = jwt.PyJWS(algorithms=[_ALGORITHM])
_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")

_EXPIRED: Final = "token is expired"
_INVALID: Final = "could not parse token: signature is invalid"


def issue(ring: KeyRing[C], claims: C, valid_for: timedelta, now: datetime) -> Redacted:
    """A new token that says `claims`, signed with the newest key; its id and times are filled in here."""
    if ring.signer is None:
        raise NotFound(ring.missing(str(FIRST_SERIAL)), title="Signing Key not found")
    serial, key = ring.signer
    at = int(now.timestamp())
    begins = at - LEEWAY_SECONDS
    dated = msgspec.structs.replace(
        claims,
        jti=str(uuid.uuid4()),
        iat=begins,
        nbf=begins,
        exp=at + int(valid_for.total_seconds()),
    )
    body = msgspec.json.encode(dated)
    return Redacted(_JWS.encode(body, key, algorithm=_ALGORITHM, headers={"kid": serial}))


def verify(ring: KeyRing[C], token: str, now: datetime) -> C:
    """The claims of a token that holds; Unauthenticated where it does not."""
    return shown(ring, token, now).claims


def shown(ring: KeyRing[C], token: str, now: datetime) -> "ShownToken[C]":
    """A token that holds, to be asked again later; Unauthenticated where it does not hold."""
    parts = _parts(token)
    key = _key(ring, parts.header)
    try:
        key.verify(parts.signature, parts.signed, PADDING, HASH)
    except InvalidSignature as error:
        raise Unauthenticated(_INVALID) from error
    claims = _claims(ring.purpose, parts.body)
    _check(ring, claims, now.timestamp())
    return ShownToken(claims, parts.header["kid"], key.public_numbers(), ring)


class ShownToken(Generic[C]):
    """What is left of a token whose signature was good: its claims, and the key behind them.

    Whether it still holds is asked for every open stream once a second, so that is cheap as long as neither
    keys nor revocations change. The token itself is not kept.
    """

    __slots__ = ("_numbers", "_ring", "_serial", "claims")

    def __init__(self, claims: C, serial: str, numbers: RSAPublicNumbers, ring: KeyRing[C]) -> None:
        self.claims = claims
        self._serial = serial
        self._numbers = numbers
        self._ring = ring  # by which it held last

    def check(self, ring: KeyRing[C], now: datetime) -> None:
        """Raise Unauthenticated once it no longer holds: expired, revoked, or its key is gone."""
        at = now.timestamp()
        if ring is self._ring and at < self.claims.exp:
            return
        key = ring.verifiers.get(self._serial)
        if key is None:
            raise Unauthenticated(ring.missing(self._serial))
        if key.public_numbers() != self._numbers:
            raise Unauthenticated(_INVALID)
        _check(ring, self.claims, at)
        self._ring = ring


class _Parts(NamedTuple):
    """What a token consists of. Nothing of it is verified yet."""

    header: dict[str, Any]
    body: bytes
    signature: bytes
    signed: bytes


def _parts(token: str) -> _Parts:
    if len(token) > TOKEN_BYTES_MAX:
        raise Unauthenticated(f"could not parse token: it is longer than {TOKEN_BYTES_MAX} bytes")
    if not _COMPACT.fullmatch(token):
        raise Unauthenticated("could not parse token: it is not a signed JWT")
    signed, _, signature = token.rpartition(".")
    head, _, body = signed.partition(".")
    try:
        return _Parts(_header(_decoded(head)), _decoded(body), _decoded(signature), signed.encode())
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unauthenticated("could not parse token: its header cannot be read") from error


def _header(text: bytes) -> dict[str, Any]:
    found = msgspec.json.decode(text, type=dict[str, Any])
    if "crit" in found or found.get("b64") is False:
        raise ValueError("extensions that change how a token is read are not known here")
    return found


def _decoded(part: str) -> bytes:
    """The bytes of a part; ValueError where another spelling is the one for them."""
    found = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    if base64.urlsafe_b64encode(found).rstrip(b"=") != part.encode():
        raise ValueError("bits are set that say nothing")
    return found


def _key(ring: KeyRing[C], header: dict[str, Any]) -> RSAPublicKey:
    """The key that the token says it was signed with."""
    if header.get("alg") != _ALGORITHM:
        raise Unauthenticated(f"unknown token alg. Allowed alg is {_ALGORITHM}")
    serial = header.get("kid")
    if not isinstance(serial, str) or not is_serial(serial):
        raise Unauthenticated("kid header is invalid. Expected string of digits.")
    if serial not in ring.verifiers:
        raise Unauthenticated(ring.missing(serial))
    return ring.verifiers[serial]


def _claims(purpose: Purpose[C], body: bytes) -> C:
    """The claims in the body, if they are those of the purpose and of no other."""
    try:
        said = msgspec.json.decode(body, type=dict[str, Any])
        # Go writes an empty list or map as null.
        claims = msgspec.convert({k: v for k, v in said.items() if v is not None}, purpose.claims)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unauthenticated(f"token is not a {purpose.word} token") from error
    if not purpose.needs <= said.keys() or said.keys() & (PURPOSE_CLAIMS - purpose.own_claims):
        raise Unauthenticated(f"token is not a {purpose.word} token")
    return claims


def _check(ring: KeyRing[C], claims: C, at: float) -> None:
    if not claims.jti:
        raise Unauthenticated("token has no id (jti), so it could not be revoked; issue a new one")
    if claims.exp <= at - LEEWAY_SECONDS:
        raise Unauthenticated(_EXPIRED)
    if claims.nbf > at + LEEWAY_SECONDS:
        raise Unauthenticated("token is not valid yet; compare the clocks of issuer and control plane")
    if ring.revoked is None:
        raise Unauthenticated("could not check if the token is revoked")
    if claims.jti in ring.revoked:
        raise Unauthenticated("token is revoked")
    if isinstance(claims, UserClaims) and not claims.name:
        raise Unauthenticated("token names no user")
    if isinstance(claims, DataplaneClaims) and claims.mesh != ring.mesh:
        raise Unauthenticated(f'token is not for mesh "{ring.mesh}"')
