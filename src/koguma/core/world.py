"""World: the proxies and destinations of a mesh, read from stored objects.

The inputs of the engine are the stored objects, the kinds, and which control plane this is. Specs are read as
users wrote them; nothing is filled in but what follows from the object itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final
from zlib import crc32

import msgspec

from koguma.core.incremental import Db, question
from koguma.core.inputs import Index, Input
from koguma.model import forms, labels, tags
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.derived import DerivedResource
from koguma.model.kind import Kind
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

RESOURCES: Input[Key, Resource] = Input("resources")
UNREADABLE: Input[Key, str] = Input("unreadable")  # stored objects that their kind cannot read, and why
KINDS: Input[str, Kind] = Input("kinds")
CONTROL_PLANE: Input[str, ControlPlaneInfo] = Input("control plane")

BY_KIND = Index(RESOURCES, lambda key, _resource: [(key.kind, key.mesh)])
BY_KIND_EVERYWHERE = Index(RESOURCES, lambda key, _resource: [key.kind])

# What is asked of all objects of a kind is asked shard by shard, so that a change of one runs a small part.
SHARDS: Final = range(64)


def _names(key: Key, _resource: Resource) -> list[tuple[str, str, str]]:
    return [(key.kind, key.mesh, key.name)] if key.kind != "Dataplane" else []


def shard_of(name: str) -> int:
    """The shard of what has this name."""
    return crc32(name.encode("utf-8", "surrogatepass")) % len(SHARDS)


def _shards(key: Key, _resource: Resource) -> list[tuple[str, str, int]]:
    return [(key.kind, key.mesh, shard_of(key.name))] if key.kind != "Dataplane" else []


# Not of proxies, of which there are many and which nobody refers to.
BY_NAME = Index(RESOURCES, _names)  # by kind, mesh and display name
BY_SHARD = Index(RESOURCES, _shards)  # by kind, mesh and number

DESTINATION_KINDS: Final = ("MeshService", "MeshExternalService", "MeshMultiZoneService")
HTTP_PROTOCOLS: Final = ("http", "http2", "grpc")

Pairs = tuple[tuple[str, str], ...]  # a map as a value that can be a key: sorted


def pairs(mapping: Mapping[str, str] | None) -> Pairs:
    """A map of texts as sorted pairs; equal pairs are one object, since thousands of proxies share them."""
    return tuple(sorted(map(_pair, (mapping or {}).items())))


@lru_cache(maxsize=4096)
def _pair(pair: tuple[str, str]) -> tuple[str, str]:
    return pair


class Inbound(msgspec.Struct, frozen=True):
    """A port that a proxy serves; `section` is its name, or its number as text."""

    section: str
    name: str
    port: int
    protocol: str
    tags: Pairs


class Proxy(msgspec.Struct, frozen=True):
    """A Dataplane as the engine reads it."""

    key: Key
    core_name: str
    labels: Pairs
    inbounds: tuple[Inbound, ...]
    is_gateway: bool
    is_builtin: bool
    gateway_tags: Pairs
    origin: str
    reach: "Reach"

    @property
    def type(self) -> str:
        """The proxy type, as policies write it in proxyTypes."""
        return "Gateway" if self.is_gateway else "Sidecar"


class DestinationRef(msgspec.Struct, frozen=True):
    """A reference from a proxy to a destination; `port` 0 means all its ports."""

    kind: str
    name: str = ""
    namespace: str = ""
    labels: Pairs = ()
    port: int = 0


class Reach(msgspec.Struct, frozen=True):
    """Which destinations a proxy can call; without outbounds, and with backends None, all of its mesh."""

    outbounds: tuple[DestinationRef, ...] = ()
    backends: tuple[DestinationRef, ...] | None = None


class Port(msgspec.Struct, frozen=True):
    """A port of a destination; `section` is its name in rules and KRIs: its name, or its number as text."""

    section: str
    number: int
    protocol: str
    name: str = ""


class Destination(msgspec.Struct, frozen=True):
    """A service that can be called."""

    key: Key
    core_name: str
    labels: Pairs
    ports: tuple[Port, ...]

    def port(self, word: str) -> Port | None:
        """The port of that name or number."""
        return next((p for p in self.ports if word in (p.section, p.name, str(p.number))), None)


def stored(db: Db) -> Iterator[Resource]:
    """The stored objects, in key order: all resources that are not derived from others."""
    return (each for _, each in RESOURCES.items(db) if not isinstance(each, DerivedResource))


@question
def kind_of(db: Db, name: str) -> Kind:
    """The record of a kind; every stored object has one."""
    kind = KINDS.get(db, name)
    assert kind is not None, name
    return kind


@question
def control_plane(db: Db) -> ControlPlaneInfo:
    """Which control plane this is."""
    return CONTROL_PLANE.get(db, "here") or ControlPlaneInfo()


@question
def proxy(db: Db, key: Key) -> Proxy | None:
    """The proxy under a key of kind Dataplane."""
    resource = RESOURCES.get(db, key)
    return None if resource is None else _proxy(resource)


def _proxy(resource: Resource) -> Proxy:
    networking = resource.spec.get("networking") or {}
    gateway = networking.get("gateway")
    return Proxy(
        key=resource.key,
        core_name=resource.core_name,
        labels=pairs(resource.labels),
        inbounds=tuple(_inbounds(networking)),
        is_gateway=gateway is not None,
        is_builtin=gateway is not None and gateway.get("type") == "BUILTIN",
        gateway_tags=pairs(gateway.get("tags") if gateway else None),
        origin=resource.origin,
        reach=_reach(networking),
    )


def _inbounds(networking: Json) -> Iterator[Inbound]:
    for inbound in networking.get("inbound") or ():
        if inbound.get("state") == "Ignored":
            continue
        port, name, own = inbound.get("port") or 0, inbound.get("name") or "", inbound.get("tags") or {}
        protocol = inbound.get("protocol") or own.get(tags.PROTOCOL) or "tcp"
        yield Inbound(name or str(port), name, port, protocol, pairs(own))


def _reach(networking: Json) -> Reach:
    outbounds = tuple(ref for outbound in networking.get("outbound") or () if (ref := outbound_ref(outbound)))
    proxying = networking.get("transparentProxying") or {}
    backends = proxying.get("reachableBackends")
    if backends is None:
        return Reach(outbounds)
    return Reach(outbounds, tuple(_destination_ref(ref) for ref in backends.get("refs") or ()))


def outbound_ref(outbound: Json) -> DestinationRef | None:
    """What an entry of a Dataplane's `outbound` refers to."""
    if outbound.get("backendRef"):
        return _destination_ref(outbound["backendRef"])
    service = (outbound.get("tags") or {}).get(tags.SERVICE)
    return DestinationRef("MeshService", service) if service else None


