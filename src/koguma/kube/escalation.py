"""Privilege escalation: which rules somebody would grant without having them (RBAC's escalation check).

Rules are split into single ones, one verb on one resource or path, and each has to be covered by one rule
that the user has. Those that are not covered are joined again, so that a refusal stays readable.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Final

import msgspec

from koguma.kube.rbac import path_covers
from koguma.model.access import ANY, Rule

_SINGLE_RULES_MAX: Final = 10_000


def missing(rules: Iterable[Rule], held: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules, or the parts of them, that `held` does not cover."""
    # A right that holds in some meshes only covers none that names no mesh.
    owned = tuple(dict.fromkeys(rule for rule in held if not rule.meshes))
    lacking: list[Rule] = []
    budget = _SINGLE_RULES_MAX
    for rule in dict.fromkeys(rules):
        if any(_covers_rule(own, rule) for own in owned):
            continue
        budget -= _size(rule)
        # Nobody writes so many by hand; beyond the limit a rule is covered as a whole or not at all.
        single_rules = _single_rules(rule) if budget >= 0 else (rule,)
        lacking += (single for single in single_rules if not any(_covers_rule(own, single) for own in owned))
    return _joined(lacking)


def _size(rule: Rule) -> int:
    each = len(rule.groups) * len(rule.resources) * max(len(rule.names), 1) + len(rule.paths)
    return each * len(rule.verbs)


def _single_rules(rule: Rule) -> Iterator[Rule]:
    for group, resource, verb in product(rule.groups, rule.resources, rule.verbs):
        for name in rule.names or (None,):
            names = () if name is None else (name,)
            yield Rule(verbs=(verb,), groups=(group,), resources=(resource,), names=names)
    for path, verb in product(rule.paths, rule.verbs):
        yield Rule(verbs=(verb,), groups=(), paths=(path,))


def _covers_rule(held: Rule, requested: Rule) -> bool:
    """Whether everything that `requested` allows is allowed by `held` alone."""
    return (
        _all_in(requested.verbs, held.verbs)
        and _all_in(requested.groups, held.groups)
        and all(_has_resource(held.resources, resource) for resource in requested.resources)
        and all(any(path_covers(own, path) for own in held.paths) for path in requested.paths)
        and (not held.names or (bool(requested.names) and set(requested.names) <= set(held.names)))
    )


def _all_in(requested: Sequence[str], held: Sequence[str]) -> bool:
    return ANY in held or all(word in held for word in requested)


def _has_resource(held: Sequence[str], requested: str) -> bool:
    if ANY in held or requested in held:
        return True
    _, slash, subresource = requested.partition("/")
    return bool(slash) and f"{ANY}/{subresource}" in held


def _joined(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Rules that differ in their verbs only, joined."""
    verbs: dict[Rule, list[str]] = {}
    for rule in rules:
        verbs.setdefault(msgspec.structs.replace(rule, verbs=()), []).extend(rule.verbs)
    return tuple(
        msgspec.structs.replace(rest, verbs=tuple(dict.fromkeys(verbs_of_rule)))
        for rest, verbs_of_rule in verbs.items()
    )


def rule_text(rule: Rule) -> str:
    """A rule as Kubernetes' refusals write it."""
    parts = (
        ("APIGroups", rule.groups),
        ("Resources", rule.resources),
        ("NonResourceURLs", rule.paths),
        ("ResourceNames", rule.names),
        ("Verbs", rule.verbs),
    )
    return "{" + ", ".join(f"{word}:{quoted(values)}" for word, values in parts if values) + "}"


def quoted(values: Iterable[str]) -> str:
    """Strings as Go prints a slice of them."""
    return "[" + " ".join(f'"{value}"' for value in values) + "]"
