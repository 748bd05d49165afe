"""Violation: one thing that is wrong in what a user wrote, and where.

Paths follow Kuma's grammar: dots for fields, `[i]` for indices, `["key"]` for map keys.
"""

from collections.abc import Iterable, Iterator

import msgspec


class Violation(msgspec.Struct, frozen=True, order=True):
    """`field` says where, `message` what; `rule` names the check, so that tests need no English."""

    field: str
    message: str
    rule: str = ""


def child(path: str, name: str) -> str:
    """The path of field `name` under `path`."""
    return f"{path}.{name}" if path else name


def item(path: str, index: int) -> str:
    """The path of an element of the list at `path`."""
    return f"{path}[{index}]"


def key(path: str, name: str) -> str:
    """The path of an entry of the map at `path`."""
    return f'{path}["{name}"]'


def under(path: str, violations: Iterable[Violation]) -> Iterator[Violation]:
    """The same violations, seen from one level up."""
    for violation in violations:
        at = violation.field
        joined = f"{path}{at}" if at.startswith("[") else child(path, at) if at else path
        yield Violation(joined, violation.message, violation.rule)
