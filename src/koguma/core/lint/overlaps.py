"""Overlaps: policies of two kinds whose overlays set one field of Envoy's configuration differently.

The overlay of the later phase wins, and nothing else shows why the other policy has no effect. Built-in
policies have fields of their own, but for those that a kind names (`Policy.sets_shared_field`); so in most
meshes without policies of other packages nothing is compared. A policy of the phase OVERRIDES, or of a later
one, is meant to replace what others set.
"""

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, NamedTuple

from koguma.core import inbound, items, match, rules, world
from koguma.core.build import encoding, hooks, overlays
from koguma.core.inbound import InboundRule
from koguma.core.incremental import Db, question
from koguma.core.items import ByKind, ItemId
from koguma.core.lint.problem import OVERLAP, Problem
from koguma.core.rules import ProxyClass
from koguma.model.overlay import Overlay, OverlayContext
from koguma.model.phase import Phase
from koguma.model.resource import Key
from koguma.model.schema import Json

_NOT_COMPARED: Final = ("problems", "callers")  # they are shown or put together, and never replaced
_VALUE_LETTERS_MAX: Final = 60

Field = tuple[str, ...]  # the path of a field, from the part of the overlay on
Rules = tuple[Any, ...]  # of one kind: entries of `to` or `default`, or rules for calls that arrive


class _Contribution(NamedTuple):
    """What the policies of one kind set at one place; `overlay` makes it from some of their rules."""

    kind: str
    rules: Rules
    overlay: Callable[[Rules], Overlay]

    def built(self, of: Rules) -> Overlay:
        """The overlay; nothing where the hook fails, which the build shows."""
        try:
            return overlays.checked(self.overlay(of))
        except Exception:  # noqa: BLE001 - a policy of another package may raise anything
            return {}


class _Scope(NamedTuple):
    """A part of the proxies' traffic, in words, and who sets something there, in the order of phases."""

    words: str
    hook: str
    protocol: str
    contributions: tuple[_Contribution, ...]

    @property
    def same(self) -> Hashable:
        """Equal for scopes with the same entries, which overlap in the same way."""
        return self.hook, self.protocol, tuple((each.kind, each.rules) for each in self.contributions)


class _Overlap(NamedTuple):
    """A field that two kinds set differently, and the entries that do."""

    field: Field
    winners: tuple[ItemId, ...]
    losers: tuple[ItemId, ...]
    winning: str  # the values, as JSON
    losing: str


def of_policy(db: Db, policy: Key) -> Iterator[Problem]:
    """The overlaps in which a policy takes part."""
    yield from (problem for problem in in_mesh(db, policy.mesh) if policy in problem.objects)


@question
def in_mesh(db: Db, mesh: str) -> tuple[Problem, ...]:
    """All overlaps of a mesh, each once."""
    compared = frozenset(kind for kind in match.policy_kinds(db) if _is_compared(db, kind, mesh))
    if not compared:
        return ()
    places: dict[_Overlap, dict[str, None]] = {}
    known: dict[Hashable, tuple[_Overlap, ...]] = {}
    for scope in _scopes(db, mesh):
        if any(each.kind in compared for each in scope.contributions):
            if scope.same not in known:
                known[scope.same] = tuple(_overlaps(db, scope, compared))
            for overlap in known[scope.same]:
                places.setdefault(overlap, {})[scope.words] = None
    return tuple(_problem(db, overlap, list(words)) for overlap, words in places.items())


def _is_compared(db: Db, kind: str, mesh: str) -> bool:
    """Whether policies of a kind in a mesh may set what another kind sets too."""
    if _phase(db, kind) == Phase.EXTENSIONS:
        return world.BY_KIND.has(db, (kind, mesh))
    policy = world.kind_of(db, kind).policy
    if policy is None or policy.sets_shared_field is None or not world.BY_KIND.has(db, (kind, mesh)):
        return False
    return any(_is_compared_in(db, kind, mesh, number) for number in world.SHARDS)


@question
def _is_compared_in(db: Db, kind: str, mesh: str, shard: int) -> bool:
    return any(_sets_shared_field(db, key) for key in world.BY_SHARD.keys(db, (kind, mesh, shard)))


@question
def _sets_shared_field(db: Db, key: Key) -> bool:
    policy = world.kind_of(db, key.kind).policy
    sets_shared_field = policy.sets_shared_field if policy else None
    try:
        return sets_shared_field is not None and sets_shared_field(items.clean_spec(db, key))
    except Exception:  # noqa: BLE001 - a policy of another package may raise anything
        return False


def _overlaps(db: Db, scope: _Scope, compared: frozenset[str]) -> Iterator[_Overlap]:
    for winner, loser in _pairs(db, scope, compared):
        for field, winning, losing in _differences(winner.built(winner.rules), loser.built(loser.rules)):
            yield _Overlap(
                field, _setters(winner, field), _setters(loser, field), _shown(winning), _shown(losing)
            )


def _phase(db: Db, kind: str) -> Phase:
    policy = world.kind_of(db, kind).policy
    assert policy is not None, kind
    return policy.phase


def _pairs(db: Db, scope: _Scope, compared: frozenset[str]) -> Iterator[tuple[_Contribution, _Contribution]]:
    """Pairs of kinds of which the first replaces fields of the second, and is not meant to."""
    for earlier, later in combinations(scope.contributions, 2):
        if {earlier.kind, later.kind} & compared and not _phase(db, later.kind).overrides:
            yield later, earlier


