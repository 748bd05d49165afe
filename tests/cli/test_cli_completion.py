"""What shells are offered while people type: asked through click's own machinery, and through a real bash."""

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from koguma.cli import contexts, policy_fields
from koguma.cli.root import root
from tests.ports import free_port

FILES = [("file", "")]


@pytest.fixture
def offered(monkeypatch, tmp_path):
    """The words that are offered for the last one of a line; with types where they are not plain."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("KOGUMA_ADDRESS", f"http://127.0.0.1:{free_port()}")

    def ask(line: str) -> list:
        *words, incomplete = line.split(" ")
        items = ShellComplete(root, {}, "koguma", "_KOGUMA_COMPLETE").get_completions(words[1:], incomplete)
        return [item.value if item.type == "plain" else (item.type, item.value) for item in items]

    return ask


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("koguma desc", ["describe"]),
        ("koguma token insp", ["inspect"]),
        ("koguma get meshtim", ["meshtimeouts"]),
        ("koguma get a", ["all"]),
        ("koguma get mt -o y", ["yaml"]),
        ("koguma apply -f ", FILES),
        ("koguma lint -f sho", [("file", "sho")]),
        ("koguma get mt --token-file ", FILES),
        ("koguma dp run --dataplane-token-file ", FILES),
        ("koguma dp run --workdir ", [("dir", "")]),
        ("koguma token inspect ", FILES),
        ("koguma completion z", ["zsh"]),
        ("koguma explain dataplane web --kind MeshTimeo", ["MeshTimeout"]),
        ("koguma explain dataplane web --kind MeshTimeout --field conn", ["connectionTimeout"]),
        ("koguma explain dataplane web --field http.requestT", ["http.requestTimeout"]),
        ("koguma inspect policy meshretr", ["meshretries"]),
        ("koguma kri build --type meshretr", ["meshretries"]),
    ],
)
def test_a_shell_is_offered_what_fits_without_a_server(offered, line, words):
    assert offered(line) == words


@pytest.mark.parametrize(
    "line",
    [
        "koguma get meshtimeouts ",
        "koguma get mt -m ",
        "koguma describe mt/",
        "koguma get mt --address nonsense ",
        "koguma get mt --context nothing ",
        "koguma get nothing-like-it ",
        "koguma explain dataplane web --to ",
        "koguma explain dataplane web --kind Nothing --field ",
        "koguma config use ",
    ],
)
def test_nothing_is_offered_and_nothing_said_where_nobody_answers(offered, capsys, line):
    assert offered(line) == []
    assert capsys.readouterr() == ("", "")


def test_contexts_are_offered(offered, koguma):
    for name in ("prod", "pre", "test"):
        assert koguma("config", "add", name, "--address", "http://localhost:1").code == 0
    assert contexts.path(os.environ).exists()
    assert offered("koguma config use pr") == ["pre", "prod"]
    assert offered("koguma get mt --context te") == ["test"]


def test_fields_are_those_of_the_policies():
    limits = policy_fields.outbound("MeshTimeout")
    assert {"connectionTimeout", "idleTimeout", "http.requestTimeout"} <= set(limits)
    assert set(limits) <= set(policy_fields.outbound())
    assert "backendRefs" in policy_fields.outbound("MeshHTTPRoute")
    assert policy_fields.outbound("MeshTrafficPermission") == []


SHOP = """
{type: Mesh, name: typed}
---
{type: Dataplane, name: web-1, mesh: typed, networking: {address: 127.0.0.1,
  inbound: [{port: 80, tags: {kuma.io/service: web, kuma.io/protocol: http}}]}}
---
{type: MeshService, name: backend, mesh: typed, spec: {ports: [{name: http, port: 80, appProtocol: http}]}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("koguma get mt -m typ", ["typed"]),
        ("koguma get dataplanes -m typed ", ["web-1"]),
        ("koguma get -m typed dp web-1 ", []),
        ("koguma get meshretries -m typed mesh-r", ["mesh-retry-all-typed"]),
        ("koguma describe -m typed mr/mesh-r", ["mr/mesh-retry-all-typed"]),
        ("koguma delete mesh typ", ["typed"]),
        ("koguma get proxies -m typed w", ["web-1"]),
        ("koguma inspect dataplane -m typed ", ["web-1"]),
        ("koguma inspect service -m typed ba", ["backend"]),
        ("koguma inspect policy meshretries -m typed ", ["mesh-retry-all-typed"]),
        ("koguma explain dataplane -m typed web-1 --to ba", ["backend"]),
        ("koguma explain dataplane -m typed web-1 --to backend --port ", ["http"]),
        ("koguma token dataplane -m typed --name ", ["web-1"]),
    ],
)
def test_names_come_from_the_server(offered, koguma, control_plane, monkeypatch, line, words):
    monkeypatch.setenv("KOGUMA_ADDRESS", control_plane.address)
    assert koguma("apply", "-f", "-", "--address", control_plane.address, given=SHOP).code == 0
    monkeypatch.setenv("KOGUMA_ADDRESS", control_plane.address)
    assert offered(line) == words


@contextlib.contextmanager
def terminal(folder: Path) -> Iterator[int]:
    """A bash in a terminal of its own, with our program first in its path; gives the terminal's other end."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PS1": "",
        "TERM": "dumb",
        "XDG_CONFIG_HOME": str(folder / "config"),
        "KOGUMA_ADDRESS": f"http://127.0.0.1:{free_port()}",
    }
    words = ["bash", "--norc", "--noprofile", "-i"]
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder, start_new_session=True
    ) as process:
        os.close(theirs)
        try:
            yield ours
        finally:
            process.kill()
            process.wait()
            os.close(ours)


def typed(end: int, text: str, expected: str) -> str:
    """What bash shows after these keys, until the expected text is there."""
    os.write(end, text.encode())
    shown, until = "", time.monotonic() + 30
    while expected not in shown and time.monotonic() < until:
        if select.select([end], [], [], 0.5)[0]:
            shown += os.read(end, 65536).decode(errors="replace")
    return shown


@pytest.mark.slow
def test_a_real_bash_completes_kinds_files_and_fields(tmp_path):
    (tmp_path / "shop-of-mine.yaml").touch()
    to_start_echo_enter = "\x01echo :\x05:\n"  # Ctrl-A and Ctrl-E: the line is printed instead of run
    with terminal(tmp_path) as bash:
        ready = typed(bash, "source <(koguma completion bash); echo rea''dy\n", "ready\r\n")
        assert "ready\r\n" in ready
        for line, whole in (
            ("koguma get meshtim\t", "koguma get meshtimeouts"),
            ("koguma apply -f sho\t", "koguma apply -f shop-of-mine.yaml"),
            ("koguma explain dataplane web --field http.requestT\t", "--field http.requestTimeout"),
        ):
            shown = typed(bash, line, whole)
            assert whole in shown
            assert f"{whole} :\r\n" in typed(bash, to_start_echo_enter, f"{whole} :\r\n")
