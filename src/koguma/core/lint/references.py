"""References: dangling references of policies.

A dangling targetRef has no effect, and nothing else would show it; one in a route's `backendRefs` loses
requests. A MeshService that the control plane is about to generate counts as existing.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from koguma.core import match, selectors, services, world
from koguma.core.incremental import Db, question
from koguma.core.items import clean_spec
from koguma.core.lint.problem import NO_OBJECT, NO_PORT, Problem, Severity
from koguma.core.role import PolicyRole
from koguma.core.world import Destination, Pairs, pairs
from koguma.model import labels, tags, target_ref
from koguma.model.nearest import nearest
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import child, item

_EXTENSION: Final = "extensionRef"  # of a filter that a route of the Gateway API names


class Reference(NamedTuple):
    """A reference as written, and its path in the policy."""

    path: str
    ref: Json
    severity: Severity = "warning"  # of the problem, where it is dangling

    @property
    def kind(self) -> str:
        """The kind of the target."""
        return str(self.ref.get("kind") or "Mesh")

    @property
    def name(self) -> str:
        """The name of the target; empty for a reference by labels."""
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


def _listed(values: Pairs) -> str:
    return ", ".join(f"{name}={value}" for name, value in values)


def unresolved(db: Db, policy: Key) -> Iterator[Problem]:
    """The dangling references of a policy."""
    for reference in references(clean_spec(db, policy)):
        match reference.kind:
            case "MeshServiceSubset":
                yield from _subset(db, policy, reference)
            case "MeshGateway" | target_ref.HTTP_ROUTE | target_ref.TCP_ROUTE:
                yield from _object(db, policy, reference)
            case kind if kind in world.DESTINATION_KINDS:
                yield from _object(db, policy, reference)
                yield from _port(db, policy, reference)
            case _ if reference.path.endswith(_EXTENSION):  # one that was found is no longer a reference
                yield from _object(db, policy, reference)


def references(spec: Json) -> Iterator[Reference]:
    """All references of a spec to objects; a targetRef that selects proxies or clients is none."""
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
            if each.get("extensionRef"):
                place = child(item(child(at, "filters"), number), _EXTENSION)
                yield Reference(place, each["extensionRef"], "error")


def _object(db: Db, policy: Key, reference: Reference) -> Iterator[Problem]:
    if resolved(db, policy, reference) or will_be_generated(db, policy, reference):
        return
    message = f"{policy} refers to {reference}, which does not exist{_hint(db, policy, reference)}"
    yield Problem(NO_OBJECT, message, (policy,), reference.severity, reference.path)


def resolved(db: Db, policy: Key, reference: Reference) -> tuple[Key, ...]:
    """The objects that a reference of a policy resolves to."""
    ref_labels = pairs(reference.ref.get("labels"))
    selector = selectors.selector(db, policy)
    if ref_labels and selector is not None and selector.role is PolicyRole.PRODUCER:
        ref_labels = pairs({labels.NAMESPACE: policy.namespace, **dict(ref_labels)})
    if reference.kind == "MeshGateway":
        return world.BY_NAME.keys(db, (reference.kind, policy.mesh, reference.name))
    namespace = reference.ref.get("namespace") or policy.namespace
    return world.referenced(
        db, policy.mesh, reference.kind, reference.name, namespace, policy.zone, ref_labels
    )


def _of_kind(db: Db, mesh: str, kind: str) -> tuple[Key, ...]:
    return world.BY_KIND.keys(db, (kind, mesh))


def _hint(db: Db, policy: Key, reference: Reference) -> str:
    candidates = _of_kind(db, policy.mesh, reference.kind)
    namesakes = [key for key in candidates if reference.name and key.name == reference.name]
    if namesakes:
        return f"; there is {namesakes[0]}: write its namespace or zone, or refer to it by labels"
    near = nearest(reference.name, sorted({key.name for key in candidates}))
    if near:
        return f'; did you mean "{near}"?'
    return "; create it, or correct the reference"


@question
def served(db: Db, mesh: str) -> frozenset[Pairs]:
    """The tags of all inbounds of a mesh."""
    proxies = (world.proxy(db, key) for key in match.proxies(db, mesh))
    return frozenset(inbound.tags for proxy in proxies if proxy for inbound in proxy.inbounds)


def will_be_generated(db: Db, policy: Key, reference: Reference) -> bool:
    """Whether the control plane is about to generate such a MeshService."""
    if reference.kind != "MeshService" or not reference.name:
        return False
    namespaced_name = reference.ref.get("namespace") or policy.namespace, reference.name
    return namespaced_name in dict(services.desired(db, policy.mesh).services)


def _subset(db: Db, policy: Key, reference: Reference) -> Iterator[Problem]:
    """A subset of a service consists of proxies with its tags, whether or not there is a MeshService."""
    required = {tags.SERVICE: reference.name, **(reference.ref.get("tags") or {})}
    inbound_tags = [dict(own) for own in served(db, policy.mesh)]
    if any(all(own.get(name) == value for name, value in required.items()) for own in inbound_tags):
        return
    serves = any(own.get(tags.SERVICE) == reference.name for own in inbound_tags)
    if serves:
        why = "but no proxy that serves it has these tags; correct the tags, or start such a proxy"
    elif world.BY_NAME.has(db, ("MeshService", policy.mesh, reference.name)) and not reference.ref.get(
        "tags"
    ):
        return
    else:
        why = "which no proxy serves; correct the name, or start such a proxy"
    yield Problem(
        NO_OBJECT, f"{policy} refers to {reference}, {why}", (policy,), reference.severity, reference.path
    )


def _port(db: Db, policy: Key, reference: Reference) -> Iterator[Problem]:
    if not reference.port or reference.kind == "MeshExternalService":
        return
    for key in resolved(db, policy, reference):
        target = world.destination(db, key)
        if target is not None and target.port(reference.port) is None:
            message = f'{policy} refers to port "{reference.port}" of {key}, which has {_ports(target)}'
            yield Problem(NO_PORT, message, (policy, key), reference.severity, reference.path)


def _ports(target: Destination) -> str:
    shown = [f"{port.section} ({port.number})" if port.name else port.section for port in target.ports]
    return f"only {', '.join(shown)}; choose one of these" if shown else "no ports"
