"""Latencies: a histogram of Envoy in its own buckets, so that those of many proxies add up to one.

Envoy keeps two significant digits of each value. Percentiles that each Envoy computed by itself could not be
added; buckets can.
"""

from collections.abc import Iterable
from typing import Self

import msgspec


class Bucket(msgspec.Struct, frozen=True, order=True):
    """How many values are between two bounds; a width of zero is one value exactly."""

    lower_bound: float
    width: float
    count: int


class Histogram(msgspec.Struct, frozen=True):
    """Values by bucket, in order."""

    buckets: tuple[Bucket, ...] = ()

    @classmethod
    def sum(cls, histograms: Iterable[Self]) -> Self:
        """All values of several histograms."""
        counts: dict[tuple[float, float], int] = {}
        for histogram in histograms:
            for bucket in histogram.buckets:
                bounds = bucket.lower_bound, bucket.width
                counts[bounds] = counts.get(bounds, 0) + bucket.count
        return cls(tuple(Bucket(*bounds, count) for bounds, count in sorted(counts.items())))

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(bucket.count for bucket in self.buckets)

    def quantile(self, share: float) -> float | None:
        """The value below which this share of all values is; None where there are no values."""
        rank, before = share * self.count, 0
        for bucket in self.buckets:
            if bucket.count and before + bucket.count >= rank:
                return bucket.lower_bound + bucket.width * (rank - before) / bucket.count
            before += bucket.count
        return None
