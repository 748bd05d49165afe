"""Live: how long until a change acts in a real Envoy, and where that time goes.

    python -m bench.live [--changes N --proxies P --quick --json]

A control plane, two services with `koguma dp run` beside each, and a client of the first that calls the
second. Each change writes a MeshHTTPRoute with another response header, and is over when a call shows it.
Then the same with more Envoys, until the last one has acknowledged it. All processes share a clock.
"""

import argparse
import http.client
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.figures import percentile
from tests import build
from tests.live_mesh import LiveMesh, Process
from tests.waiting import until

CALLER, CALLED = "web", "backend"
_PAUSE_SECONDS = 0.01
_LOOK_SECONDS_MAX = 10.0


class Change(msgspec.Struct, frozen=True):
    """One change as its writer saw it."""

    revision: int
    sent: float
    answered: float
    seen: float
    calls: int  # until one showed it


class Part(msgspec.Struct, frozen=True):
    """One stretch of the way, in milliseconds."""

    what: str
    whose: str  # ours, Envoy's, both
    median: float
    p99: float


class ObservedMesh(LiveMesh):
    """A mesh whose control plane records when it offered, sent and was acknowledged what."""

    def start_control_plane(self) -> None:
        self.records = self.directory / "records.json"
        flags = {
            "api_port": self.api,
            "api_tls_port": self.tls,
            "dp_port": self.dp,
            "xds_port": self.xds,
            "data_dir": self.directory / "cp",
        }
        command = [sys.executable, "-m", "bench.live_plane", str(self.records)]
        command += [f"{name}={value}" for name, value in flags.items()]
        self.control_plane = Process("control plane", command, self.directory / "cp.log", self.environment)
        self.control_plane.wait_for_output("is ready: ")


def route(value: str) -> dict[str, Any]:
    """A route that sets a header of responses to a value."""
    rule = build.http_rule(filters=[build.response_header("x-live", value)])
    return build.http_route("live", rule, to=CALLED)


class Client:
    """Writes on one connection, and calls on another."""

    def __init__(self, api: int, outbound: int) -> None:
        self.outbound_port = outbound
        self._api = http.client.HTTPConnection("127.0.0.1", api, timeout=10)
        self._outbound = http.client.HTTPConnection("127.0.0.1", outbound, timeout=10)

    def close(self) -> None:
        self._api.close()
        self._outbound.close()

    def write(self, value: str) -> int:
        """Write the route; the revision that it has."""
        body = json.dumps([route(value)]).encode()
        return int(self.post("/_apply", body, {"content-type": "application/json"})["revision"])

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Any:
        """One request that must succeed; its answer."""
        self._api.request("POST", path, body, dict(headers))
        answer = self._api.getresponse()
        result = json.loads(answer.read())
        assert answer.status == 200, result
        return result

    def call(self) -> str:
        """The header of a response."""
        self._outbound.request("GET", "/")
        answer = self._outbound.getresponse()
        answer.read()
        return answer.getheader("x-live") or ""

    def change(self, value: str) -> Change:
        """Write, and call until a call shows it."""
        sent = time.monotonic()
        revision = self.write(value)
        answered = time.monotonic()
        calls = 1
        while self.call() != value:
            calls += 1
            assert time.monotonic() < answered + _LOOK_SECONDS_MAX, f"{value} never became live"
        return Change(revision, sent, answered, time.monotonic(), calls)


def two_services(mesh: LiveMesh) -> Client:
    """Start both, and wait until one can call the other."""
    mesh.sidecar(f"{CALLED}-1", CALLED)
    until(lambda: mesh.request("GET", f"/meshes/default/meshservices/{CALLED}").status == 200, "service")
    web = mesh.sidecar(f"{CALLER}-1", CALLER, outbounds=[CALLED])
    until(lambda: web.call(CALLED).status == 200, "a first call")
    mesh.wait_until_synced()
    return Client(mesh.api, web.outbounds[CALLED])


def more_proxies(mesh: LiveMesh, number: int) -> None:
    """Start callers beside the first one, all at once."""
    for index in range(2, number + 1):
        mesh.sidecar(f"{CALLER}-{index}", CALLER, outbounds=[CALLED], serves=False, wait=False)
    until(lambda: len(mesh.proxies()) == number + 1, "all proxies are there", 120)
    until(lambda: all(p["state"] == "synced" for p in mesh.proxies().values()), "all have everything", 120)


def changes(client: Client, number: int, word: str) -> list[Change]:
    measured_changes = []
    for turn in range(number):
        measured_changes.append(client.change(f"{word}-{turn}"))
        time.sleep(_PAUSE_SECONDS)
    return measured_changes


