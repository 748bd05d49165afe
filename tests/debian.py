"""Programs of Debian that tests use: those of this machine, else out of Debian's package, without root."""

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


@cache
def program(name: str, package: str) -> str:
    """The path of a program; its package is unpacked for this run where the machine has none."""
    found = shutil.which(name)
    return found or str(next(_unpacked(package).glob(f"**/bin/{name}")))


def _unpacked(package: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"debian-{package}-"))
    _run("apt-get", "download", package, cwd=folder)
    (archive,) = folder.glob("*.deb")
    _run("dpkg-deb", "-x", str(archive), str(folder), cwd=folder)
    return folder


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
