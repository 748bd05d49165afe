"""A small real control plane for proxies, and a real `koguma dp run` against it.

The stand-in serves `/bootstrap` and `/deregister` over TLS. Its bootstrap is a whole configuration of its
own: a listener that answers by itself, slowly where the caller asks for it, and the socket from which the
agent takes the names for DNS.
"""

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from aiohttp import web

from koguma.api.server import HttpServer, tls_context
from koguma.identity import files
from tests.error_lines import ERRORS
from tests.waiting import until

TOKEN = "a-token-that-nobody-sees"
PATIENCE_SECONDS = 60.0
HCM = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
FAULT = "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault"
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"


class Asked(NamedTuple):
    """What the stand-in was asked."""

    path: str
    body: Any
    authorization: str


Answer = tuple[int, bytes | dict[str, Any]]


def direct(
    status: int, body: str = "", match: dict[str, Any] | None = None, etag: str = ""
) -> dict[str, Any]:
    """A route that answers by itself."""
    response: dict[str, Any] = {"status": status}
    if body:
        response["body"] = {"inline_string": body}
    headers = [{"header": {"key": "ETag", "value": etag}}] if etag else []
    return {
        "match": match or {"prefix": "/"},
        "direct_response": response,
        "response_headers_to_add": headers,
    }


def listener(name: str, address: dict[str, Any], routes: list[dict[str, Any]]) -> dict[str, Any]:
    """A listener for HTTP that answers slowly where a caller's header asks for it."""
    delay = {"header_delay": {}, "percentage": {"numerator": 100}}
    manager = {
        "@type": HCM,
        "stat_prefix": name,
        "route_config": {"virtual_hosts": [{"name": name, "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {"name": "fault", "typed_config": {"@type": FAULT, "delay": delay}},
            {"name": "router", "typed_config": {"@type": ROUTER}},
        ],
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    return {"name": name, "stat_prefix": name, "address": address, "filter_chains": [chain]}


def bootstrap(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of an Envoy that needs no more than this."""
    directory = asked["workdir"]
    names = json.dumps({"records": [{"name": "backend.mesh", "ips": ["241.0.0.1"]}], "ttl": 5})
    known = {"path": "/dns", "headers": [{"name": "If-None-Match", "string_match": {"exact": "v1"}}]}
    config = [direct(304, match=known), direct(200, names, {"path": "/dns"}, etag="v1")]
    return {
        "node": {"id": f"{asked['mesh']}.{asked['name']}", "cluster": "web"},
        "admin": {"address": {"pipe": {"path": f"{directory}/envoy-admin.sock", "mode": 0o600}}},
        "static_resources": {
            "listeners": [
                listener(
                    "kri_dp_default_default__web-1_8080",
                    {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
                    [direct(200, "hello")],
                ),
                listener(
                    "_kuma_dynamicconfig",
                    {"pipe": {"path": f"{directory}/kuma-mesh-metric-config.sock"}},
                    config,
                ),
            ]
        },
    }


def packed(content: Any) -> Answer:
    """The answer of `/bootstrap` with this content."""
    text = base64.b64encode(json.dumps(content).encode()).decode()
    return 200, {"bootstrap": text, "kumaSidecarConfiguration": {"networking": {}, "metrics": {}}}


class StandIn:
    """Serves proxies on its own loop in a thread; `answer` may be changed at any time."""

    def __init__(self, directory: Path, port: int = 0) -> None:
        self.asked: list[Asked] = []
        self.answer: Callable[[Mapping[str, Any]], Answer] = lambda asked: packed(bootstrap(asked))
        credentials = files.server_credentials(directory, (), datetime.now(UTC))
        self.ca_file = str(credentials.ca_path)
        self.port = port
        self._tls = tls_context(str(credentials.certificate_path), str(credentials.key_path))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._http.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._http = HttpServer(self._handle)
        await self._http.start()
        self.port = await self._http.listen("127.0.0.1", self.port, self._tls)

    def paths(self, path: str) -> list[Asked]:
        return [request for request in self.asked if request.path == path]

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.json() if request.method == "POST" else {}
        self.asked.append(Asked(request.path, body, request.headers.get("Authorization", "")))
        if request.path == "/deregister":
            return web.Response(status=204)
        status, answer = self.answer(body)
        if isinstance(answer, bytes):
            return web.Response(status=status, body=answer, content_type="text/plain")
        return web.json_response(answer, status=status)


class Running:
    """A `koguma dp run` in a process of its own, with what it prints."""

    def __init__(self, directory: Path, *words: str, **environment: str) -> None:
        # Sockets have short names only, and a test's own directory may be a deep one.
        self._temporary = tempfile.TemporaryDirectory(prefix="kg-", dir="/tmp")
        self.runtime = Path(self._temporary.name)
        self._log = (directory / "log").open("wb")
        self._path = directory / "log"
        ERRORS.follow(self._path)
        code = "import sys; from koguma.cli import main; sys.exit(main(sys.argv[1:]))"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KOGUMA_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "dp", "run", *words],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**inherited, "XDG_RUNTIME_DIR": str(self.runtime), **environment},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()
        self._temporary.cleanup()

    @property
    def log(self) -> str:
        return self._path.read_text()

    def line(self, pattern: str, count: int = 1) -> re.Match[str]:
        """The line with this pattern, the `count`th one, as soon as it is there."""

        def match() -> re.Match[str] | None:
            if self.process.poll() is not None and not re.search(pattern, self.log):
                raise AssertionError(f"ended with {self.process.returncode}: {self.log}")
            matches = list(re.finditer(pattern, self.log))
            return matches[count - 1] if len(matches) >= count else None

        try:
            return until(match)
        except AssertionError as error:
            raise AssertionError(f"{pattern!r} is not in: {self.log}") from error

    def ready(self, count: int = 1) -> int:
        """Wait until the proxy says that it is ready; the port on which it serves."""
        return int(self.line(r"is ready(?: again)?: serves 127\.0\.0\.1:(\d+)", count)[1])

    def envoy_pid(self, count: int = 1) -> int:
        return int(self.line(r'"pid": (\d+), "version"', count)[1])

    def workdir(self) -> Path:
        return next(self.runtime.iterdir())

    def ended(self, number: signal.Signals | None = None, seconds: float = PATIENCE_SECONDS) -> int:
        """Send a signal, where one is given, and wait for the end; the exit code."""
        if number is not None:
            self.process.send_signal(number)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running: {self.log}") from None
