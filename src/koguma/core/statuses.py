"""Statuses: what a zone reports on its destinations, and which writes lead there.

`facts` is a question: what follows from stored objects alone. `plan` is a latch: it joins the facts with the
addresses that are given (`vips`), with what only the proxies' connections tell, and with what was
reported before, and gives the objects whose status is to change. Specs are never touched: what somebody wrote
stays as written.

Every zone reports for itself, also on objects of other zones and of Global: how they are called from here.
How many proxies a service has, and whether they have certificates, is told by the zone of the proxies only.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

import msgspec

from koguma.core import hostnames, vips, workloads, world
from koguma.core.build import endpoints, network, tls
from koguma.core.hostnames import HostnameClaim
from koguma.core.incremental import Db, question
from koguma.core.services import ReconcileProblem
from koguma.core.vips import ITSELF, Marks, NamedAddresses, Ranges
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

COUNTS: Final = "dataplaneProxies"  # the one part that changes as proxies come and go
READY: Final = "Ready"
_NOT_READY: Final = "NotReady"
_MATCHED: Final = "MeshServicesMatched"
# All parts that are ours; what else a status has is kept.
_PARTS: Final = frozenset(
    {
        "addresses",
        "vips",
        "vip",
        "tls",
        "meshServices",
        "hostnameGenerators",
        "conditions",
        COUNTS,
    }
)


class ConnectedProxies(msgspec.Struct, frozen=True, dict=True):
    """What an observer of connections knows: Dataplanes that are connected, and that have a certificate."""

    connected: frozenset[Key] = frozenset()
    certified: frozenset[Key] = frozenset()

    @cached_property
    def _counted(self) -> dict[int, tuple[tuple[Key, ...], int]]:
        return {}

    @cached_property
    def _reported(self) -> dict[Key, tuple[Resource, "Facts", NamedAddresses]]:
        return {}

    def is_reported(self, resource: Resource, known: "Facts", given: NamedAddresses) -> bool:
        """Whether an object says all this already; looked at once, since most stay as they are."""
        told = self._reported.get(resource.key)
        if told is not None and told[0] is resource and told[1] is known and told[2] is given:
            return True
        is_same = desired_status(resource, known, given, self) == (resource.status or {})
        if is_same:
            self._reported[resource.key] = resource, known, given
        return is_same

    def n_connected(self, proxies: tuple[Key, ...]) -> int:
        """How many of these are connected; counted once, since most services keep their proxies."""
        known = self._counted.get(id(proxies))
        if known is None or known[0] is not proxies:
            known = self._counted[id(proxies)] = (proxies, sum(key in self.connected for key in proxies))
        return known[1]


class Facts(msgspec.Struct, frozen=True):
    """What stored objects say about a destination; its proxies are None where another zone has them."""

    names: tuple[HostnameClaim, ...] = ()
    proxies: tuple[Key, ...] | None = None
    n_healthy: int = 0
    is_mtls_on: bool = False
    services: tuple[Key, ...] = ()
    problems: tuple[ReconcileProblem, ...] = ()


@question
def facts(db: Db, destination: Key) -> Facts:
    """What there is to report on a destination or workload, but for addresses and proxies' connections."""
    is_called = destination.kind in world.DESTINATION_KINDS
    found = _facts(db, destination, hostnames.of(db, destination) if is_called else ())
    return msgspec.structs.replace(found, problems=tuple(_untold(destination, found.names)))


def _facts(db: Db, destination: Key, names: tuple[HostnameClaim, ...]) -> Facts:
    match destination.kind:
        case "MeshService" if destination.zone == world.control_plane(db).zone:
            found = endpoints.selected(db, destination)
            is_mtls_on = tls.mtls(db, destination.mesh) is not None
            return Facts(names, tuple(key for key, _ in found), _n_healthy(db, found), is_mtls_on)
        case workloads.KIND if destination.zone == world.control_plane(db).zone:
            found = tuple((key, inbound_sections(db, key)) for key in workloads.members(db, destination))
            return Facts(names, tuple(key for key, _ in found), _n_healthy(db, found))
        case "MeshMultiZoneService":
            return Facts(names, services=endpoints.multi_zone_services(db, destination))
        case _:
            return Facts(names)


def _n_healthy(db: Db, found: Iterable[tuple[Key, tuple[str, ...]]]) -> int:
    """How many proxies serve the service with all of its inbounds."""
    return sum(set(sections).issubset(ready(db, key)) for key, sections in found)


@question
def inbound_sections(db: Db, dataplane: Key) -> tuple[str, ...]:
    """All inbounds of a proxy, ready or not."""
    found = network.networking(db, dataplane)
    return tuple(each.section for each in found.inbounds) if found else ()


@question
def ready(db: Db, dataplane: Key) -> tuple[str, ...]:
    """The inbounds of a proxy that are ready for calls."""
    found = network.networking(db, dataplane)
    return tuple(each.section for each in found.inbounds if each.is_ready) if found else ()


