"""`make demo`: a live mesh on this machine, and what to try with it.

A control plane; `web`, and two versions of `backend`, each with a real Envoy beside it; mTLS between them; a
route that sends nine of ten requests to version 1; a gateway that lets HTTPS in. Requests go through the mesh
all the time, and who answers is shown. Needs no root, and leaves nothing behind.
"""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from examples import edge
from examples.lifeline import LEFT_BEHIND

KOGUMA = str(Path(sys.executable).with_name("koguma"))
# What runs as long as the demo: it ends with the demo, whatever ends that.
KOGUMA_BOUND = (sys.executable, "-m", "examples.lifeline")
ROOT = Path(__file__).parent.parent
SHOP = Path(__file__).with_name("shop")
READY_WORDS = "is ready"
SHOWN_SECONDS = 1.0
PAUSE_SECONDS = 0.01
BAR_WIDTH = 40


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def serve(name: str, version: str) -> int:
    """Start a small service in this process; gives its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Say who answers."""
            body = json.dumps({"name": name, "version": version, "path": self.path}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


class Processes:
    """What the demo started, ended in reverse."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._started: list[subprocess.Popen[str]] = []

    def start(self, words: Sequence[str]) -> "subprocess.Popen[str]":
        """Start a `koguma` whose output is read here; Ctrl-C is for the demo alone."""
        process = subprocess.Popen(
            [*KOGUMA_BOUND, *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            text=True,
            env=self._environment,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """Ask all to end, the control plane last."""
        proxies, planes = self._started[1:], self._started[:1]
        for group in (proxies, planes):
            for process in group:
                process.terminate()
            for process in group:
                try:
                    process.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    process.kill()


def ready_line(process: "subprocess.Popen[str]") -> str:
    """The line in which a process says that it is ready; empty where it ends before."""
    assert process.stdout is not None
    for line in process.stdout:
        if READY_WORDS in line:
            threading.Thread(target=_drain, args=(process,), daemon=True).start()
            return line.strip()
    return ""


def _drain(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    for _ in process.stdout:
        pass


class Traffic:
    """Calls `backend` through the sidecar of `web`, again and again, and counts who answered."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.counts: Counter[str] = Counter()
        self._stopping = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._stopping.wait(PAUSE_SECONDS):
            self.counts[self._one()] += 1

    def _one(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/")
                response = connection.getresponse()
                body = response.read()
            except OSError as error:
                return type(error).__name__
            if response.status == 200:  # noqa: PLR2004 - HTTP's word for yes
                return str(json.loads(body)["version"])
            denied = response.headers.get("x-koguma-denied-by")
            return f"{response.status} denied by {denied}" if denied else str(response.status)

    def take(self) -> Counter[str]:
        """What was counted since the last time."""
        taken, self.counts = self.counts, Counter()
        return taken

    def stop(self) -> None:
        """No more calls."""
        self._stopping.set()


def shown(counts: Mapping[str, int]) -> str:
    """Counts as one line."""
    total = sum(counts.values()) or 1
    bars = []
    for name in sorted(counts):
        share = counts[name] / total
        bars.append(f"{name} {'█' * max(1, round(share * BAR_WIDTH))} {share:.0%}")
    return "  ".join(bars) or "no requests"


def main() -> int:
    """Run the demo until Ctrl-C."""
    data = tempfile.mkdtemp(prefix="koguma-demo-")
    ports = {name: os.environ.get(f"KOGUMA_{name}_PORT", default) for name, default in _PORTS.items()}
    processes = Processes({**os.environ, "KOGUMA_DATA_DIR": data, LEFT_BEHIND: data})
    for number in (signal.SIGTERM, signal.SIGHUP):  # as when its terminal is closed
        signal.signal(number, _interrupt)
    try:
        return _run(Path(data), ports, processes)
    except KeyboardInterrupt:
        print("\nEnding: proxies leave the mesh first, then the control plane stops.", flush=True)
        return 0
    finally:
        processes.end()
        shutil.rmtree(data, ignore_errors=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


_PORTS = {"API": "5681", "API_TLS": "5682", "DP": "5678", "XDS": "5679"}


def _run(data: Path, ports: Mapping[str, str], processes: Processes) -> int:
    flags = [f"--{name.lower().replace('_', '-')}-port={port}" for name, port in ports.items()]
    plane = processes.start(["cp", "run", *flags, "--log-level", "warning"])
    line = ready_line(plane)
    if not line:
        return plane.wait()
    print(line, flush=True)
    address = next(word for word in line.split() if word.startswith("http://"))
    environment = {**os.environ, "KOGUMA_ADDRESS": address, "KOGUMA_DATA_DIR": str(data)}
    _apply(environment, "mesh.yaml", "permissions.yaml")
    calls = free_port()
    more = {
        "backend-1": ("--service", "backend", "--label", "app=backend", "--tag", "version=v1"),
        "backend-2": ("--service", "backend", "--label", "app=backend", "--tag", "version=v2"),
        "web-1": ("--service", "web", "--label", "app=web", "--outbound", f"backend:80:{calls}"),
    }
    for name, own in more.items():
        target = serve(name, "v2" if name == "backend-2" else "v1")
        said = ready_line(processes.start(_sidecar(data, environment, _door(line), name, target) + list(own)))
        if not said:
            return 1
        print(said, flush=True)
    _apply(environment, "policies.yaml")  # now that there is whom they are about
    edge_port = free_port()
    text = edge.documents(edge_port, edge.certificate(data / "localhost.pem"))
    said = ready_line(processes.start(_gateway(data, environment, _door(line))))
    if not said:
        return 1
    print(said, flush=True)
    subprocess.run([KOGUMA, "apply", "-f", "-"], env=environment, check=True, input=text, text=True)
    traffic = Traffic(calls)
    print(_words(data, address, calls, edge_port), flush=True)
    return _watch(plane, traffic)


def _apply(environment: Mapping[str, str], *names: str) -> None:
    files = [word for name in names for word in ("-f", str(SHOP / name))]
    subprocess.run([KOGUMA, "apply", *files], env=environment, check=True)


def _door(line: str) -> str:
    """Where proxies connect, as the control plane says; it may have taken a free port."""
    return line.rpartition("proxies: ")[2].strip()


def _sidecar(data: Path, environment: Mapping[str, str], door: str, name: str, target: int) -> list[str]:
    """The words that run a proxy beside the service on a port."""
    return [
        *_proxy(data, environment, door, name),
        *("--port", str(free_port()), "--service-port", str(target), "--protocol", "http"),
        *("--port-name", "http"),
    ]


def _gateway(data: Path, environment: Mapping[str, str], door: str) -> list[str]:
    """The words that run the gateway."""
    return [*_proxy(data, environment, door, "edge-1"), "--gateway", "--tag", "kuma.io/service=edge"]


def _proxy(data: Path, environment: Mapping[str, str], door: str, name: str) -> list[str]:
    """The words that run a proxy, with a token for it and its service alone."""
    token = data / f"{name}.token"
    bound = ("--name", name, "--service", name.rpartition("-")[0])
    make = [KOGUMA, "token", "dataplane", "-m", "shop", *bound, "--valid-for", "24h"]
    token.touch(0o600)
    token.write_text(subprocess.run(make, env=environment, check=True, capture_output=True, text=True).stdout)
    return [
        *("dp", "run", "--mesh", "shop", "--name", name),
        *("--cp-address", door, "--dataplane-token-file", str(token)),
        *("--concurrency", "1", "--drain-time", "1s", "--log-level", "warning", "--envoy-log-level", "error"),
        *(
            ("--user", "root") if os.geteuid() == 0 else ()
        ),  # a demo in a container, where there is nobody else
    ]


def _watch(plane: "subprocess.Popen[str]", traffic: Traffic) -> int:
    """Show who answers, until the control plane ends or somebody presses Ctrl-C."""
    is_terminal = sys.stdout.isatty()
    try:
        while plane.poll() is None:
            time.sleep(SHOWN_SECONDS)
            line = shown(traffic.take())
            print(f"\r\033[K{line}" if is_terminal else line, end="" if is_terminal else "\n", flush=True)
    finally:
        traffic.stop()
    return plane.returncode or 0


def _words(data: Path, address: str, calls: int, edge_port: int) -> str:
    koguma = ".venv/bin/koguma"
    return f"""
A mesh runs: web -> backend v1 and v2, an Envoy beside each, mTLS between them. In another terminal, try:

  export KOGUMA_ADDRESS={address} KOGUMA_DATA_DIR={data}   # where it is, and that it is yours

  {koguma} get proxies -m shop
  curl -s localhost:{calls}/
  curl -s --cacert {data}/localhost.pem https://localhost:{edge_port}/   # from outside, through the gateway

  # change the split, and watch it below
  sed 's/weight: 90/weight: 50/; s/weight: 10/weight: 50/' examples/shop/policies.yaml | {koguma} apply -f -

  # take the permission away, and see who denies; give it back
  {koguma} delete meshtrafficpermission web-may-call-backend -m shop
  {koguma} apply -f examples/shop/permissions.yaml

  # make a mistake, and read what it says
  sed 's/requestTimeout/requestTimout/' examples/shop/policies.yaml | {koguma} apply -f -

  # why is the timeout what it is?
  {koguma} explain dataplane web-1 -m shop --to backend --field http.requestTimeout

Ctrl-C ends it; nothing is left behind. Who answers, second by second:
"""


if __name__ == "__main__":
    sys.exit(main())
