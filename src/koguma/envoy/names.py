"""Names: Envoy resources that belong to no stored object: with the prefix `_kuma` and without `:`.

What belongs to a stored object is named by its KRI. `stat_prefix` always equals the name.
"""

from collections.abc import Iterable
from typing import Final

DNS: Final = "_kuma_dns"
ADMIN: Final = "_kuma_envoy_admin"
ADMIN_LOOPBACK: Final = "_kuma_envoy_admin_loopback"
READINESS: Final = "_kuma_readiness"
ADS: Final = "_kuma_ads"
ACCESS_LOG_SINK: Final = "_kuma_access_log_sink"  # the logger whose lines the agent forwards
ROUTE_DEFAULT: Final = "_kuma_route_default"
NOT_FOUND: Final = "_kuma_route_not_found"
MISDIRECTED: Final = "_kuma_route_misdirected"
DYNAMIC_CONFIG: Final = "_kuma_dynamicconfig"
METRICS: Final = "_kuma_metrics"
GATEWAY_LISTENERS: Final = "gateway.listeners"  # the runtime layer with limits of a gateway, as in Kuma

# A KRI in the name of a stat: six parts after its prefix, of which only the name may contain dots.
KRI_PATTERN: Final = r"(?:kri(?:_[^_.]*){4}_[^_]*_[^_.]*)"

# In the agent's directory: the socket on which it serves metrics, and the certificate for scraping.
METRICS_SOCKET: Final = "kuma-metrics.sock"
METRICS_CERTIFICATE: Final = "kuma-metrics-cert.pem"
METRICS_KEY: Final = "kuma-metrics-key.pem"


# A header from a sidecar to a zone egress: the request's host is as a route wants it, and stays.
EGRESS_HOST: Final = "x-kuma-egress-host"
EGRESS_HOST_KEPT: Final = "kept"

_PROXY_OWN: Final = ("kri_dp_", "kri_ze_", "_kuma_")


def is_proxy_own(name: str) -> bool:
    """Whether a resource is most likely one proxy's own: of its Dataplane or ZoneEgress, or internal."""
    return name.startswith(_PROXY_OWN)


def subset(kri: str, tags: Iterable[tuple[str, str]]) -> str:
    """The name of the listener and routes of an outbound to a subset of a service's endpoints.

    The KRI alone is the name for the whole service, which may be called too.
    """
    return f"{kri}:{','.join(f'{name}={value}' for name, value in tags)}"


def resource(name: str) -> str:
    """The KRI in the name of an Envoy resource."""
    return name.partition(":")[0]


def virtual_host(routes: str, host: str) -> str:
    """The name of a virtual host that is sent apart from its route configuration, as VHDS has it."""
    return f"{routes}/{host}"


def routes_of(virtual_host: str) -> str:
    """The route configuration of a virtual host that is sent apart."""
    return virtual_host.rpartition("/")[0]


def passthrough(direction: str, family: int) -> str:
    """The listener and cluster of passthrough traffic."""
    return f"_kuma_passthrough_{direction}_ipv{family}"


def is_redirected(name: str) -> bool:
    """Whether a listener or its routes are for redirected calls to all of the outside."""
    return name.startswith("_kuma_passthrough_outbound_")


def is_of_gateway(name: str) -> bool:
    """Whether a listener or its routes are a gateway's, where many services meet."""
    return name.startswith("kri_mgw_")


def on_host(listener: str, hostname: str) -> str:
    """The filter chain and routes of one host name of a gateway's listener."""
    return f"{listener}:{hostname}"


def permission(section: str) -> str:
    """The RBAC filter of an inbound, sent apart (ECDS) so that it acts at once."""
    return f"_kuma_permission_{section}"


def connection_limit(section: str) -> str:
    """The connection limit of an inbound, sent apart too."""
    return f"_kuma_connection_limit_{section}"
