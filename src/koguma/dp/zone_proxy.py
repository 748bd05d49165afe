"""Zone proxy: the ZoneEgress or ZoneIngress of a proxy, from flags."""

from collections.abc import Mapping
from typing import Final

import msgspec

from koguma.dp import dataplane
from koguma.dp.dataplane import LOOPBACK, BadDataplane, DataplaneProxy
from koguma.identity import proxy_types
from koguma.identity.proxy_types import ProxyType
from koguma.model.schema import Json

# The flags of the fields of ZoneProxyFlags.
FLAG_NAMES: Final[Mapping[str, str]] = {
    **{name: dataplane.FLAG_NAMES[name] for name in ("name", "address", "port", "admin_port", "labels")},
    **dataplane.INGRESS_FLAG_NAMES,
}


class ZoneProxyFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags that describe a zone proxy."""

    name: str
    address: str = ""
    port: int = 0
    advertised_address: str = ""  # where other zones call an ingress; where it listens, unless said
    advertised_port: int = 0
    admin_port: int = 0
    labels: Mapping[str, str] = {}


def from_flags(proxy_type: ProxyType, flags: ZoneProxyFlags) -> DataplaneProxy:
    """A zone proxy that flags describe; without a port, one whose object is stored already."""
    if not flags.port:
        unused = [name for name in FLAG_NAMES if name not in ("name", "port") and getattr(flags, name)]
        if unused:
            names = ", ".join(FLAG_NAMES[name] for name in unused)
            raise BadDataplane(f"{names} describes a new {proxy_type.kind}: say with --port where it listens")
        return DataplaneProxy("", flags.name, None, proxy_type)
    networking: dict[str, Json] = {"address": flags.address or LOOPBACK, "port": flags.port}
    if proxy_type is proxy_types.INGRESS:
        networking["advertisedAddress"] = flags.advertised_address or flags.address or LOOPBACK
        networking["advertisedPort"] = flags.advertised_port or flags.port
    networking |= dataplane.admin(flags.admin_port)
    resource: dict[str, Json] = {"type": proxy_type.kind, "name": flags.name}
    if flags.labels:
        resource["labels"] = dict(sorted(flags.labels.items()))
    return DataplaneProxy("", flags.name, {**resource, "networking": networking}, proxy_type)
