"""Services: the MeshServices that follow from the Dataplanes of this zone, and the writes that create them.

`desired` is a question: the services that Dataplanes offer, named by their tag `kuma.io/service`, or without
such tags by their label `kuma.io/workload`. `plan` compares that with the stored MeshServices and gives the
changes to write. It depends on what is stored: where Dataplanes contradict each other, a port stays as it is
while any of them agrees, so that a service does not flap; and a service whose last Dataplane has gone stays
for a grace period, because the Dataplane may only be restarting.

Instances of a service may serve the same port under different numbers, as two on one machine must. They are
one port of the service if their inbounds have one name, or if each instance has a single inbound of that
protocol. Its `targetPort` is then that name or the protocol instead of a number, and stays so: the port keeps
its number while instances come and go.

Only MeshServices with the label `kuma.io/managed-by: meshservice-generator` are ever changed or deleted. One
that a user wrote, or took over by writing it without that label, wins over a generated one of the same name.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from koguma.core import world
from koguma.core.incremental import Db, question
from koguma.model import labels, names, tags
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

GENERATOR: Final = "meshservice-generator"  # the value of the label kuma.io/managed-by
GRACE_STARTED: Final = labels.GRACE_STARTED
GRACE: Final = timedelta(hours=1)
HAND_MADE: Final = "hand-made"  # the rule of the one problem that needs no action

_KIND: Final = "MeshService"
_OFF: Final = "Disabled"


class InboundPort(msgspec.Struct, frozen=True):
    """An inbound of a Dataplane; `is_only` where it is the service's only one of that protocol there."""

    name: str
    number: int
    protocol: str
    is_only: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.number}, {self.protocol})"


class ServicePort(msgspec.Struct, frozen=True):
    """A port of a generated MeshService; `target` is a number, the name of inbounds, or their protocol."""

    name: str
    number: int
    protocol: str
    target: int | str

    def __str__(self) -> str:
        return f"{self.name} ({self.number}, {self.protocol})"

    def covers(self, port: InboundPort) -> bool:
        """Whether this port of the service covers an inbound of a Dataplane."""
        if port.protocol != self.protocol:
            return False
        if isinstance(self.target, int):
            return (port.name, port.number) == (self.name, self.number)
        by_protocol = self.target == self.protocol and (port.is_only or port.number == self.number)
        return by_protocol or port.name == self.target


class OfferedPort(msgspec.Struct, frozen=True):
    """An inbound that a Dataplane offers as a port of a service; `by` is the tag or label that names it."""

    service: str
    by: str
    port: InboundPort


class PortSource(msgspec.Struct, frozen=True):
    """An offered port, and the first in key order of the Dataplanes that offer it."""

    offer: OfferedPort
    dataplane: Key


class ReconcileProblem(msgspec.Struct, frozen=True, order=True):
    """Why a reconciler could not do what an object asks for; `rule` is a stable code for tests."""

    about: Key
    rule: str
    message: str


class DesiredServices(msgspec.Struct, frozen=True):
    """The services that the Dataplanes of a zone offer in a mesh, by namespace and name, in order."""

    mesh: str
    zone: str
    is_on: bool = True
    services: tuple[tuple[tuple[str, str], tuple[PortSource, ...]], ...] = ()
    problems: tuple[ReconcileProblem, ...] = ()


@question
def desired(db: Db, mesh: str) -> DesiredServices:
    """The services to generate. One more Dataplane that offers the same as others changes nothing."""
    here = world.control_plane(db)
    if here.is_global or mode(db, mesh) == _OFF:
        return DesiredServices(mesh, here.zone, is_on=False)
    by_service: dict[tuple[str, str], dict[OfferedPort, Key]] = {}
    for key in world.BY_KIND.keys(db, ("Dataplane", mesh)):
        for offer in offered_ports(db, key) if key.zone == here.zone else ():
            by_service.setdefault((key.namespace, offer.service), {}).setdefault(offer, key)
    legal, problems = [], []
    for named, ports in sorted(by_service.items()):
        sources = tuple(PortSource(offer, key) for offer, key in ports.items())
        if names.is_dns1035_label(named[1]):
            legal.append((named, sources))
        else:
            problems.append(_bad_name(sources[0]))
    return DesiredServices(mesh, here.zone, services=tuple(legal), problems=tuple(problems))


