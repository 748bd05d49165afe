"""Insights of services: how many proxies serve each service of a mesh, and in which health they are.

A service is named as generated MeshServices are (`core/services`): by the tag `kuma.io/service` of an
inbound or a gateway, or without such tags by the proxy's label `kuma.io/workload`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from koguma.fleet.insights import proxy_health
from koguma.fleet.insights.proxy_health import HealthCounts, ProxyHealth
from koguma.fleet.proxy_state import ProxyState
from koguma.kinds import service_probe
from koguma.kinds.insights import SERVICE_TYPES
from koguma.model import labels, tags
from koguma.model.resource import Resource
from koguma.model.schema import Json

INTERNAL, EXTERNAL, GATEWAY_DELEGATED, GATEWAY_BUILTIN = SERVICE_TYPES

_COUNTED: Final = ("total", "online", "offline")
_STATUSES: Final = {
    ProxyHealth.ONLINE: "online",
    ProxyHealth.OFFLINE: "offline",
    ProxyHealth.PARTIALLY_DEGRADED: "partially_degraded",
}


class ServiceCounts:
    """The proxies of one service."""

    __slots__ = ("_backends", "_zones", "proxies", "type")

    def __init__(self, type_: str) -> None:
        self.type = type_
        self.proxies = HealthCounts()
        self._backends: Counter[str] = Counter()
        self._zones: set[str] = set()

    def add(self, health: ProxyHealth, zone: str, backend: str) -> None:
        """Count one more proxy, with the backend that issued its certificate."""
        self.proxies.add(health)
        if zone:
            self._zones.add(zone)
        if backend:
            self._backends[backend] += 1

    @property
    def health(self) -> ProxyHealth:
        """The health of the service: online where all of its proxies are, offline where none is."""
        proxies = self.proxies
        if proxies.of(ProxyHealth.ONLINE) == proxies.total:
            return ProxyHealth.ONLINE
        is_offline = proxies.of(ProxyHealth.OFFLINE) == proxies.total
        return ProxyHealth.OFFLINE if is_offline else ProxyHealth.PARTIALLY_DEGRADED

    @property
    def spec(self) -> dict[str, Json]:
        """The spec of a ServiceInsight. Kuma's has no word for proxies that are degraded in part."""
        counts = {
            word: number
            for word, number in self.proxies.shown.items()
            if word in ("total", "online", "offline")
        }
        return {
            "status": _STATUSES[self.health],
            "dataplanes": counts,
            **({"issuedBackends": dict(sorted(self._backends.items()))} if self._backends else {}),
            **({"serviceType": self.type} if self.type != INTERNAL else {}),
            **({"zones": sorted(self._zones)} if self._zones else {}),
        }


def count(found: dict[str, ServiceCounts], dataplane: Resource, state: ProxyState | None) -> None:
    """Count a Dataplane for each service that it serves."""
    is_connected = state is not None and state.is_connected
    certificate = state.certificate if state is not None and is_connected else None
    zone = zone_of(dataplane)
    for name, type_, are_ready in _served(dataplane):
        health = proxy_health.of_parts(are_ready) if is_connected else ProxyHealth.OFFLINE
        service = found.get(name)
        if service is None:
            service = found[name] = ServiceCounts(type_)
        service.add(health, zone, certificate.backend if certificate is not None else "")


def _served(dataplane: Resource) -> Iterator[tuple[str, str, list[bool]]]:
    """The services of a Dataplane: name, type, and which of its parts that serve it are ready."""
    gateway = proxy_health.networking(dataplane.spec).get("gateway")
    workload = dataplane.labels.get(labels.WORKLOAD, "")
    if gateway is not None:
        name = _service_tag(gateway) or workload
        if name:
            yield name, gateway_type(gateway), [True]
        return
    parts = [(_service_tag(inbound), inbound) for inbound in proxy_health.inbounds(dataplane.spec)]
    if not any(name for name, _ in parts):
        parts = [(workload, inbound) for _, inbound in parts]
    by_name: dict[str, list[bool]] = {}
    for name, inbound in parts:
        if name:
            by_name.setdefault(name, []).append(service_probe.is_ready(inbound))
    for name, are_ready in by_name.items():
        yield name, INTERNAL, are_ready


def gateway_type(gateway: Mapping[str, Json]) -> str:
    """The type of a gateway, in the words of service insights."""
    return GATEWAY_BUILTIN if gateway.get("type") == "BUILTIN" else GATEWAY_DELEGATED


def _service_tag(part: Mapping[str, Json]) -> str:
    return str((part.get("tags") or {}).get(tags.SERVICE) or "")


def zone_of(dataplane: Resource) -> str:
    """The zone of a Dataplane."""
    return dataplane.zone or dataplane.labels.get(labels.ZONE, "")
