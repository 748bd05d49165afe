"""Traffic of a demo: small services that say who they are, and a client that counts who answered."""

import contextlib
import http.client
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SHOWN_SECONDS = 1.0
PAUSE_SECONDS = 0.01
BAR_WIDTH = 40


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


def show(traffic: Traffic, goes_on: Callable[[], bool]) -> None:
    """Show who answers, second by second, for as long as it goes on."""
    is_terminal = sys.stdout.isatty()
    try:
        while goes_on():
            time.sleep(SHOWN_SECONDS)
            line = shown(traffic.take())
            print(f"\r\033[K{line}" if is_terminal else line, end="" if is_terminal else "\n", flush=True)
    finally:
        traffic.stop()
