"""The plan as a value: plain data that can be compared, sent as JSON, and shown.

Names of ports are KRIs with a section, those of inbounds are their sections. `None` as a value before or
after means that there is none on that side.
"""

import msgspec

from koguma.model.schema import Json


class PlannedObject(msgspec.Struct, frozen=True, order=True, rename="camel", omit_defaults=True):
    """An object as the plain form names it."""

    type: str
    name: str
    mesh: str = ""
    zone: str = ""  # in a plan for several zones


class ValuePlace(msgspec.Struct, frozen=True, rename="camel"):
    """Where a value was written: the object, the path in it, and the line of that as it is printed."""

    kri: str
    path: str
    line: int


class ValueChange(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One value of the configuration of proxies that differs."""

    about: str  # calls, arrivals, proxy
    at: str  # the port that is called, the inbound where calls arrive; empty for the proxy as a whole
    kind: str  # of the policies, or of the object, that sets it
    field: str
    before: Json = None
    after: Json = None
    was_set_by: ValuePlace | None = None
    set_by: ValuePlace | None = None
    route: str = ""  # the KRI of the route through which calls go
    requests: str = ""  # which requests, or which clients, it is for; empty: all of them


class PortChange(msgspec.Struct, frozen=True, rename="camel"):
    """A port that proxies can call on one side of the change only."""

    port: str
    is_added: bool


class CallerChange(msgspec.Struct, frozen=True, rename="camel"):
    """Services whose proxies may call an inbound on one side of the change only."""

    at: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    n_before: int
    n_after: int


class EndpointChange(msgspec.Struct, frozen=True, rename="camel"):
    """Addresses behind a cluster on one side of the change only."""

    cluster: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    n_before: int
    n_after: int


class LeafChange(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One field of an object or of a resource of Envoy that differs."""

    path: str
    before: Json = None
    after: Json = None


class ResourceChange(msgspec.Struct, frozen=True, rename="camel"):
    """A resource of Envoy that is added, removed or changed; the fields that differ where they were asked."""

    type: str
    name: str
    action: str
    fields: tuple[LeafChange, ...] = ()


class ProxyGroup(msgspec.Struct, frozen=True, rename="camel"):
    """Proxies for which the same changes. Envoy's resources and sizes are those of the first of them."""

    action: str  # changed; or added, removed: the proxy itself comes or goes
    total: int
    proxies: tuple[PlannedObject, ...]
    ports: tuple[PortChange, ...] = ()
    callers: tuple[CallerChange, ...] = ()
    values: tuple[ValueChange, ...] = ()
    endpoints: tuple[EndpointChange, ...] = ()
    resources: tuple[ResourceChange, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0


class ObjectChange(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object of the change, and how many proxies get another value from it.

    `why` says why none does, or why the object is other than the change wants it.
    """

    type: str
    name: str
    action: str  # created, configured, deleted, unchanged
    mesh: str = ""
    kri: str = ""
    is_generated: bool = False  # the control plane would write it by itself
    fields: tuple[LeafChange, ...] = ()
    proxies: int | None = None  # None where that cannot be told apart from the rest of the change
    why: str = ""
    warnings: tuple[str, ...] = ()
    zone: str = ""  # whose control plane would write it, in a plan for several zones


class PlannedProblem(msgspec.Struct, frozen=True, order=True, rename="camel", omit_defaults=True):
    """A lint problem that comes or goes with the change."""

    code: str
    message: str
    objects: tuple[str, ...] = ()
    path: str = ""
    severity: str = "warning"
    zone: str = ""  # where it is one, in a plan for several zones


class Risk(msgspec.Struct, frozen=True, order=True, rename="camel", omit_defaults=True):
    """Something in the plan that may stop traffic."""

    rule: str  # a stable word for programs
    message: str
    zone: str = ""  # where it is one, in a plan for several zones


class UnknownZone(msgspec.Struct, frozen=True, order=True):
    """A zone that would get something of the change and did not say what that does there, and why."""

    zone: str
    reason: str


class Plan(msgspec.Struct, frozen=True, rename="camel"):
    """What a change would do to the proxies that its reader may see; no other is part of any number."""

    total: int  # proxies that are looked at
    changed: int
    groups: tuple[ProxyGroup, ...]
    objects: tuple[ObjectChange, ...]
    risks: tuple[Risk, ...]
    new_problems: tuple[PlannedProblem, ...]
    gone_problems: tuple[PlannedProblem, ...]
    is_partial: bool = False  # by the rights of the reader there may be proxies that he does not see
    bytes_before: int = 0
    bytes_after: int = 0
    unknown_zones: tuple[UnknownZone, ...] = ()  # on Global: nothing in the plan is about their proxies


def leaves(before: Json, after: Json, path: str = "") -> tuple[LeafChange, ...]:
    """The parts that differ between two values: leaves, and whole parts that one of them does not have."""
    return tuple(LeafChange(*each) for each in _leaves(before, after, path))


def _leaves(before: Json, after: Json, path: str) -> "list[tuple[str, Json, Json]]":
    if before == after:
        return []
    if isinstance(before, dict) and isinstance(after, dict):
        return _of_maps(before, after, path)
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        pairs = _aligned(list(before), list(after))
        return [each for name, one, other in pairs for each in _leaves(one, other, f"{path}[{name}]")]
    return [(path, before, after)]


def _of_maps(before: dict[str, Json], after: dict[str, Json], path: str) -> "list[tuple[str, Json, Json]]":
    found = []
    for name in sorted(before.keys() | after.keys()):
        inner = f"{path}.{name}" if path else name
        found += _leaves(before.get(name), after.get(name), inner)
    return found


def _aligned(before: list[Json], after: list[Json]) -> "list[tuple[str, Json, Json]]":
    """Elements that belong together: those of one name where all have names, else of one index."""
    names = [[_name(each) for each in side] for side in (before, after)]
    if all(name for side in names for name in side) and all(len(set(side)) == len(side) for side in names):
        old, new = (dict(zip(side, of, strict=True)) for side, of in zip(names, (before, after), strict=True))
        return [(name, old.get(name), new.get(name)) for name in dict.fromkeys((*old, *new))]
    length = max(len(before), len(after))
    sides = (side + [None] * (length - len(side)) for side in (before, after))
    return [(str(index), one, other) for index, (one, other) in enumerate(zip(*sides, strict=True))]


def _name(element: Json) -> str:
    name = element.get("name") if isinstance(element, dict) else None
    return name if isinstance(name, str) else ""
