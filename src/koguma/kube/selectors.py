"""Selectors: which objects a list or a watch is about, by their labels and by their fields.

The grammar and the words of its errors are Kubernetes', because people know them from kubectl. Selectors
are small frozen values, and remembered by their text: a watch asks the same one for each change.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from koguma.model import labels as label_rules
from koguma.model.errors import BadRequest
from koguma.model.short_keys import kept_if_short

NAME: Final = "metadata.name"
NAMESPACE: Final = "metadata.namespace"

_TOKEN: Final = re.compile(r"[ \t\r\n]*(==|!=|[=!(),<>]|[^ \t\r\n=!(),<>]+)")
_SPECIAL: Final = frozenset(("==", "!=", "=", "!", "(", ")", ",", "<", ">", ""))
_OPERATORS: Final = ("in", "notin", "=", "==", "!=", "<", ">")
_OPERATOR_NAMES: Final = "in, notin, =, ==, !=, gt, lt"
_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_INT64_MAX: Final = 2**63 - 1
_FIELD_OPERATOR: Final = re.compile(r"!=|==|=")
_ESCAPES: Final = ("\\\\", "\\,", "\\=")


class Requirement(msgspec.Struct, frozen=True):
    """One condition on one label. The operators are `in`, `notin`, `exists`, `!`, `>` and `<`."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it. One that an object does not have is not equal to anything."""
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value in self.values
            case "notin":
                return value not in self.values
            case "exists":
                return value is not None
            case "!":
                return value is None
        number = None if value is None else _integer(value)
        if number is None:
            return False
        limits = (int(limit) for limit in self.values)
        return all(number > limit if self.operator == ">" else number < limit for limit in limits)


