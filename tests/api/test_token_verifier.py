"""Tokens that were verified once are known, and still end, and are still revoked, at once."""

import base64
from datetime import UTC, datetime, timedelta

import pytest

from koguma.access.token_keys import TokenKeys, TokenVerifier
from koguma.identity import signing_keys, tokens
from koguma.identity.claims import USER, UserClaims
from koguma.model.errors import Unauthenticated
from koguma.model.resource import Resource
from koguma.store.log import LogSnapshot
from koguma.store.state import State

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def secret(name, data, revision):
    spec = {"data": data}
    return Resource(kind="GlobalSecret", name=name, core_name=name, spec=spec, revision=revision)


@pytest.fixture(scope="module")
def key():
    return secret("user-token-signing-key-1", signing_keys.generate().reveal(), 1)


class Clock:
    now = NOW

    def __call__(self):
        return self.now


def verifier(*secrets):
    states = [State(LogSnapshot(len(secrets), 0, secrets))]
    clock = Clock()
    keys = TokenKeys(lambda: states[0])
    return TokenVerifier(keys, clock), keys, clock, states


def test_a_known_token_names_the_same_user(key):
    verify, keys, _, _ = verifier(key)
    token = tokens.issue(keys.ring(USER), UserClaims(name="alice", groups=("dev",)), HOUR, NOW).reveal()
    assert verify.user(token) is verify.user(token)
    assert verify.user(token).groups == ("dev", "mesh-system:authenticated")


def test_a_known_token_ends(key):
    verify, keys, clock, _ = verifier(key)
    token = tokens.issue(keys.ring(USER), UserClaims(name="alice"), HOUR, NOW).reveal()
    verify.user(token)
    clock.now = NOW + HOUR + timedelta(seconds=10)
    with pytest.raises(Unauthenticated, match="expired"):
        verify.user(token)


def test_a_known_token_is_revoked_at_once(key):
    verify, keys, _, states = verifier(key)
    ring = keys.ring(USER)
    token = tokens.issue(ring, UserClaims(name="alice"), HOUR, NOW).reveal()
    verify.user(token)
    jti = tokens.verify(ring, token, NOW).jti
    revoked = secret("user-token-revocations", base64.b64encode(jti.encode()).decode(), 2)
    states[0] = State(LogSnapshot(2, 0, (key, revoked)))
    with pytest.raises(Unauthenticated, match="revoked"):
        verify.user(token)


def test_a_key_that_goes_takes_known_tokens_along(key):
    verify, keys, _, states = verifier(key)
    token = tokens.issue(keys.ring(USER), UserClaims(name="alice"), HOUR, NOW).reveal()
    verify.user(token)
    states[0] = State(LogSnapshot(2, 0, ()))
    with pytest.raises(Unauthenticated):
        verify.user(token)
