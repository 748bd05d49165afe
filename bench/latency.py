"""latency: two planes on one PostgreSQL: a write to one is answered, and seen by a watch of the other.

Two clocks run for each write: one from its answer, which may come after the event (then the delay is below
zero), and one from when it was sent. The bare side does the same with asyncpg alone: INSERT, then NOTIFY;
a listener on another connection reads the new row when it is notified.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import asyncpg
import msgspec

from bench import databases, sample, wire
from bench.figures import Figure, Goal, compared, in_turns, percentile
from bench.processes import MeasuredControlPlane
from bench.store import stored_bytes

ABOUT = "watch latency between two control planes on one PostgreSQL, against NOTIFY and a SELECT"
GOAL_MS = 20.0
_PAUSE_SECONDS_MAX = 0.02
_CHANNEL = "bare_changes"


class Delay(msgspec.Struct, frozen=True):
    """Milliseconds until a write was seen: since it was sent, and since it was answered."""

    of_sent: float
    of_answered: float


WriteAndWait = Callable[[], Awaitable[Delay]]  # writes once, and waits until that is seen


async def measured(*, quick: bool) -> list[Figure]:
    """The figures of writes at random moments, each seen before the next."""
    rounds, writes = (2, 10) if quick else (6, 50)
    with databases.postgres() as server, tempfile.TemporaryDirectory(prefix="koguma-bench-") as name:
        url = server.database()
        with (
            MeasuredControlPlane(Path(name) / "a", url) as a,
            MeasuredControlPlane(Path(name) / "b", url) as b,
        ):
            ours = await _TwoControlPlanes().open(a, b)
            bare = await _Bare().open(server.database())
            await _delays(ours.seen, 5)
            our_delays, bare_delays = await in_turns(
                rounds, lambda: _delays(ours.seen, writes), lambda: _delays(bare.seen, writes)
            )
            await bare.close()
            ours.close()
    return _figures(our_delays, bare_delays)


def _figures(ours: list[list[Delay]], bare: list[list[Delay]]) -> list[Figure]:
    answered = [[delay.of_answered for delay in some] for some in ours]
    sent = [[[delay.of_sent for delay in some] for some in side] for side in (ours, bare)]
    every = [delay for some in answered for delay in some]
    what = f"write to A {{}}, event at a client of B, {len(every)} writes"
    return [
        compared(
            what.format("answered"),
            "median ms",
            [median(some) for some in answered],
            better="less",
            goal=Goal("ours", GOAL_MS),
        ),
        compared(what.format("answered"), "p99 ms", [percentile(every, 0.99)], better="less"),
        compared(
            what.format("sent"),
            "median ms",
            *([median(some) for some in side] for side in sent),
            better="less",
        ),
    ]


async def _delays(write_and_wait: WriteAndWait, writes: int) -> list[Delay]:
    """The pauses keep the writes out of step with any timer in the servers."""
    delays = []
    for _ in range(writes):
        await asyncio.sleep(random.uniform(0, _PAUSE_SECONDS_MAX))
        delays.append(await write_and_wait())
    return delays


class _TwoControlPlanes:
    """A client that writes to one control plane, and one that watches the other."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._news = asyncio.Event()
        self._numbers = iter(range(1, 1_000_000))

    async def open(self, a: MeasuredControlPlane, b: MeasuredControlPlane) -> "_TwoControlPlanes":
        self._client = await wire.Client(a.token).connect(a.port)
        began = asyncio.Event()
        request = wire.request(f"{sample.PATH}?watch=true", b.token)
        self._listener = wire.Listener(request, began.set, self._event)
        await wire.listening(b.port, self._listener)
        await asyncio.wait_for(began.wait(), wire.PATIENCE_SECONDS)
        return self

    def close(self) -> None:
        self._client.close()
        self._listener.transport.close()

    async def seen(self) -> Delay:
        body = sample.body("sample", f"{next(self._numbers)}ms")
        sent_at = time.perf_counter()
        answer = await self._client.ask(f"{sample.PATH}/sample", "PUT", body)
        revision = int(answer.head.lower().partition(b'etag: "')[2].partition(b'"')[0])
        while revision not in self._seen:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), wire.PATIENCE_SECONDS)
        seen_at = self._seen[revision]
        return Delay(1000 * (seen_at - sent_at), 1000 * (seen_at - answer.at))

    def _event(self, revision: int, at: float) -> None:
        self._seen[revision] = at
        self._news.set()


class _Bare:
    """The same with the library alone."""

    def __init__(self) -> None:
        self._notified = asyncio.Event()

    async def open(self, url: str) -> "_Bare":
        self._writer, self._notifier, self._reader = [await asyncpg.connect(url) for _ in range(3)]
        listener = await asyncpg.connect(url)
        await self._writer.execute("CREATE TABLE bare (id BIGSERIAL PRIMARY KEY, body TEXT NOT NULL)")
        await listener.add_listener(_CHANNEL, self._on_notify)
        self._listener, self._body = listener, stored_bytes().decode()
        self._known = 0
        return self

    async def close(self) -> None:
        for connection in (self._writer, self._notifier, self._reader, self._listener):
            await connection.close()

    def _on_notify(self, *_: object) -> None:
        self._notified.set()

    async def seen(self) -> Delay:
        self._notified.clear()
        sent_at = time.perf_counter()
        await self._writer.execute("INSERT INTO bare (body) VALUES ($1)", self._body)
        written_at = time.perf_counter()
        await self._notifier.execute(f"NOTIFY {_CHANNEL}")
        await asyncio.wait_for(self._notified.wait(), wire.PATIENCE_SECONDS)
        rows = await self._reader.fetch("SELECT id, body FROM bare WHERE id > $1 ORDER BY id", self._known)
        self._known = rows[-1]["id"]
        seen_at = time.perf_counter()
        return Delay(1000 * (seen_at - sent_at), 1000 * (seen_at - written_at))
