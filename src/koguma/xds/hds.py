"""Health discovery (HDS): the messages of a proxy that checks the health of applications, and its session.

A stream begins with the node. The proxy is sent its health checks, and again whenever they change; from then
on it reports results at an interval, whether anything changed or not. Nothing here does I/O.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from koguma.envoy.encode import Encoder
from koguma.envoy.health import SPECIFIER, HealthCheck, specifier
from koguma.envoy.schema import Schema
from koguma.xds.messages import XdsNode, decode_node

SERVICE: Final = "envoy.service.health.v3.HealthDiscoveryService"
METHOD: Final = "StreamHealthCheck"

_REQUEST: Final = "envoy.service.health.v3.HealthCheckRequestOrEndpointHealthResponse"
# By envoy.config.core.v3.HealthStatus. UNKNOWN is absent: there is no result yet.
_IS_HEALTHY: Final[Mapping[int, bool]] = {
    1: True,  # HEALTHY
    2: False,  # UNHEALTHY
    3: False,  # DRAINING
    4: False,  # TIMEOUT
    5: True,  # DEGRADED
}

HealthReport = Mapping[str, bool]  # by check name


class HdsMessage(msgspec.Struct, frozen=True):
    """A message of a proxy: its node, or a report."""

    node: XdsNode | None = None
    report: HealthReport | None = None


class HdsDecoder:
    """Decodes messages of proxies."""

    def __init__(self, schema: Schema) -> None:
        self._class = schema.message_class(_REQUEST)

    def decode(self, data: bytes) -> HdsMessage:
        """The decoded message, or DecodeError."""
        message: Any = self._class.FromString(data)
        if message.HasField("endpoint_health_response"):
            return HdsMessage(report=_report(message.endpoint_health_response))
        request = message.health_check_request
        return HdsMessage(node=decode_node(request.node) if request.HasField("node") else None)


def _report(response: Any) -> HealthReport:
    """The results by check; a check with several endpoints is healthy if all of them are."""
    report: dict[str, bool] = {}
    for cluster in response.cluster_endpoints_health:
        for locality in cluster.locality_endpoints_health:
            for endpoint in locality.endpoints_health:
                is_healthy = _IS_HEALTHY.get(endpoint.health_status)
                if is_healthy is not None:
                    report[cluster.cluster_name] = report.get(cluster.cluster_name, True) and is_healthy
    return report


class HdsSession:
    """The health checks that one proxy was sent."""

    def __init__(self, encode: Callable[[tuple[HealthCheck, ...]], bytes]) -> None:
        self._encode = encode
        self._sent: tuple[HealthCheck, ...] | None = None

    def next_message(self, checks: tuple[HealthCheck, ...]) -> bytes | None:
        """The message to send if the health checks have changed; else None."""
        if checks == self._sent:
            return None
        self._sent = checks
        return self._encode(checks)

    def current(self, report: HealthReport) -> HealthReport:
        """The results of current checks; those of checks that are no longer wanted are dropped."""
        names = {check.name for check in self._sent or ()}
        return {name: is_healthy for name, is_healthy in report.items() if name in names}


def check_encoder(encoder: Encoder) -> Callable[[tuple[HealthCheck, ...]], bytes]:
    """A function that encodes health checks as a HealthCheckSpecifier."""
    return lambda checks: encoder.message(SPECIFIER, specifier(checks))
