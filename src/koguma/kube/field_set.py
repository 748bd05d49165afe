"""Fields: sets of places in a document, as managedFields names them.

A place is a path of elements. `f:<name>` is a field, `k:{...}` an item of a list with keys, `v:<value>` an
item of a list that is a set, `i:<index>` an item by its position. An element is kept as its text in FieldsV1,
with the keys inside sorted, so that equal places have equal texts and nothing is taken apart to be compared.

A set is a tree. A node that is `here` is in the set itself; one that is not only leads to nodes that are.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, Self

import msgspec

from koguma.model.schema import Json

Path = tuple[str, ...]

SELF: Final = "."  # in FieldsV1: the place itself, beside what lies below it
_INDEX: Final = re.compile(r"0|[1-9][0-9]*")
_N_SHORT: Final = 200  # characters; longer elements are rare, and not worth the memory of a cache
_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder().decode


class FieldSet(msgspec.Struct, frozen=True, gc=False):
    """A set of places. No node below is empty, so that equal sets are equal values."""

    here: bool = False
    under: Mapping[str, "FieldSet"] = {}

    @classmethod
    def of(cls, paths: Iterable[Path]) -> Self:
        """The set of these paths."""
        here, below = False, dict[str, list[Path]]()
        for path in paths:
            if path:
                below.setdefault(path[0], []).append(path[1:])
            else:
                here = True
        return cls(here, {element: cls.of(rest) for element, rest in below.items()})

    def __bool__(self) -> bool:
        return self.here or bool(self.under)

    def __or__(self, other: "FieldSet") -> "FieldSet":
        """What is in either."""
        if self is other or not other:
            return self
        if not self:
            return other
        under = dict(self.under)
        for element, node in other.under.items():
            mine = under.get(element)
            under[element] = node if mine is None else mine | node
        return FieldSet(self.here or other.here, under)

    def __sub__(self, other: "FieldSet") -> "FieldSet":
        """What is not in the other. A leaf of the other stands for all that lies below it.

        Who replaces a whole value takes it from those who owned parts of it. Where nothing is taken away the
        answer is this set itself, which callers use to see it.
        """
        left = {}
        for element, taken in other.under.items():
            node = self.under.get(element)
            if node is not None:
                rest = node - taken if taken.under else EMPTY
                if rest is not node:
                    left[element] = rest
        here = self.here and not other.here
        if here == self.here and not left:
            return self
        return FieldSet(here, {element: node for element, node in {**self.under, **left}.items() if node})

    def __and__(self, other: "FieldSet") -> "FieldSet":
        """What is in both. Of what lies below a leaf of the other, the leaf is in both."""
        under = {}
        for element, node in self.under.items():
            wanted = other.under.get(element)
            if wanted is not None and (shared := node & wanted if wanted.under else LEAF):
                under[element] = shared
        return FieldSet(self.here and other.here, under)

    @property
    def leaves(self) -> "FieldSet":
        """The places with nothing below them."""
        under = {element: node.leaves for element, node in self.under.items()}
        return FieldSet(self.here and not under, under)

    def paths(self) -> Iterator[Path]:
        """All places, in order."""
        if self.here:
            yield ()
        for element in sorted(self.under):
            for rest in self.under[element].paths():
                yield (element, *rest)

    def json(self) -> dict[str, Json]:
        """As FieldsV1, in order."""
        found: dict[str, Json] = {SELF: {}} if self.here else {}
        for element in sorted(self.under):
            node = self.under[element]
            found[element] = node.json() if node.under else {}
        return found


EMPTY: Final = FieldSet()
LEAF: Final = FieldSet(here=True)


def from_fields_v1(fields: Json) -> FieldSet:
    """The set that FieldsV1 stands for; ValueError where it is none."""
    if not isinstance(fields, dict):
        raise ValueError(f"must be an object, not {fields!r}")  # noqa: TRY004 - it is data that is wrong
    here, under = False, dict[str, FieldSet]()
    for element, below in fields.items():
        if element == SELF:
            here = True
            continue
        name = element if element.startswith("f:") else canonical(element)
        node = LEAF if below == {} else from_fields_v1(below)
        under[name] = under[name] | node if name in under else node
    return FieldSet(here, under)


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
