"""References: what policies name, and whether it is there.

A reference to nothing changes nothing, and does so in silence; one in a route's `backendRefs` loses requests.
A MeshService that the control plane will make of proxies counts as being there.
"""

from collections.abc import Iterator
from typing import NamedTuple

from koguma.core import match, services, world
from koguma.core.incremental import Db, question
from koguma.core.items import clean_spec
from koguma.core.oddities.problem import NO_OBJECT, NO_PORT, Problem, Severity
from koguma.core.role import PolicyRole
from koguma.core.world import Destination, Pairs, pairs
from koguma.model import labels, tags, target_ref
from koguma.model.nearest import nearest
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import child, item


class Reference(NamedTuple):
    """A reference as written, and where it stands."""

    path: str
    ref: Json
    severity: Severity = "warning"  # what it costs where it leads nowhere

    @property
    def kind(self) -> str:
        """What is referenced."""
        return str(self.ref.get("kind") or "Mesh")

    @property
    def name(self) -> str:
        """Its name, where it is not found by labels."""
        return str(self.ref.get("name") or "")

    @property
    def port(self) -> str:
        """The port, by name or number."""
        return str(self.ref.get("sectionName") or self.ref.get("port") or "")

    def __str__(self) -> str:
        if self.ref.get("labels"):
            return f"{self.kind} with the labels {_listed(pairs(self.ref['labels']))}"
        tagged = f" with the tags {_listed(pairs(self.ref['tags']))}" if self.ref.get("tags") else ""
        return f'{self.kind} "{self.name}"{tagged}'


def _listed(of: Pairs) -> str:
    return ", ".join(f"{name}={value}" for name, value in of)


def unresolved(db: Db, policy: Key) -> Iterator[Problem]:
    """The references of a policy that lead nowhere."""
    for one in references(clean_spec(db, policy)):
        match one.kind:
            case "MeshServiceSubset":
                yield from _subset(db, policy, one)
            case "MeshGateway" | target_ref.HTTP_ROUTE | target_ref.TCP_ROUTE:
                yield from _object(db, policy, one)
            case kind if kind in world.DESTINATION_KINDS:
                yield from _object(db, policy, one)
                yield from _port(db, policy, one)


def references(spec: Json) -> Iterator[Reference]:
    """All references of a spec to objects; those that select proxies or clients are none."""
    top = spec.get("targetRef") or {}
    if top.get("kind") in ("MeshGateway", *match.ROUTE_KINDS):
        yield Reference("spec.targetRef", top)
    for index, entry in enumerate(spec.get("to") or ()):
        path = item("spec.to", index)
        yield Reference(child(path, "targetRef"), entry.get("targetRef") or {})
        yield from _of_rules(entry.get("rules") or (), child(path, "rules"))
    yield from _of_rules(spec.get("rules") or (), "spec.rules")


def _of_rules(rules: Json, path: str) -> Iterator[Reference]:
    """Backends and mirrors of a route's rules; rules of other policies have neither."""
    for index, rule in enumerate(rules):
        conf, at = rule.get("default") or {}, child(item(path, index), "default")
        for number, ref in enumerate(conf.get("backendRefs") or ()):
            yield Reference(item(child(at, "backendRefs"), number), ref, "error")
        filters = conf.get("filters")
        for number, each in enumerate(filters if isinstance(filters, list) else ()):
            mirror = each.get("requestMirror") or {}
            if mirror.get("backendRef"):
                place = child(item(child(at, "filters"), number), "requestMirror.backendRef")
                yield Reference(place, mirror["backendRef"])


def _object(db: Db, policy: Key, one: Reference) -> Iterator[Problem]:
    if found(db, policy, one) or will_be_made(db, policy, one):
        return
    message = f"{policy} refers to {one}, which does not exist{_hint(db, policy, one)}"
    yield Problem(NO_OBJECT, message, (policy,), one.severity, one.path)


def found(db: Db, policy: Key, one: Reference) -> tuple[Key, ...]:
    """The objects that a reference of a policy means."""
    wanted = pairs(one.ref.get("labels"))
    selector = match.selector(db, policy)
    if wanted and selector is not None and selector.role is PolicyRole.PRODUCER:
        wanted = pairs({labels.NAMESPACE: policy.namespace, **dict(wanted)})
    if one.kind == "MeshGateway":
        return tuple(key for key in _of_kind(db, policy.mesh, one.kind) if key.name == one.name)
    namespace = one.ref.get("namespace") or policy.namespace
    return world.referenced(db, policy.mesh, one.kind, one.name, namespace, policy.zone, wanted)


def _of_kind(db: Db, mesh: str, kind: str) -> tuple[Key, ...]:
    return world.BY_KIND.keys(db, (kind, mesh))


def _hint(db: Db, policy: Key, one: Reference) -> str:
    there = _of_kind(db, policy.mesh, one.kind)
    elsewhere = [key for key in there if one.name and key.name == one.name]
    if elsewhere:
        return f"; there is {elsewhere[0]}: write its namespace or zone, or refer to it by labels"
    near = nearest(one.name, sorted({key.name for key in there}))
    if near:
        return f'; did you mean "{near}"?'
    return "; create it, or correct the reference"


@question
def served(db: Db, mesh: str) -> frozenset[Pairs]:
    """What proxies serve: the tags of their inbounds."""
    known = (world.proxy(db, key) for key in match.proxies(db, mesh))
    return frozenset(inbound.tags for one in known if one for inbound in one.inbounds)


def will_be_made(db: Db, policy: Key, one: Reference) -> bool:
    """Whether the control plane is about to make such a MeshService out of proxies."""
    if one.kind != "MeshService" or not one.name:
        return False
    place = one.ref.get("namespace") or policy.namespace, one.name
    return place in dict(services.desired(db, policy.mesh).services)


def _subset(db: Db, policy: Key, one: Reference) -> Iterator[Problem]:
    """A subset of a service is made of the proxies that serve it, whoever says so."""
    wanted = {tags.SERVICE: one.name, **(one.ref.get("tags") or {})}
    serving = [dict(own) for own in served(db, policy.mesh)]
    if any(all(own.get(name) == value for name, value in wanted.items()) for own in serving):
        return
    serves = any(own.get(tags.SERVICE) == one.name for own in serving)
    if serves:
        why = "but no proxy that serves it has these tags; correct the tags, or start such a proxy"
    elif world.destinations_named(db, policy.mesh).get(("MeshService", one.name)) and not one.ref.get("tags"):
        return
    else:
        why = "which no proxy serves; correct the name, or start such a proxy"
    yield Problem(NO_OBJECT, f"{policy} refers to {one}, {why}", (policy,), one.severity, one.path)


def _port(db: Db, policy: Key, one: Reference) -> Iterator[Problem]:
    if not one.port or one.kind == "MeshExternalService":
        return
    for key in found(db, policy, one):
        target = world.destination(db, key)
        if target is not None and target.port(one.port) is None:
            message = f'{policy} refers to port "{one.port}" of {key}, which has {_ports(target)}'
            yield Problem(NO_PORT, message, (policy, key), one.severity, one.path)


def _ports(target: Destination) -> str:
    shown = [f"{port.section} ({port.number})" if port.name else port.section for port in target.ports]
    return f"only {', '.join(shown)}; choose one of these" if shown else "no ports"
