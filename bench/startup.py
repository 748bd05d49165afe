"""startup: how long the command takes to answer, and a control plane to be ready on a store that it knows.

Beside them, what the libraries alone take: a Python that imports click, and the bare HTTP server.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.figures import Figure, compared, in_turns
from bench.processes import KOGUMA, ROOT, EmptyServer, MeasuredControlPlane, environment

ABOUT = "start of the command and of a control plane, against Python with click and a bare HTTP server"
# Nobody listens there, so `version` says that there is no server, and does not depend on this machine's.
_NOWHERE = {"KOGUMA_ADDRESS": "http://127.0.0.1:9"}
_COMMANDS = (("version",), ("version", "--client"), ("--help",))


async def measured(*, quick: bool) -> list[Figure]:
    """The figures, in milliseconds."""
    rounds = 2 if quick else 15
    bare = _milliseconds([sys.executable, "-c", "import click"])
    figures = []
    for words in _COMMANDS:
        ours = _milliseconds([KOGUMA, *words])
        await ours()  # the first start compiles
        figures.append(
            compared(f"koguma {' '.join(words)}", "ms", *await in_turns(rounds, ours, bare), better="less")
        )
    return [*figures, await _ready(2 if quick else 9)]


def _milliseconds(command: list[str]) -> Callable[[], Awaitable[float]]:
    async def run() -> float:
        started = time.perf_counter()
        _run(command)
        return 1000 * (time.perf_counter() - started)

    return run


def _run(command: list[str]) -> None:
    subprocess.run(command, env=environment() | _NOWHERE, cwd=ROOT, capture_output=True, check=True)


async def _ready(rounds: int) -> Figure:
    with tempfile.TemporaryDirectory(prefix="koguma-bench-") as name:
        folder = Path(name)
        (folder / "body").write_bytes(b"{}")
        with MeasuredControlPlane(folder / "plane"):
            pass  # the first start makes keys, certificates and the first objects

        async def ours() -> float:
            started = time.perf_counter()
            with MeasuredControlPlane(folder / "plane"):
                return 1000 * (time.perf_counter() - started)

        async def bare() -> float:
            started = time.perf_counter()
            with EmptyServer("constant", folder):
                return 1000 * (time.perf_counter() - started)

        sides = await in_turns(rounds, ours, bare)
    return compared("koguma cp run to ready, second start", "ms", *sides, better="less")
