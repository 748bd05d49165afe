"""Groups: proxies for which the same changes, in the words of policies and in Envoy's.

A proxy's difference is made of differences that proxies share: of their calls, of inbounds with equal traits,
of bundles. Proxies are grouped by these words and by which of Envoy's resources differ, where a name that is
the proxy's own counts as the same.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from koguma.core import world
from koguma.core.incremental import Db
from koguma.core.plan import envoy_changes, values
from koguma.core.plan.callers import Callers
from koguma.core.plan.envoy_changes import ADDED, CHANGED, REMOVED, EndpointDifferences, SnapshotDifferences
from koguma.core.plan.model import (
    CallerChange,
    EndpointChange,
    PlannedObject,
    PortChange,
    ProxyGroup,
    ValueChange,
)
from koguma.core.plan.scopes import ChangeSide, Permissions, ProxySide
from koguma.core.plan.values import ChangedLeaf, PartDifference, PartDifferences, SettersPair, TracedValues
from koguma.envoy.encode import Encoder
from koguma.envoy.snapshot import Snapshot
from koguma.model.resource import Key, Resource

_SERVICES_MAX = 1000  # callers are asked one by one


class Touched(NamedTuple):
    """A proxy whose snapshot differs; None on the side where it has none."""

    proxy: Key
    before: Snapshot | None
    after: Snapshot | None

    @property
    def action(self) -> str:
        """Whether it comes, goes, or gets something else."""
        return ADDED if self.before is None else REMOVED if self.after is None else CHANGED


class _Words(NamedTuple):
    """The words about one proxy."""

    ports: tuple[PortChange, ...] = ()
    callers: tuple[CallerChange, ...] = ()
    values: tuple[ValueChange, ...] = ()
    endpoints: tuple[EndpointChange, ...] = ()


class Groups:
    """Collects both sides of touched proxies, then groups them: `take_after`, `take_before`, the rest."""

    def __init__(
        self,
        encoder: Encoder | None,
        snapshots: SnapshotDifferences,
        touched_policies: frozenset[Key],
        may_see: Callable[[Key], bool],
        name_of: Callable[[Resource], str],
    ) -> None:
        self._encoder = encoder
        self._may_see = may_see
        self._name_of = name_of
        self._parts = PartDifferences(touched_policies)
        self._touched_policies = touched_policies
        self._snapshots = snapshots
        self._endpoints = EndpointDifferences(encoder)
        self._after: dict[Key, ProxySide | None] = {}
        self._names: dict[Key, PlannedObject] = {}
        self._touched: list[Touched] = []
        self._differences: dict[Key, tuple[PartDifference, ...]] = {}
        self._leaves_before: dict[SettersPair, values.Leaves] = {}
        self._leaves: dict[SettersPair, tuple[ChangedLeaf, ...]] = {}
        self._asked: dict[tuple[str, Permissions, Permissions], frozenset[str]] = {}  # who may before
        self._callers: dict[tuple[str, Permissions, Permissions], CallerChange | None] = {}
        self._permissions: dict[Key, tuple[tuple[str, Permissions, Permissions], ...]] = {}
        self._services: dict[str, frozenset[str]] = {}
        self.bytes_before = 0
        self.bytes_after = 0

    def take_after(self, side: ChangeSide, touched: Iterable[Touched]) -> None:
        """Take what holds after the change."""
        for each in touched:
            self._touched.append(each)
            self._after[each.proxy] = side.of(each.proxy) if each.action == CHANGED else None
            self._name(side.db, each.proxy)

    def take_before(self, side: ChangeSide, touched: Iterable[Touched]) -> None:
        """Take what holds before it, and find what to look at."""
        traced, callers = TracedValues(side.db), Callers(side.db, self._may_see)
        for each in touched:
            self._name(side.db, each.proxy)
            before, after = side.of(each.proxy), self._after[each.proxy]
            if before is None or after is None:
                continue
            self._differences[each.proxy] = self._parts.of(before, after)
            self._permissions[each.proxy] = tuple(self._decisions(each.proxy.mesh, before, after))
        for pair in self._pairs():
            self._leaves_before[pair] = traced.of(pair[0])
        for asked in self._decided():
            mesh, before_rules, _ = asked
            services = list(callers.services(mesh))[:_SERVICES_MAX]
            self._services[mesh] = frozenset(services)
            self._asked[asked] = callers.of(mesh, before_rules, services)

    def resolve_after(self, db: Db) -> None:
        """Look at the same after the change."""
        traced, callers = TracedValues(db), Callers(db, self._may_see)
        for pair, before in self._leaves_before.items():
            kind = next(each.kind for each in pair if each is not None)
            self._leaves[pair] = values.changed_leaves(kind, before, traced.of(pair[1]))
        for asked, allowed in self._asked.items():
            mesh, _, rules = asked
            both = self._services[mesh] & frozenset(callers.services(mesh))
            old, new = allowed & both, callers.of(mesh, rules, both)
            self._callers[asked] = (
                CallerChange(rules.at, tuple(sorted(new - old)), tuple(sorted(old - new)), len(old), len(new))
                if old != new
                else None
            )

    def grouped(self, *, envoy_fields: bool) -> tuple[ProxyGroup, ...]:
        """The groups, those with most proxies first; proxies in order of their names."""
        found: dict[object, list[Touched]] = defaultdict(list)
        words_of: dict[object, _Words] = {}
        for each in self._touched:
            changes = self._snapshots.of(each.before, each.after)
            self.bytes_before += self._snapshots.size(each.before)
            self.bytes_after += self._snapshots.size(each.after)
            words, name = self._words(each, changes)
            words_of.setdefault(name, words)
            found[name].append(each)
        groups = [self._group(words_of[name], found[name], envoy_fields) for name in found]
        return tuple(sorted(groups, key=lambda group: (-group.total, group.proxies)))

    def _words(self, each: Touched, changes: tuple[envoy_changes.XdsChange, ...]) -> tuple[_Words, object]:
        """The words about a proxy, and by what it is grouped."""
        if each.action != CHANGED:
            return _Words(), each.action
        parts = self._differences.get(each.proxy, ())
        callers = tuple(
            found
            for asked in self._permissions.get(each.proxy, ())
            if (found := self._callers.get(asked)) is not None
        )
        endpoints = self._endpoints.of(changes)
        words = _Words((), callers, (), endpoints)
        own = each.proxy.name
        ids = frozenset((id_[0], id_[1].replace(own, ""), change) for id_, change in _actions(changes))
        shared = tuple(self._part_name(part) for part in parts)
        is_wordless = not (callers or endpoints or any(any(name) for name in shared))
        versions = frozenset(changes) if is_wordless else None
        return words, (shared, callers, endpoints, ids, versions)

    def _part_name(self, part: PartDifference) -> tuple[object, ...]:
        """What of a part's difference tells groups apart: all words, by identity where they are shared."""
        leaves = tuple(
            (scope, _leaf_name(self._leaves[pair])) for scope, pair in part.setters if self._leaves[pair]
        )
        return part.ports, tuple(map(repr, part.facts)), leaves

    def _group(self, words: _Words, touched: list[Touched], envoy_fields: bool) -> ProxyGroup:  # noqa: FBT001
        ordered = sorted(touched, key=lambda each: self._names[each.proxy])
        first = ordered[0]
        changes = self._snapshots.of(first.before, first.after)
        parts = self._differences.get(first.proxy, ())
        return ProxyGroup(
            action=first.action,
            total=len(ordered),
            proxies=tuple(self._names[each.proxy] for each in ordered),
            ports=tuple(port for part in parts for port in part.ports),
            callers=words.callers,
            values=tuple(self._values(parts)),
            endpoints=words.endpoints,
            resources=tuple(
                envoy_changes.shown(each, self._encoder, fields=envoy_fields) for each in changes
            ),
            bytes_before=self._snapshots.size(first.before),
            bytes_after=self._snapshots.size(first.after),
        )

    def _values(self, parts: Iterable[PartDifference]) -> Iterator[ValueChange]:
        for part in parts:
            yield from part.facts
            for scope, pair in part.setters:
                yield from values.in_scope(scope, self._leaves[pair])

    def _pairs(self) -> Iterator[SettersPair]:
        parts = {id(part): part for found in self._differences.values() for part in found}
        return (pair for part in parts.values() for _, pair in part.setters)

    def _decisions(
        self, mesh: str, before: ProxySide, after: ProxySide
    ) -> Iterator[tuple[str, Permissions, Permissions]]:
        """The inbounds about whose callers another decision may be made."""
        old = {each.at: each for each in before.permissions}
        for new in after.permissions:
            known = old.get(new.at)
            if known is not None and (known != new or self._is_touched(new)):
                yield mesh, known, new

    def _is_touched(self, permissions: Permissions) -> bool:
        return any(
            rule.entry.policy in self._touched_policies
            for _, rules in permissions.by_kind or ()
            for rule in rules
        )

    def _decided(self) -> Iterator[tuple[str, Permissions, Permissions]]:
        return iter(dict.fromkeys(asked for found in self._permissions.values() for asked in found))

    def _name(self, db: Db, key: Key) -> None:
        resource = world.RESOURCES.get(db, key)
        if resource is not None:
            self._names[key] = PlannedObject(key.kind, self._name_of(resource), key.mesh)


def _actions(
    changes: Iterable[envoy_changes.XdsChange],
) -> Iterator[tuple[tuple[str, str], str]]:
    return ((change.id, change.action) for change in changes)


def _leaf_name(leaves: tuple[ChangedLeaf, ...]) -> str:
    return repr(leaves)
