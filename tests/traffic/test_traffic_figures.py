"""`koguma top` and `koguma get endpoints` over real Envoys: figures of traffic, and why a service is down.

web-1 and web-2 call backend: backend-1, and backend-2 whose application ends. The application of probed-1
never starts, and a probe says so.
"""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import build
from tests.live_mesh import KOGUMA, LiveMesh, Process, Sidecar, load
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
OUTLIERS = {
    "interval": "0.2s",
    "baseEjectionTime": "60s",
    "maxEjectionPercent": 100,
    "detectors": {"totalFailures": {"consecutive": 3}},
}


class FiguresMesh(LiveMesh):
    """Two callers, and what they call."""

    web_1: Sidecar
    web_2: Sidecar
    dying: Process  # the application behind backend-2
    dying_port: int
    probed_port: int

    def application(self, name: str) -> tuple[Process, int]:
        """A service as a process, and its port."""
        command = [sys.executable, "-m", "tests.traffic.quick_server", name]
        process = Process(name, command, self.directory / f"{name}.log", self.environment, ROOT)
        return process, int(until(lambda: process.output, f"{name} listens"))

    def ask(self, path: str) -> Any:
        answer = self.request("GET", f"/meshes/default/{path}")
        assert answer.status == 200, answer.text
        return answer.json

    def top(self, **query: str) -> dict[str, Any]:
        """The rows of `top` by name."""
        return {each["name"]: each for each in self._top(**query)["items"]}

    def _top(self, **query: str) -> Any:
        words = "&".join(f"{name}={value}" for name, value in {"seconds": "0.3", **query}.items())
        return self.ask(f"_top?{words}")

    def are_asked(self) -> bool:
        """Whether all Envoys can be asked."""
        return self._top()["proxies"]["answered"] == 5

    def endpoints(self, service: str) -> Any:
        return self.ask(f"meshservices/{service}/_endpoints?seconds=0.3")

    def words(self, service: str, proxy: str) -> tuple[str, str]:
        """The state of an endpoint, and what is said about it."""
        (endpoint,) = [each for each in self.endpoints(service)["endpoints"] if each["proxy"] == proxy]
        return endpoint["state"], "\n".join(f"{each['by']}: {each['text']}" for each in endpoint["words"])


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FiguresMesh]:
    with FiguresMesh(tmp_path_factory.mktemp("f")) as mesh:
        mesh.dying, mesh.dying_port = mesh.application("dying")
        mesh.probed_port = free_port()
        mesh.sidecar("backend-1", "backend", wait=False)
        mesh.sidecar("backend-2", "backend", target=mesh.dying_port, wait=False)
        mesh.sidecar("probed-1", "probed", target=mesh.probed_port, flags=("--service-probe",), wait=False)
        mesh.web_1, mesh.web_2 = (
            mesh.sidecar(name, "web", serves=False, outbounds=("backend",), wait=False)
            for name in ("web-1", "web-2")
        )
        until(
            lambda: {mesh.web_1.call("backend").status, mesh.web_2.call("backend").status} == {200},
            "it serves",
        )
        calls = (partial(web.call, "backend") for web in (mesh.web_1, mesh.web_2))
        first, second = (load(call, n_threads=1, pause=0.02) for call in calls)
        with first, second:
            until(mesh.are_asked, "all Envoys can be asked")
            yield mesh
        mesh.dying.kill()


def test_top_shows_the_traffic_of_services_and_proxies(mesh):
    backend = until(lambda: _with_latency(mesh.top()), "Envoys have flushed their latencies")
    proxies = mesh.top(by="proxies")
    (chosen,) = mesh.top(by="proxies", name="web-1")
    shown = mesh.koguma("top", "--once", "--interval", "0.3").stdout
    as_json = json.loads(mesh.koguma("top", "proxies", "web-1", "--once", "-o", "json").stdout)
    assert (backend["type"], backend["callers"]) == ("MeshService", 2)
    assert backend["requests"] > 0
    assert backend["errors"] == backend["connectFailures"] == 0
    assert 0 <= backend["p50Ms"] <= backend["p99Ms"]
    assert proxies["backend-1"]["served"]["requests"] > 0
    assert proxies["backend-1"]["called"]["requests"] == 0
    assert proxies["web-1"]["called"]["requests"] > 0
    assert proxies["web-1"]["served"]["requests"] == 0
    assert [*proxies][-1] == "probed-1", "the busiest come first"
    assert chosen == "web-1"
    assert "mesh default, 5 of 5 proxies, over 0.3 s" in shown
    (row,) = [line.split() for line in shown.splitlines() if line.startswith("backend")]
    assert float(row[1]) > 0
    assert [each["name"] for each in as_json["items"]] == ["web-1"]


