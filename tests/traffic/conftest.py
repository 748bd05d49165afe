"""One mesh with real Envoys that the tests of routes, policies and names share.

    web ──▶ backend (node-1 is v1, node-2 is v2), other and db beside them, `outside` and `everywhere`

A test writes what it needs with `shared.apply_only(...)`; what the test before it wrote is gone by then.
"""

import contextlib
import http.client
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import build
from tests.http_client import Response
from tests.live_mesh import Echo, LiveMesh, Sidecar
from tests.ports import free_port
from tests.waiting import until

GREETING = "said by the proxy's environment"


class Greeter:
    """A TCP service that says its name to whoever connects, and then whatever it is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed: the end
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(self.name.encode() + b"\n")
            while data := connection.recv(4096):
                connection.sendall(data)

    def stop(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


class UnansweredPort:
    """A port whose queue is full, so that connecting to it takes for ever."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.port = self._listening.getsockname()[1]
        self._queued = [socket.socket() for _ in range(4)]
        for each in self._queued:
            each.settimeout(0)
            each.connect_ex(("127.0.0.1", self.port))

    def stop(self) -> None:
        for each in (*self._queued, self._listening):
            each.close()


# What web calls: the port of each, and what is spoken there.
CALLED = {
    "backend": ("MeshService", 80, "http"),
    "other": ("MeshService", 80, "http"),
    "db": ("MeshService", 5432, "tcp"),
    "outside": ("MeshExternalService", 80, "http"),
    "deaf": ("MeshExternalService", 80, "http"),
    "closed": ("MeshExternalService", 5432, "tcp"),
    "everywhere": ("MeshMultiZoneService", 80, "http"),
}