class StatusPlan(msgspec.Struct, frozen=True):
    """Objects with the status that they are to have, over the revision that each carries; see VipPlan."""

    changes: tuple[Resource, ...]
    marks: Marks
    problems: tuple[ReconcileProblem, ...] = ()
    elsewhere: frozenset[str] = frozenset()


def plan(db: Db, mesh: str, seen: ConnectedProxies, ranges: Ranges, marks: Marks) -> StatusPlan:
    """The way from what is reported in a mesh to what is to be reported; no changes where they agree."""
    keys = [key for kind in world.DESTINATION_KINDS for key in world.BY_KIND.keys(db, (kind, mesh))]
    addresses = vips.plan(db, keys, ranges, marks)
    changes, problems = [], list(addresses.problems)
    for key, given in addresses.given.items():
        resource = world.RESOURCES.get(db, key)
        known = facts(db, key)
        problems += known.problems
        if resource is not None and not seen.is_reported(resource, known, given):
            changes.append(
                msgspec.structs.replace(resource, status=desired_status(resource, known, given, seen))
            )
    for resource in workloads.stored(db, mesh):
        known = facts(db, resource.key)
        if known.proxies is not None and not seen.is_reported(resource, known, ()):
            changes.append(
                msgspec.structs.replace(resource, status=desired_status(resource, known, (), seen))
            )
    return StatusPlan(tuple(changes), addresses.marks, tuple(sorted(problems)), addresses.elsewhere)


def is_recount(before: Resource, after: Resource) -> bool:
    """Whether a status changes in nothing but the number of proxies."""
    old, new = dict(before.status or {}), dict(after.status or {})
    return bool(old.pop(COUNTS, None)) and bool(new.pop(COUNTS, None)) and old == new


def _untold(key: Key, names: Iterable[HostnameClaim]) -> Iterator[ReconcileProblem]:
    """Names that a destination says itself and does not have; generators' are told by its status.

    The name of its service tag is nothing that it says: whoever is second for that has its other names.
    """
    for claim in names:
        if not claim.generator and not claim.hostname and not claim.is_legacy:
            message = f'cannot be called as "{claim.slot}": {claim.message}; choose another name'
            yield ReconcileProblem(key, "hostname", message)


def desired_status(
    resource: Resource, known: Facts, given: NamedAddresses, seen: ConnectedProxies
) -> dict[str, Json]:
    """The status that an object is to have."""
    before = resource.status or {}
    if resource.kind == workloads.KIND:
        proxies = known.proxies or ()
        return {**before, COUNTS: _counts(known, proxies, seen.n_connected(proxies))}
    found = {**_addresses(resource, given), **hostnames.reported(known.names)}
    if known.proxies is not None:
        found["tls"] = {"status": _tls(before, known, seen.certified)}
        found[COUNTS] = _counts(known, known.proxies, seen.n_connected(known.proxies))
    if resource.kind == "MeshMultiZoneService":
        found["meshServices"] = [_matched(key) for key in known.services]
        found["conditions"] = [_condition(len(known.services))]
    kept = {name: value for name, value in before.items() if name not in _PARTS}
    return {**kept, **{name: value for name, value in found.items() if value}}


def _addresses(resource: Resource, given: NamedAddresses) -> dict[str, Json]:
    if resource.kind != "MeshExternalService":
        return {"vips": [{"ip": address} for _, address in given]}
    listed = [
        {"ip": address, "type": "Kuma", **({"hostname": name} if name != ITSELF else {})}
        for name, address in given
    ]
    # The shape that Kuma released has one address, in a place of its own.
    own = next(({"ip": address} for name, address in given if name == ITSELF), None)
    return {"vips": listed, "vip": own}


def _tls(before: Json, known: Facts, certified: frozenset[Key]) -> str:
    """Ready once all proxies have certificates; from then on new ones begin with one, so it stays."""
    if not known.is_mtls_on:
        return _NOT_READY
    is_ready = _is_ready(before) or (known.proxies and certified.issuperset(known.proxies))
    return READY if is_ready else _NOT_READY


def unready(service: Resource) -> Resource:
    """A service as it is where its proxies have yet to get certificates."""
    status = service.status or {}
    if not _is_ready(status):
        return service
    return msgspec.structs.replace(service, status={**status, "tls": {"status": _NOT_READY}})


def _is_ready(status: Json) -> bool:
    return bool((status.get("tls") or {}).get("status") == READY)


def _counts(known: Facts, proxies: tuple[Key, ...], n_connected: int) -> Json:
    return {"connected": n_connected, "healthy": known.n_healthy, "total": len(proxies)}


def _matched(key: Key) -> Json:
    return {"name": key.name, "namespace": key.namespace, "zone": key.zone, "mesh": key.mesh}


def _condition(n_matched: int) -> Json:
    if n_matched:
        words = f"Matched {n_matched} MeshService(s)"
        return {"type": _MATCHED, "status": "True", "reason": "MatchesFound", "message": words}
    words = "Selector does not match any MeshService in this zone"
    return {"type": _MATCHED, "status": "False", "reason": "NoMatchesFound", "message": words}
