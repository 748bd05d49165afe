"""Paths: fields of Envoy's resources as people name them: `clusters[NAME].connect_timeout`.

An element of a list is named by its `name` where all elements have one, else by its index. Names in
camelCase, as in Envoy's JSON, are taken too.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Final, NamedTuple

from koguma.envoy.snapshot import TYPES, Id
from koguma.model.nearest import nearest
from koguma.model.schema import Json

_STEP: Final = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]|([^.\[\]]+)")  # a name may have brackets itself
_HUMP: Final = re.compile(r"(?<=[a-z0-9])([A-Z])")
_PLURALS: Final = {"cluster": "clusters", "listener": "listeners", "extension": "extensions"} | {
    "secret": "secrets",
    "runtime": "runtimes",
    "virtual_host": "virtual_hosts",
}
_WORDS: Final = {word: type_ for type_ in TYPES for word in (type_, _PLURALS.get(type_, type_))}
_LISTED_MAX: Final = 5


class FieldPath(NamedTuple):
    """The type of resource, the name of one, and the field in it; each may be empty, and then the rest is."""

    type: str
    name: str = ""
    field: str = ""

    @property
    def id(self) -> Id:
        """The resource."""
        return self.type, self.name

    def __str__(self) -> str:
        return f"{_PLURALS.get(self.type, self.type)}[{self.name}].{self.field}".rstrip(".")


class NoSuchField(LookupError):
    """A path that leads nowhere, with the nearest that exist."""


def parsed(text: str) -> FieldPath:
    """A path as people write it; raises `NoSuchField`."""
    if not text.strip():
        return FieldPath("")
    steps = _STEP.findall(text.strip())
    if not steps or _STEP.sub("", text.strip()).strip("."):
        raise NoSuchField(f'"{text}" is no path; write one such as clusters[NAME].connect_timeout')
    word = _snake(steps[0][1])
    if word not in _WORDS:
        near = nearest(word, _WORDS)
        hint = f'; did you mean "{near}"?' if near else ""
        types = ", ".join(_PLURALS.get(each, each) for each in TYPES)
        raise NoSuchField(f'"{word}" is no type of resource{hint}; there are {types}')
    name = steps[1][0] if len(steps) > 1 else ""
    if len(steps) > 1 and not name:
        raise NoSuchField(f'"{text}" names no resource in brackets: {_PLURALS.get(word, word)}[NAME]')
    rest = "".join(f"[{bracket}]" if bracket else f".{word}" for bracket, word in steps[2:])
    return FieldPath(_WORDS[word], name, rest.removeprefix("."))


def _snake(word: str) -> str:
    return _HUMP.sub(r"_\1", word).lower()


def flattened(value: Json, path: str = "") -> dict[str, Json]:
    """The leaves of a value by path: scalars, and objects and lists that are empty."""
    return dict(_leaves(value, path))


def _leaves(value: Json, path: str) -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict | list) and value:
        for at, inner in _children(value, path):
            yield from _leaves(inner, at)
    else:
        yield path, value


def _children(value: Json, path: str) -> list[tuple[str, Json]]:
    """What is directly in an object or a list, by path."""
    if isinstance(value, dict):
        return [(f"{path}.{name}" if path else name, inner) for name, inner in value.items()]
    names = _names(value) or range(len(value))
    return [(f"{path}[{name}]", inner) for name, inner in zip(names, value, strict=True)]


def _names(elements: Sequence[Json]) -> list[str]:
    """The names of all elements of a list; none where one has no name, or several have the same."""
    names = [each.get("name") if isinstance(each, dict) else None for each in elements]
    return [str(name) for name in names] if all(names) and len(set(names)) == len(names) else []


def differing(before: Json, after: Json, path: str = "") -> Iterator[tuple[str, bool]]:
    """The leaves of a value that are others in another one, each with whether it has a value there at all.

    A leaf that only stands elsewhere in a list is no other one.
    """
    if before == after:
        return
    if isinstance(before, dict) and before and isinstance(after, dict):
        for name, inner in before.items():
            yield from differing(inner, after.get(name, _NONE), f"{path}.{name}" if path else name)
    elif isinstance(before, list) and before and isinstance(after, list):
        for (at, inner), other in zip(_children(before, path), _counterparts(before, after), strict=True):
            yield from differing(inner, other, at)
    else:
        is_there = not isinstance(before, dict | list) and not isinstance(after, dict | list)
        is_there = is_there and after is not _NONE
        yield from ((leaf, is_there) for leaf, _ in _leaves(before, path))


_NONE: Final = object()


def _counterparts(before: Sequence[Json], after: Sequence[Json]) -> Iterator[Json]:
    """What stands in a list for each element of another one: of its name, else equal, else in its place."""
    if (names := _names(before)) and (others := _names(after)):
        by_name = dict(zip(others, after, strict=True))
        yield from (by_name.get(name, _NONE) for name in names)
        return
    texts = [[json.dumps(each, sort_keys=True) for each in elements] for elements in (before, after)]
    matched = SequenceMatcher(None, texts[0], texts[1], autojunk=False).get_opcodes()
    for _, start, end, other_start, other_end in matched:
        pairs = zip_longest(range(start, end), after[other_start:other_end], fillvalue=_NONE)
        yield from (other for index, other in pairs if index is not _NONE)


def below(field: str, leaves: Iterable[str]) -> list[str]:
    """The leaves at a field or below it, in Envoy's spelling or in camelCase; all for an empty one."""
    known = list(leaves)
    found = [leaf for leaf in known if _is_below(leaf, field)]
    return found or [leaf for leaf in known if _is_below(_snake(leaf), _snake(field))]


def _is_below(leaf: str, field: str) -> bool:
    return not field or leaf == field or leaf.startswith((f"{field}.", f"{field}["))


def missing(what: str, word: str, known: Iterable[str]) -> NoSuchField:
    """The error for a name or a field that is not there."""
    names = list(known)
    near = nearest(word, names)
    with_word = [name for name in names if word and word.rpartition(".")[2] in name]
    closest = list(dict.fromkeys([*([near] if near else []), *with_word]))[:_LISTED_MAX]
    hint = (
        f"; the nearest are {', '.join(closest)}"
        if closest
        else f"; there are {', '.join(names[:_LISTED_MAX])}"
    )
    return NoSuchField(f'there is no {what} "{word}"{hint if names else ""}')
