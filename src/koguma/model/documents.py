"""Documents: text that users write, as values that still know their line and column.

YAML is read event by event into plain JSON-like values: `on`, `no` and `0755` are not special, a key
given twice is an error, aliases and merge keys work within a budget, depth is limited. JSON has its own
fast reader with the same rules. Nothing here can be made to run code, or to use more memory than the
budget allows.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from koguma.model.errors import BadRequest
from koguma.model.schema import Json
from koguma.model.violation import Violation

DEPTH_MAX: Final = 64
NODES_MAX: Final = 500_000

_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_DIGITS_MAX = 40
_TAB: Final = "a tab stands here, and YAML forbids tabs for indentation: use spaces"
_CORE_TAG = "tag:yaml.org,2002:"


class BadDocument(BadRequest):
    """Text that cannot be parsed, with line and column."""

    def __init__(self, source: str, line: int, column: int, problem: str) -> None:
        self.source, self.line, self.column, self.problem = source, line, column, problem
        position = f"line {line}, column {column}"
        super().__init__(
            f"{source}:{line}:{column}: {problem}" if source else f"{position}: {problem}",
            violations=[Violation(position, problem, "syntax")],
        )


class RepeatedKey(NamedTuple):
    """A key that its mapping has already, and the line where it stands again."""

    line: int
    key: str


class SourceNode(msgspec.Struct):
    """The line and column of a value, and of the values inside of it."""

    line: int
    column: int
    children: dict[str, "SourceNode"] | list["SourceNode"] | None = None
    size: int = 1


class Document(msgspec.Struct, frozen=True):
    """One value of a stream, with the positions of all its parts."""

    value: Json
    node: SourceNode
    source: str = ""

    def position(self, field: str) -> tuple[int, int]:
        """Line and column of a field path, or of the nearest part above it that exists."""
        node = self.node
        for step in steps(field):
            below = node.children
            if isinstance(below, dict) and step in below:
                node = below[step]
            elif isinstance(below, list) and step.isdigit() and int(step) < len(below):
                node = below[int(step)]
            else:
                break
        return node.line, node.column


_STEP = re.compile(r'\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]|([^.\[]+)')


def steps(field: str) -> Iterator[str]:
    """The names and positions that a field path is made of."""
    for key, index, name in _STEP.findall(field):
        yield key or index or name


def load(text: str | bytes, source: str = "", repeated: list[RepeatedKey] | None = None) -> list[Document]:
    """All documents of a YAML (or JSON) stream; empty ones are left out.

    A key given twice is an error; with `repeated`, it is added there, and the last one counts.
    """
    decoded = _decode(text, source)
    try:
        return list(_YamlReader(decoded, source, repeated).documents())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or "cannot be read"
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise BadDocument(source, line, column, _TAB if _is_tab(decoded, mark) else problem) from None
    except yaml.reader.ReaderError as error:
        line, column = _line_column(decoded, int(error.position))
        raise BadDocument(source, line, column, "a character that YAML does not allow") from None


def _is_tab(text: str, mark: Any) -> bool:
    """Whether the parser failed at a tab, which people cannot see."""
    line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
    return line[mark.column : mark.column + 1] == "\t" if line else False


def load_json(data: bytes, source: str = "") -> Json:
    """One JSON value, refusing what JSON parsers like to let pass: keys given twice, NaN, lone surrogates."""
    text = _decode(data, source)
    try:
        return _json(text, source, _object)
    except _DuplicateKey as error:
        load(text, source)  # the slower reader, which finds the position
        raise BadDocument(source, 1, 1, str(error)) from None


def load_lenient_json(data: bytes, source: str = "") -> tuple[Json, tuple[str, ...]]:
    """One JSON value in which the last of equal keys counts, and the paths of those that came before it."""
    repeated: list[tuple[dict[str, Json], str]] = []

    def object_of(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        value_of_keys = dict(pairs)
        if len(value_of_keys) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated.extend((value_of_keys, key) for key, times in counts.items() for _ in range(times - 1))
        return value_of_keys

    value = _json(_decode(data, source), source, object_of)
    return value, tuple(_paths(value, repeated)) if repeated else ()


def _paths(value: Json, repeated: list[tuple[dict[str, Json], str]]) -> Iterator[str]:
    """The paths of repeated keys; those inside of a value that a later key replaced are left out."""
    keys: dict[int, list[str]] = {}
    for whole, key in repeated:
        keys.setdefault(id(whole), []).append(key)
    left = [("", value)]
    while left:
        at, whole = left.pop()
        if isinstance(whole, dict):
            before = f"{at}." if at else ""
            yield from (f"{before}{key}" for key in keys.get(id(whole), ()))
            left += [(f"{before}{key}", part) for key, part in whole.items()]
        elif isinstance(whole, list):
            left += [(f"{at}[{index}]", part) for index, part in enumerate(whole)]


def _json(text: str, source: str, object_of: Callable[[list[tuple[str, Json]]], dict[str, Json]]) -> Json:
    try:
        value = json.loads(
            text,
            object_pairs_hook=object_of,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_short_int,
        )
        if "\\ud" in text or "\\uD" in text:
            msgspec.json.encode(value)  # half a surrogate pair has no UTF-8
    except json.JSONDecodeError as error:
        raise BadDocument(source, error.lineno, error.colno, error.msg) from None
    except _DuplicateKey:
        raise
    except RecursionError:
        raise BadDocument(source, 1, 1, f"nested deeper than {DEPTH_MAX} levels") from None
    except UnicodeEncodeError:
        raise BadDocument(source, 1, 1, "half of a surrogate pair is not text") from None
    except ValueError as error:
        raise BadDocument(source, 1, 1, str(error)) from None
    check_depth(value, source)
    return value


def check_depth(value: Json, source: str = "") -> None:
    """Refuse values nested too deeply or with too many parts, without recursion."""
    level, nodes = [value], 0
    for _ in range(DEPTH_MAX + 1):
        nodes += len(level)
        if nodes > NODES_MAX:
            raise BadDocument(source, 1, 1, f"more than {NODES_MAX} values")
        if not level:
            return
        level = [part for whole in level for part in _parts(whole)]
    raise BadDocument(source, 1, 1, f"nested deeper than {DEPTH_MAX} levels")


def _parts(value: Json) -> list[Json]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _decode(text: str | bytes, source: str) -> str:
    if isinstance(text, str):
        decoded = text
    else:
        try:
            decoded = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line, column = _line_column(text[: error.start].decode(errors="replace"), error.start)
            raise BadDocument(source, line, column, f"byte {error.start} is not valid UTF-8") from None
    return decoded


def _line_column(text: str, position: int) -> tuple[int, int]:
    head = text[:position]
    return head.count("\n") + 1, len(head) - head.rfind("\n")


class _DuplicateKey(ValueError):
    pass


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys: set[str] = set()
        repeated = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
        raise _DuplicateKey(f'key "{repeated}" is given twice')
    return value


def _short_int(digits: str) -> int:
    if len(digits) > _DIGITS_MAX:
        raise ValueError(f"a number of {len(digits)} digits is too long")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits} is too large for a number")
    return value


def _no_constant(word: str) -> Json:
    raise ValueError(f"{word} is not JSON")


class _YamlReader:
    """Turns parser events into values and their positions."""

    def __init__(self, text: str, source: str, repeated: list[RepeatedKey] | None = None) -> None:
        self._events = yaml.parse(text, Loader=yaml.CSafeLoader)
        self._source = source
        self._repeated = repeated
        self._anchors: dict[str, tuple[Json, SourceNode]] = {}
        self._nodes = 0

    def documents(self) -> Iterator[Document]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                value, node = self._value(next(self._events), 0)
                if value is not None:
                    yield Document(value, node, self._source)

    def _value(self, event: Any, depth: int) -> tuple[Json, SourceNode]:
        if depth > DEPTH_MAX:
            raise self.bad(event, f"nested deeper than {DEPTH_MAX} levels")
        match event:
            case yaml.AliasEvent():
                return self._alias(event)
            case yaml.ScalarEvent():
                read = _scalar(self, event), _source_node(event)
            case yaml.SequenceStartEvent():
                read = self._sequence(event, depth)
            case _:
                read = self._mapping(event, depth)
        self._count(event, 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = read
        return read

    def _alias(self, event: Any) -> tuple[Json, SourceNode]:
        if event.anchor not in self._anchors:
            raise self.bad(event, f'alias "*{event.anchor}" has no anchor')
        value, node = self._anchors[event.anchor]
        self._count(event, node.size)
        return value, SourceNode(
            event.start_mark.line + 1, event.start_mark.column + 1, node.children, node.size
        )

    def _sequence(self, start: Any, depth: int) -> tuple[Json, SourceNode]:
        self._tag(start, "seq")
        values: list[Json] = []
        nodes: list[SourceNode] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            value, node = self._value(event, depth + 1)
            values.append(value)
            nodes.append(node)
        whole = _source_node(start, nodes)
        whole.size += sum(node.size for node in nodes)
        return values, whole

    def _mapping(self, start: Any, depth: int) -> tuple[Json, SourceNode]:
        self._tag(start, "map")
        values: dict[str, Json] = {}
        nodes: dict[str, SourceNode] = {}
        merged: list[tuple[Json, SourceNode]] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            value, node = self._value(next(self._events), depth + 1)
            if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                merged.extend(self._merge(event, value, node))
                continue
            if key in values:
                self._repeat(event, key)
            values[key], nodes[key] = value, node
        for more, more_node in merged:
            children = more_node.children
            for key, value in more.items():
                if key not in values and isinstance(children, dict):
                    values[key], nodes[key] = value, children[key]
        whole = _source_node(start, nodes)
        whole.size += sum(node.size for node in nodes.values())
        return values, whole

    def _repeat(self, event: Any, key: str) -> None:
        if self._repeated is None:
            raise self.bad(event, f'key "{key}" is given twice')
        self._repeated.append(RepeatedKey(event.start_mark.line + 1, key))

    def _key(self, event: Any) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            raise self.bad(event, "a key must be text")
        return str(event.value)

    def _merge(self, event: Any, value: Json, node: SourceNode) -> list[tuple[Json, SourceNode]]:
        parts = node.children if isinstance(node.children, list) else []
        mappings = list(zip(value, parts, strict=True)) if isinstance(value, list) else [(value, node)]
        if not all(isinstance(mapping, dict) for mapping, _ in mappings):
            raise self.bad(event, "<< takes a mapping or a list of mappings")
        return mappings

    def _tag(self, event: Any, expected: str) -> None:
        if event.tag not in (None, "!", _CORE_TAG + expected):
            raise self.bad(event, f'tag "{event.tag}" is not supported')

    def _count(self, event: Any, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > NODES_MAX:
            raise self.bad(event, f"more than {NODES_MAX} values")

    def bad(self, event: Any, problem: str) -> BadDocument:
        """The error at the position of `event`."""
        return BadDocument(self._source, event.start_mark.line + 1, event.start_mark.column + 1, problem)


def _source_node(event: Any, children: dict[str, SourceNode] | list[SourceNode] | None = None) -> SourceNode:
    return SourceNode(event.start_mark.line + 1, event.start_mark.column + 1, children)


def _scalar(reader: _YamlReader, event: Any) -> Json:
    text = str(event.value)
    if event.tag in ("!", _CORE_TAG + "str") or (event.tag is None and not event.implicit[0]):
        return text
    if event.tag is not None and event.tag not in (
        _CORE_TAG + word for word in ("int", "float", "bool", "null")
    ):
        raise reader.bad(event, f'tag "{event.tag}" is not supported')
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) <= _DIGITS_MAX and _INT.fullmatch(text):
        return int(text)
    if len(text) <= _DIGITS_MAX and _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text
