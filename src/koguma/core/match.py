"""Match: which policies select a proxy, and which of its inbounds.

Reads selectors and labels only; configurations are read later, in merge, so that editing a timeout does not
ask this question again.

Proxies are interned: what selectors can see of a proxy (the labels and tags that some selector mentions, its
zone, namespace, type, its inbounds) is its `Traits`, and all proxies of equal traits share one answer. A
selector by name is looked up by name and costs the others nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from koguma.core import world
from koguma.core.incremental import Db, question
from koguma.core.role import PolicyRole
from koguma.core.world import Pairs, Proxy, pairs
from koguma.model import labels, tags, target_ref
from koguma.model.resource import Key
from koguma.model.schema import Json

ROUTE_KINDS: Final = target_ref.ROUTES


class Selector(msgspec.Struct, frozen=True):
    """What of a policy decides whom it selects, and how it ranks."""

    policy: Key
    core_name: str
    top_kind: str  # as written; decides the rank
    by: str = "Mesh"  # what really selects: Mesh, tags, Dataplane, MeshGateway; behind a route, its own
    name: str = ""  # of a Dataplane or MeshGateway
    namespace: str = ""
    labels: Pairs = ()
    tags: Pairs = ()  # of MeshSubset, MeshService, MeshServiceSubset; of the listeners of a MeshGateway
    section: str = ""
    proxy_types: tuple[str, ...] = ()
    role: PolicyRole = PolicyRole.SYSTEM
    origin: str = ""
    is_shadow: bool = False
    via: Key | None = None  # the route through which a deprecated top-level reference goes
    problem: str = ""  # why it selects nobody


class Traits(msgspec.Struct, frozen=True):
    """What selectors can see of a proxy; equal traits are selected alike."""

    mesh: str
    type: str
    is_builtin: bool
    gateway: Key | None
    zone: str
    origin: str
    namespace: str
    name: str  # empty unless some selector asks for this very name
    labels: Pairs
    inbounds: tuple[tuple[str, Pairs], ...]  # section, tags
    gateway_tags: Pairs


class Matched(msgspec.Struct, frozen=True):
    """A policy that selects a proxy; `sections` are the inbounds that it selects."""

    policy: Key
    sections: tuple[str, ...]


@question
def policy_kinds(db: Db) -> tuple[str, ...]:
    """The names of all policy kinds, in the order of their phases."""
    phases = [(kind.policy.phase, name) for name, kind in world.KINDS.items(db) if kind.policy is not None]
    return tuple(name for _, name in sorted(phases))


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


def _role(of: Mapping[str, str]) -> PolicyRole:
    try:
        return PolicyRole(of.get(labels.ROLE, "system"))
    except ValueError:
        return PolicyRole.SYSTEM


def _of_ref(db: Db, base: Selector, ref: Json) -> Selector:
    kind, name = ref.get("kind") or "Mesh", ref.get("name") or ""
    base = _with(base, top_kind=kind, proxy_types=tuple(sorted(ref.get("proxyTypes") or ())))
    own, wanted = ref.get("tags") or {}, pairs(ref.get("labels"))
    match kind:
        case "Mesh":
            return base
        case "MeshSubset":
            return _with(base, by="tags", tags=pairs(own))
        case "MeshService" | "MeshServiceSubset" if not wanted:
            return _with(base, by="tags", tags=pairs({tags.SERVICE: name, **own}))
        case "Dataplane" | "MeshService":
            return _with(
                base,
                by="Dataplane",
                name=name,
                namespace=ref.get("namespace") or base.namespace,
                labels=wanted,
                section=ref.get("sectionName") or "",
            )
        case "MeshGateway":
            return _with(base, by="MeshGateway", name=name, tags=pairs(own))
        case _:
            return _through_route(db, base, kind, name, ref)


def _with(base: Selector, **changes: object) -> Selector:
    return msgspec.structs.replace(base, **changes)


def _through_route(db: Db, base: Selector, kind: str, name: str, ref: Json) -> Selector:
    """The deprecated top-level route: the policy selects whom its route selects."""
    key = base.policy
    found = world.referenced(
        db, key.mesh, kind, name, ref.get("namespace") or key.namespace, key.zone, pairs(ref.get("labels"))
    )
    through = selector(db, found[0]) if found else None
    if through is None:
        return _with(base, problem=f"couldn't resolve {kind} targetRef with name '{name}'")
    return _with(
        through,
        policy=base.policy,
        core_name=base.core_name,
        top_kind=kind,
        role=base.role,
        origin=base.origin,
        is_shadow=base.is_shadow,
        via=found[0],
    )


@question
def selectors(db: Db, kind: str, mesh: str) -> tuple[Selector, ...]:
    """The selectors of all policies of a kind in a mesh, in key order."""
    keys = world.BY_KIND.keys(db, (kind, mesh))
    return tuple(found for key in keys if (found := selector(db, key)) is not None)


class Mentioned(msgspec.Struct, frozen=True):
    """What selectors of a mesh look at: keys of labels and tags, and names of proxies."""

    labels: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


@question
def mentioned(db: Db, mesh: str) -> Mentioned:
    """What any selector of the mesh looks at."""
    all_selectors = [s for kind in policy_kinds(db) for s in selectors(db, kind, mesh)]
    by_label = {name for s in all_selectors for name, _ in s.labels}
    by_tag = {name for s in all_selectors for name, _ in s.tags}
    names = {s.name for s in all_selectors if s.by == "Dataplane" and s.name}
    names |= {value for s in all_selectors for name, value in s.labels if name == labels.DISPLAY_NAME}
    return Mentioned(frozenset(by_label - {labels.DISPLAY_NAME}), frozenset(by_tag), frozenset(names))


@question
def traits(db: Db, key: Key) -> Traits | None:
    """What selectors can see of a proxy."""
    proxy = world.proxy(db, key)
    if proxy is None:
        return None
    looked_at = mentioned(db, key.mesh)
    gateway = gateway_of(db, key.mesh, key.zone, proxy.gateway_tags) if proxy.is_builtin else None
    return Traits(
        mesh=key.mesh,
        type=proxy.type,
        is_builtin=proxy.is_builtin,
        gateway=gateway,
        zone=key.zone,
        origin=proxy.origin,
        namespace=key.namespace,
        name=key.name if key.name in looked_at.names else "",
        labels=_some(proxy.labels, looked_at.labels),
        inbounds=tuple(
            (section, _visible_tags(proxy, own, looked_at)) for section, own in _doors(db, proxy, gateway)
        ),
        gateway_tags=_visible_tags(proxy, proxy.gateway_tags, looked_at),
    )


def _doors(db: Db, proxy: Proxy, gateway: Key | None) -> Iterator[tuple[str, Pairs]]:
    """Where calls arrive: a proxy's inbounds; at a built-in gateway the listeners of its MeshGateway."""
    for inbound in proxy.inbounds:
        yield inbound.section, inbound.tags
    if gateway is not None:
        for section, own in listeners(db, gateway):
            yield section, pairs({**dict(proxy.gateway_tags), **dict(own)})


