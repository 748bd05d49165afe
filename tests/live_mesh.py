"""A real mesh for tests: a control plane, services and sidecars as processes, and traffic between them.

with LiveMesh(tmp_path) as mesh:
    mesh.apply(documents)
    mesh.sidecar("backend-1", service="backend", tags={"version": "v1"})
    web = mesh.sidecar("web-1", service="web", outbounds=["backend"])
    web.call("backend").json["version"]
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from tests.error_lines import ERRORS
from tests.http_client import PersistentConnection, Response, call, joined_headers
from tests.ports import free_port
from tests.waiting import WAIT_SECONDS, until

BIN = Path(sys.executable).parent
KOGUMA = str(BIN / "koguma")
APPLY_SET = "of-this-test"
START_SECONDS = 60.0  # of a control plane, on a machine that does much else


class Echo:
    """An HTTP service that echoes requests: `/sleep/0.5` is slow, `/status/503` fails; with `tls`, HTTPS."""

    def __init__(self, port: int = 0, *, tls: ssl.SSLContext | None = None, **about: str) -> None:
        self.about = about
        self.seen: list[dict[str, Any]] = []
        echo = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else the body waits for the headers' acknowledgement

            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                request = {
                    **echo.about,
                    "method": self.command,
                    "path": self.path,
                    "headers": joined_headers(self.headers.items()),
                    "body": body.decode("latin-1"),
                }
                echo.seen.append(request)
                self._reply(request)

            def _reply(self, request: dict[str, Any]) -> None:
                status = 200
                match self.path.split("?")[0].split("/"):
                    case ["", "sleep", seconds]:
                        time.sleep(float(seconds))
                    case ["", "status", code]:
                        status = int(code)
                    case ["", "fail-first", count, name]:
                        before = sum(request["path"].endswith(name) for request in echo.seen)
                        status = 503 if before <= int(count) else 200
                data = json.dumps(request).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.send_header("x-from", echo.about.get("name", ""))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # a proxy may have stopped waiting
                    if self.command != "HEAD":
                        self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = do_OPTIONS = answer  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class TcpEcho:
    """A TCP service that echoes what it receives."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # it was stopped
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    @staticmethod
    def _answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1024):
                connection.sendall(data)

    def stop(self) -> None:
        self._socket.close()


def echoed_bytes(port: int) -> bytes:
    """What a TcpEcho sends back over a plain connection; empty where it is closed."""
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), 60) as connection,
    ):
        connection.sendall(b"hello")
        return connection.recv(1024)
    return b""


class Process:
    """A process of ours, with its output in a file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        directory: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        ERRORS.follow(log)
        with log.open("ab") as out:
            self._popen = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=dict(environment),
                cwd=directory,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for_output(self, words: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until it has printed these words."""

        def is_printed() -> bool:
            if words in self.output:
                return True
            assert self._popen.poll() is None, f"{self.name} ended:\n{self.output[-3000:]}"
            return False

        try:
            until(is_printed, f"{self.name} prints {words!r}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output[-3000:]}") from error

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()

    def stop(self, seconds: float = WAIT_SECONDS) -> int:
        self._popen.send_signal(signal.SIGTERM)
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in path.read_text().split()]


class Sidecar(Process):
    """A running `koguma dp run`."""

    workdir: Path
    service: Echo | None
    outbounds: dict[str, int]
    inbound: int

    def call(self, to: str, method: str = "GET", path: str = "/", **more: Any) -> Response:
        """One request through an outbound."""
        return call(self.outbounds[to], method, path, **more)

    def admin(self, path: str, method: str = "GET") -> str:
        """A page of Envoy's admin API."""
        connection = http.client.HTTPConnection("localhost", timeout=60)
        with contextlib.closing(connection):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(60)
            connection.sock.connect(str(self.workdir / "envoy-admin.sock"))
            connection.request(method, path)
            return connection.getresponse().read().decode()

    def stats(self, pattern: str) -> dict[str, int]:
        """Envoy's counters and gauges whose name fits a regular expression."""
        stats = json.loads(self.admin(f"/stats?format=json&filter={quote(pattern)}"))["stats"]
        return {stat["name"]: stat["value"] for stat in stats if "name" in stat}

    def envoy_pid(self) -> int:
        (pid,) = self.children()
        return pid


