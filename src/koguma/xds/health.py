"""Health discovery (HDS): what a proxy says about the health of applications, read into plain values.

A stream begins with who the proxy is. It is sent what to check, and again whenever that changes; from then on
it reports at an interval, whether anything changed or not. What to do is decided here, without I/O.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from koguma.envoy.encode import Encoder
from koguma.envoy.health import SPECIFIER, HealthCheck, specifier
from koguma.envoy.schema import Schema
from koguma.xds.messages import Node, read_node

SERVICE: Final = "envoy.service.health.v3.HealthDiscoveryService"
METHOD: Final = "StreamHealthCheck"

_REQUEST: Final = "envoy.service.health.v3.HealthCheckRequestOrEndpointHealthResponse"
# Of envoy.config.core.v3.HealthStatus. UNKNOWN is absent: then nothing was found out yet.
_HEALTHY: Final[Mapping[int, bool]] = {
    1: True,  # HEALTHY
    2: False,  # UNHEALTHY
    3: False,  # DRAINING
    4: False,  # TIMEOUT
    5: True,  # DEGRADED
}

HealthReport = Mapping[str, bool]


class HealthMessage(msgspec.Struct, frozen=True):
    """What a proxy says: who it is, or what it found by the names of checks."""

    node: Node | None = None
    report: HealthReport | None = None


class HealthReader:
    """Reads what proxies send."""

    def __init__(self, schema: Schema) -> None:
        self._class = schema.message_class(_REQUEST)

    def read(self, data: bytes) -> HealthMessage:
        """What the bytes say; DecodeError where they say nothing."""
        message: Any = self._class.FromString(data)
        if message.HasField("endpoint_health_response"):
            return HealthMessage(report=_report(message.endpoint_health_response))
        request = message.health_check_request
        return HealthMessage(node=read_node(request.node) if request.HasField("node") else None)


def _report(response: Any) -> HealthReport:
    """What was found; an address that is checked twice is healthy where it always was."""
    found: dict[str, bool] = {}
    for cluster in response.cluster_endpoints_health:
        for locality in cluster.locality_endpoints_health:
            for endpoint in locality.endpoints_health:
                is_healthy = _HEALTHY.get(endpoint.health_status)
                if is_healthy is not None:
                    found[cluster.cluster_name] = found.get(cluster.cluster_name, True) and is_healthy
    return found


class HealthSession:
    """What one proxy was told to check, and what to tell it next."""

    def __init__(self, encode: Callable[[tuple[HealthCheck, ...]], bytes]) -> None:
        self._encode = encode
        self._told: tuple[HealthCheck, ...] | None = None

    def next_message(self, checks: tuple[HealthCheck, ...]) -> bytes | None:
        """What to send, where the proxy is to check something else than before."""
        if checks == self._told:
            return None
        self._told = checks
        return self._encode(checks)

    def known(self, report: HealthReport) -> HealthReport:
        """What is said about checks that the proxy was told; one of an earlier time counts for nothing."""
        names = {check.name for check in self._told or ()}
        return {name: is_healthy for name, is_healthy in report.items() if name in names}


def encoder_of(encoder: Encoder) -> Callable[[tuple[HealthCheck, ...]], bytes]:
    """How checks become bytes."""
    return lambda checks: encoder.message(SPECIFIER, specifier(checks))
