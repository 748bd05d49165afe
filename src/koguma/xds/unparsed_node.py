"""The id and the size of the node in a request that is not parsed yet.

A request may be of any size and shape, and parsing it delays all other streams. So only its first fields are
scanned; then a proxy that is not admitted can be named without parsing its request.
"""

from itertools import islice
from typing import Final

from koguma.model import protobuf_wire
from koguma.model.protobuf_wire import WireError, WireType

# Field numbers from the request to the id of its node.
DELTA_ID_PATH: Final = (1, 1)  # DeltaDiscoveryRequest.node, Node.id
SOTW_ID_PATH: Final = (2, 1)  # DiscoveryRequest.node, Node.id
HDS_ID_PATH: Final = (1, 1, 1)  # HealthCheckRequestOrEndpointHealthResponse.health_check_request, node, id

_FIELDS_MAX: Final = 16  # scanned per message; Envoy writes fields in the order of their numbers


def node_id(data: bytes, id_path: tuple[int, ...], length_max: int) -> str:
    """The id of the node, cut to a length; empty where there is none."""
    start, end = _span(data, id_path)
    return data[start : min(end, start + length_max)].decode(errors="replace")


def node_size(data: bytes, id_path: tuple[int, ...]) -> int:
    """The size of the node in bytes; 0 where there is none."""
    start, end = _span(data, id_path[:-1])
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
