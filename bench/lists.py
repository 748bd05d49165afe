"""lists: all of 10,000 objects in pages of 1,000, against the same bytes from the empty handler."""

import tempfile
import time
from pathlib import Path

import msgspec

from bench import sample, wire
from bench.figures import Figure, compared, in_turns
from bench.processes import EmptyServer, MeasuredControlPlane, Process

ABOUT = "list of 10,000 objects in 10 pages, against the same bytes from an empty handler"
PAGE = 1_000


class Listed(msgspec.Struct, frozen=True):
    """One round: lists by second, of processor time and of wall time."""

    per_cpu_second: float
    per_second: float


async def measured(*, quick: bool) -> list[Figure]:
    """The figures of both servers, one list after another."""
    objects = 2 * PAGE if quick else 10 * PAGE
    with tempfile.TemporaryDirectory(prefix="koguma-bench-") as name:
        folder = Path(name)
        with MeasuredControlPlane(folder / "plane") as plane:
            await seeded(plane, objects)
        with MeasuredControlPlane(folder / "plane") as plane:  # a new process, which has made no bytes yet
            paths = [f"{sample.PATH}?size={PAGE}&offset={start}" for start in range(0, objects, PAGE)]
            first = await _first(plane, paths, folder)
            with EmptyServer("pages", folder) as empty:
                figures = await _figures(plane, paths, empty, quick=quick)
    cold = compared("the first list after a start", "ms", [1000 * first], better="less")
    return [*figures, cold]


async def seeded(plane: MeasuredControlPlane, objects: int) -> None:
    client = await wire.Client(plane.token).connect(plane.port)
    for start in range(0, objects, PAGE):
        documents = [sample.document(f"timeout-{number:05}") for number in range(start, start + PAGE)]
        await client.ask("/_apply", "POST", msgspec.json.encode(documents))
    client.close()


async def _first(plane: MeasuredControlPlane, paths: list[str], folder: Path) -> float:
    """How long the first list takes; its pages become what the empty handler answers."""
    client = await wire.Client(plane.token).connect(plane.port)
    started = time.perf_counter()
    answers = [await client.ask(path) for path in paths]
    seconds = time.perf_counter() - started
    for number, answer in enumerate(answers):
        (folder / str(number)).write_bytes(answer.body)
    client.close()
    return seconds


async def _figures(
    plane: MeasuredControlPlane, paths: list[str], empty: Process, *, quick: bool
) -> list[Figure]:
    rounds, times = (2, 10) if quick else (7, 60)
    ours = await wire.Client(plane.token).connect(plane.port)
    bare = await wire.Client(plane.token).connect(empty.port)
    numbers = [f"/{number}" for number in range(len(paths))]
    a, b = await in_turns(
        rounds, lambda: _listed(plane, ours, paths, times), lambda: _listed(empty, bare, numbers, times)
    )
    ours.close()
    bare.close()
    what = f"{len(paths) * PAGE:,} objects, {len(paths)} pages"
    return [
        compared(
            what,
            "lists/CPU s",
            [listed.per_cpu_second for listed in a],
            [listed.per_cpu_second for listed in b],
        ),
        compared(what, "lists/s", [listed.per_second for listed in a], [listed.per_second for listed in b]),
    ]


async def _listed(process: Process, client: wire.Client, paths: list[str], times: int) -> Listed:
    before, started = process.cpu_seconds, time.perf_counter()
    for _ in range(times):
        for path in paths:
            await client.ask(path)
    cpu, wall = process.cpu_seconds - before, time.perf_counter() - started
    return Listed(times / cpu, times / wall)
