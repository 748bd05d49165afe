"""Stats: what an Envoy has counted for services and inbounds, read from its admin interface.

Counters count from Envoy's start. Of histograms, what came between its last two flushes is read (Envoy
flushes every five seconds), so that one answer is enough to say how slow requests are now.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import msgspec

from koguma.envoy import names
from koguma.envoy.latencies import Bucket, Histogram

# What is read of each scope that is about a service or an inbound.
_TRAFFIC: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster": (
        "upstream_rq_completed",  # also requests that Envoy answered itself because nobody could
        "upstream_rq_5xx",
        "upstream_rq_rx_reset",
        "upstream_rq_time",
        "upstream_cx_total",
        "upstream_cx_connect_fail",  # also those that timed out
    ),
    "http": (
        "downstream_cx_total",
        "downstream_rq_total",
        "downstream_rq_5xx",
        "downstream_rq_rx_reset",
        "downstream_rq_time",
    ),
    "tcp": ("downstream_cx_total",),
}
_OBSTACLES: Final = (  # why a cluster sends no requests
    "upstream_rq_pending_overflow",
    "upstream_cx_overflow",
    "upstream_cx_none_healthy",
    "lb_healthy_panic",
    r"circuit_breakers\.default\.(?:cx|rq|rq_pending)_open",
)
_LATENCIES: Final = ("upstream_rq_time", "downstream_rq_time")
_STAT: Final = re.compile(rf"(cluster|http|tcp)\.({names.KRI_PATTERN})\.([a-z0-9_.]+)")

COUNTER_LIMIT: Final = 2**64  # of Envoy; what is beyond is no counter of it
CLUSTER: Final = "cluster"
HTTP: Final = "http"
TCP: Final = "tcp"


class UnreadableAnswer(ValueError):
    """An Envoy, or somebody in its place, has answered what is no answer to the question."""


class Figures(msgspec.Struct, frozen=True):
    """What an Envoy has counted in one scope, and its latencies in milliseconds."""

    counters: Mapping[str, int] = {}
    latencies: Histogram = Histogram()

    def __getitem__(self, name: str) -> int:
        return self.counters.get(name, 0)


Scope = tuple[str, str]  # sort (cluster, http, tcp) and KRI
Sample = Mapping[Scope, Figures]


def traffic_path() -> str:
    """Where Envoy's admin interface has the traffic of all services and inbounds, as far as there was any."""
    scopes = (rf"{scope}\.{names.KRI_PATTERN}\.(?:{'|'.join(stats)})" for scope, stats in _TRAFFIC.items())
    return f"{_path('|'.join(scopes))}&usedonly&histogram_buckets=detailed"


def obstacles_path(kri: str) -> str:
    """Where it says why the clusters of an object send no requests; its KRI has no section."""
    return _path(rf"cluster\.{re.escape(kri)}[^_.]*\.(?:{'|'.join(_OBSTACLES)})")


def _path(pattern: str) -> str:
    return f"/stats?format=json&filter={quote(f'^(?:{pattern})$', safe='')}"


class _BucketJson(msgspec.Struct):
    lower_bound: float
    width: float
    count: int


class _HistogramJson(msgspec.Struct):
    name: str
    intervals: list[_BucketJson] = []


class _HistogramsJson(msgspec.Struct):
    details: list[_HistogramJson] = []


class _StatJson(msgspec.Struct):
    name: str = ""
    value: int | float | str | None = None
    histograms: _HistogramsJson | None = None


class _StatsJson(msgspec.Struct):
    stats: list[_StatJson]


_decoder = msgspec.json.Decoder(_StatsJson)


def read(answer: bytes) -> Sample:
    """The figures by scope in an answer of `/stats`; raises UnreadableAnswer."""
    try:
        stats = _decoder.decode(answer).stats
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UnreadableAnswer(f"its answer about stats cannot be read: {error}") from None
    counters: dict[Scope, dict[str, int]] = {}
    latencies: dict[Scope, Histogram] = {}
    for stat in stats:
        for histogram in stat.histograms.details if stat.histograms else ():
            place = _place(histogram.name)
            if place is not None and place[1] in _LATENCIES:
                latencies[place[0]] = _histogram(histogram)
        place = _place(stat.name)
        if place is not None and isinstance(stat.value, int) and 0 <= stat.value < COUNTER_LIMIT:
            counters.setdefault(place[0], {})[place[1]] = stat.value
    scopes = dict.fromkeys((*counters, *latencies))
    return {
        scope: Figures(counters.get(scope, {}), latencies.get(scope, Figures().latencies)) for scope in scopes
    }


def _place(name: str) -> tuple[Scope, str] | None:
    """The scope and the rest of a stat's name; None for what is about no service or inbound."""
    matched = _STAT.fullmatch(name)
    return ((matched[1], matched[2]), matched[3]) if matched else None


def _histogram(read_histogram: _HistogramJson) -> Histogram:
    return Histogram(
        tuple(
            sorted(
                Bucket(bucket.lower_bound, bucket.width, bucket.count)
                for bucket in read_histogram.intervals
                if 0 < bucket.count < COUNTER_LIMIT
                and 0 <= bucket.lower_bound < COUNTER_LIMIT
                and 0 <= bucket.width < COUNTER_LIMIT
            )
        )
    )


def increase(before: Figures, after: Figures) -> Figures:
    """What came between two samples; where Envoy was started anew between them, what came since then."""
    counters = {
        name: value - before[name] if value >= before[name] else value
        for name, value in after.counters.items()
    }
    return Figures(counters, after.latencies)
