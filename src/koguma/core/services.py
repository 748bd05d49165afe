"""Services: the MeshServices that follow from the Dataplanes of this zone, and which writes lead there.

`desired` is a question: what Dataplanes offer, under the name that their tag `kuma.io/service`, or without
such tags their label `kuma.io/workload`, gives them. `plan` is a latch: it compares that with what is stored
and gives the changes to write. What is stored has a say in it: where Dataplanes contradict each other, a port
stays as it is while any of them agrees, so that a service does not waver; and a service whose last Dataplane
has left stays for a grace period, because a restart is no farewell.

Instances of a service may serve the same port under different numbers, as two on one machine must. They are
one port of the service if their inbounds have one name, or if each instance has a single inbound of that
protocol. Its `targetPort` is then a word, the name or the protocol, and stays one: the port keeps its number
while instances come and go.

Only what carries `kuma.io/managed-by: meshservice-generator` is ever touched. A MeshService that somebody
wrote by hand, or took over by writing it without that label, wins over a generated one of the same name.
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
HAND_MADE: Final = "hand-made"  # the rule of the one problem that is nobody's mistake

_KIND: Final = "MeshService"
_OFF: Final = "Disabled"


class InboundPort(msgspec.Struct, frozen=True):
    """A port that a Dataplane serves; `is_only` where it has no other of that protocol for the service."""

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

    def takes(self, port: InboundPort) -> bool:
        """Whether a Dataplane's port is served under this one."""
        if port.protocol != self.protocol:
            return False
        if isinstance(self.target, int):
            return (port.name, port.number) == (self.name, self.number)
        by_protocol = self.target == self.protocol and (port.is_only or port.number == self.number)
        return by_protocol or port.name == self.target


class OfferedPort(msgspec.Struct, frozen=True):
    """A port of a service; `by` is the tag or label that names the service."""

    service: str
    by: str
    port: InboundPort


class PortSource(msgspec.Struct, frozen=True):
    """An offer, and the first in key order of the Dataplanes that make it."""

    offer: OfferedPort
    dataplane: Key


class ReconcileProblem(msgspec.Struct, frozen=True, order=True):
    """Why a service is not what some Dataplane says; `rule` names the sort, so that tests need no English."""

    about: Key
    rule: str
    message: str


class DesiredServices(msgspec.Struct, frozen=True):
    """What the Dataplanes of a zone offer in a mesh: sources by namespace and name, in order."""

    mesh: str
    zone: str
    is_on: bool = True
    services: tuple[tuple[tuple[str, str], tuple[PortSource, ...]], ...] = ()
    problems: tuple[ReconcileProblem, ...] = ()


@question
def desired(db: Db, mesh: str) -> DesiredServices:
    """What should be there. One more Dataplane that offers what others offer already changes nothing."""
    here = world.control_plane(db)
    if here.is_global or mode(db, mesh) == _OFF:
        return DesiredServices(mesh, here.zone, is_on=False)
    found: dict[tuple[str, str], dict[OfferedPort, Key]] = {}
    for key in world.BY_KIND.keys(db, ("Dataplane", mesh)):
        for offer in offered_ports(db, key) if key.zone == here.zone else ():
            found.setdefault((key.namespace, offer.service), {}).setdefault(offer, key)
    legal, problems = [], []
    for place, made in sorted(found.items()):
        sources = tuple(PortSource(offer, key) for offer, key in made.items())
        if names.is_dns1035_label(place[1]):
            legal.append((place, sources))
        else:
            problems.append(_bad_name(sources[0]))
    return DesiredServices(mesh, here.zone, services=tuple(legal), problems=tuple(problems))


def _bad_name(source: PortSource) -> ReconcileProblem:
    offer = source.offer
    words = f'no MeshService is made of {offer.by} "{offer.service}"; write one by hand, or change the name'
    return ReconcileProblem(source.dataplane, "name", f"{words}: {names.DNS1035_MESSAGE}")


@question
def mode(db: Db, mesh: str) -> str:
    """The mesh's `meshServices.mode`; empty where it says nothing, which generates (decision 0005)."""
    found = world.RESOURCES.get(db, Key("Mesh", "", "", "", mesh))
    return ((found.spec.get("meshServices") or {}).get("mode") or "") if found else ""


@question
def offered_ports(db: Db, dataplane: Key) -> tuple[OfferedPort, ...]:
    """What one Dataplane offers: each inbound under its own service tag, or all under the workload's name."""
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
    """All MeshServices of a mesh, whoever made them, in key order."""
    return tuple(resource for _, resource in world.BY_KIND.items(db, (_KIND, mesh)))