class LabelRequirements(msgspec.Struct, frozen=True):
    """A label selector: requirements that have to hold together."""

    requirements: tuple[Requirement, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Whether there is nothing to meet."""
        return not self.requirements

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet all conditions."""
        return all(requirement.matches(labels) for requirement in self.requirements)


@kept_if_short(maxsize=1024)
def labels(text: str) -> LabelRequirements:
    """A label selector: `app=web,tier in (a, b),!legacy`; empty text selects everything."""
    return LabelRequirements(tuple(_LabelParser(text).requirements()))


class _LabelParser:
    """Reads one selector from the left; the end of the text is an empty token."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = [*_TOKEN.findall(text), ""]
        self._at = 0

    def requirements(self) -> Iterator[Requirement]:
        """All conditions, between commas."""
        if not self._next:
            return
        if self._next in _SPECIAL - {"!"}:
            raise BadRequest(f"found '{self._next}', expected: !, identifier, or 'end of string'")
        while True:
            try:
                yield self._requirement()
            except BadRequest as error:
                raise BadRequest(f"unable to parse requirement: {error}") from None
            if not self._next:
                return
            if self._taken() != ",":
                raise BadRequest(f"found '{self._last}', expected: ',' or 'end of string'")
            if self._next in _SPECIAL - {"!"}:
                raise BadRequest(f"found '{self._next}', expected: identifier after ','")

    @property
    def _next(self) -> str:
        return self._tokens[self._at]

    @property
    def _last(self) -> str:
        return self._tokens[self._at - 1]

    def _taken(self) -> str:
        self._at += 1
        return self._last

    def _requirement(self) -> Requirement:
        is_absent = self._next == "!"
        if is_absent:
            self._at += 1
        key = self._taken()
        if key in _SPECIAL:
            raise BadRequest(f"found '{key}', expected: identifier")
        _check_key(key)
        if is_absent or self._next in ("", ","):
            return Requirement(key, "!" if is_absent else "exists")
        operator = self._taken()
        if operator not in _OPERATORS:
            raise BadRequest(f"found '{operator}', expected: {_OPERATOR_NAMES}")
        return self._compared(key, operator)

    def _compared(self, key: str, operator: str) -> Requirement:
        values = self._set() if operator in ("in", "notin") else frozenset((self._value(),))
        if operator in ("<", ">"):
            _check_integer(*values)
        for index, value in enumerate(sorted(values)):
            _check_value(key, index, value)
        words = {"=": "in", "==": "in", "!=": "notin"}
        return Requirement(key, words.get(operator, operator), values)

    def _value(self) -> str:
        if self._next in ("", ","):  # nothing is a value as well
            return ""
        value = self._taken()
        if value in _SPECIAL:
            raise BadRequest(f"found '{value}', expected: identifier")
        return value

    def _set(self) -> frozenset[str]:
        if self._taken() != "(":
            raise BadRequest(f"found '{self._last}' expected: '('")
        if self._next in _SPECIAL - {",", ")"}:
            raise BadRequest(f"found '{self._next}', expected: ',', ')' or identifier")
        values = []
        while True:
            if self._next in _SPECIAL - {",", ")"}:
                raise BadRequest(f"found '{self._next}', expected: ',', or identifier")
            values.append("" if self._next in (",", ")") else self._taken())
            match self._taken():
                case ")":
                    return frozenset(values)
                case ",":
                    continue
                case found:
                    raise BadRequest(f"found '{found}', expected: ',' or ')'")


def _check_key(key: str) -> None:
    for violation in label_rules.syntax({key: ""}):
        raise BadRequest(f"<nil>: Invalid value: {_quoted(key)}: {violation.message}")


def _check_value(key: str, index: int, value: str) -> None:
    for violation in label_rules.syntax({"key": value}):
        raise BadRequest(f"values[{index}][{key}]: Invalid value: {_quoted(value)}: {violation.message}")


def _check_integer(value: str) -> None:
    if _integer(value) is None:
        words = "for 'Gt', 'Lt' operators, the value must be an integer"
        raise BadRequest(f"values[0]: Invalid value: {_quoted(value)}: {words}")


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _integer(text: str) -> int | None:
    """A number of 64 bits; a label's value may be anything."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -_INT64_MAX - 1 <= number <= _INT64_MAX else None


class Term(NamedTuple):
    """One condition on one field."""

    path: str
    is_equal: bool
    value: str


class FieldSelector(msgspec.Struct, frozen=True):
    """Conditions on fields that have to hold together."""

    terms: tuple[Term, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Whether there is nothing to meet."""
        return not self.terms

    def matches(self, value_of: Callable[[str], str]) -> bool:
        """Whether the fields, asked for by path, meet all conditions; a missing one is empty text."""
        return all((value_of(term.path) == term.value) is term.is_equal for term in self.terms)

    def exact(self, path: str) -> str | None:
        """The one value that a field may have, for a look-up instead of a search."""
        return next((term.value for term in self.terms if term.path == path and term.is_equal), None)


@kept_if_short(maxsize=1024)
def fields(text: str, supported: tuple[str, ...] = ()) -> FieldSelector:
    r"""A field selector: `metadata.name=web,status.phase!=Done`; in values `\`, `,` and `=` are escaped."""
    terms = tuple(_term(part, text) for part in _parts(text) if part)
    for term in terms:
        if term.path not in (NAME, NAMESPACE, *supported):
            raise BadRequest(f"field label not supported: {term.path}")
    return FieldSelector(terms)


def _parts(text: str) -> list[str]:
    """The terms between commas that are not escaped."""
    return re.findall(r"(?:\\.|\\$|[^\\,])+", text, re.DOTALL)


def _term(part: str, text: str) -> Term:
    operator = _FIELD_OPERATOR.search(part)
    if operator is None:
        raise BadRequest(f"invalid selector: '{text}'; can't understand '{part}'")
    return Term(part[: operator.start()], operator.group() != "!=", _unescaped(part[operator.end() :]))


def _unescaped(value: str) -> str:
    result = []
    for piece in re.findall(r"\\.?|[^\\]", value, re.DOTALL):
        if piece.startswith("\\") and piece not in _ESCAPES:
            raise BadRequest(f"invalid field selector: invalid escape sequence: {piece}")
        if piece in (",", "="):
            raise BadRequest(f"invalid field selector: unescaped character in value: {piece}")
        result.append(piece.removeprefix("\\") if piece != "\\\\" else "\\")
    return "".join(result)
