"""Selectors: how each policy says which proxies it selects, read from its targetRef and its labels."""

from collections.abc import Iterator, Mapping

import msgspec

from koguma.core import world
from koguma.core.incremental import Db, question
from koguma.core.role import PolicyRole
from koguma.core.world import Pairs, pairs
from koguma.model import derived, labels, tags
from koguma.model.resource import Key
from koguma.model.schema import Json


class Selector(msgspec.Struct, frozen=True, cache_hash=True):
    """What decides which proxies a policy selects, and part of how it ranks."""

    policy: Key
    core_name: str
    top_kind: str  # as written; decides the rank
    by: str = "Mesh"  # how proxies are selected: Mesh, tags, Dataplane, MeshGateway; via a route, the route's
    name: str = ""  # of a Dataplane or MeshGateway
    namespace: str = ""
    labels: Pairs = ()
    tags: Pairs = ()  # of MeshSubset, MeshService, MeshServiceSubset; of the listeners of a MeshGateway
    section: str = ""  # of a Dataplane's inbounds, or of a MeshGateway's listeners: a name or a port
    proxy_types: tuple[str, ...] = ()
    role: PolicyRole = PolicyRole.SYSTEM
    origin: str = ""
    is_shadow: bool = False
    via: Key | None = None  # the route that a deprecated top-level targetRef names
    problem: str = ""  # why it selects no proxy


@question
def selector(db: Db, policy: Key) -> Selector | None:
    """The selector of a policy."""
    resource = world.RESOURCES.get(db, policy)
    if resource is None:
        return None
    spec = world.kind_of(db, policy.kind).clean(resource.spec)
    base = Selector(
        policy=policy,
        core_name=resource.core_name,
        top_kind="Mesh",
        namespace=policy.namespace,
        role=_role(resource.labels),
        origin=resource.origin,
        is_shadow=resource.labels.get(labels.EFFECT) == "shadow",
    )
    return _of_ref(db, base, spec.get("targetRef") or {"kind": "Mesh"})


def _role(own_labels: Mapping[str, str]) -> PolicyRole:
    try:
        return PolicyRole(own_labels.get(labels.ROLE, "system"))
    except ValueError:
        return PolicyRole.SYSTEM


def _of_ref(db: Db, base: Selector, ref: Json) -> Selector:
    kind, name = ref.get("kind") or "Mesh", ref.get("name") or ""
    base = _with(base, top_kind=kind, proxy_types=tuple(sorted(ref.get("proxyTypes") or ())))
    ref_tags, ref_labels = ref.get("tags") or {}, pairs(ref.get("labels"))
    match kind:
        case "Mesh":
            return base
        case "MeshSubset":
            return _with(base, by="tags", tags=pairs(ref_tags))
        case "MeshService" | "MeshServiceSubset" if not ref_labels:
            return _with(base, by="tags", tags=pairs({tags.SERVICE: name, **ref_tags}))
        case "Dataplane" | "MeshService":
            return _with(
                base,
                by="Dataplane",
                name=name,
                namespace=ref.get("namespace") or base.namespace,
                labels=ref_labels,
                section=ref.get("sectionName") or "",
            )
        case "MeshGateway":
            section = ref.get("sectionName") or ""
            return _with(base, by="MeshGateway", name=name, tags=pairs(ref_tags), section=section)
        case _:
            return _through_route(db, base, kind, name, ref)


def _with(base: Selector, **changes: object) -> Selector:
    return msgspec.structs.replace(base, **changes)


def _through_route(db: Db, base: Selector, kind: str, name: str, ref: Json) -> Selector:
    """A deprecated top-level targetRef to a route: the policy selects the proxies that its route selects."""
    key = base.policy
    routes = world.referenced(
        db, key.mesh, kind, name, ref.get("namespace") or key.namespace, key.zone, pairs(ref.get("labels"))
    )
    route_selector = selector(db, routes[0]) if routes else None
    if route_selector is None:
        return _with(base, problem=f"couldn't resolve {kind} targetRef with name '{name}'")
    return _with(
        route_selector,
        policy=base.policy,
        core_name=base.core_name,
        top_kind=kind,
        role=base.role,
        origin=base.origin,
        is_shadow=base.is_shadow,
        via=routes[0],
    )


def anonymous(selector: Selector) -> Selector:
    """A selector without what does not decide which proxies it selects.

    Policies that select proxies by the same words have equal ones.
    """
    policy = selector.policy
    # That a resource is derived, which `match` asks for, is said by its name.
    name = policy.name if derived.source_name(policy) is not None else ""
    nobody = Key("", policy.mesh, policy.zone, policy.namespace, name)
    return _with(selector, policy=nobody, core_name="", top_kind="", is_shadow=False, via=None)


def of_kind(db: Db, kind: str, mesh: str) -> Iterator[Selector]:
    """The selectors of all policies of a kind in a mesh, in key order; it reads all, so only for people."""
    listed = (selector(db, key) for key in world.BY_KIND.keys(db, (kind, mesh)))
    return (each for each in listed if each is not None)