def are_alike(some: tuple[Resource, ...], others: tuple[Resource, ...]) -> bool:
    """Whether what a plan looks at is the very same in both; a status may differ, and often does."""
    return len(some) == len(others) and all(
        one is other or (one.spec is other.spec and one.labels is other.labels and one.key == other.key)
        for one, other in zip(some, others, strict=True)
    )


class CreateObject(msgspec.Struct, frozen=True):
    """Write a new MeshService, from its plain document."""

    key: Key
    document: Json


class ReplaceObject(msgspec.Struct, frozen=True):
    """Write this MeshService over the one whose revision it carries."""

    resource: Resource


class DeleteObject(msgspec.Struct, frozen=True):
    """Delete this MeshService, if it still has its revision."""

    resource: Resource


ServiceChange = CreateObject | ReplaceObject | DeleteObject


class ServicePlan(msgspec.Struct, frozen=True):
    """What to do now; what is odd; and when to look again even if nothing changes."""

    changes: tuple[ServiceChange, ...] = ()
    problems: tuple[ReconcileProblem, ...] = ()
    due_at: datetime | None = None


def plan(
    desired: DesiredServices, existing: Iterable[Resource], now: datetime, grace: timedelta = GRACE
) -> ServicePlan:
    """The way from what is stored to what is desired; none where they agree."""
    there = {resource.key: resource for resource in existing}
    holders = {resource.core_name: key for key, resource in there.items()}
    changes: list[ServiceChange] = []
    problems = list(desired.problems)
    kept: set[Key] = set()
    for (namespace, name), sources in desired.services:
        key = Key(_KIND, desired.mesh, desired.zone, namespace, name)
        kept.add(key)
        problem = _obstacle(key, there.get(key), holders, sources[0])
        if problem is not None:
            problems.append(problem)
            continue
        spec, odd = _spec(key, sources, there.get(key))
        problems += odd
        changes += _towards(key, spec, there.get(key))
    left = [r for k, r in there.items() if k not in kept and k.zone == desired.zone and is_generated(r)]
    ends = {resource.key: _ends_at(resource, grace) for resource in left}
    for resource in left:
        changes += _farewell(resource, ends[resource.key], now) if desired.is_on else [DeleteObject(resource)]
    # One whose period begins only now is stored with its label, which is a change, and so a reason to look.
    due = [end for end in ends.values() if end is not None and end > now] if desired.is_on else []
    return ServicePlan(tuple(changes), tuple(sorted(problems)), min(due, default=None))


def is_generated(resource: Resource) -> bool:
    """Whether a MeshService was made from Dataplanes, and may be changed and deleted with them."""
    return resource.labels.get(labels.MANAGED_BY) == GENERATOR


def _obstacle(
    key: Key, found: Resource | None, holders: Mapping[str, Key], first: PortSource
) -> ReconcileProblem | None:
    """Why this service cannot be generated, if something is in the way."""
    if found is not None and not is_generated(found):
        words = f"was written by hand, and stays as it is; {first.dataplane} offers a service of this name"
        return ReconcileProblem(key, HAND_MADE, words)
    holder = holders.get(_core_name(key), key)
    if holder == key:
        return None
    taken = f'cannot be made of {first.dataplane}: its name "{_core_name(key)}" is taken by {holder}'
    return ReconcileProblem(key, "core-name", f"{taken}; rename that one, or the service")


def _core_name(key: Key) -> str:
    return f"{key.name}.{key.namespace}" if key.namespace else key.name


def _spec(
    key: Key, sources: tuple[PortSource, ...], found: Resource | None
) -> tuple[Json, list[ReconcileProblem]]:
    """What a generated MeshService says, and which Dataplanes say something else."""
    written = found.spec if found else {}
    by = _selected_by(written)
    if by not in {source.offer.by for source in sources}:
        by = sources[0].offer.by
    problems = [_other_selector(key, by, source) for source in sources if source.offer.by != by]
    ports, odd = _ports(key, [source for source in sources if source.offer.by == by], written)
    return {"selector": _selector(key, by), "ports": [_port(port) for port in ports]}, problems + odd


def _selector(key: Key, by: str) -> Json:
    selected = {by: key.name}
    if key.namespace:  # a service is of its namespace, as its Dataplanes are
        selected[labels.NAMESPACE] = key.namespace
    return (
        {"dataplaneTags": selected} if by == tags.SERVICE else {"dataplaneLabels": {"matchLabels": selected}}
    )


def _selected_by(spec: Json) -> str:
    selector = spec.get("selector") or {}
    if tags.SERVICE in (selector.get("dataplaneTags") or {}):
        return tags.SERVICE
    chosen = (selector.get("dataplaneLabels") or {}).get("matchLabels") or {}
    return labels.WORKLOAD if labels.WORKLOAD in chosen else ""


