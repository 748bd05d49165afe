"""Values: conversions of single values, by the rules of protobuf's JSON form.

Texts, numbers, base64, durations, timestamps, enums, and JSON inside of messages (Struct).
"""

import base64
import binascii
import difflib
import functools
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from koguma.envoy.conversion import Convert, conversion_error, map_of, must_be, repeated, shown, text
from koguma.envoy.schema import Schema

_NS: Final = 1_000_000_000
_SIMILARITY: Final = 0.8  # similarity from which a name is suggested
_DAY_S: Final = 86_400
_SECONDS_MAX: Final = 315_576_000_000  # ten thousand years
_FLOAT_MAX: Final = 3.4028234663852886e38
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]{0,19})")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DURATION: Final = re.compile(r"(-?)([0-9]{1,12})(?:\.([0-9]{1,9}))?s")
_TIMESTAMP: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_CAPITAL: Final = re.compile(r"[A-Z]")
_STRUCTS_CACHED: Final = 4096


def boolean(value: Any) -> bool:
    """A boolean."""
    if isinstance(value, bool):
        return value
    raise must_be("true or false", value)


def integer(low: int, high: int) -> Convert:
    """Integers in a range, also as text, which is the JSON form of 64-bit ones."""

    def parse(value: Any) -> int:
        number = value if type(value) is int else _whole(value)
        if low <= number <= high:
            return number
        raise conversion_error(f"must be a whole number between {low} and {high}, not {number}")

    return parse


def _whole(value: Any) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise must_be("a whole number", value)


def double(value: Any) -> float:
    """A double."""
    if type(value) is float or type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise conversion_error("must be a number below 1.8e308") from None
    if isinstance(value, str) and (value in ("NaN", "Infinity", "-Infinity") or _NUMBER.fullmatch(value)):
        return float(value)
    raise must_be("a number", value)


def single(value: Any) -> float:
    """A float of four bytes."""
    number = double(value)
    if math.isfinite(number) and abs(number) > _FLOAT_MAX:
        raise conversion_error("must be a number below 3.4e38")
    return number


def binary(value: Any) -> bytes:
    """Bytes, written in base64."""
    if not isinstance(value, str):
        raise must_be("base64 text", value)
    plain = value.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise conversion_error("must be base64 text") from None


def enum(described: EnumDescriptor) -> Convert:
    """A value of an enum, by name or by number."""
    numbers = {name: value.number for name, value in described.values_by_name.items()}
    whole = integer(-(2**31), 2**31 - 1)

    def parse(value: Any) -> int:
        if type(value) is str:
            if (number := numbers.get(value)) is not None:
                return number
            near = difflib.get_close_matches(value.upper(), numbers, 1, _SIMILARITY)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise conversion_error(f"{shown(value)} is not one of {', '.join(numbers)}{hint}", "enum")
        if type(value) is int:
            return int(whole(value))
        raise must_be(f"one of {', '.join(numbers)}", value)

    return parse


def null(value: Any) -> int:
    """NullValue, the enum for JSON's null."""
    if value in (None, "NULL_VALUE", 0):
        return 0
    raise must_be("null", value)


def duration_ns(value: Any) -> int:
    """A duration in nanoseconds."""
    if not isinstance(value, str):
        raise must_be('seconds such as "5s" or "0.25s"', value)
    match = _DURATION.fullmatch(value)
    if match is None or int(match[2]) > _SECONDS_MAX:
        raise conversion_error(f'must be seconds such as "5s" or "0.25s", not {shown(value)}')
    total = int(match[2]) * _NS + int((match[3] or "").ljust(9, "0"))
    return -total if match[1] else total


def duration(ns: int) -> dict[str, int]:
    """Nanoseconds as a Duration, whose two parts have the same sign."""
    seconds, nanos = divmod(abs(ns), _NS)
    if ns < 0:
        return {"seconds": -seconds, "nanos": -nanos}
    return {"seconds": seconds, "nanos": nanos} if nanos else {"seconds": seconds}


