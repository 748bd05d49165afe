"""Observability: the agent forwards access logs and serves or exports the metrics of its proxy."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from koguma.dp import dynamic_config
from koguma.dp.access_log import AccessLogForwarder
from koguma.dp.metrics import MetricsAggregator
from koguma.dp.workdir import Workdir
from koguma.envoy import names
from koguma.identity import files
from koguma.model.errors import KogumaError
from koguma.model.redacted import Redacted

_PATH: Final = "/meshmetric"
_ATTRIBUTES: Final = "OTEL_RESOURCE_ATTRIBUTES"
_SERVICE: Final = "service.name="


class MetricsCertificate(msgspec.Struct, frozen=True):
    """Files with the certificate and key of the metrics listener (MeshMetric's `ProvidedTLS`)."""

    chain: str
    key: str


class Observability:
    """Access logs and metrics of one proxy; `binary` is its Envoy."""

    def __init__(self, binary: Path, certificate: MetricsCertificate | None = None) -> None:
        self._binary = binary
        self._certificate = certificate
        self._access_log = AccessLogForwarder()
        self._metrics: MetricsAggregator | None = None

    async def start(self, directory: Workdir) -> None:
        """Start before Envoy does: it opens the pipe as soon as a listener logs to it."""
        if self._certificate is not None:
            _copy_private(self._certificate.chain, directory.path / names.METRICS_CERTIFICATE)
            _copy_private(self._certificate.key, directory.path / names.METRICS_KEY)
        self._access_log.start(directory.access_log)
        self._metrics = MetricsAggregator(directory.admin, self._access_log.samples)
        await self._metrics.start(directory.metrics)

    async def run(self, directory: Workdir) -> None:
        """Follow the dynamic configuration of metrics, and export them, until cancelled."""
        metrics = self._metrics
        assert metrics is not None
        await asyncio.gather(
            dynamic_config.follow(directory.dynamic_config, _PATH, metrics.configure), self._export(metrics)
        )

    async def _export(self, metrics: MetricsAggregator) -> None:
        while not metrics.settings.collectors:
            await metrics.changed.wait()
            metrics.changed.clear()
        from koguma.dp.otlp import OtlpExporter  # noqa: PLC0415 - costs much memory, and few proxies need it

        await OtlpExporter(metrics, self._binary).run()

    async def stop(self) -> None:
        """Send the last access log lines, and stop."""
        if self._metrics is not None:
            await self._metrics.stop()
        await self._access_log.stop()


def _copy_private(source: str, copy: Path) -> None:
    try:
        text = Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KogumaError(f"the certificate for metrics cannot be read from {source}: {error}") from error
    files.write_private(copy, Redacted(text))


def environment(own: Mapping[str, str], bootstrap: Redacted) -> dict[str, str]:
    """The environment of Envoy: ours, with OpenTelemetry's `service.name` where it is not set yet.

    Envoy's tracer reads the resource attributes from there; the service is the cluster of Envoy's node.
    """
    node = json.loads(bootstrap.reveal()).get("node") or {}
    attributes = own.get(_ATTRIBUTES, "")
    if not node.get("cluster") or _SERVICE in attributes:
        return dict(own)
    return {**own, _ATTRIBUTES: ",".join(filter(None, (f"{_SERVICE}{node['cluster']}", attributes)))}
