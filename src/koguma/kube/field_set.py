"""Field sets: sets of field paths of a document, as managedFields (FieldsV1) writes them.

A path consists of elements. `f:<name>` is a field, `k:{...}` an item of a list with keys, `v:<value>` an
item of a list that is a set, `i:<index>` an item by its position. An element is kept as its text in FieldsV1,
with the keys inside sorted, so that equal paths have equal texts and are compared without parsing.

A set is a tree, as in structured-merge-diff. A node that `is_member` is in the set itself; one that is not
only leads to nodes that are.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, Self

import msgspec

from koguma.model.schema import Json

Path = tuple[str, ...]

SELF: Final = "."  # in FieldsV1: the field itself is in the set, beside fields inside of it
_INDEX: Final = re.compile(r"0|[1-9][0-9]*")
_N_SHORT: Final = 200  # characters; longer elements are rare, and not worth the memory of a cache
_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder().decode


class FieldSet(msgspec.Struct, frozen=True, gc=False):
    """A set of field paths. No node below is empty, so that equal sets are equal values."""

    is_member: bool = False
    children: Mapping[str, "FieldSet"] = {}

    @classmethod
    def of(cls, paths: Iterable[Path]) -> Self:
        """The set of these paths."""
        is_member, below = False, dict[str, list[Path]]()
        for path in paths:
            if path:
                below.setdefault(path[0], []).append(path[1:])
            else:
                is_member = True
        return cls(is_member, {element: cls.of(rest) for element, rest in below.items()})

    def __bool__(self) -> bool:
        return self.is_member or bool(self.children)

    def __or__(self, other: "FieldSet") -> "FieldSet":
        """What is in either."""
        if self is other or not other:
            return self
        if not self:
            return other
        children = dict(self.children)
        for element, node in other.children.items():
            own = children.get(element)
            children[element] = node if own is None else own | node
        return FieldSet(self.is_member or other.is_member, children)

    def __sub__(self, other: "FieldSet") -> "FieldSet":
        """What is not in the other. A leaf of the other stands for all that lies below it.

        Who replaces a whole value takes ownership from those who owned parts of it. Where nothing is removed
        the result is this set itself, by which callers notice it.
        """
        left = {}
        for element, taken in other.children.items():
            node = self.children.get(element)
            if node is not None:
                rest = node - taken if taken.children else EMPTY
                if rest is not node:
                    left[element] = rest
        is_member = self.is_member and not other.is_member
        if is_member == self.is_member and not left:
            return self
        return FieldSet(
            is_member, {element: node for element, node in {**self.children, **left}.items() if node}
        )

    def __and__(self, other: "FieldSet") -> "FieldSet":
        """What is in both. A leaf of the other stands for all that lies below it."""
        children = {}
        for element, node in self.children.items():
            others = other.children.get(element)
            if others is not None and (shared := node & others if others.children else LEAF):
                children[element] = shared
        return FieldSet(self.is_member and other.is_member, children)

    @property
    def leaves(self) -> "FieldSet":
        """The paths with nothing below them."""
        children = {element: node.leaves for element, node in self.children.items()}
        return FieldSet(self.is_member and not children, children)

    def paths(self) -> Iterator[Path]:
        """All paths, in order."""
        if self.is_member:
            yield ()
        for element in sorted(self.children):
            for rest in self.children[element].paths():
                yield (element, *rest)

    def json(self) -> dict[str, Json]:
        """As FieldsV1, in order."""
        fields: dict[str, Json] = {SELF: {}} if self.is_member else {}
        for element in sorted(self.children):
            node = self.children[element]
            fields[element] = node.json() if node.children else {}
        return fields


EMPTY: Final = FieldSet()
LEAF: Final = FieldSet(is_member=True)


def from_fields_v1(fields: Json) -> FieldSet:
    """The set that FieldsV1 stands for; ValueError where it is none."""
    if not isinstance(fields, dict):
        raise ValueError(f"must be an object, not {fields!r}")  # noqa: TRY004 - it is data that is wrong
    is_member, children = False, dict[str, FieldSet]()
    for element, below in fields.items():
        if element == SELF:
            is_member = True
            continue
        name = element if element.startswith("f:") else canonical(element)
        node = LEAF if below == {} else from_fields_v1(below)
        children[name] = children[name] | node if name in children else node
    return FieldSet(is_member, children)


def canonical(element: str) -> str:
    """An element with its JSON written our way; ValueError where it is none."""
    return _short(element) if len(element) < _N_SHORT else _canonical(element)


def _canonical(element: str) -> str:
    sort, rest = element[:2], element[2:]
    if sort == "f:" or (sort == "i:" and _INDEX.fullmatch(rest)):
        return element
    try:
        value = _decode(rest)
    except msgspec.DecodeError as error:
        raise ValueError(f"{element!r} is not an element of a path") from error
    if sort == "v:":
        return value_element(value)
    if sort == "k:" and isinstance(value, dict) and value:
        return key_element(value)
    raise ValueError(f"{element!r} is not an element of a path")


_short: Final = lru_cache(maxsize=1024)(_canonical)


def value_element(value: Json) -> str:
    """The element of an item of a set."""
    return "v:" + _encode(value).decode()


def key_element(keys: Mapping[str, Json]) -> str:
    """The element of an item that these keys name."""
    return "k:" + _encode(keys).decode()


def path_text(path: Path) -> str:
    """A path for people: `.spec.ports[name="http"].port`."""
    return "".join(_shown(element) for element in path)


def _shown(element: str) -> str:
    sort, rest = element[:2], element[2:]
    match sort:
        case "f:":
            return f".{rest}"
        case "k:":
            keys = _decode(rest)
            return "[" + ",".join(f"{name}={_encode(keys[name]).decode()}" for name in keys) + "]"
        case "v:":
            return f"[={rest}]"
        case _:
            return f"[{rest}]"