def timestamp_ns(value: Any) -> int:
    """A timestamp in nanoseconds since 1970."""
    match = _TIMESTAMP.fullmatch(value) if isinstance(value, str) else None
    moment = None
    if match is not None:
        try:
            moment = datetime.fromisoformat(match[1] + match[3])
        except ValueError:
            moment = None  # such as 31 February
    if match is None or moment is None:
        raise conversion_error('must be a point in time such as "2030-01-31T12:00:00Z"')
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * _DAY_S + since.seconds) * _NS + int((match[2] or "").ljust(9, "0"))


def timestamp(ns: int) -> dict[str, int]:
    """Nanoseconds as a Timestamp, whose nanos are never negative."""
    seconds, nanos = divmod(ns, _NS)
    return {"seconds": seconds, "nanos": nanos}


def field_mask(value: Any) -> dict[str, list[str]]:
    """A FieldMask: paths separated by commas."""
    paths = [path for path in text(value).split(",") if path]
    return {"paths": [_CAPITAL.sub(lambda match: f"_{match[0].lower()}", path) for path in paths]}


def json(value: Any) -> Any:
    """A JSON value inside of a message."""
    match value:
        case None | bool() | str():
            return value
        case int() | float():
            if math.isfinite(double(value)):
                return value
            raise conversion_error("must be a finite number")
        case Mapping():
            return _json_map(value)
        case list() | tuple():
            return _json_list(value)
        case _:
            raise must_be("JSON", value)


_json_map: Final = map_of(text, json)
_json_list: Final = repeated(json)


class JsonMessages:
    """The conversions to messages that hold JSON."""

    def __init__(self, schema: Schema) -> None:
        self._struct: Any = schema.message_class("google.protobuf.Struct")
        self._list: Any = schema.message_class("google.protobuf.ListValue")
        self._value: Any = schema.message_class("google.protobuf.Value")
        self._of_texts = functools.lru_cache(_STRUCTS_CACHED)(lambda pairs: self._new_struct(dict(pairs)))

    def struct(self, value: Any) -> Any:
        """A Struct of a map.

        Structs of texts are cached: thousands of endpoints have the same few tags. They must not be changed.
        """
        if type(value) is dict and set(map(type, value.values())) == {str}:
            return self._of_texts(tuple(value.items()))
        return self._new_struct(value)

    def _new_struct(self, value: Any) -> Any:
        struct = self._struct()
        struct.update(_json_map(value))
        return struct

    def list_value(self, value: Any) -> Any:
        """A ListValue of a list."""
        list_value = self._list()
        list_value.extend(_json_list(value))
        return list_value

    def value(self, value: Any) -> Any:
        """A Value of anything, also of null."""
        match json(value):
            case None:
                return self._value(null_value=0)
            case bool() as boolean_:
                return self._value(bool_value=boolean_)
            case str() as text_:
                return self._value(string_value=text_)
            case dict():
                return self._value(struct_value=self.struct(value))
            case list():
                return self._value(list_value=self.list_value(value))
            case number:
                return self._value(number_value=number)


# The conversions of fields that are neither messages nor enums.
SCALARS: Final[Mapping[int, Convert]] = {
    FieldDescriptor.TYPE_STRING: text,
    FieldDescriptor.TYPE_BOOL: boolean,
    FieldDescriptor.TYPE_BYTES: binary,
    FieldDescriptor.TYPE_DOUBLE: double,
    FieldDescriptor.TYPE_FLOAT: single,
    **dict.fromkeys(
        (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SFIXED32),
        integer(-(2**31), 2**31 - 1),
    ),
    **dict.fromkeys(
        (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_SFIXED64),
        integer(-(2**63), 2**63 - 1),
    ),
    **dict.fromkeys((FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32), integer(0, 2**32 - 1)),
    **dict.fromkeys((FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64), integer(0, 2**64 - 1)),
}
