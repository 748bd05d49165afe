"""Escalation: which rights somebody would give away without having them.

Rules are taken apart into the smallest ones, a single verb on a single resource or path, and each has to be
covered by one rule that is held. What is not is put together again, so that a refusal stays readable.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Final

import msgspec

from koguma.kube.rbac import path_covers
from koguma.model.access import ANY, Rule

_PIECES_MAX: Final = 10_000


def missing(rules: Iterable[Rule], held: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules, or the parts of them, that `held` does not cover."""
    # A right that holds in some meshes only covers none that names no mesh.
    owned = tuple(dict.fromkeys(rule for rule in held if not rule.meshes))
    lacking: list[Rule] = []
    left = _PIECES_MAX
    for rule in dict.fromkeys(rules):
        if any(_takes_in(one, rule) for one in owned):
            continue
        left -= _size(rule)
        # So many are not written by hand; then a rule is covered as a whole or not at all.
        pieces = _pieces(rule) if left >= 0 else (rule,)
        lacking += (piece for piece in pieces if not any(_takes_in(one, piece) for one in owned))
    return _joined(lacking)


def _size(rule: Rule) -> int:
    each = len(rule.groups) * len(rule.resources) * max(len(rule.names), 1) + len(rule.paths)
    return each * len(rule.verbs)


def _pieces(rule: Rule) -> Iterator[Rule]:
    for group, resource, verb in product(rule.groups, rule.resources, rule.verbs):
        for name in rule.names or (None,):
            names = () if name is None else (name,)
            yield Rule(verbs=(verb,), groups=(group,), resources=(resource,), names=names)
    for path, verb in product(rule.paths, rule.verbs):
        yield Rule(verbs=(verb,), groups=(), paths=(path,))


def _takes_in(held: Rule, wanted: Rule) -> bool:
    """Whether everything that `wanted` allows is allowed by `held` alone."""
    return (
        _all_in(wanted.verbs, held.verbs)
        and _all_in(wanted.groups, held.groups)
        and all(_has_resource(held.resources, resource) for resource in wanted.resources)
        and all(any(path_covers(own, path) for own in held.paths) for path in wanted.paths)
        and (not held.names or (bool(wanted.names) and set(wanted.names) <= set(held.names)))
    )


def _all_in(wanted: Sequence[str], held: Sequence[str]) -> bool:
    return ANY in held or all(each in held for each in wanted)


def _has_resource(held: Sequence[str], wanted: str) -> bool:
    if ANY in held or wanted in held:
        return True
    _, slash, subresource = wanted.partition("/")
    return bool(slash) and f"{ANY}/{subresource}" in held


def _joined(pieces: Iterable[Rule]) -> tuple[Rule, ...]:
    """Pieces that differ in their verbs only, as one."""
    verbs: dict[Rule, list[str]] = {}
    for piece in pieces:
        verbs.setdefault(msgspec.structs.replace(piece, verbs=()), []).extend(piece.verbs)
    return tuple(
        msgspec.structs.replace(rest, verbs=tuple(dict.fromkeys(found))) for rest, found in verbs.items()
    )


def shown(rule: Rule) -> str:
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
    """Texts as Go prints a list of them."""
    return "[" + " ".join(f'"{value}"' for value in values) + "]"
