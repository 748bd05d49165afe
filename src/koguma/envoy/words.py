"""Words: small values of plain Envoy data that everybody builds with.

Plain data is Envoy's own JSON form with the names of its protos, as one writes Envoy's YAML.
"""

from functools import lru_cache
from typing import Any, Final

from koguma.model import duration

Data = dict[str, Any]

TYPE_PREFIX: Final = "type.googleapis.com/"
ADS: Final[Data] = {"ads": {}, "resource_api_version": "V3"}

_NS = 1_000_000_000


@lru_cache(maxsize=4096)  # a mesh has few durations, each in thousands of places
def seconds(text: str) -> str:
    """A duration as users write it (`1m30s`, `250ms`) in Envoy's form (`90s`, `0.25s`)."""
    whole, rest = divmod(duration.nanoseconds(text), _NS)
    return f"{whole}.{rest:09d}".rstrip("0") + "s" if rest else f"{whole}s"


def typed(type_: str, /, **fields: Any) -> Data:
    """A message that travels as Any; `type_` is its full name."""
    return {"@type": TYPE_PREFIX + type_, **fields}


def extension(name: str, type_: str, /, **fields: Any) -> Data:
    """An extension: a name, and its typed configuration."""
    return {"name": name, "typed_config": typed(type_, **fields)}


def address(ip: str, port: int) -> Data:
    """A TCP address."""
    return {"socket_address": {"address": ip, "port_value": port}}


def pipe(path: str) -> Data:
    """A unix socket."""
    return {"pipe": {"path": path}}


def sds(name: str) -> Data:
    """A secret that comes by itself, over ADS."""
    return {"name": name, "sds_config": ADS}


# By default Envoy believes `x-forwarded-for`, and whoever writes 127.0.0.1 there is internal to it: then his
# x-envoy headers set timeouts, retries and names of statistics. Here it is believed only if the connection
# comes from an address that none can come from, and the header reaches the service as it was sent.
NO_PROXY_IN_FRONT: Final[Data] = extension(
    "envoy.http.original_ip_detection.xff",
    "envoy.extensions.http.original_ip_detection.xff.v3.XffConfig",
    xff_trusted_cidrs={"cidrs": [{"address_prefix": "255.255.255.255", "prefix_len": 32}]},
    skip_xff_append=True,
)
