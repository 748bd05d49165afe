"""Formats of strings and the ranges of numbers, as Kubernetes checks them. Unknown formats are no rule."""

import base64
import binascii
import ipaddress
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import date
from typing import Final
from urllib.parse import urlsplit

from koguma.kube import times
from koguma.model import duration

_HOST: Final = re.compile(
    r"([a-zA-Z0-9\u00a1-\uffff]([a-zA-Z0-9\u00a1-\uffff-]{0,62}[a-zA-Z0-9\u00a1-\uffff])?)"
    r"(\.[a-zA-Z0-9\u00a1-\uffff]([a-zA-Z0-9\u00a1-\uffff-]{0,62}[a-zA-Z0-9\u00a1-\uffff])?)*\.?"
)
_EMAIL: Final = re.compile(r"[^@\s<>]+@[^@\s<>]+")
_MAC: Final = re.compile(
    r"([0-9a-fA-F]{2}([:-])[0-9a-fA-F]{2}(\2[0-9a-fA-F]{2}){4,6})|([0-9a-fA-F]{4}\.){2}[0-9a-fA-F]{4}"
)
_HEX_COLOR: Final = re.compile(r"#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})")
_RGB_COLOR: Final = re.compile(r"rgb\(\s*(\d{1,3})\s*,\s*(\d{1,3})\s*,\s*(\d{1,3})\s*\)")
_BSON: Final = re.compile(r"[0-9a-fA-F]{24}")
_CARD: Final = re.compile(r"\d{13,19}")
_SSN: Final = re.compile(r"\d{3}[- ]?\d{2}[- ]?\d{4}")
_BYTE_MAX: Final = 255
_ISBN10: Final = 10
_ISBN13: Final = 13
_RANGES: Final = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def _parses(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def holds(text: str) -> bool:
        try:
            parse(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return holds


def _is_uri(text: str) -> bool:
    try:
        return bool(text) and (bool(urlsplit(text).scheme) or text.startswith("/")) and " " not in text
    except ValueError:
        return False


def _is_uuid(*versions: int) -> Callable[[str], bool]:
    def holds(text: str) -> bool:
        try:
            found = uuid.UUID(text)
        except ValueError:
            return False
        return len(text) in (32, 36) and (not versions or found.version in versions)

    return holds


def _is_isbn(*lengths: int) -> Callable[[str], bool]:
    def holds(text: str) -> bool:
        digits = re.sub(r"[\s-]", "", text)
        if len(digits) not in lengths or not re.fullmatch(r"\d+[\dX]", digits):
            return False
        if len(digits) == _ISBN10:
            return sum((10 - i) * (10 if d == "X" else int(d)) for i, d in enumerate(digits)) % 11 == 0
        return "X" not in digits and sum(int(d) * (3 if i % 2 else 1) for i, d in enumerate(digits)) % 10 == 0

    return holds


def _is_card(text: str) -> bool:
    digits = re.sub(r"[^0-9]", "", text)
    if not _CARD.fullmatch(digits):
        return False
    doubled = [int(d) * (2 if i % 2 else 1) for i, d in enumerate(reversed(digits))]
    return sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0  # noqa: PLR2004 - the Luhn sum


def _is_rgb(text: str) -> bool:
    found = _RGB_COLOR.fullmatch(text)
    return found is not None and all(int(part) <= _BYTE_MAX for part in found.groups())


def _is_network(text: str) -> bool:
    return "/" in text and _parses(lambda written: ipaddress.ip_network(written, strict=False))(text)


_STRINGS: Final[Mapping[str, Callable[[str], bool]]] = {
    "bsonobjectid": lambda text: _BSON.fullmatch(text) is not None,
    "byte": _parses(lambda text: base64.b64decode(text, validate=True)),
    "cidr": _is_network,
    "creditcard": _is_card,
    "date": _parses(date.fromisoformat),
    "date-time": lambda text: times.read(text.upper()) is not None,
    "datetime": lambda text: times.read(text.upper()) is not None,
    "duration": duration.is_duration,
    "email": lambda text: _EMAIL.fullmatch(text) is not None,
    "hexcolor": lambda text: _HEX_COLOR.fullmatch(text) is not None,
    "hostname": lambda text: len(text) <= _BYTE_MAX and _HOST.fullmatch(text) is not None,
    "ipv4": _parses(ipaddress.IPv4Address),
    "ipv6": _parses(ipaddress.IPv6Address),
    "isbn": _is_isbn(_ISBN10, _ISBN13),
    "isbn10": _is_isbn(_ISBN10),
    "isbn13": _is_isbn(_ISBN13),
    "mac": lambda text: _MAC.fullmatch(text) is not None,
    "password": lambda _text: True,
    "rgbcolor": _is_rgb,
    "ssn": lambda text: _SSN.fullmatch(text) is not None,
    "uri": _is_uri,
    "uuid": _is_uuid(),
    "uuid3": _is_uuid(3),
    "uuid4": _is_uuid(4),
    "uuid5": _is_uuid(5),
}
KNOWN: Final = frozenset({*_STRINGS, *_RANGES, "float", "double", "k8s-short-name", "k8s-long-name"})


def fits(text: str, name: str) -> bool:
    """Whether a text has a format; with an unknown one, it has."""
    check = _STRINGS.get(name)
    return check is None or check(text)


def in_range(number: float, name: str) -> bool:
    """Whether a number fits into its format."""
    low, high = _RANGES.get(name, (-float("inf"), float("inf")))
    return low <= number <= high
