"""Gateway: the Dataplane of a built-in gateway, from flags.

Such a proxy has no inbounds and no outbounds. It listens where the MeshGateway says that selects it by its
tags, at the address of its Dataplane.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from koguma.dp import dataplane
from koguma.dp.dataplane import DEFAULT_MESH, LOOPBACK, BadDataplane, DataplaneProxy
from koguma.model import tags

# The flags of the fields of GatewayFlags.
FLAG_NAMES: Final[Mapping[str, str]] = {
    name: dataplane.FLAG_NAMES[name]
    for name in ("name", "mesh", "service", "address", "admin_port", "tags", "labels")
}


class GatewayFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags that describe the Dataplane of a built-in gateway."""

    name: str
    mesh: str = DEFAULT_MESH
    service: str = ""  # the same as the tag kuma.io/service
    address: str = ""
    admin_port: int = 0
    tags: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}


def from_flags(flags: GatewayFlags) -> DataplaneProxy:
    """The built-in gateway that flags describe."""
    service = flags.tags.get(tags.SERVICE, flags.service)
    if not service:
        raise BadDataplane(
            f"--gateway needs --tag {tags.SERVICE}=NAME (or --service NAME), by which a MeshGateway selects"
            " the proxy; for a Dataplane that is stored already, give --name without --gateway"
        )
    if flags.service and service != flags.service:
        raise BadDataplane(
            f"--service {flags.service} and --tag {tags.SERVICE}={service} name two services; give one"
        )
    networking = {
        "address": flags.address or LOOPBACK,
        **dataplane.admin(flags.admin_port),
        "gateway": {"type": "BUILTIN", "tags": {tags.SERVICE: service, **flags.tags}},
    }
    return dataplane.described(flags.mesh, flags.name, flags.labels, {"networking": networking})


def check_file(proxy: DataplaneProxy, source: str) -> None:
    """Refuse a Dataplane that is no built-in gateway where --gateway says that it is one."""
    if not proxy.is_builtin_gateway:
        raise BadDataplane(
            f"{source}: --gateway needs a Dataplane whose networking.gateway.type is BUILTIN; leave out"
            " --gateway for any other"
        )
