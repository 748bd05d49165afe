"""Ties: policies that say different things where only their names decide, and rules that merging breaks.

A tie is legal and has one winner, always the same. But whoever renames a policy changes the mesh, and nobody
expects that.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from koguma.core import inbound, items, match, order, routes, rules, world
from koguma.core.group import Group
from koguma.core.inbound import Client
from koguma.core.incremental import Db, question
from koguma.core.items import ItemId, Target
from koguma.core.oddities import selection
from koguma.core.oddities.problem import ANSWERED_TWICE, TIE, Problem
from koguma.model import target_ref
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import child, item

_BY_NAME: Final = 9  # where the name comes into the comparison: order.py, step 8
_MANY: Final = 100


class TieSubject(NamedTuple):
    """What entries of equal rank are about; equal subjects are about the same traffic."""

    rank: tuple[Any, ...]
    about: Target | Client | str


@question
def subjects(db: Db, policy: Key) -> tuple[tuple[TieSubject, ItemId], ...]:
    """What each entry of a policy is about; nothing where the policy only pretends to act."""
    selector = match.selector(db, policy)
    if selector is None or selector.is_shadow or selector.problem:
        return ()
    return tuple(
        (TieSubject(order.key(items.rank(db, e))[:_BY_NAME], about), e) for about, e in _abouts(db, policy)
    )


def _abouts(db: Db, policy: Key) -> Iterator[tuple[Target | Client | str, ItemId]]:
    selector = match.selector(db, policy)
    via = selector.via if selector else None
    for index, meant in enumerate(items.targets(db, policy)):
        for target in meant:
            yield (Target(via.kind, via) if via else target), ItemId(policy, "to", index)
    for rule in inbound.entries(db, Group((policy,))):
        yield rule.client, rule.entry
    for entry in rules.default_entries(db, Group((policy,))):
        yield "the proxy itself", entry


class Tied(NamedTuple):
    """The entries that are tied about one subject, the winner first; and what not all of them say alike."""

    entries: tuple[ItemId, ...]
    contested: frozenset[str]


@question
def tied(db: Db, kind: str, mesh: str) -> Mapping[TieSubject, Tied]:
    """The entries of a kind's policies about the same and of the same rank, where they do not agree."""
    found: dict[TieSubject, list[ItemId]] = {}
    for policy in world.BY_KIND.keys(db, (kind, mesh)):
        for subject, entry in subjects(db, policy):
            found.setdefault(subject, []).append(entry)
    made = {subject: among(db, tuple(entries)) for subject, entries in found.items() if len(entries) > 1}
    return {subject: each for subject, each in made.items() if each.contested}


@question
def among(db: Db, entries: tuple[ItemId, ...]) -> Tied:
    """What these entries about one subject do not say alike; a question, so that one group costs no other."""
    said: dict[str, set[str]] = {}
    for entry in entries:
        for at, (_, value) in leaves(db, entry).items():
            said.setdefault(at, set()).add(repr(value))
    contested = frozenset(at for at, values in said.items() if len(values) > 1)
    ordered = (
        sorted(entries, key=lambda each: order.key(items.rank(db, each)), reverse=True) if contested else ()
    )
    return Tied(tuple(ordered), contested)


def look_at(db: Db, policy: Key) -> None:
    """Find out what a policy says now. Who then asks about all of them need not look through the others."""
    for _, entry in subjects(db, policy):
        leaves(db, entry)
    match.mentioned(db, policy.mesh)  # where a policy is new, all others would wait for this


def ties(db: Db, policy: Key) -> Iterator[Problem]:
    """Where a policy loses or wins by its name alone; who wins against many is not told of all of them."""
    yield from losses(db, policy)
    for group, entry in _groups(db, policy):
        below = group.entries[group.entries.index(entry) + 1 :]
        for rival in below if len(group.entries) <= _MANY else ():
            if rival.policy != policy and _clash(db, rival, entry, group.contested):
                yield from (lost for lost in losses(db, rival.policy) if policy in lost.objects)


