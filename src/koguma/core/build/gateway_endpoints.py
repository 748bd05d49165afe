"""Gateway endpoints: where proxies of other meshes reach the proxies of a gateway, and who these are."""

from collections.abc import Iterable, Iterator

from koguma.core import match, spiffe, world
from koguma.core.build import addresses, network
from koguma.core.build.addresses import Endpoint
from koguma.core.incremental import Db, question
from koguma.core.inputs import Index
from koguma.core.world import pairs
from koguma.model import tags
from koguma.model.resource import Key, Resource


def _mesh_of_built_in(key: Key, resource: Resource) -> Iterable[str]:
    is_built_in = key.kind == "Dataplane" and match.is_built_in(resource)
    return (key.mesh,) if is_built_in else ()


_BUILT_IN = Index(world.RESOURCES, _mesh_of_built_in)


@question
def proxies(db: Db, gateway: Key) -> tuple[Key, ...]:
    """The proxies that serve a gateway."""
    return tuple(key for key in _BUILT_IN.keys(db, gateway.mesh) if _serves(db, key, gateway))


@question
def _serves(db: Db, key: Key, gateway: Key) -> bool:
    proxy = world.proxy(db, key)
    return proxy is not None and match.gateway_of(db, key.mesh, key.zone, proxy.gateway_tags) == gateway


@question
def of_port(db: Db, gateway: Key, port: int, host: str) -> tuple[Endpoint, ...]:
    """The endpoints of a port of a gateway; with a host, requests to them are for it."""
    found = (_endpoint(db, key, port, host) for key in proxies(db, gateway))
    return tuple(sorted({each for each in found if each is not None}))


@question
def _endpoint(db: Db, key: Key, port: int, host: str) -> Endpoint | None:
    """Where a proxy is called; None before its Envoy has its configuration, or without an IP."""
    resource, proxy = world.RESOURCES.get(db, key), world.proxy(db, key)
    if resource is None or proxy is None or network.is_starting(resource):
        return None
    networking = resource.spec.get("networking") or {}
    address = networking.get("advertisedAddress") or networking.get("address") or network.LOOPBACK
    if not addresses.is_ip(address):
        return None
    zone = {tags.ZONE: key.zone} if key.zone else {}
    return Endpoint(address, port, key.zone, pairs({**dict(proxy.gateway_tags), **zone}), host)


@question
def identities(db: Db, gateway: Key) -> tuple[str, ...]:
    """The SPIFFE ids that a gateway's proxies may have: by the service in its selectors, or their own."""
    selected = {
        dict(required).get(tags.SERVICE, tags.ANY) for required in match.gateway_selectors(db, gateway)
    }
    services = set(_services(db, gateway)) if tags.ANY in selected else selected
    return tuple(sorted(spiffe.service_id(gateway.mesh, service) for service in services))


def _services(db: Db, gateway: Key) -> Iterator[str]:
    for key in proxies(db, gateway):
        proxy = world.proxy(db, key)
        yield from spiffe.services(proxy) if proxy else ()
