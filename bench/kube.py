"""kube: the Kubernetes form, here "ours", against the plain form of the same server, here "bare".

Both show the same 10,000 objects, the same changes and the same one object. Discovery has nothing like it in
the plain form: its 304 stands beside that of an empty handler. What counts is the server's processor time.
"""

import asyncio
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from statistics import median

import msgspec

from bench import lists, sample, wire
from bench.figures import Figure, Goal, compared, in_turns
from bench.processes import EmptyServer, MeasuredControlPlane, Process
from bench.watches import Crowd

ABOUT = 'the Kubernetes form ("ours") against the plain form of the same server ("bare")'
STORED = f"/apis/kuma.io/v1alpha1/namespaces/mesh-{sample.MESH}/meshtimeouts"
CLEAN = f"/apis/koguma.io/v1/namespaces/mesh-{sample.MESH}/meshtimeouts"
CONNECTIONS = 32
_FORMS = Goal("cost", 1.5)
_DISCOVERY = Goal("cost", 1.3)
_TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_APPLY = {"Content-Type": "application/apply-patch+yaml"}
_FIRST = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
_CONTINUE = re.compile(rb'"continue":"([^"]+)"')
_ETAG = re.compile(rb"\r\nETag: (\S+)", re.IGNORECASE)
_HEAD = 1_000  # the bytes of a list that have its metadata
_WRITERS = 10
_BURSTS = 5
_SETTLE_SECONDS = 0.5

Act = Callable[[], Awaitable[None]]
Request = tuple[Process, bytes, int]  # the server, the request, and the expected status


class Cost(msgspec.Struct, frozen=True):
    """What one of something costs: the server's processor time, and wall time, both in ms."""

    cpu: float
    wall: float


async def measured(*, quick: bool) -> list[Figure]:
    """Lists, watches, discovery, and single objects."""
    objects = 2_000 if quick else 10_000
    with tempfile.TemporaryDirectory(prefix="koguma-bench-") as name:
        folder = Path(name)
        with MeasuredControlPlane(folder / "many") as plane:
            await lists.seeded(plane, objects)
            figures = await _lists(plane, objects, quick=quick)
        figures += await _watches(folder / "watched", quick=quick)
        with MeasuredControlPlane(
            folder / "few"
        ) as plane:  # what a write costs depends on what else is there
            figures += await _discovery(plane, folder, quick=quick)
            figures += await _single(plane, quick=quick)
    return figures


def _figures(
    what: str, ours: list[Cost], bare: list[Cost], goal: Goal | None = None, *, is_short: bool = False
) -> Iterator[Figure]:
    """Both times of some rounds; the goal is about the server's own. Short times are given in µs."""
    times, word = (1000, "µs") if is_short else (1, "ms")
    for unit, field, aim in ((f"CPU {word}", "cpu", goal), (word, "wall", None)):
        a, b = ([times * getattr(cost, field) for cost in side] for side in (ours, bare))
        yield compared(what, unit, a, b, better="less", goal=aim)


async def _spent(process: Process, times: int, act: Act) -> Cost:
    """What one of `times` equal acts costs."""
    before, started = process.cpu_seconds, time.perf_counter()
    for _ in range(times):
        await act()
    cpu, wall = process.cpu_seconds - before, time.perf_counter() - started
    return Cost(1000 * cpu / times, 1000 * wall / times)


class Listing(msgspec.Struct, frozen=True):
    """A list of the Kubernetes form, and the page size of the plain one beside it."""

    words: str
    path: str
    limit: int
    plain_size: int
    headers: dict[str, str] = {}
    goal: Goal | None = _FORMS


LISTINGS = (
    Listing("in pages of 500", STORED, 500, 500),
    Listing("in pages of 1,000", STORED, 1_000, 1_000),
    Listing("in one answer, against pages of 1,000", STORED, 0, 1_000),
    Listing("as koguma.io/v1, in pages of 500", CLEAN, 500, 500),
    Listing("as a table, in pages of 500", STORED, 500, 500, _TABLE, None),
)


