"""Violation: one thing that is wrong in what a user wrote, and where.

Paths follow Kuma's grammar: dots for fields, `[i]` for indices, `["key"]` for map keys.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

# A request with a million mistakes gets a response of a few kilobytes, and so does the log.
SHOWN_MAX: Final = 20  # violations in a response or in a log line
VIOLATIONS_MAX: Final = 100  # after which checking stops
MORE: Final = "more"  # the rule of the violation that counts those left out
_MORE = re.compile(r"and ([0-9]+) more(, at least)?")
_FIELD_MAX: Final = 512  # characters
_MESSAGE_MAX: Final = 2048


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


def cut(text: str, length_max: int) -> str:
    """A text from an untrusted client, short enough for a log line or a response."""
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def truncated(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """The first violations, each cut to a readable length, and how many were left out."""
    all_violations = tuple(violations)
    listed = [violation for violation in all_violations if violation.rule != MORE]
    shown = [_shortened(violation) for violation in listed[:SHOWN_MAX]]
    n_more = (
        len(listed)
        - len(shown)
        + sum(_n_more(violation) for violation in all_violations if violation.rule == MORE)
    )
    return (*shown, Violation("", more(n_more), MORE)) if n_more else tuple(shown)


def truncated_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """The first of some warnings, and how many were left out."""
    shown = [cut(text, _MESSAGE_MAX) for text in texts]
    n_more = int(counted[1]) if shown and (counted := _MORE.fullmatch(shown[-1])) else 0
    if n_more:  # it was truncated before
        shown.pop()
    n_more += max(len(shown) - SHOWN_MAX, 0)
    return (*shown[:SHOWN_MAX], more(n_more)) if n_more else tuple(shown)


def more(n_more: int) -> str:
    """How many are left out; of very many not all were counted."""
    return f"and {n_more} more" + (", at least" if n_more + SHOWN_MAX >= VIOLATIONS_MAX else "")


def _n_more(violation: Violation) -> int:
    counted = _MORE.fullmatch(violation.message)
    assert counted is not None, violation
    return int(counted[1])


def _shortened(violation: Violation) -> Violation:
    field, message = violation.field, violation.message
    if len(field) <= _FIELD_MAX and len(message) <= _MESSAGE_MAX:
        return violation
    return Violation(cut(field, _FIELD_MAX), cut(message, _MESSAGE_MAX), violation.rule)
