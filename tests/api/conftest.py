"""One control plane for all tests of the API; each test takes a mesh of its own."""

import itertools
import logging

import pytest
import structlog
from structlog.testing import capture_logs

from tests.control_plane import LocalControlPlane

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("plane")) as running:
        yield running


@pytest.fixture
def mesh(plane):
    name = f"mesh{next(_numbers)}"
    made = plane(
        "PUT", f"/meshes/{name}", {"type": "Mesh", "name": name, "skipCreatingInitialPolicies": ["*"]}
    )
    assert made.status == 201
    return name


@pytest.fixture
def logged():
    """The events that are logged, whatever level others have set."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with capture_logs() as events:
        yield events
    structlog.configure(**before)
