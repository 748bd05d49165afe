"""Metrics: those of Envoy and of the applications beside it, merged into one page for Prometheus.

Envoy has the port that Prometheus scrapes, and forwards each scrape to the agent through a unix socket. Which
applications are scraped, and which of Envoy's metrics are kept, comes from MeshMetric through the dynamic
configuration.
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
from koguma.dp.exposition import MetricFamily, MetricsFilter
from koguma.dp.unix_http import EnvoyUnreachable
from koguma.model.schema import Json

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
APPLICATION: Final = "kuma_application"

_OK: Final = 200
_SECONDS: Final = aiohttp.ClientTimeout(total=5.0)
_ACCEPT: Final[Mapping[str, str]] = {"Accept": "text/plain;version=0.0.4;q=1,*/*;q=0.1"}

_log = structlog.get_logger("koguma.dp")

CounterSample = tuple[str, str, int]  # a counter of the agent: its name, the value of its label, its value


class Application(msgspec.Struct, frozen=True):
    """The address at which an application serves its metrics."""

    port: int
    address: str = "127.0.0.1"
    path: str = "/metrics"
    name: str = ""

    @property
    def url(self) -> str:
        """The URL that is scraped."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}{self.path}"

    @property
    def display_name(self) -> str:
        """Its name in logs and labels; the port where it has none."""
        return self.name or str(self.port)


class OpenTelemetryBackend(msgspec.Struct, frozen=True, rename="camel"):
    """An OpenTelemetry collector: `host:port` for gRPC, or a URL for HTTP."""

    endpoint: str = ""
    refresh_interval: str = "60s"


class MetricsDestination(msgspec.Struct, frozen=True, rename="camel"):
    """A backend of MeshMetric."""

    type: str
    name: str = ""
    open_telemetry: OpenTelemetryBackend | None = None


class MetricsSettings(msgspec.Struct, frozen=True, rename="camel"):
    """The configuration of MeshMetric for this proxy: what is collected, and where it goes."""

    applications: tuple[Application, ...] = ()
    backends: tuple[MetricsDestination, ...] = ()
    sidecar: Mapping[str, Json] = {}
    extra_labels: Mapping[str, str] = {}

    @property
    def collectors(self) -> tuple[OpenTelemetryBackend, ...]:
        """The OpenTelemetry collectors that metrics are exported to."""
        return tuple(
            backend.open_telemetry for backend in self.backends if backend.open_telemetry is not None
        )


class _ObservabilityConfig(msgspec.Struct, frozen=True):
    metrics: MetricsSettings = MetricsSettings()


class _DynamicConfig(msgspec.Struct, frozen=True):
    observability: _ObservabilityConfig = _ObservabilityConfig()


def read(text: str) -> MetricsSettings:
    """The settings in a dynamic configuration; ValueError where it cannot be decoded."""
    return msgspec.json.decode(text, type=_DynamicConfig).observability.metrics if text else MetricsSettings()


class MetricsAggregator:
    """Collects metrics, and serves them on a unix socket; `own` gives the agent's counters."""

    def __init__(self, admin: Path, own: Callable[[], Iterable[CounterSample]]) -> None:
        self.settings = MetricsSettings()
        self.changed = asyncio.Event()
        self._filter = MetricsFilter()
        self._admin = admin
        self._own = own
        self._failing: set[str] = set()  # URLs of applications whose last scrape failed
        self._runner = web.ServerRunner(web.Server(self._serve, access_log=None), shutdown_timeout=1.0)

    async def start(self, socket: Path) -> None:
        """Listen on the socket."""
        await self._runner.setup()
        await web.UnixSite(self._runner, str(socket)).start()

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    def configure(self, text: str) -> None:
        """Use a new dynamic configuration from now on; one that cannot be read changes nothing."""
        try:
            self.settings = read(text)
        except ValueError as error:
            _log.warning("metrics configuration cannot be read", why=str(error))
            return
        self._filter = exposition.profiles_filter(self.settings.sidecar.get("profiles"))
        self.changed.set()
        applications = [application.display_name for application in self.settings.applications]
        _log.debug("metrics configured", applications=applications)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/metrics":
            return web.Response(status=404, text="ask for /metrics\n")
        pages = await self.pages()
        # In a thread, because Envoy may have very many metrics and the event loop also answers DNS.
        body = await asyncio.to_thread(lambda: exposition.merged(pages).encode())
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def pages(self) -> list[Mapping[str, MetricFamily]]:
        """The families of Envoy, of each application, and of the agent."""
        applications = self.settings.applications
        async with aiohttp.ClientSession(timeout=_SECONDS, headers=_ACCEPT) as session:
            envoy_page, *pages = await asyncio.gather(
                self._envoy_page(),
                *(self._application_page(session, application) for application in applications),
            )
        is_up = {
            application.display_name: page is not None
            for application, page in zip(applications, pages, strict=True)
        }
        return [envoy_page or {}, *(page for page in pages if page), self._agent_page(is_up)]

    async def _envoy_page(self) -> dict[str, MetricFamily] | None:
        unused = "" if self.settings.sidecar.get("includeUnused") else "?usedonly"
        try:
            response = await unix_http.request(self._admin, f"/stats/prometheus{unused}")
        except EnvoyUnreachable:
            return None
        return await asyncio.to_thread(lambda: self._filter.apply(exposition.families(response.text)))

    async def _application_page(
        self, session: aiohttp.ClientSession, application: Application
    ) -> dict[str, MetricFamily] | None:
        try:
            async with session.get(application.url) as response:
                text = (await response.read()).decode(errors="replace")
                problem = "" if response.status == _OK else f"it answers {response.status}"
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            text, problem = "", str(error) or type(error).__name__
        self._log_outcome(application, problem)
        if problem:
            return None
        page = await asyncio.to_thread(exposition.families, text)
        return exposition.labelled(page, APPLICATION, application.name) if application.name else page

    def _log_outcome(self, application: Application, problem: str) -> None:
        """Log once that the scrape of an application fails, and once that it works again."""
        url = application.url
        if problem and url not in self._failing:
            self._failing.add(url)
            _log.warning("application metrics unavailable", application=application.display_name, why=problem)
        elif not problem and url in self._failing:
            self._failing.remove(url)
            _log.info("application metrics available again", application=application.display_name)

    def _agent_page(self, is_up: Mapping[str, bool]) -> dict[str, MetricFamily]:
        page: dict[str, MetricFamily] = {}
        for name, address, value in self._own():
            exposition.add(page, "counter", f"{name} {value}", ("address", address))
        for name, up in is_up.items():
            exposition.add(page, "gauge", f"koguma_application_up {int(up)}", (APPLICATION, name))
        return page
