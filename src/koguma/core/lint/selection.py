"""Selection: which proxies policies select, and whether two policies select a common proxy.

Proxies with equal traits count once, so the cost grows with the number of different traits and not of
proxies. In a mesh without proxies, selectors are compared by their requirements.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from koguma.core import gateway_attachment, match, selectors, world
from koguma.core.incremental import Db, question
from koguma.core.items import ItemId, targets
from koguma.core.lint.problem import DISJOINT, NOBODY_SELECTED, Problem
from koguma.core.match import Traits
from koguma.core.role import PolicyRole
from koguma.core.selectors import Selector
from koguma.core.world import Pairs
from koguma.model import labels, tags
from koguma.model.resource import Key

Requirement = tuple[str, str]  # a property of a proxy, and its value
_NOT_BUILT_IN: Final = "none that is built in"


class Requirements(NamedTuple):
    """Policies by what they require of proxies."""

    by_first: Mapping[Requirement | None, Sequence[Key]]  # by that which says most; None: nothing
    by_any: Mapping[Requirement, Sequence[Key]]


@question
def distinct_traits(db: Db, mesh: str) -> tuple[Traits, ...]:
    """The different traits of the proxies of a mesh."""
    all_traits = (match.traits(db, key) for key in match.proxies(db, mesh))
    return tuple(dict.fromkeys(traits for traits in all_traits if traits is not None))


def settle(db: Db, mesh: str) -> None:
    """Bring up to date what stands lower than selections and is kept, so that these are asked quickly."""
    db.settle_below(distinct_traits, mesh)


def selected(db: Db, policy: Key) -> frozenset[int]:
    """The traits that a policy selects, by their index in `distinct_traits`."""
    selector = selectors.selector(db, policy)
    if selector is None or selector.problem:
        return frozenset()
    return selected_by(db, policy.mesh, selectors.anonymous(selector))


@question
def selected_by(db: Db, mesh: str, selector: Selector) -> frozenset[int]:
    """The same for an anonymous selector, which many policies may share."""
    numbered = enumerate(distinct_traits(db, mesh))
    return frozenset(number for number, traits in numbered if match.selected(selector, traits) is not None)


def are_disjoint(db: Db, policy: Key, other: Key) -> bool:
    """Whether no proxy is selected by both policies.

    A policy that selects no proxy yet is compared by its selector; that it selects none is another problem.
    """
    first_traits, second_traits = selected(db, policy), selected(db, other)
    if first_traits and second_traits:
        return first_traits.isdisjoint(second_traits)
    selector, other_selector = selectors.selector(db, policy), selectors.selector(db, other)
    return (
        selector is not None
        and other_selector is not None
        and _exclude(requirements(selector), requirements(other_selector))
    )


def overlap(db: Db, mesh: str, selector: Selector, other: Selector) -> bool:
    """Whether a proxy is selected by both; in an empty mesh, whether one certainly would be."""
    if selector.problem or other.problem:
        return False
    if distinct_traits(db, mesh):
        return not selected_by(db, mesh, selector).isdisjoint(selected_by(db, mesh, other))
    required, other_required = requirements(selector).items(), requirements(other).items()
    return required <= other_required or other_required <= required


@question
def required_in_shard(db: Db, kind: str, mesh: str, shard: int) -> Requirements:
    """What the policies in one shard of a kind require of proxies."""
    by_first: dict[Requirement | None, list[Key]] = {}
    by_any: dict[Requirement, list[Key]] = {}
    for policy in world.BY_SHARD.keys(db, (kind, mesh, shard)):
        selector = selectors.selector(db, policy)
        required = _in_order(selector) if selector else []
        by_first.setdefault(required[0] if required else None, []).append(policy)
        for each in required:
            by_any.setdefault(each, []).append(policy)
    return Requirements(by_first, by_any)


@question
def required(db: Db, kind: str, mesh: str) -> tuple[Requirements, ...]:
    """What all policies of a kind require of proxies, shard by shard."""
    return tuple(required_in_shard(db, kind, mesh, number) for number in world.SHARDS)


def alike(db: Db, kind: str, mesh: str, selector: Selector) -> Iterator[Key]:
    """The policies of a kind that may require all that a selector requires, or a part of it."""
    own = _in_order(selector)
    for shard in required(db, kind, mesh):
        for each in (*own, None):
            yield from shard.by_first.get(each, ())
        yield from (
            shard.by_any.get(own[0], ()) if own else (key for keys in shard.by_any.values() for key in keys)
        )


def _in_order(selector: Selector) -> list[Requirement]:
    """What a selector requires of a proxy; first what few proxies have."""
    return sorted(requirements(selector).items(), key=_breadth)


def _breadth(requirement: Requirement) -> tuple[bool, Requirement]:
    return requirement[0] in ("type", "zone", "namespace") or requirement[1] == _NOT_BUILT_IN, requirement


def requirements(selector: Selector) -> Mapping[str, str]:
    """The properties that a selector requires of a proxy, one value for each."""
    required = {"type": selector.proxy_types[0]} if len(selector.proxy_types) == 1 else {}
    if selector.origin == "zone" and selector.policy.zone and selector.role is not PolicyRole.PRODUCER:
        required["zone"] = selector.policy.zone
    match selector.by:
        case "tags":
            required |= {
                _property(f"tag {name}"): value for name, value in selector.tags if value != tags.ANY
            }
        case "Dataplane":
            required["gateway"] = _NOT_BUILT_IN
            required |= {_property(f"label {name}"): value for name, value in selector.labels}
            if selector.name:
                required |= {"name": selector.name, "namespace": selector.namespace}
        case "MeshGateway":
            required["gateway"] = selector.name
    if selector.role in (PolicyRole.CONSUMER, PolicyRole.WORKLOAD_OWNER):
        required["namespace"] = selector.policy.namespace
    return required


def _property(word: str) -> str:
    """One property for a label that every proxy has, whether a selector asks for it as label or as tag."""
    _, _, name = word.partition(" ")
    known = {labels.NAMESPACE: "namespace", labels.ZONE: "zone", labels.DISPLAY_NAME: "name"}
    return known.get(name, word)


def _exclude(required: Mapping[str, str], other_required: Mapping[str, str]) -> bool:
    return any(required[name] != other_required[name] for name in required.keys() & other_required.keys())


def described(selector: Selector) -> str:
    """The proxies that a selector selects, in words."""
    base = {
        "Mesh": "all proxies",
        "tags": f"proxies with the tags {_listed(selector.tags)}" if selector.tags else "all proxies",
        "Dataplane": _dataplane(selector),
        "MeshGateway": f'proxies of MeshGateway "{selector.name}"',
    }[selector.by]
    kinds = f" of type {' or '.join(selector.proxy_types)}" if selector.proxy_types else ""
    is_namespaced = selector.role in (PolicyRole.CONSUMER, PolicyRole.WORKLOAD_OWNER)
    where = (
        f" in namespace {selector.policy.namespace}, since its role is {selector.role.value}"
        if is_namespaced
        else ""
    )
    return f"{base}{kinds}{where}"


def _dataplane(selector: Selector) -> str:
    section = f" that have an inbound {selector.section}" if selector.section else ""
    if selector.name:
        where = f" in namespace {selector.namespace}" if selector.namespace else ""
        return f'Dataplane "{selector.name}"{where}' + section.replace("that have", "with")
    return (
        f"proxies with the labels {_listed(selector.labels)}{section}"
        if selector.labels
        else f"all proxies{section}"
    )


def _listed(pairs: Pairs) -> str:
    return ", ".join(f"{name}={value}" for name, value in pairs)


def no_proxy_selected(db: Db, policy: Key) -> Iterator[Problem]:
    """A policy that selects some proxies by their properties, where no proxy has these.

    A policy for all proxies of a type, and any policy of an empty mesh, may wait for the first such proxy.
    """
    selector = selectors.selector(db, policy)
    if selector is None or selector.problem or not distinct_traits(db, policy.mesh) or selected(db, policy):
        return
    if selector.by == "MeshGateway" and not _has_listener(db, selector):
        return  # a dangling reference, or no such listener, which is reported instead
    if selector.by != "Mesh" or selector.role in (PolicyRole.CONSUMER, PolicyRole.WORKLOAD_OWNER):
        message = (
            f"{policy} selects no proxy: it is for {described(selector).removeprefix('all ')}, and the mesh"
            " has none; correct targetRef, or start such a proxy"
        )
        yield Problem(NOBODY_SELECTED, message, (policy,), path="spec.targetRef")


def _has_listener(db: Db, selector: Selector) -> bool:
    gateways = gateway_attachment.named(db, selector.policy.mesh, selector.name)
    is_narrow = bool(selector.section or selector.tags)
    return any(not is_narrow or gateway_attachment.chosen(db, selector, gateway) for gateway in gateways)


@question
def on_routes(db: Db, kind: str, mesh: str, shard: int) -> Mapping[Key, tuple[ItemId, ...]]:
    """The entries of `to` that name routes, by route, of the policies in one shard of a kind."""
    by_route: dict[Key, list[ItemId]] = {}
    for policy in world.BY_SHARD.keys(db, (kind, mesh, shard)):
        for index, entry_targets in enumerate(targets(db, policy)):
            for target in entry_targets:
                if target.kind in match.ROUTE_KINDS and target.key is not None:
                    by_route.setdefault(target.key, []).append(ItemId(policy, "to", index))
    return {route: tuple(entries) for route, entries in by_route.items()}


def _on_route(db: Db, route: Key) -> Iterator[ItemId]:
    """The entries of `to` of any policy that name a route."""
    for kind in match.policy_kinds(db):
        if world.BY_KIND.has(db, (kind, route.mesh)):
            for shard in world.SHARDS:
                yield from on_routes(db, kind, route.mesh, shard).get(route, ())


def disjoint(db: Db, policy: Key) -> Iterator[Problem]:
    """A policy on a route, where no proxy is selected by both; reported for the policy and for the route."""
    for index, entry_targets in enumerate(targets(db, policy)):
        for target in entry_targets:
            if target.kind in match.ROUTE_KINDS and target.key is not None:
                yield from _disjoint(db, ItemId(policy, "to", index), target.key)
    if policy.kind in match.ROUTE_KINDS:
        for entry in _on_route(db, policy):
            yield from _disjoint(db, entry, policy)


def _disjoint(db: Db, entry: ItemId, route: Key) -> Iterator[Problem]:
    selector, route_selector = selectors.selector(db, entry.policy), selectors.selector(db, route)
    if selector is None or route_selector is None or not are_disjoint(db, entry.policy, route):
        return
    message = (
        f"{entry.policy} has no effect on {route}: no proxy is selected by both. The policy selects"
        f" {described(selector)}; the route selects {described(route_selector)}. Let one targetRef select"
        " proxies of the other"
    )
    yield Problem(DISJOINT, message, (entry.policy, route), path=f"{entry.path}.targetRef")
