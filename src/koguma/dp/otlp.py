"""OTLP: metrics in OpenTelemetry's form, and the way to its collectors.

The messages are described in the Envoy that runs here, so nothing else has to be installed to write them.
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

from koguma.dp.exposition import Family
from koguma.dp.metrics import Metrics, Otel
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


def samples(family: Family) -> Iterator[Sample]:
    """The samples of a family: name, labels and value; lines that cannot be read are left out."""
    for line in family.samples:
        found = _SAMPLE.match(line)
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        yield (
            found[1],
            tuple((name, _unescaped(text)) for name, text in _LABEL.findall(found[2] or "")),
            value,
        )


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text) if "\\" in text else text


def request(pages: Iterable[Mapping[str, Family]], about: Mapping[str, str], now_ns: int) -> Data:
    """All metrics as one request; `about` is who sends."""
    made = [metric for page in pages for family in page.values() if (metric := _metric(family, now_ns))]
    scope = {"scope": {"name": "koguma"}, "metrics": made}
    named = {
        "service.name": about.get("service", ""),
        **{f"kuma.{name}": text for name, text in about.items()},
    }
    resource = {"attributes": _attributes(tuple((name, text) for name, text in named.items() if text))}
    return {"resource_metrics": [{"resource": resource, "scope_metrics": [scope]}]}


def _metric(family: Family, now_ns: int) -> Data | None:
    found = list(samples(family))
    if not found:
        return None
    about: Data = {"name": family.name}
    if family.help:
        about["description"] = family.help
    match family.type:
        case "counter":
            points = [_point(labels, value, now_ns) for _, labels, value in found]
            body = {"data_points": points, "aggregation_temporality": _CUMULATIVE, "is_monotonic": True}
            return {**about, "sum": body}
        case "histogram":
            points = [_histogram(labels, parts, now_ns) for labels, parts in _grouped(family, found, "le")]
            return {**about, "histogram": {"data_points": points, "aggregation_temporality": _CUMULATIVE}}
        case "summary":
            points = [
                _summary(labels, parts, now_ns) for labels, parts in _grouped(family, found, "quantile")
            ]
            return {**about, "summary": {"data_points": points}}
        case _:
            return {
                **about,
                "gauge": {"data_points": [_point(labels, value, now_ns) for _, labels, value in found]},
            }


def _attributes(labels: Labels) -> list[Data]:
    return [{"key": name, "value": {"string_value": value}} for name, value in labels]


def _point(labels: Labels, value: float, now_ns: int) -> Data:
    return {"attributes": _attributes(labels), "time_unix_nano": now_ns, "as_double": value}


class _Parts:
    """What belongs to one histogram or summary."""

    def __init__(self) -> None:
        self.by: list[tuple[float, float]] = []  # bound or quantile, and its value
        self.sum = 0.0
        self.count = 0


def _grouped(family: Family, found: Iterable[Sample], by: str) -> Iterable[tuple[Labels, _Parts]]:
    groups: dict[Labels, _Parts] = {}
    for name, labels, value in found:
        rest = tuple(pair for pair in labels if pair[0] != by)
        parts = groups.setdefault(rest, _Parts())
        bound = next((text for label, text in labels if label == by), None)
        if bound is not None:
            parts.by.append((float(bound), value))
        elif name == f"{family.name}_sum":
            parts.sum = value
        elif name == f"{family.name}_count":
            parts.count = int(value)
    return groups.items()


def _histogram(labels: Labels, parts: _Parts, now_ns: int) -> Data:
    """Counts of buckets, which Prometheus adds up from the smallest on."""
    ordered = sorted(parts.by)
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


def _summary(labels: Labels, parts: _Parts, now_ns: int) -> Data:
    values = [{"quantile": quantile, "value": value} for quantile, value in sorted(parts.by)]
    return {
        "attributes": _attributes(labels),
        "time_unix_nano": now_ns,
        "count": parts.count,
        "sum": parts.sum,
        "quantile_values": values,
    }


class Push:
    """Sends metrics to every collector that the control plane names, each in its own rhythm."""

    def __init__(self, metrics: Metrics, binary: Path) -> None:
        self._metrics = metrics
        self._binary = binary
        self._silent: set[str] = set()

    async def run(self) -> None:
        """Send for as long as this runs; other settings begin anew."""
        while True:
            self._metrics.changed.clear()
            sending = Background()
            for each in self._metrics.settings.collectors:
                sending.forever(f"metrics to {each.endpoint}", partial(self._send, each))
            try:
                await self._metrics.changed.wait()
            finally:
                await sending.stop()

    async def _send(self, collector: Otel) -> None:
        pause = max(duration.seconds(collector.refresh_interval), _SECONDS_MIN)
        while True:
            body = await self._body()
            try:
                async with asyncio.timeout(_SEND_SECONDS):
                    await _exported(collector.endpoint, body)
                problem = ""
            except (TimeoutError, OSError, aiohttp.ClientError, grpc.RpcError) as error:
                problem = _words(error)
            self._tell(collector.endpoint, problem)
            await asyncio.sleep(pause)

    async def _body(self) -> bytes:
        pages = await self._metrics.pages()
        about = self._metrics.settings.extra_labels

        def made() -> bytes:
            message = schema.load(self._binary).message_class(_REQUEST)
            return message(**request(pages, about, time.time_ns())).SerializeToString()

        return await asyncio.to_thread(made)

    def _tell(self, endpoint: str, problem: str) -> None:
        if problem and endpoint not in self._silent:
            self._silent.add(endpoint)
            _log.warning("metrics do not reach their collector", endpoint=endpoint, why=problem)
        elif not problem and endpoint in self._silent:
            self._silent.remove(endpoint)
            _log.info("metrics reach their collector again", endpoint=endpoint)


def _words(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


async def _exported(endpoint: str, body: bytes) -> None:
    """Send one request: over HTTP to a URL, else over gRPC."""
    if "://" in endpoint:
        headers = {"Content-Type": "application/x-protobuf"}
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.post(endpoint, data=body, headers=headers),
        ):
            return
    async with grpc.aio.insecure_channel(endpoint) as channel:
        export: Any = channel.unary_unary(_METHOD)  # bytes go as they are
        await export(body)