@question
def listeners(db: Db, gateway: Key) -> tuple[tuple[str, Pairs], ...]:
    """The listeners of a MeshGateway: the port as text, and the gateway's tags overlaid by its own."""
    resource = world.RESOURCES.get(db, gateway)
    spec = resource.spec if resource else {}
    shared = spec.get("tags") or {}
    return tuple(
        (str(listener.get("port") or 0), pairs({**shared, **(listener.get("tags") or {})}))
        for listener in (spec.get("conf") or {}).get("listeners") or ()
    )


def _some(of: Pairs, wanted: frozenset[str]) -> Pairs:
    return tuple(pair for pair in of if pair[0] in wanted)


def _visible_tags(proxy: Proxy, own: Pairs, looked_at: Mentioned) -> Pairs:
    """An inbound's tags; what it does not say itself, its proxy's labels (such as zone and namespace) say."""
    return _some(pairs({**dict(proxy.labels), **dict(own)}), looked_at.tags)


@question
def gateway_of(db: Db, mesh: str, zone: str, gateway_tags: Pairs) -> Key | None:
    """The MeshGateway that a built-in gateway proxy serves: the one whose selector fits best."""
    best: tuple[tuple[int, int], Key] | None = None
    own = dict(gateway_tags)
    for key in world.BY_KIND.keys(db, ("MeshGateway", mesh)):
        if key.zone and key.zone != zone:
            continue
        for wanted in _gateway_selectors(db, key):
            if not all(_tag_fits(own.get(name), value) for name, value in wanted):
                continue
            rank = len(wanted), sum(value != tags.ANY for _, value in wanted)
            if best is None or rank > best[0]:
                best = rank, key
    return best[1] if best else None


