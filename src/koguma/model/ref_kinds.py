"""Reference kinds: what to write where a targetRef names a kind that does not exist.

Which kinds a field accepts is known only to the policy's own rules, so each kind is tried in the field of the
wrong one, and those that the rules accept are offered.
"""

from collections.abc import Callable, Iterator
from typing import Final, get_args

import msgspec

from koguma.model.documents import steps
from koguma.model.nearest import nearest
from koguma.model.schema import Json
from koguma.model.target_ref import RefKind
from koguma.model.violation import Violation

_KINDS: Final[tuple[str, ...]] = get_args(RefKind)
_MESSAGE_START: Final = f"in body should be one of [{' '.join(_KINDS)}]"


def is_unknown(violation: Violation) -> bool:
    """Whether this is about a reference to a kind that does not exist."""
    return violation.rule == "enum" and violation.message.startswith(_MESSAGE_START)


def advised(
    violation: Violation, spec: Json, root: str, validated: Callable[[Json], Iterator[Violation]]
) -> Violation:
    """The same violation, with the nearest of the kinds that the field accepts."""
    path = list(steps(violation.field.removeprefix(f"{root}.")))
    allowed = [kind for kind in _KINDS if _is_allowed(violation.field, validated(_changed(spec, path, kind)))]
    near = nearest(str(_value(spec, path)), allowed)
    if near is not None:
        hint = f'; did you mean "{near}"?'
    else:
        hint = f"; here it can be {', '.join(allowed)}" if allowed else ""
    return msgspec.structs.replace(violation, message=_MESSAGE_START + hint)


def _is_allowed(field: str, violations: Iterator[Violation]) -> bool:
    return not any(violation.field == field and violation.rule == "kind" for violation in violations)


def _value(spec: Json, path: list[str]) -> Json:
    for step in path:
        spec = spec[int(step)] if isinstance(spec, list) else spec[step]
    return spec


def _changed(spec: Json, path: list[str], value: str) -> Json:
    """A copy with another value at the path."""
    if not path:
        return value
    step, *rest = path
    if isinstance(spec, list):
        changed = list(spec)
        changed[int(step)] = _changed(spec[int(step)], rest, value)
        return changed
    return {**spec, step: _changed(spec[step], rest, value)}