def _bad_name(source: PortSource) -> ReconcileProblem:
    offer = source.offer
    message = f'no MeshService is made of {offer.by} "{offer.service}"; write one by hand, or change the name'
    return ReconcileProblem(source.dataplane, "name", f"{message}: {names.DNS1035_MESSAGE}")


@question
def mode(db: Db, mesh: str) -> str:
    """The mesh's `meshServices.mode`; empty where it is not set, which generates (decision 0005)."""
    resource = world.RESOURCES.get(db, Key("Mesh", "", "", "", mesh))
    return ((resource.spec.get("meshServices") or {}).get("mode") or "") if resource else ""


@question
def offered_ports(db: Db, dataplane: Key) -> tuple[OfferedPort, ...]:
    """The ports that a Dataplane offers: each inbound under its service tag, or all under its workload."""
    proxy = world.proxy(db, dataplane)
    if proxy is None:
        return ()
    tagged = [(dict(inbound.tags).get(tags.SERVICE, ""), inbound) for inbound in proxy.inbounds]
    by, workload = tags.SERVICE, dict(proxy.labels).get(labels.WORKLOAD, "")
    if not any(service for service, _ in tagged):
        by, tagged = labels.WORKLOAD, [(workload, inbound) for _, inbound in tagged]
    n_alike = Counter((service, inbound.protocol) for service, inbound in tagged)
    return tuple(
        OfferedPort(
            service, by, InboundPort(i.section, i.port, i.protocol, n_alike[service, i.protocol] == 1)
        )
        for service, i in tagged
        if service
    )


def stored(db: Db, mesh: str) -> tuple[Resource, ...]:
    """All MeshServices of a mesh, generated or not, in key order."""
    return tuple(resource for _, resource in world.BY_KIND.items(db, (_KIND, mesh)))


def are_alike(some: tuple[Resource, ...], others: tuple[Resource, ...]) -> bool:
    """Whether specs, labels and keys are identical, which is all that a plan reads; statuses may differ."""
    return len(some) == len(others) and all(
        resource is other
        or (resource.spec is other.spec and resource.labels is other.labels and resource.key == other.key)
        for resource, other in zip(some, others, strict=True)
    )


class CreateObject(msgspec.Struct, frozen=True):
    """Write a new object, from its plain document."""

    key: Key
    document: Json


class ReplaceObject(msgspec.Struct, frozen=True):
    """Write this object over the one whose revision it carries."""

    resource: Resource


class DeleteObject(msgspec.Struct, frozen=True):
    """Delete this object, if it still has its revision."""

    resource: Resource


ServiceChange = CreateObject | ReplaceObject | DeleteObject


class ServicePlan(msgspec.Struct, frozen=True):
    """The changes to write now, the problems, and when to plan again even if nothing changes."""

    changes: tuple[ServiceChange, ...] = ()
    problems: tuple[ReconcileProblem, ...] = ()
    due_at: datetime | None = None


def plan(
    desired: DesiredServices, existing: Iterable[Resource], now: datetime, grace: timedelta = GRACE
) -> ServicePlan:
    """The changes that lead from the stored services to the desired ones; none where they agree."""
    stored_by_key = {resource.key: resource for resource in existing}
    holders = {resource.core_name: key for key, resource in stored_by_key.items()}
    changes: list[ServiceChange] = []
    problems = list(desired.problems)
    kept: set[Key] = set()
    for (namespace, name), sources in desired.services:
        key = Key(_KIND, desired.mesh, desired.zone, namespace, name)
        kept.add(key)
        problem = _obstacle(key, stored_by_key.get(key), holders, sources[0])
        if problem is not None:
            problems.append(problem)
            continue
        spec, spec_problems = _spec(key, sources, stored_by_key.get(key))
        problems += spec_problems
        changes += _changes(key, spec, stored_by_key.get(key))
    leftovers = [
        r for k, r in stored_by_key.items() if k not in kept and k.zone == desired.zone and is_generated(r)
    ]
    ends = {resource.key: _ends_at(resource, grace) for resource in leftovers}
    for resource in leftovers:
        changes += _expiry(resource, ends[resource.key], now) if desired.is_on else [DeleteObject(resource)]
    # A grace period that begins now is written as a label, and that change causes the next plan.
    due_times = [end for end in ends.values() if end is not None and end > now] if desired.is_on else []
    return ServicePlan(tuple(changes), tuple(sorted(problems)), min(due_times, default=None))