def _other_selector(key: Key, by: str, source: PortSource) -> ReconcileProblem:
    words = f"is no part of {key}: it names its service by {source.offer.by}, and others do by {by}"
    return ReconcileProblem(source.dataplane, "selector", words)


def _ports(
    key: Key, sources: Sequence[PortSource], written: Json
) -> tuple[list[ServicePort], list[ReconcileProblem]]:
    """The union of all ports. Of two with one name or number, the stored one wins, else the first."""
    offered = [source.offer.port for source in sources]
    chosen = [_read_port(port) for port in written.get("ports") or ()]
    for _ in range(len(offered) + 1):  # a port that is chosen late may still unite with an earlier rival's
        before, chosen = chosen, _chosen(offered, chosen)
        if chosen == before:
            break
    problems = []
    for source in sources:
        port = source.offer.port
        if not any(each.takes(port) for each in chosen):
            rival = min(_rivals(port, chosen), key=_place)
            words = f"has port {port}, which contradicts port {rival} of {key}; make them agree"
            problems.append(ReconcileProblem(source.dataplane, "port", words))
    return chosen, problems


def _chosen(offered: Sequence[InboundPort], before: Sequence[ServicePort]) -> list[ServicePort]:
    """The ports of a service of whose Dataplanes each serves some of these, in order."""
    chosen: list[ServicePort] = []
    for each in before:  # a port with a word for its target stays as long as the word means anything
        is_meant = isinstance(each.target, str) and any(each.takes(port) for port in offered)
        if is_meant and not any(_rivals(each, chosen)):
            chosen.append(each)
    for port in sorted(offered, key=lambda port: _alone(port) not in before):
        if any(each.takes(port) for each in chosen):
            continue
        united = None if _alone(port) in before else _united(port, chosen, offered)
        if united is not None:
            chosen = [united if each.name == united.name else each for each in chosen]
        elif not any(_rivals(port, chosen)):
            chosen.append(_alone(port))
    return sorted(chosen, key=_place)


def _alone(port: InboundPort) -> ServicePort:
    return ServicePort(port.name, port.number, port.protocol, port.number)


def _united(
    port: InboundPort, chosen: Iterable[ServicePort], offered: Sequence[InboundPort]
) -> ServicePort | None:
    """A chosen port with the target by which it has another Dataplane's port too; None where none can."""
    for each in chosen:
        if each.protocol != port.protocol or isinstance(each.target, str):
            continue
        if each.name == port.name:  # and so it has a name, since its number is another one
            return msgspec.structs.replace(each, target=port.name)
        if port.is_only and any(other.is_only and each.takes(other) for other in offered):
            return msgspec.structs.replace(each, target=port.protocol)
    return None


def _place(port: ServicePort) -> tuple[int, str]:
    return port.number, port.name


def _rivals(port: InboundPort | ServicePort, chosen: Iterable[ServicePort]) -> Iterator[ServicePort]:
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


def _towards(key: Key, spec: Json, found: Resource | None) -> Iterator[ServiceChange]:
    if found is None:
        yield CreateObject(key, _document(key, spec))
        return
    # State, identities and status are kept by others; other labels are whoever's wrote them.
    own = {name: value for name, value in found.labels.items() if name != GRACE_STARTED}
    changed = {**found.spec, **spec}
    if own != found.labels or changed != found.spec:
        yield ReplaceObject(msgspec.structs.replace(found, labels=own, spec=changed))


def _document(key: Key, spec: Json) -> Json:
    own = {labels.MANAGED_BY: GENERATOR}
    if key.namespace:
        own[labels.NAMESPACE] = key.namespace
    return {"type": _KIND, "mesh": key.mesh, "name": _core_name(key), "labels": own, "spec": spec}


def _farewell(resource: Resource, ends_at: datetime | None, now: datetime) -> Iterator[ServiceChange]:
    """What happens to a service without Dataplanes: first its grace period begins, then it goes."""
    if ends_at is None:
        started = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        own = sorted({**resource.labels, GRACE_STARTED: started}.items())
        yield ReplaceObject(msgspec.structs.replace(resource, labels=dict(own)))
    elif ends_at <= now:
        yield DeleteObject(resource)


def _ends_at(resource: Resource, grace: timedelta) -> datetime | None:
    """When the grace period ends; None where it has not begun, or nobody can read when."""
    try:
        started = datetime.fromisoformat(resource.labels.get(GRACE_STARTED, ""))
        return started + grace if started.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
