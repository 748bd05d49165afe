"""sync: 50,000 objects from Global to a zone, against the same bytes over bare gRPC into a bare table.

    python -m bench.sync [--quick --json]

The bare side sends the same messages over the same gRPC library and TLS, a window of the same size on its
way, and the receiver writes each message's objects as rows of one SQLite table with one commit. Both sides
are processes of their own behind the same relay, which counts bytes. Ours is `koguma cp run` on both ends.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench import sync_bare
from bench.figures import Figure, Goal, compared, in_turns, table
from bench.processes import ROOT, Process, environment
from bench.sync_global import MeasuredGlobal, MeasuredZone, fill, first_messages, policy, zone_token
from bench.sync_live import measured_changes
from bench.sync_many import measured_zones
from bench.sync_relay import Relay
from examples import edge

ABOUT = "50,000 policies of 1.7 KB from Global to a zone, against copying the same bytes"
N_OBJECTS, N_OBJECTS_QUICK = 50_000, 300
ROUNDS, ROUNDS_QUICK = 3, 2
PATIENCE_SECONDS = 300.0
QUIET_SECONDS = 1.5
SUMS_BYTES = 20_000  # less than both sides send when they connect
N_ZONES, N_ZONES_QUICK = 100, 4
N_CHANGES, N_CHANGES_QUICK = 100, 3


class Copied(msgspec.Struct, frozen=True):
    """What one copy of everything took, and then a connection that finds everything there."""

    seconds: float
    cpu_ms: float  # of both ends
    megabytes: float  # in both directions
    resumed_cpu_ms: float = 0.0
    resumed_megabytes: float = 0.0


class SyncBench:
    """A Global with many objects, and copies of them."""

    def __init__(self, folder: Path, n_objects: int) -> None:
        self._folder = folder
        self._n_objects = n_objects
        self._n_copies = 0
        self._bare_ca = folder / "bare.pem"

    async def prepare(self) -> None:
        """Fill the stores, and write down what is sent."""
        data = self._folder / "global"
        data.mkdir()
        await fill(data / "koguma.db", self._n_objects)
        self._messages = self._folder / "messages"
        sync_bare.write_messages(
            self._messages, first_messages(policy(number) for number in range(self._n_objects))
        )
        self._n_bytes = self._messages.stat().st_size

    @contextmanager
    def running(self) -> Iterator["SyncBench"]:
        """While Global and the bare sender run."""
        with MeasuredGlobal(self._folder / "global") as top:
            self.top = top
            self._ca = top.folder / "ca.pem"
            key = self._folder / "bare.key"
            key.write_text(edge.certificate(self._bare_ca))
            words = ("send", str(self._messages), str(self._bare_ca), str(key))
            command = [sys.executable, "-m", "bench.sync_bare", *words]
            with Process(command, self._folder) as bare:
                self._bare = bare
                yield self

    async def token(self) -> Path:
        """A token for any zone."""
        return await zone_token(self.top)

    async def ours(self) -> Copied:
        """Let a new zone get everything, then connect again."""
        self._n_copies += 1
        name = f"zone-{self._n_copies}"
        token = await self.token()
        async with Relay(self.top.sync_port) as relay:
            zone = await asyncio.to_thread(
                MeasuredZone, self._folder / name, name, relay.port, self._ca, token
            )
            with zone:
                await asyncio.sleep(1)  # what else a start does
                before = self.top.cpu_seconds + zone.cpu_seconds
                relay.release()
                ended_at = await relay.quiet(QUIET_SECONDS, self._n_bytes, PATIENCE_SECONDS)
                cpu = self.top.cpu_seconds + zone.cpu_seconds - before
                seconds, n_bytes = ended_at - relay.released_at, relay.total
                before = self.top.cpu_seconds + zone.cpu_seconds
                relay.reset()
                relay.cut()
                await relay.quiet(QUIET_SECONDS, SUMS_BYTES, PATIENCE_SECONDS)
                resumed_cpu = self.top.cpu_seconds + zone.cpu_seconds - before
                return Copied(seconds, 1000 * cpu, n_bytes / 1e6, 1000 * resumed_cpu, relay.total / 1e6)

    async def bare(self) -> Copied:
        """Copy the same messages into a table."""
        self._n_copies += 1
        async with Relay(self._bare.port) as relay:
            relay.release()
            before = self._bare.cpu_seconds
            database = str(self._folder / f"bare-{self._n_copies}.db")
            words = ("receive", str(relay.port), str(self._bare_ca), database)
            receiver = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench.sync_bare", *words),
                cwd=ROOT,
                env=environment(),
                stdout=subprocess.PIPE,
            )
            output, _ = await receiver.communicate()
            assert receiver.returncode == 0
            began_at, ended_at, cpu = (float(word) for word in output.split())
            cpu += self._bare.cpu_seconds - before
            return Copied(ended_at - began_at, 1000 * cpu, relay.total / 1e6)


async def measured(*, quick: bool) -> list[Figure]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="koguma-bench-") as name:
        bench = SyncBench(Path(name), N_OBJECTS_QUICK if quick else N_OBJECTS)
        await bench.prepare()
        with bench.running():
            ours, bare = await in_turns(ROUNDS_QUICK if quick else ROUNDS, bench.ours, bench.bare)
            figures = _copies(ours, bare)
            n_zones = N_ZONES_QUICK if quick else N_ZONES
            figures += await measured_zones(bench.top, await bench.token(), n_zones, quick=quick)
        with MeasuredGlobal(Path(name) / "small") as top:
            n_changes = N_CHANGES_QUICK if quick else N_CHANGES
            token = await zone_token(top)
            figures += await asyncio.to_thread(measured_changes, Path(name), top, token, n_changes)
    return figures


def _copies(ours: Sequence[Copied], bare: Sequence[Copied]) -> list[Figure]:
    def figure(what: str, unit: str, field: str, bare_field: str = "", goal: Goal | None = None) -> Figure:
        sides = [getattr(each, field) for each in ours], [getattr(each, bare_field or field) for each in bare]
        return compared(what, unit, *sides, better="less", goal=goal)

    return [
        figure("first sync", "s", "seconds", goal=Goal("cost", 3.0)),
        figure("first sync, both ends", "CPU ms", "cpu_ms"),
        figure("first sync", "MB", "megabytes"),
        figure("resume, against a whole copy", "MB", "resumed_megabytes", "megabytes", Goal("cost", 0.01)),
        figure("resume, both ends, against a whole copy", "CPU ms", "resumed_cpu_ms", "cpu_ms"),
    ]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a short round; its figures mean nothing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = asyncio.run(measured(quick=options.quick))
    print(msgspec.json.encode(figures).decode() if options.json else f"{ABOUT}\n\n{table(figures)}")


if __name__ == "__main__":
    main()
