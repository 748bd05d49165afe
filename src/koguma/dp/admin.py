"""Envoy's admin interface, over its unix socket: state, listeners, active requests, and draining."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from koguma.dp import unix_http
from koguma.dp.unix_http import EnvoyUnreachable
from koguma.envoy import names
from koguma.model import kri
from koguma.model.schema import Json

# Internal listeners, which carry no traffic of services.
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


class ListenerStatus(msgspec.Struct, frozen=True):
    """A listener and its address, as `/listeners` reports it."""

    name: str
    address: str


class ListenerError(msgspec.Struct, frozen=True):
    """A listener that Envoy rejected in its last LDS update, and why."""

    name: str
    details: str


class Activity(msgspec.Struct, frozen=True):
    """Active HTTP requests, and open connections of other protocols, which Envoy cannot tell to be idle."""

    requests: int = 0
    opaque_connections: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether ending Envoy interrupts nothing. A kept-alive HTTP connection without a request is idle."""
        return not self.requests and not self.opaque_connections


class Admin:
    """The admin interface of one Envoy; its methods raise EnvoyUnreachable where it does not answer."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def state(self) -> str:
        """Envoy's server state (LIVE when it is ready); empty where it does not answer."""
        try:
            return (await unix_http.request(self._socket, "/ready")).text.strip()
        except EnvoyUnreachable:
            return ""

    async def listeners(self) -> tuple[ListenerStatus, ...]:
        """The listeners that Envoy has."""
        response = await unix_http.request(self._socket, "/listeners?format=json")
        return tuple(read_listeners(msgspec.json.decode(response.text)))

    async def listener_errors(self) -> tuple[ListenerError, ...]:
        """The listeners that Envoy rejected; the next LDS update of other listeners clears them."""
        mask = "name,error_state.details"
        path = f"/config_dump?resource=dynamic_listeners&mask={mask}"
        response = await unix_http.request(self._socket, path)
        return tuple(read_listener_errors(msgspec.json.decode(response.text)))

    async def activity(self) -> Activity:
        """How busy Envoy is."""
        query = f"/stats?format=json&type=Gauges&filter={quote(_GAUGES)}"
        response = await unix_http.request(self._socket, query)
        stats = msgspec.json.decode(response.text)["stats"]
        return read_activity({stat["name"]: stat["value"] for stat in stats if "name" in stat})

    async def begin_drain(self) -> None:
        """Keep serving, but close connections with each response, and fail health checks."""
        await unix_http.request(self._socket, "/healthcheck/fail", "POST")
        await unix_http.request(self._socket, "/drain_listeners?graceful&skip_exit", "POST")

    async def stop_listening(self) -> None:
        """Accept no new connections; open ones stay."""
        await unix_http.request(self._socket, "/drain_listeners", "POST")


def read_listeners(answer: Json) -> Iterator[ListenerStatus]:
    """The listeners in a response of `/listeners?format=json`, with ports or paths as text."""
    for status in answer.get("listener_statuses", ()):
        local = status.get("local_address", {})
        socket, pipe = local.get("socket_address"), local.get("pipe")
        if socket is not None:
            host = socket.get("address", "")
            shown = f"[{host}]" if ":" in host else host
            yield ListenerStatus(status.get("name", ""), f"{shown}:{socket.get('port_value', 0)}")
        elif pipe is not None:
            yield ListenerStatus(status.get("name", ""), pipe.get("path", ""))


def read_listener_errors(answer: Json) -> Iterator[ListenerError]:
    """The listeners with an `error_state` in a config dump; Envoy lists each a second time without a name."""
    for status in answer.get("configs", ()):
        details = (status.get("error_state") or {}).get("details")
        if details and status.get("name"):
            yield ListenerError(status["name"], details)


def read_activity(gauges: Mapping[str, int]) -> Activity:
    """The activity in Envoy's gauges, by the names that it gives them.

    A listener counts all of its connections, its HTTP connection manager only the HTTP ones. The difference
    are connections that count as active until they are closed.
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
    """Whether a gauge counts the connections of one worker thread, which the listener's gauge has too."""
    last = subject.rpartition(".")[2]
    return last == "main_thread" or (last.startswith("worker_") and last[7:].isdigit())


_OWN: Final = ("dp", "ze", "zi", "mgw")  # kinds whose listeners take calls, and lead to no service


def summary(listeners: Iterable[ListenerStatus]) -> str:
    """One line for people: the inbounds and outbounds that the listeners are for."""
    serves, reaches, more = [], [], []
    for listener in sorted(listeners, key=lambda listener: listener.name):
        if listener.name.startswith("_kuma_"):
            continue
        resource, _, tags = listener.name.partition(":")
        if not kri.is_kri(resource):
            more.append(f"{listener.name} at {listener.address}")
        elif (identifier := kri.parse(resource)).short in _OWN:
            serves.append(listener.address)
        else:
            reaches.append(f"{identifier.name}{f' ({tags})' if tags else ''} at {listener.address}")
    parts = (("serves", serves), ("reaches", reaches), ("listens:", more))
    return "; ".join(f"{verb} {_first(texts)}" for verb, texts in parts if texts) or "listens nowhere yet"


def _first(texts: list[str]) -> str:
    left = len(texts) - _SHOWN_MAX
    return ", ".join(texts[:_SHOWN_MAX]) + (f" and {left} more" if left > 0 else "")
