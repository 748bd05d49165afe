"""Proxy health: whether a proxy is online, offline or partially degraded, and how many proxies are each.

The rule is Kuma's: a gateway is online while it is connected; any other proxy also needs inbounds that take
calls. One difference: a connected proxy that has nothing to serve is online here. In Kuma it is offline for
ever, though nothing is wrong with it.
"""

from collections.abc import Iterator
from enum import Enum

from koguma.kinds import service_probe
from koguma.model.schema import Json


class ProxyHealth(Enum):
    """How a proxy is, in the words of Kuma's counts."""

    ONLINE = "online"
    OFFLINE = "offline"
    PARTIALLY_DEGRADED = "partiallyDegraded"


def of_dataplane(spec: Json, *, is_connected: bool) -> ProxyHealth:
    """The health of the proxy of a Dataplane."""
    if not is_connected:
        return ProxyHealth.OFFLINE
    if networking(spec).get("gateway") is not None:
        return ProxyHealth.ONLINE
    return of_parts([service_probe.is_ready(part) for part in served_parts(spec)])


def of_zone_proxy(*, is_connected: bool) -> ProxyHealth:
    """The health of a zone ingress or egress."""
    return ProxyHealth.ONLINE if is_connected else ProxyHealth.OFFLINE


def of_parts(are_ready: list[bool]) -> ProxyHealth:
    """The health of what consists of these parts; where there is none, nothing is missing."""
    if all(are_ready):
        return ProxyHealth.ONLINE
    return ProxyHealth.PARTIALLY_DEGRADED if any(are_ready) else ProxyHealth.OFFLINE


def networking(spec: Json) -> Json:
    """The networking of a Dataplane; empty where it has none."""
    found = spec.get("networking")
    return found if isinstance(found, dict) else {}


def inbounds(spec: Json) -> Iterator[Json]:
    """The inbounds of a Dataplane but those that it ignores."""
    return (
        inbound
        for inbound in networking(spec).get("inbound") or ()
        if inbound.get("state") != service_probe.IGNORED
    )


def served_parts(spec: Json) -> Iterator[Json]:
    """Whatever of a Dataplane takes calls: inbounds, and listeners for other zones."""
    yield from inbounds(spec)
    yield from networking(spec).get("listeners") or ()


class HealthCounts:
    """How many proxies, or services, are in which health."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = dict.fromkeys(ProxyHealth, 0)

    def add(self, health: ProxyHealth) -> None:
        """Count one more."""
        self._counts[health] += 1

    def add_all(self, others: "HealthCounts") -> None:
        """Count all that others have counted."""
        for health in ProxyHealth:
            self._counts[health] += others.of(health)

    def of(self, health: ProxyHealth) -> int:
        """How many are in that health."""
        return self._counts[health]

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self._counts.values())

    @property
    def full(self) -> dict[str, Json]:
        """All numbers, as the global insight has them."""
        return {**{health.value: number for health, number in self._counts.items()}, "total": self.total}

    @property
    def shown(self) -> dict[str, Json]:
        """The numbers that are not zero, as protocol buffers print them."""
        return {word: number for word, number in self.full.items() if number}
