"""Names of what has no resource of its own: internal, with the prefix `_kuma` and without `:`.

What has a resource is named by its KRI. `stat_prefix` always equals the name.
"""

from collections.abc import Iterable
from typing import Final

DNS: Final = "_kuma_dns"
ADMIN: Final = "_kuma_envoy_admin"
ADMIN_LOOPBACK: Final = "_kuma_envoy_admin_loopback"
READINESS: Final = "_kuma_readiness"
ADS: Final = "_kuma_ads"
ROUTE_DEFAULT: Final = "_kuma_route_default"
DYNAMIC_CONFIG: Final = "_kuma_dynamicconfig"
METRICS: Final = "_kuma_metrics"

# In the directory of the agent beside Envoy: where it gives metrics, and the certificate for who scrapes.
METRICS_SOCKET: Final = "kuma-metrics.sock"
METRICS_CERTIFICATE: Final = "kuma-metrics-cert.pem"
METRICS_KEY: Final = "kuma-metrics-key.pem"


_OF_ONE: Final = ("kri_dp_", "_kuma_")


def is_of_one(name: str) -> bool:
    """Whether a name is of something that a proxy mostly has for itself: of its Dataplane, or internal."""
    return name.startswith(_OF_ONE)


def subset(kri: str, tags: Iterable[tuple[str, str]]) -> str:
    """The listener and routes of an outbound that asks for some endpoints of a service only.

    The service may be called as a whole too, so its name is taken.
    """
    return f"{kri}:{','.join(f'{name}={value}' for name, value in tags)}"


def resource(name: str) -> str:
    """The KRI in the name of something that has a resource."""
    return name.partition(":")[0]


def passthrough(direction: str, family: int) -> str:
    """The listener and cluster for traffic that nobody described."""
    return f"_kuma_passthrough_{direction}_ipv{family}"


def permission(section: str) -> str:
    """The filter that decides who may call an inbound; it comes by itself, so that it acts at once."""
    return f"_kuma_permission_{section}"


def connection_limit(section: str) -> str:
    """The filter that limits the connections of an inbound; it comes by itself too."""
    return f"_kuma_connection_limit_{section}"
