"""Zone ingress: where other zones are called, and what the ingresses of this zone serve.

An ingress belongs to a zone and serves all meshes that have mTLS. It finds a service by server name and ends
no TLS, so the proxy of the service itself sees who calls. A caller needs only an address of the other zone.
"""

from collections.abc import Iterator
from typing import Final

from koguma.core import world
from koguma.core.build import tls
from koguma.core.build.addresses import Endpoint, is_ip
from koguma.core.incremental import Db, question
from koguma.core.world import pairs
from koguma.model import tags
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

KIND: Final = "ZoneIngress"
_ADDRESS_KIND: Final = "MeshZoneAddress"


def is_remote(db: Db, service: Key) -> bool:
    """Whether a service is of another zone, so that it is called through an ingress of that zone."""
    here = world.control_plane(db)
    return bool(service.zone) and not here.is_global and service.zone != here.zone


@question
def endpoints_of(db: Db, mesh: str, zone: str) -> tuple[Endpoint, ...]:
    """Where services of a mesh in another zone are called, each address once; nowhere without mTLS.

    An ingress is published by its zone once it is ready, so what is known here is ready.
    """
    if tls.mtls(db, mesh) is None:
        return ()
    own = pairs({tags.ZONE: zone})
    known = ((address, port) for _, address, port in advertised(db, mesh, zone))
    addresses = {(address, port) for address, port in known if is_ip(address) and port}
    return tuple(Endpoint(address, port, zone, own) for address, port in sorted(addresses))


def advertised(db: Db, mesh: str, zone: str) -> Iterator[tuple[Resource, str, int]]:
    """The addresses and ports at which a zone says that it is called, each with the object that says so."""
    for key, resource in world.BY_KIND.items(db, (KIND, "")):
        if key.zone == zone:
            networking: Json = resource.spec.get("networking") or {}
            yield (
                resource,
                networking.get("advertisedAddress") or "",
                networking.get("advertisedPort") or 0,
            )
    for key, resource in world.BY_KIND.items(db, (_ADDRESS_KIND, mesh)):
        if key.zone == zone:
            yield resource, resource.spec.get("address") or "", resource.spec.get("port") or 0


@question
def services(db: Db, mesh: str) -> tuple[tuple[Key, str], ...]:
    """The ports that ingresses of this zone serve: of its own services, and of those of several zones."""
    keys = (
        key
        for kind in ("MeshService", "MeshMultiZoneService")
        for key in world.BY_KIND.keys(db, (kind, mesh))
        if not is_remote(db, key)
    )
    found = ((key, world.destination(db, key)) for key in keys)
    return tuple((key, port.section) for key, each in found if each is not None for port in each.ports)
