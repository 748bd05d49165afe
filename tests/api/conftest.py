"""One control plane for all tests of the API; each test takes a mesh of its own."""

import itertools

import pytest

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
