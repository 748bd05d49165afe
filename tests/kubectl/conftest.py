"""kubectl on control planes of each store: SQLite with the oldest kubectl, PostgreSQL with the newest one."""

import itertools
from collections.abc import Iterator

import pytest

from tests.control_plane import LocalControlPlane
from tests.kubectl.tool import Kube, on_path, packaged

NEWEST = "path" if on_path() else "debian"
TOOLS = ("debian",) if NEWEST == "debian" else ("debian", "path")
USUAL = ["sqlite-debian", f"postgres-{NEWEST}"]
EVERYWHERE = [f"{store}-{tool}" for store in ("sqlite", "postgres") for tool in TOOLS]

HOOKS = ("127.0.0.1",)  # where tests have servers that are called

_NUMBERS = itertools.count(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`kube` is for most tests; `kube_everywhere` for the few that try every kubectl on every store."""
    if "kube_everywhere" in metafunc.fixturenames:
        metafunc.parametrize("kube_everywhere", EVERYWHERE, indirect=True)
    elif "kube" in metafunc.fixturenames:
        metafunc.parametrize("kube", USUAL, indirect=True)


@pytest.fixture(scope="session")
def sqlite_plane(tmp_path_factory) -> Iterator[LocalControlPlane]:
    folder = tmp_path_factory.mktemp("on-sqlite")
    with LocalControlPlane(folder, store=f"sqlite:///{folder}/koguma.db", outgoing_hosts=HOOKS) as plane:
        yield plane


@pytest.fixture(scope="session")
def postgres_plane(tmp_path_factory, postgres) -> Iterator[LocalControlPlane]:
    with LocalControlPlane(
        tmp_path_factory.mktemp("on-postgres"), store=postgres.database(), outgoing_hosts=HOOKS
    ) as plane:
        yield plane


@pytest.fixture(scope="session")
def homes(tmp_path_factory):
    """The home of a kubectl that talks to one control plane."""
    made = {}

    def home(name):
        return made.setdefault(name, tmp_path_factory.mktemp(name))

    return home


@pytest.fixture
def started(request, tmp_path, homes, monkeypatch):
    """Gives the kubectl of a store and a tool, as the administrator, in a namespace of the test's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))  # no contexts of whoever runs the tests
    for name in ("KOGUMA_ADDRESS", "KOGUMA_TOKEN", "KOGUMA_CA", "KOGUMA_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)

    def start(words: str) -> Kube:
        store, tool = words.split("-")
        plane = request.getfixturevalue(f"{store}_plane")
        binary = on_path() if tool == "path" else packaged()
        return Kube(binary, plane, tmp_path, homes(words), f"team-{next(_NUMBERS)}")

    return start


@pytest.fixture
def kube(request, started) -> Kube:
    return started(request.param)


@pytest.fixture
def kube_everywhere(request, started) -> Kube:
    return started(request.param)
