"""Keys and a clock for the tests of identity; RSA keys are made once, because they are slow to make."""

from datetime import UTC, datetime

import pytest

from koguma.identity import signing_keys
from koguma.identity.claims import USER


@pytest.fixture(scope="session")
def key_data() -> str:
    return signing_keys.generate().reveal()


@pytest.fixture(scope="session")
def other_key_data() -> str:
    return signing_keys.generate().reveal()


@pytest.fixture(scope="session")
def user_ring(key_data):
    return signing_keys.key_ring(USER, {"user-token-signing-key-1": key_data})


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
