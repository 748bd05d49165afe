"""Selection: whom policies select, and whether two of them share a proxy.

Proxies that selectors cannot tell apart count once, so a question here costs what a mesh has in sorts of
proxies and not in proxies. Where nobody is there yet, selectors are compared by what they demand.
"""

from collections.abc import Iterator, Mapping

from koguma.core import match, world
from koguma.core.incremental import Db, question
from koguma.core.items import ItemId, targets
from koguma.core.match import Selector, Traits
from koguma.core.oddities.problem import DISJOINT, NOBODY_SELECTED, Problem
from koguma.core.role import PolicyRole
from koguma.core.world import Pairs
from koguma.model import labels, tags
from koguma.model.resource import Key


@question
def sorts(db: Db, mesh: str) -> tuple[Traits, ...]:
    """The proxies of a mesh, each sort that selectors can tell apart once."""
    found = (match.traits(db, key) for key in match.proxies(db, mesh))
    return tuple(dict.fromkeys(one for one in found if one is not None))


@question
def selected(db: Db, policy: Key) -> frozenset[int]:
    """The sorts of proxies that a policy selects, by their place in `sorts`."""
    one = match.selector(db, policy)
    if one is None or one.problem:
        return frozenset()
    there = enumerate(sorts(db, policy.mesh))
    return frozenset(number for number, of in there if match.selected(one, of) is not None)


def are_apart(db: Db, one: Key, other: Key) -> bool:
    """Whether no proxy is selected by both policies.

    Of a policy that selects nobody yet only its selector can tell; that it selects nobody is another problem.
    """
    mine, theirs = selected(db, one), selected(db, other)
    if mine and theirs:
        return mine.isdisjoint(theirs)
    first, second = match.selector(db, one), match.selector(db, other)
    return first is not None and second is not None and _exclude(demands(first), demands(second))


def meet(db: Db, one: Key, other: Key) -> bool:
    """Whether a proxy is selected by both policies; in an empty mesh, whether one surely would be."""
    if sorts(db, one.mesh):
        return not selected(db, one).isdisjoint(selected(db, other))
    first, second = match.selector(db, one), match.selector(db, other)
    if first is None or second is None or first.problem or second.problem:
        return False
    mine, theirs = demands(first).items(), demands(second).items()
    return mine <= theirs or theirs <= mine


def demands(one: Selector) -> Mapping[str, str]:
    """What a proxy must be for a selector to take it, one value for each property."""
    found = {"type": one.proxy_types[0]} if len(one.proxy_types) == 1 else {}
    if one.origin == "zone" and one.policy.zone and one.role is not PolicyRole.PRODUCER:
        found["zone"] = one.policy.zone
    match one.by:
        case "tags":
            found |= {_property(f"tag {name}"): value for name, value in one.tags if value != tags.ANY}
        case "Dataplane":
            found["gateway"] = "none that is built in"
            found |= {_property(f"label {name}"): value for name, value in one.labels}
            if one.name:
                found |= {"name": one.name, "namespace": one.namespace}
        case "MeshGateway":
            found["gateway"] = one.name
    if one.role in (PolicyRole.CONSUMER, PolicyRole.WORKLOAD_OWNER):
        found["namespace"] = one.policy.namespace
    return found


def _property(word: str) -> str:
    """Labels that every proxy has can be asked for as tags too, and mean the same."""
    _, _, name = word.partition(" ")
    known = {labels.NAMESPACE: "namespace", labels.ZONE: "zone", labels.DISPLAY_NAME: "name"}
    return known.get(name, word)


def _exclude(mine: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    return any(mine[name] != theirs[name] for name in mine.keys() & theirs.keys())


def words(one: Selector) -> str:
    """Whom a selector selects, in words."""
    what = {
        "Mesh": "all proxies",
        "tags": f"proxies with the tags {_listed(one.tags)}" if one.tags else "all proxies",
        "Dataplane": _dataplane(one),
        "MeshGateway": f'proxies of MeshGateway "{one.name}"',
    }[one.by]
    kinds = f" of type {' or '.join(one.proxy_types)}" if one.proxy_types else ""
    own = one.role in (PolicyRole.CONSUMER, PolicyRole.WORKLOAD_OWNER)
    place = f" in namespace {one.policy.namespace}, since its role is {one.role.value}" if own else ""
    return f"{what}{kinds}{place}"


def _dataplane(one: Selector) -> str:
    section = f" that have an inbound {one.section}" if one.section else ""
    if one.name:
        where = f" in namespace {one.namespace}" if one.namespace else ""
        return f'Dataplane "{one.name}"{where}' + section.replace("that have", "with")
    return (
        f"proxies with the labels {_listed(one.labels)}{section}" if one.labels else f"all proxies{section}"
    )


def _listed(pairs: Pairs) -> str:
    return ", ".join(f"{name}={value}" for name, value in pairs)


def nobody(db: Db, policy: Key) -> Iterator[Problem]:
    """A policy that names proxies, where none of those that are there fits.

    One for all proxies of a type may wait for the first to come, and so may all policies of an empty mesh.
    """
    one = match.selector(db, policy)
    if one is None or one.problem or not sorts(db, policy.mesh) or selected(db, policy):
        return
    if one.by == "MeshGateway" and not any(key.name == one.name for key in _gateways(db, policy.mesh)):
        return  # a reference to nothing, which says more
    if one.by != "Mesh" or one.role in (PolicyRole.CONSUMER, PolicyRole.WORKLOAD_OWNER):
        message = (
            f"{policy} selects no proxy: it is for {words(one).removeprefix('all ')}, and the mesh has none;"
            " correct targetRef, or start such a proxy"
        )
        yield Problem(NOBODY_SELECTED, message, (policy,), path="spec.targetRef")


def _gateways(db: Db, mesh: str) -> tuple[Key, ...]:
    return world.BY_KIND.keys(db, ("MeshGateway", mesh))


@question
def on_routes(db: Db, mesh: str) -> Mapping[Key, tuple[ItemId, ...]]:
    """The entries of `to` that name routes, by route."""
    found: dict[Key, list[ItemId]] = {}
    for kind in match.policy_kinds(db):
        for one in match.selectors(db, kind, mesh):
            for index, meant in enumerate(targets(db, one.policy)):
                for target in meant:
                    if target.kind in match.ROUTE_KINDS and target.key is not None:
                        found.setdefault(target.key, []).append(ItemId(one.policy, "to", index))
    return {route: tuple(entries) for route, entries in found.items()}


def disjoint(db: Db, policy: Key) -> Iterator[Problem]:
    """A policy on a route, where no proxy is selected by both; told of the policy and of the route."""
    for index, meant in enumerate(targets(db, policy)):
        for target in meant:
            if target.kind in match.ROUTE_KINDS and target.key is not None:
                yield from _disjoint(db, ItemId(policy, "to", index), target.key)
    if policy.kind in match.ROUTE_KINDS:
        for entry in on_routes(db, policy.mesh).get(policy, ()):
            yield from _disjoint(db, entry, policy)


def _disjoint(db: Db, entry: ItemId, route: Key) -> Iterator[Problem]:
    mine, its = match.selector(db, entry.policy), match.selector(db, route)
    if mine is None or its is None or not are_apart(db, entry.policy, route):
        return
    message = (
        f"{entry.policy} has no effect on {route}: no proxy is selected by both. The policy selects"
        f" {words(mine)}; the route selects {words(its)}. Let one targetRef select proxies of the other"
    )
    yield Problem(DISJOINT, message, (entry.policy, route), path=f"{entry.path}.targetRef")