async def _lists(plane: MeasuredControlPlane, objects: int, *, quick: bool) -> list[Figure]:
    figures: list[Figure] = []
    for listing in LISTINGS:
        a, b = await _listed(plane, objects, listing, quick=quick)
        figures += _figures(f"{objects:,} objects {listing.words}", a, b, listing.goal)
    return figures


async def _listed(
    plane: MeasuredControlPlane, objects: int, listing: Listing, *, quick: bool
) -> tuple[list[Cost], list[Cost]]:
    rounds, times = (2, 2) if quick else (7, 6)
    client = await wire.Client(plane.token).connect(plane.port)

    async def kube() -> None:
        await _paged(client, listing.path, listing.limit, listing.headers)

    async def plain() -> None:
        for start in range(0, objects, listing.plain_size):
            await client.ask(f"{sample.PATH}?size={listing.plain_size}&offset={start}")

    for act in (kube, plain):  # so that what is made once is there on both sides
        await act()
    costs = await in_turns(rounds, lambda: _spent(plane, times, kube), lambda: _spent(plane, times, plain))
    client.close()
    return costs


async def _paged(client: wire.Client, path: str, limit: int, headers: Mapping[str, str]) -> None:
    """Read a list to its end; the metadata stands before the items, so the client has little to do."""
    token = ""
    while True:
        answer = await client.ask(f"{path}?limit={limit}&continue={token}", headers=headers)
        token_match = _CONTINUE.search(answer.body, 0, _HEAD)
        if token_match is None:
            return
        token = token_match[1].decode()


async def _discovery(plane: MeasuredControlPlane, folder: Path, *, quick: bool) -> list[Figure]:
    """What `kubectl` asks each time that its copy is old: has anything changed?"""
    client = await wire.Client(plane.token).connect(plane.port)
    answer = await client.ask("/apis", headers={"Accept": _AGGREGATED})
    client.close()
    etag_match = _ETAG.search(answer.head)
    assert etag_match
    etag = etag_match[1].decode()
    (folder / "etag").write_text(etag)
    (folder / "body").write_bytes(answer.body)
    headers = {"Accept": _AGGREGATED, "If-None-Match": etag}
    request = wire.request("/apis", plane.token, headers=headers)
    figures: list[Figure] = []
    for mode, status, words, goal in (
        ("unchanged", 304, "the 304 of an empty handler", _DISCOVERY),
        ("constant", 200, "the document from an empty handler", None),
    ):
        with EmptyServer(mode, folder) as empty:
            a, b = await _loaded((plane, request, 304), (empty, request, status), quick=quick)
        figures += _figures(f"discovery, 304, against {words}", a, b, goal, is_short=True)
    return figures


async def _single(plane: MeasuredControlPlane, *, quick: bool) -> list[Figure]:
    """One object: read, and written by server-side apply against PUT."""
    name, numbers = "sample", count(1)
    client = await wire.Client(plane.token).connect(plane.port)

    async def put() -> None:
        await client.ask(f"{sample.PATH}/{name}", "PUT", sample.body(name, f"{next(numbers)}s"))

    async def applied() -> None:
        path = f"{STORED}/{name}?fieldManager=bench&force=true"
        await client.ask(path, "PATCH", _document(name, f"{next(numbers)}s"), _APPLY)

    await put()
    ours, bare = (wire.request(f"{path}/{name}", plane.token) for path in (STORED, sample.PATH))
    read = await _loaded((plane, ours, 200), (plane, bare, 200), quick=quick)
    rounds, times = (2, 10) if quick else (7, 200)
    written = await in_turns(rounds, lambda: _spent(plane, times, applied), lambda: _spent(plane, times, put))
    client.close()
    return [
        *_figures("GET of one object", *read, is_short=True),
        *_figures("server-side apply, against PUT", *written),
    ]


