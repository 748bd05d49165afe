"""On Global it is never said too early that a revision has arrived, whatever happens to zones and proxies."""

import contextlib
import random
import re
import time
from typing import Any

import pytest

from koguma.fleet import zone_arrivals
from koguma.fleet.zone_arrivals import ArrivalLooks, AskedArrival
from koguma.model.errors import Unavailable
from koguma.sync import zone_client
from koguma.sync.protocol import publisher
from tests.build import dataplane
from tests.control_plane import LocalControlPlane
from tests.proxy_connections import connect, report_ack, synced
from tests.sync.test_zones import Federation, _has_mesh
from tests.test_arrival import headers_timeout, inbound_of, look_each_time, refuse, written
from tests.waiting import until

ALL = {"Dataplane": None, "ZoneIngress": None, "ZoneEgress": None}
WINDOW_BYTES = publisher.WINDOW_BYTES
ZONES = {"a": "east", "b": "east", "c": "west", "d": "west"}  # of proxies


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    look_each_time(monkeypatch)
    monkeypatch.setattr("koguma.fleet.fleet.DEREGISTRATION_SECONDS", 600.0)
    monkeypatch.setattr(zone_client, "_RETRY_SECONDS", (0.05, 0.1))
    monkeypatch.setattr(publisher, "WINDOW_BYTES", WINDOW_BYTES)  # and as it was, afterwards


