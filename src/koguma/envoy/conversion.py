"""Conversion: from a value of plain data to what protobuf's constructors take.

A conversion is a function of one value. It raises `ConversionError` with everything that is wrong below that
value, with paths relative to it; the caller prepends its own field. So valid data costs no paths.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from koguma.envoy.validate_rules import RuleCheck
from koguma.model import violation
from koguma.model.violation import Violation

Convert = Callable[[Any], Any]

_SHOWN_MAX: Final = 60
_CACHED_MAX: Final = 1024


class ConversionError(Exception):
    """A value that does not fit: what and where, relative to the value. Never raised out of this package."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        super().__init__()
        self.violations = tuple(violations)


def conversion_error(message: str, rule: str = "type", field: str = "") -> ConversionError:
    """An error with one violation."""
    return ConversionError((Violation(field, message, rule),))


def must_be(what: str, value: Any) -> ConversionError:
    """An error about the type of a value. The value is not shown, as it may be a secret."""
    return conversion_error(f"must be {what}, not {_type_name(value)}")


def _type_name(value: Any) -> str:
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


def with_checks(parse: Convert, checks: tuple[RuleCheck, ...]) -> Convert:
    """A conversion whose result is then checked against rules of Envoy."""
    if not checks:
        return parse
    if len(checks) == 1:
        return _with_one_check(parse, checks[0])

    def convert(value: Any) -> Any:
        converted = parse(value)
        for check in checks:
            if not check.fits(converted):
                raise conversion_error(check.message, check.rule)
        return converted

    return convert


def text(value: Any) -> str:
    """A text."""
    if isinstance(value, str):
        return value
    raise must_be("text", value)


def _with_one_check(parse: Convert, check: RuleCheck) -> Convert:
    """The same for one rule, as most fields have."""
    fits = check.fits

    def convert(value: Any) -> Any:
        converted = parse(value)
        if fits(converted):
            return converted
        raise conversion_error(check.message, check.rule)

    if parse is text and fits is bool:  # a third of all rules: a text that must not be empty
        return lambda value: value if value and type(value) is str else convert(value)
    return convert


def wrapped(convert: Convert) -> Convert:
    """A value inside a protobuf wrapper, such as UInt32Value."""
    return lambda value: {"value": convert(value)}


def cached(convert: Convert) -> Convert:
    """A conversion that caches the results of texts, such as `5s`; nobody may change the results."""
    known: dict[str, Any] = {}

    def lookup(value: Any) -> Any:
        converted = known.get(value) if type(value) is str else None
        if converted is None:
            converted = convert(value)
            if type(value) is str and len(known) < _CACHED_MAX:
                known[value] = converted
        return converted

    return lookup


def repeated(convert: Convert, checks: tuple[RuleCheck, ...] = ()) -> Convert:
    """A list, item by item; rules may limit the number of items too."""

    def parse(value: Any) -> list[Any]:
        if type(value) is not list and type(value) is not tuple:
            raise must_be("a list", value)
        converted: list[Any] = []
        add = converted.append
        try:
            for each in value:
                add(convert(each))
        except ConversionError as first:
            raise ConversionError(
                (*_size_violations(value, checks), *_item_violations(convert, value, len(converted), first))
            ) from None
        return converted

    return with_checks(parse, checks)


def _size_violations(
    value: Sequence[Any] | Mapping[Any, Any], checks: tuple[RuleCheck, ...]
) -> Iterator[Violation]:
    """Violations of rules about size only, for a value whose items are invalid too."""
    for check in checks:
        if check.is_about_size and not check.fits(value):
            yield Violation("", check.message, check.rule)


def _item_violations(
    convert: Convert, values: Sequence[Any], n_good: int, first: ConversionError
) -> Iterator[Violation]:
    """The violations of the first invalid item and of those after it; no item is converted twice."""
    yield from violation.under(f"[{n_good}]", first.violations)
    for index in range(n_good + 1, len(values)):
        try:
            convert(values[index])
        except ConversionError as error:
            yield from violation.under(f"[{index}]", error.violations)


def map_of(read_key: Convert, convert: Convert, checks: tuple[RuleCheck, ...] = ()) -> Convert:
    """A map, entry by entry; rules may limit the number of entries too."""

    def parse(value: Any) -> dict[Any, Any]:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise must_be("a map", value)
        converted: dict[Any, Any] = {}
        violations: list[Violation] = []
        for name, each in value.items():
            try:
                converted[read_key(name)] = convert(each)
            except ConversionError as error:
                violations.extend(violation.under(f'["{name}"]', error.violations))
        if violations:
            raise ConversionError((*_size_violations(value, checks), *violations))
        return converted

    return with_checks(parse, checks)
