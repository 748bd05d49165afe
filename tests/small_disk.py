"""A real file system of a few megabytes, for tests of what happens when it is full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_PIECE = 64 * 1024


class SmallDisk:
    """A mounted file system; `fill` leaves no room on it, and `free` gives back what `fill` took."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * _PIECE)
        with self._ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x")

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[SmallDisk]:
    """A disk in memory, mounted at `path`, and gone at the end."""
    path.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", str(path)], check=True)
