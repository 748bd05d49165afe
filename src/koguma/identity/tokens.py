"""Tokens: issue and verify the JWTs of users, proxies and zones.

RS256 is the only algorithm, whatever the header of a token says; the header's `kid` is the serial of the key.
A token of one purpose never passes for another, even with mixed-up keys, because the set of its claims is
checked, too. Every problem with a token is `Unauthenticated`, with a reason that quotes nothing of the token.

Tokens are parsed here and not with a JWT library, since every connecting proxy presents one: such a library
takes several times as long as verifying the signature.
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
LEEWAY_SECONDS: Final = 5  # the clocks of control planes differ

_ALGORITHM: Final = "RS256"
_JWS: Final = jwt.PyJWS(algorithms=[_ALGORITHM])
_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")

_EXPIRED: Final = "token is expired"
_INVALID: Final = "could not parse token: signature is invalid"


def issue(ring: KeyRing[C], claims: C, valid_for: timedelta, now: datetime) -> Redacted:
    """A new token with `claims`, signed with the newest key; its id and times are set here."""
    if ring.signer is None:
        raise NotFound(ring.missing_key(str(FIRST_SERIAL)), title="Signing Key not found")
    serial, key = ring.signer
    issued_at = int(now.timestamp())
    not_before = issued_at - LEEWAY_SECONDS
    complete = msgspec.structs.replace(
        claims,
        jti=str(uuid.uuid4()),
        iat=not_before,
        nbf=not_before,
        exp=issued_at + int(valid_for.total_seconds()),
    )
    body = msgspec.json.encode(complete)
    return Redacted(_JWS.encode(body, key, algorithm=_ALGORITHM, headers={"kid": serial}))


def verify(ring: KeyRing[C], token: str, now: datetime) -> C:
    """The claims of a valid token; Unauthenticated if it is not valid."""
    return verified_token(ring, token, now).claims


def verified_token(ring: KeyRing[C], token: str, now: datetime) -> "VerifiedToken[C]":
    """A valid token that can be checked again later; Unauthenticated if it is not valid."""
    unverified = _parsed(token)
    key = _key(ring, unverified.header)
    try:
        key.verify(unverified.signature, unverified.signing_input, PADDING, HASH)
    except InvalidSignature as error:
        raise Unauthenticated(_INVALID) from error
    claims = _claims(ring.purpose, unverified.payload)
    _check(ring, claims, now.timestamp())
    return VerifiedToken(claims, unverified.header["kid"], key.public_numbers(), ring)


class VerifiedToken(Generic[C]):
    """The claims of a token whose signature was verified, and the key that verified it.

    For every open stream it is checked each second whether the token is still valid, so that is cheap as long
    as neither keys nor revocations change. The token itself is not kept.
    """

    __slots__ = ("_numbers", "_ring", "_serial", "claims")

    def __init__(self, claims: C, serial: str, numbers: RSAPublicNumbers, ring: KeyRing[C]) -> None:
        self.claims = claims
        self._serial = serial
        self._numbers = numbers
        self._ring = ring  # of the last check

    def holds(self, ring: KeyRing[C], now: datetime) -> bool:
        """Whether it was verified with this ring and has not expired; cheap."""
        return ring is self._ring and now.timestamp() < self.claims.exp

    def check(self, ring: KeyRing[C], now: datetime) -> None:
        """Raise Unauthenticated once it is no longer valid: expired, revoked, or its key is gone."""
        if self.holds(ring, now):
            return
        key = ring.verifiers.get(self._serial)
        if key is None:
            raise Unauthenticated(ring.missing_key(self._serial))
        if key.public_numbers() != self._numbers:
            raise Unauthenticated(_INVALID)
        _check(ring, self.claims, now.timestamp())
        self._ring = ring


class _UnverifiedJwt(NamedTuple):
    """The decoded parts of a JWT (RFC 7515). Nothing is verified yet."""

    header: dict[str, Any]
    payload: bytes
    signature: bytes
    signing_input: bytes


def _parsed(token: str) -> _UnverifiedJwt:
    if len(token) > TOKEN_BYTES_MAX:
        raise Unauthenticated(f"could not parse token: it is longer than {TOKEN_BYTES_MAX} bytes")
    if not _COMPACT.fullmatch(token):
        raise Unauthenticated("could not parse token: it is not a signed JWT")
    signing_input, _, signature = token.rpartition(".")
    header, _, payload = signing_input.partition(".")
    try:
        return _UnverifiedJwt(
            _header(_decoded(header)), _decoded(payload), _decoded(signature), signing_input.encode()
        )
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unauthenticated("could not parse token: its header cannot be read") from error


def _header(text: bytes) -> dict[str, Any]:
    header = msgspec.json.decode(text, type=dict[str, Any])
    if "crit" in header or header.get("b64") is False:
        raise ValueError("critical JWS extensions are not supported")
    return header


def _decoded(part: str) -> bytes:
    """The bytes of a base64url part; ValueError if the encoding is not the canonical one."""
    data = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    if base64.urlsafe_b64encode(data).rstrip(b"=") != part.encode():
        raise ValueError("unused bits are set")
    return data


def _key(ring: KeyRing[C], header: dict[str, Any]) -> RSAPublicKey:
    """The key that the header names."""
    if header.get("alg") != _ALGORITHM:
        raise Unauthenticated(f"unknown token alg. Allowed alg is {_ALGORITHM}")
    serial = header.get("kid")
    if not isinstance(serial, str) or not is_serial(serial):
        raise Unauthenticated("kid header is invalid. Expected string of digits.")
    if serial not in ring.verifiers:
        raise Unauthenticated(ring.missing_key(serial))
    return ring.verifiers[serial]


def _claims(purpose: Purpose[C], payload: bytes) -> C:
    """The claims, if they are those of the purpose and of no other."""
    try:
        claims_by_name = msgspec.json.decode(payload, type=dict[str, Any])
        # Go encodes an empty list or map as null.
        present = {name: value for name, value in claims_by_name.items() if value is not None}
        claims = msgspec.convert(present, purpose.claims)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unauthenticated(f"token is not a {purpose.name} token") from error
    names = claims_by_name.keys()
    if not purpose.required_claims <= names or names & (PURPOSE_CLAIMS - purpose.own_claims):
        raise Unauthenticated(f"token is not a {purpose.name} token")
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
