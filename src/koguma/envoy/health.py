"""Health: the health checks that an Envoy performs for the control plane, as a HealthCheckSpecifier.

Envoy fetches it over the health discovery service (HDS), checks the addresses and reports the results.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from koguma.envoy.proto_json import Data, address

SPECIFIER: Final = "envoy.service.health.v3.HealthCheckSpecifier"
REPORT_INTERVAL: Final = "5s"  # between two reports of an Envoy; Kuma's default

# Kuma's defaults of a check.
_TIMEOUT: Final = "2s"
_INTERVAL: Final = "1s"


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One address to check: whether it accepts connections or, with a path, whether it answers with 200."""

    name: str
    address: str
    port: int
    path: str = ""
    source: str = ""  # the source address of the check; empty: any
    timeout: str = _TIMEOUT
    interval: str = _INTERVAL
    healthy_threshold: int = 1
    unhealthy_threshold: int = 1


def specifier(checks: Iterable[HealthCheck]) -> Data:
    """The specifier of these checks."""
    return {"cluster_health_checks": [_cluster(check) for check in checks], "interval": REPORT_INTERVAL}


def _cluster(check: HealthCheck) -> Data:
    kind: Data = {"http_health_check": {"path": check.path}} if check.path else {"tcp_health_check": {}}
    source = {"source_address": {"address": check.source, "port_value": 0}}
    return {
        "cluster_name": check.name,
        "locality_endpoints": [{"endpoints": [{"address": address(check.address, check.port)}]}],
        "health_checks": [
            {
                "timeout": check.timeout,
                "interval": check.interval,
                "no_traffic_interval": check.interval,
                "healthy_threshold": check.healthy_threshold,
                "unhealthy_threshold": check.unhealthy_threshold,
                **kind,
            }
        ],
        **({"upstream_bind_config": source} if check.source else {}),
    }
