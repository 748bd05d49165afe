"""Traffic: requests, errors and latencies of services and of proxies, from two samples of Envoys' stats.

A service is seen by its callers: their clusters count what they asked and what came of it, also where nobody
could answer. A proxy is seen by itself: its inbounds (or, at a gateway, listeners), and what it calls.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from koguma.envoy import stats
from koguma.envoy.latencies import Histogram
from koguma.envoy.stats import Figures, Sample, Scope

_INBOUND: Final = ("kri_dp_", "kri_mgw_")
_CALLED: Final = ("kri_msvc_", "kri_extsvc_", "kri_mzsvc_")


class ProxySamples(msgspec.Struct, frozen=True):
    """Two samples of one Envoy, and the seconds between them."""

    before: Sample
    after: Sample
    seconds: float

    def increases(self) -> Iterator[tuple[Scope, Figures]]:
        """What came between them, by scope."""
        for scope, figures in self.after.items():
            yield scope, stats.increase(self.before.get(scope, Figures()), figures)


class Rates(msgspec.Struct, frozen=True, rename="camel"):
    """What came per second; latencies are in milliseconds, and None where no request ended lately."""

    requests: float = 0.0
    errors: float = 0.0  # answers with a status of 5xx, also those that Envoy gave itself
    connections: float = 0.0
    connect_failures: float = 0.0
    resets: float = 0.0
    p50_ms: float | None = msgspec.field(default=None, name="p50Ms")
    p99_ms: float | None = msgspec.field(default=None, name="p99Ms")


class _Total:
    """Adds up the increases of several scopes and proxies, each over its own time."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._latencies: list[Histogram] = []
        self.n_proxies = 0

    def add(self, figures: Figures, seconds: float) -> None:
        """Add what came in some seconds."""
        for name, value in figures.counters.items():
            self._sums[name] = self._sums.get(name, 0.0) + value / seconds
        self._latencies.append(figures.latencies)

    def sum(self, *names: str) -> float:
        """What counters of these names have counted together, per second."""
        return round(sum(self._sums.get(name, 0.0) for name in names), 3)

    def _quantile(self, share: float) -> float | None:
        value = Histogram.sum(self._latencies).quantile(share)
        return None if value is None else round(value, 2)

    def called(self) -> Rates:
        """The rates of clusters."""
        return Rates(
            requests=self.sum("upstream_rq_completed"),
            errors=self.sum("upstream_rq_5xx"),
            connections=self.sum("upstream_cx_total"),
            connect_failures=self.sum("upstream_cx_connect_fail"),
            resets=self.sum("upstream_rq_rx_reset"),
            p50_ms=self._quantile(0.5),
            p99_ms=self._quantile(0.99),
        )

    def served(self, application: "_Total") -> Rates:
        """The rates of inbounds; `application` has their clusters, which lead to the application."""
        return Rates(
            requests=self.sum("downstream_rq_total"),
            errors=self.sum("downstream_rq_5xx"),
            connections=self.sum("downstream_cx_total"),
            connect_failures=application.sum("upstream_cx_connect_fail"),
            resets=self.sum("downstream_rq_rx_reset"),
            p50_ms=self._quantile(0.5),
            p99_ms=self._quantile(0.99),
        )


class ServiceTraffic(msgspec.Struct, frozen=True):
    """A service as its callers see it; `n_callers` of them have called it between the samples."""

    kri: str  # without a section: all ports together
    rates: Rates
    n_callers: int


class ProxyTraffic(msgspec.Struct, frozen=True):
    """A proxy: what it serves, with failed connections to its own application, and what it calls."""

    served: Rates
    called: Rates


def of_services(proxies: Iterable[ProxySamples]) -> tuple[ServiceTraffic, ...]:
    """The services that the proxies call, the busiest first."""
    totals: dict[str, _Total] = {}
    for samples in proxies:
        calling: set[str] = set()
        for (sort, kri), figures in samples.increases():
            if sort == stats.CLUSTER and kri.startswith(_CALLED):
                service = without_section(kri)
                totals.setdefault(service, _Total()).add(figures, samples.seconds)
                if figures["upstream_rq_completed"] or figures["upstream_cx_total"]:
                    calling.add(service)
        for service in calling:
            totals[service].n_proxies += 1
    rows = (ServiceTraffic(kri, total.called(), total.n_proxies) for kri, total in totals.items())
    return tuple(sorted(rows, key=lambda row: (-row.rates.requests, -row.rates.connections, row.kri)))


def of_proxy(samples: ProxySamples) -> ProxyTraffic:
    """What one proxy serves and calls."""
    served, application, called = _Total(), _Total(), _Total()
    for (sort, kri), figures in samples.increases():
        is_inbound = kri.startswith(_INBOUND)
        if is_inbound:
            (application if sort == stats.CLUSTER else served).add(figures, samples.seconds)
        elif sort == stats.CLUSTER and kri.startswith(_CALLED):
            called.add(figures, samples.seconds)
    return ProxyTraffic(served.served(application), called.called())


def without_section(kri: str) -> str:
    """The KRI of the object that a section is of."""
    return f"{kri.rpartition('_')[0]}_"


def rates_json(rates: Rates) -> Mapping[str, float | None]:
    """Rates as the API shows them."""
    shown: Mapping[str, float | None] = msgspec.to_builtins(rates)
    return shown