def is_generated(resource: Resource) -> bool:
    """Whether a MeshService was generated from Dataplanes, and may be changed and deleted with them."""
    return resource.labels.get(labels.MANAGED_BY) == GENERATOR


def _obstacle(
    key: Key, stored_service: Resource | None, holders: Mapping[str, Key], first: PortSource
) -> ReconcileProblem | None:
    """Why this service cannot be generated, if so."""
    if stored_service is not None and not is_generated(stored_service):
        message = f"was written by hand, and stays as it is; {first.dataplane} offers a service of this name"
        return ReconcileProblem(key, HAND_MADE, message)
    holder = holders.get(_core_name(key), key)
    if holder == key:
        return None
    taken = f'cannot be made of {first.dataplane}: its name "{_core_name(key)}" is taken by {holder}'
    return ReconcileProblem(key, "core-name", f"{taken}; rename that one, or the service")


def _core_name(key: Key) -> str:
    return f"{key.name}.{key.namespace}" if key.namespace else key.name


def _spec(
    key: Key, sources: tuple[PortSource, ...], stored_service: Resource | None
) -> tuple[Json, list[ReconcileProblem]]:
    """The spec of a generated MeshService, and problems of Dataplanes that contradict it."""
    written = stored_service.spec if stored_service else {}
    by = _selected_by(written)
    if by not in {source.offer.by for source in sources}:
        by = sources[0].offer.by
    problems = [_other_selector(key, by, source) for source in sources if source.offer.by != by]
    ports, port_problems = _ports(key, [source for source in sources if source.offer.by == by], written)
    return {
        "selector": _selector(key, by),
        "ports": [_port(port) for port in ports],
    }, problems + port_problems


def _selector(key: Key, by: str) -> Json:
    selected = {by: key.name}
    if key.namespace:  # a service selects Dataplanes of its own namespace only
        selected[labels.NAMESPACE] = key.namespace
    return (
        {"dataplaneTags": selected} if by == tags.SERVICE else {"dataplaneLabels": {"matchLabels": selected}}
    )


def _selected_by(spec: Json) -> str:
    selector = spec.get("selector") or {}
    if tags.SERVICE in (selector.get("dataplaneTags") or {}):
        return tags.SERVICE
    match_labels = (selector.get("dataplaneLabels") or {}).get("matchLabels") or {}
    return labels.WORKLOAD if labels.WORKLOAD in match_labels else ""


def _other_selector(key: Key, by: str, source: PortSource) -> ReconcileProblem:
    message = f"is no part of {key}: it names its service by {source.offer.by}, and others do by {by}"
    return ReconcileProblem(source.dataplane, "selector", message)


def _ports(
    key: Key, sources: Sequence[PortSource], written: Json
) -> tuple[list[ServicePort], list[ReconcileProblem]]:
    """The union of all ports. Of two with one name or number, the stored one wins, else the first."""
    offered = [source.offer.port for source in sources]
    chosen = [_read_port(port) for port in written.get("ports") or ()]
    for _ in range(len(offered) + 1):  # a port that is chosen late may still merge with an earlier one
        before, chosen = chosen, _chosen(offered, chosen)
        if chosen == before:
            break
    problems = []
    for source in sources:
        port = source.offer.port
        if not any(each.covers(port) for each in chosen):
            rival = min(_conflicting(port, chosen), key=_by_number)
            message = f"has port {port}, which contradicts port {rival} of {key}; make them agree"
            problems.append(ReconcileProblem(source.dataplane, "port", message))
    return chosen, problems


