"""Metrics of the API, in a registry of their own, so that two control planes in one process do not mix."""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)

CONTENT_TYPE = CONTENT_TYPE_LATEST


class _Series:
    """The histogram of one label set; plain numbers, since every request updates it."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.seconds = 0.0


class Metrics(Collector):
    """What the API counts. Labels come from a closed set, so that no caller can make series without end."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._series: dict[tuple[str, str, int], _Series] = {}

    def observe(self, method: str, endpoint: str, code: int, seconds: float) -> None:
        """Count one request."""
        series = self._series.get((method, endpoint, code))
        if series is None:
            series = self._series[method, endpoint, code] = _Series()
        series.counts[bisect_left(_BUCKETS, seconds)] += 1
        series.seconds += seconds

    def collect(self) -> Iterator[Metric]:
        """The requests, by method, endpoint and status."""
        labels = ("method", "endpoint", "code")
        total = CounterMetricFamily("koguma_api_requests", "Requests that were answered.", labels=labels)
        times = HistogramMetricFamily(
            "koguma_api_request_seconds",
            "Time to answer a request; a watch counts when it ends.",
            labels=labels,
        )
        for (method, endpoint, code), series in sorted(self._series.items()):
            values = (method, endpoint, str(code))
            total.add_metric(values, sum(series.counts))
            bounds = [*(str(bound) for bound in _BUCKETS), "+Inf"]
            cumulative = list(zip(bounds, itertools.accumulate(series.counts), strict=True))
            times.add_metric(values, cumulative, series.seconds)
        yield total
        yield times

    def exposition(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self.registry)


class Gauges(Collector):
    """Numbers that are read when somebody scrapes: name, help, kind, and how to read it."""

    def __init__(self, read: Callable[[], Iterator[tuple[str, str, str, float]]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """The current values."""
        for name, text, kind, value in self._read():
            if kind == "counter":
                yield CounterMetricFamily(name, text, value=value)
            else:
                yield GaugeMetricFamily(name, text, value=value)
