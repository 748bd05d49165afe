"""Insight of a mesh: its proxies by health, type, version and CA, its objects by kind, its services."""

from collections.abc import Iterable, Mapping
from typing import Final

from koguma.fleet.insights import proxy_health, service_insight
from koguma.fleet.insights.proxy_health import HealthCounts
from koguma.fleet.insights.service_insight import (
    EXTERNAL,
    GATEWAY_BUILTIN,
    GATEWAY_DELEGATED,
    ServiceCounts,
    StateOf,
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
    """The proxies of a mesh, counted in one walk."""

    def __init__(self, dataplanes: Iterable[Resource], state_of: StateOf) -> None:
        self.proxies = HealthCounts()
        self.by_type: CountsByWord = {
            word: HealthCounts() for word in (STANDARD, _GATEWAY, *PROXY_TYPES.values())
        }
        self._by_agent: CountsByWord = {}
        self._by_envoy: CountsByWord = {}
        self._by_issuer: CountsByWord = {}
        self._by_trusted: CountsByWord = {}
        found: dict[str, ServiceCounts] = {}
        for dataplane in dataplanes:
            state = state_of(dataplane.key)
            self._add(dataplane, state)
            service_insight.count(found, dataplane, state)
        self.services = dict(sorted(found.items()))

    def _add(self, dataplane: Resource, state: ProxyState | None) -> None:
        is_connected = state is not None and state.is_connected
        health = proxy_health.of_dataplane(dataplane.spec, is_connected=is_connected)
        gateway = proxy_health.networking(dataplane.spec).get("gateway")
        counted = [self.proxies]
        if gateway is None:
            counted.append(self.by_type[STANDARD])
        else:
            type_ = PROXY_TYPES[service_insight.gateway_type(gateway)]
            counted += (self.by_type[_GATEWAY], self.by_type[type_])
        if state is not None:
            counted += _of_words(self._by_agent, (state.versions.agent,))
            counted += _of_words(self._by_envoy, (state.versions.envoy,))
            certificate = state.certificate if is_connected else None
            if certificate is not None:
                counted += _of_words(self._by_issuer, (certificate.backend,))
                counted += _of_words(self._by_trusted, certificate.backends)
        for counts in counted:
            counts.add(health)

    def spec(self, policies: Mapping[str, int], resources: Mapping[str, int]) -> dict[str, Json]:
        """The spec of a MeshInsight, with numbers of policies and of all objects by kind."""
        external = sum(1 for service in self.services.values() if service.type == EXTERNAL)
        services = {
            "total": len(self.services),
            "internal": len(self.services) - external,
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


def _of_words(counts: CountsByWord, words: Iterable[str]) -> list[HealthCounts]:
    """The counts of these words, made where there are none yet; what a proxy does not say is not counted."""
    return [counts.setdefault(word, HealthCounts()) for word in words if word]


def _shown(counts: CountsByWord) -> dict[str, Json]:
    return {word: each.shown for word, each in sorted(counts.items())}


def totals(numbers: Mapping[str, int]) -> dict[str, Json]:
    """Numbers by kind, as insights have them; kinds of which there is nothing are left out."""
    return {kind: {"total": number} for kind, number in sorted(numbers.items()) if number}
