"""Connect requests: which proxy a stream claims to be, and the gRPC status of one that is not admitted.

The sentences are Kuma's where it has one, because users see them in the logs of their proxies.
"""

from collections.abc import Iterable
from typing import Final

import grpc
import msgspec

from koguma.model.errors import (
    BadRequest,
    Forbidden,
    Invalid,
    KogumaError,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from koguma.model.violation import cut
from koguma.xds.contract import ConnectRequest
from koguma.xds.messages import XdsNode

_AUTHORIZATION: Final = "authorization"
_BEARER: Final = "bearer "
NODE_ID_LENGTH_MAX: Final = 317  # of a mesh's name, a dot and a proxy's name
_ZONE_PROXIES: Final = ("ingress", "egress")  # proxy types without a mesh
_AUTHENTICATION_FAILED: Final = "authentication failed: "

_CODES: Final = (
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (Forbidden, grpc.StatusCode.PERMISSION_DENIED),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (Invalid, grpc.StatusCode.INVALID_ARGUMENT),
    (BadRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
)


class GrpcStatus(msgspec.Struct, frozen=True):
    """The status with which a stream ends."""

    code: grpc.StatusCode
    details: str = ""


class MalformedCredential(Unauthenticated):
    """The call's metadata has no usable token. Its message is sent as it is, without a prefix."""


def bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The token in a call's metadata, with or without `Bearer` before it; empty where there is none."""
    values = [value for key, value in metadata if key == _AUTHORIZATION]
    if len(values) > 1:
        raise MalformedCredential(
            "could not extract credential from DiscoveryRequest: "
            f'request must have exactly 1 "{_AUTHORIZATION}" header, got {len(values)}'
        )
    text = "".join(value if isinstance(value, str) else value.decode(errors="replace") for value in values)
    return text[len(_BEARER) :] if text.lower().startswith(_BEARER) else text


def connect_request(node: XdsNode | None, token: str, peer: str, *, is_parsed: bool = True) -> ConnectRequest:
    """The connect request of a node. Its id is `<mesh>.<name>`, and the name may have dots.

    The id of a zone proxy has no mesh. Where the node is not parsed, its type is not known.
    """
    if node is None or not node.id:
        raise BadRequest("request must have a valid Proxy ID: Envoy ID must not be nil")
    if len(node.id) > NODE_ID_LENGTH_MAX:
        raise BadRequest(
            f"request must have a valid Proxy ID: it is longer than {NODE_ID_LENGTH_MAX} characters"
        )
    mesh, dot, name = node.id.partition(".")
    request = ConnectRequest(mesh, name, token, node.metadata, node.version, peer)
    if not mesh and is_parsed and request.proxy_type not in _ZONE_PROXIES:
        raise BadRequest("request must have a valid Proxy ID: mesh must not be empty")
    if not dot:
        raise BadRequest("request must have a valid Proxy ID: the name should be provided after the dot")
    if not name:
        raise BadRequest("request must have a valid Proxy ID: name must not be empty")
    return request


def node_id_changed(before: str, after: str) -> str:
    """The error for a stream whose later request has another node id."""
    return (
        f"stream was authenticated for ID {before}. Received request is for node with ID"
        f" {cut(after, NODE_ID_LENGTH_MAX)}. "
        "Node ID cannot be changed after stream is initialized"
    )


def status_of(error: KogumaError) -> GrpcStatus:
    """The gRPC status of an error."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.UNKNOWN)
    details = str(error)
    needs_prefix = code is grpc.StatusCode.UNAUTHENTICATED and not isinstance(error, MalformedCredential)
    if needs_prefix and not details.startswith(_AUTHENTICATION_FAILED):
        details = _AUTHENTICATION_FAILED + details
    return GrpcStatus(code, details)
