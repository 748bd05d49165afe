"""Insight of a mesh: its proxies by health, type, version and CA, its objects by kind, its services."""

from collections.abc import Mapping
from typing import Final

from koguma.fleet.insights import proxy_health, service_insight
from koguma.fleet.insights.proxy_health import HealthCounts, ProxyHealth
from koguma.fleet.insights.service_insight import (
    EXTERNAL,
    GATEWAY_BUILTIN,
    GATEWAY_DELEGATED,
    ServiceCounts,
)
from koguma.fleet.proxy_state import ProxyState
from koguma.model.resource import Resource
from koguma.model.schema import Json

STANDARD: Final = "standard"
PROXY_TYPES: Final[Mapping[str, str]] = {  # in Kuma's words, by those of service insights
    GATEWAY_BUILTIN: "gatewayBuiltin",
    GATEWAY_DELEGATED: "gatewayDelegated",
}
_GATEWAY: Final = "gateway"  # of both types

CountsByWord = dict[str, HealthCounts]


class MeshCounts:
    """The proxies and services of a mesh, counted one by one."""

    def __init__(self) -> None:
        self.proxies = HealthCounts()
        self.by_type: CountsByWord = {
            word: HealthCounts() for word in (STANDARD, _GATEWAY, *PROXY_TYPES.values())
        }
        self._by_agent: CountsByWord = {}
        self._by_envoy: CountsByWord = {}
        self._by_issuer: CountsByWord = {}
        self._by_trusted: CountsByWord = {}
        self._services: dict[str, ServiceCounts] = {}

    @property
    def services(self) -> dict[str, ServiceCounts]:
        """The services of the mesh by name, in order of their names."""
        return dict(sorted(self._services.items()))

    def add(self, dataplane: Resource, state: ProxyState | None) -> None:
        """Count one more proxy."""
        service_insight.count(self._services, dataplane, state)
        is_connected = state is not None and state.is_connected
        health = proxy_health.of_dataplane(dataplane.spec, is_connected=is_connected)
        self.proxies.add(health)
        gateway = proxy_health.networking(dataplane.spec).get("gateway")
        if gateway is None:
            self.by_type[STANDARD].add(health)
        else:
            self.by_type[_GATEWAY].add(health)
            self.by_type[PROXY_TYPES[service_insight.gateway_type(gateway)]].add(health)
        if state is not None:
            _add(self._by_agent, state.versions.agent, health)
            _add(self._by_envoy, state.versions.envoy, health)
        if state is not None and is_connected and state.certificate is not None:
            _add(self._by_issuer, state.certificate.backend, health)
            for backend in state.certificate.backends:
                _add(self._by_trusted, backend, health)

    def spec(self, policies: Mapping[str, int], resources: Mapping[str, int]) -> dict[str, Json]:
        """The spec of a MeshInsight, with numbers of policies and of all objects by kind."""
        external = sum(1 for service in self._services.values() if service.type == EXTERNAL)
        services = {
            "total": len(self._services),
            "internal": len(self._services) - external,
            "external": external,
        }
        return {
            "dataplanes": self.proxies.shown,
            "dataplanesByType": {word: counts.shown for word, counts in self.by_type.items()},
            "policies": totals(policies),
            "resources": totals(resources),
            "dpVersions": {"kumaDp": _shown(self._by_agent), "envoy": _shown(self._by_envoy)},
            "mTLS": {
                "issuedBackends": _shown(self._by_issuer),
                "supportedBackends": _shown(self._by_trusted),
            },
            "services": {word: number for word, number in services.items() if number},
        }


def _add(counts: CountsByWord, word: str, health: ProxyHealth) -> None:
    """Count a proxy under a word; what it does not say is not counted."""
    found = counts.get(word)
    if found is None and word:
        found = counts[word] = HealthCounts()
    if found is not None:
        found.add(health)


def _shown(counts: CountsByWord) -> dict[str, Json]:
    return {word: each.shown for word, each in sorted(counts.items())}


def totals(numbers: Mapping[str, int]) -> dict[str, Json]:
    """Numbers by kind, as insights have them; kinds of which there is nothing are left out."""
    return {kind: {"total": number} for kind, number in sorted(numbers.items()) if number}