class LiveMesh:
    """A control plane, its sidecars and their services, all as processes."""

    def __init__(self, directory: Path, name: str = "default", **settings: str) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.settings = settings
        self.api, self.tls, self.dp, self.xds = (free_port() for _ in range(4))
        self.environment = {
            **os.environ,
            "XDG_CONFIG_HOME": str(directory / "config"),
            "KOGUMA_ADDRESS": f"http://127.0.0.1:{self.api}",
            "KOGUMA_DATA_DIR": str(directory / "cp"),
            "KOGUMA_LOCALHOST_IS_ADMIN": "true",  # for requests of the tests themselves
        }
        self._sidecars: list[Sidecar] = []
        self._echoes: list[Echo] = []
        self._numbers = iter(range(10_000))

    def __enter__(self) -> Self:
        self.start_control_plane()
        return self

    @contextlib.contextmanager
    def without_waiting(self) -> Iterator[Self]:
        """The same, where several start at once: `wait_until_ready` is for the caller."""
        self.start_control_plane(wait=False)
        try:
            yield self
        finally:
            self.__exit__()

    def __exit__(self, *_: object) -> None:
        for sidecar in self._sidecars:
            if sidecar._popen.poll() is None:
                sidecar._popen.send_signal(signal.SIGTERM)
                sidecar._popen.send_signal(signal.SIGINT)
        for sidecar in self._sidecars:
            try:
                sidecar._popen.wait(60)
            except subprocess.TimeoutExpired:
                sidecar.kill()
        for echo in self._echoes:
            echo.stop()
        self.control_plane.stop()

    def start_control_plane(self, *, wait: bool = True) -> None:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self.settings.items()]
        ports = (
            *("--api-port", str(self.api), "--api-tls-port", str(self.tls)),
            *("--dp-port", str(self.dp), "--xds-port", str(self.xds)),
        )
        command = [KOGUMA, "cp", "run", *ports, "--log-format", "json", *flags]
        log = self.directory / f"cp-{next(self._numbers)}.log"
        self.control_plane = Process("control plane", command, log, self.environment)
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until the control plane serves."""
        self.control_plane.wait_for_output("is ready: ", START_SECONDS)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        """One request to the API."""
        return call(self.api, method, path, body, **headers)

    def apply(self, *documents: Mapping[str, Any]) -> int:
        """Write objects; the revision that they have."""
        objects = [{"mesh": self.name, **document} for document in documents]
        answer = self.request("POST", "/_apply", objects)
        assert answer.status == 200, answer.text
        return answer.json["revision"]

    def delete(self, plural: str, name: str) -> None:
        answer = self.request("DELETE", f"/meshes/{self.name}/{plural}/{name}")
        assert answer.status in (200, 204, 404), answer.text

    def token(self, **claims: Any) -> str:
        body = {"mesh": self.name, "validFor": "24h", **claims}
        answer = self.request("POST", "/tokens/dataplane", body)
        assert answer.status == 200, answer.text
        return answer.text

    def service_token(self, name: str, service: str = "", **tags: str) -> str:
        """A token for one proxy, its service and its tags: what may stand in its certificate."""
        named = {**tags, **({"kuma.io/service": service} if service else {})}
        return self.token(name=name, tags={tag: [value] for tag, value in named.items()})

    def koguma(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the command line."""
        done = subprocess.run(
            [KOGUMA, *words], env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or not check, (words, done.stdout, done.stderr)
        return done

    def sidecar(  # noqa: PLR0913 - what a test varies
        self,
        name: str,
        service: str = "",
        *,
        tags: Mapping[str, str] | None = None,
        protocol: str = "http",
        outbounds: Sequence[str] = (),
        serves: bool = True,
        target: int = 0,
        inbound: int = 0,
        flags: Sequence[str] = (),
        wait: bool = True,
    ) -> Sidecar:
        """Start a service with a sidecar; `outbounds` are services that it calls."""
        echo = Echo(name=name, service=service, **(tags or {})) if serves and not target else None
        if echo:
            self._echoes.append(echo)
        inbound = inbound or free_port()
        local_ports = {service: free_port() for service in outbounds}
        ports = ("--port", str(inbound), "--service-port", str(target or (echo.port if echo else 0)))
        sidecar = self._proxy(
            name,
            self.service_token(name, service, **(tags or {})),
            *("--name", name, "--mesh", self.name, "--no-dns"),
            *(("--service", service) if service else ()),
            *((*ports, "--protocol", protocol, "--port-name", protocol) if serves or target else ()),
            *(f"--tag={key}={value}" for key, value in (tags or {}).items()),
            *(f"--outbound={service}:{port}" for service, port in local_ports.items()),
            *flags,
        )
        sidecar.service, sidecar.inbound, sidecar.outbounds = echo, inbound, local_ports
        if wait:
            sidecar.wait_for_output("is ready")
        return sidecar

    def _proxy(self, name: str, token: str, *flags: str) -> Sidecar:
        """Start `koguma dp run`; whatever it is, it serves and calls nothing yet."""
        workdir = self.directory / f"w{next(self._numbers)}"
        workdir.mkdir(mode=0o700)
        token_file = workdir / "token"
        token_file.touch(0o600)
        token_file.write_text(token)
        command = [
            *(KOGUMA, "dp", "run", "--workdir", str(workdir)),
            *("--cp-address", f"https://127.0.0.1:{self.dp}", "--dataplane-token-file", str(token_file)),
            *("--access-log-dir", tempfile.gettempdir()),  # where pytest has its directories
            *("--concurrency", "1", "--drain-time", "2s", "--log-format", "json"),
            *flags,
        ]
        log = self.directory / f"{name}-{next(self._numbers)}.log"
        proxy = Sidecar(name, command, log, self.environment)
        proxy.workdir, proxy.service, proxy.inbound, proxy.outbounds = workdir, None, 0, {}
        self._sidecars.append(proxy)
        return proxy

    def gateway(
        self,
        name: str = "edge-1",
        service: str = "edge",
        *,
        flags: Sequence[str] = (),
        wait: bool = True,
        **tags: str,
    ) -> Sidecar:
        """Start a built-in gateway; the MeshGateway that selects it says where it listens."""
        own = {"kuma.io/service": service, **tags}
        from_file = "--dataplane-file" in flags
        described = ("--name", name, "--mesh", self.name, *(f"--tag={tag}={own[tag]}" for tag in own))
        gateway = self._proxy(
            name,
            self.service_token(name, service, **tags),
            *("--gateway", *(() if from_file else described), *flags),
        )
        if wait:
            gateway.wait_for_output("is ready")
        return gateway

    def egress(
        self, name: str = "egress-1", *, port: int = 0, flags: Sequence[str] = (), wait: bool = True
    ) -> Sidecar:
        """Start a zone egress."""
        answer = self.request("POST", "/tokens/zone", {"zone": "default", "scope": ["egress"]})
        assert answer.status == 200, answer.text
        inbound = port or free_port()
        egress = self._proxy(
            name, answer.text, *("--proxy-type", "egress", "--name", name, "--port", str(inbound)), *flags
        )
        egress.inbound = inbound
        if wait:
            egress.wait_for_output("is ready")
        return egress

    def proxies(self) -> dict[str, Any]:
        """The sync state of the proxies, by name."""
        items = self.request("GET", f"/_proxies?mesh={self.name}").json["items"]
        return {proxy["name"]: proxy for proxy in items}

    def wait_until_synced(self, revision: int = 0) -> None:
        """Wait until every connected proxy has acknowledged everything up to a revision."""

        def is_synced() -> bool:
            proxies = self.proxies().values()
            return bool(proxies) and all(
                p["state"] == "synced" and p["revision"] >= revision for p in proxies
            )

        try:
            until(is_synced, f"all proxies have revision {revision}")
        except AssertionError as error:
            raise AssertionError(f"{error}; they are {self.proxies()}") from error

    def apply_and_wait(self, *documents: Mapping[str, Any]) -> None:
        """Write objects and wait until all proxies have them."""
        self.wait_until_synced(self.apply(*documents))

    def apply_only(self, *documents: Mapping[str, Any]) -> list[str]:
        """Replace what the last call wrote, and wait until all proxies have it; the warnings that came back.

        Fails where a proxy refused a part of it.
        """
        objects = [{"mesh": self.name, **document} for document in documents]
        answer = self.request("POST", "/_apply", {"objects": objects, "set": APPLY_SET, "prune": True})
        assert answer.status == 200, answer.text
        self.wait_until_synced(answer.json["revision"])
        refused = {name: proxy["rejections"] or proxy["failures"] for name, proxy in self.proxies().items()}
        assert not any(refused.values()), refused
        return [warning for result in answer.json["results"] for warning in result.get("warnings") or ()]

    def delete_and_wait(self, plural: str, name: str) -> None:
        """Delete an object and wait until all proxies have dropped it."""
        self.delete(plural, name)
        self.wait_until_synced(self.revision())

    def revision(self) -> int:
        """The newest revision of the store."""
        return int(self.request("GET", f"/meshes/{self.name}/dataplanes").headers["koguma-revision"])


@contextlib.contextmanager
def load(ask: Callable[[], Response], n_threads: int = 2, pause: float = 0.002) -> Iterator[dict[str, int]]:
    """Call again and again while the block runs; gives how often each status came, errors as `error ...`."""
    counts: dict[str, int] = {}
    stopping = threading.Event()
    lock = threading.Lock()

    def caller() -> None:
        while not stopping.is_set():
            try:
                result = str(ask().status)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what a client would see
                result = f"error {type(error).__name__}: {error}"
            with lock:
                counts[result] = counts.get(result, 0) + 1
            time.sleep(pause)

    threads = [threading.Thread(target=caller, daemon=True) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        stopping.set()
        for thread in threads:
            thread.join(20)


@contextlib.contextmanager
def steady_traffic(*ports: int, path: str = "/", pause: float = 0.002) -> Iterator[dict[str, int]]:
    """Call local ports on new connections and on kept ones; gives the count of each status."""
    counts: dict[str, int] = {}
    loads = []
    with contextlib.ExitStack() as stack:
        for port in ports:
            kept = stack.enter_context(contextlib.closing(PersistentConnection(port)))
            loads.append(stack.enter_context(load(partial(kept.call, path=path), 1, pause)))
            loads.append(stack.enter_context(load(partial(call, port, path=path), 1, pause)))
        yield counts
    for load_counts in loads:
        for status, n in load_counts.items():
            counts[status] = counts.get(status, 0) + n
