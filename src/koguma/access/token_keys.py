"""Token keys: the key rings of all purposes, and the users of tokens that they sign.

Signing keys and revocation lists are secrets in the store, so every control plane on it agrees at once.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from koguma.access import service_accounts
from koguma.access.user import User, authenticated
from koguma.identity import token_advice, tokens
from koguma.identity.claims import SERVICE_ACCOUNT, USER, C, Purpose, ServiceAccountClaims, UserClaims
from koguma.identity.signing_keys import KeyRing, key_ring
from koguma.model.errors import Unauthenticated
from koguma.model.resource import Resource
from koguma.store.state import State

AUDIENCE: Final = "koguma"  # the audience of user tokens, and of service accounts' by default
_KNOWN_MAX = 4096


class TokenKeys:
    """The key rings, read from the newest secrets and kept until those change."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._state = state
        # The state gives the same tuple until a secret changes, so comparing it costs nothing.
        self._rings: dict[tuple[str, str], tuple[Sequence[Resource], KeyRing[Any]]] = {}

    @property
    def state(self) -> State:
        """The newest state."""
        return self._state()

    def ring(self, purpose: Purpose[C], mesh: str = "") -> KeyRing[C]:
        """The ring of one purpose, in one mesh where the purpose has one."""
        secrets = self._state().listed(purpose.secret_kind)
        kept = self._rings.get((purpose.name, mesh))
        if kept is None or kept[0] is not secrets:
            data = {s.core_name: str(s.spec.get("data", "")) for s in secrets if s.mesh == mesh}
            kept = self._rings[purpose.name, mesh] = (secrets, key_ring(purpose, data, mesh))
        return kept[1]


class ReviewedToken(NamedTuple):
    """The user of a valid token, and those of the asked audiences that it is for."""

    user: User
    audiences: tuple[str, ...]


class _KnownToken(NamedTuple):
    """What a token says, as long as the same keys and revocations hold: the signature is checked once."""

    ring: KeyRing[Any]
    claims: UserClaims | ServiceAccountClaims
    user: User


class TokenVerifier:
    """Turns a bearer token of the API into its user: that of a user token, or a service account."""

    def __init__(self, keys: TokenKeys, clock: Callable[[], datetime], audiences: Sequence[str] = ()) -> None:
        self._keys = keys
        self._clock = clock
        self._audiences = tuple(dict.fromkeys((AUDIENCE, *audiences)))  # of this API
        self._known: dict[str, _KnownToken] = {}

    def user(self, token: str) -> User:
        """The user of a token that is for this API, or Unauthenticated."""
        return self.reviewed(token).user

    def reviewed(self, token: str, audiences: Sequence[str] = ()) -> ReviewedToken:
        """The user of a token that is for one of these audiences (by default for this API)."""
        known = self._known.get(token)
        now = self._clock()
        if (
            known is None
            or known.ring is not self._keys.ring(known.ring.purpose)
            or now.timestamp() >= known.claims.exp
        ):
            known = self._verified(token, now)
        claims, asked = known.claims, tuple(audiences) or self._audiences
        named = self._audiences
        if isinstance(claims, ServiceAccountClaims):
            service_accounts.check(self._keys.state, claims)
            named = claims.aud
        meant = [audience for audience in asked if audience in named]
        if not meant:
            raise Unauthenticated(
                f"the token is for none of the asked audiences ({', '.join(map(repr, asked))})"
            )
        return ReviewedToken(known.user, tuple(meant))

    def _verified(self, token: str, now: datetime) -> _KnownToken:
        claimed = token_advice.unverified(token)
        purpose: Purpose[Any] = SERVICE_ACCOUNT if claimed and claimed.purpose is SERVICE_ACCOUNT else USER
        ring = self._keys.ring(purpose)
        try:
            claims = tokens.verify(ring, token, now)
        except Unauthenticated as error:
            raise token_advice.advised(error, token, purpose) from error
        user = (
            service_accounts.user_of(claims)
            if isinstance(claims, ServiceAccountClaims)
            else authenticated(claims.name, tuple(claims.groups))
        )
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        known = self._known[token] = _KnownToken(ring, claims, user)
        return known
