"""Validate rules: the rules of protoc-gen-validate (`validate.rules`), as checks of single values.

Envoy's messages state their constraints in these rules. All of them are supported, also those that no message
uses today. Error messages are Envoy's own, so that they can be searched for.

A check gets one converted value: a number, text, bytes, boolean, list or map; for a duration or timestamp its
nanoseconds, for an Any its type URL.
"""

import functools
import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
import re2
from google.protobuf.descriptor import FieldDescriptor

from koguma.model import duration

Fits = Callable[[Any], bool]

_CACHED_MAX: Final = 4096


class RuleCheck(msgspec.Struct, frozen=True):
    """One rule: whether a value fits, and the error message where it does not."""

    fits: Fits
    message: str
    rule: str
    is_about_size: bool = False


def checks(kind: str, rules: Any, field: FieldDescriptor) -> tuple[RuleCheck, ...]:
    """The checks of the rules for values of one kind, such as `string` or `uint32`."""
    rule_checks = tuple(_KINDS.get(kind, _number)(rules, field))
    if getattr(rules, "ignore_empty", False):
        return tuple(_unless_empty(check) for check in rule_checks)
    return rule_checks


def _unless_empty(check: RuleCheck) -> RuleCheck:
    fits = check.fits
    return msgspec.structs.replace(check, fits=lambda value: not value or fits(value))


def _number(rules: Any, _field: FieldDescriptor) -> Iterator[RuleCheck]:
    """Numbers of every size, and booleans, which have only `const`."""
    return _compared(rules, lambda value: value, _shown)


def _duration(rules: Any, _field: FieldDescriptor) -> Iterator[RuleCheck]:
    """Durations and timestamps. Rules relative to the present need a clock; no message of Envoy has one."""
    return _compared(rules, _nanoseconds, _shown_ns)


def _shown_ns(value: int) -> str:
    """As Envoy shows durations: without parts that are zero."""
    return duration.text(value).replace("m0s", "m").replace("h0m", "h")


def _nanoseconds(value: Any) -> int:
    return int(value.seconds) * 1_000_000_000 + int(value.nanos)


def _compared(rules: Any, read: Callable[[Any], Any], shown: Callable[[Any], str]) -> Iterator[RuleCheck]:
    if rules.HasField("const"):
        const = read(rules.const)
        yield RuleCheck(lambda value: value == const, f"value must equal {shown(const)}", "const")
    yield from _range(rules, read, shown)
    yield from _lists(rules, read, shown)


def _lists(rules: Any, read: Callable[[Any], Any], shown: Callable[[Any], str]) -> Iterator[RuleCheck]:
    for name, words in (("in", "must be in list"), ("not_in", "must not be in list")):
        listed = [read(value) for value in getattr(rules, name, ())]
        if listed:
            known, text = frozenset(listed), " ".join(map(shown, listed))
            fits = known.__contains__ if name == "in" else _outside(known)
            yield RuleCheck(fits, f"value {words} [{text}]", name)


def _outside(known: frozenset[Any]) -> Fits:
    return lambda value: value not in known


def _range(rules: Any, read: Callable[[Any], Any], shown: Callable[[Any], str]) -> Iterator[RuleCheck]:
    """`gt` or `gte` with `lt` or `lte`; with the lower bound above the upper, values between are invalid."""
    lower, upper = _bound(rules, "gt", "gte", read), _bound(rules, "lt", "lte", read)
    if lower is None and upper is None:
        return
    above = _above(*lower) if lower else None
    below = _below(*upper) if upper else None
    if lower and upper and above and below:
        text = f"{'[' if lower[1] else '('}{shown(lower[0])}, {shown(upper[0])}{']' if upper[1] else ')'}"
        if lower[0] <= upper[0]:
            yield RuleCheck(_inside(lower, upper), f"value must be inside range {text}", "range")
        else:
            yield RuleCheck(lambda v: above(v) or below(v), f"value must be outside range {text}", "range")
    elif lower and above:
        words = "greater than or equal to" if lower[1] else "greater than"
        yield RuleCheck(above, f"value must be {words} {shown(lower[0])}", "gte" if lower[1] else "gt")
    elif upper and below:
        words = "less than or equal to" if upper[1] else "less than"
        yield RuleCheck(below, f"value must be {words} {shown(upper[0])}", "lte" if upper[1] else "lt")


Bound = tuple[Any, bool]  # and whether it is inclusive


def _bound(rules: Any, bare: str, closed: str, read: Callable[[Any], Any]) -> Bound | None:
    fields = rules.DESCRIPTOR.fields_by_name
    for name in (closed, bare):
        if name in fields and rules.HasField(name):
            return read(getattr(rules, name)), name == closed
    return None


