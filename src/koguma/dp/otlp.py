"""OTLP: metrics in OpenTelemetry's format, and their export to collectors.

The message types come from the Envoy binary, which carries their descriptors: no other package is needed.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import grpc
import grpc.aio
import structlog

from koguma.dp.exposition import MetricFamily
from koguma.dp.metrics import MetricsAggregator, OpenTelemetryBackend
from koguma.envoy import schema
from koguma.model import duration
from koguma.runtime.background import Background

_REQUEST: Final = "opentelemetry.proto.collector.metrics.v1.ExportMetricsServiceRequest"
_METHOD: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
_CUMULATIVE: Final = "AGGREGATION_TEMPORALITY_CUMULATIVE"
_SECONDS_MIN: Final = 1.0
_SEND_SECONDS: Final = 10.0
_SAMPLE: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL: Final = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPE: Final = re.compile(r"\\(.)")

_log = structlog.get_logger("koguma.dp")

Data = dict[str, Any]
Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]


def samples(family: MetricFamily) -> Iterator[Sample]:
    """The samples of a family: name, labels and value; lines that cannot be parsed are left out."""
    for line in family.samples:
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        labels = tuple((name, _unescaped(text)) for name, text in _LABEL.findall(match[2] or ""))
        yield match[1], labels, value


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text) if "\\" in text else text


def request(
    pages: Iterable[Mapping[str, MetricFamily]], proxy_labels: Mapping[str, str], now_ns: int
) -> Data:
    """All metrics as one export request; `proxy_labels` become attributes of the resource."""
    metrics = [metric for page in pages for family in page.values() if (metric := _metric(family, now_ns))]
    scope = {"scope": {"name": "koguma"}, "metrics": metrics}
    attributes = {
        "service.name": proxy_labels.get("service", ""),
        **{f"kuma.{name}": text for name, text in proxy_labels.items()},
    }
    resource = {"attributes": _attributes(tuple((name, text) for name, text in attributes.items() if text))}
    return {"resource_metrics": [{"resource": resource, "scope_metrics": [scope]}]}


def _metric(family: MetricFamily, now_ns: int) -> Data | None:
    family_samples = list(samples(family))
    if not family_samples:
        return None
    about: Data = {"name": family.name}
    if family.help:
        about["description"] = family.help
    match family.type:
        case "counter":
            points = [_point(labels, value, now_ns) for _, labels, value in family_samples]
            body = {"data_points": points, "aggregation_temporality": _CUMULATIVE, "is_monotonic": True}
            return {**about, "sum": body}
        case "histogram":
            points = [
                _histogram(labels, parts, now_ns) for labels, parts in _grouped(family, family_samples, "le")
            ]
            return {**about, "histogram": {"data_points": points, "aggregation_temporality": _CUMULATIVE}}
        case "summary":
            points = [
                _summary(labels, parts, now_ns)
                for labels, parts in _grouped(family, family_samples, "quantile")
            ]
            return {**about, "summary": {"data_points": points}}
        case _:
            return {
                **about,
                "gauge": {
                    "data_points": [_point(labels, value, now_ns) for _, labels, value in family_samples]
                },
            }


def _attributes(labels: Labels) -> list[Data]:
    return [{"key": name, "value": {"string_value": value}} for name, value in labels]


def _point(labels: Labels, value: float, now_ns: int) -> Data:
    return {"attributes": _attributes(labels), "time_unix_nano": now_ns, "as_double": value}


class _Distribution:
    """The samples of one histogram or summary."""

    def __init__(self) -> None:
        self.values: list[tuple[float, float]] = []  # bound of a bucket or quantile, and its value
        self.sum = 0.0
        self.count = 0


def _grouped(
    family: MetricFamily, family_samples: Iterable[Sample], by: str
) -> Iterable[tuple[Labels, _Distribution]]:
    groups: dict[Labels, _Distribution] = {}
    for name, labels, value in family_samples:
        rest = tuple(pair for pair in labels if pair[0] != by)
        parts = groups.setdefault(rest, _Distribution())
        bound = next((text for label, text in labels if label == by), None)
        if bound is not None:
            parts.values.append((float(bound), value))
        elif name == f"{family.name}_sum":
            parts.sum = value
        elif name == f"{family.name}_count":
            parts.count = int(value)
    return groups.items()


def _histogram(labels: Labels, parts: _Distribution, now_ns: int) -> Data:
    """A histogram's data point; Prometheus' bucket counts are cumulative, OpenTelemetry's are not."""
    ordered = sorted(parts.values)
    before = [0.0, *(count for _, count in ordered)]
    counts = [int(count - less) for (_, count), less in zip(ordered, before, strict=False)]
    return {
        "attributes": _attributes(labels),
        "time_unix_nano": now_ns,
        "count": parts.count,
        "sum": parts.sum,
        "bucket_counts": counts,
        "explicit_bounds": [bound for bound, _ in ordered if bound != float("inf")],
    }