def _chosen(offered: Sequence[InboundPort], before: Sequence[ServicePort]) -> list[ServicePort]:
    """One round of choosing the ports of a service from those that its Dataplanes offer, in order."""
    chosen: list[ServicePort] = []
    for each in before:  # a port whose target is a name or protocol stays as long as it covers an inbound
        covers_any = isinstance(each.target, str) and any(each.covers(port) for port in offered)
        if covers_any and not any(_conflicting(each, chosen)):
            chosen.append(each)
    for port in sorted(offered, key=lambda port: _as_service_port(port) not in before):
        if any(each.covers(port) for each in chosen):
            continue
        united = None if _as_service_port(port) in before else _merged(port, chosen, offered)
        if united is not None:
            chosen = [united if each.name == united.name else each for each in chosen]
        elif not any(_conflicting(port, chosen)):
            chosen.append(_as_service_port(port))
    return sorted(chosen, key=_by_number)


def _as_service_port(port: InboundPort) -> ServicePort:
    return ServicePort(port.name, port.number, port.protocol, port.number)


def _merged(
    port: InboundPort, chosen: Iterable[ServicePort], offered: Sequence[InboundPort]
) -> ServicePort | None:
    """A chosen port with a target by which it covers this inbound too; None where none can."""
    for each in chosen:
        if each.protocol != port.protocol or isinstance(each.target, str):
            continue
        if each.name == port.name:  # a real name: a port without one is named by its number, which differs
            return msgspec.structs.replace(each, target=port.name)
        if port.is_only and any(other.is_only and each.covers(other) for other in offered):
            return msgspec.structs.replace(each, target=port.protocol)
    return None


def _by_number(port: ServicePort) -> tuple[int, str]:
    return port.number, port.name


def _conflicting(port: InboundPort | ServicePort, chosen: Iterable[ServicePort]) -> Iterator[ServicePort]:
    return (each for each in chosen if each.name == port.name or each.number == port.number)


def _port(port: ServicePort) -> Json:
    return {
        "name": port.name,
        "port": port.number,
        "targetPort": port.target,
        "appProtocol": port.protocol,
    }


def _read_port(port: Json) -> ServicePort:
    number = port.get("port") or 0
    target = port.get("targetPort")
    word = target if isinstance(target, str) and target else number
    return ServicePort(port.get("name") or str(number), number, port.get("appProtocol") or "tcp", word)


def _changes(key: Key, spec: Json, stored_service: Resource | None) -> Iterator[ServiceChange]:
    if stored_service is None:
        yield CreateObject(key, _document(key, spec))
        return
    # Other fields and labels have other writers, and are kept.
    kept_labels = {name: value for name, value in stored_service.labels.items() if name != GRACE_STARTED}
    changed = {**stored_service.spec, **spec}
    if kept_labels != stored_service.labels or changed != stored_service.spec:
        yield ReplaceObject(msgspec.structs.replace(stored_service, labels=kept_labels, spec=changed))


def _document(key: Key, spec: Json) -> Json:
    own_labels = {labels.MANAGED_BY: GENERATOR}
    if key.namespace:
        own_labels[labels.NAMESPACE] = key.namespace
    return {"type": _KIND, "mesh": key.mesh, "name": _core_name(key), "labels": own_labels, "spec": spec}


def _expiry(resource: Resource, ends_at: datetime | None, now: datetime) -> Iterator[ServiceChange]:
    """A service without Dataplanes: first its grace period begins, then it is deleted."""
    if ends_at is None:
        started = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        own_labels = sorted({**resource.labels, GRACE_STARTED: started}.items())
        yield ReplaceObject(msgspec.structs.replace(resource, labels=dict(own_labels)))
    elif ends_at <= now:
        yield DeleteObject(resource)


def _ends_at(resource: Resource, grace: timedelta) -> datetime | None:
    """When the grace period ends; None where it has not begun, or its label cannot be read."""
    try:
        started = datetime.fromisoformat(resource.labels.get(GRACE_STARTED, ""))
        return started + grace if started.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
