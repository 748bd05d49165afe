"""Kills a writing process again and again, and looks each time at what it left behind.

Run as a program of its own: `killed_writer.py ADDRESS TIMES SEED`. A warm process forks a child, which opens
the store, writes with several clients at once, and reports every acknowledged transaction through a pipe. The
parent kills it without warning, opens the store itself and compares. Each transaction of a lane writes three
objects with the same number, so one that was done by half shows.
"""

import asyncio
import os
import random
import select
import signal
import sys
import time

from koguma.model.resource import Key, Resource
from koguma.store import Put, Store, Transaction, open_store

LANES = 4
ITEMS = 7
READY = b"ready\n"


def part(lane: int, name: str, number: int) -> Resource:
    """One of the three objects of a transaction."""
    name = f"lane-{lane}-{name}"
    return Resource(kind="MeshTimeout", mesh="default", name=name, core_name=name, spec={"number": number})


def number_of(store: Store, lane: int, name: str) -> int:
    stored = store.state.get(Key("MeshTimeout", "default", "", "", f"lane-{lane}-{name}"))
    return stored.spec["number"] if stored else 0


async def write_until_killed(url: str, report: int) -> None:
    store = await open_store(url)

    async def client(lane: int) -> None:
        number = number_of(store, lane, "left")
        while True:
            number += 1
            parts = ("left", f"item-{number % ITEMS}", "right")
            await store.write(Transaction(tuple(Put(part(lane, name, number)) for name in parts), "doomed"))
            os.write(report, f"{lane} {number}\n".encode())

    os.write(report, READY)
    await asyncio.gather(*map(client, range(LANES)))


def killed(url: str, seconds: float) -> dict[int, int]:
    """The last number that each lane had acknowledged when its process was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            asyncio.run(write_until_killed(url, writing))
        finally:
            os._exit(1)
    os.close(writing)
    assert select.select([reading], [], [], 30)[0], "the writer does not open its store"
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the writer ended before it was killed"
    with os.fdopen(reading, "rb") as pipe:
        ready, *lines = pipe.read().splitlines(keepends=True)
    assert ready == READY
    return dict(map(int, line.split()) for line in lines)


async def check(url: str, acknowledged: dict[int, int]) -> dict[int, int]:
    """Compare what is stored with what was acknowledged; answers the last number of each lane."""
    store = await open_store(url)
    found: dict[int, int] = {}
    for lane in range(LANES):
        left, right = (number_of(store, lane, name) for name in ("left", "right"))
        item = number_of(store, lane, f"item-{left % ITEMS}")
        assert left == right == item, f"lane {lane} is half done: {left}, {item}, {right}"
        last = acknowledged[lane]
        assert last <= left <= last + 1, f"lane {lane} acknowledged {last}; {left} is stored"
        found[lane] = left
    total = sum(found.values())
    assert store.state.revision == 3 * total, f"{store.state.revision} revisions for {total} transactions"
    await store.close()
    return found


def main(url: str, times: int, seed: int) -> None:
    dice = random.Random(seed)
    stored = dict.fromkeys(range(LANES), 0)
    for _ in range(times):
        acknowledged = stored | killed(url, dice.uniform(0.02, 0.08))
        stored = asyncio.run(check(url, acknowledged))
    print(times, sum(stored.values()))  # noqa: T201 - the answer of this program


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
