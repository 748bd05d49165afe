"""Conversion: from a value of plain data to what protobuf takes, and what is said where that cannot be.

A conversion is a function of one value. It raises `Wrong` with everything that is wrong below that value,
seen from there; whoever called it adds where that is. So no path is put together while nothing is wrong.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from koguma.envoy.validate_rules import Check
from koguma.model import violation
from koguma.model.violation import Violation

Convert = Callable[[Any], Any]

_SHOWN_MAX: Final = 60
_REMEMBERED_MAX: Final = 1024


class Wrong(Exception):
    """A value that does not fit: what and where, seen from that value. It never leaves this room."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        super().__init__()
        self.violations = tuple(violations)


def wrong(message: str, rule: str = "type", field: str = "") -> Wrong:
    """One thing that is wrong."""
    return Wrong((Violation(field, message, rule),))


def must_be(what: str, value: Any) -> Wrong:
    """A value of another sort. Only the sort is told, as the value may be a secret."""
    return wrong(f"must be {what}, not {_sort(value)}")


def _sort(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return "text" if value else "an empty text"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "a map"
        case _:
            return f"a {type(value).__name__}"


def shown(text: str) -> str:
    """A text in quotes, cut where it is long."""
    return f'"{text}"' if len(text) <= _SHOWN_MAX else f'"{text[:_SHOWN_MAX]}..."'


def held_to(parse: Convert, checks: tuple[Check, ...]) -> Convert:
    """A conversion whose result is then held against rules of Envoy."""
    if not checks:
        return parse
    if len(checks) == 1:
        return _held_to_one(parse, checks[0])

    def convert(value: Any) -> Any:
        made = parse(value)
        for check in checks:
            if not check.fits(made):
                raise wrong(check.words, check.rule)
        return made

    return convert


def text(value: Any) -> str:
    """A text."""
    if isinstance(value, str):
        return value
    raise must_be("text", value)


def _held_to_one(parse: Convert, check: Check) -> Convert:
    """The same for one rule, which is the usual number of them."""
    fits = check.fits

    def convert(value: Any) -> Any:
        made = parse(value)
        if fits(made):
            return made
        raise wrong(check.words, check.rule)

    if parse is text and fits is bool:  # a third of all rules: a text that must not be empty
        return lambda value: value if value and type(value) is str else convert(value)
    return convert


def boxed(convert: Convert) -> Convert:
    """A value as a wrapper has it."""
    return lambda value: {"value": convert(value)}


def remembered(convert: Convert) -> Convert:
    """A conversion of texts that come again and again, such as `5s`; nobody may change what is made."""
    known: dict[str, Any] = {}

    def recall(value: Any) -> Any:
        made = known.get(value) if type(value) is str else None
        if made is None:
            made = convert(value)
            if type(value) is str and len(known) < _REMEMBERED_MAX:
                known[value] = made
        return made

    return recall


def listed(convert: Convert, checks: tuple[Check, ...] = ()) -> Convert:
    """A list, item by item, whose number of items may have rules too."""

    def parse(value: Any) -> list[Any]:
        if type(value) is not list and type(value) is not tuple:
            raise must_be("a list", value)
        made: list[Any] = []
        add = made.append
        try:
            for each in value:
                add(convert(each))
        except Wrong as first:
            raise Wrong((*_counted(value, checks), *_wrong_items(convert, value, len(made), first))) from None
        return made

    return held_to(parse, checks)


def _counted(value: Sequence[Any] | Mapping[Any, Any], checks: tuple[Check, ...]) -> Iterator[Violation]:
    """The rules that ask for a number only, for what cannot be read whole."""
    for check in checks:
        if check.is_about_size and not check.fits(value):
            yield Violation("", check.words, check.rule)


def _wrong_items(convert: Convert, values: Sequence[Any], n_good: int, first: Wrong) -> Iterator[Violation]:
    """What is wrong with the first bad item, and with those after it; no item is looked at twice."""
    yield from violation.under(f"[{n_good}]", first.violations)
    for index in range(n_good + 1, len(values)):
        try:
            convert(values[index])
        except Wrong as found:
            yield from violation.under(f"[{index}]", found.violations)


def mapped(read_key: Convert, convert: Convert, checks: tuple[Check, ...] = ()) -> Convert:
    """A map, entry by entry, whose number of entries may have rules too."""

    def parse(value: Any) -> dict[Any, Any]:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise must_be("a map", value)
        made: dict[Any, Any] = {}
        wrongs: list[Violation] = []
        for name, each in value.items():
            try:
                made[read_key(name)] = convert(each)
            except Wrong as found:
                wrongs.extend(violation.under(f'["{name}"]', found.violations))
        if wrongs:
            raise Wrong((*_counted(value, checks), *wrongs))
        return made

    return held_to(parse, checks)
