"""Differences: what one bundle of pieces has and another has not, found once for all who change over.

Proxies share bundles, so a change that touches thousands of them is a step between a few pairs. A step is
remembered as long as both of its bundles live.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Final
from weakref import ref

from koguma.envoy.snapshot import Bundle, Id, Snapshot, XdsResource

_EMPTY: Final = Bundle({})


class Step:
    """From one bundle to another. It has a `type` where only the content of pieces of that type differs."""

    __slots__ = ("ids", "pieces", "type")

    def __init__(self, before: Bundle, after: Bundle) -> None:
        old, new = before.resources, after.resources
        suspects = after.suspects(before)
        found = _different(old, new) if suspects is None else _different_of(suspects, old, new)
        self.ids: tuple[Id, ...] = tuple(found)
        come = {id_: new[id_] for id_ in self.ids if id_ in new}
        is_plain = len(come) == len(self.ids) and all(
            id_ in old and old[id_].needs == piece.needs for id_, piece in come.items()
        )
        types = {type_ for type_, _ in self.ids}
        self.type = types.pop() if is_plain and len(types) == 1 else ""
        if is_plain:
            after.count_like(before)
        self.pieces: Mapping[str, XdsResource] = {name: piece for (_, name), piece in come.items()}


_known: Final[dict[tuple[int, int], Step]] = {}
_alive: Final[dict[tuple[int, int], tuple["ref[Bundle]", "ref[Bundle]"]]] = {}


def between(before: Snapshot, after: Snapshot) -> Iterator[Id]:
    """The names that differ. Bundles that both have are not looked into, wherever they stand."""
    old, new = {id(each) for each in before.bundles}, {id(each) for each in after.bundles}
    gone = [each for each in before.bundles if id(each) not in new]
    come = [each for each in after.bundles if id(each) not in old]
    for one, other in zip_longest(gone, come):
        if one is None or other is None:
            yield from (one or other or _EMPTY).resources
        else:
            yield from _step(one, other).ids


def plain_step(before: Snapshot, after: Snapshot) -> Step | None:
    """The step between two snapshots, where that is the content of some pieces of one type and no more."""
    if len(before.bundles) != len(after.bundles):
        return None
    pairs = [pair for pair in zip(before.bundles, after.bundles, strict=True) if pair[0] is not pair[1]]
    if len(pairs) != 1:
        return None
    step = _step(*pairs[0])
    return step if step.type else None


def is_hidden(step: Step, after: Snapshot) -> bool:
    """Whether other bundles have pieces of the same names, so that it is not clear which ones count."""
    new = step.pieces.values()
    return any(sum(piece.id in each.resources for each in after.bundles) > 1 for piece in new)


def _step(before: Bundle, after: Bundle) -> Step:
    pair = id(before), id(after)
    found = _known.get(pair)
    if found is None:
        found = _known[pair] = Step(before, after)
        # An id may be given to another bundle once its own is gone, and so the pair goes before that.
        _alive[pair] = ref(before, lambda _: _forget(pair)), ref(after, lambda _: _forget(pair))
    return found


def _forget(pair: tuple[int, int]) -> None:
    _known.pop(pair, None)
    _alive.pop(pair, None)


def _different_of(
    ids: Iterable[Id], old: Mapping[Id, XdsResource], new: Mapping[Id, XdsResource]
) -> Iterator[Id]:
    some_old = {id_: piece for id_ in ids if (piece := old.get(id_)) is not None}
    some_new = {id_: piece for id_ in ids if (piece := new.get(id_)) is not None}
    return _different(some_old, some_new)


def _different(old: Mapping[Id, XdsResource], new: Mapping[Id, XdsResource]) -> Iterator[Id]:
    others = [(id_, piece) for id_, piece in new.items() if old.get(id_) is not piece]
    for id_, piece in others:
        other = old.get(id_)
        if other is None or other != piece or other.needs != piece.needs:
            yield id_
    n_added = sum(1 for id_, _ in others if id_ not in old)
    if len(old) + n_added != len(new):
        yield from (id_ for id_ in old if id_ not in new)
