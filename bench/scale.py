"""Scale: what many proxies cost a control plane, beside a bare server that sends the same bytes.

    python -m bench.scale [--proxies N --services S --rounds R --planes P --json]

The control plane is `koguma cp run` in a process of its own, over TLS as always; the proxies are streams
that speak delta ADS as Envoy does (`bench.swarm`), each with a Dataplane and a token of its own. The bare
side is the same gRPC server with ready bytes (`bench.swarm_bare`), and has as many streams of the same swarm;
with TLS, and at the end once more without, since a control plane has no port for proxies that has no TLS.

With several planes, each is a process with its share of the proxies, on one PostgreSQL. Figures are then
those of all planes together, and nothing stands beside them. One is killed (SIGKILL) at the end: its proxies
reconnect to the first, and `death_s` is the time from then until the first has them all in sync.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from bench import databases
from bench import swarm_mesh as mesh
from bench.figures import percentile
from bench.processes import Process
from bench.swarm_parties import Bare, Plane, Planes, Swarm, free_ports

_RECORDED: Final = f"{mesh.MESH}.dp-15"  # a proxy that is like most
_LOOK_SECONDS: Final = 0.2
_LOOKS: Final = 5  # in a rest, so that something that happens once in it does not count
_FEW: Final = 1_000  # proxies; a change that touches no more is short and so less sure
_FEW_TIMES: Final = 3  # as many rounds of such changes
_NICE: Final = 10


class Change(msgspec.Struct, frozen=True):
    """What one change cost, from the write to the last ACK."""

    last_s: float
    p50_s: float
    p99_s: float
    cpu_s: float  # beyond `idle_cpu_s`, for the seconds that it took
    idle_cpu_s: float  # of a second in which nothing changes: streams are kept alive
    proxies: int
    messages: int
    resources: int
    bytes: int  # of one proxy


class Scale:
    """A control plane with many proxies, and a bare server with as many."""

    def __init__(self, folder: Path, options: argparse.Namespace, stack: ExitStack) -> None:
        self.folder, self.options, self._stack = folder, options, stack
        self.n = options.proxies
        self._datas = [folder / f"plane-{number}" for number in range(options.planes)]
        self._data = self._datas[0]
        self._ports = [free_ports() for _ in self._datas]
        self._values = itertools.count(100)
        self._store = options.store
        if options.planes > 1 and not self._store:
            self._store = stack.enter_context(databases.postgres()).database()
        self._start()

    def _start(self) -> None:
        planes = [
            self._stack.enter_context(Plane(data, ports, self._store))
            for data, ports in zip(self._datas, self._ports, strict=True)
        ]
        self.plane = Planes(planes)

    def _open(self) -> dict[str, Any]:
        """Connect all proxies, each to its control plane."""
        return self.swarm.open("ours", [ports["xds"] for ports in self._ports], tls=True)

    # Before any proxy connects.

    def fill(self) -> None:
        """Write the mesh, and wait until its services can be called."""
        options, api = self.options, self.plane.api
        api.apply(list(mesh.documents(self.n, options.services, mtls=options.mtls)))
        written = range(self.n) if options.applied else (mesh.OF_HIDDEN, mesh.OF_SHARED)
        api.apply([mesh.dataplane(number, options.services) for number in written])
        _until(lambda: api.n_addressed() >= options.services)
        path = self.folder / "proxies"
        path.write_text("".join(f"{json.dumps(each)}\n" for each in self._proxies()))
        # Real proxies have machines of their own, so these let the server go first; several servers would
        # leave them nothing.
        nice = _NICE if options.planes == 1 else 0
        self.swarm = self._stack.enter_context(Swarm(path, options.swarms, nice))

    def _proxies(self) -> Iterator[mesh.Document]:
        for number in range(self.n):
            document = mesh.dataplane(number, self.options.services)
            metadata = mesh.metadata(number)
            if not self.options.applied and number not in (mesh.OF_HIDDEN, mesh.OF_SHARED):
                metadata["dataplane.resource"] = json.dumps(document)
            name = document["name"]
            yield {"id": f"{mesh.MESH}.{name}", "token": self.plane.api.token(document), "metadata": metadata}

    # What is measured.

    def connect(self) -> dict[str, Any]:
        """All proxies connect for the first time."""
        plane, before, cpu = self.plane, self.plane.memory_kib, self.plane.cpu_seconds
        self.swarm("ours", "mark", record=_RECORDED)
        opened = self._open()
        self.swarm.wait("ours", self.n, quiet=1.0)
        _until(lambda: plane.n_synced() == self.n)
        _until(plane.api.has_arrived)  # the endpoints that came last
        counted = self.swarm.wait("ours", self.n)
        self.first = self.swarm.recorded("ours")
        time.sleep(self.options.settle)
        return {
            "seconds": max(counted["acked_at"]) - opened["began_at"],
            "cpu_s": plane.cpu_seconds - cpu,
            "memory_kib": plane.memory_kib - before,
            "messages": counted["messages"] / self.n,
            "resources": counted["resources"] / self.n,
            "bytes": _size(self.first),
            "sent_away": counted["ended"],
        }

    def connect_bare(self, *, tls: bool) -> dict[str, Any]:
        """The same streams to the bare server, which sends the same bytes."""
        folder = self.folder / f"bare-{tls}"
        folder.mkdir()
        _write(folder / "first", self.first)
        pair = (self._data / "tls.pem", self._data / "tls-key.pem") if tls else ()
        self.bare = self._stack.enter_context(Bare(folder, *pair))
        self._bare_folder = folder
        before, cpu = self.bare.memory_kib, self.bare.cpu_seconds
        self.swarm("bare", "mark")
        opened = self.swarm.open("bare", [self.bare.port], tls=tls)
        counted = self.swarm.wait("bare", self.n, quiet=1.0)
        time.sleep(self.options.settle)
        return {
            "seconds": max(counted["acked_at"]) - opened["began_at"],
            "cpu_s": self.bare.cpu_seconds - cpu,
            "memory_kib": self.bare.memory_kib - before,
        }

    def leave_bare(self) -> None:
        """Disconnect all proxies from the bare server, and end it."""
        self.swarm("bare", "close")
        self.bare.__exit__()

    def rest(self) -> None:
        """Measure what a second without changes costs."""
        seconds_each = self.options.rest / _LOOKS
        time.sleep(self.options.rest)
        servers: list[Process | Planes] = [self.plane]
        if self.options.planes == 1:
            servers.append(self.bare)
        samples: list[list[float]] = [[] for _ in servers]
        for _ in range(_LOOKS):
            before, began_at = [server.cpu_seconds for server in servers], time.monotonic()
            time.sleep(seconds_each)
            seconds = time.monotonic() - began_at
            for server, cpu, server_samples in zip(servers, before, samples, strict=True):
                server_samples.append((server.cpu_seconds - cpu) / seconds)
        self._idle = {
            id(server): median(server_samples)
            for server, server_samples in zip(servers, samples, strict=True)
        }

    def changed(self, document: Callable[[int], mesh.Document], n_touched: int) -> Change:
        """Write one object, and wait until every proxy that it touches has acknowledged the update."""
        written = document(next(self._values))
        self.swarm("ours", "mark", record=_RECORDED)
        cpu, began_at = self.plane.cpu_seconds, time.monotonic()
        self.plane.api.put(written)
        return self._change("ours", self.plane, cpu, began_at, n_touched)

    def broadcast(self) -> Change:
        """Let the bare server send what the recorded proxy received last."""
        _write(self._bare_folder / "change", self.swarm.recorded("ours"))
        self.swarm("bare", "mark", record=_RECORDED)
        cpu, began_at = self.bare.cpu_seconds, time.monotonic()
        self.bare.send()
        return self._change("bare", self.bare, cpu, began_at, self.n)

    def _change(
        self, group: str, process: Process | Planes, cpu: float, began_at: float, n_touched: int
    ) -> Change:
        counted = self.swarm.wait(group, n_touched)
        times = [at - began_at for at in counted["acked_at"]]
        idle, used = self._idle[id(process)], process.cpu_seconds - cpu
        return Change(
            last_s=max(times),
            p50_s=percentile(times, 0.5),
            p99_s=percentile(times, 0.99),
            cpu_s=used - idle * (time.monotonic() - began_at),
            idle_cpu_s=idle,
            proxies=len(times),
            messages=counted["messages"],
            resources=counted["resources"],
            bytes=_size(self.swarm.recorded(group)),
        )

    def death(self) -> dict[str, Any]:
        """Kill the last of several control planes; its proxies reconnect to the first one, as others do."""
        self.swarm("ours", "mark")
        left, killed_at = self.plane.first, time.monotonic()
        n_before, cpu = left.api.n_synced(), left.cpu_seconds
        n_moved = self.plane.kill_last()
        _until(lambda: self._n_connected() == self.n - n_moved)
        noticed_s = time.monotonic() - killed_at
        self.swarm("ours", "prepare")
        opened = self.swarm.open("ours", [self._ports[0]["xds"]], tls=True)
        _until(lambda: left.api.n_synced() == n_before + n_moved)
        seconds = time.monotonic() - opened["began_at"]
        counted = self.swarm.wait("ours", 0)
        return {
            "proxies": n_moved,
            "noticed_s": noticed_s,
            "greeted_s": opened["greeted_at"] - opened["began_at"],
            "seconds": seconds,
            "cpu_s": left.cpu_seconds - cpu,
            "resources": counted["resources"],
            "unchanged": counted["unchanged"],
        }

    def _n_connected(self) -> int:
        return sum(swarm["connected"] for swarm in self.swarm("ours", "counted"))

    def restart(self) -> dict[str, Any]:
        """Restart the control plane, and reconnect all proxies."""
        self.swarm("ours", "mark")
        self.plane.stop()
        _until(lambda: self._n_connected() == 0)
        self.swarm("ours", "prepare")
        began_at = time.monotonic()
        self._start()
        started_s, cpu = time.monotonic() - began_at, self.plane.cpu_seconds
        self.swarm("ours", "mark")
        opened = self._open()
        _until(lambda: self.plane.n_synced() == self.n)
        seconds = time.monotonic() - opened["began_at"]
        counted = self.swarm.wait("ours", 0)
        return {
            "started_s": started_s,
            "greeted_s": opened["greeted_at"] - opened["began_at"],
            "seconds": seconds,
            "cpu_s": self.plane.cpu_seconds - cpu,
            "resources": counted["resources"],
            "unchanged": counted["unchanged"],
        }


def _until(is_so: Callable[[], bool], patience_seconds: float = 1800.0) -> None:
    end = time.monotonic() + patience_seconds
    while not is_so():
        if time.monotonic() > end:
            raise RuntimeError("it takes too long")
        time.sleep(_LOOK_SECONDS)


def _write(path: Path, messages: list[str]) -> None:
    path.write_text("".join(f"{message}\n" for message in messages))


def _size(messages: list[str]) -> int:
    return sum(len(message) * 3 // 4 for message in messages)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one size."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        scale = Scale(Path(folder), options, stack)
        scale.fill()
        connected = scale.connect()
        bare = scale.connect_bare(tls=True) if options.planes == 1 else {}
        changes = _changes(scale, options)
        if bare:
            scale.leave_bare()
            changes["parts"]["without_tls"] = _without_tls(scale, options.rounds)
        death = scale.death() if options.planes > 1 else None
        restarted = scale.restart()
    per_proxy = (connected["memory_kib"] - bare.get("memory_kib", 0)) / options.proxies
    return {
        "planes": options.planes,
        **{name: changes[name] for name in ("all_ratio", "wide_ratio", "ten_cpu_s", "endpoint_cpu_s")},
        "resent_resources": restarted["unchanged"],
        "reconnect_s": restarted["seconds"],
        "death_s": death and death["seconds"],
        "kb_per_proxy": per_proxy,
        "proxies": options.proxies,
        "services": options.services,
        "policy_sets": options.proxies // mesh.TEAM,
        "tls": True,
        "mtls": options.mtls,
        "registered_by": "operator" if options.applied else "proxy",
        "parts": {
            **changes["parts"],
            "connect": connected,
            "connect_bare": bare,
            "death": death,
            "restart": restarted,
        },
        "machine": {"cores": os.cpu_count(), "load": os.getloadavg()},
    }


def _without_tls(scale: Scale, rounds: int) -> dict[str, Any]:
    """The bare server without TLS sends its last change again."""
    connected = scale.connect_bare(tls=False)
    scale.rest()
    result = {"connect": connected, "last_change": _middle([scale.broadcast() for _ in range(rounds)])}
    scale.leave_bare()
    return result


def _changes(scale: Scale, options: argparse.Namespace) -> dict[str, Any]:
    everybody = options.proxies

    def endpoint(number: int) -> Callable[[int], mesh.Document]:
        states = itertools.cycle(("NotReady", "Ready"))
        return lambda _value: mesh.dataplane(number, options.services, next(states))

    kinds_of_change = {  # the last one is what is told once more without TLS
        "ten": (mesh.for_ten, mesh.TEAM, False),
        "endpoint": (endpoint(mesh.OF_HIDDEN), mesh.TEAM, False),
        "endpoint_all": (endpoint(mesh.OF_SHARED), everybody, True),
        "wide": (mesh.wide, everybody, True),
        "all": (mesh.for_all, everybody, True),
    }
    is_alone = options.planes == 1
    parts = {
        name: _rounds(
            scale,
            options.rounds * (_FEW_TIMES if n_touched <= _FEW else 1),
            document,
            n_touched,
            is_compared=is_compared and is_alone,
        )
        for name, (document, n_touched, is_compared) in kinds_of_change.items()
    }
    return {
        "all_ratio": parts["all"].get("ratio"),
        "wide_ratio": parts["wide"].get("ratio"),
        "ten_cpu_s": parts["ten"]["cpu_s"],
        "endpoint_cpu_s": parts["endpoint"]["cpu_s"],
        "parts": parts,
    }


def _rounds(
    scale: Scale, rounds: int, document: Callable[[int], mesh.Document], n_touched: int, *, is_compared: bool
) -> dict[str, Any]:
    """A change several times, each time beside the bare server where everybody gets the same."""
    ours, bare = [], []
    scale.rest()
    for _ in range(rounds):
        ours.append(scale.changed(document, n_touched))
        if is_compared:
            bare.append(scale.broadcast())
    figures = _middle(ours)
    if bare:
        figures["ratio"] = median(a.last_s / b.last_s for a, b in zip(ours, bare, strict=True))
        figures["cpu_ratio"] = median(a.cpu_s / b.cpu_s for a, b in zip(ours, bare, strict=True))
        figures["bare"] = _middle(bare)
    return figures


def _middle(changes: list[Change]) -> dict[str, Any]:
    names = [field.name for field in msgspec.structs.fields(Change)]
    return {name: median(getattr(change, name) for change in changes) for name in names}


def shown(value: Any) -> Any:
    """Values with four significant digits."""
    if isinstance(value, dict):
        return {name: shown(item) for name, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    """Measure one size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--proxies", type=int, default=500)
    parser.add_argument("--services", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--swarms", type=int, default=2, help="processes that play the proxies")
    parser.add_argument("--planes", type=int, default=1, help="control planes that share the proxies")
    parser.add_argument("--settle", type=float, default=6.0, help="seconds before memory is looked at")
    parser.add_argument("--rest", type=float, default=2.0, help="seconds without changes to look at")
    parser.add_argument("--store", default="", help="as of `koguma cp run`; must survive a restart")
    parser.add_argument("--mtls", action="store_true", help="switch mTLS on in the mesh")
    parser.add_argument(
        "--applied", action="store_true", help="an operator writes the Dataplanes, not the proxies"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    options = parser.parse_args()
    for name, least in (
        ("proxies", 2 * mesh.TEAM),
        ("services", 2),
        ("rounds", 1),
        ("swarms", 1),
        ("planes", 1),
    ):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}")
    print(json.dumps(shown(measured(options)), indent=None if options.json else 2))


if __name__ == "__main__":
    sys.exit(main())
