"""Metrics of the API, in a registry of their own, so that two control planes in one process do not mix."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """What the API counts. Labels come from a closed set, so that no caller can make series without end."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "koguma_api_requests_total",
            "Requests that were answered.",
            ("method", "endpoint", "code"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "koguma_api_request_seconds",
            "Time to answer a request; watches are not in it.",
            ("method", "endpoint"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._bound: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def observe(self, method: str, endpoint: str, code: int, seconds: float) -> None:
        """Count one answered request."""
        bound = self._bound.get((method, endpoint, code))
        if bound is None:
            bound = (
                self._requests.labels(method, endpoint, str(code)),
                self._seconds.labels(method, endpoint),
            )
            self._bound[method, endpoint, code] = bound
        bound[0].inc()
        if endpoint != "watch":
            bound[1].observe(seconds)

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
