"""Merge: one configuration out of several, field by field, and who set each field.

Items come in ascending precedence (`order`). Objects merge into each other; anything else is replaced by what
comes later, a list as a whole, also by an empty one. Lists named `append...` are joined instead, the
less important part first. Null says nothing, so no policy can take a field away again. This is RFC 7396
without its null, as in Kuma.

`merged` is what compiling asks, very often. `traced` is for people: it gives the same configuration and, for
each of its leaves, the place that set it and the places that lost. A leaf is a scalar, a list, an empty
object, or one element of an `append...` list. Where a leaf comes from is read off the items once more instead
of being carried along, so nobody pays for it before somebody asks.
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
    """One configuration of one policy: `conf` stands at `path` in the object `source`."""

    source: Key
    rank: Rank
    path: str
    conf: Json


class Origin(msgspec.Struct, frozen=True, gc=False):
    """A place in a policy."""

    source: Key
    path: str


class Loser(msgspec.Struct, frozen=True, gc=False):
    """What a less important item says for a leaf, and why it does not count."""

    origin: Origin
    value: Json
    reason: str


class Traced(msgspec.Struct, frozen=True, gc=False):
    """A merged configuration; both tables have the path of every leaf, most important loser first."""

    conf: Json
    origins: Mapping[str, Origin]
    losers: Mapping[str, tuple[Loser, ...]]


def merged(items: Iterable[Item]) -> Json:
    """What the items say together, given in ascending precedence; lists are shared with them."""
    conf: dict[str, Json] = {}
    for each in items:
        if isinstance(each.conf, dict):
            _lay(conf, each.conf)
    return conf


def _lay(base: dict[str, Json], over: Mapping[str, Json]) -> None:
    """Lay one object over another, which is ours alone; every object inside it is so too."""
    for name, value in over.items():
        if isinstance(value, dict):
            inner = base.get(name)
            if not isinstance(inner, dict):
                inner = base[name] = {}
            _lay(inner, value)
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


class _Saying(msgspec.Struct, frozen=True):
    """What an item says at a place of its configuration, or at one around it."""

    item: Item
    origin: Origin
    value: Json
    is_around: bool = False

    @property
    def is_joined(self) -> bool:
        """Whether it is a list that others are appended to."""
        return isinstance(self.value, list) and not self.is_around


class _Leaf(msgspec.Struct, frozen=True):
    """A leaf of the merged configuration."""

    path: str
    winner: _Saying
    lost: Iterable[_Saying]


_Names = tuple[str, ...]


def _leaves(value: Json, names: _Names, items: Sequence[Item]) -> Iterator[_Leaf]:
    if isinstance(value, dict) and (value or not names):
        for name, inner in value.items():
            yield from _leaves(inner, (*names, name), items)
        return
    said = [saying for each in items if (saying := _said(each, names))]
    if isinstance(value, list) and names[-1].startswith(_APPEND) and value:
        yield from _elements(said, names)
    else:
        # Nobody after the last one to say something here could change it, so the leaf is theirs.
        *lost, winner = said
        yield _Leaf(_path("", names), winner, reversed(lost))


def _elements(said: Sequence[_Saying], names: _Names) -> Iterator[_Leaf]:
    """The leaves of a joined list: all that was said since something else than a list stood there."""
    n_replaced = max((n for n, each in enumerate(said, 1) if not each.is_joined), default=0)
    lost = said[:n_replaced][::-1]
    index = 0
    for each in said[n_replaced:]:
        for position, element in enumerate(each.value):
            origin = Origin(each.origin.source, item(each.origin.path, position))
            yield _Leaf(item(_path("", names), index), _Saying(each.item, origin, element), lost)
            index += 1


def _said(each: Item, names: _Names) -> _Saying | None:
    """What an item says at this place, or instead of an object around it; None where it says nothing."""
    value: Json = each.conf if isinstance(each.conf, dict) else {}
    for depth, name in enumerate(names):
        if not isinstance(value, dict):
            return _Saying(each, Origin(each.source, _path(each.path, names[:depth])), value, is_around=True)
        value = value.get(name)
        if value is None:
            return None
    return _Saying(each, Origin(each.source, _path(each.path, names)), _without_nulls(value))


def _without_nulls(value: Json) -> Json:
    if not isinstance(value, dict):
        return value
    conf: dict[str, Json] = {}
    _lay(conf, value)
    return conf


_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def _path(path: str, names: _Names) -> str:
    """The path of a place under `path`; a name that no field can have is written as a map's key."""
    for name in names:
        if _FIELD.fullmatch(name):
            path = child(path, name)
        else:
            path = key(path, name.replace("\\", "\\\\").replace('"', '\\"'))
    return path
