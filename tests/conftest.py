"""What tests of several packages share."""

import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest

from koguma.runtime import logs
from tests.control_plane import LocalControlPlane
from tests.error_lines import ERRORS, unexpected
from tests.pgbouncer import PgBouncer
from tests.postgres import Databases, Server, named

# `make test` tries the same examples every time, so that a change is judged by itself; `make soak` looks for
# new ones, and for many more.
hypothesis.settings.register_profile("test", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("soak", max_examples=2_000, deadline=None, print_blob=True)
hypothesis.settings.load_profile("soak" if os.environ.get("KOGUMA_SOAK") else "test")


# Whoever runs the tests in the background has Ctrl-C ignored, and what the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


ERRORS.capture()


def _no_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    marks = list(request.node.iter_markers("expected_errors"))
    assert not unexpected(ERRORS.take(), [pattern for mark in marks for pattern in mark.args])


# Of each scope, so that also what is logged while a longer fixture ends is read: these are the first to
# begin, and so the last to end.
no_errors_of_session = pytest.fixture(scope="session", autouse=True)(_no_errors)
no_errors_of_module = pytest.fixture(scope="module", autouse=True)(_no_errors)
no_errors_of_test = pytest.fixture(autouse=True)(_no_errors)


@pytest.fixture
def info_logs() -> None:
    """For tests that look at the log: another test may have made it quieter."""
    logs.configure("info", "json")


@pytest.fixture(scope="session")
def own_postgres() -> Iterator[Server]:
    """A PostgreSQL of this test run, which may be stopped and started again."""
    server = Server()
    server.start()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """Where `database()` gives an empty database: the server that the environment names, else our own."""
    server = named()
    yield server or request.getfixturevalue("own_postgres")
    if server:
        server.remove()


@pytest.fixture(scope="session")
def pgbouncer(postgres: Databases) -> Iterator[PgBouncer]:
    """A PgBouncer in transaction mode in front of it."""
    pooler = PgBouncer(postgres.url)
    pooler.start()
    yield pooler
    pooler.remove()


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalControlPlane]:
    """A control plane for whoever only needs one to talk to."""
    with LocalControlPlane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long runs to `make soak`, and begin with slow files.

    Several workers get file after file in this order: none is left alone with a slow one at the end.
    """
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)
    if os.environ.get("KOGUMA_SOAK"):
        return
    long = {item for item in items if item.get_closest_marker("soak")}
    config.hook.pytest_deselected(items=[item for item in items if item in long])
    items[:] = [item for item in items if item not in long]