def _destination_ref(ref: Json) -> DestinationRef:
    return DestinationRef(
        kind=ref.get("kind") or "",
        name=ref.get("name") or "",
        namespace=ref.get("namespace") or "",
        labels=pairs(ref.get("labels")),
        port=ref.get("port") or 0,
    )


@question
def destination(db: Db, key: Key) -> Destination | None:
    """The destination under a key of one of the destination kinds; None where it is not served here."""
    resource = RESOURCES.get(db, key)
    if resource is None or is_of_another_zone(db, resource):
        return None
    return Destination(resource.key, resource.core_name, pairs(resource.labels), tuple(_ports(resource)))


def is_of_another_zone(db: Db, resource: Resource) -> bool:
    """Whether this is a MeshExternalService of another zone: one that a zone made is reachable only there.

    Services of other zones are called through their ingresses; what an external service names is outside of
    the mesh, as that zone sees it.
    """
    zone = resource.zone or resource.labels.get(labels.ZONE)
    here = control_plane(db)
    is_external = resource.kind == "MeshExternalService"
    return is_external and not here.is_global and bool(zone) and zone != here.zone


def port(db: Db, key: Key, section: str) -> Port | None:
    """A port of a destination; None where there is no such destination or port."""
    target = destination(db, key)
    return target.port(section) if target else None


