"""Statuses: what a zone reports on its destinations, and the writes that update it.

`facts` is a question: what follows from stored objects alone. `plan` joins these facts with the virtual
addresses (`vips`), with which proxies are connected and have certificates, and with the stored status, and
gives the objects whose status is to change. It changes no spec.

Every zone reports for itself, also on objects of other zones and of Global: how they are called from here.
How many proxies a service has, whether they can be called, who they are, and whether they have certificates,
is reported by the zone of the proxies only.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cached_property
from typing import Final

import msgspec

from koguma.core import external_warnings, hostnames, vips, workloads, world
from koguma.core.address_history import AddressHistory, UsedAddresses
from koguma.core.build import endpoints, network, tls
from koguma.core.hostnames import HostnameClaim
from koguma.core.incremental import Db, question
from koguma.core.services import ReconcileProblem
from koguma.core.vips import ITSELF, NamedAddresses, Ranges
from koguma.model.derived import DerivedResource
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

COUNTS: Final = "dataplaneProxies"  # the one field that changes as proxies come and go
READY: Final = "Ready"
_NOT_READY: Final = "NotReady"
_IDENTITIES: Final = "identities"
_MATCHED: Final = "MeshServicesMatched"
# All fields that are written here; other fields of a status are kept.
_PARTS: Final = frozenset(
    {
        "addresses",
        "vips",
        "vip",
        "tls",
        "meshServices",
        "hostnameGenerators",
        "conditions",
        "state",
        _IDENTITIES,
        COUNTS,
    }
)


class ConnectedProxies(msgspec.Struct, frozen=True, dict=True):
    """The Dataplanes that are connected, and those that have a certificate."""

    connected: frozenset[Key] = frozenset()
    certified: frozenset[Key] = frozenset()

    @cached_property
    def _counted(self) -> dict[int, tuple[tuple[Key, ...], int]]:
        return {}

    @cached_property
    def _reported(self) -> dict[Key, tuple[Resource, "Facts", NamedAddresses]]:
        return {}

    def is_reported(self, resource: Resource, known: "Facts", addresses: NamedAddresses) -> bool:
        """Whether a status is up to date; the answer is kept, since most statuses stay as they are."""
        last = self._reported.get(resource.key)
        if last is not None and last[0] is resource and last[1] is known and last[2] is addresses:
            return True
        is_same = desired_status(resource, known, addresses, self) == (resource.status or {})
        if is_same:
            self._reported[resource.key] = resource, known, addresses
        return is_same

    def n_connected(self, proxies: tuple[Key, ...]) -> int:
        """How many of these are connected; the count is kept, since most services keep their proxies."""
        counted = self._counted.get(id(proxies))
        if counted is None or counted[0] is not proxies:
            counted = self._counted[id(proxies)] = (proxies, sum(key in self.connected for key in proxies))
        return counted[1]


class Facts(msgspec.Struct, frozen=True):
    """What follows from stored objects for a status; `proxies` is None where they are of another zone."""

    names: tuple[HostnameClaim, ...] = ()
    proxies: tuple[Key, ...] | None = None
    n_healthy: int = 0
    is_mtls_on: bool = False
    is_available: bool = False  # some port has an endpoint
    identities: tuple[str, ...] = ()  # values of service tags
    services: tuple[Key, ...] = ()
    problems: tuple[ReconcileProblem, ...] = ()
    conditions: tuple[Json, ...] = ()


@question
def facts(db: Db, destination: Key) -> Facts:
    """What there is to report on a destination or workload, except addresses and connections of proxies."""
    is_called = destination.kind in world.DESTINATION_KINDS
    known = _facts(db, destination, hostnames.of(db, destination) if is_called else ())
    problems = _hostname_problems(destination, known.names)
    if destination.kind != "MeshExternalService":
        return msgspec.structs.replace(known, problems=tuple(problems))
    return msgspec.structs.replace(
        known,
        problems=(*problems, *external_warnings.problems(db, destination)),
        conditions=tuple(external_warnings.conditions(db, destination)),
    )


def _facts(db: Db, destination: Key, names: tuple[HostnameClaim, ...]) -> Facts:
    match destination.kind:
        case "MeshService" if destination.zone == world.control_plane(db).zone:
            members = endpoints.selected(db, destination)
            return Facts(
                names,
                tuple(key for key, _ in members),
                _n_healthy(db, members),
                is_mtls_on=tls.mtls(db, destination.mesh) is not None,
                is_available=endpoints.is_available(db, destination),
                identities=endpoints.service_tags(db, destination),
            )
        case workloads.KIND if destination.zone == world.control_plane(db).zone:
            members = tuple((key, inbound_sections(db, key)) for key in workloads.members(db, destination))
            return Facts(names, tuple(key for key, _ in members), _n_healthy(db, members))
        case "MeshMultiZoneService":
            return Facts(names, services=endpoints.multi_zone_services(db, destination))
        case _:
            return Facts(names)


def _n_healthy(db: Db, members: Iterable[tuple[Key, tuple[str, ...]]]) -> int:
    """How many proxies are ready with all their inbounds of the service."""
    return sum(set(sections).issubset(ready(db, key)) for key, sections in members)


@question
def inbound_sections(db: Db, dataplane: Key) -> tuple[str, ...]:
    """All inbounds of a proxy, ready or not."""
    networking = network.networking(db, dataplane)
    return tuple(each.section for each in networking.inbounds) if networking else ()


@question
def ready(db: Db, dataplane: Key) -> tuple[str, ...]:
    """The inbounds of a proxy that are ready for calls."""
    networking = network.networking(db, dataplane)
    return tuple(each.section for each in networking.inbounds if each.is_ready) if networking else ()


class StatusPlan(msgspec.Struct, frozen=True):
    """Objects with their desired status, to write over the revision that each carries; see VipPlan."""

    changes: tuple[Resource, ...]
    used: UsedAddresses
    problems: tuple[ReconcileProblem, ...] = ()
    other_meshes: frozenset[str] = frozenset()


def plan(
    db: Db, mesh: str, proxies: ConnectedProxies, ranges: Ranges, history: AddressHistory, now: datetime
) -> StatusPlan:
    """The changes that lead from the stored statuses of a mesh to the desired ones; none where they agree."""
    vip_plan = vips.plan(db, served(db, mesh), ranges, history, now)
    changes, problems = [], list(vip_plan.problems)
    for key, assigned in vip_plan.assigned.items():
        resource = world.RESOURCES.get(db, key)
        known = facts(db, key)
        problems += known.problems
        if resource is not None and not proxies.is_reported(resource, known, assigned):
            changes.append(
                msgspec.structs.replace(resource, status=desired_status(resource, known, assigned, proxies))
            )
    for resource in workloads.stored(db, mesh):
        known = facts(db, resource.key)
        if known.proxies is not None and not proxies.is_reported(resource, known, ()):
            changes.append(
                msgspec.structs.replace(resource, status=desired_status(resource, known, (), proxies))
            )
    return StatusPlan(tuple(changes), vip_plan.used, tuple(sorted(problems)), vip_plan.other_meshes)


def served(db: Db, mesh: str) -> Iterator[Key]:
    """The destinations of a mesh; external services of other zones keep what their own zone reports."""
    for kind in world.DESTINATION_KINDS:
        for key, resource in world.BY_KIND.items(db, (kind, mesh)):
            is_stored = not isinstance(resource, DerivedResource)
            if is_stored and not world.is_of_another_zone(db, resource):
                yield key


def is_recount(before: Resource, after: Resource) -> bool:
    """Whether a status changes in nothing but the number of proxies."""
    old, new = dict(before.status or {}), dict(after.status or {})
    return bool(old.pop(COUNTS, None)) and bool(new.pop(COUNTS, None)) and old == new


def _hostname_problems(key: Key, names: Iterable[HostnameClaim]) -> Iterator[ReconcileProblem]:
    """Problems of host names that a destination's own spec asks for and another one holds.

    Names of generators are reported in the status instead. The legacy name of a service tag is not asked for
    by the spec, so nothing is reported where another service holds it.
    """
    for claim in names:
        if not claim.generator and not claim.hostname and not claim.is_legacy:
            message = f'cannot be called as "{claim.slot}": {claim.message}; choose another name'
            yield ReconcileProblem(key, "hostname", message)


def desired_status(
    resource: Resource, known: Facts, addresses: NamedAddresses, connected: ConnectedProxies
) -> dict[str, Json]:
    """The desired status of an object."""
    before = resource.status or {}
    if resource.kind == workloads.KIND:
        proxies = known.proxies or ()
        return {**before, COUNTS: _counts(known, proxies, connected.n_connected(proxies))}
    status = {**addresses_of(resource, addresses), **hostnames.reported(known.names)}
    status["conditions"] = [*status["conditions"], *known.conditions]
    if known.proxies is not None:
        status["tls"] = {"status": _tls(before, known, connected.certified)}
        status[COUNTS] = _counts(known, known.proxies, connected.n_connected(known.proxies))
        status["state"] = "Available" if known.is_available else "Unavailable"
        # A service that has lost all its proxies keeps the identities by which callers know the next ones.
        named = [{"type": "ServiceTag", "value": each} for each in known.identities]
        status[_IDENTITIES] = named or before.get(_IDENTITIES)
    if resource.kind == "MeshMultiZoneService":
        status["meshServices"] = [_matched(key) for key in known.services]
        status["conditions"] = [_condition(len(known.services))]
    kept = {name: value for name, value in before.items() if name not in _PARTS}
    return {**kept, **{name: value for name, value in status.items() if value}}


def addresses_of(resource: Resource, addresses: NamedAddresses) -> dict[str, Json]:
    """The fields of a status that have the virtual addresses of an object."""
    if resource.kind != "MeshExternalService":
        return {"vips": [{"ip": address} for _, address in addresses]}
    listed = [
        {"ip": address, "type": "Kuma", **({"hostname": name} if name != ITSELF else {})}
        for name, address in addresses
    ]
    # Kuma's released schema has a single address, in the field `vip`.
    single = next(({"ip": address} for name, address in addresses if name == ITSELF), None)
    return {"vips": listed, "vip": single}


def _tls(before: Json, known: Facts, certified: frozenset[Key]) -> str:
    """Ready once all proxies have certificates; it stays so, since new proxies start with one."""
    if not known.is_mtls_on:
        return _NOT_READY
    is_ready = _is_ready(before) or (known.proxies and certified.issuperset(known.proxies))
    return READY if is_ready else _NOT_READY


def unready(service: Resource) -> Resource:
    """The service with TLS status NotReady: its proxies have yet to get certificates."""
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
        message = f"Matched {n_matched} MeshService(s)"
        return {"type": _MATCHED, "status": "True", "reason": "MatchesFound", "message": message}
    message = "Selector does not match any MeshService in this zone"
    return {"type": _MATCHED, "status": "False", "reason": "NoMatchesFound", "message": message}
