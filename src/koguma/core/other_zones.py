"""Other zones: the ingresses through which a destination is called there, and why it cannot be.

For people, as `serving`: the proxies behind an ingress are known to their own zone only.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from koguma.core.build import endpoints, tls, zone_ingress
from koguma.core.build.addresses import Endpoint
from koguma.core.incremental import Db
from koguma.envoy.cluster_hosts import host_and_port
from koguma.model.resource import Key


class OtherZone(msgspec.Struct, frozen=True):
    """An address at which another zone is called, and who has it: an ingress, or a MeshZoneAddress."""

    address: str
    zone: str
    core_name: str
    obstacle: str = ""  # why nobody there answers, by what the zone says


def called(db: Db, destination: Key) -> Mapping[str, OtherZone]:
    """Where callers here call a destination in other zones, by address; nowhere on Global."""
    is_several = destination.kind == "MeshMultiZoneService"
    services = endpoints.multi_zone_services(db, destination) if is_several else (destination,)
    by_zone: dict[str, list[Key]] = {}
    for each in services:
        if zone_ingress.is_remote(db, each):
            by_zone.setdefault(each.zone, []).append(each)
    known = (
        each for zone in sorted(by_zone) for each in _addresses(db, destination.mesh, zone, by_zone[zone])
    )
    return {each.address: each for each in known}


def _addresses(db: Db, mesh: str, zone: str, services: Iterable[Key]) -> Iterator[OtherZone]:
    found = [next(obstacles(db, each), "") for each in services]
    obstacle = found[0] if all(found) else ""
    for where in zone_ingress.endpoints_of(db, mesh, zone):
        address = host_and_port(where.address, where.port)
        yield OtherZone(address, zone, _owner(db, mesh, where), obstacle)


def _owner(db: Db, mesh: str, where: Endpoint) -> str:
    for resource, address, port in zone_ingress.advertised(db, mesh, where.zone):
        if (address, port) == (where.address, where.port):
            return resource.core_name
    return ""


def obstacles(db: Db, service: Key) -> Iterator[str]:
    """Why a MeshService of another zone cannot be called from here."""
    zone = f'zone "{service.zone}"'
    if tls.mtls(db, service.mesh) is None:
        yield f'it is of {zone}, and other zones are called with mTLS only; mesh "{service.mesh}" has none'
    elif not zone_ingress.endpoints_of(db, service.mesh, service.zone):
        yield f"{zone} has no ingress that is ready; start one there: koguma dp run --proxy-type ingress"
    elif not endpoints.is_reported_available(db, service):
        yield f"{zone} says that none of its proxies can be called; ask there: koguma get endpoints"