def external_matches(spec: Json) -> Sequence[Json]:
    """The matches of a MeshExternalService, in either of its shapes."""
    match = spec.get("match") or ()
    return (match,) if isinstance(match, Mapping) else match


def _external_port(match: Json) -> Port:
    number = match.get("port") or 0
    return Port(str(number), number, match.get("protocol") or "tcp")


def _ports(resource: Resource) -> Iterator[Port]:
    spec = resource.spec
    if resource.kind == "MeshExternalService":
        # Several matches of one port are several ways to call it; it speaks the protocol of the first.
        by_number: dict[int, Port] = {}
        for match in external_matches(spec):
            port = _external_port(match)
            by_number.setdefault(port.number, port)
        yield from by_number.values()
        return
    for port in spec.get("ports") or ():
        number, name = port.get("port") or 0, port.get("name") or ""
        protocol = port.get("appProtocol") or "tcp"
        yield Port(name or str(number), number, tags.KUBERNETES_PROTOCOLS.get(protocol, protocol), name)


@question
def destinations(db: Db, mesh: str) -> tuple[Destination, ...]:
    """All destinations of a mesh, in key order."""
    keys = (key for kind in DESTINATION_KINDS for key in BY_KIND.keys(db, (kind, mesh)))
    return tuple(target for key in sorted(keys) if (target := destination(db, key)) is not None)


@question
def reached(db: Db, mesh: str, zone: str, namespace: str, reach: Reach) -> tuple[tuple[Key, str], ...]:
    """The ports that a proxy with this reach can call: destination key and section, in order.

    Explicit outbounds that resolve win; then reachable backends; otherwise everything in the mesh.
    """
    explicit = _resolved_all(db, mesh, zone, namespace, reach.outbounds)
    if explicit:
        return explicit
    if reach.backends is not None:
        return _resolved_all(db, mesh, zone, namespace, reach.backends)
    return tuple((d.key, port.section) for d in destinations(db, mesh) for port in d.ports)


def _resolved_all(
    db: Db, mesh: str, zone: str, namespace: str, refs: tuple[DestinationRef, ...]
) -> tuple[tuple[Key, str], ...]:
    ports: dict[tuple[Key, str], None] = {}
    for ref in refs:
        for key in referenced(db, mesh, ref.kind, ref.name, ref.namespace or namespace, zone, ref.labels):
            target = destination(db, key)
            for port in target.ports if target else ():
                if ref.port in (0, port.number):
                    ports[key, port.section] = None
    return tuple(sorted(ports))


@question
def referenced(
    db: Db, mesh: str, kind: str, name: str, namespace: str, zone: str, ref_labels: Pairs
) -> tuple[Key, ...]:
    """The objects of a kind that a reference finds: by name from a zone and namespace, or by labels.

    A name is looked up in the referrer's own zone and namespace first. A referrer from Global (no zone) finds
    the name in any zone; an object without a zone, such as a MeshMultiZoneService, is found from every zone.
    """
    if ref_labels:
        return labelled(db, mesh, kind, ref_labels)
    namesakes = BY_NAME.keys(db, (kind, mesh, name))
    same_namespace = [key for key in namesakes if key.namespace == forms.key_namespace(namespace)]
    same_zone = tuple(key for key in same_namespace if key.zone == zone)
    if same_zone:
        return same_zone
    if not zone:
        return tuple(same_namespace)
    return tuple(key for key in same_namespace if not key.zone)


@question
def labelled(db: Db, mesh: str, kind: str, required: Pairs) -> tuple[Key, ...]:
    """The objects of a kind that have all these labels."""
    return tuple(key for key in BY_KIND.keys(db, (kind, mesh)) if set(required) <= set(labels_of(db, key)))


@question
def labels_of(db: Db, key: Key) -> Pairs:
    """An object's labels, with its display name, whether written or not."""
    resource = RESOURCES.get(db, key)
    return pairs({labels.DISPLAY_NAME: key.name, **resource.labels}) if resource else ()
