"""Zone egress: which calls leave a zone through its egresses, where these are, and what policies see of them.

An egress belongs to a zone and serves all meshes that have mTLS: it has an identity in each of them, and
callers show theirs. A mesh sends calls to external services through it with `routing.zoneEgress`. What an
egress offers does not depend on that switch, so that it is ready before the first call is sent its way.
"""

from typing import Final

from koguma.core import cross_mesh_services, match, rules, spiffe, world
from koguma.core.build import addresses, external, network, overlays, tls
from koguma.core.build.addresses import Endpoint
from koguma.core.incremental import Db, question
from koguma.core.match import Traits
from koguma.core.rules import ProxyClass
from koguma.core.world import Reach, pairs
from koguma.model import tags
from koguma.model.overlay import OverlayContext
from koguma.model.resource import Key
from koguma.model.schema import Json

KIND: Final = "ZoneEgress"
_ANY_PORT: Final = "10002"
SERVICE: Final = "zone-egress"  # by which an egress is known in every mesh, as in Kuma
LABEL: Final = "kuma.io/listener-zoneegress"  # that selectors see on every egress, as in Kuma 3


def identity(mesh: str) -> str:
    """The SPIFFE id of the egresses in a mesh."""
    return spiffe.service_id(mesh, SERVICE)


@question
def is_used(db: Db, mesh: str) -> bool:
    """Whether a mesh sends calls to external services through an egress; that needs mTLS."""
    resource = world.RESOURCES.get(db, Key("Mesh", "", "", "", mesh))
    routing = (resource.spec.get("routing") or {}) if resource else {}
    return bool(routing.get("zoneEgress")) and tls.mtls(db, mesh) is not None


@question
def allows_by_server_name(db: Db, mesh: str) -> bool:
    """Whether only a permission that names an external service lets callers call it."""
    resource = world.RESOURCES.get(db, Key("Mesh", "", "", "", mesh))
    routing = (resource.spec.get("routing") or {}) if resource else {}
    return bool(routing.get("defaultForbidMeshExternalServiceAccess"))


def carries(db: Db, destination: Key) -> bool:
    """Whether calls to a destination go through an egress.

    Passthrough ones do not: only the caller's own proxy knows the address to which they were sent.
    """
    if destination.kind != "MeshExternalService" or not is_used(db, destination.mesh):
        return False
    return not external.is_passthrough(db, destination) and not is_gateway(db, destination)


def is_gateway(db: Db, destination: Key) -> bool:
    """Whether this is a gateway of another mesh, which callers call themselves."""
    return cross_mesh_services.gateway(db, destination) is not None


@question
def endpoints_in(db: Db, zone: str) -> tuple[Endpoint, ...]:
    """The egresses of a zone that take calls."""
    keys = (key for key in world.BY_KIND.keys(db, (KIND, "")) if key.zone == zone)
    return tuple(sorted({each for key in keys if (each := _endpoint(db, key)) is not None}))


@question
def _endpoint(db: Db, egress: Key) -> Endpoint | None:
    """Where an egress is called; None before its Envoy has its configuration, or without an IP."""
    resource = world.RESOURCES.get(db, egress)
    if resource is None or network.is_starting(resource):
        return None
    networking = resource.spec.get("networking") or {}
    address = networking.get("address") or network.LOOPBACK
    return Endpoint(address, networking.get("port") or 0, egress.zone) if addresses.is_ip(address) else None


# What an egress serves.


@question
def meshes(db: Db) -> tuple[str, ...]:
    """The meshes in which an egress has an identity: those with mTLS."""
    return tuple(key.name for key in world.BY_KIND.keys(db, ("Mesh", "")) if tls.mtls(db, key.name))


@question
def services(db: Db, mesh: str) -> tuple[tuple[Key, str], ...]:
    """The ports of external services that egresses of this zone serve."""
    return tuple(
        (key, port.section)
        for key in world.BY_KIND.keys(db, ("MeshExternalService", mesh))
        if not external.is_passthrough(db, key) and not is_gateway(db, key)
        for port in _ports(db, key)
    )


def _ports(db: Db, key: Key) -> tuple[world.Port, ...]:
    destination = world.destination(db, key)
    return destination.ports if destination else ()


def uris(mesh: str, zone: str) -> tuple[str, ...]:
    """The identities of an egress in a mesh: those of a service of its name in its zone."""
    by_tag = [(tags.SERVICE, SERVICE), *([(tags.ZONE, zone)] if zone else [])]
    return identity(mesh), *(spiffe.tag_id(tag, value) for tag, value in by_tag)


# What policies see of it.


@question
def traits(db: Db, egress: Key, mesh: str) -> Traits | None:
    """What selectors of a mesh see of an egress: a proxy with one inbound and the tags of its identity."""
    proxy, resource = world.proxy(db, egress), world.RESOURCES.get(db, egress)
    if proxy is None or resource is None:
        return None
    own = pairs({tags.SERVICE: SERVICE, tags.ZONE: egress.zone})
    own_labels = pairs({**dict(proxy.labels), LABEL: "enabled"})
    mentions = match.mentioned(db, mesh, match.keys_of(own, own_labels))
    return Traits(
        mesh=mesh,
        type=match.EGRESS,
        is_builtin=False,
        gateway=None,
        zone=egress.zone,
        origin=proxy.origin,
        namespace="",
        name="",
        labels=match.some(own_labels, mentions.labels),
        inbounds=((section(resource.spec), match.visible_tags(proxy, own, mentions)),),
        gateway_tags=(),
    )


@question
def is_forbidden(db: Db, destination: Key, section_: str, zone: str, uris: tuple[str, ...]) -> bool:
    """Whether a caller may not call an external service that it calls directly.

    It is asked as an egress of the zone would be, whether there is one or not.
    """
    if not uris or destination.kind != "MeshExternalService" or is_gateway(db, destination):
        return False
    own, own_labels = pairs({tags.SERVICE: SERVICE, tags.ZONE: zone}), pairs({LABEL: "enabled"})
    mentions = match.mentioned(db, destination.mesh, match.keys_of(own, own_labels))
    nobody = Traits(
        mesh=destination.mesh,
        type=match.EGRESS,
        is_builtin=False,
        gateway=None,
        zone=zone,
        origin="zone",
        namespace="",
        name="",
        labels=match.some(own_labels, mentions.labels),
        inbounds=((_ANY_PORT, match.some(own, mentions.tags)),),
        gateway_tags=(),
    )
    where = OverlayContext("tcp", destination.mesh, zone, allows_by_server_name=True)
    server_name = tls.server_name(db, destination, section_)
    return not overlays.is_permitted(db, nobody, _ANY_PORT, where, uris, server_name)


@question
def shown_uris(db: Db, proxy: Key) -> tuple[str, ...]:
    """The identities of a proxy where its mesh asks who calls external services; empty where it does not."""
    asks = allows_by_server_name(db, proxy.mesh) and tls.mtls(db, proxy.mesh) is not None
    return spiffe.identity(db, proxy) if asks else ()


def section(spec: Json) -> str:
    """The name of the one inbound of an egress: its port."""
    return str((spec.get("networking") or {}).get("port") or 0)


@question
def proxy_class(db: Db, own_traits: Traits) -> ProxyClass:
    """The class of egresses with these traits, in the mesh that the traits are of."""
    of_traits = rules.policies_of(db, own_traits)
    return ProxyClass(own_traits.mesh, own_traits.zone, own_traits.namespace, of_traits, Reach())