class SharedMesh:
    """The mesh that tests share, and what they do in it."""

    web: Sidecar
    nodes: Mapping[str, Sidecar]

    def __init__(self, mesh: LiveMesh) -> None:
        self.mesh = mesh
        self.directory = mesh.directory
        self.services = {
            "backend-v1": Echo(name="backend-v1"),
            "backend-v2": Echo(name="backend-v2"),
            "other": Echo(name="other"),
            "outside": Echo(name="outside"),
        }
        self.greeters = {"db-v1": Greeter("db-v1"), "db-v2": Greeter("db-v2")}
        self.unanswered = UnansweredPort()
        self.readiness_port = free_port()
        self.outbounds = {name: free_port() for name in CALLED}

    def start(self) -> None:
        """Let proxies of stored Dataplanes run, and wait until a request goes through."""
        self.mesh.apply(*self._dataplanes(), *self._destinations())
        flags = ("--dns", "--dns-port", "0", "--allow-proxy-data-sources")
        started = [
            self.mesh.sidecar(name, serves=False, wait=False, flags=flags)
            for name in ("web", "node.1", "node-2")
        ]
        for sidecar in started:
            sidecar.wait_for_output("is ready")
        self.web = started[0]
        self.web.outbounds = self.outbounds
        self.nodes = {"v1": started[1], "v2": started[2]}
        until(lambda: self.get("backend").status == 200, "backend answers")

    def close(self) -> None:
        for each in (*self.services.values(), *self.greeters.values(), self.unanswered):
            each.stop()

    def _dataplanes(self) -> Iterator[Mapping[str, Any]]:
        # A name with a dot in it, which metrics have to keep in one piece.
        yield build.dataplane("node.1", inbound=self._inbounds("v1", "rack-1"))
        inbounds = [*self._inbounds("v2", "rack-2"), self._inbound("other", "other")]
        yield build.dataplane("node-2", inbound=inbounds)
        outbound = [
            {"port": self.outbounds[name], "backendRef": {"kind": kind, "name": name, "port": port}}
            for name, (kind, port, _) in CALLED.items()
        ]
        labels = {"kuma.io/workload": "web", "rack": "rack-1"}
        admin = {"port": self.readiness_port}
        yield build.dataplane("web", labels=labels, inbound=[], outbound=outbound, admin=admin)

    def _inbounds(self, version: str, rack: str) -> list[Mapping[str, Any]]:
        tags = {"version": version, "rack": rack}
        return [
            self._inbound("backend", f"backend-{version}", **tags),
            self._inbound("db", f"db-{version}", protocol="tcp", **tags),
        ]

    def _inbound(self, service: str, name: str, protocol: str = "http", **tags: str) -> Mapping[str, Any]:
        served = {**self.services, **self.greeters}[name]
        more = {"name": service, "servicePort": served.port}
        return build.inbound(service, free_port(), protocol=protocol, tags=tags, **more)

    def _destinations(self) -> Iterator[Mapping[str, Any]]:
        outside = {
            "outside": self.services["outside"].port,
            "deaf": self.unanswered.port,
            "closed": free_port(),
        }
        for name, (kind, number, protocol) in CALLED.items():
            port = build.port(number, protocol, name=protocol)
            match kind:
                case "MeshService":
                    yield build.mesh_service(name, {**port, "targetPort": name})
                case "MeshMultiZoneService":
                    yield build.multi_zone_service(name, port, labels={"kuma.io/display-name": "other"})
                case "MeshExternalService":
                    vip = {
                        "type": "InternalVIP",
                        "value": f"{name}.test",
                        "port": number,
                        "protocol": protocol,
                    }
                    endpoints = [{"address": "127.0.0.1", "port": outside[name]}]
                    destination = {"type": "Regular", "endpoints": endpoints}
                    yield build.external_service(name, match=[vip], destination=destination)

    def apply_only(self, *documents: Mapping[str, Any]) -> list[str]:
        """Replace the policies of the test before by these; the warnings that came back."""
        warnings = self.mesh.apply_only(*documents)
        # An Envoy that waits in vain for a resource goes on after 15 seconds by itself, and counts that.
        for sidecar in (self.web, *self.nodes.values()):
            assert not any(sidecar.stats(r"\.init_fetch_timeout$").values())
        return warnings

    def get(self, to: str, path: str = "/", method: str = "GET", **headers: str) -> Response:
        """One request of web's, on a connection of its own."""
        return self.web.call(to, method, path, **headers)

    def many(self, to: str, path: str, n_requests: int) -> Counter[str]:
        """Who answered how often; an answer of nobody's is its status."""
        counts: Counter[str] = Counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.outbounds[to], timeout=60)
        with contextlib.closing(connection):
            for _ in range(n_requests):
                connection.request("GET", path)
                response = connection.getresponse()
                counts[response.headers.get("x-from") or str(response.status)] += 1
                response.read()
        return counts

    def greeted(self, to: str) -> str:
        """Who says its name on a new TCP connection; empty where nobody does."""
        with socket.create_connection(("127.0.0.1", self.outbounds[to]), timeout=60) as connection:
            try:
                return connection.makefile().readline().strip()
            except ConnectionResetError:
                return ""

    def counter(self, name: str) -> int:
        """One of the counters of web's Envoy."""
        return self.web.stats(f"^{re.escape(name)}$").get(name, 0)

    def seen(self, service: str, path: str) -> list[dict[str, Any]]:
        """The requests with this path that reached a service."""
        return [each for each in self.services[service].seen if each["path"] == path]


@pytest.fixture(scope="session")
def shared_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedMesh]:
    directory: Path = tmp_path_factory.mktemp("traffic")
    mesh = LiveMesh(directory)
    mesh.environment |= {"KOGUMA_ALLOW_PROXY_DATA_SOURCES": "true", "KOGUMA_TEST_GREETING": GREETING}
    with mesh:
        shared = SharedMesh(mesh)
        with contextlib.closing(shared):
            shared.start()
            yield shared


@pytest.fixture
def shared(shared_mesh: SharedMesh) -> Iterator[SharedMesh]:
    """The shared mesh; it is left as it was found."""
    yield shared_mesh
    shared_mesh.apply_only()
