"""Parts: what was written in an object, and the object without each part, or with another value there.

A value that equals what would hold without it makes no difference when it is left out, but another one does.
"""

import ipaddress
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from koguma.model.schema import Json

_KEPT: Final = frozenset({"targetRef"})  # what an entry is about; without it there is no entry
_NUMBER: Final = re.compile(r"\d+")
_DURATION: Final = re.compile(r"(\d+(ms|s|m|h))+")
_DEPTH_MAX: Final = 16
_SHORT_MAX: Final = 4  # elements of a list


class WrittenPart(NamedTuple):
    """A part of a spec by path, and the spec without it, or with another value there."""

    path: str
    spec: Json
    is_value: bool = False  # whether it has another text or number, so that what it sets has another value
    is_whole: bool = False  # whether all numbers and flags in it have other values


Tried = Callable[[WrittenPart], bool]


def try_parts(spec: Json, tried: Tried, *, whole: bool = False) -> None:
    """Try all parts of a spec, those above before those below: the spec without each.

    A text, a number or a flag is tried once more, with another value. What is in an element of a long list is
    left out where the element makes no difference; `tried` says whether it makes one, or may. With `whole`,
    only parts at the top are tried.
    """
    _try_below(spec, "spec", 1 if whole else _DEPTH_MAX, lambda changed: changed, tried)


def _try_below(value: Json, path: str, depth: int, of_spec: Callable[[Json], Json], tried: Tried) -> None:
    is_long = isinstance(value, list) and len(value) > _SHORT_MAX
    keys = [name for name in value if name not in _KEPT] if isinstance(value, dict) else range(len(value))
    for key in keys if depth else ():
        inner, at = value[key], f"{path}.{key}" if isinstance(value, dict) else f"{path}[{key}]"
        with_other = partial(_with, value, key, of_spec)
        matters = tried(WrittenPart(at, of_spec(_without(value, key))))
        if isinstance(inner, dict | list):
            if (
                matters
                or not is_long
                or tried(WrittenPart(at, with_other(with_others(inner)), is_whole=True))
            ):
                _try_below(inner, at, depth - 1, with_other, tried)
        elif (other := _another(inner)) is not None:
            tried(WrittenPart(at, with_other(other), is_value=not isinstance(inner, bool)))


def _without(value: Json, key: Any) -> Json:
    if isinstance(value, dict):
        return {name: each for name, each in value.items() if name != key}
    return [*value[:key], *value[key + 1 :]]


def _with(value: Json, key: Any, of_spec: Callable[[Json], Json], inner: Json) -> Json:
    changed = value.copy()
    changed[key] = inner
    return of_spec(changed)


def _another(value: Json) -> Json:
    other = _other(value)
    return _other_text(value) if other is None else other


def with_others(value: Json) -> Json:
    """The same with other values for all numbers, durations and flags."""
    if isinstance(value, dict):
        return {name: each if name in _KEPT else with_others(each) for name, each in value.items()}
    if isinstance(value, list):
        return [with_others(each) for each in value]
    changed = _other(value)
    return value if changed is None else changed


def _other(value: Json) -> Json:
    """Another value of the same sort; None where nothing is known about what may stand there."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str) and _DURATION.fullmatch(value):
        return _NUMBER.sub(lambda found: str(int(found[0]) + 1), value, count=1)
    return None


def _other_text(value: Json) -> str | None:
    """Another text; it may be one that its object cannot have, and then is not tried."""
    if not isinstance(value, str):
        return None
    try:
        return str(ipaddress.ip_address(value) + 1)
    except ValueError:
        return f"{value}x"
