"""Match: which policies select a proxy, and which of its inbounds.

It reads selectors and labels only. Confs are read later, in `merge`, so that editing a timeout matches
nothing again.

What selectors can see of a proxy (the labels and tags that some selector mentions, its zone, namespace, type
and inbounds) is its `Traits`, and all proxies with equal traits share one answer. A proxy's name is part of
its traits only where some selector asks for that name, so that it splits no others.

Policies for the whole mesh ask for less: proxies with equal `MeshWideTraits` share one answer, in parts.
"""

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from koguma.core import candidates, selectors, world
from koguma.core.candidates import ProxyWord
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.policy_set import Policies, PolicyPart
from koguma.core.role import PolicyRole
from koguma.core.selectors import Selector
from koguma.core.world import Pairs, Proxy, pairs
from koguma.model import derived, hostname, labels, tags, target_ref
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

ROUTE_KINDS: Final = target_ref.ROUTES
EGRESS: Final = "ZoneEgress"  # the type of proxy that is no Dataplane


class Traits(msgspec.Struct, frozen=True):
    """What selectors can see of a proxy; proxies with equal traits are selected by the same policies."""

    mesh: str
    type: str
    is_builtin: bool
    gateway: Key | None
    zone: str
    origin: str
    namespace: str
    name: str  # empty unless some selector asks for this name
    labels: Pairs
    inbounds: tuple[tuple[str, Pairs], ...]  # section, tags; of a built-in gateway, its listeners'
    gateway_tags: Pairs
    listener_names: Pairs = ()  # by section, those that have one


class MeshWideTraits(NamedTuple):
    """What policies for the whole mesh can see of a proxy."""

    mesh: str
    type: str
    zone: str
    origin: str
    namespace: str

    @classmethod
    def of(cls, traits: Traits) -> "MeshWideTraits":
        """Those of proxies with these traits."""
        return cls(traits.mesh, traits.type, traits.zone, traits.origin, traits.namespace)


class Matched(msgspec.Struct, frozen=True):
    """A policy that selects a proxy; `sections` are the inbounds that it selects."""

    policy: Key
    sections: tuple[str, ...]


@question
def policy_kinds(db: Db) -> tuple[str, ...]:
    """The names of all policy kinds, in the order of their phases."""
    phases = [(kind.policy.phase, name) for name, kind in world.KINDS.items(db) if kind.policy is not None]
    return tuple(name for _, name in sorted(phases))


class Mentioned(msgspec.Struct, frozen=True):
    """What selectors of a mesh read: keys of labels and tags, and names of proxies."""

    labels: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


@question
def unindexed(db: Db, mesh: str) -> tuple[Selector, ...]:
    """The selectors that `candidates` cannot find by a word of a proxy, but those for the whole mesh."""
    return tuple(
        each
        for kind in policy_kinds(db)
        for shard in candidates.shards_of_any_proxy(db, mesh, kind)
        for each in _unindexed_in_shard(db, mesh, kind, shard)
    )


@question
def _unindexed_in_shard(db: Db, mesh: str, kind: str, shard: int) -> tuple[Selector, ...]:
    return tuple(each for each in _of_any_proxy(db, mesh, kind, shard) if not _is_mesh_wide(each))


def _of_any_proxy(db: Db, mesh: str, kind: str, shard: int) -> Iterator[Selector]:
    found = (selectors.selector(db, key) for key in candidates.of_any_proxy(db, mesh, kind, shard))
    return (each for each in found if each is not None)


def _is_mesh_wide(selector: Selector) -> bool:
    return selector.by == "Mesh" and not selector.problem


@question
def mesh_wide(db: Db, traits: MeshWideTraits, kind: str) -> tuple[PolicyPart, ...]:
    """The policies of a kind that select all proxies with these traits, less shadow ones."""
    shards = candidates.shards_of_any_proxy(db, traits.mesh, kind)
    return tuple(part for shard in shards if (part := _mesh_wide_in_shard(db, traits, kind, shard)))


@question
def _mesh_wide_in_shard(db: Db, traits: MeshWideTraits, kind: str, shard: int) -> PolicyPart:
    return Group(
        each.policy
        for each in _of_any_proxy(db, traits.mesh, kind, shard)
        if _is_mesh_wide(each) and not each.is_shadow and _is_reached(each, traits)
    )


