"""Parts: what was written in an object, and the object without each part, or with another value there.

A value that equals what would hold without it makes no difference when it is left out, but another one does.
"""

import ipaddress
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from koguma.model.schema import Json

_KEPT: Final = frozenset({"targetRef"})  # what an entry is about; without it there is no entry
_NUMBER: Final = re.compile(r"\d+")
_DURATION: Final = re.compile(r"(\d+(ms|s|m|h))+")
_DEPTH_MAX: Final = 16
_PARTS_MAX: Final = 400


class WrittenPart(NamedTuple):
    """A part of a spec by path, and the spec without it, or with another value there."""

    path: str
    spec: Json
    is_value: bool = False  # whether it has another text or number, so that what it sets has another value


def written_parts(spec: Json, *, whole: bool = False) -> Iterator[WrittenPart]:
    """All parts of a spec, those above before those below, each with the spec without it.

    A text, a number or a flag comes once more, with another value. With `whole`, only parts at the top.
    """
    return islice(_without(spec, "spec", 1 if whole else _DEPTH_MAX), _PARTS_MAX)


def _without(value: Json, path: str, depth: int) -> Iterator[WrittenPart]:
    if not depth:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in _KEPT:
                continue
            at = f"{path}.{name}"
            yield WrittenPart(at, {other: each for other, each in value.items() if other != name})
            for each in _changed(inner, at, depth):
                yield each._replace(spec={**value, name: each.spec})
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            at = f"{path}[{index}]"
            yield WrittenPart(at, [*value[:index], *value[index + 1 :]])
            for each in _changed(inner, at, depth):
                yield each._replace(spec=[*value[:index], each.spec, *value[index + 1 :]])


def _changed(inner: Json, path: str, depth: int) -> Iterator[WrittenPart]:
    """What may stand instead of a part that stays: another value, or the same without what is in it."""
    changed = _other_text(inner) if (other := _other(inner)) is None else other
    if changed is not None:
        yield WrittenPart(path, changed, is_value=not isinstance(inner, bool))
    yield from _without(inner, path, depth - 1)


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
