"""Node metadata: what the node of a proxy's first request says about the proxy and its machine."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from koguma.core.build.network import NodeMetadata
from koguma.fleet.bootstrap_request import LOG_DIRECTORIES
from koguma.model import labels
from koguma.model.schema import Json
from koguma.xds.contract import ConnectRequest

REDIRECT_PORT_INBOUND: Final = 15006  # as Kuma, where redirection is on and no port is named
REDIRECT_PORT_OUTBOUND: Final = 15001


def node_metadata_of(metadata: Mapping[str, Json]) -> NodeMetadata:
    """How a proxy is reached, by its metadata; a value of another type counts as absent."""
    features = metadata.get("features")
    proxying = _mapping(metadata.get("transparentProxy"))
    redirect = _mapping(proxying.get("redirect"))
    has_dns = not redirect or _redirected(redirect.get("dns"), 1) != 0
    return NodeMetadata(
        features=_interned(tuple(sorted(map(str, features)))) if isinstance(features, list) else (),
        workdir=str(metadata.get("workdir") or ""),
        admin_port=_port(metadata.get("dataplane.admin.port")),
        dns_port=_port(metadata.get("dataplane.dns.port")) if has_dns else 0,
        has_ipv6=metadata.get("ipv6Enabled") is True,
        readiness_port=_port(metadata.get("dataplane.readinessReporter.port")),
        redirect_inbound=_redirected(redirect.get("inbound"), REDIRECT_PORT_INBOUND),
        redirect_outbound=_redirected(redirect.get("outbound"), REDIRECT_PORT_OUTBOUND),
        ip_family="IPv4" if str(proxying.get("ipFamilyMode") or "").lower() == "ipv4" else "",
        metrics_certificate=str(metadata.get("metricsCertPath") or ""),
        metrics_key=str(metadata.get("metricsKeyPath") or ""),
        log_directories=_directories(metadata.get(LOG_DIRECTORIES)),
    )


def _directories(value: Json) -> tuple[str, ...] | None:
    """Where Envoy may write files; None where the metadata has no such list."""
    return _interned(tuple(sorted(map(str, value)))) if isinstance(value, list) else None


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _redirected(flow: Json, default_port: int) -> int:
    """Where the kernel redirects one direction of traffic to; 0 where it does not."""
    fields = _mapping(flow)
    return (_port(fields.get("port")) or default_port) if fields.get("enabled") is True else 0


@lru_cache(maxsize=64)
def _interned(features: tuple[str, ...]) -> tuple[str, ...]:
    """One tuple for equal ones: all proxies of a version have the same features."""
    return features


def run_of(request: ConnectRequest, dataplane_labels: Mapping[str, str]) -> str:
    """Which run of a proxy this is: its instance label, or else its work directory."""
    return dataplane_labels.get(labels.INSTANCE) or str(request.metadata.get("workdir") or "")


def _port(value: Json) -> int:
    is_whole = isinstance(value, float) and value.is_integer()  # a protobuf Struct has no other numbers
    digits = str(int(value) if is_whole else value or "")
    return int(digits) if digits.isascii() and digits.isdigit() and int(digits) < 1 << 16 else 0
