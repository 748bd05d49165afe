"""A real control plane for tests: its own loop in a thread, its own ports, its own data directory."""

import asyncio
import base64
import http.client
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Self

from koguma.control_plane.control_plane import ControlPlane
from koguma.identity import signing_keys
from koguma.model.redacted import Redacted
from koguma.runtime import logs, settings
from tests.http_client import Response, send_request

_N_KEYS = 40  # more than one test ever has at a time


def _used_again(generate: Callable[[], Redacted]) -> Callable[[], Redacted]:
    """Signing keys that are generated once in a run of tests, and then used in turns.

    Each takes 50 ms of a core, and every control plane and every mesh has some.
    """
    key = cache(lambda _number: generate())
    numbers: Iterator[int] = itertools.cycle(range(_N_KEYS))
    return lambda: key(next(numbers))


signing_keys.generate = _used_again(signing_keys.generate)


class WatchStream:
    """The lines of a watch, as they come."""

    def __init__(self, port: int, path: str, headers: dict[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.request("GET", path, headers=headers)
        self._response = self._connection.getresponse()
        self.status = self._response.status

    def next(self) -> Any:
        return json.loads(self._response.readline())

    def until(self, word: str) -> list[Any]:
        """All events up to the first of a type, without it."""
        events = []
        while (event := self.next())["type"] != word:
            events.append(event)
        return events

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self._connection.close()


async def _last_tasks() -> None:
    """Let what still runs end; gRPC ends its calls by tasks of its own."""
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        _, left = await asyncio.wait(tasks, timeout=30)
        assert not left, left


class LocalControlPlane:
    """Runs while it is entered."""

    def __init__(self, data_dir: Path, file: str | None = None, **flags: Any) -> None:
        logs.configure("error", "json")
        self.data_dir = data_dir
        flags = {**_keys(data_dir, flags.get("store", "")), **flags}
        usual = {
            "api_port": 0,
            "api_tls_port": 0,
            "dp_port": 0,
            "xds_port": 0,
            "sync_port": 0,
            "data_dir": str(data_dir),
            "store": "memory://",
            "localhost_is_admin": True,
            "feature_gates": "NamespaceContents=false",  # what comes by itself would be in the tests' lists
        }
        self.settings = settings.load(file, {}, {**usual, **flags})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.plane = ControlPlane(self.settings)
        self.run(self.plane.start())
        self.port = self.plane.ports["api"]
        self.tls_port = self.plane.ports["api-tls"]
        self.address = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.plane.stop())
        self.run(_last_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Any) -> Any:
        """Run something on the control plane's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        """One request: a dict or list body is sent as JSON, bytes as they are; `If_Match=` is If-Match."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        return send_request(connection, method, path, body, **headers)

    def dataplane_token(self, mesh: str = "default", **claims: Any) -> str:
        """A token for the proxies that the claims describe."""
        answer = self("POST", "/tokens/dataplane", {"mesh": mesh, "validFor": "1h", **claims})
        assert answer.status == 200, answer.body
        return answer.text

    def watch(self, path: str, **headers: str) -> WatchStream:
        """A watch that stays open until it is left."""
        return WatchStream(self.port, path, headers)


def _keys(data_dir: Path, store: str) -> dict[str, str]:
    """The key file that a PostgreSQL store needs, the same for all control planes."""
    return {"store_key_file": store_key(data_dir)} if store.startswith("postgresql:") else {}


def store_key(directory: Path) -> str:
    """A file with a key for Secrets in a store, the same one wherever it is."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = directory / "store.key"
    file.touch(0o600)
    file.write_text(base64.b64encode(b"a key of thirty-two bytes, known").decode())
    return str(file)