def _groups(db: Db, policy: Key) -> Iterator[tuple[Tied, ItemId]]:
    there = tied(db, policy.kind, policy.mesh)
    for subject, entry in subjects(db, policy):
        if subject in there:
            yield there[subject], entry


def losses(db: Db, policy: Key) -> Iterator[Problem]:
    """What a policy says and another of the same rank overrides; of several, the one that wins."""
    found: dict[tuple[ItemId, ItemId], dict[str, None]] = {}
    for group, entry in _groups(db, policy):
        left = group.contested & leaves(db, entry).keys()
        for rival in group.entries[: group.entries.index(entry)]:
            lost = _clash(db, entry, rival, left) if rival.policy != policy else {}
            if lost:
                found.setdefault((entry, rival), {}).update(dict.fromkeys(lost.values()))
                left -= lost.keys()
            if not left:
                break
    yield from (_loss(db, entry, rival, list(at)) for (entry, rival), at in found.items())


def _clash(db: Db, entry: ItemId, rival: ItemId, left: frozenset[str]) -> Mapping[str, str]:
    """What an entry says otherwise than its rival about the same traffic, and where it stands."""
    mine, theirs = leaves(db, entry), leaves(db, rival)
    shared = [at for at in mine if at in left and at in theirs]
    said = {at: mine[at][0] for at in shared if mine[at][1] != theirs[at][1]}
    return said if said and _same_traffic(db, entry, rival) else {}


def _same_traffic(db: Db, entry: ItemId, rival: ItemId) -> bool:
    mine, theirs = match.selector(db, entry.policy), match.selector(db, rival.policy)
    if entry.list in ("from", "rules") and mine and theirs and mine.section != theirs.section:
        return False
    return selection.meet(db, entry.policy, rival.policy)


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
    """What an entry says: where it stands and its value, by a word that is equal for the same thing.

    Lists that are joined cannot lose, so they are left out.
    """
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
    """Rules are the same where their matches are, and have the same hosts."""
    for index, rule in enumerate(conf.get("rules") or ()):
        same = f"{conf.get('hostnames')} {routes.normalised(rule.get('matches'))}"
        for name, value in (rule.get("default") or {}).items():
            if value is not None:
                yield f"{same} {name}", (f"{item('rules', index)}.default.{name}", value)


def broken_rules(db: Db, policy: Key) -> Iterator[Problem]:
    """Rules that this route and others make together and that no proxy could follow as they are."""
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
    """The routes that act in one proxy together with this one, proxy by proxy; or could, in an empty mesh."""
    there = selection.sorts(db, policy.mesh)
    chosen = [there[number] for number in sorted(selection.selected(db, policy))]
    groups = (Group(one.policy for one in match.matched(db, policy.kind, of)) for of in chosen)
    yield from dict.fromkeys(groups)
    if not there:
        listed = match.selectors(db, policy.kind, policy.mesh)
        real = (one.policy for one in listed if not one.is_shadow and not one.problem)
        yield Group(one for one in real if not selection.are_apart(db, policy, one))


def _ports(db: Db, route: Key) -> Iterator[tuple[Key, str]]:
    """The ports of destinations that a route is about."""
    for target in (target for targets in items.targets(db, route) for target in targets):
        destination = world.destination(db, target.key) if target.key else None
        if destination is not None:
            ports = (port for port in destination.ports if target.section in ("", port.section))
            yield from ((destination.key, port.section) for port in ports)


def _broken(db: Db, policy: Key, entries: tuple[ItemId, ...]) -> Iterator[Problem]:
    for rule in items.route_rules(db, entries) if len(entries) > 1 else ():
        for odd in routes.resolved(rule)[1]:
            sources = tuple(dict.fromkeys(origin.source for origin in odd.origins))
            if policy in sources:
                yield Problem(ANSWERED_TWICE, odd.message, sources, path=odd.origins[0].path)
