"""Zone authentication: whether a zone token authorizes a zone proxy.

A token always has scopes, of which the proxy's must be one, and optionally a zone. The messages are Kuma's.
"""

from collections.abc import Iterator
from datetime import datetime

from koguma.identity import token_advice, tokens
from koguma.identity.claims import ZONE, ZoneClaims
from koguma.identity.signing_keys import KeyRing
from koguma.identity.tokens import VerifiedToken
from koguma.model.errors import Forbidden, Unauthenticated
from koguma.model.violation import Violation


def verified_token(ring: KeyRing[ZoneClaims], token: str, now: datetime) -> VerifiedToken[ZoneClaims]:
    """A valid zone token that can be checked again later; else Unauthenticated, with the next step."""
    try:
        return tokens.verified_token(ring, token, now)
    except Unauthenticated as error:
        raise token_advice.advised(error, token, ZONE) from error


def check(claims: ZoneClaims, scope: str, zone: str) -> None:
    """Raise Forbidden unless a token is for zone proxies of this scope in this zone."""
    mismatches = tuple(_violations(claims, scope, zone))
    if mismatches:
        raise Forbidden("; ".join(each.message for each in mismatches), violations=mismatches)


def _violations(claims: ZoneClaims, scope: str, zone: str) -> Iterator[Violation]:
    if scope not in claims.scope:
        listed = " ".join(claims.scope)
        text = f"({scope} is out of token's scope: [{listed}])"
        yield Violation("scope", f"token cannot be used to authenticate zone entity {text}", "scope")
    if claims.zone and claims.zone != zone:
        text = f"zone from requestor: {zone} is different than in token: {claims.zone}"
        yield Violation("zone", text, "zone")
