"""Parts: what was written in an object, and the object without each part, or with another value there.

A value that equals what would hold without it makes no difference when it is left out, but another one does.
"""

import re
from collections.abc import Iterator
from typing import Final

from koguma.model.schema import Json

_KEPT: Final = frozenset({"targetRef"})  # what an entry is about; without it there is no entry
_NUMBER: Final = re.compile(r"\d+")
_DURATION: Final = re.compile(r"(\d+(ms|s|m|h))+")
_DEPTH_MAX: Final = 8
_PARTS_MAX: Final = 400


def written_parts(spec: Json, *, whole: bool = False) -> Iterator[tuple[str, Json]]:
    """The paths of all parts of a spec, those above before those below, each with the spec without it.

    A number, a duration or a flag comes once more, with another value. With `whole`, only parts at the top.
    """
    for number, (path, rest) in enumerate(_without(spec, "spec", 1 if whole else _DEPTH_MAX)):
        if number >= _PARTS_MAX:
            return
        yield path, rest


def _without(value: Json, path: str, depth: int) -> Iterator[tuple[str, Json]]:
    if not depth:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in _KEPT:
                continue
            at = f"{path}.{name}"
            yield at, {other: each for other, each in value.items() if other != name}
            if (changed := _other(inner)) is not None:
                yield at, {**value, name: changed}
            yield from ((below, {**value, name: rest}) for below, rest in _without(inner, at, depth - 1))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            at = f"{path}[{index}]"
            yield at, [*value[:index], *value[index + 1 :]]
            for below, rest in _without(inner, at, depth - 1):
                yield below, [*value[:index], rest, *value[index + 1 :]]


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
