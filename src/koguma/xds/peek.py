"""Peek: the id of the node in a message, and how large the node is, before anything else of it is read.

A message may be of any size and shape, and reading it costs everybody time. Its first fields are walked by
hand, over the lengths that protobuf writes before them, so that a refused proxy can be named.
"""

from typing import Final

DELTA: Final = (1, 1)  # DeltaDiscoveryRequest.node, Node.id
SOTW: Final = (2, 1)  # DiscoveryRequest.node, Node.id
HEALTH: Final = (1, 1, 1)  # HealthCheckRequestOrEndpointHealthResponse.health_check_request, node, id

_FIELDS_MAX: Final = 16  # that are looked at; proxies write in the order of numbers
_VARINT_BYTES_MAX: Final = 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}


def node_id(data: bytes, path: tuple[int, ...], length_max: int) -> str:
    """The text at a path of field numbers, cut to a length; empty where there is none."""
    at, end = _place(data, path)
    return data[at : min(end, at + length_max)].decode(errors="replace")


def node_size(data: bytes, path: tuple[int, ...]) -> int:
    """How many bytes the node has whose id is at a path; 0 where there is none."""
    at, end = _place(data, path[:-1])
    return end - at


def _place(data: bytes, path: tuple[int, ...]) -> tuple[int, int]:
    at, end = 0, len(data)
    for number in path:
        found = _field(data, at, end, number)
        if found is None:
            return 0, 0
        at, end = found
    return at, end


def _field(data: bytes, at: int, end: int, wanted: int) -> tuple[int, int] | None:
    """Where the bytes of a field are, among the first ones of a message."""
    for _ in range(_FIELDS_MAX):
        tag, at = _varint(data, at, end)
        if at < 0:
            return None
        kind, size = tag & 7, 0
        if kind == _VARINT:
            _, at = _varint(data, at, end)
        elif kind == _BYTES:
            size, at = _varint(data, at, end)
        else:
            size = _SIZES.get(kind, end)
        if at < 0 or at + size > end:
            return None
        if tag >> 3 == wanted and kind == _BYTES:
            return at, at + size
        at += size
    return None


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number, and where the next field begins; -1 where there is none."""
    number = 0
    for index in range(_VARINT_BYTES_MAX):
        if at + index >= end:
            break
        byte = data[at + index]
        number |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return number, at + index + 1
    return 0, -1
