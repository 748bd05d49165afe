"""Bundle diffs: how two bundles of resources differ, computed once for all proxies that change over.

Proxies share bundles, so a change that touches thousands of proxies is a diff of a few pairs of bundles. A
diff is cached as long as both of its bundles are alive.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Final
from weakref import ref

from koguma.envoy.snapshot import Bundle, Id, Snapshot, XdsResource

_EMPTY: Final = Bundle({})


class BundleDiff:
    """How one bundle differs from another. `type` is set where only content of that type changed."""

    __slots__ = ("ids", "resources", "type")

    def __init__(self, before: Bundle, after: Bundle) -> None:
        old, new = before.resources, after.resources
        suspects = after.possible_differences(before)
        changed = _changed_ids(old, new) if suspects is None else _changed_among(suspects, old, new)
        self.ids: tuple[Id, ...] = tuple(changed)
        present = {id_: new[id_] for id_ in self.ids if id_ in new}
        is_content_only = len(present) == len(self.ids) and all(
            id_ in old and old[id_].needs == resource.needs for id_, resource in present.items()
        )
        types = {type_ for type_, _ in self.ids}
        self.type = types.pop() if is_content_only and len(types) == 1 else ""
        if is_content_only:
            after.copy_counts(before)
        self.resources: Mapping[str, XdsResource] = {
            name: resource for (_, name), resource in present.items()
        }


_cache: Final[dict[tuple[int, int], BundleDiff]] = {}
_cached_bundles: Final[dict[tuple[int, int], tuple["ref[Bundle]", "ref[Bundle]"]]] = {}


def changed_ids(before: Snapshot, after: Snapshot) -> Iterator[Id]:
    """The resources that may differ. Bundles that are in both snapshots are skipped, at whatever position."""
    old_ids, new_ids = {id(bundle) for bundle in before.bundles}, {id(bundle) for bundle in after.bundles}
    removed = [bundle for bundle in before.bundles if id(bundle) not in new_ids]
    added = [bundle for bundle in after.bundles if id(bundle) not in old_ids]
    for old, new in zip_longest(removed, added):
        if old is None or new is None:
            yield from (old or new or _EMPTY).resources
        else:
            yield from _diff(old, new).ids


def content_diff(before: Snapshot, after: Snapshot) -> BundleDiff | None:
    """The diff of two snapshots where only the content of resources of one type changed; else None."""
    if len(before.bundles) != len(after.bundles):
        return None
    pairs = [pair for pair in zip(before.bundles, after.bundles, strict=True) if pair[0] is not pair[1]]
    if len(pairs) != 1:
        return None
    diff = _diff(*pairs[0])
    return diff if diff.type else None


def is_shadowed(diff: BundleDiff, after: Snapshot) -> bool:
    """Whether other bundles hold resources of the same names, so that it is not clear which ones count."""
    changed = diff.resources.values()
    return any(sum(resource.id in bundle.resources for bundle in after.bundles) > 1 for resource in changed)


def _diff(before: Bundle, after: Bundle) -> BundleDiff:
    pair = id(before), id(after)
    diff = _cache.get(pair)
    if diff is None:
        diff = _cache[pair] = BundleDiff(before, after)
        # Python reuses the id of a bundle that is freed, so the entry is dropped when one of them is.
        _cached_bundles[pair] = ref(before, lambda _: _drop(pair)), ref(after, lambda _: _drop(pair))
    return diff


def _drop(pair: tuple[int, int]) -> None:
    _cache.pop(pair, None)
    _cached_bundles.pop(pair, None)


def _changed_among(
    ids: Iterable[Id], old: Mapping[Id, XdsResource], new: Mapping[Id, XdsResource]
) -> Iterator[Id]:
    some_old = {id_: resource for id_ in ids if (resource := old.get(id_)) is not None}
    some_new = {id_: resource for id_ in ids if (resource := new.get(id_)) is not None}
    return _changed_ids(some_old, some_new)


def _changed_ids(old: Mapping[Id, XdsResource], new: Mapping[Id, XdsResource]) -> Iterator[Id]:
    candidates = [(id_, resource) for id_, resource in new.items() if old.get(id_) is not resource]
    for id_, resource in candidates:
        before = old.get(id_)
        if before is None or before != resource or before.needs != resource.needs:
            yield id_
    n_added = sum(1 for id_, _ in candidates if id_ not in old)
    if len(old) + n_added != len(new):
        yield from (id_ for id_ in old if id_ not in new)