def _with_latency(rows: dict[str, Any]) -> Any:
    backend = rows.get("backend")
    return backend if backend and backend["p99Ms"] is not None else None


def test_top_is_drawn_again_on_a_terminal_and_ends_with_ctrl_c(mesh):
    # Whoever runs tests in the background ignores Ctrl-C, and so would what they start.
    command = ["env", "--default-signal=INT", KOGUMA, "top", "--interval", "0.1"]
    terminal, side = pty.openpty()
    top = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=mesh.environment)
    os.close(side)
    printed = b""
    while printed.count(b"REQ/S") < 2:  # two pictures
        printed += os.read(terminal, 4096)
    top.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # nobody has the terminal any more
        while part := os.read(terminal, 4096):
            printed += part
    os.close(terminal)
    assert top.wait() == 130
    assert printed.startswith(b"\x1b[?1049h")
    assert b"\x1b[?1049l" in printed, "the screen before is back"
    assert b"Traceback" not in printed


def test_top_prints_lines_where_there_is_no_terminal(mesh):
    log = mesh.directory / "top.log"
    top = Process("top", [KOGUMA, "top", "--interval", "0.1"], log, mesh.environment)
    until(lambda: top.output.count("backend") >= 2, "two rows")
    top.kill()
    header, *rows = top.output.splitlines()
    assert header.split()[:3] == ["TIME", "SERVICE", "REQ/S"]
    assert all(row.split()[1] == "backend" for row in rows)
    assert "\x1b" not in top.output


def test_a_healthy_service(mesh):
    shown = mesh.endpoints("backend")
    assert (shown["state"], shown["summary"]) == ("healthy", "2 of 2 endpoints healthy"), shown
    assert shown["callers"]["calling"] == 2
    assert shown["servers"] == {"of": 2, "asked": 2, "answered": 2, "isSample": False, "unanswered": []}
    first = next(each for each in shown["endpoints"] if each["proxy"] == "backend-1")
    assert (first["zone"], first["port"], first["isOffered"]) == ("default", "http", True)
    assert first["callers"]["healthy"] == first["callers"]["asked"] == 2
    assert first["callers"]["lately"]["requests"] > 0


def test_a_probe_that_fails(mesh):
    shown = mesh.koguma("get", "endpoints", "probed").stdout
    assert "MeshService probed (mesh default): down: 0 of 1 endpoint serve; 1 not-ready" in shown
    probe = f"probe: its probe fails: the application does not answer on 127.0.0.1:{mesh.probed_port}"
    assert probe in shown
    assert time.strftime("since %Y-%m-%dT", time.gmtime()) in shown
    answer = mesh.endpoints("probed")
    assert [each["isOffered"] for each in answer["endpoints"]] == [False]


def test_the_one_command_names_an_application_that_ended(mesh):
    mesh.dying.kill()
    until(lambda: mesh.words("backend", "backend-2")[0] == "application-down", "its Envoy has seen it")
    shown = mesh.koguma("get", "endpoints", "backend").stdout
    row = mesh.top(by="proxies")["backend-2"]["served"]
    assert "MeshService backend (mesh default): degraded: 1 of 2 endpoints serve; 1 application-down" in shown
    assert f"connections of its Envoy to 127.0.0.1:{mesh.dying_port} failed in the last 1 s" in shown
    assert "the application does not listen" in shown
    assert row["connectFailures"] > 0
    assert row["errors"] > 0


def test_an_ejected_endpoint_is_shown_with_how_many_callers_have(mesh):
    """After the test before, in which its application has ended."""
    policy = build.policy("MeshCircuitBreaker", "eject", (build.ANY, {"outlierDetection": OUTLIERS}))
    mesh.apply_and_wait(policy)
    until(lambda: "by 2 of 2 callers" in mesh.words("backend", "backend-2")[1], "both have ejected it")
    state, words = mesh.words("backend", "backend-2")
    assert state == "ejected"
    assert "callers: is ejected (outlier detection) by 2 of 2 callers" in words
    assert f"to 127.0.0.1:{mesh.dying_port} failed since its start, none is open now" in words
    assert mesh.words("backend", "backend-1")[0] == "healthy"
    assert mesh.endpoints("backend")["state"] == "degraded"


def test_a_proxy_that_is_gone(mesh):
    gone = build.dataplane("backend-3", "backend", free_port(), inbound=[])
    gone["networking"]["inbound"] = [build.inbound("backend", free_port(), name="http")]
    mesh.apply_and_wait(gone)
    state, words = mesh.words("backend", "backend-3")
    mesh.delete_and_wait("dataplanes", "backend-3")
    assert state == "not-connected"
    assert "connection: no control plane has seen its proxy" in words
