"""Paths: fields of Envoy's resources as people name them: `clusters[NAME].connect_timeout`.

An element of a list is named by its `name` where all elements have one, else by its index. Names in
camelCase, as in Envoy's JSON, are taken too.
"""

import re
from collections.abc import Iterable, Iterator
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
    steps = [(bracket, word) for bracket, word in _STEP.findall(text.strip())]
    if not steps:
        return FieldPath("")
    word = _snake(steps[0][1])
    if word not in _WORDS:
        near = nearest(word, _WORDS)
        hint = f'; did you mean "{near}"?' if near else ""
        types = ", ".join(_PLURALS.get(each, each) for each in TYPES)
        raise NoSuchField(f'"{word}" is no type of resource{hint}; there are {types}')
    name = steps[1][0] if len(steps) > 1 else ""
    rest = "".join(f"[{bracket}]" if bracket else f".{word}" for bracket, word in steps[2:])
    return FieldPath(_WORDS[word], name, rest.removeprefix("."))


def _snake(word: str) -> str:
    return _HUMP.sub(r"_\1", word).lower()


def flattened(value: Json, path: str = "") -> dict[str, Json]:
    """The leaves of a value by path: scalars, and objects and lists that are empty."""
    return dict(_leaves(value, path))


def _leaves(value: Json, path: str) -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        names = [each.get("name") if isinstance(each, dict) else None for each in value]
        is_named = all(names) and len(set(names)) == len(names)
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{names[index] if is_named else index}]")
    else:
        yield path, value


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
