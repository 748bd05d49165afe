"""VIPs: the virtual addresses of services, given once and kept.

`plan` is a latch: it looks at the addresses that objects have, and gives one to each that lacks one. What is
stored decides: an address stays with its object as long as the object lives. New addresses follow upwards on
the last one that was given (the *mark*), and begin again at the bottom only when the range is used up: an
address that was just freed would send its old callers to a wrong service.

No address is given twice, in all meshes of a zone. Two control planes can still give one away at the same
moment, to two objects. Both then read the same from the store: the older object keeps it (`holder`), of two
that were made in the same second the first by key; the other has it no more, whatever its status says, and
gets a new one.

A MeshExternalService may have several addresses, one for each host name of a match of type InternalVIP. So
every address has a name that it is for; the empty one is the object itself.
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
Marks = Mapping[str, int]  # by kind: where in its range the last address was given

ITSELF: Final = ""  # the name of an address that is for the whole object
_INTERNAL: Final = "InternalVIP"


class Range(msgspec.Struct, frozen=True, cache_hash=True):
    """The addresses of one kind; `setting` is the word with which people change it."""

    network: Network
    setting: str

    @property
    def last(self) -> int:
        """The place of the last usable address; the first one is 1."""
        return self.network.num_addresses - 2

    def at(self, place: int) -> str:
        """The address at a place."""
        return str(self.network.network_address + place)

    def place(self, address: str) -> int | None:
        """The place of an address; None where it is not usable here."""
        found = _number(address, self.network.version)
        place = -1 if found is None else found - int(self.network.network_address)
        return place if 1 <= place <= self.last else None


Ranges = Mapping[str, Range]


@lru_cache(maxsize=1 << 16)
def _number(address: str, version: int) -> int | None:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return None
    return int(found) if found.version == version else None


def ranges(
    mesh_service: str = "241.0.0.0/8",
    mesh_external_service: str = "242.0.0.0/8",
    mesh_multi_zone_service: str = "243.0.0.0/8",
) -> Ranges:
    """The ranges that settings write, by kind."""
    return {
        "MeshService": Range(ipaddress.ip_network(mesh_service), "meshServiceCidr"),
        "MeshExternalService": Range(ipaddress.ip_network(mesh_external_service), "meshExternalServiceCidr"),
        "MeshMultiZoneService": Range(
            ipaddress.ip_network(mesh_multi_zone_service), "meshMultiZoneServiceCidr"
        ),
    }


DEFAULT: Final = ranges()


def stored(status: Json) -> NamedAddresses:
    """The addresses that a status says, each once."""
    if not isinstance(status, Mapping):
        return ()
    found: dict[str, str] = {}
    for entry in (*_entries(status.get("vips")), *_entries([status.get("vip")])):
        found.setdefault(entry["ip"], entry.get("hostname") or ITSELF)
    return tuple((name, address) for address, name in found.items())


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
    """Whose an address is: the oldest's of those whose status says it."""
    found = BY_ADDRESS.items(db, address)
    return min((resource.creation_time, key) for key, resource in found)[1] if found else None


@question
def named(db: Db, destination: Key) -> NamedAddresses:
    """The addresses that a destination rightly has, each with the name that it is for."""
    resource = world.RESOURCES.get(db, destination)
    listed = stored(resource.status) if resource else ()
    return tuple((name, address) for name, address in listed if holder(db, address) == destination)


@question
def of(db: Db, destination: Key) -> tuple[str, ...]:
    """The addresses that a destination rightly has."""
    return tuple(address for _, address in named(db, destination))


@question
def required_names(db: Db, destination: Key) -> tuple[str, ...]:
    """For what a destination needs addresses: for itself, or for host names, each once, in order."""
    resource = world.RESOURCES.get(db, destination)
    if resource is None:
        return ()
    if destination.kind != "MeshExternalService":
        return (ITSELF,)
    match = resource.spec.get("match") or ()
    if isinstance(match, Mapping):
        return (ITSELF,)
    values = (one.get("value") for one in match if one.get("type") == _INTERNAL)
    return tuple(dict.fromkeys(value for value in values if value))


class Kept(msgspec.Struct, frozen=True):
    """What an object keeps of the addresses that it has, and whether that is all that it needs."""

    given: NamedAddresses
    is_all: bool
    rivals: frozenset[str]  # other meshes in which somebody has one of its addresses too


