"""Merge: one conf out of several, field by field, and who set each field.

Items come in ascending precedence (`order`). Objects merge into each other; anything else is replaced by what
comes later, a list as a whole, also by an empty one. Lists named `append...` are joined instead, the
less important part first. Null is ignored, so no policy can remove a field again. This is RFC 7396 (JSON
merge patch) without its null, as in Kuma.

`merged` is on the hot path of the compile. `traced` is for people: it gives the same conf and, for each of
its leaves, the place that set it and the places that lost. A leaf is a scalar, a list, an empty object, or
one element of an `append...` list. `traced` finds the origin of a leaf by reading the items again; `merged`
carries no origins, so the compile does not pay for them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from koguma.core import order
from koguma.core.order import Rank
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import child, item, key

_APPEND: Final = "append"


class Item(msgspec.Struct, frozen=True, gc=False):
    """One conf of one policy: `conf` stands at `path` in the object `source`."""

    source: Key
    rank: Rank
    path: str
    conf: Json


class Origin(msgspec.Struct, frozen=True, gc=False):
    """A place in a policy."""

    source: Key
    path: str


class Loser(msgspec.Struct, frozen=True, gc=False):
    """The value of a less important item for a leaf, and why it lost."""

    origin: Origin
    value: Json
    reason: str


class Traced(msgspec.Struct, frozen=True, gc=False):
    """A merged conf; both tables have the path of every leaf, most important loser first."""

    conf: Json
    origins: Mapping[str, Origin]
    losers: Mapping[str, tuple[Loser, ...]]


def merged(items: Iterable[Item]) -> Json:
    """The merged conf of items, given in ascending precedence; its lists are shared with theirs."""
    conf: dict[str, Json] = {}
    for each in items:
        if isinstance(each.conf, dict):
            _merge_into(conf, each.conf)
    return conf


def _merge_into(base: dict[str, Json], over: Mapping[str, Json]) -> None:
    """Merge one object into another in place; `base` and the objects in it are not shared with any item."""
    for name, value in over.items():
        if isinstance(value, dict):
            inner = base.get(name)
            if not isinstance(inner, dict):
                inner = base[name] = {}
            _merge_into(inner, value)
        elif isinstance(value, list) and name.startswith(_APPEND) and isinstance(base.get(name), list):
            base[name] = [*base[name], *value]
        elif value is not None:
            base[name] = value


def _outranked(winner: Item, loser: Item) -> str:
    return order.reason(winner.rank, loser.rank)


def traced(items: Sequence[Item], reason: Callable[[Item, Item], str] = _outranked) -> Traced:
    """The same, with the origin of each leaf; `reason` says why the second of two items lost to the first."""
    conf = merged(items)
    origins: dict[str, Origin] = {}
    losers: dict[str, tuple[Loser, ...]] = {}
    for leaf in _leaves(conf, (), items):
        origins[leaf.path] = leaf.winner.origin
        losers[leaf.path] = tuple(
            Loser(lost.origin, lost.value, reason(leaf.winner.item, lost.item)) for lost in leaf.lost
        )
    return Traced(conf, origins, losers)


class _ItemValue(msgspec.Struct, frozen=True):
    """The value of an item at a path of its conf, or at a parent of that path."""

    item: Item
    origin: Origin
    value: Json
    is_at_parent: bool = False

    @property
    def is_joined(self) -> bool:
        """Whether it is a list that others are appended to."""
        return isinstance(self.value, list) and not self.is_at_parent


class _Leaf(msgspec.Struct, frozen=True):
    """A leaf of the merged conf."""

    path: str
    winner: _ItemValue
    lost: Iterable[_ItemValue]


_Names = tuple[str, ...]


def _leaves(value: Json, names: _Names, items: Sequence[Item]) -> Iterator[_Leaf]:
    if isinstance(value, dict) and (value or not names):
        for name, inner in value.items():
            yield from _leaves(inner, (*names, name), items)
        return
    values = [item_value for each_item in items if (item_value := _value_of(each_item, names))]
    if isinstance(value, list) and names[-1].startswith(_APPEND) and value:
        yield from _elements(values, names)
    else:
        # Items come in ascending precedence, so the last one with a value here has set the leaf.
        *lost, winner = values
        yield _Leaf(_path("", names), winner, reversed(lost))


def _elements(values: Sequence[_ItemValue], names: _Names) -> Iterator[_Leaf]:
    """The leaves of a joined list: the elements of all items after the last that replaced the list."""
    n_replaced = max((n for n, each in enumerate(values, 1) if not each.is_joined), default=0)
    lost = values[:n_replaced][::-1]
    index = 0
    for each in values[n_replaced:]:
        for position, element in enumerate(each.value):
            origin = Origin(each.origin.source, item(each.origin.path, position))
            yield _Leaf(item(_path("", names), index), _ItemValue(each.item, origin, element), lost)
            index += 1


def _value_of(each: Item, names: _Names) -> _ItemValue | None:
    """The value of an item at a path, or of a parent that is no object; None where it has neither."""
    value: Json = each.conf if isinstance(each.conf, dict) else {}
    for depth, name in enumerate(names):
        if not isinstance(value, dict):
            return _ItemValue(
                each, Origin(each.source, _path(each.path, names[:depth])), value, is_at_parent=True
            )
        value = value.get(name)
        if value is None:
            return None
    return _ItemValue(each, Origin(each.source, _path(each.path, names)), _without_nulls(value))


def _without_nulls(value: Json) -> Json:
    if not isinstance(value, dict):
        return value
    conf: dict[str, Json] = {}
    _merge_into(conf, value)
    return conf


_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def _path(path: str, names: _Names) -> str:
    """A path under `path`; a name that is no field name is written as a map's key."""
    for name in names:
        if _FIELD.fullmatch(name):
            path = child(path, name)
        else:
            path = key(path, name.replace("\\", "\\\\").replace('"', '\\"'))
    return path