def _differences(winning: Overlay, losing: Overlay) -> Iterator[tuple[Field, Json, Json]]:
    for part in sorted(winning.keys() & losing.keys()):
        if part not in _NOT_COMPARED:
            yield from _fields((part,), winning[part], losing[part])


def _fields(at: Field, winning: Json, losing: Json) -> Iterator[tuple[Field, Json, Json]]:
    if isinstance(winning, Mapping) and isinstance(losing, Mapping):
        for name in sorted(winning.keys() & losing.keys()):
            yield from _fields((*at, name), winning[name], losing[name])
    elif winning != losing:
        yield at, winning, losing


def _setters(contribution: _Contribution, field: Field) -> tuple[ItemId, ...]:
    """The entries without which the field would have another value; all, where no single one decides."""
    there = contribution.rules
    value = _value(contribution.built(there), field)
    others = ((there[number], there[:number] + there[number + 1 :]) for number in range(len(there)))
    deciding = [rule for rule, rest in others if _value(contribution.built(rest), field) != value]
    return tuple(dict.fromkeys(_entry(rule) for rule in deciding or there))


def _entry(rule: Any) -> ItemId:
    return rule.entry if isinstance(rule, InboundRule) else rule


def _value(overlay: Json, field: Field) -> Json:
    for name in field:
        overlay = overlay.get(name) if isinstance(overlay, Mapping) else None
    return overlay


def _problem(db: Db, overlap: _Overlap, places: Sequence[str]) -> Problem:
    winners = tuple(dict.fromkeys(entry.policy for entry in overlap.winners))
    losers = tuple(dict.fromkeys(entry.policy for entry in overlap.losers))
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    later = winners[0].kind
    is_built_in = Phase.EXTENSIONS not in (_phase(db, later), _phase(db, losers[0].kind))
    hint = "" if is_built_in else "; only a kind of the phase OVERRIDES is meant to replace it"
    message = (
        f"{_named(winners)} and {_named(losers)} set Envoy's {'.'.join(overlap.field)} differently for"
        f" {places[0]}{more}: {overlap.winning} holds and {overlap.losing} does not, since {later} is merged"
        f" later. Leave the field to one of them{hint}"
    )
    path = items.item(db, overlap.winners[0]).path
    return Problem(OVERLAP, message, (*winners, *losers), path=path)


def _named(policies: Iterable[Key]) -> str:
    return " with ".join(map(str, policies))


def _shown(value: Json) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _VALUE_LETTERS_MAX else f"{text[:_VALUE_LETTERS_MAX]}..."


def _scopes(db: Db, mesh: str) -> Iterator[_Scope]:
    """All that policies can act on; what proxies of one class have in common comes once."""
    classes: dict[ProxyClass, None] = {}
    for proxy in match.proxies(db, mesh):
        yield from _inbounds(db, proxy)
        of_proxy = rules.class_of(db, proxy)
        if of_proxy is not None:
            classes[of_proxy] = None
    for each in classes:
        yield from _calls(db, each)
        where = OverlayContext("", each.mesh, each.zone)
        yield _scope(db, "the proxies themselves", "whole", rules.whole_proxy(db, each), where)


def _calls(db: Db, of: ProxyClass) -> Iterator[_Scope]:
    whole = overlays.on_outbounds(db, of)
    for port in rules.ports(db, of):
        name = encoding.kri(db, port.destination, port.section)
        where = OverlayContext(rules.protocol(db, port), of.mesh, of.zone, name)
        yield _scope(db, f"calls to {port.destination}", "outbound", (*port.entries, *whole), where)
        for route, entries in port.routes:
            yield _scope(db, f"calls through {route.key}", "outbound", (*entries, *whole), where)


def _scope(db: Db, words: str, hook: str, entries: ByKind, where: OverlayContext) -> _Scope:
    def contribution(kind: str, of: Rules) -> _Contribution:
        call = getattr(hooks.of(db, kind), hook)
        return _Contribution(kind, of, lambda some: call(overlays.conf(db, kind, some, where.mesh), where))

    acting = [each for each in hooks.in_order(db, entries) if getattr(hooks.of(db, each[0]), hook)]
    return _Scope(words, hook, where.protocol, tuple(contribution(kind, of) for kind, of in acting))


def _inbounds(db: Db, proxy: Key) -> Iterator[_Scope]:
    known, traits = world.proxy(db, proxy), match.traits(db, proxy)
    if known is None or traits is None:
        return
    for each in known.inbounds:
        where = OverlayContext(
            each.protocol, proxy.mesh, proxy.zone, encoding.kri(db, proxy, each.section), each.tags
        )
        listed = (*inbound.of(db, traits, each.section), *overlays.on_inbounds(db, traits))
        acting = [of for of in hooks.in_order(db, listed) if hooks.of(db, of[0]).inbound]
        contributions = tuple(_arriving(db, kind, of, where) for kind, of in acting)
        yield _Scope(f"calls that arrive at {proxy}", "inbound", where.protocol, contributions)


def _arriving(db: Db, kind: str, of: Rules, where: OverlayContext) -> _Contribution:
    hook = hooks.of(db, kind).inbound
    assert hook is not None, kind

    def overlay(some: Rules) -> Overlay:
        if some and isinstance(some[0], ItemId):
            return hook(overlays.conf(db, kind, some, where.mesh), (), where)
        return hook(*overlays.inbound_arguments(db, kind, some), where)

    return _Contribution(kind, of, overlay)
