"""A real Envoy with a static configuration, services that tell what reached them, and a client."""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from tests.ports import free_port

ENVOY = Path(sys.executable).parent / "envoy"
HCM = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER = {
    "name": "envoy.filters.http.router",
    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
}


class _Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # one packet per answer

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        seen = {
            "service": self.server.service,
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): self.headers.get_all(name) for name in self.headers},
        }
        self.server.seen.append(seen)
        time.sleep(float(self.headers.get("x-slow") or 0))
        failures = int(self.headers.get("x-fail") or 0)
        asked = sum(each["path"] == self.path for each in self.server.seen)
        body = json.dumps(seen).encode()
        self.send_response(503 if asked <= failures else 200)
        self.send_header("content-length", str(len(body)))
        if asked <= failures:
            self.send_header("x-again", "soon")
        self.send_header("x-from-service", "it")
        self.send_header("x-secret", "it")
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_TRACE = do_CONNECT = answer  # noqa: N815
    do_get = answer  # some methods are none in HTTP/1.1, and pass where nobody reads them

    def log_message(self, *_args: object) -> None:
        pass


class Service(ThreadingHTTPServer):
    """A service that answers with what it saw, and remembers it.

    A header `x-fail: n` lets the first n calls of a path fail, `x-slow: s` takes s seconds.
    """

    daemon_threads = True

    def __init__(self, service: str) -> None:
        super().__init__(("127.0.0.1", 0), _Echo)
        self.service = service
        self.seen: list[dict[str, Any]] = []


@contextmanager
def services(*names: str) -> Iterator[dict[str, Service]]:
    found = {name: Service(name) for name in names}
    threads = [threading.Thread(target=each.serve_forever, args=(0.02,)) for each in found.values()]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        for each in found.values():
            each.shutdown()
            each.server_close()
        for thread in threads:
            thread.join()


def address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def endpoint(port: int, hostname: str = "", **tags: str) -> dict[str, Any]:
    made: dict[str, Any] = {"endpoint": {"address": address(port)}}
    if hostname:
        made["endpoint"]["hostname"] = hostname
    if tags:
        made["metadata"] = {"filter_metadata": {"envoy.lb": tags}}
    return made


def cluster(name: str, *endpoints: dict[str, Any], **more: Any) -> dict[str, Any]:
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": list(endpoints)}]}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": assignment,
        **more,
    }


def hcm(
    route_config: dict[str, Any], filters: tuple[dict[str, Any], ...] = (), **more: Any
) -> dict[str, Any]:
    config = {"stat_prefix": "it", "route_config": route_config, "http_filters": [*filters, ROUTER], **more}
    typed = {"@type": f"type.googleapis.com/{HCM}", **config}
    return {"name": "envoy.filters.network.http_connection_manager", "typed_config": typed}


def listener(name: str, port: int, *filters: dict[str, Any], **chain: Any) -> dict[str, Any]:
    return {"name": name, "address": address(port), "filter_chains": [{"filters": list(filters), **chain}]}


def validated(listeners: list[Any], clusters: list[Any]) -> str:
    """What Envoy has against a configuration; empty where nothing."""
    config = {"static_resources": {"listeners": listeners, "clusters": clusters}}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        command = [ENVOY, "--mode", "validate", "-l", "critical", "-c", file.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 0:
        return ""
    lines = (done.stdout + done.stderr).splitlines()
    return "\n".join(line for line in lines if "static_resources" not in line)[-4000:]


def refused(listeners: list[Any], clusters: list[Any], folder: Path) -> dict[str, str]:
    """What one Envoy has against each of many listeners, by name; whoever is not there was taken.

    They come from a file, as over xDS: one that is refused does not keep the others out.
    """
    typed = [{"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", **each} for each in listeners]
    update = folder / "listeners.json"
    update.write_text(json.dumps({"version_info": "1", "resources": typed}))
    source = {"resource_api_version": "V3", "path_config_source": {"path": str(update)}}
    more = {"node": {"id": "it", "cluster": "it"}, "dynamic_resources": {"lds_config": source}}
    with envoy([], clusters, folder, more=more) as running:
        sections = json.loads(running.get("/config_dump"))["configs"]
    (dump,) = (each for each in sections if each["@type"].endswith("ListenersConfigDump"))
    states = dump["dynamic_listeners"]
    seen = {each["name"] for each in states if "name" in each}
    failures = [each["error_state"] for each in states if "error_state" in each]
    found = {each["failed_configuration"]["name"]: each["details"] for each in failures}
    assert seen | found.keys() == {each["name"] for each in listeners}
    return found


class Envoy(msgspec.Struct, frozen=True):
    """A running Envoy."""

    admin: int
    output: Path

    def get(self, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=60)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def stats(self, pattern: str) -> dict[str, int]:
        lines = self.get(f"/stats?filter={pattern}").splitlines()
        return {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}


@contextmanager
def envoy(
    listeners: list[Any],
    clusters: list[Any],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Iterator[Envoy]:
    admin = free_port()
    config = {
        **(more or {}),
        "admin": {"address": address(admin)},
        "static_resources": {"listeners": listeners, "clusters": clusters},
    }
    (folder / "envoy.json").write_text(json.dumps(config))
    options = (
        "--disable-hot-restart",
        "--concurrency",
        "1",
        "-l",
        "warning",
        "--file-flush-interval-msec",
        "50",
    )
    running = Envoy(admin, folder / "envoy.log")
    with running.output.open("w") as log:
        process = subprocess.Popen(
            [ENVOY, "-c", folder / "envoy.json", *options],
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {})},
        )
    try:
        _wait(process, running)
        yield running
    finally:
        process.terminate()
        process.wait(60)


def _wait(process: subprocess.Popen[bytes], running: Envoy) -> None:
    for _ in range(3000):
        assert process.poll() is None, running.output.read_text()[-4000:]
        try:
            if running.get("/ready").startswith("LIVE"):
                return
        except OSError:
            pass
        time.sleep(0.02)
    raise AssertionError("Envoy does not come up")


class Answer(msgspec.Struct, frozen=True):
    """What a call got."""

    status: int
    headers: dict[str, list[str]]
    body: bytes

    @property
    def seen(self) -> dict[str, Any]:
        """What the service saw."""
        return json.loads(self.body)


def call(
    port: int,
    path: str = "/",
    method: str = "GET",
    host: str = "it",
    headers: Mapping[str, str] | None = None,
    connection: http.client.HTTPConnection | None = None,
) -> Answer:
    """One request, on its own connection unless one is given."""
    over = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        over.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"host": host, **(headers or {})}.items():
            over.putheader(name, value)
        over.endheaders()
        response = over.getresponse()
        body = response.read()
    finally:
        if connection is None:
            over.close()
    found: dict[str, list[str]] = {}
    for name, value in response.getheaders():
        found.setdefault(name.lower(), []).append(value)
    return Answer(response.status, found, body)
