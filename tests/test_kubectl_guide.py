"""The guide to kubectl, run as it is written: every command works, and says what the guide shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.control_plane import LocalControlPlane
from tests.kubectl import tool
from tests.test_readme import commands

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "docs" / "kubectl.md"
ACCESS = ROOT / "docs" / "access.md"
BLOCKS = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FAILS = re.compile(r"^(error:|Error from server|no$)", re.MULTILINE)
# What differs from run to run: what the guide leaves out, ages, and where the server is.
LOOSE = re.compile(r"\.\.\.|\b\d+s\b|\b127\.0\.0\.1:\d+|\blocalhost:\d+")


def steps(guide=GUIDE):
    """All of a guide in order: a file to write, or a command and what it prints."""
    for language, text in BLOCKS.findall(guide.read_text()):
        if language == "yaml":
            yield text.partition("\n")[0].removeprefix("# "), text
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:] if language == "sh" else ():
            command, _, printed = part.partition("\n")
            yield f"$ {command}", printed


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A directory with the examples, and the variables of a shell whose kubectl and koguma are ours."""
    home = tmp_path_factory.mktemp("reader")
    (home / "examples").symlink_to(ROOT / "examples")
    (home / "bin").mkdir()
    (home / "bin" / "kubectl").symlink_to(tool.on_path() or tool.packaged())
    with LocalControlPlane(tmp_path_factory.mktemp("guided")) as plane:
        path = f"{home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KOGUMA_", "KUBE"))}
        yield plane, home, {**kept, "PATH": path, "HOME": str(home), "KOGUMA_ADDRESS": plane.address}


def run(command, plane, home, variables):
    real = command.replace("~/.local/share/koguma", str(plane.data_dir))
    real = real.replace("https://localhost:5682", f"https://127.0.0.1:{plane.tls_port}")
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", real],
        cwd=home,
        env={**variables, "XDG_CONFIG_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def pattern(line):
    """A line of the guide as what a real one looks like; columns may be wider."""
    words = LOOSE.sub("\0", line).split()
    return re.compile(r"\s*" + r"\s+".join(re.escape(word).replace("\0", r"\S*") for word in words) + r"\s*")


def see(shown, printed, said):
    """Check that what a guide shows is printed, line by line; `...` is anything."""
    lines = iter(printed.splitlines())
    for line in shown.splitlines():
        if line.strip() not in ("", "..."):
            wanted = pattern(line)
            assert any(wanted.fullmatch(real) for real in lines), (line, *said)


def test_every_command_of_the_guide_does_what_it_says(reader):
    plane, home, variables = reader
    n_commands = 0
    for name, text in steps():
        if not name.startswith("$ "):
            (home / name).write_text(text)
            continue
        n_commands += 1
        done = run(name[2:], plane, home, variables)
        said = (name, done.stdout, done.stderr)
        assert (done.returncode != 0) == bool(FAILS.search(text)), said
        see(text, done.stdout + done.stderr, said)
    assert n_commands > 15


def test_what_the_readme_and_the_page_about_access_say_of_kubectl_works_too(reader):
    plane, home, variables = reader
    binding = re.search(r"^\$ (kubectl create rolebinding .*)$", ACCESS.read_text(), re.MULTILINE)[1]
    written = ["koguma apply -f examples/shop", *commands("kubectl works too"), binding]
    assert len(written) == 6
    for command in written:
        done = run(command, plane, home, variables)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    headers = {"Impersonate-User": "dora", "Impersonate-Group": "team-web"}
    answer = plane("GET", "/who-am-i", **headers)
    assert f"\n{answer.body.decode().strip()}\n" in ACCESS.read_text()
