"""Serving: the inbounds that serve a destination, ready or not, and why a port has none.

For people: it is what `build.endpoints` gives to callers, and what it leaves out, with the reason.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from koguma.core import other_zones, world
from koguma.core.build import addresses, encoding, endpoints, external, network, zone_egress, zone_ingress
from koguma.core.build.network import InboundNetworking
from koguma.core.incremental import Db
from koguma.core.world import Port
from koguma.envoy.cluster_hosts import host_and_port
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

_SHOWN_MAX: Final = 5


class ServingInbound(msgspec.Struct, frozen=True):
    """An inbound that a destination's port leads to; callers get its address unless `withheld` says why."""

    port: str  # of the destination: its section
    service: Key  # the MeshService that selects it; for a MeshMultiZoneService one of those behind it
    proxy: Key
    core_name: str
    kri: str  # of the inbound, by which its own Envoy knows it
    address: str
    application: str
    withheld: str = ""
    is_probed: bool = False
    modified_at: str = ""  # of its Dataplane


def inbounds(db: Db, destination: Key) -> tuple[ServingInbound, ...]:
    """The inbounds that serve a MeshService or MeshMultiZoneService; nobody in the mesh serves others."""
    return tuple(
        _serving(db, destination_port.section, service, key, inbound)
        for destination_port in _ports(db, destination)
        for service, section in _selecting(db, destination, destination_port)
        for key, inbound in endpoints.targets(db, service, section)
    )


def _ports(db: Db, destination: Key) -> tuple[Port, ...]:
    known = world.destination(db, destination)
    return known.ports if known else ()


def _selecting(db: Db, destination: Key, port: Port) -> Iterator[tuple[Key, str]]:
    """The MeshServices that a port leads to, each with the port that is meant."""
    match destination.kind:
        case "MeshService":
            yield destination, port.section
        case "MeshMultiZoneService":
            for key in endpoints.multi_zone_services(db, destination):
                service = world.destination(db, key)
                theirs = service.port(port.name or str(port.number)) if service else None
                if theirs is not None:
                    yield key, theirs.section


def outside(db: Db, destination: Key) -> Mapping[str, tuple[str, ...]]:
    """The endpoints that are no inbounds of this zone, by port: of other zones, or of a MeshExternalService.

    Names in the latter are resolved by callers.
    """
    if destination.kind != "MeshExternalService":
        elsewhere = tuple(sorted(other_zones.called(db, destination)))
        return {port.section: elsewhere for port in _ports(db, destination)}
    return {
        port.section: tuple(
            each.path or host_and_port(each.ip or each.address, each.port)
            for each in external.endpoints(db, destination, port.section)
        )
        for port in _ports(db, destination)
    }


def egresses(db: Db, destination: Key) -> Mapping[str, str]:
    """The zone egresses through which callers here call a destination: core names by address."""
    if not zone_egress.carries(db, destination):
        return {}
    zone, names = world.control_plane(db).zone, {}
    for key, resource in world.BY_KIND.items(db, (zone_egress.KIND, "")):
        networking = resource.spec.get("networking") or {}
        if key.zone == zone:
            address = networking.get("address") or network.LOOPBACK
            names[host_and_port(address, networking.get("port") or 0)] = resource.core_name
    return names


def _serving(db: Db, port: str, service: Key, proxy: Key, inbound: InboundNetworking) -> ServingInbound:
    resource = world.RESOURCES.get(db, proxy)
    assert resource is not None, proxy
    written = _written(resource, inbound)
    return ServingInbound(
        port=port,
        service=service,
        proxy=proxy,
        core_name=resource.core_name,
        kri=encoding.kri(db, proxy, inbound.section),
        address=host_and_port(inbound.reached_at, inbound.port),
        application=host_and_port(inbound.service_address, inbound.service_port),
        withheld=_withheld(resource, inbound, written),
        is_probed=written.get("serviceProbe") is not None,
        modified_at=resource.modification_time,
    )


def _written(resource: Resource, inbound: InboundNetworking) -> Json:
    """The inbound as its Dataplane has it."""
    written = (resource.spec.get("networking") or {}).get("inbound") or ()
    wanted = inbound.name, inbound.port
    return next((each for each in written if (each.get("name") or "", each.get("port") or 0) == wanted), {})


def _withheld(resource: Resource, inbound: InboundNetworking, written: Json) -> str:
    """Why callers do not get an inbound as an endpoint; empty where they do."""
    if not addresses.is_ip(inbound.reached_at):
        return f'"{inbound.reached_at}" is no IP, and Envoy needs one; write networking.address'
    if inbound.is_ready:
        return ""
    if network.is_starting(resource):
        return "its proxy has not acknowledged its configuration yet"
    if written.get("serviceProbe") is not None:
        return f"its probe fails: the application does not answer on {_application(inbound)}"
    return "its Dataplane says that it is not ready, or its proxy drains"


def _application(inbound: InboundNetworking) -> str:
    return host_and_port(inbound.service_address, inbound.service_port)


