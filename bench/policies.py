"""policies: what a write of a policy costs among many policies of its kind, against the same among 100.

Control planes of several sizes run beside each other and are asked in turns. What counts is their processor
time until the next round begins, so that what they do after the answer is part of it. The policies select
proxies by a label each, or all proxies of the mesh; each is about calls to one service. 50 services and 50
Dataplanes are there, so that something can be selected.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench import sample, wire
from bench.figures import Figure, Goal, compared, in_turns
from bench.processes import MeasuredControlPlane

ABOUT = "a policy is written among 1,000 and 5,000 of its kind, against the same among 100"
GOAL = Goal("cost", 1.5)
_FEW = 100
_MANY, _MANY_QUICK = (1_000, 5_000), (150,)
_BATCH = 500
_WRITES, _WRITES_QUICK = 20, 2  # in a round
_ROUNDS, _ROUNDS_QUICK = 7, 2
_SETTLE_SECONDS, _SETTLE_SECONDS_QUICK = 0.3, 0.01

Write = Callable[["_Plane", int], Awaitable[object]]


async def measured(*, quick: bool) -> list[Figure]:
    """The figures of each size, for each way to write."""
    with tempfile.TemporaryDirectory(prefix="koguma-bench-") as name, ExitStack() as stack:
        figures = []
        for is_wide, of in ((False, "policies"), (True, "policies for all proxies")):
            start = partial(_Plane.started, stack, is_wide=is_wide, quick=quick)
            few = await start(Path(name) / f"few-{is_wide}", _FEW)
            for size in _MANY_QUICK if quick else _MANY:
                many = await start(Path(name) / f"{size}-{is_wide}", size)
                for what, write in _WAYS:
                    figures.append(await _figure(f"{what}, {size:,} {of}", many, few, write, quick=quick))
        return figures


async def _figure(what: str, many: "_Plane", few: "_Plane", write: Write, *, quick: bool) -> Figure:
    rounds = _ROUNDS_QUICK if quick else _ROUNDS
    for plane in (many, few):
        await plane.cost(write)
    ours, bare = await in_turns(rounds, lambda: many.cost(write), lambda: few.cost(write))
    return compared(what, "CPU ms", ours, bare, better="less", goal=GOAL)


class _Plane:
    """A control plane with some policies."""

    def __init__(
        self, process: MeasuredControlPlane, client: wire.Client, *, is_wide: bool, quick: bool
    ) -> None:
        self._process = process
        self._client = client
        self._is_wide = is_wide
        self._is_quick = quick
        self._n_writes = 0

    @classmethod
    async def started(
        cls, stack: ExitStack, folder: Path, n_policies: int, *, is_wide: bool, quick: bool
    ) -> "_Plane":
        """One with so many policies."""
        process = stack.enter_context(MeasuredControlPlane(folder))
        client = await wire.Client(process.token).connect(process.port)
        policies = (policy(number, is_wide=is_wide) for number in range(n_policies))
        documents = [*_neighbours(), *policies]
        for first in range(0, len(documents), _BATCH):
            await client.ask("/_apply", "POST", msgspec.json.encode(documents[first : first + _BATCH]))
        await asyncio.sleep(0 if quick else 2)  # services are generated from Dataplanes
        return cls(process, client, is_wide=is_wide, quick=quick)

    async def cost(self, write: Write) -> float:
        """Milliseconds of processor time for one write."""
        n_writes = _WRITES_QUICK if self._is_quick else _WRITES
        before = self._process.cpu_seconds
        for _ in range(n_writes):
            self._n_writes += 1
            await write(self, self._n_writes)
        await asyncio.sleep(_SETTLE_SECONDS_QUICK if self._is_quick else _SETTLE_SECONDS)
        return 1000 * (self._process.cpu_seconds - before) / n_writes

    async def put(self, number: int, idle: str, query: str = "") -> None:
        """Write one policy."""
        body = msgspec.json.encode(policy(number, idle, is_wide=self._is_wide))
        await self._client.ask(f"{sample.PATH}/policy-{number}{query}", "PUT", body)

    async def delete(self, number: int) -> None:
        """Delete one policy."""
        await self._client.ask(f"{sample.PATH}/policy-{number}", "DELETE")


_NEW = 1_000_000  # the numbers of policies that are not there at first


async def _edited(plane: _Plane, number: int) -> None:
    await plane.put(number * 7 % _FEW, f"{number + 10}s")


async def _new_and_deleted(plane: _Plane, number: int) -> None:
    await plane.put(_NEW + number, "7s")
    await plane.delete(_NEW + number)


async def _dry_run(plane: _Plane, number: int) -> None:
    await plane.put(_NEW + number, "7s", "?dryRun=All")


_WAYS: tuple[tuple[str, Write], ...] = (
    ("edited", _edited),
    ("new, then deleted", _new_and_deleted),
    ("new, as a dry run", _dry_run),
)


def policy(number: int, idle: str = "5s", *, is_wide: bool = False) -> dict[str, Any]:
    """A policy of one app, or of all proxies, for calls to one service."""
    labels = {"kind": "Dataplane", "labels": {"app": f"app-{number}"}}
    to = {"targetRef": {"kind": "MeshService", "name": f"service-{number % 50}"}}
    return {
        "type": "MeshTimeout",
        "mesh": sample.MESH,
        "name": f"policy-{number}",
        "spec": {
            "targetRef": {"kind": "Mesh"} if is_wide else labels,
            "to": [{**to, "default": {"idleTimeout": idle}}],
        },
    }


def _neighbours() -> list[dict[str, Any]]:
    return [
        {
            "type": "Dataplane",
            "mesh": sample.MESH,
            "name": f"proxy-{number}",
            "labels": {"app": f"app-{number}"},
            "networking": {
                "address": f"10.0.0.{number + 1}",
                "inbound": [{"port": 8080, "tags": {"kuma.io/service": f"service-{number}"}}],
            },
        }
        for number in range(50)
    ]