@question
def kept(db: Db, destination: Key, of: Range) -> Kept:
    """What an object keeps; asked for each by itself, since most need nothing for years."""
    have: dict[str, str] = {}
    for name, address in named(db, destination):
        if of.place(address) is not None:
            have.setdefault(name, address)
    rivals = {rival.mesh for address in have.values() for rival in BY_ADDRESS.keys(db, address)}
    names = required_names(db, destination)
    given = tuple((name, have[name]) for name in names if name in have)
    return Kept(given, len(given) == len(names), frozenset(rivals - {destination.mesh}))


class VipPlan(msgspec.Struct, frozen=True):
    """All addresses that objects are to have; the new marks; what is odd; and where else there is work.

    `elsewhere` are other meshes with an object that has to give up an address.
    """

    given: Mapping[Key, NamedAddresses]
    marks: Marks
    problems: tuple[ReconcileProblem, ...] = ()
    elsewhere: frozenset[str] = frozenset()


def first_marks(db: Db, ranges: Ranges) -> Marks:
    """Where to go on after a start: the highest address of each kind."""
    return {kind: max(_places(db, kind, of), default=0) for kind, of in ranges.items()}


def _places(db: Db, kind: str, of: Range) -> Iterator[int]:
    for _, resource in world.BY_KIND_EVERYWHERE.items(db, kind):
        for _, address in stored(resource.status):
            yield of.place(address) or 0


def advanced(marks: Marks, ranges: Ranges, resource: Resource) -> Marks:
    """The marks after an object was seen, perhaps for the last time: past its addresses."""
    of = ranges.get(resource.kind)
    if of is None:
        return marks
    mark = marks[resource.kind]
    for _, address in stored(resource.status):
        place = of.place(address)
        # Ahead is what is nearer upwards than downwards, round the end of the range.
        if place is not None and 0 < (place - mark) % of.last <= of.last // 2:
            mark = place
    return {**marks, resource.kind: mark}


def plan(db: Db, destinations: Iterable[Key], ranges: Ranges, marks: Marks) -> VipPlan:
    """What each of these is to have: what it has, and what it lacks, the oldest first."""
    work = _Work(db, ranges, marks)
    lacking = [key for key in destinations if not work.keep(key)]
    rows = ((key, world.RESOURCES.get(db, key)) for key in lacking)
    for _, key in sorted((row.creation_time, key) for key, row in rows if row is not None):
        work.give(key)
    return VipPlan(work.given, work.marks, tuple(sorted(work.problems)), frozenset(work.elsewhere))


class _Work:
    """A plan that is being made."""

    def __init__(self, db: Db, ranges: Ranges, marks: Marks) -> None:
        self._db = db
        self._ranges = ranges
        self._new: set[str] = set()
        self._used_up: set[str] = set()
        self.marks = dict(marks)
        self.given: dict[Key, NamedAddresses] = {}
        self.problems: list[ReconcileProblem] = []
        self.elsewhere: set[str] = set()

    def keep(self, key: Key) -> bool:
        """Note what an object has; whether that is all that it is to have."""
        found = kept(self._db, key, self._ranges[key.kind])
        self.elsewhere |= found.rivals
        if found.is_all and found.given:
            self.given[key] = found.given
        return found.is_all and bool(found.given)

    def give(self, key: Key) -> None:
        """Note what an object is to have, with what it lacks."""
        of = self._ranges[key.kind]
        have, names = dict(kept(self._db, key, of).given), required_names(self._db, key)
        found = ((name, have.get(name) or self._next(key.kind, of)) for name in names)
        self.given[key] = tuple((name, address) for name, address in found if address is not None)
        if len(self.given[key]) < len(names):
            self.problems.append(_used_up(key, of))

    def _next(self, kind: str, of: Range) -> str | None:
        if kind in self._used_up:
            return None
        mark = min(self.marks[kind], of.last)
        for place in chain(range(mark + 1, of.last + 1), range(1, mark + 1)):
            address = of.at(place)
            if address not in self._new and not BY_ADDRESS.keys(self._db, address):
                self._new.add(address)
                self.marks[kind] = place
                return address
        self._used_up.add(kind)
        return None


def _used_up(key: Key, of: Range) -> ReconcileProblem:
    words = f"has no virtual address: all of {of.network} are in use; make the setting {of.setting} larger"
    return ReconcileProblem(key, "vip", words)
