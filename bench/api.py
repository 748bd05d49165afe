"""api: GET of one object with a bearer token, against an empty handler of the same server and the same size.

Both servers run in processes of their own and get the same bytes. What counts is requests by second of the
server's processor time, because wall time on two shared cores also measures the client and the neighbours.
"""

import tempfile
from pathlib import Path

import msgspec

from bench import sample, wire
from bench.figures import Figure, Goal, compared, in_turns, percentile
from bench.processes import EmptyServer, MeasuredControlPlane, Process

ABOUT = "GET of one 2 KB object with a bearer token, against an empty handler of the same server"
CONNECTIONS = 32
GOAL = Goal("ratio", 0.50)


class Served(msgspec.Struct, frozen=True):
    """One round at a server."""

    per_cpu_second: float
    per_second: float
    p99_ms: float


async def measured(*, quick: bool) -> list[Figure]:
    """The figures of both servers under the same load."""
    with tempfile.TemporaryDirectory(prefix="koguma-bench-") as name:
        folder = Path(name)
        with MeasuredControlPlane(folder / "plane") as plane:
            body = await _stored(plane)
            (folder / "body").write_bytes(body)
            with EmptyServer("constant", folder) as empty:
                return await _figures(plane, empty, quick=quick)


async def _stored(plane: MeasuredControlPlane) -> bytes:
    """Write the sample, and read what a GET will answer."""
    client = await wire.Client(plane.token).connect(plane.port)
    await client.ask(f"{sample.PATH}/sample", "PUT", sample.body("sample"))
    answer = await client.ask(f"{sample.PATH}/sample")
    client.close()
    return answer.body


async def _figures(plane: MeasuredControlPlane, empty: Process, *, quick: bool) -> list[Figure]:
    rounds, seconds = (2, 0.1) if quick else (9, 2.0)
    request = wire.request(f"{sample.PATH}/sample", plane.token)
    for process in (plane, empty):
        await wire.load(process.port, request, CONNECTIONS, seconds / 4)
    a, b = await in_turns(
        rounds, lambda: _served(plane, request, seconds), lambda: _served(empty, request, seconds)
    )

    def both(field: str) -> tuple[list[float], list[float]]:
        return [getattr(served, field) for served in a], [getattr(served, field) for served in b]

    what = f"GET, {CONNECTIONS} connections"
    return [
        compared(what, "requests/CPU s", *both("per_cpu_second"), goal=GOAL),
        compared(what, "requests/s", *both("per_second")),
        compared(what, "p99 ms", *both("p99_ms"), better="less"),
    ]


async def _served(process: Process, request: bytes, seconds: float) -> Served:
    before = process.cpu_seconds
    load = await wire.load(process.port, request, CONNECTIONS, seconds)
    cpu = process.cpu_seconds - before
    return Served(len(load.latencies) / cpu, load.per_second, 1000 * percentile(load.latencies, 0.99))
