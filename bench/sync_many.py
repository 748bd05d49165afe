"""Many zones on one Global: connecting, one change to all, and what the API's users notice meanwhile."""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from bench import sample, wire
from bench.figures import Figure, compared, percentile
from bench.processes import ROOT, environment
from bench.sync_global import MeasuredGlobal

_PROCESSES = 2
_PROBE_SECONDS = 0.02
_SETTLE_SECONDS = 2.0
_PAUSE_SECONDS = 0.2
_CHANGES, _CHANGES_QUICK = 20, 3
_SERVICE_PATH = f"/meshes/{sample.MESH}/meshmultizoneservices/backend"


class ApiProbe:
    """Asks Global for one object again and again; `slowest_ms` is the longest answer."""

    def __init__(self, top: MeasuredGlobal) -> None:
        self._top = top
        self._latencies: list[float] = [0.0]

    @property
    def slowest_ms(self) -> float:
        """The longest answer."""
        return 1000 * max(self._latencies)

    async def __aenter__(self) -> Self:
        self._client = await wire.Client(self._top.token).connect(self._top.port)
        self._is_over = False
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        await self._task

    async def _run(self) -> None:
        while not self._is_over:
            before = time.monotonic()
            await self._client.ask("/meshes/default")
            self._latencies.append(time.monotonic() - before)
            await asyncio.sleep(_PROBE_SECONDS)


class ZoneProcesses:
    """Processes with light zones."""

    def __init__(self, top: MeasuredGlobal, token: Path, n_zones: int) -> None:
        each = n_zones // _PROCESSES
        words = (str(top.sync_port), str(top.folder / "ca.pem"), str(token))
        self._commands = [
            [sys.executable, "-m", "bench.sync_zones", *words, str(number * each), str(each)]
            for number in range(_PROCESSES)
        ]

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        self._processes = [
            await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, env=environment(), stdin=pipe, stdout=pipe, limit=1 << 20
            )
            for command in self._commands
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()

    async def do(self, command: str) -> list[dict[str, Any]]:
        """Let all processes run a command."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(command).encode() + b"\n")
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            answers.append(json.loads(await process.stdout.readline()))
        return answers


async def measured_zones(top: MeasuredGlobal, token: Path, n_zones: int, *, quick: bool) -> list[Figure]:
    """The figures of so many zones that hold everything that Global has."""
    rounds = 1 if quick else 3
    connect, cpu, slowest, memory = [], [], [], []
    async with ZoneProcesses(top, token, n_zones) as zones:
        await zones.do("learn")
        await asyncio.sleep(_SETTLE_SECONDS)
        empty_kib, cpu_before = top.memory_kib, 0.0
        for _ in range(rounds):
            cpu_before = top.cpu_seconds
            async with ApiProbe(top) as probe:
                answers = await zones.do("open")
                await asyncio.sleep(_SETTLE_SECONDS)
            connect.append(max(max(each["seconds"]) for each in answers))
            cpu.append(1000 * (top.cpu_seconds - cpu_before) / n_zones)
            slowest.append(probe.slowest_ms)
            memory.append((top.memory_kib - empty_kib) / n_zones)
            if len(connect) < rounds:
                await zones.do("close")
                await asyncio.sleep(_SETTLE_SECONDS)
        changes = await _changes(top, zones, n_zones, _CHANGES_QUICK if quick else _CHANGES)
    what = f"{n_zones} zones that have everything"
    return [
        _figure(f"{what} connect: the last one is greeted", "s", connect),
        _figure(f"{what} connect: Global", "CPU ms a zone", cpu),
        _figure(f"{what} connect: slowest GET meanwhile", "ms", slowest),
        _figure(f"{n_zones} zones: memory of Global", "KiB a zone", memory),
        *changes,
    ]


async def _changes(top: MeasuredGlobal, zones: ZoneProcesses, n_zones: int, number: int) -> list[Figure]:
    """One change to all, several times."""
    client = await wire.Client(top.token).connect(top.port)
    latencies: list[float] = []
    last, cpu = [], []
    for turn in range(-1, number):  # the first one finds nothing compiled, and does not count
        await zones.do("mark")
        before = top.cpu_seconds
        body = msgspec.json.encode(_service(8000 + turn))
        sent_at = time.monotonic()
        await client.ask(_SERVICE_PATH, "PUT", body)
        seen = [at - sent_at for each in await zones.do("changed") for at in each["at"]]
        await asyncio.sleep(_PAUSE_SECONDS)
        if turn < 0:
            continue
        latencies += seen
        last.append(1000 * max(seen))
        cpu.append(1000 * (top.cpu_seconds - before))
    return [
        _figure(
            f"one change to {n_zones} zones: write sent to p50", "ms", [1000 * percentile(latencies, 0.5)]
        ),
        _figure(
            f"one change to {n_zones} zones: write sent to p99", "ms", [1000 * percentile(latencies, 0.99)]
        ),
        _figure(f"one change to {n_zones} zones: write sent to the last", "ms", last),
        _figure(f"one change to {n_zones} zones: Global", "CPU ms", cpu),
    ]


def _service(port: int) -> dict[str, Any]:
    """What is written: a kind of which Global has no other object, so that the write itself is short."""
    selector = {"meshService": {"matchLabels": {"kuma.io/display-name": "backend"}}}
    return {
        "type": "MeshMultiZoneService",
        "mesh": sample.MESH,
        "name": "backend",
        "spec": {"selector": selector, "ports": [{"port": port, "name": "http", "appProtocol": "http"}]},
    }


def _figure(what: str, unit: str, rounds: Sequence[float]) -> Figure:
    return compared(what, unit, rounds, better="less")