def _document(name: str, request_timeout: str) -> bytes:
    """The sample as the Kubernetes form has it."""
    head = {"apiVersion": "kuma.io/v1alpha1", "kind": "MeshTimeout", "metadata": {"name": name}}
    return msgspec.json.encode({**head, "spec": sample.spec(request_timeout)})


async def _loaded(ours: Request, bare: Request, *, quick: bool) -> tuple[list[Cost], list[Cost]]:
    """What one request costs each side, under the load of many connections."""
    rounds, seconds = (2, 0.1) if quick else (9, 1.0)

    async def cost_of_one(process: Process, request: bytes, status: int) -> Cost:
        before = process.cpu_seconds
        load = await wire.load(process.port, request, CONNECTIONS, seconds, status)
        cpu, n_answers = process.cpu_seconds - before, len(load.latencies)
        return Cost(1000 * cpu / n_answers, 1000 * load.seconds / n_answers)

    for side in (ours, bare):
        await cost_of_one(*side)
    return await in_turns(rounds, lambda: cost_of_one(*ours), lambda: cost_of_one(*bare))


class Burst(msgspec.Struct, frozen=True):
    """One round: memory of each watch, and what a burst of changes costs until everybody has all of them."""

    kib_each: float
    cost: Cost


async def _watches(folder: Path, *, quick: bool) -> list[Figure]:
    """Each round starts a server anew for each form, since memory once taken is not given back."""
    size, changes, rounds = (50, 10, 2) if quick else (1_000, 50, 5)
    a, b = await in_turns(
        rounds,
        lambda: _burst(folder, f"{STORED}?{_FIRST}", size, changes),
        lambda: _burst(folder, f"{sample.PATH}?watch=true", size, changes),
    )
    ours, bare = ([burst.kib_each for burst in side] for side in (a, b))
    return [
        compared(f"{size:,} open watches", "KiB each", ours, bare, better="less"),
        *_figures(
            f"{changes} changes to all {size:,}",
            [burst.cost for burst in a],
            [burst.cost for burst in b],
            _FORMS,
        ),
    ]


async def _burst(folder: Path, path: str, size: int, changes: int) -> Burst:
    with MeasuredControlPlane(folder) as plane:
        writers = [await wire.Client(plane.token).connect(plane.port) for _ in range(_WRITERS)]
        await _write(writers, "1s", _WRITERS)
        request = wire.request(path, plane.token)
        few = Crowd(2)  # so that what the first watch alone costs is not counted
        await few.open(plane.port, request)
        few.close()
        await asyncio.sleep(_SETTLE_SECONDS)
        before = plane.memory_kib
        crowd = Crowd(size)
        await crowd.open(plane.port, request)
        await asyncio.sleep(_SETTLE_SECONDS)
        kib_each = (plane.memory_kib - before) / size
        costs = [
            await _delivered(plane, crowd, writers, changes, f"{number + 2}s") for number in range(_BURSTS)
        ]
        crowd.close()
    return Burst(kib_each, Cost(median(cost.cpu for cost in costs), median(cost.wall for cost in costs)))


async def _delivered(
    plane: MeasuredControlPlane, crowd: Crowd, writers: list[wire.Client], changes: int, seconds: str
) -> Cost:
    """Write, and wait until every watch has every change."""
    crowd.expect(changes)
    cpu, started = plane.cpu_seconds, time.perf_counter()
    await _write(writers, seconds, changes)
    ended = await crowd.all()
    return Cost(1000 * (plane.cpu_seconds - cpu), 1000 * (ended - started))


async def _write(writers: list[wire.Client], seconds: str, changes: int) -> None:
    """Each writer writes its part of the objects, one after another, all writers at once."""

    async def part(number: int, client: wire.Client) -> None:
        for step in range(number, changes, len(writers)):
            body = sample.body(f"changed-{step}", seconds)
            await client.ask(f"{sample.PATH}/changed-{step}", "PUT", body)

    await asyncio.gather(*(part(number, client) for number, client in enumerate(writers)))
