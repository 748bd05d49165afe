"""Values: which values of proxies differ between the two sides of a change, old and new, and who set them.

Only entries that differ, or that are of a policy that the change touches, are looked at. Their confs are
merged with tracing (`provenance`), once for all scopes in which the same entries hold.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from koguma.core import request_words
from koguma.core.incremental import Db
from koguma.core.plan.model import PortChange, ValueChange, ValuePlace
from koguma.core.plan.scopes import ARRIVALS, CALLS, Facts, Part, ProxySide, Setters, ValueScope
from koguma.core.provenance import Viewer
from koguma.model.resource import Key
from koguma.model.schema import Json

SettersPair = tuple[Setters | None, Setters | None]  # before and after
_MATCHES: Final = "matches"  # of a rule of a route
_Leaf = tuple[str, str]  # requests, and the path of the field


class SetValue(NamedTuple):
    """A value, and who set it."""

    value: Json
    place: ValuePlace


Leaves = Mapping[_Leaf, SetValue]


class ChangedLeaf(NamedTuple):
    """A leaf of merged confs that differs."""

    kind: str
    requests: str
    field: str
    before: SetValue | None
    after: SetValue | None


class PartDifference(NamedTuple):
    """What may differ in one part of a proxy; setters are resolved later, once for all scopes."""

    ports: tuple[PortChange, ...]
    facts: tuple[ValueChange, ...]
    setters: tuple[tuple[ValueScope, SettersPair], ...]


NOTHING: Final = PartDifference((), (), ())


class PartDifferences:
    """Compares parts, each pair of them once; `touched` are the policies whose content may differ."""

    def __init__(self, touched: frozenset[Key]) -> None:
        self._touched = touched
        self._known: dict[tuple[int, int], tuple[PartDifference, Part, Part]] = {}

    def of(self, before: ProxySide, after: ProxySide) -> tuple[PartDifference, ...]:
        """What may differ between two sides of a proxy, part by part."""
        found = [self._part(before.calls, after.calls), self._part(before.whole, after.whole)]
        by_name = [{_at(part): part for part in side.arrivals} for side in (before, after)]
        old, new = by_name
        names = dict.fromkeys((*old, *new))
        found += [self._part(old.get(name, _EMPTY), new.get(name, _EMPTY)) for name in names]
        return tuple(each for each in found if each is not NOTHING)

    def _part(self, before: Part, after: Part) -> PartDifference:
        name = id(before), id(after)
        if name not in self._known:
            difference = self._compared(before, after)
            self._known[name] = (NOTHING if difference == NOTHING else difference), before, after
        return self._known[name][0]

    def _compared(self, before: Part, after: Part) -> PartDifference:
        added = [scope for scope in after.facts if scope not in before.facts]
        removed = [scope for scope in before.facts if scope not in after.facts]
        alone = {scope.at for scope in (*added, *removed) if scope.about == CALLS}
        ports = [PortChange(scope.at, is_added=True) for scope in added if scope.about == CALLS]
        ports += [PortChange(scope.at, is_added=False) for scope in removed if scope.about == CALLS]
        return PartDifference(
            tuple(ports),
            tuple(_changed_facts(before.facts, after.facts, alone)),
            tuple(self._changed_setters(before, after, alone)),
        )

    def _changed_setters(
        self, before: Part, after: Part, alone: set[str]
    ) -> Iterator[tuple[ValueScope, SettersPair]]:
        for name in dict.fromkeys((*before.setters, *after.setters)):
            pair = before.setters.get(name), after.setters.get(name)
            scope = name[0]
            if scope.at not in alone and (pair[0] != pair[1] or self._is_touched(pair[1])):
                yield scope, pair

    def _is_touched(self, setters: Setters | None) -> bool:
        return setters is not None and any(entry.policy in self._touched for entry in setters.entries)


_EMPTY: Final = Part({}, {})


def _at(part: Part) -> str:
    return next(iter(part.facts)).at


def _changed_facts(
    before: Mapping[ValueScope, Facts], after: Mapping[ValueScope, Facts], alone: set[str]
) -> Iterator[ValueChange]:
    for scope in dict.fromkeys((*before, *after)):
        if scope.at in alone:
            continue
        old, new = before.get(scope, {}), after.get(scope, {})
        kind = {CALLS: "", ARRIVALS: "Dataplane"}.get(scope.about, "Mesh")
        for name in dict.fromkeys((*old, *new)):
            if old.get(name) != new.get(name):
                yield ValueChange(scope.about, scope.at, kind, name, old.get(name), new.get(name))


class TracedValues:
    """The values that setters set on one side, with who set them; each set of entries is merged once."""

    def __init__(self, db: Db) -> None:
        self._viewer = Viewer(db, fields=True)
        self._known: dict[Setters, dict[_Leaf, SetValue]] = {}

    def of(self, setters: Setters | None) -> Mapping[_Leaf, SetValue]:
        """The values of all leaves, by requests and field."""
        if setters is None:
            return {}
        if setters not in self._known:
            self._known[setters] = dict(self._leaves(setters))
        return self._known[setters]

    def _leaves(self, setters: Setters) -> Iterator[tuple[_Leaf, SetValue]]:
        if not setters.makes_rules:
            for path, origin in (self._viewer.conf(setters.entries).origins or {}).items():
                yield ("", path), _set_value(origin)
            return
        for rule in self._viewer.route_rules(setters.entries):
            requests = request_words.of_matches(rule.matches) or "all requests"
            yield (requests, _MATCHES), _set_value(rule.matches_origin)
            for path, origin in (rule.shown.origins or {}).items():
                yield (requests, path), _set_value(origin)


def _set_value(origin: Mapping[str, Json]) -> SetValue:
    return SetValue(origin["value"], ValuePlace(origin["kri"], origin["path"], origin["line"]))


def changed_leaves(
    kind: str, before: Mapping[_Leaf, SetValue], after: Mapping[_Leaf, SetValue]
) -> tuple[ChangedLeaf, ...]:
    """The leaves whose values differ; who set an equal value makes no difference.

    That a rule of a route comes or goes is said where it sets nothing else.
    """
    found = []
    for leaf in dict.fromkeys((*before, *after)):
        old, new = before.get(leaf), after.get(leaf)
        if (old.value if old else None) != (new.value if new else None):
            found.append(ChangedLeaf(kind, *leaf, old, new))
    told = {leaf.requests for leaf in found if leaf.field != _MATCHES}
    return tuple(leaf for leaf in found if leaf.field != _MATCHES or leaf.requests not in told)


def in_scope(scope: ValueScope, leaves: Iterable[ChangedLeaf]) -> Iterator[ValueChange]:
    """Changed leaves as values of a scope."""
    for leaf in leaves:
        yield ValueChange(
            about=scope.about,
            at=scope.at,
            kind=leaf.kind,
            field=leaf.field,
            before=leaf.before.value if leaf.before else None,
            after=leaf.after.value if leaf.after else None,
            was_set_by=leaf.before.place if leaf.before else None,
            set_by=leaf.after.place if leaf.after else None,
            route=scope.route,
            requests=", ".join(filter(None, (scope.requests, leaf.requests))),
        )
