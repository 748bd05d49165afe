"""What tests of several rooms share."""

from collections.abc import Iterator

import pytest
from postgres import Server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL of this test run; `database()` gives an empty database."""
    server = Server()
    server.start()
    yield server
    server.remove()
