"""Ranks and items with the fewest words, and random ones; for the tests of order, merge and routes."""

import re
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from koguma.core import order
from koguma.core.merge import Item
from koguma.core.order import Rank, Tier
from koguma.core.role import PolicyRole
from koguma.model.resource import Key

Json = Any

ORDINARY = Rank(
    tier=Tier.SERVICE,
    top_kind="Mesh",
    top_by_name=False,
    top_section=False,
    origin="zone",
    gateway_tags=0,
    role=PolicyRole.SYSTEM,
    to_kind="MeshService",
    to_section=False,
    display_name="same",
    core_name="same",
    index=0,
)


def rank(**changes: Any) -> Rank:
    """A system policy on the whole mesh, to a MeshService, except for the changes."""
    fields = {name: getattr(ORDINARY, name) for name in Rank.__struct_fields__}
    return Rank(**{**fields, **changes})


def item(name: str, conf: Json, path: str = "spec.to[0].default", **changes: Any) -> Item:
    """A configuration of the policy `name`; the changes are those of its rank."""
    key = Key("MeshTimeout", "default", "east", "", name)
    return Item(key, rank(**{"display_name": name, "core_name": name, **changes}), path, conf)


KINDS = [*order._KINDS, "", "Unheard"]
ranks = st.builds(
    Rank,
    tier=st.sampled_from(Tier),
    top_kind=st.sampled_from(KINDS),
    top_by_name=st.booleans(),
    top_section=st.booleans(),
    origin=st.sampled_from(["", "global", "zone"]),
    gateway_tags=st.integers(0, 3),
    role=st.sampled_from(PolicyRole),
    to_kind=st.sampled_from(KINDS),
    to_section=st.booleans(),
    display_name=st.sampled_from(["a", "ab", "b", "é", ""]),
    core_name=st.sampled_from(["a", "a.ns", "b"]),
    index=st.integers(0, 3),
    created=st.sampled_from(["", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"]),
)

# Few names, so that items meet; some of them no field's, some of lists that are joined.
NAMES = ["http", "idleTimeout", "appendMatch", "appendX", "kuma.io/zone", 'a"]["b', "a\\", ""]
scalars: SearchStrategy[Json] = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from(["", "5s", "\ud800"])
)
json_values: SearchStrategy[Json] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=12,
)
confs = st.dictionaries(st.sampled_from(NAMES), json_values, max_size=4) | st.none()


def ranked_items(of: SearchStrategy[Json], path: str) -> SearchStrategy[list[Item]]:
    """Items in any order, no two with the same policy and place in it."""

    def build(pairs: list[tuple[Rank, Json]]) -> list[Item]:
        return [
            Item(
                Key("MeshTimeout", "default", "", "", each.core_name),
                each,
                path.format(index=each.index),
                conf,
            )
            for each, conf in pairs
        ]

    pairs = st.tuples(ranks, of)
    unique = st.lists(pairs, max_size=6, unique_by=lambda pair: (pair[0].core_name, pair[0].index))
    return unique.map(build)


_STEP = re.compile(r'\.?([A-Za-z_][A-Za-z0-9_-]*)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]')


def steps(path: str) -> list[str | int]:
    """The names and indices of a path."""
    found: list[str | int] = []
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        assert step, f"{path!r} is no path from {at} on"
        field, index, name = step.groups()
        if index is not None:
            found.append(int(index))
        else:
            found.append(field if field is not None else re.sub(r"\\(.)", r"\1", name))
        at = step.end()
    return found


def at(value: Json, path: str) -> Json:
    """What stands at a path."""
    for step in steps(path):
        value = value[step]
    return value


def written(each: Item) -> Json:
    """The policy of an item, as far as the item's path leads into it."""
    value = each.conf
    for step in reversed(steps(each.path)):
        value = {step: value}
    return value


def ascending(items: Iterable[Item]) -> tuple[Item, ...]:
    """The items in the order in which they merge."""
    return tuple(sorted(items, key=lambda each: order.key(each.rank)))