def _above(bound: Any, closed: bool) -> Fits:  # noqa: FBT001 - a pair taken apart
    return (lambda value: value >= bound) if closed else (lambda value: value > bound)


def _below(bound: Any, closed: bool) -> Fits:  # noqa: FBT001 - a pair taken apart
    return (lambda value: value <= bound) if closed else (lambda value: value < bound)


def _inside(lower: Bound, upper: Bound) -> Fits:
    low, high = lower[0], upper[0]
    if lower[1] and upper[1]:
        return lambda value: low <= value <= high
    above, below = _above(*lower), _below(*upper)
    return lambda value: above(value) and below(value)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _enum(rules: Any, field: FieldDescriptor) -> Iterator[RuleCheck]:
    if rules.defined_only and field.enum_type is not None:
        known = frozenset(field.enum_type.values_by_number)
        yield RuleCheck(known.__contains__, "value must be one of the defined enum values", "defined_only")
    names = field.enum_type.values_by_number if field.enum_type is not None else {}
    yield from _compared(rules, lambda value: value, lambda v: names[v].name if v in names else str(v))


def _bytes(rules: Any, _field: FieldDescriptor) -> Iterator[RuleCheck]:
    yield from _compared(rules, lambda value: value, repr)
    yield from _lengths(rules, len, "bytes", ("len", "min_len", "max_len"))
    yield from _parts(rules, lambda value: value)
    if rules.HasField("pattern"):
        yield _pattern(rules.pattern)
    for name, sizes in (("ip", (4, 16)), ("ipv4", (4,)), ("ipv6", (16,))):
        if rules.WhichOneof("well_known") == name and getattr(rules, name):
            yield RuleCheck(_sized(sizes), "value must be a valid IP address", name)


def _sized(sizes: tuple[int, ...]) -> Fits:
    return lambda value: len(value) in sizes


def _string(rules: Any, _field: FieldDescriptor) -> Iterator[RuleCheck]:
    yield from _compared(rules, lambda value: value, lambda value: value)
    yield from _lengths(rules, len, "characters", ("len", "min_len", "max_len"))
    yield from _lengths(rules, _n_bytes, "bytes", ("len_bytes", "min_bytes", "max_bytes"))
    yield from _parts(rules, lambda value: value)
    if rules.HasField("pattern"):
        yield _pattern(rules.pattern)
    known = rules.WhichOneof("well_known")
    if known == "well_known_regex":
        if expression := _HEADERS.get((rules.well_known_regex, rules.strict)):
            yield RuleCheck(
                lambda value: expression.fullmatch(value) is not None,
                f'value does not match regex pattern "^{expression.pattern}$"',
                "header",
            )
    elif known and getattr(rules, known):
        yield RuleCheck(_WELL_KNOWN[known], f"value must be a valid {known.replace('_', ' ')}", known)


def _n_bytes(value: str) -> int:
    return len(value.encode())


def _lengths(
    rules: Any, measured: Callable[[Any], int], unit: str, names: Sequence[str]
) -> Iterator[RuleCheck]:
    """Exact, minimal and maximal length."""
    exact, least, most = ((getattr(rules, name) if rules.HasField(name) else None) for name in names)
    if exact is not None:
        yield RuleCheck(
            lambda value: measured(value) == exact, f"value length must be {exact} {unit}", names[0]
        )
    if least and most is not None:
        words = f"value length must be between {least} and {most} {unit}, inclusive"
        yield RuleCheck(lambda value: least <= measured(value) <= most, words, names[1])
    elif least == 1:
        yield RuleCheck(bool, f"value length must be at least 1 {unit}", names[1])
    elif least:
        words = f"value length must be at least {least} {unit}"
        yield RuleCheck(lambda value: measured(value) >= least, words, names[1])
    elif most is not None:
        words = f"value length must be at most {most} {unit}"
        yield RuleCheck(lambda value: measured(value) <= most, words, names[2])


def _parts(rules: Any, read: Callable[[Any], Any]) -> Iterator[RuleCheck]:
    if rules.HasField("prefix"):
        prefix = read(rules.prefix)
        yield RuleCheck(lambda v: v.startswith(prefix), f'value does not have prefix "{prefix}"', "prefix")
    if rules.HasField("suffix"):
        suffix = read(rules.suffix)
        yield RuleCheck(lambda v: v.endswith(suffix), f'value does not have suffix "{suffix}"', "suffix")
    if rules.HasField("contains"):
        part = read(rules.contains)
        yield RuleCheck(lambda v: part in v, f'value does not contain substring "{part}"', "contains")
    if "not_contains" in rules.DESCRIPTOR.fields_by_name and rules.HasField("not_contains"):
        never = read(rules.not_contains)
        yield RuleCheck(lambda v: never not in v, f'value contains substring "{never}"', "not_contains")


