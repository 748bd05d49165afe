"""Envoy's admin interface, over its unix socket: is it live, where does it listen, is it busy."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from koguma.dp import unix_http
from koguma.dp.unix_http import Silent
from koguma.envoy import names
from koguma.model import kri
from koguma.model.schema import Json

# Listeners that carry nobody's calls: ours, and the control plane's.
_INTERNAL: Final = frozenset(
    (
        "admin",
        names.ADMIN,
        names.ADMIN_LOOPBACK,
        names.DNS,
        names.DYNAMIC_CONFIG,
        names.METRICS,
        names.READINESS,
    )
)
_GAUGES: Final = r"^(http|listener)\..*\.downstream_(cx|rq)_active$"
_CONNECTIONS: Final = ".downstream_cx_active"
_REQUESTS: Final = ".downstream_rq_active"
_SHOWN_MAX: Final = 5


class Listener(msgspec.Struct, frozen=True):
    """Something that Envoy listens on."""

    name: str
    address: str


class Refused(msgspec.Struct, frozen=True):
    """A listener that Envoy did not take when it was last told of listeners, and why."""

    name: str
    details: str


class Activity(msgspec.Struct, frozen=True):
    """What goes on: HTTP requests under way, and connections of which Envoy cannot say whether they rest."""

    requests: int = 0
    opaque_connections: int = 0

    @property
    def is_quiet(self) -> bool:
        """Whether nobody would lose anything. A kept-alive HTTP connection between two requests rests."""
        return not self.requests and not self.opaque_connections


class Admin:
    """Talks to one Envoy; what it asks raises Silent where no Envoy answers."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def state(self) -> str:
        """Envoy's word for how far it is: LIVE is ready, and an empty one means that it does not answer."""
        try:
            return (await unix_http.ask(self._socket, "/ready")).text.strip()
        except Silent:
            return ""

    async def listeners(self) -> tuple[Listener, ...]:
        """What Envoy listens on."""
        answer = await unix_http.ask(self._socket, "/listeners?format=json")
        return tuple(read_listeners(msgspec.json.decode(answer.text)))

    async def refused(self) -> tuple[Refused, ...]:
        """The listeners that Envoy did not take; it forgets them when it is told of other listeners."""
        mask = "name,error_state.details"
        answer = await unix_http.ask(self._socket, f"/config_dump?resource=dynamic_listeners&mask={mask}")
        return tuple(read_refused(msgspec.json.decode(answer.text)))

    async def activity(self) -> Activity:
        """How busy Envoy is."""
        query = f"/stats?format=json&type=Gauges&filter={quote(_GAUGES)}"
        answer = await unix_http.ask(self._socket, query)
        found = msgspec.json.decode(answer.text)
        return read_activity({stat["name"]: stat["value"] for stat in found["stats"] if "name" in stat})

    async def begin_drain(self) -> None:
        """Go on serving, but let every answer close its connection, and health checks fail."""
        await unix_http.ask(self._socket, "/healthcheck/fail", "POST")
        await unix_http.ask(self._socket, "/drain_listeners?graceful&skip_exit", "POST")

    async def stop_listening(self) -> None:
        """Take no new connections; open ones stay."""
        await unix_http.ask(self._socket, "/drain_listeners", "POST")


def read_listeners(answer: Json) -> Iterator[Listener]:
    """The listeners in an answer of `/listeners?format=json`, with ports or paths as text."""
    for status in answer.get("listener_statuses", ()):
        local = status.get("local_address", {})
        socket, pipe = local.get("socket_address"), local.get("pipe")
        if socket is not None:
            host = socket.get("address", "")
            shown = f"[{host}]" if ":" in host else host
            yield Listener(status.get("name", ""), f"{shown}:{socket.get('port_value', 0)}")
        elif pipe is not None:
            yield Listener(status.get("name", ""), pipe.get("path", ""))


def read_refused(answer: Json) -> Iterator[Refused]:
    """The listeners with an error in a dump; Envoy lists each once more without its name."""
    for status in answer.get("configs", ()):
        details = (status.get("error_state") or {}).get("details")
        if details and status.get("name"):
            yield Refused(status["name"], details)


def read_activity(gauges: Mapping[str, int]) -> Activity:
    """The activity in Envoy's gauges, by the names that it gives them.

    A listener counts all of its connections, and the HTTP filter below it those that it understands; what is
    left are connections of which only their end says that nobody needs them.
    """
    connections = {"http": 0, "listener": 0}
    requests = 0
    for name, value in gauges.items():
        place, _, rest = name.partition(".")
        if place not in connections:
            continue
        subject = rest.removesuffix(_CONNECTIONS).removesuffix(_REQUESTS)
        if subject in _INTERNAL or subject.startswith(f"{names.METRICS}_") or _is_per_thread(subject):
            continue
        if name.endswith(_CONNECTIONS):
            connections[place] += value
        elif place == "http":
            requests += value
    return Activity(requests, max(0, connections["listener"] - connections["http"]))


def _is_per_thread(subject: str) -> bool:
    """Envoy counts a listener's connections once more for each of its threads."""
    last = subject.rpartition(".")[2]
    return last == "main_thread" or (last.startswith("worker_") and last[7:].isdigit())


def told(listeners: Iterable[Listener]) -> str:
    """What the listeners mean to the people who started the proxy, in a line."""
    serves, reaches, more = [], [], []
    for listener in sorted(listeners, key=lambda each: each.name):
        if listener.name.startswith("_kuma_"):
            continue
        resource, _, tags = listener.name.partition(":")
        if not kri.is_kri(resource):
            more.append(f"{listener.name} at {listener.address}")
        elif (found := kri.parse(resource)).short == "dp":
            serves.append(listener.address)
        else:
            reaches.append(f"{found.name}{f' ({tags})' if tags else ''} at {listener.address}")
    parts = (("serves", serves), ("reaches", reaches), ("listens:", more))
    return "; ".join(f"{verb} {_some(words)}" for verb, words in parts if words) or "listens nowhere yet"


def _some(words: list[str]) -> str:
    left = len(words) - _SHOWN_MAX
    return ", ".join(words[:_SHOWN_MAX]) + (f" and {left} more" if left > 0 else "")