class RandomZones:
    """Two zones whose connections and control planes end and come back, and proxies as they come."""

    def __init__(self, federation: Federation, stack: contextlib.ExitStack, seed: int) -> None:
        self._federation, self.top = federation, federation.top
        self._random = random.Random(seed)
        self._stacks = {zone: stack.enter_context(contextlib.ExitStack()) for zone in ("east", "west")}
        self.zones: dict[str, LocalControlPlane] = {}
        self._connections: dict[str, Any] = {}
        self._pending: dict[str, list[Any]] = {}  # offers that were not answered yet, the oldest first
        self._holds = dict.fromkeys(ZONES, 0)  # the timeout that its Envoy really has
        self._seconds = dict.fromkeys(ZONES, 0)
        self._writes: list[tuple[int, str, int]] = []  # revision, name, seconds
        self._refused: set[int] = set()  # revisions of writes
        self.n_arrived = self.n_lacking = 0
        for zone in self._stacks:
            self.restart(zone)

    def restart(self, zone: str) -> None:
        """Stop the control plane of a zone, and start another one on its store; its proxies stay away."""
        self._connections = {name: proxy for name, proxy in self._connections.items() if ZONES[name] != zone}
        self._stacks[zone].close()
        self.zones[zone] = self._stacks[zone].enter_context(self._federation.zone(zone))
        until(lambda: _has_mesh(self.zones[zone]), "the mesh comes from Global")

    def step(self) -> None:
        """Do something, then compare what is said of each late revision with what is so."""
        weights = {self.write: 4, self.write_twice: 1, self.answer: 16, self.come: 3, self.go: 1}
        weights |= {self.cut: 1, self.stall: 1}
        (doing,) = self._random.choices(list(weights), weights.values())
        doing(self._random.choice(list(ZONES)))
        time.sleep(self._random.choice((0, 0.01, 0.03)))
        self.check()

    def write(self, name: str) -> None:
        self._seconds[name] += 1
        seconds = 10 + self._seconds[name]
        revision = written(self.top, headers_timeout(seconds, f"t-{name}", name=name))
        self._writes.append((revision, name, seconds))

    def write_twice(self, name: str) -> None:
        self.write(name)
        self.write(name)

    def cut(self, name: str) -> None:
        """End the stream of a zone; it comes back by itself."""

        async def end() -> None:
            if (stream := self.top.plane._sync.server._streams.get(ZONES[name])) is not None:
                stream.connection.end(Unavailable("cut"))

        self.top.run(end())

    def stall(self, _name: str) -> None:
        """Send nothing more to zones, or go on with that."""
        self._send(WINDOW_BYTES if publisher.WINDOW_BYTES == 0 else 0)

    def _send(self, window: int) -> None:
        publisher.WINDOW_BYTES = window  # type: ignore[misc]

        async def wake() -> None:
            self.top.plane._sync.server._published._notify()

        self.top.run(wake())

    def come(self, name: str) -> None:
        zone = self.zones[ZONES[name]]
        proxy = connect(zone, dataplane(name, port=1000 + ord(name)), name=name)
        offers: list[Any] = []
        self._connections[name], self._pending[name] = proxy, offers

        async def watch() -> None:
            proxy.watch_offers(offers.append)

        zone.run(watch())

    def go(self, name: str) -> None:
        if name in self._connections:
            self.zones[ZONES[name]].run(self._connections.pop(name).close())

    def answer(self, name: str) -> None:
        """Acknowledge an offer, at times not the newest, or refuse it."""
        if name not in self._connections or not self._pending[name]:
            return
        zone, proxy, offers = self.zones[ZONES[name]], self._connections[name], self._pending[name]
        chosen = self._random.choice((0, len(offers) - 1))
        offer = offers[chosen]
        del offers[: chosen + 1]  # an Envoy never goes back
        if self._random.random() < 0.05 and offer is proxy._offer:
            refuse(zone, proxy)
            lacking = {at for at, of, seconds in self._writes if of == name and self._holds[name] < seconds}
            self._refused |= lacking
            return
        held = self._timeout(name, offer)

        async def report() -> None:
            self._holds[name] = held
            report_ack(proxy, offer)

        zone.run(report())

    def _timeout(self, name: str, offer: Any) -> int:
        inbound = inbound_of(self.zones[ZONES[name]], offer)
        found = re.search(r"requestHeadersTimeout', '(\d+)s'", inbound)
        return int(found[1]) if found else 0

    def check(self) -> None:
        for revision, *_ in self._writes[-4:]:
            if not self._has_arrived(revision):
                self.n_lacking += 1
                continue
            self.n_arrived += 1
            for at, name, seconds in self._writes:
                # One that was there once counts. What it refused has not arrived, and later changes have.
                if at <= revision and name in self._pending and not (at in self._refused and at < revision):
                    assert self._holds[name] >= seconds, f"{name} lacks what was written at {at}"

    def _has_arrived(self, revision: int) -> bool:
        async def look() -> bool:
            asked = AskedArrival(revision, (), ALL, counts_absent=True)
            return zone_arrivals.is_complete(await ArrivalLooks(self.top.plane._zones.arrivals, asked).look())

        return bool(self.top.run(look()))

    def settle(self) -> None:
        """Let all come and acknowledge everything; then all has arrived, unless something is held back."""
        self._send(WINDOW_BYTES)
        for name in ZONES:
            self.come(name)
        newest = self.top.plane.store.state.revision

        def is_settled() -> bool:
            for name in self._connections:
                self.zones[ZONES[name]].run(self._take(name))
            return self._is_held() or self._has_arrived(newest)

        until(is_settled, f"revision {newest} has arrived")
        self.check()

    async def _take(self, name: str) -> None:
        """A proxy acknowledges its newest offer, in the moment in which that is looked at."""
        proxy = self._connections[name]
        if proxy._offer is not None:
            self._holds[name] = self._timeout(name, proxy._offer)
            proxy.report(synced(proxy._offer))

    def _is_held(self) -> bool:
        return any(
            self.zones[ZONES[name]].plane._proxies.fleet.quarantine.of(proxy.key)
            for name, proxy in self._connections.items()
        )


@pytest.mark.slow
@pytest.mark.expected_errors("zone is gone", "stream of a zone ended", "cut", "works on")
@pytest.mark.parametrize(
    ("seed", "n_steps"), [(0, 100), *(pytest.param(n, 600, marks=pytest.mark.soak) for n in range(1, 11))]
)
def test_never_too_early(tmp_path: Any, seed: int, n_steps: int) -> None:
    federation = Federation(tmp_path)
    with federation.stack, contextlib.ExitStack() as stack:
        zones = RandomZones(federation, stack, seed)
        zones.settle()
        for number in range(n_steps):
            if number % 50 == 25:
                zones.restart(random.Random(number).choice(("east", "west")))
            zones.step()
        zones.settle()
        assert zones.n_lacking > 0 < zones.n_arrived
