"""Ties: policies that set a field differently where only their names decide, and rules that merging breaks.

A tie is legal and has one winner, always the same. But then renaming a policy changes the mesh, which is
unexpected.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from koguma.core import items, match, routes, rules, selectors, world
from koguma.core.incremental import Db
from koguma.core.items import ItemId
from koguma.core.lint import contenders, selection
from koguma.core.lint.contenders import Contender, Contenders, TieSubject
from koguma.core.lint.problem import ANSWERED_TWICE, TIE, Problem
from koguma.core.policy_set import Policies
from koguma.core.selectors import Selector
from koguma.model import target_ref
from koguma.model.resource import Key
from koguma.model.violation import child

_WINS_LISTED_MAX: Final = 100  # entries of one subject; where there are more, only losses are reported


# Who contends for which traffic, as far as one question about a policy has needed it.
_Found = dict[tuple[TieSubject, Selector], Contenders]


def ties(db: Db, policy: Key) -> Iterator[Problem]:
    """Where a policy loses or wins by its name alone; wins in a group of many entries are left out."""
    found: _Found = {}
    contenders.settle(db, policy)
    yield from _losses(db, policy, found)
    for subject, entry in contenders.subjects(db, policy):
        group = contenders.with_subject(db, policy.kind, policy.mesh, subject)
        if 1 < len(group) <= _WINS_LISTED_MAX:
            yield from _wins(db, subject, entry, group, found)


def _wins(
    db: Db, subject: TieSubject, entry: ItemId, group: Iterable[ItemId], found: _Found
) -> Iterator[Problem]:
    """The losses of others to an entry."""
    rivals = _contenders(db, subject, entry, found)
    own = {at: each for at, each in contenders.of_entry(db, entry).items() if each in rivals.get(at, ())}
    for rival in group if own else ():
        fields = contenders.of_entry(db, rival)
        if any(at in fields and each.overrides(fields[at]) for at, each in own.items()):
            yield from (lost for lost in _losses(db, rival.policy, found) if entry.policy in lost.objects)


def _losses(db: Db, policy: Key, found: _Found) -> Iterator[Problem]:
    """The fields of a policy that another one of the same rank overrides; of several, the one that wins."""
    lost_fields: dict[tuple[ItemId, ItemId], dict[str, None]] = {}
    for subject, entry in contenders.subjects(db, policy):
        for path, winner in _winners(db, subject, entry, found):
            lost_fields.setdefault((entry, winner), {})[path] = None
    yield from (_loss(db, entry, rival, list(at)) for (entry, rival), at in lost_fields.items())


def _winners(db: Db, subject: TieSubject, entry: ItemId, found: _Found) -> Iterator[tuple[str, ItemId]]:
    """The paths of the fields of an entry that others override, and who does."""
    rivals = _contenders(db, subject, entry, found)
    for at, own in contenders.of_entry(db, entry).items() if rivals else ():
        for rival in rivals.get(at, ()):
            if rival.overrides(own) and _same_traffic(db, own, rival):
                yield own.path, rival.entry
                break


def _contenders(db: Db, subject: TieSubject, entry: ItemId, found: _Found) -> Contenders:
    selector = contenders.anonymous(db, entry)
    if (subject, selector) not in found:
        kind, mesh = entry.policy.kind, entry.policy.mesh
        found[subject, selector] = contenders.contenders(db, kind, mesh, subject, selector)
    return found[subject, selector]


def _same_traffic(db: Db, own: Contender, rival: Contender) -> bool:
    if own.entry.list in ("from", "rules") and own.selector.section != rival.selector.section:
        return False
    return selection.overlap(db, own.entry.policy.mesh, own.selector, rival.selector)


def _loss(db: Db, entry: ItemId, rival: ItemId, at: list[str]) -> Problem:
    base = items.item(db, entry).path
    namesake = rival.policy.name == entry.policy.name
    message = (
        f"{entry.policy} and {rival.policy} rank the same and set {' and '.join(at)} differently. Only the"
        f" name decides: {rival.policy if namesake else rival.policy.name} wins."
        " Make one of them more specific, or say it in one policy"
    )
    return Problem(TIE, message, (entry.policy, rival.policy), path=child(base, at[0]))


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


def _together(db: Db, policy: Key) -> Iterator[Policies]:
    """The routes that act together with this one, for each proxy; in an empty mesh, those that could."""
    all_traits = selection.distinct_traits(db, policy.mesh)
    selected_traits = [all_traits[number] for number in sorted(selection.selected(db, policy))]
    yield from dict.fromkeys(match.policies(db, policy.kind, traits) for traits in selected_traits)
    if not all_traits:
        listed = selectors.of_kind(db, policy.kind, policy.mesh)
        real = (each.policy for each in listed if not each.is_shadow and not each.problem)
        yield Policies.of(each for each in real if not selection.are_disjoint(db, policy, each))


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
