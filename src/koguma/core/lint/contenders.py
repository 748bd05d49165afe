"""Contenders: the entries of policies that can win against others of the same rank, field by field.

A field can be set by a thousand policies of one rank. Of those that select the same proxies, only two can win
it against any other entry: the first by name, and the first that sets another value. So these are found shard
by shard and joined, and an edited policy is compared with them and not with all.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from koguma.core import inbound, items, match, order, routes, rules, selectors, world
from koguma.core.inbound import Client
from koguma.core.incremental import Db, question
from koguma.core.items import ItemId, Target
from koguma.core.lint import selection
from koguma.core.policy_set import Policies
from koguma.core.selectors import Selector
from koguma.model import derived, target_ref
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import child, item

_BY_NAME: Final = 9  # the index of the name in order.key: step 8 of order.py
_FEW: Final = 16  # entries of one subject that are compared one by one
_NEAR_MAX: Final = 100  # policies that may select the same proxies, and are compared one by one


class TieSubject(msgspec.Struct, frozen=True, cache_hash=True):
    """The rank and the target of an entry; entries with equal subjects are about the same traffic."""

    rank: tuple[Any, ...]
    about: Target | Client | str


class Contender(NamedTuple):
    """An entry that sets a field; of two with one subject, that with the greater precedence wins."""

    precedence: tuple[Any, ...]
    entry: ItemId
    selector: Selector  # anonymous
    path: str  # of the field, in the entry
    value: Json

    def overrides(self, other: "Contender") -> bool:
        """Whether it comes first and sets another value; that may be for other traffic."""
        return (
            self.precedence > other.precedence
            and self.value != other.value
            and self.entry.policy != other.entry.policy
        )


Contenders = Mapping[str, tuple[Contender, ...]]  # by the id of the field, the winner first
Subjects = Mapping[TieSubject, tuple[ItemId, ...]]
_Strongest = Mapping[tuple[str, Selector], tuple[Contender, ...]]  # by field and selector, at most two


@question
def subjects(db: Db, policy: Key) -> tuple[tuple[TieSubject, ItemId], ...]:
    """The subject of each entry of a policy; none for a shadow policy or one that selects no proxy.

    Derived ones have none either: of routes of the Gateway API the oldest wins, as everybody expects.
    """
    selector = selectors.selector(db, policy)
    if selector is None or selector.is_shadow or selector.problem or derived.source_name(policy) is not None:
        return ()
    return tuple(
        (TieSubject(order.key(items.rank(db, e))[:_BY_NAME], about), e) for about, e in _targets(db, policy)
    )


def _targets(db: Db, policy: Key) -> Iterator[tuple[Target | Client | str, ItemId]]:
    selector = selectors.selector(db, policy)
    via = selector.via if selector else None
    for index, targets in enumerate(items.targets(db, policy)):
        for target in targets:
            yield (Target(via.kind, via) if via else target), ItemId(policy, "to", index)
    for rule in inbound.entries(db, Policies.of((policy,))):
        yield rule.client, rule.entry
    for entry in rules.default_entries(db, Policies.of((policy,))):
        yield "the proxy itself", entry


@question
def in_shard(db: Db, kind: str, mesh: str, shard: int) -> Subjects:
    """The entries of the policies in one shard of a kind, by subject."""
    by_subject: dict[TieSubject, list[ItemId]] = {}
    for policy in world.BY_SHARD.keys(db, (kind, mesh, shard)):
        for subject, entry in subjects(db, policy):
            by_subject.setdefault(subject, []).append(entry)
    return {subject: tuple(entries) for subject, entries in by_subject.items()}


@question
def by_subject(db: Db, kind: str, mesh: str) -> tuple[Subjects, ...]:
    """The entries of all policies of a kind by subject, shard by shard."""
    return tuple(in_shard(db, kind, mesh, number) for number in world.SHARDS)


def keep(db: Db, kind: str, mesh: str) -> None:
    """Bring up to date, and keep so, by what the policies of a kind are compared."""
    db.settle_below(by_subject, kind, mesh)
    db.keep(by_subject, kind, mesh)


def settle(db: Db, policy: Key) -> None:
    """Let what a policy sets be known before it is compared: else all subjects would be verified for that."""
    for _, entry in subjects(db, policy):
        of_entry(db, entry)
    db.settle_below(by_subject, policy.kind, policy.mesh)


def is_kept(db: Db, kind: str, mesh: str) -> bool:
    """Whether that is so already."""
    return db.keeps(by_subject, kind, mesh)


def with_subject(db: Db, kind: str, mesh: str, subject: TieSubject) -> list[ItemId]:
    """The entries of all policies of a kind that have a subject."""
    return [entry for shard in by_subject(db, kind, mesh) for entry in shard.get(subject, ())]


def contenders(db: Db, kind: str, mesh: str, subject: TieSubject, selector: Selector) -> Contenders:
    """For each field, the entries with a subject that can win it where an anonymous selector selects.

    There may be others that cannot.
    """
    entries = with_subject(db, kind, mesh, subject)
    if len(entries) <= 1:
        return {}
    near = _near(db, kind, mesh, selector) if len(entries) > _FEW else None
    if near is not None:
        entries = [entry for policy in near for own, entry in subjects(db, policy) if own == subject]
    elif len(entries) > _FEW:
        strongest = _strongest(db, kind, mesh, subject)
        if strongest is not None:
            return strongest
    return _by_field(pair for entry in entries for pair in of_entry(db, entry).items())


def _by_field(found: Iterable[tuple[str, Contender]]) -> Contenders:
    fields: dict[str, list[Contender]] = {}
    for at, contender in found:
        fields.setdefault(at, []).append(contender)
    return {at: tuple(sorted(each, key=_precedence, reverse=True)) for at, each in fields.items()}


@question
def of_entry(db: Db, entry: ItemId) -> Mapping[str, Contender]:
    """What an entry sets, by the id of the field; an id is equal for the same field."""
    return _read_entry(db, entry)


def _read_entry(db: Db, entry: ItemId) -> dict[str, Contender]:
    precedence, selector = order.key(items.rank(db, entry))[_BY_NAME:], anonymous(db, entry)
    return {at: Contender(precedence, entry, selector, *leaf) for at, leaf in _fields(db, entry)}


def anonymous(db: Db, entry: ItemId) -> Selector:
    """The selector of the policy of an entry that has a subject, without who it is."""
    selector = selectors.selector(db, entry.policy)
    assert selector is not None, entry  # else it has no subject
    return selectors.anonymous(selector)


def _precedence(contender: Contender) -> tuple[Any, ...]:
    return contender.precedence


@question
def _near(db: Db, kind: str, mesh: str, selector: Selector) -> tuple[Key, ...] | None:
    """The policies that may select a proxy that a selector selects, too; None where these are many."""
    every = selection.distinct_traits(db, mesh)
    near: dict[Key, None] = {}
    if every:
        for number in sorted(selection.selected_by(db, mesh, selector)):
            if len(near) + match.n_policies(db, kind, every[number]) > _NEAR_MAX:
                return None
            near |= dict.fromkeys(match.policies(db, kind, every[number]))
        return tuple(near)
    for each in selection.alike(db, kind, mesh, selector):
        near[each] = None
        if len(near) > _NEAR_MAX:
            return None
    return tuple(near)


@question
def _strongest(db: Db, kind: str, mesh: str, subject: TieSubject) -> Contenders | None:
    """For each field and each selection, the two entries that can win; None where a policy has several.

    An entry never competes with one of its own policy. If that has no other entry with the subject, it is
    left out by its value already.
    """
    shards: list[_Strongest] = []
    for entries_by_subject in by_subject(db, kind, mesh):
        entries = entries_by_subject.get(subject, ())
        if len(entries) > 1 and len({entry.policy for entry in entries}) < len(entries):
            return None
        shards.append(_strongest_of(db, entries) if entries else {})
    joined = _two_each((at, each) for shard in shards for (at, _), two in shard.items() for each in two)
    return _by_field((at, each) for (at, _), two in joined.items() for each in two)


@question
def _strongest_of(db: Db, entries: tuple[ItemId, ...]) -> _Strongest:
    # Without a memo for each entry, since most are read for this alone.
    return _two_each(pair for entry in entries for pair in _read_entry(db, entry).items())


def _two_each(found: Iterable[tuple[str, Contender]]) -> _Strongest:
    slots: dict[tuple[str, Selector], list[Contender]] = {}
    for at, contender in found:
        slots.setdefault((at, contender.selector), []).append(contender)
    return {slot: tuple(_two(each)) for slot, each in slots.items()}


def _two(found: list[Contender]) -> Iterator[Contender]:
    """The first, and the first that sets another value."""
    first = max(found, key=_precedence)
    yield first
    others = [each for each in found if each.value != first.value]
    if others:
        yield max(others, key=_precedence)


def _fields(db: Db, entry: ItemId) -> Iterator[tuple[str, tuple[str, Json]]]:
    """The fields that an entry sets: path and value, by id.

    Elements of lists that are joined cannot lose, so they are left out: those whose name begins with
    `append`, and the rules of permissions, which are asked one by one.
    """
    policy = world.kind_of(db, entry.policy.kind).policy
    if entry.list == "rules" and policy is not None and policy.hooks.permits is not None:
        return
    conf = items.read_item(db, entry).conf
    if entry.policy.kind == target_ref.HTTP_ROUTE:
        yield from _rule_leaves(conf)
    else:
        yield from ((at, (at, value)) for at, value in _leaves(conf, ""))


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
