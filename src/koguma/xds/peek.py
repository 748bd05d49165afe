"""Peek: the id of the node in a request, and how large the node is, before anything else of it is parsed.

A request may be of any size and shape, and parsing it costs everybody time. Only the first fields are read,
so that a proxy whose request is refused unparsed can still be named.
"""

from itertools import islice
from typing import Final

from koguma.model import protobuf_wire
from koguma.model.protobuf_wire import WireError, WireType

DELTA: Final = (1, 1)  # DeltaDiscoveryRequest.node, Node.id
SOTW: Final = (2, 1)  # DiscoveryRequest.node, Node.id
HEALTH: Final = (1, 1, 1)  # HealthCheckRequestOrEndpointHealthResponse.health_check_request, node, id

_FIELDS_MAX: Final = 16  # that are looked at; proxies write in the order of numbers


def node_id(data: bytes, path: tuple[int, ...], length_max: int) -> str:
    """The text at a path of field numbers, cut to a length; empty where there is none."""
    start, end = _span(data, path)
    return data[start : min(end, start + length_max)].decode(errors="replace")


def node_size(data: bytes, path: tuple[int, ...]) -> int:
    """How many bytes the node has whose id is at a path; 0 where there is none."""
    start, end = _span(data, path[:-1])
    return end - start


def _span(data: bytes, path: tuple[int, ...]) -> tuple[int, int]:
    """Where the value at a path of field numbers begins and ends; twice 0 where there is none."""
    start, end = 0, len(data)
    for number in path:
        try:
            start, end = _field_span(data, start, end, number)
        except WireError:
            return 0, 0
    return start, end


def _field_span(data: bytes, start: int, end: int, number: int) -> tuple[int, int]:
    for field in islice(protobuf_wire.fields(data, start, end), _FIELDS_MAX):
        if field.number == number and field.wire_type == WireType.LEN and not field.is_in_group:
            return field.start, field.end
    raise WireError(f"field {number} is not among the first")