@question
def _mentioned_by_unindexed(db: Db, mesh: str) -> Mentioned:
    every = unindexed(db, mesh)
    names = {each.name for each in every if each.by == "Dataplane" and each.name}
    names |= {value for each in every for name, value in each.labels if name == labels.DISPLAY_NAME}
    return Mentioned(
        frozenset(name for each in every for name, _ in each.labels if name != labels.DISPLAY_NAME),
        frozenset(name for each in every for name, _ in each.tags),
        frozenset(names),
    )


@question
def mentioned(db: Db, mesh: str, keys: tuple[str, ...]) -> Mentioned:
    """Which of these keys of labels and tags some selector reads; proxies with equal keys share it."""
    others = _mentioned_by_unindexed(db, mesh)
    return Mentioned(
        frozenset(key for key in keys if key in others.labels or _is_mentioned(db, mesh, "label", key)),
        frozenset(key for key in keys if key in others.tags or _is_mentioned(db, mesh, "tag", key)),
    )


def _is_mentioned(db: Db, mesh: str, what: str, name: str) -> bool:
    return candidates.MENTIONS.has(db, (mesh, what, name))


def _is_named(db: Db, key: Key) -> bool:
    """Whether some selector asks for a proxy's name."""
    if key.name in _mentioned_by_unindexed(db, key.mesh).names:
        return True
    return _is_mentioned(db, key.mesh, "name", "") and _is_mentioned(db, key.mesh, "name", key.name)


def keys_of(*every: Pairs) -> tuple[str, ...]:
    """The keys of some labels and tags, sorted, as `mentioned` takes them."""
    return tuple(sorted({name for pairs in every for name, _ in pairs}))


@question
def traits(db: Db, key: Key) -> Traits | None:
    """What selectors can see of a proxy."""
    proxy = world.proxy(db, key)
    if proxy is None:
        return None
    gateway = gateway_of(db, key.mesh, key.zone, proxy.gateway_tags) if proxy.is_builtin else None
    inbounds = tuple(_inbounds(db, proxy, gateway))
    keys = keys_of(proxy.labels, proxy.gateway_tags, *(own for _, own in inbounds))
    mentions = mentioned(db, key.mesh, keys)
    return Traits(
        mesh=key.mesh,
        type=proxy.type,
        is_builtin=proxy.is_builtin,
        gateway=gateway,
        zone=key.zone,
        origin=proxy.origin,
        namespace=key.namespace,
        name=key.name if _is_named(db, key) else "",
        labels=some(proxy.labels, mentions.labels),
        inbounds=tuple((section, visible_tags(proxy, own, mentions)) for section, own in inbounds),
        gateway_tags=visible_tags(proxy, proxy.gateway_tags, mentions),
        listener_names=_listener_names(db, gateway) if gateway is not None else (),
    )


def _inbounds(db: Db, proxy: Proxy, gateway: Key | None) -> Iterator[tuple[str, Pairs]]:
    """Section and tags of a proxy's inbounds; for a built-in gateway, of the listeners of its MeshGateway."""
    for inbound in proxy.inbounds:
        yield inbound.section, inbound.tags
    if gateway is not None:
        for listener in listeners(db, gateway):
            yield listener.section, pairs({**dict(proxy.gateway_tags), **dict(listener.tags)})


class SelectableListener(msgspec.Struct, frozen=True):
    """What selectors see of a listener of a MeshGateway; `section` is unique in its gateway."""

    section: str  # `<port>:<host name or *>`
    name: str
    tags: Pairs  # the gateway's, overlaid by its own


def listener_section(listener: Json) -> str:
    """The section of a listener: its port and host name, which no two listeners of a gateway share."""
    return f"{listener.get('port') or 0}:{hostname.normal(listener.get('hostname'))}"


@question
def listeners(db: Db, gateway: Key) -> tuple[SelectableListener, ...]:
    """The listeners of a MeshGateway."""
    resource = world.RESOURCES.get(db, gateway)
    spec = resource.spec if resource else {}
    shared = spec.get("tags") or {}
    return tuple(
        SelectableListener(
            listener_section(listener),
            listener.get("name") or "",
            pairs({**shared, **(listener.get("tags") or {})}),
        )
        for listener in (spec.get("conf") or {}).get("listeners") or ()
    )


def _listener_names(db: Db, gateway: Key) -> Pairs:
    return tuple((each.section, each.name) for each in listeners(db, gateway) if each.name)