@question
def _gateway_selectors(db: Db, key: Key) -> tuple[Pairs, ...]:
    resource = world.RESOURCES.get(db, key)
    found = (resource.spec.get("selectors") or ()) if resource else ()
    return tuple(pairs(one.get("match")) for one in found)


def _tag_fits(own: str | None, wanted: str) -> bool:
    return own is not None and wanted in (tags.ANY, own)


@question
def matched(db: Db, kind: str, of: Traits) -> tuple[Matched, ...]:
    """The policies of a kind that select proxies with these traits, in key order, less shadow ones."""
    found = []
    for one in selectors(db, kind, of.mesh):
        sections = None if one.is_shadow or one.problem else selected(one, of)
        if sections is not None:
            found.append(Matched(one.policy, tuple(sections)))
    return tuple(found)


def selected(one: Selector, of: Traits) -> Iterable[str] | None:
    """The inbounds of a proxy that a selector selects, or None where it does not select the proxy."""
    if not _may_reach(one, of):
        return None
    if one.proxy_types and of.type not in one.proxy_types:
        return None
    match one.by:
        case "Mesh":
            return _sections(of)
        case "Dataplane":
            return _by_dataplane(one, of)
        case "MeshGateway":
            return _by_gateway(one, of)
        case _:
            return _by_tags(one, of)


def _may_reach(one: Selector, of: Traits) -> bool:
    """Zone and namespace: a zone's policy stays in its zone, a consumer's and owner's in their namespace."""
    zone = one.policy.zone
    if one.role is not PolicyRole.PRODUCER and of.origin == one.origin == "zone" and zone and zone != of.zone:
        return False
    if one.role in (PolicyRole.CONSUMER, PolicyRole.WORKLOAD_OWNER):
        return one.policy.namespace != "" and one.policy.namespace == of.namespace
    return True


def _sections(of: Traits) -> tuple[str, ...]:
    return tuple(section for section, _ in of.inbounds)


def _by_dataplane(one: Selector, of: Traits) -> Iterable[str] | None:
    if of.is_builtin:
        return None
    if one.name and (of.name != one.name or (one.namespace and of.namespace != one.namespace)):
        return None
    for name, value in one.labels:
        if name == labels.DISPLAY_NAME:
            if of.name != value:
                return None
        elif (name, value) not in of.labels:
            return None
    if not one.section:
        return _sections(of)
    sections = [section for section in _sections(of) if section == one.section]
    return sections or None


def _by_tags(one: Selector, of: Traits) -> Iterable[str] | None:
    if of.inbounds:
        sections = [section for section, own in of.inbounds if _all_fit(one.tags, own)]
        return sections or None
    return () if _all_fit(one.tags, of.gateway_tags) else None


def _all_fit(wanted: Pairs, own: Pairs) -> bool:
    mine = dict(own)
    return all(_tag_fits(mine.get(name), value) for name, value in wanted)


def _by_gateway(one: Selector, of: Traits) -> Iterable[str] | None:
    if of.gateway is None or of.gateway.name != one.name:
        return None
    sections = [section for section, own in of.inbounds if _all_fit(one.tags, own)]
    return sections if sections or not one.tags else None


@question
def proxies(db: Db, mesh: str) -> tuple[Key, ...]:
    """The keys of all proxies of a mesh."""
    return world.BY_KIND.keys(db, ("Dataplane", mesh))


def selected_by(db: Db, policy: Key) -> Iterator[Key]:
    """The proxies that a policy selects, shadow or not; asks every proxy of the mesh, so only for people."""
    one = selector(db, policy)
    if one is None or one.problem:
        return
    for key in proxies(db, policy.mesh):
        of = traits(db, key)
        if of is not None and selected(one, of) is not None:
            yield key
