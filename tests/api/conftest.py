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


@pytest.fixture(scope="session", params=["memory", "sqlite", "postgres"])
def history_plane(request, tmp_path_factory):
    """One on every sort of store, where people have tokens with few rights."""
    data = tmp_path_factory.mktemp("history")
    file = data / "settings.yaml"
    file.write_text(
        """
        access:
          roles:
            - name: red-timeouts
              rules: [{verbs: [get, list, update, create, delete], resources: [meshtimeouts], meshes: [red]}]
          bindings:
            - {role: view, users: [vera]}
            - {role: edit, users: [ed]}
            - {role: red-timeouts, users: [rita]}
        """
    )
    store = {"memory": "memory://", "sqlite": f"sqlite:///{data / 'k.db'}"}.get(request.param)
    server = None
    if store is None:
        server = request.getfixturevalue("postgres")
        store = server.database()
    with LocalControlPlane(data, str(file), store=store) as plane:
        for mesh in ("red", "blue"):
            assert plane("PUT", f"/meshes/{mesh}", _empty_mesh(mesh)).status == 201
        yield plane
    if server is not None:
        server.drop(store)


def _empty_mesh(name):
    return {"type": "Mesh", "name": name, "skipCreatingInitialPolicies": ["*"]}


@pytest.fixture
def own_mesh(history_plane):
    name = f"mesh{next(_numbers)}"
    assert history_plane("PUT", f"/meshes/{name}", _empty_mesh(name)).status == 201
    return name
