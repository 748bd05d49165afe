"""Ties: policies that set a field differently where only their names decide, and rules that merging breaks.

A tie is legal and has one winner, always the same. But then renaming a policy changes the mesh, which is
unexpected.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from koguma.core import inbound, items, match, order, routes, rules, world
from koguma.core.group import Group
from koguma.core.inbound import Client
from koguma.core.incremental import Db, question
from koguma.core.items import ItemId, Target
from koguma.core.lint import selection
from koguma.core.lint.problem import ANSWERED_TWICE, TIE, Problem
from koguma.model import derived, target_ref
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import child, item

_BY_NAME: Final = 9  # the index of the name in order.key: step 8 of order.py
_FEW: Final = 16
_MANY: Final = 100


class TieSubject(NamedTuple):
    """The rank and the target of an entry; entries with equal subjects are about the same traffic."""

    rank: tuple[Any, ...]
    about: Target | Client | str


@question
def subjects(db: Db, policy: Key) -> tuple[tuple[TieSubject, ItemId], ...]:
    """The subject of each entry of a policy; none for a shadow policy or one that selects no proxy.

    Derived ones have none either: of routes of the Gateway API the oldest wins, as everybody expects.
    """
    selector = match.selector(db, policy)
    if selector is None or selector.is_shadow or selector.problem or derived.source_name(policy) is not None:
        return ()
    return tuple(
        (TieSubject(order.key(items.rank(db, e))[:_BY_NAME], about), e) for about, e in _targets(db, policy)
    )


def _targets(db: Db, policy: Key) -> Iterator[tuple[Target | Client | str, ItemId]]:
    selector = match.selector(db, policy)
    via = selector.via if selector else None
    for index, targets in enumerate(items.targets(db, policy)):
        for target in targets:
            yield (Target(via.kind, via) if via else target), ItemId(policy, "to", index)
    for rule in inbound.entries(db, Group((policy,))):
        yield rule.client, rule.entry
    for entry in rules.default_entries(db, Group((policy,))):
        yield "the proxy itself", entry


@question
def in_shard(db: Db, kind: str, mesh: str, shard: int) -> Mapping[TieSubject, tuple[ItemId, ...]]:
    """The entries of the policies in one shard of a kind, by subject."""
    by_subject: dict[TieSubject, list[ItemId]] = {}
    for policy in world.BY_SHARD.keys(db, (kind, mesh, shard)):
        for subject, entry in subjects(db, policy):
            by_subject.setdefault(subject, []).append(entry)
    return {subject: tuple(entries) for subject, entries in by_subject.items()}


Subjects = Mapping[TieSubject, tuple[ItemId, ...]]


@question
def by_subject(db: Db, kind: str, mesh: str) -> tuple[Subjects, ...]:
    """The entries of all policies of a kind by subject, shard by shard."""
    return tuple(in_shard(db, kind, mesh, number) for number in world.SHARDS)


class Ranked(NamedTuple):
    """Entries with one subject, the winner first, and where each stands."""

    entries: tuple[ItemId, ...]
    places: Mapping[ItemId, int]


@question
def ranked(db: Db, kind: str, mesh: str, subject: TieSubject) -> Ranked:
    """The entries of all policies of a kind with that subject."""
    found = (shard[subject] for shard in by_subject(db, kind, mesh) if subject in shard)
    return _ranked(db, (entry for entries in found for entry in entries))


def _ranked(db: Db, entries: Iterable[ItemId]) -> Ranked:
    ordered = sorted(dict.fromkeys(entries), key=lambda each: order.key(items.rank(db, each)), reverse=True)
    return Ranked(tuple(ordered), {entry: place for place, entry in enumerate(ordered)})


class TieGroup(NamedTuple):
    """An entry of a policy among those with the same subject that may be about the same traffic."""

    entry: ItemId
    entries: tuple[ItemId, ...]  # the winner first
    place: int  # of the entry
    n_subject: int  # how many entries of all policies have this subject


@question
def groups(db: Db, policy: Key) -> tuple[TieGroup, ...]:
    """The entries of a policy, each with those that it may win or lose against."""
    return tuple(_groups(db, policy))


def _groups(db: Db, policy: Key) -> Iterator[TieGroup]:
    for subject, entry in subjects(db, policy):
        shards = by_subject(db, policy.kind, policy.mesh)
        n_subject = sum(len(shard[subject]) for shard in shards if subject in shard)
        if n_subject == 1:
            continue
        near = _near(db, policy, subject) if n_subject > _FEW else None
        found = ranked(db, policy.kind, policy.mesh, subject) if near is None else _ranked(db, (*near, entry))
        yield TieGroup(entry, found.entries, found.places[entry], n_subject)


def _near(db: Db, policy: Key, subject: TieSubject) -> list[ItemId] | None:
    """The entries with a subject of the policies that may select a proxy that this one selects, too.

    None where these are so many that it is better to ask all.
    """
    every = selection.distinct_traits(db, policy.mesh)
    near: dict[Key, None] = {}
    if every:
        for number in sorted(selection.selected(db, policy)):
            matched = match.matched(db, policy.kind, every[number])
            if len(near) + len(matched) > _MANY:
                return None
            near |= dict.fromkeys(each.policy for each in matched)
    else:
        for each in selection.alike(db, policy):
            near[each] = None
            if len(near) > _MANY:
                return None
    return [entry for other in near for own, entry in subjects(db, other) if own == subject]


def keep(db: Db, kind: str, mesh: str) -> None:
    """Bring up to date, and keep so, by what the policies of a kind are compared."""
    db.keep(by_subject, kind, mesh)


def ties(db: Db, policy: Key) -> Iterator[Problem]:
    """Where a policy loses or wins by its name alone; wins in a group of many entries are left out."""
    yield from losses(db, policy)
    for group in groups(db, policy):
        fields = frozenset(leaves(db, group.entry))
        for rival in group.entries[group.place + 1 :] if group.n_subject <= _MANY else ():
            if rival.policy != policy and _clash(db, rival, group.entry, fields):
                yield from (lost for lost in losses(db, rival.policy) if policy in lost.objects)


def losses(db: Db, policy: Key) -> Iterator[Problem]:
    """The fields of a policy that another one of the same rank overrides; of several, the one that wins."""
    lost_fields: dict[tuple[ItemId, ItemId], dict[str, None]] = {}
    for group in groups(db, policy):
        open_fields = frozenset(leaves(db, group.entry))
        for rival in group.entries[: group.place]:
            lost = _clash(db, group.entry, rival, open_fields) if rival.policy != policy else {}
            if lost:
                lost_fields.setdefault((group.entry, rival), {}).update(dict.fromkeys(lost.values()))
                open_fields -= lost.keys()
            if not open_fields:
                break
    yield from (_loss(db, entry, rival, list(at)) for (entry, rival), at in lost_fields.items())


def _clash(db: Db, entry: ItemId, rival: ItemId, left: frozenset[str]) -> Mapping[str, str]:
    """Of these fields, those that an entry sets differently than a rival for the same traffic, with paths."""
    fields, rival_fields = leaves(db, entry), leaves(db, rival)
    shared = [at for at in fields if at in left and at in rival_fields]
    lost = {at: fields[at][0] for at in shared if fields[at][1] != rival_fields[at][1]}
    return lost if lost and _same_traffic(db, entry, rival) else {}


def _same_traffic(db: Db, entry: ItemId, rival: ItemId) -> bool:
    selector, rival_selector = match.selector(db, entry.policy), match.selector(db, rival.policy)
    if (
        entry.list in ("from", "rules")
        and selector
        and rival_selector
        and selector.section != rival_selector.section
    ):
        return False
    return selection.overlap(db, entry.policy, rival.policy)


def _loss(db: Db, entry: ItemId, rival: ItemId, at: list[str]) -> Problem:
    base = items.item(db, entry).path
    namesake = rival.policy.name == entry.policy.name
    message = (
        f"{entry.policy} and {rival.policy} rank the same and set {' and '.join(at)} differently. Only the"
        f" name decides: {rival.policy if namesake else rival.policy.name} wins."
        " Make one of them more specific, or say it in one policy"
    )
    return Problem(TIE, message, (entry.policy, rival.policy), path=child(base, at[0]))


@question
def leaves(db: Db, entry: ItemId) -> Mapping[str, tuple[str, Json]]:
    """The fields that an entry sets: path and value, by an id that is equal for the same field.

    Elements of lists that are joined cannot lose, so they are left out: those whose name begins with
    `append`, and the rules of permissions, which are asked one by one.
    """
    policy = world.kind_of(db, entry.policy.kind).policy
    if entry.list == "rules" and policy is not None and policy.hooks.permits is not None:
        return {}
    conf = items.item(db, entry).conf
    if entry.policy.kind == target_ref.HTTP_ROUTE:
        return dict(_rule_leaves(conf))
    return {at: (at, value) for at, value in _leaves(conf, "")}


def _leaves(value: Json, path: str) -> Iterator[tuple[str, Json]]:
    for name, inner in value.items() if isinstance(value, dict) else ():
        at = child(path, name)
        if isinstance(inner, dict):
            yield from _leaves(inner, at)
        elif inner is not None and not name.startswith("append"):
            yield at, inner


def _rule_leaves(conf: Json) -> Iterator[tuple[str, tuple[str, Json]]]:
    """Rules are the same if they have equal matches and host names."""
    for index, rule in enumerate(conf.get("rules") or ()):
        same = f"{conf.get('hostnames')} {routes.normalised(rule.get('matches'))}"
        for name, value in (rule.get("default") or {}).items():
            if value is not None:
                yield f"{same} {name}", (f"{item('rules', index)}.default.{name}", value)


def broken_rules(db: Db, policy: Key) -> Iterator[Problem]:
    """Rules merged from this route and others whose parts exclude each other."""
    if policy.kind != target_ref.HTTP_ROUTE:
        return
    seen = set()
    for together in _together(db, policy):
        for key, section in _ports(db, policy):
            entries = rules.relevant_entries(db, together, key, section)
            if entries not in seen:
                seen.add(entries)
                yield from _broken(db, policy, entries)


def _together(db: Db, policy: Key) -> Iterator[Group[Key]]:
    """The routes that act together with this one, for each proxy; in an empty mesh, those that could."""
    all_traits = selection.distinct_traits(db, policy.mesh)
    selected_traits = [all_traits[number] for number in sorted(selection.selected(db, policy))]
    groups = (
        Group(each.policy for each in match.matched(db, policy.kind, traits)) for traits in selected_traits
    )
    yield from dict.fromkeys(groups)
    if not all_traits:
        listed = match.selectors(db, policy.kind, policy.mesh)
        real = (each.policy for each in listed if not each.is_shadow and not each.problem)
        yield Group(each for each in real if not selection.are_disjoint(db, policy, each))


def _ports(db: Db, route: Key) -> Iterator[tuple[Key, str]]:
    """The ports of destinations that a route is about."""
    for target in (target for targets in items.targets(db, route) for target in targets):
        destination = world.destination(db, target.key) if target.key else None
        if destination is not None:
            ports = (port for port in destination.ports if target.section in ("", port.section))
            yield from ((destination.key, port.section) for port in ports)


def _broken(db: Db, policy: Key, entries: tuple[ItemId, ...]) -> Iterator[Problem]:
    for rule in items.route_rules(db, entries) if len(entries) > 1 else ():
        for problem in routes.resolved(rule)[1]:
            sources = tuple(dict.fromkeys(origin.source for origin in problem.origins))
            if policy in sources:
                yield Problem(ANSWERED_TWICE, problem.message, sources, path=problem.origins[0].path)
