"""Kuma's own agent, as far as a control plane sees it: a stand-in that runs a real Envoy.

It asks for a bootstrap with the request of Kuma 2.13's `kuma-dp`, reads the same fields of the answer, names
its sockets as that does, and ends Envoy in the same way: Envoy's health check is made to fail, and after the
drain time Envoy is stopped. It knows of Envoy's admin only the port that stands in the bootstrap.
"""

import base64
import contextlib
import http.client
import json
import os
import shutil
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from koguma.envoy import schema
from tests.http_client import Response, call, joined_headers
from tests.live_mesh import LiveMesh, Process
from tests.waiting import until

ENVOY = shutil.which("envoy", path=str(Path(sys.executable).parent)) or "envoy"
FEATURES = (
    "feature-tcp-accesslog-via-named-pipe",
    "feature-readiness-unix-socket",
    "feature-strict-inbound-ports",
    "feature-reuse-port",
)
CUT = 98  # characters of a socket's path, before its ending


class _SocketServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def _serving(path: str, answer: Any) -> _SocketServer:
    """An HTTP server on a unix socket; `answer` gives status and body for a path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "socket"

        def log_message(self, *_: Any) -> None:
            pass

    server = _SocketServer(path, Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


class KumaDp:
    """A proxy beside a service, run as Kuma's agent runs it."""

    def __init__(
        self,
        mesh: LiveMesh,
        dataplane: Mapping[str, Any],
        *,
        features: Sequence[str] = (),
        **request: Any,
    ) -> None:
        self.mesh, self.name = mesh, dataplane["name"]
        self.workdir = mesh.directory / f"kuma-dp-{self.name}"
        self.workdir.mkdir(mode=0o700)
        self.lines: list[dict[str, Any]] = []
        self.is_terminating = False
        self.answer = self._request_bootstrap(dataplane, features, request)
        self.bootstrap = json.loads(base64.b64decode(self.answer["bootstrap"]))
        self._refuse_unknown_fields()
        admin = self.bootstrap["admin"]["address"].get("socket_address") or {}
        self.admin_port = int(admin.get("port_value") or 0)
        self._servers = [
            _serving(self._socket("kuma-readiness-reporter"), self._readiness),
            _serving(self._socket(f"kuma-mh-{self.name}-{mesh.name}"), self._metrics),
        ]
        self._pipe = self._socket(f"kuma-al-{self.name}-{mesh.name}")
        os.mkfifo(self._pipe, 0o600)
        threading.Thread(target=self._read_lines, daemon=True).start()
        self.envoy = self._start_envoy()

    def _request_bootstrap(
        self, dataplane: Mapping[str, Any], features: Sequence[str], request: Mapping[str, Any]
    ) -> Any:
        """The control plane's answer to a request for a bootstrap."""
        ca = (self.mesh.directory / "cp" / "ca.pem").read_text()
        body = {
            "mesh": self.mesh.name,
            "name": self.name,
            "proxyType": "dataplane",
            "dataplaneToken": self.mesh.service_token(self.name, *_service(dataplane)),
            "dataplaneResource": json.dumps({"mesh": self.mesh.name, **dataplane}),
            "version": {
                "kumaDp": {"version": "2.13.0", "gitTag": "", "gitCommit": "", "buildDate": ""},
                "envoy": {"version": "1.36.8", "build": "", "kumaDpCompatible": True},
            },
            "caCert": ca,
            "dynamicMetadata": None,
            "dnsPort": 0,
            "readinessPort": 9902,
            "operatingSystem": "linux",
            "features": [*FEATURES, *features],
            "resources": {"maxHeapSizeBytes": 0},
            "workdir": str(self.workdir),
            "metricsResources": {"certPath": "", "keyPath": ""},
            "systemCaPath": "",
            "ipv6Enabled": False,
            "spireResources": {"socketPath": ""},
            **request,
        }
        tls = ssl.create_default_context(cadata=ca)
        connection = http.client.HTTPSConnection("127.0.0.1", self.mesh.dp, timeout=60, context=tls)
        with contextlib.closing(connection):
            headers = {"accept": "application/json", "content-type": "application/json"}
            connection.request("POST", "/bootstrap", json.dumps(body), headers)
            response = connection.getresponse()
            answer = Response(response.status, joined_headers(response.getheaders()), response.read())
        assert answer.status == 200, answer.text
        return answer.json

    def _refuse_unknown_fields(self) -> None:
        """The agent reads the bootstrap into Envoy's message, and ends where a field is not known."""
        known = schema.load(schema.find_envoy())
        message = known.message_class("envoy.config.bootstrap.v3.Bootstrap")()
        json_format.ParseDict(self.bootstrap, message, descriptor_pool=known.pool)

    def _socket(self, name: str) -> str:
        return f"{self.workdir}/{name}"[:CUT] + ".sock"

    def _start_envoy(self) -> Process:
        path = self.workdir / "bootstrap.yaml"
        path.write_text(json.dumps(self.bootstrap))
        command = (
            *(ENVOY, "--config-path", str(path), "--drain-time-s", "30", "--drain-strategy", "immediate"),
            *("--disable-hot-restart", "--log-level", "info", "--concurrency", "1"),
        )
        log = self.mesh.directory / f"kuma-dp-{self.name}.log"
        return Process(self.name, command, log, self.mesh.environment, self.workdir)

    def wait(self) -> None:
        """Wait until Envoy is ready, as `kuma-dp wait` does."""
        until(lambda: self.admin("/ready").status == 200, f"{self.name} is ready")

    def admin(self, path: str, method: str = "GET") -> Response:
        """A page of Envoy's admin API, on the port that the agent knows."""
        return call(self.admin_port, method, path)

    def mesh_metric_config(self, path: str) -> Response:
        """What the agent fetches every second from the control plane, through Envoy."""
        connection = http.client.HTTPConnection("localhost", timeout=60)
        with contextlib.closing(connection):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(self._socket("kuma-mesh-metric-config"))
            connection.request("GET", path)
            response = connection.getresponse()
            return Response(response.status, joined_headers(response.getheaders()), response.read())

    def _readiness(self, path: str) -> tuple[int, bytes]:
        if path != "/ready":
            return 404, b""
        return (503, b"TERMINATING") if self.is_terminating else (200, b"READY")

    def _metrics(self, _path: str) -> tuple[int, bytes]:
        """The agent asks Envoy on its admin port; nothing comes from one that is not there."""
        answer = self.admin("/stats?usedonly&format=prometheus")
        return 200, answer.body

    def _read_lines(self) -> None:
        with Path(self._pipe).open(encoding="utf-8") as lines:  # until Envoy has closed it
            self.lines += [json.loads(line) for line in lines]

    def drain(self) -> None:
        """What the agent does first when it is stopped."""
        assert self.admin("/healthcheck/fail", "POST").status == 200
        self.is_terminating = True

    def close(self) -> None:
        """What the agent does when the drain time is over."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
        if self.envoy._popen.poll() is None:
            self.envoy.stop()


def _service(dataplane: Mapping[str, Any]) -> list[str]:
    """The service of a Dataplane's first port or of its gateway, if it has one."""
    networking = dataplane["networking"]
    tagged = [
        *(networking.get("inbound") or ()),
        *([networking["gateway"]] if "gateway" in networking else ()),
    ]
    return [part["tags"]["kuma.io/service"] for part in tagged][:1]
