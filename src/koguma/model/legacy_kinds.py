"""Kuma's older kinds that Koguma does not have, and what is written in their place today.

They come with old files and old habits, so that whoever uses one is told its successor rather than that the
kind is unknown.
"""

from collections.abc import Mapping
from typing import Final

SUCCESSORS: Final[Mapping[str, str]] = {
    "CircuitBreaker": "MeshCircuitBreaker",
    "ExternalService": "MeshExternalService",
    "FaultInjection": "MeshFaultInjection",
    "HealthCheck": "MeshHealthCheck",
    "MeshGatewayRoute": "MeshHTTPRoute or MeshTCPRoute with targetRef kind MeshGateway",
    "ProxyTemplate": "MeshProxyPatch",
    "RateLimit": "MeshRateLimit",
    "Retry": "MeshRetry",
    "Timeout": "MeshTimeout",
    "TrafficLog": "MeshAccessLog",
    "TrafficPermission": "MeshTrafficPermission",
    "TrafficRoute": "MeshHTTPRoute or MeshTCPRoute",
    "TrafficTrace": "MeshTrace",
    "VirtualOutbound": "HostnameGenerator, which names the MeshServices it selects",
}
_BY_WORD: Final = {name.lower(): name for name in SUCCESSORS}


def successor(word: str) -> str:
    """What to write instead of an older kind, by any of its words; empty where the word means none."""
    plain = word.lower().replace("-", "")  # kumactl's plurals have hyphens: traffic-routes
    singulars = (plain, plain.removesuffix("s"), plain.removesuffix("ies") + "y")
    name = next((_BY_WORD[each] for each in singulars if each in _BY_WORD), None)
    return f"{name} is one of Kuma's older kinds; use {SUCCESSORS[name]}" if name is not None else ""
