"""Provenance: merged confs for people, on demand with who set each field.

The conf is the answer of `items.conf`, which the build compiles. For the origins of its fields the same merge
is replayed with tracing: each leaf names the policy, the entry and the line that set it, and all that lost,
with the reason. Line numbers are those of the policy as `koguma get -o yaml` prints it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from koguma.core import derivation, items, merge, meta, routes, world
from koguma.core.incremental import Db
from koguma.core.items import Entries, ItemId
from koguma.core.merge import Item, Loser, Origin
from koguma.core.routes import RouteRule, TracedRule
from koguma.model import forms, native_page, target_ref
from koguma.model.derived import DerivedResource
from koguma.model.printed_yaml import PrintedYaml
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import child, item

_ENTRY: Final = re.compile(r"spec\.(?:to|from|rules)\[(\d+)\]")
_ELEMENT: Final = re.compile(r"\[(\d+)\]")
_APPEND: Final = "append"


class ShownConf(msgspec.Struct, frozen=True):
    """A conf, who set its fields where that was asked, and warnings about what was left out of it."""

    conf: Json
    origins: Mapping[str, Json] | None = None
    warnings: tuple[str, ...] = ()


class ShownRule(msgspec.Struct, frozen=True):
    """The same for one rule of a route: its matches, and its conf."""

    rule: RouteRule
    shown: ShownConf
    matches_origin: Json = None  # who wrote the matches, where that was asked

    @property
    def matches(self) -> Json:
        """The matches, as the most important policy writes them."""
        return self.rule.matches or []

    def origins(self, path: str) -> Iterator[tuple[str, Json]]:
        """Who set the fields of this rule, by path under `path`; nothing where that was not asked."""
        if self.shown.origins is not None:
            yield child(path, "matches"), self.matches_origin
            for field, origin in self.shown.origins.items():
                yield child(child(path, "default"), field), origin


class Viewer:
    """Shows the merged confs of entries; `fields` asks for who set each field.

    It prints each policy at most once, to find line numbers: use one viewer for one answer.
    """

    def __init__(self, db: Db, *, fields: bool = False) -> None:
        self.db = db
        self._fields = fields
        self._pages: dict[Key, PrintedYaml] = {}

    def conf(self, entries: Sequence[ItemId]) -> ShownConf:
        """The merged conf of entries, given in ascending precedence."""
        conf = items.conf(self.db, tuple(dict.fromkeys(entries)))
        if not self._fields:
            return ShownConf(conf)
        traced = merge.traced(self._items(entries))
        return ShownConf(conf, self._origins(conf, traced.origins, traced.losers))

    def confs(self, kind: str, entries: Sequence[ItemId]) -> ShownConf:
        """The same as a list: one conf for each set of hostnames of a MeshHTTPRoute, else a single one.

        With more than one, the paths of fields begin with the index in the list.
        """
        if kind != target_ref.HTTP_ROUTE:
            shown = self.conf(entries)
            return ShownConf([shown.conf], shown.origins, shown.warnings)
        groups = [self._route_conf(hosts, group) for hosts, group in self._by_hostnames(entries)]
        warnings = tuple(text for shown in groups for text in shown.warnings)
        origins: dict[str, Json] = {}
        for index, shown in enumerate(groups):
            prefix = f"[{index}]." if len(groups) > 1 else ""
            origins |= {f"{prefix}{path}": value for path, value in (shown.origins or {}).items()}
        return ShownConf([shown.conf for shown in groups], origins if self._fields else None, warnings)

    def route_rules(self, entries: Sequence[ItemId]) -> tuple[ShownRule, ...]:
        """The merged rules of entries of MeshHTTPRoutes, without parts that exclude each other."""
        if self._fields:
            return tuple(self._traced_rule(each) for each in routes.traced_rules(self._items(entries)))
        return tuple(_resolved(rule) for rule in items.route_rules(self.db, tuple(dict.fromkeys(entries))))

    def of_rule(self, rule: RouteRule, setting: str) -> dict[str, Json] | None:
        """A setting (`timeouts.request`) that a rule has itself, and who wrote it; None where it has none."""
        name, _, below = setting.partition(".")
        value = (rule.conf or {}).get(name)
        value = value.get(below) if below and isinstance(value, dict) else value
        if value is None or name not in rule.setters:
            return None
        setter = rule.setters[name]
        origin = Origin(setter.source, child(setter.path, below) if below else setter.path)
        return {"matches": rule.matches or [], **self._place(origin, value)}

    def place(self, source: Key, path: str) -> dict[str, Json]:
        """Where a part of a policy is written: KRI, index of the rule, path and line."""
        place = self._place(Origin(source, path), None)
        return {name: value for name, value in place.items() if name != "value"}

    def line(self, key: Key, path: str) -> int:
        """The line of a path in an object as it is printed."""
        return self._page(key).line(path)

    def _items(self, entries: Sequence[ItemId]) -> list[Item]:
        return [items.item(self.db, entry) for entry in dict.fromkeys(entries)]

    def _by_hostnames(self, entries: Sequence[ItemId]) -> Iterator[tuple[tuple[str, ...], Entries]]:
        groups: dict[tuple[str, ...], list[ItemId]] = {}
        for entry in dict.fromkeys(entries):
            hostnames = items.item(self.db, entry).conf.get("hostnames") or ()
            groups.setdefault(tuple(hostnames), []).append(entry)
        for hostnames, group in groups.items():
            yield hostnames, tuple(group)

    def _route_conf(self, hostnames: tuple[str, ...], entries: Entries) -> ShownConf:
        rules = self.route_rules(entries)
        conf: dict[str, Json] = {
            "rules": [{"matches": rule.matches, "default": rule.shown.conf} for rule in rules]
        }
        if hostnames:
            conf["hostnames"] = list(hostnames)
        origins = dict(
            pair for index, rule in enumerate(rules) for pair in rule.origins(item("rules", index))
        )
        return ShownConf(conf, origins, tuple(text for rule in rules for text in rule.shown.warnings))

    def _traced_rule(self, traced: TracedRule) -> ShownRule:
        shown = _resolved(traced.rule).shown
        kept = {path: origin for path, origin in traced.origins.items() if _root(path) in shown.conf}
        origins = self._origins(shown.conf, kept, traced.losers)
        origins |= self._elsewhere(shown.conf, kept)
        matches = Origin(traced.rule.origin, child(traced.rule.sources[-1].path, "matches"))
        return ShownRule(
            traced.rule,
            ShownConf(shown.conf, origins, shown.warnings),
            {**self._place(matches, traced.rule.matches or []), "losers": []},
        )

    def _origins(
        self, conf: Json, origins: Mapping[str, Origin], losers: Mapping[str, Sequence[Loser]]
    ) -> dict[str, Json]:
        return {
            path: {
                **self._place(origin, value),
                "losers": [
                    {**self._place(lost.origin, lost.value), "reason": lost.reason} for lost in losers[path]
                ],
            }
            for (path, origin), value in zip(origins.items(), _leaves(conf), strict=True)
        }

    def _elsewhere(self, conf: Json, origins: Mapping[str, Origin]) -> Iterator[tuple[str, Json]]:
        """Who wrote elements that a route only names, by their paths: filters in objects of their own."""
        for field, origin in origins.items():
            resource = world.RESOURCES.get(self.db, origin.source)
            for own, _ in resource.elsewhere if isinstance(resource, DerivedResource) else ():
                number = _ELEMENT.fullmatch(own.removeprefix(origin.path))
                if number is not None and own.startswith(origin.path):
                    place = self._place(Origin(origin.source, own), conf[field][int(number[1])])
                    yield f"{field}{number[0]}", {**place, "losers": []}

    def _place(self, origin: Origin, value: Json) -> dict[str, Json]:
        source, path = derivation.stored_place(self.db, origin.source, origin.path)
        number = _ENTRY.match(path)
        return {
            # A source of the Gateway API has that of what it became.
            "kri": meta.kri(self.db, source if world.KINDS.get(self.db, source.kind) else origin.source),
            "ruleIndex": int(number[1]) if number else 0,
            "path": path,
            "line": self._page(source).line(path),
            "value": value,
        }

    def _page(self, policy: Key) -> PrintedYaml:
        if policy not in self._pages:
            resource = world.RESOURCES.get(self.db, policy)
            assert resource is not None, policy
            self._pages[policy] = PrintedYaml(_printed(self.db, resource))
        return self._pages[policy]


def _printed(db: Db, resource: Resource) -> Json:
    """An object as `koguma get -o yaml` prints it; one of Kubernetes' kinds, as `kubectl get -o yaml`."""
    kind = world.KINDS.get(db, resource.kind)
    return forms.plain(resource, kind) if kind is not None else native_page.document(resource)


def _resolved(rule: RouteRule) -> ShownRule:
    resolved, problems = routes.resolved(rule)
    return ShownRule(rule, ShownConf(resolved.conf, None, tuple(problem.message for problem in problems)))


def _root(path: str) -> str:
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def _leaves(conf: Json) -> Iterator[Json]:
    """The leaves of a conf in the order in which the merge traces them."""
    for name, value in conf.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value)
        elif isinstance(value, list) and value and name.startswith(_APPEND):
            yield from value
        else:
            yield value
