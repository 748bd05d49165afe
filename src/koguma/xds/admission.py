"""Admission of new streams: authenticate the token, read the first request, and only then parse it.

A request of somebody without a valid token is never parsed; only its node id is scanned, so that the gate can
name the proxy that it rejects.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

import grpc
import msgspec
from google.protobuf.message import DecodeError

from koguma.model.errors import BadRequest, KogumaError, Unavailable
from koguma.xds import unparsed_node
from koguma.xds.connect_request import NODE_ID_LENGTH_MAX, bearer_token, connect_request
from koguma.xds.contract import ConnectRequest, HdsGate, XdsGate
from koguma.xds.messages import NODE_BYTES_MAX, NODE_TOO_LARGE, XdsNode

STOPPING: Final = "the control plane is stopping"
_PARSE_INLINE_BYTES: Final = 16 * 1024

ServicerContext = grpc.aio.ServicerContext[bytes, bytes]
_Request = TypeVar("_Request")


class NewStream(msgspec.Struct, frozen=True):
    """A stream that has sent its first request."""

    token: str
    peer: str
    data: Any  # of the first request, or grpc.aio.EOF
    auth_error: KogumaError | None  # why the token is not valid

    async def parsed(self, parse: Callable[[bytes], _Request], id_path: tuple[int, ...]) -> _Request:
        """The first request. A large one is parsed in a thread, so that other streams do not wait."""
        data = self.data
        if data is grpc.aio.EOF:
            raise BadRequest("the stream ended without a request")
        if unparsed_node.node_size(data, id_path) > NODE_BYTES_MAX:
            raise BadRequest(NODE_TOO_LARGE)
        try:
            return parse(data) if len(data) <= _PARSE_INLINE_BYTES else await asyncio.to_thread(parse, data)
        except DecodeError as error:
            raise BadRequest(f"the request cannot be read: {error}") from error

    def connect_request(self, node: XdsNode | None, *, is_delta: bool = True) -> ConnectRequest:
        """The connect request with the node of the parsed first request."""
        return msgspec.structs.replace(connect_request(node, self.token, self.peer), is_delta=is_delta)

    def unparsed_connect_request(self, id_path: tuple[int, ...]) -> ConnectRequest:
        """The connect request of a stream that is not authenticated; its error where it has no node id."""
        assert self.auth_error is not None
        is_eof = self.data is grpc.aio.EOF
        node_id = "" if is_eof else unparsed_node.node_id(self.data, id_path, NODE_ID_LENGTH_MAX + 1)
        if not node_id:
            raise self.auth_error
        return connect_request(XdsNode(node_id, "", {}), self.token, self.peer, is_parsed=False)


class StreamAdmission:
    """Receives the first requests of new streams, until it is stopped."""

    def __init__(self, first_request_seconds: float) -> None:
        self._first_request_seconds = first_request_seconds
        self._waiting: set[asyncio.Timeout] = set()  # streams that have sent nothing yet
        self._one_at_a_time = asyncio.Lock()
        self.is_stopping = False

    @property
    def n_waiting(self) -> int:
        """The number of streams that have sent nothing yet."""
        return len(self._waiting)

    def stop(self) -> None:
        """Reject all new streams, and those that have sent nothing yet."""
        self.is_stopping = True
        for timeout in list(self._waiting):
            with contextlib.suppress(RuntimeError):  # it has just expired by itself
                timeout.reschedule(asyncio.get_running_loop().time())

    async def receive(self, gate: XdsGate | HdsGate, context: ServicerContext) -> NewStream:
        """Wait for the first request of a stream."""
        token = bearer_token(context.invocation_metadata() or ())
        auth_error, data = _auth_error(gate, token), await self._first_message(context)
        async with self._one_at_a_time:
            await asyncio.sleep(0)  # other tasks run between any two new streams
        return NewStream(token, context.peer(), data, auth_error)

    async def _first_message(self, context: ServicerContext) -> Any:
        timeout = asyncio.timeout(0 if self.is_stopping else self._first_request_seconds)
        self._waiting.add(timeout)
        try:
            async with timeout:
                data = await context.read()
        except TimeoutError:
            data = None
        finally:
            self._waiting.discard(timeout)
        if self.is_stopping:
            raise Unavailable(STOPPING)
        if data is None:
            raise BadRequest(f"no request within {self._first_request_seconds:g} seconds")
        return data


def _auth_error(gate: XdsGate | HdsGate, token: str) -> KogumaError | None:
    """Why a token is not valid; None where it is."""
    try:
        gate.authenticate(token)
    except KogumaError as error:
        return error
    return None