def _summary(labels: Labels, parts: _Distribution, now_ns: int) -> Data:
    values = [{"quantile": quantile, "value": value} for quantile, value in sorted(parts.values)]
    return {
        "attributes": _attributes(labels),
        "time_unix_nano": now_ns,
        "count": parts.count,
        "sum": parts.sum,
        "quantile_values": values,
    }


class OtlpExporter:
    """Exports metrics to every collector of MeshMetric, each at its own refresh interval."""

    def __init__(self, metrics: MetricsAggregator, binary: Path) -> None:
        self._metrics = metrics
        self._binary = binary
        self._failing: set[str] = set()  # endpoints whose last export failed

    async def run(self) -> None:
        """Export until cancelled; a new configuration restarts all exports."""
        while True:
            self._metrics.changed.clear()
            exports = Background()
            for collector in self._metrics.settings.collectors:
                exports.forever(f"metrics to {collector.endpoint}", partial(self._export, collector))
            try:
                await self._metrics.changed.wait()
            finally:
                await exports.stop()

    async def _export(self, collector: OpenTelemetryBackend) -> None:
        pause = max(duration.seconds(collector.refresh_interval), _SECONDS_MIN)
        while True:
            body = await self._body()
            try:
                async with asyncio.timeout(_SEND_SECONDS):
                    await _send(collector.endpoint, body)
                problem = ""
            except (TimeoutError, OSError, aiohttp.ClientError, grpc.RpcError) as error:
                problem = _reason(error)
            self._log_outcome(collector.endpoint, problem)
            await asyncio.sleep(pause)

    async def _body(self) -> bytes:
        pages = await self._metrics.pages()
        proxy_labels = self._metrics.settings.extra_labels

        def encode() -> bytes:
            message = schema.load(self._binary).message_class(_REQUEST)
            return message(**request(pages, proxy_labels, time.time_ns())).SerializeToString()

        return await asyncio.to_thread(encode)

    def _log_outcome(self, endpoint: str, problem: str) -> None:
        """Log once that exports to a collector fail, and once that they work again."""
        if problem and endpoint not in self._failing:
            self._failing.add(endpoint)
            _log.warning("metrics do not reach their collector", endpoint=endpoint, why=problem)
        elif not problem and endpoint in self._failing:
            self._failing.remove(endpoint)
            _log.info("metrics reach their collector again", endpoint=endpoint)


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


async def _send(endpoint: str, body: bytes) -> None:
    """Send one request: over HTTP to a URL, else over gRPC."""
    if "://" in endpoint:
        headers = {"Content-Type": "application/x-protobuf"}
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.post(endpoint, data=body, headers=headers),
        ):
            return
    async with grpc.aio.insecure_channel(endpoint) as channel:
        export: Any = channel.unary_unary(_METHOD)  # without a serializer: the body is encoded already
        await export(body)
