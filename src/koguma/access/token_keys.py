"""Token keys: the key rings of all purposes, and the users of tokens that they sign.

Signing keys and revocation lists are secrets in the store, so every control plane on it agrees at once.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from koguma.access.user import User, authenticated
from koguma.identity import token_advice, tokens
from koguma.identity.claims import USER, C, Purpose, UserClaims
from koguma.identity.signing_keys import KeyRing, key_ring
from koguma.model.errors import Unauthenticated
from koguma.model.resource import Resource
from koguma.store.state import State

_KNOWN_MAX = 4096


class TokenKeys:
    """The key rings, read from the newest secrets and kept until those change."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._state = state
        # The state gives the same tuple until a secret changes, so comparing it costs nothing.
        self._rings: dict[tuple[str, str], tuple[Sequence[Resource], KeyRing[Any]]] = {}

    def ring(self, purpose: Purpose[C], mesh: str = "") -> KeyRing[C]:
        """The ring of one purpose, in one mesh where the purpose has one."""
        secrets = self._state().listed(purpose.secret_kind)
        kept = self._rings.get((purpose.name, mesh))
        if kept is None or kept[0] is not secrets:
            data = {s.core_name: str(s.spec.get("data", "")) for s in secrets if s.mesh == mesh}
            kept = self._rings[purpose.name, mesh] = (secrets, key_ring(purpose, data, mesh))
        return kept[1]


class TokenVerifier:
    """Turns a bearer token of the API into its user."""

    def __init__(self, keys: TokenKeys, clock: Callable[[], datetime]) -> None:
        self._keys = keys
        self._clock = clock
        # Whom a token names, as long as the same keys and revocations hold: the signature is checked once.
        self._known: dict[str, tuple[KeyRing[UserClaims], float, User]] = {}

    def user(self, token: str) -> User:
        """The user of a token, or Unauthenticated."""
        ring, now = self._keys.ring(USER), self._clock()
        known = self._known.get(token)
        if known is not None and known[0] is ring and now.timestamp() < known[1]:
            return known[2]
        try:
            claims = tokens.verify(ring, token, now)
        except Unauthenticated as error:
            raise token_advice.advised(error, token, USER) from error
        user = authenticated(claims.name, tuple(claims.groups))
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[token] = (ring, claims.exp, user)
        return user
