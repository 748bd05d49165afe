"""Real kubectls for tests: the one that Debian packages, the one on PATH, and how a test runs them.

Debian's is old (1.20 in Debian 12) and speaks as old clients do: no OpenAPI v3, no aggregated discovery, no
protobuf in requests. Its package is unpacked into the user's cache and never installed, so it is in nobody's
way.
"""

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from koguma.cli import main
from tests.control_plane import LocalControlPlane
from tests.live_mesh import Process

PACKAGES = ("kubernetes-client", "kubectl")  # since Debian 13 the first is empty and needs the second
_SECONDS = 60  # for one command, on a busy machine


def on_path() -> str | None:
    """The machine's own kubectl, unless it is the packaged one."""
    binary = shutil.which("kubectl")
    return None if binary is None or binary == _installed() else binary


@cache
def _installed() -> str | None:
    """Where Debian's kubectl is, if its package is installed here anyway."""
    if not shutil.which("dpkg-query"):
        return None
    listed = _run("dpkg-query", "-L", PACKAGES[0])  # others publish packages called kubectl, too
    return next((line for line in listed.stdout.split() if line.endswith("/bin/kubectl")), None)


def packaged() -> str:
    """Debian's kubectl, downloaded once."""
    installed = _installed()
    if installed:
        return installed
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "koguma-tests"
    home.mkdir(parents=True, exist_ok=True)
    binary = home / "debian-kubectl"
    with (home / "debian-kubectl.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run may be at it
        if not binary.exists():
            with tempfile.TemporaryDirectory(dir=home) as folder:
                _unpacked(Path(folder)).rename(binary)
    return str(binary)


def _unpacked(folder: Path) -> Path:
    """The kubectl of the first package that has one."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        pytest.fail(f"these tests use the kubectl of Debian's package {PACKAGES[0]}: run them on Debian")
    output = ""
    for words in ((), ("apt-get", "update", "-q")):
        if words:  # the lists may be empty, or too old
            _run(*words)
        for package in PACKAGES:
            output = _run("apt-get", "download", "-q", package, cwd=folder).stderr
            for file in folder.glob(f"{package}_*.deb"):
                _run("dpkg", "-x", str(file), str(folder))
            binary = folder / "usr" / "bin" / "kubectl"
            if binary.exists():
                return binary
    pytest.fail(f"these tests need Debian's package {PACKAGES[0]}, which apt-get does not get: {output}")


def _run(*words: str, timeout: float = 100, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout, **more)


@cache
def minor_of(binary: str) -> int:
    """20 of v1.20.2."""
    output = json.loads(_run(binary, "version", "--client", "-o", "json").stdout)
    return int(output["clientVersion"]["minor"].rstrip("+"))


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line, with the headings first."""
        return [line.split() for line in self.out.splitlines()]


class Running(Process):
    """A command that goes on."""

    def ends(self) -> int:
        """Wait until it ends by itself; how it ended."""
        return self._popen.wait(_SECONDS)


class Kube:
    """kubectl as one user, in a namespace that no other test knows."""

    def __init__(
        self, binary: str, plane: LocalControlPlane, folder: Path, home: Path, namespace: str
    ) -> None:
        self.plane = plane
        self.minor = minor_of(binary)
        self.namespace = namespace
        self.folder = folder
        self._binary = binary
        self._home = home  # of a control plane's own: kubectl remembers what it discovered
        self._config = self._kubeconfig("admin", plane.data_dir / "admin-token")
        self._files = 0

    def _kubeconfig(self, name: str, token: Path) -> Path:
        file = self.folder / f"{name}.kubeconfig"
        where = ("--address", self.plane.address, "--ca-cert", str(self.plane.data_dir / "ca.pem"))
        if name != "admin":  # who may not read the settings has to name the port
            address = f"https://127.0.0.1:{self.plane.tls_port}"
            where = ("--address", address, "--ca-file", str(self.plane.data_dir / "ca.pem"))
        words = ("kubeconfig", "--namespace", self.namespace, "-o", str(file), "--token-file", str(token))
        assert main((*words, *where)) == 0
        return file

    def of_user(self, name: str, *groups: str) -> "Kube":
        """kubectl as somebody else, with a token of his own."""
        asked = {"name": name, "groups": list(groups), "validFor": "1h"}
        answer = self.plane("POST", "/tokens/user", asked, Authorization=f"Bearer {self.admin_token}")
        assert answer.status == 200, answer.body
        return self.with_token(name, answer.body.decode())

    def with_token(self, name: str, text: str) -> "Kube":
        """kubectl with a token."""
        token = self.folder / f"{name}.token"
        token.write_text(text)
        other = object.__new__(Kube)
        other.__dict__ = {**self.__dict__}
        other._config = self._kubeconfig(name, token)
        return other

    @property
    def admin_token(self) -> str:
        return (self.plane.data_dir / "admin-token").read_text().strip()

    def _environment(self, editor: str = "false") -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._home),
            "TMPDIR": str(self.folder),
            "KUBECONFIG": str(self._config),
            "KUBE_EDITOR": editor,
        }

    def run(self, *words: str, stdin: str = "", editor: str = "false") -> Done:
        """Run a command to its end."""
        environment = self._environment(editor)
        done = _run(self._binary, *words, input=stdin, env=environment, cwd=self.folder, timeout=_SECONDS)
        return Done(done.returncode, done.stdout, done.stderr)

    def __call__(self, *words: str, stdin: str = "", editor: str = "false") -> str:
        """Run a command that works; what it printed."""
        done = self.run(*words, stdin=stdin, editor=editor)
        assert done.code == 0, (words, done.out, done.err)
        return done.out.strip()

    def refused(self, *words: str, stdin: str = "") -> str:
        """Run a command that does not work; why not."""
        done = self.run(*words, stdin=stdin)
        assert done.code != 0, (words, done.out, done.err)
        return done.err.strip()

    def get(self, *words: str) -> Any:
        """Objects as JSON."""
        return json.loads(self("get", *words, "-o", "json"))

    def applied(self, document: Any, *words: str) -> str:
        """Apply a document; what was said."""
        return self("apply", "-f", "-", *words, stdin=json.dumps(document))

    @contextmanager
    def runs(self, *words: str) -> Iterator[Running]:
        """A command that goes on until it is left."""
        self._files += 1
        log = self.folder / f"{self._files}-{words[0]}.log"
        process = Running(" ".join(words), [self._binary, *words], log, self._environment(), self.folder)
        try:
            yield process
        finally:
            process.kill()
