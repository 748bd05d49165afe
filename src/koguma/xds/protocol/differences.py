"""Differences: what one bundle of pieces has and another has not, found once for all who change over.

Proxies share bundles, so a change that touches thousands of them is a step between a few pairs. A pair is
remembered as long as both of its bundles live.
"""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Final
from weakref import ref

from koguma.envoy.snapshot import Bundle, Id, Snapshot

_EMPTY: Final = Bundle({})
_known: Final[dict[tuple[int, int], tuple[Id, ...]]] = {}
_alive: Final[dict[tuple[int, int], tuple["ref[Bundle]", "ref[Bundle]"]]] = {}


def between(before: Snapshot, after: Snapshot) -> Iterator[Id]:
    """The names that differ. Bundles that both have are not looked into, wherever they stand."""
    old, new = {id(each) for each in before.bundles}, {id(each) for each in after.bundles}
    gone = [each for each in before.bundles if id(each) not in new]
    come = [each for each in after.bundles if id(each) not in old]
    for one, other in zip_longest(gone, come):
        if one is None or other is None:
            yield from (one or other or _EMPTY).pieces
        else:
            yield from _between(one, other)


def _between(before: Bundle, after: Bundle) -> tuple[Id, ...]:
    pair = id(before), id(after)
    found = _known.get(pair)
    if found is None:
        found = _known[pair] = tuple(_different(before, after))
        # An id may be given to another bundle once its own is gone, and so the pair goes before that.
        _alive[pair] = ref(before, lambda _: _forget(pair)), ref(after, lambda _: _forget(pair))
    return found


def _forget(pair: tuple[int, int]) -> None:
    _known.pop(pair, None)
    _alive.pop(pair, None)


def _different(before: Bundle, after: Bundle) -> Iterator[Id]:
    old, new = before.pieces, after.pieces
    yield from (id_ for id_ in old if id_ not in new)
    for id_, piece in new.items():
        other = old.get(id_)
        if other is not piece and (other is None or other != piece or other.needs != piece.needs):
            yield id_