def _pattern(pattern: str) -> RuleCheck:
    """A regular expression. RE2 takes microseconds per match, so answers for repeated texts are cached."""
    expression = re2.compile(pattern)
    words = f'value does not match regex pattern "{pattern}"'
    matches = functools.lru_cache(_CACHED_MAX)(lambda value: expression.search(value) is not None)
    return RuleCheck(matches, words, "pattern")


def _counted(rules: Any, unit: str, least_name: str, most_name: str) -> Iterator[RuleCheck]:
    least, most = ((getattr(rules, n) if rules.HasField(n) else None) for n in (least_name, most_name))
    if least and least == most:
        words = f"value must contain exactly {least} {unit}(s)"
        yield RuleCheck(lambda value: len(value) == least, words, least_name, is_about_size=True)
    elif least and most is not None:
        words = f"value must contain between {least} and {most} {unit}s, inclusive"
        yield RuleCheck(lambda value: least <= len(value) <= most, words, least_name, is_about_size=True)
    elif least:
        words = f"value must contain at least {least} {unit}(s)"
        yield RuleCheck(lambda value: len(value) >= least, words, least_name, is_about_size=True)
    elif most is not None:
        words = f"value must contain no more than {most} {unit}(s)"
        yield RuleCheck(lambda value: len(value) <= most, words, most_name, is_about_size=True)


def _repeated(rules: Any, _field: FieldDescriptor) -> Iterator[RuleCheck]:
    yield from _counted(rules, "item", "min_items", "max_items")
    if rules.unique:
        yield RuleCheck(_unique, "repeated value must contain unique items", "unique")


def _unique(values: Sequence[Any]) -> bool:
    return len(set(values)) == len(values)


def _map(rules: Any, _field: FieldDescriptor) -> Iterator[RuleCheck]:
    """Sizes of a map; an entry always has a value here, so `no_sparse` always holds."""
    yield from _counted(rules, "pair", "min_pairs", "max_pairs")


def _any(rules: Any, _field: FieldDescriptor) -> Iterator[RuleCheck]:
    return _lists(rules, lambda value: value, str)


_KINDS: Final[dict[str, Callable[[Any, FieldDescriptor], Iterator[RuleCheck]]]] = {
    "string": _string,
    "bytes": _bytes,
    "enum": _enum,
    "duration": _duration,
    "timestamp": _duration,
    "any": _any,
    "repeated": _repeated,
    "map": _map,
}

# Patterns of header names and values: the strict ones, and the lax one that forbids line breaks only.
_LAX: Final = re.compile(r"[^\x00\n\r]*")
_HEADERS: Final = {
    (1, True): re.compile(r":?[0-9a-zA-Z!#$%&'*+-.^_|~`]+"),
    (2, True): re.compile(r"[^\x00-\b\n-\x1f\x7f]*"),
    (1, False): _LAX,
    (2, False): _LAX,
}
_LABEL: Final = re.compile(r"[0-9a-zA-Z]([0-9a-zA-Z-]{0,61}[0-9a-zA-Z])?")
_HOSTNAME_MAX: Final = 253


def _parses(read: Callable[[str], object]) -> Fits:
    """Whether a library parses it."""

    def fits(value: str) -> bool:
        try:
            read(value)
        except ValueError:
            return False
        return True

    return fits


def _hostname(value: str) -> bool:
    labels = value.removesuffix(".").split(".")
    return len(value) <= _HOSTNAME_MAX and all(_LABEL.fullmatch(label) for label in labels)


def _email(value: str) -> bool:
    name, _, host = value.rpartition("@")
    return 0 < len(name) <= 64 and _hostname(host)  # noqa: PLR2004 - RFC 5321


def _uri(value: str) -> bool:
    return _parses(urlsplit)(value) and bool(urlsplit(value).scheme)


_ip = _parses(ipaddress.ip_address)
_WELL_KNOWN: Final[dict[str, Fits]] = {
    "email": _email,
    "hostname": _hostname,
    "ip": _ip,
    "ipv4": _parses(ipaddress.IPv4Address),
    "ipv6": _parses(ipaddress.IPv6Address),
    "uri": _uri,
    "uri_ref": _parses(urlsplit),
    "address": lambda value: _ip(value) or _hostname(value),
    "uuid": _parses(UUID),
}
