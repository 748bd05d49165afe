"""Cross-mesh services: how listeners of gateways for other meshes are called there.

Every other mesh with mTLS has a derived MeshExternalService for each host name of such listeners
(`crossMesh`). Its name is the host name, its ports are those of the listeners, and a change of the gateway's
proxies changes no more than endpoints. What is stored goes first: in a mesh that has a MeshExternalService of
this name none is derived. A host name leads to one gateway, that of the oldest MeshGateway with it.
"""

import hashlib
import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from koguma.core import gateways, identity, world
from koguma.core.build import tls
from koguma.core.gateways import GATEWAY
from koguma.core.incremental import Db, question
from koguma.core.inputs import Index
from koguma.model import hostname, ip_range, labels, names
from koguma.model.derived import DerivedResource
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import item

KIND: Final = "MeshExternalService"
TYPE: Final = "CrossMesh"  # of the destination; no user can write it

_Ports = tuple[tuple[int, int], ...]  # of listeners, each with the listener's number in the gateway


def _stored_keys(key: Key, resource: Resource) -> Iterable[Key]:
    return (key,) if key.kind == KIND and not isinstance(resource, DerivedResource) else ()


_STORED = Index(world.RESOURCES, _stored_keys)


@question
def hosts(db: Db, gateway: Key) -> Mapping[str, _Ports]:
    """The host names by which other meshes call a gateway, with the ports of each."""
    by_host: dict[str, dict[int, int]] = {}
    for number, listener in enumerate(gateways.listeners(db, gateway)):
        if listener.is_cross_mesh and listener.protocol == "HTTP":
            host = gateways.called_name(gateway, listener)
            if names.is_subdomain(host):  # written under older rules
                by_host.setdefault(host, {}).setdefault(listener.port, number)
    return {host: tuple(sorted(ports.items())) for host, ports in by_host.items()}


class CalledGateway(NamedTuple):
    """The gateway that a host name leads to, and the address of this name."""

    gateway: Key
    address: str


@question
def called(db: Db) -> Mapping[str, CalledGateway]:
    """The gateways of all meshes that other meshes call, by host name."""
    claims = [
        (resource.creation_time, key, host)
        for key, resource in world.BY_KIND_EVERYWHERE.items(db, GATEWAY)
        for host in hosts(db, key)
    ]
    holders: dict[str, Key] = {}
    for _, key, host in sorted(claims):
        holders.setdefault(host, key)
    at = addresses(holders, ip_range.CROSS_MESH)
    return {host: CalledGateway(key, at[host]) for host, key in holders.items() if host in at}


def addresses(host_names: Iterable[str], of: ipaddress.IPv4Network) -> Mapping[str, str]:
    """An address for each name: by its hash, and of two with one hash the next free one for the second."""
    n_usable = of.num_addresses - 2
    taken: set[int] = set()
    found: dict[str, str] = {}
    for host in sorted(host_names)[:n_usable]:
        digest = hashlib.blake2b(host.encode(), digest_size=8).digest()
        offset = int.from_bytes(digest) % n_usable
        while offset in taken:
            offset = (offset + 1) % n_usable
        taken.add(offset)
        found[host] = str(of[offset + 1])
    return found


def derived(db: Db, gateway: Key) -> tuple[DerivedResource, ...]:
    """The external services by which other meshes call a gateway."""
    resource, own = world.RESOURCES.get(db, gateway), hosts(db, gateway)
    if resource is None or not own or tls.mtls(db, gateway.mesh) is None:
        return ()
    everywhere = called(db)
    return tuple(
        _service(service, resource, ports, everywhere[host].address)
        for host, ports in sorted(own.items())
        if host in everywhere and everywhere[host].gateway == gateway
        for mesh in callers(db, gateway)
        if not is_stored(db, service := key(db, mesh, host))
    )


def key(db: Db, mesh: str, host: str) -> Key:
    """The key of the service by which a mesh calls a host."""
    zone = identity.local_zone(world.kind_of(db, KIND), world.control_plane(db))
    return Key(KIND, mesh, zone, "", host)


def is_stored(db: Db, service: Key) -> bool:
    """Whether somebody has written an object of this key, which goes first."""
    return bool(_STORED.keys(db, service)) or world.UNREADABLE.get(db, service) is not None


def callers(db: Db, gateway: Key) -> Iterator[str]:
    """The meshes whose proxies can call a gateway: all others that have mTLS."""
    for mesh in world.BY_KIND.keys(db, ("Mesh", "")):
        if mesh.name != gateway.mesh and tls.mtls(db, mesh.name) is not None:
            yield mesh.name


def _service(key: Key, gateway: Resource, ports: _Ports, address: str) -> DerivedResource:
    match: list[Json] = [
        {"type": "InternalVIP", "value": key.name, "port": port, "protocol": "http"} for port, _ in ports
    ]
    places = (
        place
        for index, (_, number) in enumerate(ports)
        for place in _places(item("spec.match", index), item("conf.listeners", number))
    )
    return DerivedResource(
        kind=key.kind,
        mesh=key.mesh,
        zone=key.zone,
        name=key.name,
        core_name=key.name,
        labels={labels.DISPLAY_NAME: key.name, labels.MESH: key.mesh},
        spec={"match": match, "destination": {"type": TYPE}},
        status={"vips": [{"ip": address, "hostname": key.name}]},
        creation_time=gateway.creation_time,
        source=gateway.key,
        paths=tuple(places),
    )


def _places(match: str, listener: str) -> Iterator[tuple[str, str]]:
    yield match, listener
    yield f"{match}.value", f"{listener}.hostname"


@question
def gateway(db: Db, service: Key) -> Key | None:
    """The MeshGateway that a derived external service leads to; None for any other destination."""
    resource = world.RESOURCES.get(db, service) if service.kind == KIND else None
    return resource.source if isinstance(resource, DerivedResource) else None


@question
def has_own_host(db: Db, service: Key) -> bool:
    """Whether the listeners of a derived external service are for one host, which is its name."""
    source = gateway(db, service)
    listeners = gateways.listeners(db, source) if source else ()
    return any(each.hostname == hostname.normal(service.name) for each in listeners if each.is_cross_mesh)