def some(values: Pairs, keys: frozenset[str]) -> Pairs:
    """Those pairs whose keys are asked for."""
    return tuple(pair for pair in values if pair[0] in keys)


def visible_tags(proxy: Proxy, own: Pairs, mentions: Mentioned) -> Pairs:
    """An inbound's tags; those that it lacks come from its proxy's labels, such as zone and namespace."""
    return some(pairs({**dict(proxy.labels), **dict(own)}), mentions.tags)


def is_built_in(resource: Resource) -> bool:
    """Whether this is the Dataplane of a built-in gateway."""
    networking = (resource.spec.get("networking") or {}) if resource.kind == "Dataplane" else {}
    return (networking.get("gateway") or {}).get("type") == "BUILTIN"


@question
def gateway_of(db: Db, mesh: str, zone: str, gateway_tags: Pairs) -> Key | None:
    """The MeshGateway that a built-in gateway proxy serves: the one whose selector fits best."""
    best: tuple[tuple[int, int], Key] | None = None
    for key in world.BY_KIND.keys(db, ("MeshGateway", mesh)):
        rank = gateway_rank(db, key, zone, gateway_tags)
        if rank is not None and (best is None or rank > best[0]):
            best = rank, key
    return best[1] if best else None


def gateway_rank(db: Db, gateway: Key, zone: str, gateway_tags: Pairs) -> tuple[int, int] | None:
    """How well a MeshGateway fits a proxy: the tags of its best selector, and how many of them are exact."""
    if gateway.zone and gateway.zone != zone:
        return None
    ranks = (
        (len(required), sum(value != tags.ANY for _, value in required))
        for required in gateway_selectors(db, gateway)
        if _all_fit(required, gateway_tags)
    )
    return max(ranks, default=None)


@question
def gateway_selectors(db: Db, key: Key) -> tuple[Pairs, ...]:
    """The tags that each selector of a MeshGateway requires."""
    resource = world.RESOURCES.get(db, key)
    written = (resource.spec.get("selectors") or ()) if resource else ()
    return tuple(pairs(each.get("match")) for each in written)


def _tag_fits(own: str | None, required: str) -> bool:
    return own is not None and required in (tags.ANY, own)


def policies(db: Db, kind: str, traits: Traits, section: str | None = None) -> Policies:
    """The policies of a kind that select proxies with these traits, or one inbound, less shadow ones."""
    parts = (
        mesh_wide(db, MeshWideTraits.of(traits), kind)
        if section is None or section in _sections(traits)
        else ()
    )
    others = matched_by_kind(db, traits).get(kind, ())
    own = Group(each.policy for each in others if section is None or section in each.sections)
    return Policies((*parts, own))


def n_policies(db: Db, kind: str, traits: Traits) -> int:
    """How many these are; quicker than to put them together."""
    return sum(map(len, mesh_wide(db, MeshWideTraits.of(traits), kind))) + len(
        matched_by_kind(db, traits).get(kind, ())
    )


def matched(db: Db, kind: str, traits: Traits) -> tuple[Matched, ...]:
    """The same in key order, with the inbounds that each selects; it lists them all, so only for people."""
    parts = mesh_wide(db, MeshWideTraits.of(traits), kind)
    wide = (Matched(policy, _sections(traits)) for part in parts for policy in part)
    return tuple(sorted((*wide, *matched_by_kind(db, traits).get(kind, ())), key=_POLICY))


@question
def matched_by_kind(db: Db, traits: Traits) -> Mapping[str, tuple[Matched, ...]]:
    """Those that are not for the whole mesh, for kinds that have any."""
    kinds = set(policy_kinds(db))
    by_word = {key for word in _words(traits) for key in candidates.BY_WORD.keys(db, (traits.mesh, word))}
    found = [selectors.selector(db, key) for key in sorted(by_word) if key.kind in kinds]
    by_kind: dict[str, list[Matched]] = {}
    for each in sorted(filter(None, (*found, *unindexed(db, traits.mesh))), key=_POLICY):
        sections = None if each.is_shadow or each.problem else selected(each, traits)
        if sections is not None:
            by_kind.setdefault(each.policy.kind, []).append(Matched(each.policy, tuple(sections)))
    return {kind: tuple(policies) for kind, policies in by_kind.items()}


_POLICY: Final = attrgetter("policy")


