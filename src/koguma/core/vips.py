"""VIPs: the virtual addresses of services, allocated once and kept.

`plan` keeps the addresses that objects have, and allocates one to each object that lacks one. An address
stays with its object as long as the object lives. Which ones may be allocated is decided by the history of
addresses (`address_history`): never used ones first, and no address again soon after it was freed.

No address is allocated twice, in all meshes of a zone. Should two objects have one all the same, the older
object keeps it (`holder`), of two that were created in the same second the first by key; the other object
loses it, whatever its status says, and gets a new one.

A MeshExternalService may have several addresses, one for each host name of a match of type InternalVIP. So
every address has a name; the empty name stands for the object itself. Where there is a range for IPv6 too,
every address has a twin there, under the same name.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from koguma.core import world
from koguma.core.address_history import REUSE_AFTER, AddressHistory, Range, UsedAddresses
from koguma.core.incremental import Db, question
from koguma.core.inputs import Index
from koguma.core.services import ReconcileProblem
from koguma.model.derived import DerivedResource
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

NamedAddresses = tuple[tuple[str, str], ...]  # name and address, in order

RULE: Final = "vip"  # of the problem of an object without an address
ITSELF: Final = ""  # the name of an address that is for the whole object
_INTERNAL: Final = "InternalVIP"

Ranges = Mapping[str, Range]


def ranges(
    mesh_service: str = "241.0.0.0/8",
    mesh_external_service: str = "242.0.0.0/8",
    mesh_multi_zone_service: str = "243.0.0.0/8",
    ipv6: str = "",
) -> Ranges:
    """The ranges of all kinds, from settings."""
    twins = ipaddress.IPv6Network(ipv6) if ipv6 else None
    return {
        kind: Range(ipaddress.ip_network(network), setting, twins)
        for kind, network, setting in (
            ("MeshService", mesh_service, "meshServiceCidr"),
            ("MeshExternalService", mesh_external_service, "meshExternalServiceCidr"),
            ("MeshMultiZoneService", mesh_multi_zone_service, "meshMultiZoneServiceCidr"),
        )
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
    # The addresses of derived ones are in a range of their own, and the same in all meshes.
    if key.kind not in world.DESTINATION_KINDS or isinstance(resource, DerivedResource):
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
    if isinstance(resource, DerivedResource):
        return listed
    return tuple((name, address) for name, address in listed if holder(db, address) == destination)


@question
def of(db: Db, destination: Key) -> tuple[str, ...]:
    """The addresses that a destination holds."""
    return tuple(address for _, address in named(db, destination))


@question
def on_port(db: Db, destination: Key, number: int) -> tuple[str, ...]:
    """The addresses on which a port is called: of host names in a spec, those that have this port there."""
    resource = world.RESOURCES.get(db, destination)
    match = resource.spec.get("match") if resource else None
    if destination.kind != "MeshExternalService" or not isinstance(match, list | tuple):
        return of(db, destination)
    values = {
        each.get("value") for each in match if each.get("type") == _INTERNAL and each.get("port") == number
    }
    return tuple(address for name, address in named(db, destination) if name in values)


def of_families(addresses: Sequence[str], *, has_ipv6: bool) -> tuple[str, ...]:
    """The addresses for a proxy; without IPv6 only those of IPv4, unless there are none."""
    ipv4 = tuple(address for address in addresses if ":" not in address)
    return tuple(addresses) if has_ipv6 or not ipv4 else ipv4


@question
def required_names(db: Db, destination: Key) -> tuple[str, ...]:
    """The names for which a destination needs addresses: itself, or its host names, each once, in order."""
    resource = world.RESOURCES.get(db, destination)
    if resource is None or world.is_of_another_zone(db, resource):
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
    kept_names = [name for name in names if name in have]
    assigned = _with_twins(((name, have[name]) for name in kept_names), of)
    return KeptVips(assigned, len(kept_names) == len(names), frozenset(rivals - {destination.mesh}))


def _with_twins(addresses: Iterable[tuple[str, str]], of: Range) -> NamedAddresses:
    """Addresses, each followed by its IPv6 address where there are such."""
    pairs = ((name, each) for name, address in addresses for each in (address, of.twin(address)))
    return tuple((name, address) for name, address in pairs if address is not None)


class VipPlan(msgspec.Struct, frozen=True):
    """The addresses of all objects, which addresses are used then, and problems.

    `other_meshes` have an object that has to give up an address, so they need a plan too.
    """

    assigned: Mapping[Key, NamedAddresses]
    used: UsedAddresses
    problems: tuple[ReconcileProblem, ...] = ()
    other_meshes: frozenset[str] = frozenset()


def first_used(db: Db, ranges: Ranges, used: UsedAddresses) -> UsedAddresses:
    """The highest used addresses; for a range of which nothing is known, those that objects have now."""
    return {**{str(of.network): _highest(db, kind, of, used) for kind, of in ranges.items()}, **used}


def _highest(db: Db, kind: str, of: Range, used: UsedAddresses) -> str:
    if str(of.network) in used:
        return used[str(of.network)]
    offsets = (
        of.offset(address) or 0
        for _, resource in world.BY_KIND_EVERYWHERE.items(db, kind)
        for _, address in stored(resource.status)
    )
    return of.at(max(offsets, default=0))


def freed(before: Resource | None, after: Resource | None) -> frozenset[str]:
    """The addresses that an object loses by a change."""
    addresses = [
        {address for _, address in stored(resource.status)} if resource else set()
        for resource in (before, after)
    ]
    return frozenset(addresses[0] - addresses[1])


def plan(
    db: Db, destinations: Iterable[Key], ranges: Ranges, history: AddressHistory, now: datetime
) -> VipPlan:
    """The addresses of each of these: those that it keeps, and new ones, oldest object first."""
    builder = _PlanBuilder(db, ranges, history, now)
    lacking = [key for key in destinations if not builder.keep(key)]
    rows = ((key, world.RESOURCES.get(db, key)) for key in lacking)
    for _, key in sorted((row.creation_time, key) for key, row in rows if row is not None):
        builder.allocate(key)
    return VipPlan(
        builder.assigned, builder.used, tuple(sorted(builder.problems)), frozenset(builder.other_meshes)
    )


class _PlanBuilder:
    """A plan under construction."""

    def __init__(self, db: Db, ranges: Ranges, history: AddressHistory, now: datetime) -> None:
        self._db = db
        self._ranges = ranges
        self._candidates = {kind: history.candidates(of, now) for kind, of in ranges.items()}
        self.used = dict(history.used)
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
        of, names = self._ranges[key.kind], required_names(self._db, key)
        have = dict(reversed(kept(self._db, key, of).assigned))  # the first of a name, without its twin
        pairs = [(name, have.get(name) or self._next(key.kind, of)) for name in names]
        found = [(name, address) for name, address in pairs if address is not None]
        self.assigned[key] = _with_twins(found, of)
        if len(found) < len(names):
            self.problems.append(_used_up(key, of))

    def _next(self, kind: str, of: Range) -> str | None:
        for address in self._candidates[kind]:
            if not BY_ADDRESS.keys(self._db, address):
                if (of.offset(address) or 0) > of.used_offset(self.used):
                    self.used[str(of.network)] = address
                return address
        return None


def _used_up(key: Key, of: Range) -> ReconcileProblem:
    hours = REUSE_AFTER // timedelta(hours=1)
    message = (
        f"has no virtual address: all of {of.network} are in use, or were less than {hours} hours ago;"
        f" make the setting {of.setting} larger"
    )
    return ReconcileProblem(key, RULE, message)
