"""Times as Kubernetes writes them (metav1.Time and metav1.MicroTime), and ages as kubectl prints them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from koguma.model.schema import Json

UNKNOWN: Final = "<unknown>"
INVALID: Final = "<invalid>"
MESSAGE: Final = "must be a time such as 2026-11-15T09:22:00Z"
MICRO_MESSAGE: Final = "must be a time such as 2026-11-15T09:22:00.000000Z"

_RFC3339: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})", flags=re.ASCII
)
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_YEAR: Final = 365 * _DAY

# Up to how many seconds a span is shown in which unit, with which smaller one beside it.
_STEPS: Final = (
    (2 * _MINUTE, "s", 1, "", 0),
    (10 * _MINUTE, "m", _MINUTE, "s", 1),
    (3 * _HOUR, "m", _MINUTE, "", 0),
    (8 * _HOUR, "h", _HOUR, "m", _MINUTE),
    (2 * _DAY, "h", _HOUR, "", 0),
    (8 * _DAY, "d", _DAY, "h", _HOUR),
    (2 * _YEAR, "d", _DAY, "", 0),
    (8 * _YEAR, "y", _YEAR, "d", _DAY),
)


def read(text: Json) -> datetime | None:
    """The moment that an RFC 3339 text names, or None where it names none."""
    if not isinstance(text, str) or not _RFC3339.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def to_seconds(text: Json) -> Json:
    """A metav1.Time: whole seconds in UTC; what is no time stays as it is, for validation to report."""
    moment = read(text)
    return text if moment is None else f"{moment:%Y-%m-%dT%H:%M:%SZ}".rjust(20, "0")


def to_microseconds(text: Json) -> Json:
    """A metav1.MicroTime: six digits after the second, as leases and events have it."""
    moment = read(text)
    return text if moment is None else f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}".rjust(27, "0")


def age(text: Json, now: datetime) -> str:
    """How long ago a time was, as kubectl says it: 28s, 3m4s, 5d3h."""
    moment = read(text)
    return UNKNOWN if moment is None else span(now - moment)


def span(length: timedelta) -> str:
    """A span of time as kubectl prints it: its largest unit, with the next smaller one where it matters."""
    seconds = int(length.total_seconds())
    if seconds < -1:  # clocks differ by a second; by more, one of them is wrong
        return INVALID
    seconds = max(0, seconds)
    for below, letter, size, lower, lower_size in _STEPS:
        if seconds < below:
            rest = seconds % size // lower_size if lower_size else 0
            return f"{seconds // size}{letter}" + (f"{rest}{lower}" if rest else "")
    return f"{seconds // _YEAR}y"