def _words(traits: Traits) -> Iterator[ProxyWord]:
    """The words under which a policy stands that may select proxies with these traits."""
    if traits.name:
        yield ProxyWord("name", traits.name)
    yield from (ProxyWord("label", name, value) for name, value in traits.labels)
    all_tags = {pair for own in (traits.gateway_tags, *(own for _, own in traits.inbounds)) for pair in own}
    yield from (ProxyWord("tag", name, value) for name, value in sorted(all_tags))
    if traits.gateway is not None:
        names = {traits.gateway.name, derived.display_name(traits.gateway)}
        yield from (ProxyWord("gateway", name) for name in sorted(names))


def selected(selector: Selector, traits: Traits) -> Iterable[str] | None:
    """The inbounds of a proxy that a selector selects, or None where it does not select the proxy."""
    if not _is_reached(selector, traits):
        return None
    match selector.by:
        case "Mesh":
            return _sections(traits)
        case "Dataplane":
            return _by_dataplane(selector, traits)
        case "MeshGateway":
            return _by_gateway(selector, traits)
        case _:
            return _by_tags(selector, traits)


def _is_reached(selector: Selector, traits: Traits | MeshWideTraits) -> bool:
    """Type, zone and namespace: a zone's policy stays in its zone, a consumer's and owner's in theirs."""
    if selector.proxy_types and traits.type not in selector.proxy_types:
        return False
    zone = selector.policy.zone
    if (
        selector.role is not PolicyRole.PRODUCER
        and traits.origin == selector.origin == "zone"
        and zone
        and zone != traits.zone
    ):
        return False
    if selector.role in (PolicyRole.CONSUMER, PolicyRole.WORKLOAD_OWNER):
        # Of objects without a namespace only routes of the Gateway API have such a role: the reserved
        # namespace, in which they were written, is that of proxies without one.
        is_namespaced = selector.policy.namespace != "" or derived.source_name(selector.policy) is not None
        return is_namespaced and selector.policy.namespace == traits.namespace
    return True


def _sections(traits: Traits) -> tuple[str, ...]:
    return tuple(section for section, _ in traits.inbounds)


def _by_dataplane(selector: Selector, traits: Traits) -> Iterable[str] | None:
    # A zone egress has no Dataplane; it is selected only where its own labels are named.
    if traits.is_builtin or (traits.type == EGRESS and not selector.labels):
        return None
    if selector.name and (
        traits.name != selector.name or (selector.namespace and traits.namespace != selector.namespace)
    ):
        return None
    for name, value in selector.labels:
        if name == labels.DISPLAY_NAME:
            if traits.name != value:
                return None
        elif (name, value) not in traits.labels:
            return None
    if not selector.section:
        return _sections(traits)
    sections = [section for section in _sections(traits) if section == selector.section]
    return sections or None


def _by_tags(selector: Selector, traits: Traits) -> Iterable[str] | None:
    if traits.inbounds:
        sections = [section for section, own in traits.inbounds if _all_fit(selector.tags, own)]
        return sections or None
    return () if _all_fit(selector.tags, traits.gateway_tags) else None


def _all_fit(required: Pairs, own_tags: Pairs) -> bool:
    values = dict(own_tags)
    return all(_tag_fits(values.get(name), value) for name, value in required)


def _by_gateway(selector: Selector, traits: Traits) -> Iterable[str] | None:
    if traits.gateway is None or selector.name not in (
        traits.gateway.name,
        derived.display_name(traits.gateway),
    ):
        return None
    names = dict(traits.listener_names)
    sections = [
        section
        for section, own in traits.inbounds
        if _all_fit(selector.tags, own) and _is_meant(selector.section, section, names.get(section))
    ]
    return sections if sections or not (selector.tags or selector.section) else None


def _is_meant(word: str, section: str, name: str | None) -> bool:
    """Whether a listener is meant: by its name, or by its port, which several may share."""
    return not word or word == name or word == section.partition(":")[0]


@question
def proxies(db: Db, mesh: str) -> tuple[Key, ...]:
    """The keys of all proxies of a mesh."""
    return world.BY_KIND.keys(db, ("Dataplane", mesh))


def selected_by(db: Db, policy: Key) -> Iterator[Key]:
    """The proxies that a policy selects, shadow or not; asks every proxy of the mesh, so only for people."""
    policy_selector = selectors.selector(db, policy)
    if policy_selector is None or policy_selector.problem:
        return
    for key in proxies(db, policy.mesh):
        proxy_traits = traits(db, key)
        if proxy_traits is not None and selected(policy_selector, proxy_traits) is not None:
            yield key
