"""Observing: what the agent does so that others see what the proxy does: log lines sent on, and metrics."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from koguma.dp import told
from koguma.dp.access_log import AccessLog
from koguma.dp.metrics import Metrics
from koguma.dp.workdir import Workdir
from koguma.envoy import names
from koguma.identity import files
from koguma.model.errors import KogumaError
from koguma.model.redacted import Redacted

_PATH: Final = "/meshmetric"
_ATTRIBUTES: Final = "OTEL_RESOURCE_ATTRIBUTES"
_SERVICE: Final = "service.name="


class Certificate(msgspec.Struct, frozen=True):
    """Files with the certificate for who scrapes metrics, and its key."""

    chain: str
    key: str


class Observing:
    """Everything about one proxy that others see; `binary` is its Envoy."""

    def __init__(self, binary: Path, certificate: Certificate | None = None) -> None:
        self._binary = binary
        self._certificate = certificate
        self._log = AccessLog()
        self._metrics: Metrics | None = None

    async def start(self, directory: Workdir) -> None:
        """Be there before Envoy is: it opens the pipe when it takes a listener that writes to it."""
        if self._certificate is not None:
            _keep(self._certificate.chain, directory.path / names.METRICS_CERTIFICATE)
            _keep(self._certificate.key, directory.path / names.METRICS_KEY)
        self._log.start(directory.access_log)
        self._metrics = Metrics(directory.admin, self._log.samples)
        await self._metrics.start(directory.metrics)

    async def run(self, directory: Workdir) -> None:
        """Do what the control plane wants, for as long as this runs."""
        metrics = self._metrics
        assert metrics is not None
        await asyncio.gather(told.follow(directory.dynamic_config, _PATH, metrics.take), self._push(metrics))

    async def _push(self, metrics: Metrics) -> None:
        while not metrics.settings.collectors:
            await metrics.changed.wait()
            metrics.changed.clear()
        from koguma.dp.otlp import Push  # noqa: PLC0415 - what few proxies need costs much memory

        await Push(metrics, self._binary).run()

    async def stop(self) -> None:
        """Send the last lines, and go."""
        if self._metrics is not None:
            await self._metrics.stop()
        await self._log.stop()


def _keep(source: str, copy: Path) -> None:
    try:
        text = Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KogumaError(f"the certificate for metrics cannot be read from {source}: {error}") from error
    files.write_private(copy, Redacted(text))


def environment(given: Mapping[str, str], bootstrap: Redacted) -> dict[str, str]:
    """The environment of Envoy: to OpenTelemetry it is the service of its node, unless somebody said more."""
    node = json.loads(bootstrap.reveal()).get("node") or {}
    said = given.get(_ATTRIBUTES, "")
    if not node.get("cluster") or _SERVICE in said:
        return dict(given)
    return {**given, _ATTRIBUTES: ",".join(filter(None, (f"{_SERVICE}{node['cluster']}", said)))}
