"""The parties of a measurement with many proxies: control plane, bare server, swarm, and an operator."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Self

from bench.processes import KOGUMA, ROOT, Process, environment
from bench.swarm_mesh import MESH, Document

TIMEOUT_SECONDS: Final = 1800.0
QUIET_SECONDS: Final = 0.4
_BATCH: Final = 2000  # objects that are written at a time
_GAUGE: Final = re.compile(r"^koguma_proxies(|_behind|_refusing) (\S+)$", re.MULTILINE)
_PLURALS: Final = {"MeshTimeout": "meshtimeouts", "Dataplane": "dataplanes"}

Answer = dict[str, Any]


class Api:
    """The control plane's API, for an operator."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def __call__(self, method: str, path: str, body: Any = None) -> bytes:
        """One request that must succeed."""
        data = None if body is None else json.dumps(body)
        response = self._response(method, path, data)
        answer = response.read()
        if response.status >= 400:
            raise RuntimeError(f"{method} {path}: {response.status} {answer[:1000].decode()}")
        return answer

    def _response(self, method: str, path: str, data: str | None) -> http.client.HTTPResponse:
        """The answer; a connection that was idle for a minute has been closed by the server."""
        try:
            self._connection.request(method, path, data, self._headers)
            return self._connection.getresponse()
        except ConnectionError:
            self._connection.close()
            self._connection.request(method, path, data, self._headers)
            return self._connection.getresponse()

    def apply(self, documents: list[Document]) -> None:
        """Write many objects."""
        for at in range(0, len(documents), _BATCH):
            self("POST", "/_apply", documents[at : at + _BATCH])

    def put(self, document: Document) -> None:
        """Write one object."""
        self("PUT", f"/meshes/{MESH}/{_PLURALS[document['type']]}/{document['name']}", document)

    def token(self, document: Document) -> str:
        """A token for one proxy, and for the services of its Dataplane."""
        parts = document["networking"].get("inbound") or ()
        services = sorted({part["tags"]["kuma.io/service"] for part in parts if part.get("tags")})
        tags = {"kuma.io/service": services} if services else {}
        request = {"mesh": MESH, "name": document["name"], "tags": tags, "validFor": "24h"}
        return self("POST", "/tokens/dataplane", request).decode()

    def n_synced(self) -> int:
        """The number of synced proxies, from the metrics, which is the cheapest way."""
        gauges = dict(_GAUGE.findall(self("GET", "/metrics").decode()))
        return int(float(gauges[""])) - int(float(gauges["_behind"])) - int(float(gauges["_refusing"]))

    def has_arrived(self) -> bool:
        """Whether every proxy has all that is stored."""
        return bool(json.loads(self("GET", "/_arrival"))["arrived"])

    def n_addressed(self) -> int:
        """How many services have a virtual address."""
        items = json.loads(self("GET", f"/meshes/{MESH}/meshservices?size=1000"))["items"]
        return sum(1 for each in items if (each.get("status") or {}).get("vips"))


class Plane(Process):
    """A control plane as users run it, on ports that it has again after a restart."""

    def __init__(self, folder: Path, ports: dict[str, int], store: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.ports = ports
        flags = [text for name, port in ports.items() for text in (f"--{name}-port", str(port))]
        command = [KOGUMA, "cp", "run", "--data-dir", str(folder), *flags, "--log-level", "warning"]
        super().__init__([*command, "--store", store, "--no-store-encryption"] if store else command, folder)
        self.api = Api(self.port, (folder / "admin-token").read_text().strip())


class Planes:
    """Control planes that share a store; an operator talks to the first one."""

    def __init__(self, planes: list[Plane]) -> None:
        self._planes = planes
        self.first = planes[0]
        self.api = self.first.api

    @property
    def cpu_seconds(self) -> float:
        """Processor time so far, of all of them."""
        return sum(plane.cpu_seconds for plane in self._planes)

    @property
    def memory_kib(self) -> float:
        """Memory of all of them."""
        return sum(plane.memory_kib for plane in self._planes)

    def n_synced(self) -> int:
        """The number of synced proxies."""
        return sum(plane.api.n_synced() for plane in self._planes)

    def kill_last(self) -> int:
        """Kill the last one; how many proxies it had in sync."""
        last = self._planes.pop()
        n_synced = last.api.n_synced()
        last.kill()
        return n_synced

    def stop(self) -> None:
        """Stop all of them."""
        for plane in self._planes:
            plane.__exit__()


def free_ports() -> dict[str, int]:
    """A free port for each that a control plane needs."""
    names = ("api", "api-tls", "dp", "xds")
    sockets = [socket.socket() for _ in names]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = {name: each.getsockname()[1] for name, each in zip(names, sockets, strict=True)}
    for each in sockets:
        each.close()
    return ports


class Bare(Process):
    """The bare server; `send` lets it push the file `change` to all proxies."""

    def __init__(self, folder: Path, *pair: Path) -> None:
        super().__init__([sys.executable, "-m", "bench.swarm_bare", str(folder), *map(str, pair)], folder)

    def send(self) -> None:
        """Push the change to all proxies."""
        os.kill(self._process.pid, signal.SIGUSR1)


class Swarm:
    """The proxies, in a few processes."""

    def __init__(self, path: Path, n_processes: int, nice: int = 0) -> None:
        self._processes = [self._start(path, number, n_processes, nice) for number in range(n_processes)]
        self._answers()

    def _start(self, path: Path, *numbers: int) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "bench.swarm", str(path), *map(str, numbers)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT, env=environment(), text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()

    def __call__(self, group: str, method: str, **arguments: Any) -> list[Answer]:
        """Call a method in all processes; their results."""
        for process in self._processes:
            self._send(process, {"group": group, "do": method, **arguments})
        return self._answers()

    def _send(self, process: "subprocess.Popen[str]", command: Answer) -> None:
        assert process.stdin
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()

    def _answers(self) -> list[Answer]:
        answers = []
        for process in self._processes:
            assert process.stdout
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("a process of the swarm has ended")
            answers.append(json.loads(line))
        return answers

    def wait(self, group: str, at_least: int, quiet: float = QUIET_SECONDS) -> Answer:
        """Wait until so many proxies got a response and nothing more comes; the sums of their counters."""
        share = at_least // len(self._processes)
        counters = _joined(self(group, "wait", at_least=share, quiet=quiet, patience=TIMEOUT_SECONDS))
        if len(counters["acked_at"]) < at_least:
            answered, ended = len(counters["acked_at"]), counters["ended"]
            raise RuntimeError(
                f"{answered} proxies were answered, and not {at_least}; {ended} were disconnected"
            )
        return counters

    def open(self, group: str, ports: list[int], *, tls: bool) -> Answer:
        """Connect all proxies, each process to one port; when that began and all first requests were sent."""
        for number, process in enumerate(self._processes):
            port = ports[number % len(ports)]
            self._send(process, {"group": group, "do": "open", "port": port, "tls": tls})
        answers = self._answers()
        if failed := sum(each["failed"] for each in answers):
            raise RuntimeError(f"{failed} proxies could not connect")
        return {
            "began_at": min(each["began_at"] for each in answers),
            "greeted_at": max(each["greeted_at"] for each in answers),
        }

    def recorded(self, group: str) -> list[str]:
        """The messages of the recorded proxy."""
        return [message for each in self(group, "recorded") for message in each["messages"]]


def _joined(answers: list[Answer]) -> Answer:
    total, *others = answers
    for answer in others:
        total = {name: value + answer[name] for name, value in total.items()}
    return total
