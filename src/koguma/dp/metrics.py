"""Metrics: those of Envoy and of the applications beside it, as one page for whoever scrapes.

Envoy has the port that Prometheus scrapes and asks here, through a socket in the proxy's directory. What is
measured, and of Envoy's metrics which ones, is what the control plane told last.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import structlog
from aiohttp import web

from koguma.dp import exposition, unix_http
from koguma.dp.exposition import Choice, Family
from koguma.dp.unix_http import Silent
from koguma.model.schema import Json

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
APPLICATION: Final = "kuma_application"

_OK: Final = 200
_SECONDS: Final = aiohttp.ClientTimeout(total=5.0)
_ACCEPT: Final[Mapping[str, str]] = {"Accept": "text/plain;version=0.0.4;q=1,*/*;q=0.1"}

_log = structlog.get_logger("koguma.dp")

Sample = tuple[str, str, int]  # a counter of our own: its name, what it is about, its value


class Application(msgspec.Struct, frozen=True):
    """Where an application gives its metrics."""

    port: int
    address: str = "127.0.0.1"
    path: str = "/metrics"
    name: str = ""

    @property
    def url(self) -> str:
        """Where it is asked."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}{self.path}"

    @property
    def shown(self) -> str:
        """How people know it."""
        return self.name or str(self.port)


class Otel(msgspec.Struct, frozen=True, rename="camel"):
    """A collector that metrics are sent to: host and port for gRPC, or a URL."""

    endpoint: str = ""
    refresh_interval: str = "60s"


class Backend(msgspec.Struct, frozen=True, rename="camel"):
    """Where metrics go."""

    type: str
    name: str = ""
    open_telemetry: Otel | None = None


class Settings(msgspec.Struct, frozen=True, rename="camel"):
    """What is measured, and where it goes."""

    applications: tuple[Application, ...] = ()
    backends: tuple[Backend, ...] = ()
    sidecar: Mapping[str, Json] = {}
    extra_labels: Mapping[str, str] = {}

    @property
    def collectors(self) -> tuple[Otel, ...]:
        """The collectors that metrics are sent to."""
        return tuple(each.open_telemetry for each in self.backends if each.open_telemetry is not None)


class _Observability(msgspec.Struct, frozen=True):
    metrics: Settings = Settings()


class _Told(msgspec.Struct, frozen=True):
    observability: _Observability = _Observability()


def read(text: str) -> Settings:
    """The settings in what the control plane told; ValueError where they cannot be read."""
    return msgspec.json.decode(text, type=_Told).observability.metrics if text else Settings()


class Metrics:
    """Gathers metrics, and gives them to whoever asks on the socket."""

    def __init__(self, admin: Path, own: Callable[[], Iterable[Sample]]) -> None:
        self.settings = Settings()
        self.changed = asyncio.Event()
        self._choice = Choice()
        self._admin = admin
        self._own = own
        self._silent: set[str] = set()  # applications that did not answer last time
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=1.0)

    async def start(self, socket: Path) -> None:
        """Listen."""
        await self._runner.setup()
        await web.UnixSite(self._runner, str(socket)).start()

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    def take(self, text: str) -> None:
        """Measure what the control plane wants from now on."""
        try:
            self.settings = read(text)
        except ValueError as error:
            _log.warning("what is to be measured cannot be read", why=str(error))
            return
        self._choice = exposition.choice(self.settings.sidecar.get("profiles"))
        self.changed.set()
        _log.debug("what is measured", applications=[each.shown for each in self.settings.applications])

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/metrics":
            return web.Response(status=404, text="ask for /metrics\n")
        pages = await self.pages()
        # Beside the loop, which also answers DNS: Envoy may have very many metrics.
        body = await asyncio.to_thread(lambda: exposition.joined(pages).encode())
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def pages(self) -> list[Mapping[str, Family]]:
        """The families of Envoy, of each application, and our own."""
        applications = self.settings.applications
        async with aiohttp.ClientSession(timeout=_SECONDS, headers=_ACCEPT) as session:
            ours, *theirs = await asyncio.gather(
                self._of_envoy(), *(self._of_application(session, each) for each in applications)
            )
        is_up = {each.shown: page is not None for each, page in zip(applications, theirs, strict=True)}
        return [ours or {}, *(page for page in theirs if page), self._about_us(is_up)]

    async def _of_envoy(self) -> dict[str, Family] | None:
        unused = "" if self.settings.sidecar.get("includeUnused") else "?usedonly"
        try:
            answer = await unix_http.ask(self._admin, f"/stats/prometheus{unused}")
        except Silent:
            return None
        return await asyncio.to_thread(lambda: self._choice.of(exposition.families(answer.text)))

    async def _of_application(
        self, session: aiohttp.ClientSession, application: Application
    ) -> dict[str, Family] | None:
        try:
            async with session.get(application.url) as response:
                text = (await response.read()).decode(errors="replace")
                problem = "" if response.status == _OK else f"it answers {response.status}"
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            text, problem = "", str(error) or type(error).__name__
        self._tell(application, problem)
        if problem:
            return None
        page = await asyncio.to_thread(exposition.families, text)
        return exposition.labelled(page, APPLICATION, application.name) if application.name else page

    def _tell(self, application: Application, problem: str) -> None:
        """Say once that an application does not give its metrics, and once that it does again."""
        where = application.url
        if problem and where not in self._silent:
            self._silent.add(where)
            _log.warning("an application gives no metrics", application=application.shown, why=problem)
        elif not problem and where in self._silent:
            self._silent.remove(where)
            _log.info("an application gives its metrics again", application=application.shown)

    def _about_us(self, is_up: Mapping[str, bool]) -> dict[str, Family]:
        found: dict[str, Family] = {}
        for name, about, value in self._own():
            exposition.add(found, "counter", f"{name} {value}", ("address", about))
        for name, up in is_up.items():
            exposition.add(found, "gauge", f"koguma_application_up {int(up)}", (APPLICATION, name))
        return found
