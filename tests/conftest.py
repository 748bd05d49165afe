"""What tests of several rooms share."""

import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest
from postgres import Server

from koguma import logs
from tests.plane import Plane

# `make test` tries the same examples every time, so that a change is judged by itself; `make soak` looks for
# new ones, and for many more.
hypothesis.settings.register_profile("test", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("soak", max_examples=2_000, deadline=None, print_blob=True)
hypothesis.settings.load_profile("soak" if os.environ.get("KOGUMA_SOAK") else "test")


# Whoever runs the tests in the background has Ctrl-C ignored, and what the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def told() -> None:
    """For tests that look at the log: another test may have made it quieter."""
    logs.configure("info", "json")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL of this test run; `database()` gives an empty database."""
    server = Server()
    server.start()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A control plane for whoever only needs one to talk to."""
    with Plane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long runs to `make soak`."""
    if os.environ.get("KOGUMA_SOAK"):
        return
    long = [item for item in items if item.get_closest_marker("soak")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]
