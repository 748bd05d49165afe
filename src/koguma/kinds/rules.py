"""Rules: checks that several kinds share, with the sentences that Kuma's users know."""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, TypeVar

from msgspec import Meta

from koguma.model import duration, schema
from koguma.model.schema import UNKNOWN, Json, Spec, doc, read
from koguma.model.violation import Violation, child

PORT_MAX: Final = 65535
LOOPBACK: Final = "127.0.0.1"

PORT_MESSAGE: Final = "port must be in the range [1, 65535]"
SPEC_PORT_MESSAGE: Final = "port must be a valid (1-65535)"  # the kinds with `spec` word it differently
POSITIVE_MESSAGE: Final = "must have a positive value"
NOT_EMPTY_MESSAGE: Final = "must not be empty"
CANNOT_BE_EMPTY_MESSAGE: Final = "cannot be empty"
DEFINED_MESSAGE: Final = "must be defined"
NOT_NEGATIVE_MESSAGE: Final = "must not be negative when defined"

# A number that the schema leaves wide, since the kind's own check has a sentence for its real limits.
UInt32 = Annotated[int, Meta(ge=0, le=4294967295)]
# Zero stands for a port that is not used.
PortOrNone = Annotated[int, Meta(ge=0, le=PORT_MAX)]
# Protocol buffers print 64-bit counters as text; both spellings are read.
Counter = int | str


class LabelSelector(Spec):
    """Selects resources by their labels; without labels, all of them."""

    match_labels: Annotated[Mapping[str, str] | None, doc("Labels that must all be present.")] = None


def enum_values(*values: str) -> Meta:
    """The legal values of a text, for the reference; the kind's own check has the sentence."""
    return Meta(extra_json_schema={"enum": list(values)})


def is_ip(text: str) -> bool:
    """Whether `text` is an IPv4 or IPv6 address, without a zone."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


_DNS_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*\.?")
_DNS_NAME_LENGTH_MAX = 255


def is_dns_name(text: str) -> bool:
    """Whether `text` is a host name; unlike the names of resources, capitals and `_` are legal."""
    fits = len(text) <= _DNS_NAME_LENGTH_MAX and _DNS_NAME.fullmatch(text) is not None
    return fits and not is_ip(text)


_URL_PATH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:/)?/(%[0-9A-Fa-f]{2}|[^%\s\x00-\x1f\x7f])*")


def is_url_path(text: str) -> bool:
    """Whether `text` can be the target of an HTTP request."""
    return _URL_PATH.fullmatch(text) is not None


def addresses_overlap(one: str, other: str) -> bool:
    """Whether two listeners on these addresses would meet: equal, or one of them on all addresses."""
    if not (is_ip(one) and is_ip(other)):
        return False
    first, second = ipaddress.ip_address(one), ipaddress.ip_address(other)
    return first == second or first.is_unspecified or second.is_unspecified


def port(value: int | None, path: str, message: str = PORT_MESSAGE) -> Iterator[Violation]:
    """A port that must be there and in range."""
    if not value or value > PORT_MAX:
        yield Violation(path, message, "range")


def address(value: str | None, path: str) -> Iterator[Violation]:
    """An address on which others reach a proxy; the violation stands at `path`.address."""
    at = child(path, "address")
    if not value:
        yield Violation(at, "address can't be empty", "required")
        return
    if value in ("0.0.0.0", "::"):  # noqa: S104 - the addresses that are refused
        yield Violation(at, "must not be 0.0.0.0 or ::", "address")
    if not is_ip(value) and not is_dns_name(value):
        yield Violation(at, "address has to be valid IP address or domain name", "address")


def ip(
    value: str | None, path: str, message: str = "address has to be valid IP address"
) -> Iterator[Violation]:
    """An optional IP address."""
    if value and not is_ip(value):
        yield Violation(path, message, "address")


def positive_duration(value: str | None, path: str) -> Iterator[Violation]:
    """An optional duration of more than nothing."""
    if value is not None and duration.nanoseconds(value) <= 0:
        yield Violation(path, POSITIVE_MESSAGE, "range")


def not_negative(value: str | None, path: str) -> Iterator[Violation]:
    """An optional duration that may be zero."""
    if value is not None and duration.nanoseconds(value) < 0:
        yield Violation(path, NOT_NEGATIVE_MESSAGE, "range")


def one_of(name: str, *values: str) -> str:
    """Kuma's sentence for a field outside its closed set of values, in the form with quotes."""
    quoted = ", ".join(f'"{value}"' for value in values)
    return f'"{name}" must be one of [{quoted}]'


S = TypeVar("S", bound=Spec)


def read_conf(
    type_: type[S], conf: Mapping[str, Json] | None, path: str, sentence: str, *, at: str = ""
) -> tuple[S | None, list[Violation]]:
    """A free-form section as the type that belongs to it, and what does not fit.

    The value is None where it cannot be read; the violations then stand at `at` (by default `path`) and
    begin with `sentence`. An unknown field stands at its own place under `path` and spoils nothing.
    """
    all_violations = list(schema.checker(type_)(conf or {}))
    broken = [v for v in all_violations if v.rule != UNKNOWN]
    violations = [Violation(at or path, f"{sentence}: {v.field} {v.message}", "conf") for v in broken]
    violations += [
        Violation(child(path, v.field), v.message, UNKNOWN) for v in all_violations if v.rule == UNKNOWN
    ]
    return (None if broken else read(type_, conf or {})), violations