def obstacles(db: Db, destination: Key) -> tuple[str, ...]:
    """For each port that leads nowhere, a sentence why; none where every port leads to some inbound."""
    if destination.kind == "MeshExternalService":
        return tuple(_external_obstacles(db, destination))
    ports = _ports(db, destination)
    if not ports:
        return ("it has no ports, so nobody can call it; write spec.ports",)
    if destination.kind == "MeshMultiZoneService":
        return tuple(dict.fromkeys(_multi_zone_obstacles(db, destination, ports)))
    return tuple(dict.fromkeys(_service_obstacles(db, destination, ports)))


def _external_obstacles(db: Db, destination: Key) -> Iterator[str]:
    if zone_egress.carries(db, destination) and not zone_egress.endpoints_in(
        db, world.control_plane(db).zone
    ):
        yield "its mesh sends calls to it through zone egresses, and none is ready"
    for port in _ports(db, destination):
        cluster = external.of(db, destination, port.section)
        if cluster is not None and cluster.problem:
            yield f"port {port.section} cannot be built: {cluster.problem}"


def _multi_zone_obstacles(db: Db, destination: Key, ports: tuple[Port, ...]) -> Iterator[str]:
    services = endpoints.multi_zone_services(db, destination)
    if not services:
        yield "its selector (spec.selector.meshService.matchLabels) fits no MeshService"
        return
    for port in ports:
        selecting = tuple(_selecting(db, destination, port))
        if not selecting:
            word = port.name or str(port.number)
            yield f'none of its {len(services)} MeshServices has a port "{word}"'
        elif not any(_leads(db, key, section) for key, section in selecting):
            for key, section in selecting:
                own = world.port(db, key, section)
                yield from (f"{key}: {text}" for text in _service_obstacles(db, key, (own,) if own else ()))


def _leads(db: Db, service: Key, section: str) -> bool:
    """Whether a port of a MeshService leads anywhere: to an inbound of this zone, or to another zone."""
    if zone_ingress.is_remote(db, service):
        return not any(other_zones.obstacles(db, service))
    return any(True for _ in endpoints.targets(db, service, section))


def _service_obstacles(db: Db, service: Key, ports: tuple[Port, ...]) -> Iterator[str]:
    if zone_ingress.is_remote(db, service):
        yield from other_zones.obstacles(db, service)
        return
    selected = endpoints.selected(db, service)
    if not selected:
        yield from _unselected(db, service)
        return
    for port in ports:
        if next(endpoints.targets(db, service, port.section), None) is None:
            yield _untargeted(db, service, port, [key for key, _ in selected])


def _unselected(db: Db, service: Key) -> Iterator[str]:
    """Why a MeshService selects no Dataplane: the conditions, and how many fulfil each alone."""
    resource = world.RESOURCES.get(db, service)
    selector: Json = (resource.spec.get("selector") or {}) if resource else {}
    name = (selector.get("dataplaneRef") or {}).get("name")
    if name:
        yield f'its selector names Dataplane "{name}", and there is none in mesh "{service.mesh}"'
        return
    labels = (selector.get("dataplaneLabels") or {}).get("matchLabels") or {}
    conditions: Mapping[str, str] = {**labels, **(selector.get("dataplaneTags") or {})}
    if not conditions:
        yield "its selector is empty, so it selects no Dataplane; write spec.selector"
        return
    counts = {
        pair: len(network.BY_TAG.keys(db, (service.mesh, *pair))) for pair in sorted(conditions.items())
    }
    lacking = [f"{key}={value}" for (key, value), count in counts.items() if not count]
    if lacking:
        yield f'its selector fits nothing: no Dataplane of mesh "{service.mesh}" has {" or ".join(lacking)}'
        return
    each = ", ".join(f"{count} have {key}={value}" for (key, value), count in counts.items())
    zone = f" in zone {service.zone}" if service.zone else ""
    yield f"its selector fits no Dataplane{zone}: in the mesh {each}, and none has all of it on one inbound"


def _untargeted(db: Db, service: Key, port: Port, proxies: list[Key]) -> str:
    """Why a port of a MeshService leads to no inbound of the Dataplanes that it selects."""
    resource = world.RESOURCES.get(db, service)
    written = (resource.spec.get("ports") or ()) if resource else ()
    ports = ((each.get("name") or str(each.get("port") or 0), each) for each in written)
    target = next((each.get("targetPort") for section, each in ports if section == port.section), None)
    known: dict[str, None] = {}
    for key in proxies:
        where = network.networking(db, key)
        for inbound in where.inbounds if where else ():
            name = f'"{inbound.name}" ' if inbound.name else ""
            known[f"{name}{inbound.port} ({inbound.protocol})"] = None
    shown = ", ".join([*known][:_SHOWN_MAX]) or "none"
    shown_target = port.number if target is None else f'"{target}"' if isinstance(target, str) else target
    leads = f"port {port.section} leads to target port {shown_target}"
    return f"{leads}, which no Dataplane that it selects ({len(proxies)}) has; there are {shown}"
