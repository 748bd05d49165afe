"""Programs of Debian that tests use: those of this machine, else out of Debian's packages, without root.

Packages are downloaded once, and unpacked into the user's cache; nothing is installed.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


@cache
def program(name: str, package: str) -> str:
    """The path of a program; its package is unpacked where the machine has none."""
    return shutil.which(name) or str(next(unpacked(package).glob(f"**/*bin/{name}")))


@cache
def unpacked(*packages: str) -> Path:
    """A folder with what is in the packages, and in no other one that they need."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "koguma-tests"
    home.mkdir(parents=True, exist_ok=True)
    folder = home / f"debian-{packages[0]}"
    with (home / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run may be at it
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=home) as made:
                _unpack(packages, Path(made))
                (Path(made) / "files").rename(folder)
    return folder


def _unpack(packages: tuple[str, ...], folder: Path) -> None:
    download = ("apt-get", "download", "-q", *packages)
    if _run(*download, cwd=folder).returncode:  # the lists may be empty, or too old
        _run("apt-get", "update", "-q", cwd=folder)
        done = _run(*download, cwd=folder)
        assert done.returncode == 0, done.stderr
    for archive in folder.glob("*.deb"):
        done = _run("dpkg-deb", "-x", str(archive), str(folder / "files"), cwd=folder)
        assert done.returncode == 0, done.stderr


def _run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=100)
