"""Proto JSON: small Envoy messages that every builder needs, as plain data.

Plain data is the JSON form of a protobuf message, with the field names of its .proto file as in Envoy's YAML.
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
    """A message packed into `google.protobuf.Any`; `type_` is its full name."""
    return {"@type": TYPE_PREFIX + type_, **fields}


def extension(name: str, type_: str, /, **fields: Any) -> Data:
    """A TypedExtensionConfig: a name, and its typed configuration."""
    return {"name": name, "typed_config": typed(type_, **fields)}


def address(ip: str, port: int) -> Data:
    """A SocketAddress (TCP)."""
    return {"socket_address": {"address": ip, "port_value": port}}


def pipe(path: str) -> Data:
    """A Pipe: the address of a unix socket."""
    return {"pipe": {"path": path}}


def sds(name: str) -> Data:
    """An SdsSecretConfig: a secret that Envoy fetches by name over ADS."""
    return {"name": name, "sds_config": ADS}


# By default Envoy trusts `x-forwarded-for`. A client that writes 127.0.0.1 there counts as internal, and its
# x-envoy-* headers then set timeouts, retries and stat names. Here the header is trusted only from an address
# that no connection can have, and it is forwarded to the service unchanged.
NO_PROXY_IN_FRONT: Final[Data] = extension(
    "envoy.http.original_ip_detection.xff",
    "envoy.extensions.http.original_ip_detection.xff.v3.XffConfig",
    xff_trusted_cidrs={"cidrs": [{"address_prefix": "255.255.255.255", "prefix_len": 32}]},
    skip_xff_append=True,
)
