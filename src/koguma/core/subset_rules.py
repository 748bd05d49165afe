"""Subset rules: outbound rules by tags of the called service, as Kuma 2.13 shows them in `toRules`.

Kuma reads each entry of `to` also as a set of tags: `Mesh` is the empty set, a MeshService by name is its tag
`kuma.io/service`. A policy with a MeshHTTPRoute in the top-level targetRef is about the route's service with
one more tag, which holds the hash of a rule's matches. There is one rule for each set, merged from all
entries whose sets cover it; where sets differ in more than one key, Kuma also has rules for combinations
with negated tags.

This is a view for Kuma's tools. Proxies get what follows from real resources (`rules`), which
`toResourceRules` shows.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final, NamedTuple

from koguma.core import items, order, routes, selectors, world
from koguma.core.incremental import Db
from koguma.core.items import ItemId
from koguma.core.policy_set import Policies
from koguma.core.world import Pairs, pairs
from koguma.model import tags, target_ref
from koguma.model.resource import Key
from koguma.model.schema import Json

MATCHES_HASH: Final = "__rule-matches-hash__"  # Kuma's tag for the matches of a rule of a route
_SERVICE_KINDS: Final = ("MeshService", "MeshServiceSubset")


class TagMatcher(NamedTuple):
    """A tag that a rule asks for, or that must be another one."""

    key: str
    value: str
    is_negated: bool = False


class SubsetItem(NamedTuple):
    """An entry of a policy, and the tags that it is about."""

    subset: Pairs
    entry: ItemId


class SubsetRule(NamedTuple):
    """What calls to services with these tags get, from entries in the order in which they merge."""

    matchers: tuple[TagMatcher, ...]
    entries: tuple[ItemId, ...]


def outbound(db: Db, policies: Policies) -> tuple[SubsetRule, ...]:
    """The rules that policies of one kind make of the tags of services."""
    subset_items = [subset_item for policy in policies for subset_item in _items(db, policy)]
    return combined(
        sorted(subset_items, key=lambda subset_item: order.key(items.rank(db, subset_item.entry)))
    )


def _items(db: Db, policy: Key) -> Iterator[SubsetItem]:
    entries = items.clean_spec(db, policy).get("to") or ()
    refs = [entry.get("targetRef") or {} for entry in entries]
    if any(ref.get("kind") == target_ref.HTTP_ROUTE for ref in refs):
        return  # Kuma leaves out the whole policy
    selector = selectors.selector(db, policy)
    if selector is None:
        return
    for index, ref in enumerate(refs):
        entry = ItemId(policy, "to", index)
        subsets = [_subset(ref)] if selector.via is None else _of_route(db, selector.via)
        yield from (SubsetItem(subset, entry) for subset in subsets if subset is not None)


def _subset(ref: Json) -> Pairs | None:
    """The tags that a reference stands for; None for one that only finds real resources."""
    kind, ref_tags = ref.get("kind") or "Mesh", ref.get("tags") or {}
    if kind == "Mesh":
        return ()
    if kind == "MeshSubset":
        return pairs(ref_tags)
    is_by_name = ref.get("name") and not any(ref.get(name) for name in ("labels", "namespace", "sectionName"))
    return pairs({tags.SERVICE: ref["name"], **ref_tags}) if kind in _SERVICE_KINDS and is_by_name else None


def _of_route(db: Db, route: Key) -> Iterator[Pairs]:
    if world.RESOURCES.get(db, route) is None or route.kind != target_ref.HTTP_ROUTE:
        return
    for entry in items.clean_spec(db, route).get("to") or ():
        subset = _subset(entry.get("targetRef") or {})
        for rule in entry.get("rules") or () if subset is not None else ():
            yield pairs({**dict(subset or ()), MATCHES_HASH: routes.match_hash(rule.get("matches"))})


def combined(subset_items: Sequence[SubsetItem]) -> tuple[SubsetRule, ...]:
    """One rule for each combination of tags that some item covers, those with more tags first."""
    keys = {key for item in subset_items for key, _ in item.subset}
    if len(keys) <= 1:
        distinct = dict.fromkeys(tuple(TagMatcher(*tag) for tag in item.subset) for item in subset_items)
    else:
        cliques = sorted(_cliques(subset_items), key=lambda clique: ":".join(map(str, clique)), reverse=True)
        distinct = dict.fromkeys(
            combination for clique in cliques for combination in _combinations(subset_items, clique)
        )
    subset_rules = [SubsetRule(matchers, _covering(subset_items, matchers)) for matchers in distinct]
    return tuple(sorted((rule for rule in subset_rules if rule.entries), key=_n_positive, reverse=True))


def _n_positive(rule: SubsetRule) -> int:
    return sum(not matcher.is_negated for matcher in rule.matchers)


def _covering(subset_items: Sequence[SubsetItem], matchers: tuple[TagMatcher, ...]) -> tuple[ItemId, ...]:
    """The entries that hold wherever a rule holds: all their tags are asked for."""
    required = {(matcher.key, matcher.value) for matcher in matchers if not matcher.is_negated}
    return tuple(dict.fromkeys(item.entry for item in subset_items if required.issuperset(item.subset)))


def _cliques(subset_items: Sequence[SubsetItem]) -> Iterator[tuple[int, ...]]:
    """The maximal sets of items of which any two have services in common, by number (Bron-Kerbosch)."""
    neighbours = [
        {j for j, other in enumerate(subset_items) if j != i and _intersect(item.subset, other.subset)}
        for i, item in enumerate(subset_items)
    ]
    stack: list[tuple[set[int], set[int], set[int]]] = [(set(), set(range(len(subset_items))), set())]
    while stack:
        chosen, open_, done = stack.pop()
        if not open_ and not done:
            yield tuple(sorted(chosen))
            continue
        pivot = max(sorted(open_ | done), key=lambda node: len(open_ & neighbours[node]))
        for node in sorted(open_ - neighbours[pivot]):
            stack.append((chosen | {node}, open_ & neighbours[node], done & neighbours[node]))
            open_, done = open_ - {node}, done | {node}


def _intersect(some: Pairs, others: Pairs) -> bool:
    """Whether a service can have both sets of tags."""
    values = dict(some)
    return all(values.get(key, value) == value for key, value in others)


def _combinations(
    subset_items: Sequence[SubsetItem], clique: tuple[int, ...]
) -> Iterator[tuple[TagMatcher, ...]]:
    """Each key with its value or negated, in Kuma's order: the first key turns fastest, all values last.

    The items of a clique agree on the value of each key, since any two of them have services in common.
    """
    subset_tags = sorted({tag for number in clique for tag in subset_items[number].subset})
    turns = [tuple(reversed(turn)) for turn in product((False, True), repeat=len(subset_tags))]
    for negated in (*turns[1:], turns[0]):
        yield tuple(TagMatcher(key, value, no) for (key, value), no in zip(subset_tags, negated, strict=True))