class Records:
    """The recorded events of the control plane."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._events = events

    def first(self, what: str, proxy: str, revision: int) -> float:
        """When a proxy first had an offer, or an acknowledgement, of a revision."""
        return min(
            record["at"]
            for record in self._events
            if record["what"] == what and record["proxy"] == proxy and record["revision"] >= revision
        )

    def sent(self, since: float, name: str) -> float:
        """When the routes of that service first became bytes after a moment."""
        return min(
            record["at"]
            for record in self._events
            if record["what"] == "bytes" and record["at"] >= since and name in record["names"]
        )

    def proxies_at(self, revision: int, what: str) -> dict[str, float]:
        times: dict[str, float] = {}
        for record in self._events:
            if record["what"] == what and record["revision"] >= revision:
                times.setdefault(record["proxy"], record["at"])
        return times


def parts(measured_changes: list[Change], records: Records, name: str) -> list[Part]:
    """The way of a change, stretch by stretch."""
    stretches: dict[tuple[str, str], list[float]] = {}
    for change in measured_changes:
        offered = records.first("offer", f"{CALLER}-1", change.revision)
        sent = records.sent(offered, name)
        acked = records.first("acked", f"{CALLER}-1", change.revision)
        for key, seconds in {
            ("write sent to answered", "ours"): change.answered - change.sent,
            ("write answered to offer made: the compile", "ours"): offered - change.answered,
            ("offer made to bytes sent", "ours"): sent - offered,
            ("bytes sent to acknowledged", "Envoy's"): acked - sent,
            ("acknowledged to seen by a call", "both"): change.seen - acked,
            ("write answered to seen by a call", "all"): change.seen - change.answered,
        }.items():
            stretches.setdefault(key, []).append(seconds * 1000)
    return [
        Part(what, whose, median(values), percentile(values, 0.99))
        for (what, whose), values in stretches.items()
    ]


def fleet_parts(measured_changes: list[Change], records: Records, number: int) -> list[Part]:
    """The same for many proxies: until the last one has an offer, and has acknowledged it."""
    offered, acked = [], []
    for change in measured_changes:
        offered.append((max(records.proxies_at(change.revision, "offer").values()) - change.answered) * 1000)
        acked.append((max(records.proxies_at(change.revision, "acked").values()) - change.answered) * 1000)
    return [
        Part(
            f"write answered to the last of {number} offers",
            "ours",
            median(offered),
            percentile(offered, 0.99),
        ),
        Part(f"write answered to the last of {number} ACKs", "both", median(acked), percentile(acked, 0.99)),
    ]


def share_of_ours(stretches: list[Part]) -> float:
    """Our share of the median time between the answer to a write and the acknowledgement."""
    ours = sum(
        part.median for part in stretches if part.whose == "ours" and not part.what.startswith("write sent")
    )
    whole = ours + sum(part.median for part in stretches if part.whose == "Envoy's")
    return max(ours, 0.0) / whole


def measured(n_changes: int, n_proxies: int, n_fleet_changes: int) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="koguma-live-") as folder:
        mesh = ObservedMesh(Path(folder))
        with mesh:
            client = two_services(mesh)
            changes(client, 5, "warm")
            single = changes(client, n_changes, "one")
            many: list[Change] = []
            if n_proxies > 1:
                more_proxies(mesh, n_proxies)
                changes(client, 3, "warm-again")
                many = changes(client, n_fleet_changes, "many")
                mesh.wait_until_synced(many[-1].revision)
            client.close()
            name = mesh.request("GET", f"/meshes/default/meshservices/{CALLED}").json["kri"]
        records = Records(json.loads(mesh.records.read_text()))
    section = "http"
    stretches = parts(single, records, f"{name}{section}")
    return {
        "changes": n_changes,
        "parts": stretches,
        "ours": share_of_ours(stretches),
        "calls": median(change.calls for change in single),
        "fleet": fleet_parts(many, records, n_proxies) if many else [],
    }


def table(result: dict[str, Any]) -> str:
    lines = ["| | whose | median ms | p99 ms |", "|---|---|---:|---:|"]
    lines += [
        f"| {part.what} | {part.whose} | {part.median:.2f} | {part.p99:.2f} |"
        for part in (*result["parts"], *result["fleet"])
    ]
    lines += ["", f"Ours is {result['ours']:.0%} of the way from the answer to the acknowledgement."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--proxies", type=int, default=20, help="Envoys of the second part; 1 leaves it out")
    parser.add_argument("--quick", action="store_true", help="a short round; its figures mean nothing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = (3, min(options.proxies, 2), 2) if options.quick else (options.changes, options.proxies, 20)
    result = measured(*sizes)
    print(msgspec.json.encode(result).decode() if options.json else table(result))


if __name__ == "__main__":
    main()
