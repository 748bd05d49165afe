"""Processes: servers under measurement, each in a process of its own, and what the kernel says of them."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parent.parent
KOGUMA = str(Path(sys.executable).with_name("koguma"))
_TICKS = os.sysconf("SC_CLK_TCK")
_PORT = re.compile(r"http://[^:/\s]+:(\d+)")


def environment() -> dict[str, str]:
    """The environment of a measured process: nothing of Koguma's is set, and compiled modules are kept."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KOGUMA_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept


class Process:
    """A server that says `http://host:port` on its first line when it is ready; ends when it is left."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._log = (folder / "process.log").open("ab")
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, cwd=ROOT, env=environment(), text=True
        )
        assert self._process.stdout
        port_match = _PORT.search(self._process.stdout.readline())
        if port_match is None:
            self.__exit__()
            raise RuntimeError(f"{command[0]} did not start:\n{(folder / 'process.log').read_text()}")
        self.port = int(port_match[1])

    def __enter__(self) -> Self:
        return self

    def kill(self) -> None:
        """End it without a word (SIGKILL)."""
        self._process.kill()
        self.__exit__()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        if self._process.stdout:
            self._process.stdout.close()
        self._log.close()

    @property
    def cpu_seconds(self) -> float:
        """Processor time so far, of all its threads, in and for the process."""
        folder = Path(f"/proc/{self._process.pid}")
        try:  # in nanoseconds
            return sum(int(file.read_text().split()[0]) for file in folder.glob("task/*/schedstat")) / 1e9
        except FileNotFoundError:  # a kernel that counts only ticks
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def memory_kib(self) -> float:
        """Memory of its own: pages shared with n others count as 1/n (PSS)."""
        rollup = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text()
        pss_match = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
        assert pss_match
        return float(pss_match[1])


class MeasuredControlPlane(Process):
    """A control plane as users run it: `koguma cp run`, on free ports, with its default settings."""

    def __init__(self, data_dir: Path, store: str = "", flags: Sequence[str] = ()) -> None:
        data_dir.mkdir(exist_ok=True)
        ports = [f"--{name}-port=0" for name in ("api", "api-tls", "dp", "xds")]
        command = [KOGUMA, "cp", "run", "--data-dir", str(data_dir), *ports, *flags]
        super().__init__(
            [*command, "--store", store, "--no-store-encryption"] if store else command, data_dir
        )
        self.token = (data_dir / "admin-token").read_text().strip()


class EmptyServer(Process):
    """The bare side: the same HTTP server with nothing behind it; see `bench.empty` for the modes."""

    def __init__(self, mode: str, folder: Path) -> None:
        super().__init__([sys.executable, "-m", "bench.empty", mode, str(folder)], folder)
