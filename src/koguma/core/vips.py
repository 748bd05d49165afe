"""VIPs: the virtual addresses of services, allocated once and kept.

`plan` keeps the addresses that objects have, and allocates one to each object that lacks one. An address
stays with its object as long as the object lives. New addresses are allocated upwards from the last one (the
*cursor*), and from the start of the range again only when it is used up: an address that was just freed would
send clients of the old service to a new one.

No address is allocated twice, in all meshes of a zone. Two control planes can still allocate one at the same
moment, to two objects. Both then read the same from the store: the older object keeps it (`holder`), of two
that were created in the same second the first by key; the other object loses it, whatever its status says,
and gets a new one.

A MeshExternalService may have several addresses, one for each host name of a match of type InternalVIP. So
every address has a name; the empty name stands for the object itself.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Final

import msgspec

from koguma.core import world
from koguma.core.incremental import Db, question
from koguma.core.inputs import Index
from koguma.core.services import ReconcileProblem
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
NamedAddresses = tuple[tuple[str, str], ...]  # name and address, in order
Cursors = Mapping[str, int]  # by kind: the offset in its range of the last allocated address

ITSELF: Final = ""  # the name of an address that is for the whole object
_INTERNAL: Final = "InternalVIP"


class Range(msgspec.Struct, frozen=True, cache_hash=True):
    """The addresses of one kind; `setting` is the name of the setting for it."""

    network: Network
    setting: str

    @property
    def last(self) -> int:
        """The offset of the last usable address; that of the first is 1."""
        return self.network.num_addresses - 2

    def at(self, offset: int) -> str:
        """The address at an offset."""
        return str(self.network.network_address + offset)

    def offset(self, address: str) -> int | None:
        """The offset of an address; None where it is not in this range."""
        number = _number(address, self.network.version)
        offset = -1 if number is None else number - int(self.network.network_address)
        return offset if 1 <= offset <= self.last else None


Ranges = Mapping[str, Range]


@lru_cache(maxsize=1 << 16)
def _number(address: str, version: int) -> int | None:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    return int(parsed) if parsed.version == version else None


def ranges(
    mesh_service: str = "241.0.0.0/8",
    mesh_external_service: str = "242.0.0.0/8",
    mesh_multi_zone_service: str = "243.0.0.0/8",
) -> Ranges:
    """The ranges of all kinds, from settings."""
    return {
        "MeshService": Range(ipaddress.ip_network(mesh_service), "meshServiceCidr"),
        "MeshExternalService": Range(ipaddress.ip_network(mesh_external_service), "meshExternalServiceCidr"),
        "MeshMultiZoneService": Range(
            ipaddress.ip_network(mesh_multi_zone_service), "meshMultiZoneServiceCidr"
        ),
    }


DEFAULT: Final = ranges()


def stored(status: Json) -> NamedAddresses:
    """The addresses in a status, each once."""
    if not isinstance(status, Mapping):
        return ()
    by_address: dict[str, str] = {}
    for entry in (*_entries(status.get("vips")), *_entries([status.get("vip")])):
        by_address.setdefault(entry["ip"], entry.get("hostname") or ITSELF)
    return tuple((name, address) for address, name in by_address.items())


def _entries(listed: Json) -> Iterator[Json]:
    for entry in listed if isinstance(listed, list | tuple) else ():
        if isinstance(entry, Mapping) and entry.get("ip"):
            yield entry


def _addresses(key: Key, resource: Resource) -> Iterable[str]:
    if key.kind not in world.DESTINATION_KINDS:
        return ()
    return [address for _, address in stored(resource.status)]


BY_ADDRESS = Index(world.RESOURCES, _addresses)


@question
def holder(db: Db, address: str) -> Key | None:
    """The object that holds an address: the oldest of those with it in their status."""
    objects = BY_ADDRESS.items(db, address)
    return min((resource.creation_time, key) for key, resource in objects)[1] if objects else None


@question
def named(db: Db, destination: Key) -> NamedAddresses:
    """The addresses that a destination holds, each with its name."""
    resource = world.RESOURCES.get(db, destination)
    listed = stored(resource.status) if resource else ()
    return tuple((name, address) for name, address in listed if holder(db, address) == destination)


@question
def of(db: Db, destination: Key) -> tuple[str, ...]:
    """The addresses that a destination holds."""
    return tuple(address for _, address in named(db, destination))


@question
def required_names(db: Db, destination: Key) -> tuple[str, ...]:
    """The names for which a destination needs addresses: itself, or its host names, each once, in order."""
    resource = world.RESOURCES.get(db, destination)
    if resource is None:
        return ()
    if destination.kind != "MeshExternalService":
        return (ITSELF,)
    match = resource.spec.get("match") or ()
    if isinstance(match, Mapping):
        return (ITSELF,)
    values = (each.get("value") for each in match if each.get("type") == _INTERNAL)
    return tuple(dict.fromkeys(value for value in values if value))


class KeptVips(msgspec.Struct, frozen=True):
    """The addresses that an object keeps, and whether these are all that it needs."""

    assigned: NamedAddresses
    is_all: bool
    rivals: frozenset[str]  # other meshes in which an object has one of its addresses too


@question
def kept(db: Db, destination: Key, of: Range) -> KeptVips:
    """The addresses that an object keeps; a question per object, since most never need another one."""
    have: dict[str, str] = {}
    for name, address in named(db, destination):
        if of.offset(address) is not None:
            have.setdefault(name, address)
    rivals = {rival.mesh for address in have.values() for rival in BY_ADDRESS.keys(db, address)}
    names = required_names(db, destination)
    assigned = tuple((name, have[name]) for name in names if name in have)
    return KeptVips(assigned, len(assigned) == len(names), frozenset(rivals - {destination.mesh}))


class VipPlan(msgspec.Struct, frozen=True):
    """The addresses of all objects, the new cursors, and problems.

    `other_meshes` have an object that has to give up an address, so they need a plan too.
    """

    assigned: Mapping[Key, NamedAddresses]
    cursors: Cursors
    problems: tuple[ReconcileProblem, ...] = ()
    other_meshes: frozenset[str] = frozenset()


def first_cursors(db: Db, ranges: Ranges) -> Cursors:
    """The cursors after a start: the highest address of each kind."""
    return {kind: max(_offsets(db, kind, of), default=0) for kind, of in ranges.items()}


def _offsets(db: Db, kind: str, of: Range) -> Iterator[int]:
    for _, resource in world.BY_KIND_EVERYWHERE.items(db, kind):
        for _, address in stored(resource.status):
            yield of.offset(address) or 0


def advanced(cursors: Cursors, ranges: Ranges, resource: Resource) -> Cursors:
    """The cursors moved past the addresses of an object, which may be about to be deleted."""
    of = ranges.get(resource.kind)
    if of is None:
        return cursors
    cursor = cursors[resource.kind]
    for _, address in stored(resource.status):
        offset = of.offset(address)
        # Ahead of the cursor is what is nearer upwards than downwards, around the end of the range.
        if offset is not None and 0 < (offset - cursor) % of.last <= of.last // 2:
            cursor = offset
    return {**cursors, resource.kind: cursor}


def plan(db: Db, destinations: Iterable[Key], ranges: Ranges, cursors: Cursors) -> VipPlan:
    """The addresses of each of these: those that it keeps, and new ones, oldest object first."""
    builder = _PlanBuilder(db, ranges, cursors)
    lacking = [key for key in destinations if not builder.keep(key)]
    rows = ((key, world.RESOURCES.get(db, key)) for key in lacking)
    for _, key in sorted((row.creation_time, key) for key, row in rows if row is not None):
        builder.allocate(key)
    return VipPlan(
        builder.assigned, builder.cursors, tuple(sorted(builder.problems)), frozenset(builder.other_meshes)
    )


class _PlanBuilder:
    """A plan under construction."""

    def __init__(self, db: Db, ranges: Ranges, cursors: Cursors) -> None:
        self._db = db
        self._ranges = ranges
        self._new: set[str] = set()
        self._used_up: set[str] = set()
        self.cursors = dict(cursors)
        self.assigned: dict[Key, NamedAddresses] = {}
        self.problems: list[ReconcileProblem] = []
        self.other_meshes: set[str] = set()

    def keep(self, key: Key) -> bool:
        """Keep the addresses of an object; whether these are all that it needs."""
        addresses = kept(self._db, key, self._ranges[key.kind])
        self.other_meshes |= addresses.rivals
        if addresses.is_all and addresses.assigned:
            self.assigned[key] = addresses.assigned
        return addresses.is_all and bool(addresses.assigned)

    def allocate(self, key: Key) -> None:
        """Allocate the addresses that an object lacks."""
        of = self._ranges[key.kind]
        have, names = dict(kept(self._db, key, of).assigned), required_names(self._db, key)
        pairs = ((name, have.get(name) or self._next(key.kind, of)) for name in names)
        self.assigned[key] = tuple((name, address) for name, address in pairs if address is not None)
        if len(self.assigned[key]) < len(names):
            self.problems.append(_used_up(key, of))

    def _next(self, kind: str, of: Range) -> str | None:
        if kind in self._used_up:
            return None
        cursor = min(self.cursors[kind], of.last)
        for offset in chain(range(cursor + 1, of.last + 1), range(1, cursor + 1)):
            address = of.at(offset)
            if address not in self._new and not BY_ADDRESS.keys(self._db, address):
                self._new.add(address)
                self.cursors[kind] = offset
                return address
        self._used_up.add(kind)
        return None


def _used_up(key: Key, of: Range) -> ReconcileProblem:
    message = f"has no virtual address: all of {of.network} are in use; make the setting {of.setting} larger"
    return ReconcileProblem(key, "vip", message)
