"""Protobuf's wire format: varints, tags and fields, for messages that are read or written without a class.

Whole messages are the business of `google.protobuf` and its descriptors. By hand we do what it cannot: put a
response together from resources that are encoded already, look at one field before the rest is parsed, name
what is broken in a body, and read or write messages whose types no package ships.
The names are those of protobuf.dev/programming-guides/encoding.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from mmap import mmap
from typing import Final, NamedTuple

FIELD_NUMBER_MAX: Final = (1 << 29) - 1
GROUP_DEPTH_MAX: Final = 32
VARINT_BYTES_MAX: Final = 10

_CONTINUES: Final = 0x80  # the bit of a varint's byte that says that another byte follows
_UINT64_MAX: Final = (1 << 64) - 1
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(_CONTINUES))  # tags and lengths mostly are short


class WireType(IntEnum):
    """The form of a value, in the three lowest bits of the tag before it."""

    VARINT = 0
    I64 = 1
    LEN = 2
    SGROUP = 3
    EGROUP = 4
    I32 = 5


class WireError(ValueError):
    """Bytes that are no protobuf message."""


class WireField(NamedTuple):
    """One field as it stands in a message; a group is reported as its start, its content and its end."""

    number: int
    wire_type: int
    start: int  # of the value
    end: int
    varint: int = 0  # the value of a VARINT
    is_in_group: bool = False


def varint(value: int) -> bytes:
    """A number, seven bits in each byte; a negative one is written as 64 bits of two's complement."""
    if 0 <= value < _CONTINUES:
        return _ONE_BYTE[value]
    value &= _UINT64_MAX
    encoded = bytearray()
    while value >= _CONTINUES:
        encoded.append(value & 0x7F | _CONTINUES)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def tag(number: int, wire_type: int) -> bytes:
    """What stands before a value: the field's number and the form of the value."""
    return varint(number << 3 | wire_type)


def len_head(number: int, size: int) -> bytes:
    """The tag and the length of a field of so many bytes, which have to follow."""
    return varint(number << 3 | 2) + varint(size)


def bytes_field(number: int, data: bytes) -> bytes:
    """A field of bytes, or of a message that is encoded."""
    return len_head(number, len(data)) + data


def string_field(number: int, text: str) -> bytes:
    """A field of text."""
    data = text.encode()
    return len_head(number, len(data)) + data


def varint_field(number: int, value: int) -> bytes:
    """A field of a number or a boolean."""
    return tag(number, WireType.VARINT) + varint(int(value))


def double_field(number: int, value: float) -> bytes:
    """A field of a floating-point number."""
    return tag(number, WireType.I64) + struct.pack("<d", value)


def read_varint(data: bytes | mmap, start: int, end: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    for at in range(start, min(end, start + VARINT_BYTES_MAX)):
        byte = data[at]
        if byte < _CONTINUES:
            return (value | byte << shift) & _UINT64_MAX, at + 1
        value |= (byte & ~_CONTINUES) << shift
        shift += 7
    raise WireError("a number does not end")


def fields(data: bytes, start: int = 0, end: int | None = None) -> Iterator[WireField]:
    """The fields of a message that stands between two positions, in the order in which they are written."""
    at, end = start, len(data) if end is None else end
    open_groups: list[int] = []
    while at < end or open_groups:
        key, start = read_varint(data, at, end)
        number, wire_type = key >> 3, key & 7
        if not 1 <= number <= FIELD_NUMBER_MAX:
            raise WireError(f"there is no field number {number}")
        is_in_group, value, at = bool(open_groups), 0, start
        if wire_type == WireType.LEN:
            size, start = read_varint(data, start, end)
            at = _after(start, size, end)
        elif wire_type == WireType.VARINT:
            value, at = read_varint(data, start, end)
        elif wire_type == WireType.I64:
            at = _after(start, 8, end)
        elif wire_type == WireType.I32:
            at = _after(start, 4, end)
        elif wire_type == WireType.SGROUP and len(open_groups) < GROUP_DEPTH_MAX:
            open_groups.append(number)
        elif wire_type == WireType.EGROUP and open_groups and open_groups[-1] == number:
            open_groups.pop()
        else:
            raise WireError(f"field {number} has an impossible form")
        yield WireField(number, wire_type, start, at, value, is_in_group)


def _after(start: int, size: int, end: int) -> int:
    """Where a value of that size ends."""
    if size > end - start:
        raise WireError(f"{size} bytes should follow, and there are {end - start}")
    return start + size
