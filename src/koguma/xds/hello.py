"""ConnectRequest: who a stream says it is, and how it is told why it may not come in.

The sentences are Kuma's where it has one, because they end up in the log of its users' proxies.
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
from koguma.xds.messages import Node

_AUTHORIZATION: Final = "authorization"
_BEARER: Final = "bearer "
ID_LENGTH_MAX: Final = 317  # of a mesh's name, a dot and a proxy's name
_AUTHENTICATION_FAILED: Final = "authentication failed: "

_CODES: Final = (
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (Forbidden, grpc.StatusCode.PERMISSION_DENIED),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (Invalid, grpc.StatusCode.INVALID_ARGUMENT),
    (BadRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
)


class End(msgspec.Struct, frozen=True):
    """How a stream ends."""

    code: grpc.StatusCode
    text: str = ""


class CredentialUnreadable(Unauthenticated):
    """The metadata of the call cannot be the one of a proxy; the sentence stands as it is."""


def token_in(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The token of a call: raw, or with `Bearer` before it; empty where there is none."""
    values = [value for key, value in metadata if key == _AUTHORIZATION]
    if len(values) > 1:
        raise CredentialUnreadable(
            "could not extract credential from DiscoveryRequest: "
            f'request must have exactly 1 "{_AUTHORIZATION}" header, got {len(values)}'
        )
    text = "".join(value if isinstance(value, str) else value.decode(errors="replace") for value in values)
    return text[len(_BEARER) :] if text.lower().startswith(_BEARER) else text


def hello_of(node: Node | None, token: str, peer: str) -> ConnectRequest:
    """Who the first request of a stream says it is: `<mesh>.<name>`, where the name may have dots."""
    if node is None or not node.id:
        raise BadRequest("request must have a valid Proxy ID: Envoy ID must not be nil")
    if len(node.id) > ID_LENGTH_MAX:
        raise BadRequest(f"request must have a valid Proxy ID: it is longer than {ID_LENGTH_MAX} characters")
    mesh, dot, name = node.id.partition(".")
    if not mesh:
        raise BadRequest("request must have a valid Proxy ID: mesh must not be empty")
    if not dot:
        raise BadRequest("request must have a valid Proxy ID: the name should be provided after the dot")
    if not name:
        raise BadRequest("request must have a valid Proxy ID: name must not be empty")
    return ConnectRequest(mesh, name, token, node.metadata, node.version, peer)


def id_changed(before: str, after: str) -> str:
    """What a stream is told that says it is somebody else now."""
    return (
        f"stream was authenticated for ID {before}. Received request is for node with ID"
        f" {cut(after, ID_LENGTH_MAX)}. "
        "Node ID cannot be changed after stream is initialized"
    )


def end_of(error: KogumaError) -> End:
    """How a stream ends that may not come in."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.UNKNOWN)
    text = str(error)
    is_bare = code is grpc.StatusCode.UNAUTHENTICATED and not isinstance(error, CredentialUnreadable)
    if is_bare and not text.startswith(_AUTHENTICATION_FAILED):
        text = _AUTHENTICATION_FAILED + text
    return End(code, text)
