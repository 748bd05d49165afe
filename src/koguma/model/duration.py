"""Durations as Go writes them: `15s`, `1h30m`, `250ms`, `-1.5h`, `0`."""

import re
from fractions import Fraction
from functools import lru_cache

_UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_TERM = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_WHOLE = re.compile(r"[-+]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+")
PATTERN = rf"^([-+]?0|{_WHOLE.pattern})$"
_NS_MAX = 2**63 - 1

MESSAGE = 'must be a duration such as "5s", "1m30s" or "250ms"'


@lru_cache(maxsize=10_000)  # few different ones are written, and each is asked for several times
def nanoseconds(text: str) -> int:
    """The duration in nanoseconds; ValueError where `text` is none."""
    if text in ("0", "+0", "-0"):
        return 0
    if len(text) > 64 or not _WHOLE.fullmatch(text):  # noqa: PLR2004 - no sane duration is longer
        raise ValueError(MESSAGE)
    total = sum((Fraction(number) * _UNIT_NS[unit] for number, unit in _TERM.findall(text)), Fraction())
    value = int(total)
    if value > _NS_MAX:
        raise ValueError(MESSAGE)
    return -value if text.startswith("-") else value


def seconds(text: str) -> float:
    """The duration in seconds."""
    return nanoseconds(text) / 1e9


def is_duration(text: str) -> bool:
    """Whether `text` is a duration."""
    try:
        nanoseconds(text)
    except ValueError:
        return False
    return True


def text(value_ns: int) -> str:
    """The shortest Go-style text of a duration given in nanoseconds, as `1h0m0s`, `1.5s`, `250ms`."""
    if value_ns == 0:
        return "0s"
    sign, rest = ("-", -value_ns) if value_ns < 0 else ("", value_ns)
    for unit in ("ms", "us", "ns"):
        if rest < _UNIT_NS["s"] and rest >= _UNIT_NS[unit]:
            return f"{sign}{_decimal(Fraction(rest, _UNIT_NS[unit]))}{unit}"
    hours, rest = divmod(rest, _UNIT_NS["h"])
    minutes, rest = divmod(rest, _UNIT_NS["m"])
    tail = f"{_decimal(Fraction(rest, _UNIT_NS['s']))}s"
    head = (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "")
    return sign + head + tail


def _decimal(value: Fraction) -> str:
    whole, part = divmod(value, 1)
    digits = f"{int(part * 10**9):09d}".rstrip("0")
    return f"{whole}.{digits}" if digits else f"{whole}"
