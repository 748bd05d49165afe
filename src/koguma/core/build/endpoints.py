"""Endpoints: the proxies that serve a service, and their addresses.

A MeshService selects proxies by tags or labels; labels of a proxy count as tags of its inbounds. An inbound
that is not ready has no endpoint. A service of another zone is called at the ingresses of that zone. A change
here touches the endpoints of the services that select the proxy, and nothing else.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from koguma.core import spiffe, world
from koguma.core.build import network, tls, zone_ingress
from koguma.core.build.addresses import Endpoint, is_ip
from koguma.core.build.network import InboundNetworking
from koguma.core.incremental import Db, question
from koguma.core.world import Pairs, pairs
from koguma.model import tags
from koguma.model.resource import Key
from koguma.model.schema import Json


class _ServiceSelector(msgspec.Struct, frozen=True):
    """How a MeshService finds its proxies."""

    tags: Pairs = ()
    labels: Pairs = ()
    name: str = ""
    namespace: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.tags or self.labels or self.name)


@question
def _selector(db: Db, service: Key) -> _ServiceSelector:
    resource = world.RESOURCES.get(db, service)
    selector = (resource.spec.get("selector") or {}) if resource else {}
    ref = selector.get("dataplaneRef") or {}
    return _ServiceSelector(
        pairs(selector.get("dataplaneTags")),
        pairs((selector.get("dataplaneLabels") or {}).get("matchLabels")),
        ref.get("name") or "",
        service.namespace,
    )


@question
def _target_ports(db: Db, service: Key) -> Mapping[str, tuple[int | str, int]]:
    """The target port of each port of a MeshService, and the port's own number, by section."""
    resource = world.RESOURCES.get(db, service)
    target_ports = {}
    for port in (resource.spec.get("ports") or ()) if resource else ():
        number, name = port.get("port") or 0, port.get("name") or ""
        target = port.get("targetPort")
        target_ports[name or str(number)] = (number if target is None else target, number)
    return target_ports


@question
def selected(db: Db, service: Key) -> tuple[tuple[Key, tuple[str, ...]], ...]:
    """The proxies that a MeshService selects, each with the sections of the inbounds that it selects."""
    selector = _selector(db, service)
    if selector.is_empty:
        return ()
    return tuple(
        (key, sections)
        for key in _candidates(db, service.mesh, selector)
        if key.zone == service.zone and (sections := _sections(db, key, selector))
    )


def _candidates(db: Db, mesh: str, selector: _ServiceSelector) -> tuple[Key, ...]:
    """The proxies with the one tag or label of the selector that fewest proxies have."""
    if selector.name:
        there = world.BY_KIND.keys(db, ("Dataplane", mesh))
        return tuple(key for key in there if (key.namespace, key.name) == (selector.namespace, selector.name))
    conditions = (*selector.tags, *selector.labels)
    first = next(
        (pair for pair in conditions if pair[0] in (tags.SERVICE, "kuma.io/workload")), conditions[0]
    )
    return network.BY_TAG.keys(db, (mesh, *first))


def _sections(db: Db, key: Key, selector: _ServiceSelector) -> tuple[str, ...]:
    proxy = world.proxy(db, key)
    if proxy is None or not set(selector.labels) <= set(proxy.labels):
        return ()
    own = dict(proxy.labels)
    required_tags = set(selector.tags)
    return tuple(
        inbound.section
        for inbound in proxy.inbounds
        if required_tags <= set({**own, **dict(inbound.tags)}.items())
    )


@question
def of_service(db: Db, service: Key, section: str) -> tuple[Endpoint, ...]:
    """The endpoints of one port of a MeshService, sorted; of another zone, the ingresses of that zone."""
    if zone_ingress.is_remote(db, service):
        return zone_ingress.endpoints_of(db, service.mesh, service.zone)
    addresses = (
        _endpoint(key, inbound) for key, inbound in targets(db, service, section) if inbound.is_ready
    )
    return tuple(sorted(each for each in addresses if each is not None))


def targets(db: Db, service: Key, section: str) -> Iterator[tuple[Key, InboundNetworking]]:
    """The inbounds to which one port of a MeshService leads, each with its proxy, ready or not."""
    target, number = _target_ports(db, service).get(section, (None, 0))
    for key, sections in selected(db, service):
        for inbound in _target_inbounds(_inbounds(db, key), sections, target, number):
            yield key, inbound


def _target_inbounds(
    inbounds: Iterable[InboundNetworking], sections: Collection[str], target: int | str | None, number: int
) -> Sequence[InboundNetworking]:
    """The inbounds of a proxy to which a target port leads: by number, by name, or by protocol.

    A text that no inbound has as its name may be a protocol. Then the only inbound with this protocol is
    meant, or among several the one with the number of the service's own port.
    """
    selector = [inbound for inbound in inbounds if inbound.section in sections]
    named = [inbound for inbound in selector if target in (inbound.port, inbound.name, inbound.section)]
    if named or not target:
        return named
    alike = [inbound for inbound in selector if inbound.protocol == target]
    return alike if len(alike) == 1 else [inbound for inbound in alike if inbound.port == number]


@question
def _inbounds(db: Db, key: Key) -> tuple[InboundNetworking, ...]:
    where = network.networking(db, key)
    return where.inbounds if where else ()


def _endpoint(key: Key, inbound: InboundNetworking) -> Endpoint | None:
    if not is_ip(inbound.reached_at):
        return None
    # Every inbound has its zone as a tag, as in Kuma, where the control plane writes it there.
    zone = {tags.ZONE: key.zone} if key.zone else {}
    own = pairs({**dict(inbound.tags), **zone})
    return Endpoint(inbound.reached_at, inbound.port, key.zone, own)


@question
def multi_zone_services(db: Db, service: Key) -> tuple[Key, ...]:
    """The MeshServices behind a MeshMultiZoneService."""
    resource = world.RESOURCES.get(db, service)
    selector = ((resource.spec.get("selector") or {}).get("meshService") or {}) if resource else {}
    match_labels = pairs(selector.get("matchLabels"))
    return world.labelled(db, service.mesh, "MeshService", match_labels) if match_labels else ()


@question
def of_multi_zone(db: Db, service: Key, section: str) -> tuple[Endpoint, ...]:
    """The endpoints of one port of a MeshMultiZoneService: those of the same port of its services.

    Another zone in which nobody can be called is left out, unless there is nobody anywhere: what is known of
    other zones may be old.
    """
    is_everywhere = is_secured(db, service)  # other zones are called over mTLS or not at all
    behind = [
        (key, theirs)
        for key, theirs in _behind(db, service, section)
        if is_everywhere or not zone_ingress.is_remote(db, key)
    ]
    available = [(key, theirs) for key, theirs in behind if is_reported_available(db, key)]
    return _joined(db, available) or _joined(db, behind)


def _joined(db: Db, ports: Iterable[tuple[Key, str]]) -> tuple[Endpoint, ...]:
    return tuple(sorted({each for key, section in ports for each in of_service(db, key, section)}))


@question
def is_reported_available(db: Db, service: Key) -> bool:
    """Whether the zone of a MeshService says that it can be called there; this one knows for itself."""
    if not zone_ingress.is_remote(db, service):
        return True
    resource = world.RESOURCES.get(db, service)
    return resource is not None and resource.spec.get("state") != "Unavailable"


def is_available(db: Db, service: Key) -> bool:
    """Whether any port of a MeshService of this zone can be called."""
    return any(of_service(db, service, section) for section in _target_ports(db, service))


def _behind(db: Db, service: Key, section: str) -> Iterator[tuple[Key, str]]:
    """The ports behind a port of a MeshMultiZoneService."""
    own = world.destination(db, service)
    port = own.port(section) if own else None
    for key in multi_zone_services(db, service) if port else ():
        target = world.destination(db, key)
        theirs = target.port(port.name or str(port.number)) if target and port else None
        if theirs is not None:
            yield key, theirs.section


@question
def is_secured(db: Db, destination: Key) -> bool:
    """Whether calls of a destination are mTLS: always to another zone; in a permissive mesh once it is ready.

    Where services of several zones are one destination, those of this zone decide.
    """
    mtls = tls.mtls(db, destination.mesh)
    if mtls is None or not mtls.is_permissive:
        return mtls is not None
    is_several = destination.kind == "MeshMultiZoneService"
    services = multi_zone_services(db, destination) if is_several else (destination,)
    return all(tls.is_ready(db, each) for each in services if not zone_ingress.is_remote(db, each))


@question
def of_zone(db: Db, destination: Key, section: str) -> tuple[Endpoint, ...]:
    """The endpoints of a port in this zone, to which its ingresses lead."""
    if destination.kind != "MeshMultiZoneService":
        return of_service(db, destination, section)
    behind = _behind(db, destination, section)
    return _joined(db, ((key, theirs) for key, theirs in behind if not zone_ingress.is_remote(db, key)))


def of(db: Db, destination: Key, section: str) -> tuple[Endpoint, ...]:
    """The endpoints inside the mesh of a destination's port."""
    if destination.kind == "MeshMultiZoneService":
        return of_multi_zone(db, destination, section)
    return of_service(db, destination, section)


@question
def identities(db: Db, destination: Key) -> tuple[str, ...]:
    """The SPIFFE ids that a destination's proxies may have, sorted."""
    if destination.kind == "MeshMultiZoneService":
        services = multi_zone_services(db, destination)
        return tuple(sorted({each for key in services for each in identities(db, key)}))
    resource = world.RESOURCES.get(db, destination)
    listed = (resource.spec.get("identities") or ()) if resource else ()
    if listed:
        return tuple(sorted(_identity(destination.mesh, each) for each in listed))
    tag_values = service_tags(db, destination)
    return tuple(sorted(spiffe.service_id(destination.mesh, value) for value in tag_values))


@question
def service_tags(db: Db, service: Key) -> tuple[str, ...]:
    """The service tags by which the proxies of a MeshService of this zone are known, sorted."""
    named = dict(_selector(db, service).tags).get(tags.SERVICE)
    return (named,) if named else tuple(sorted(set(_tags_of_proxies(db, service))))


def _tags_of_proxies(db: Db, service: Key) -> Iterator[str]:
    for key, sections in selected(db, service):
        proxy = world.proxy(db, key)
        if proxy is None:
            continue
        inbounds = (dict(inbound.tags) for inbound in proxy.inbounds if inbound.section in sections)
        yield from {each[tags.SERVICE] for each in inbounds if each.get(tags.SERVICE)} or spiffe.services(
            proxy
        )


def _identity(mesh: str, identity: Json) -> str:
    value = str(identity.get("value") or "")
    return value if identity.get("type") == "SpiffeID" else spiffe.service_id(mesh, value)
