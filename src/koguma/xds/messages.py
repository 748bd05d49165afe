"""Messages: what proxies send, read into plain values; and what they are sent, put together from ready bytes.

A response is never built with protobuf. Its parts are written down by hand as protobuf would (the tags are
those of `envoy/service/discovery/v3/discovery.proto`), so that the bytes of a resource are only copied,
however large the response is and however many proxies get it.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from sys import intern
from typing import Any, Final, Generic, TypeVar

import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from koguma.envoy import names
from koguma.envoy.schema import Schema
from koguma.envoy.snapshot import TYPE_URLS, XdsResource
from koguma.model.errors import BadRequest
from koguma.model.protobuf_wire import WireType, len_head, string_field, tag
from koguma.model.schema import Json
from koguma.model.violation import cut
from koguma.runtime.logs import masked_text
from koguma.xds.outline import outline_class
from koguma.xds.protocol.bundle_diff import BundleDiff
from koguma.xds.protocol.delta import DeltaRequest, DeltaResponse
from koguma.xds.protocol.opening import UnparsedVersions
from koguma.xds.sotw import SotwRequest, SotwResponse

_TYPES: Final[Mapping[str, str]] = {url: word for word, url in TYPE_URLS.items()}
NODE_BYTES_MAX: Final = 128 * 1024  # with the Dataplane that the proxy brings
NODE_TOO_LARGE: Final = f"the node of the request is larger than {NODE_BYTES_MAX} bytes"
_NO_REASON: Final = "the proxy gave no reason"
_REASON_MAX: Final = 4096  # characters
_READ_REASON_MAX: Final = 16 * 1024
_STEPS_MAX: Final = 32  # whose bytes are kept; all who take one are told together

Request = TypeVar("Request")


class Node(msgspec.Struct, frozen=True):
    """Who a proxy says it is."""

    id: str
    version: str  # of the Envoy, as 1.40.0
    metadata: Mapping[str, Json]


class Incoming(msgspec.Struct, Generic[Request], frozen=True):
    """What a message says; `request` is None where it is about a type that we do not serve."""

    type_url: str
    request: Request | None
    node: Node | None = None


class DeltaReader:
    """Reads requests of the incremental form; a name is one text, however many proxies ask for it.

    Of a proxy that comes back the versions stay as they are, since it may be that nobody has to read them.
    """

    def __init__(self, schema: Schema) -> None:
        self._class = schema.message_class("envoy.service.discovery.v3.DeltaDiscoveryRequest")
        self._node_class = schema.message_class("envoy.config.core.v3.Node")
        self._outline: Any = outline_class()

    def read(self, data: bytes) -> Incoming[DeltaRequest]:
        """What the bytes say; DecodeError where they say nothing."""
        taken = _taken(data)
        if taken is not None:
            return Incoming(TYPE_URLS[taken.type], taken)
        return self._claimed(data) or self._whole(data)

    def _whole(self, data: bytes) -> Incoming[DeltaRequest]:
        message: Any = self._class.FromString(data)
        return Incoming(message.type_url, self._request(message), _node(message))

    def _claimed(self, data: bytes) -> Incoming[DeltaRequest] | None:
        """A request that asks for something and names versions, and says nothing else."""
        try:
            outline = self._outline.FromString(data)
            node = self._node_class.FromString(b"".join(outline.node)) if outline.node else None
        except DecodeError:
            return None  # what is wrong is said by whoever reads all of it
        type_, entries = _TYPES.get(outline.type_url), outline.versions[:]
        if type_ is None or not entries or outline.unsubscribe or outline.nonce or outline.error:
            return None
        versions = UnparsedVersions(entries, lambda: self._versions(data))
        request = DeltaRequest(type_, subscribe=tuple(outline.subscribe), initial_versions=versions)
        return Incoming(outline.type_url, request, read_node(node) if node is not None else None)

    def _versions(self, data: bytes) -> dict[str, str]:
        message: Any = self._class.FromString(data)
        return _versions(message.initial_resource_versions)

    def _request(self, message: Any) -> DeltaRequest | None:
        type_ = _TYPES.get(message.type_url)
        if type_ is None:
            return None
        return DeltaRequest(
            type_,
            subscribe=tuple(map(intern, message.resource_names_subscribe)),
            unsubscribe=tuple(message.resource_names_unsubscribe),
            initial_versions=_versions(message.initial_resource_versions),
            nonce=message.response_nonce,
            error=_error(message),
        )


def _versions(given: Any) -> dict[str, str]:
    # A look-up for each name is twice as fast here as `items`, and proxies that come back name a thousand.
    return {intern(name): given[name] for name in given}


class SotwReader:
    """Reads requests of the older form."""

    def __init__(self, schema: Schema) -> None:
        self._class = schema.message_class("envoy.service.discovery.v3.DiscoveryRequest")

    def read(self, data: bytes) -> Incoming[SotwRequest]:
        """What the bytes say; DecodeError where they say nothing."""
        message: Any = self._class.FromString(data)
        return Incoming(message.type_url, self._request(message), _node(message))

    def _request(self, message: Any) -> SotwRequest | None:
        type_ = _TYPES.get(message.type_url)
        if type_ is None:
            return None
        return SotwRequest(
            type_,
            names=tuple(map(intern, message.resource_names)),
            version=message.version_info,
            nonce=message.response_nonce,
            error=_error(message),
        )


def _taken(data: bytes) -> DeltaRequest | None:
    """The request that most are: a type, a short nonce and nothing else, in the order of protobuf."""
    at = data[1] + 2 if len(data) > 1 else 0
    type_ = _TAKEN.get(data[: at + 1])
    # The nonces are ours and short, so one byte has the length of what is left.
    if type_ is None or len(data) < at + 2 or data[at + 1] != len(data) - at - 2 or data[at + 1] > _NONCE_MAX:
        return None
    return DeltaRequest(type_, nonce=data[at + 2 :].decode(errors="replace"))


def _error(message: Any) -> str:
    if not message.HasField("error_detail"):
        return ""
    # Envoy quotes what it refuses, and what is said here is logged, stored and shown.
    # Its length is up to whoever sends it. What is masked is longer than what is kept, so that no key is cut.
    return cut(masked_text(message.error_detail.message[:_READ_REASON_MAX]), _REASON_MAX) or _NO_REASON


def _node(message: Any) -> Node | None:
    return read_node(message.node) if message.HasField("node") else None


def read_node(node: Any) -> Node:
    """Who a message's node says it is; to read what it says of itself takes time, so that may not be much."""
    if node.ByteSize() > NODE_BYTES_MAX:
        raise BadRequest(NODE_TOO_LARGE)
    build = node.user_agent_build_version.version
    version = f"{build.major_number}.{build.minor_number}.{build.patch}"
    metadata: dict[str, Json] = json_format.MessageToDict(node.metadata)
    return Node(node.id, "" if version == "0.0.0" else version, metadata)


def delta_bytes(response: DeltaResponse) -> bytes:
    """A response of the incremental form (`DeltaDiscoveryResponse`)."""
    head = _DELTA_TYPES[response.type] + string_field(5, response.nonce)
    if response.diff is not None:
        return head + _delta_step(response.diff)
    return b"".join(
        (head, *_delta_parts(response.resources), *(string_field(6, name) for name in response.removed))
    )


@lru_cache(maxsize=_STEPS_MAX)
def _delta_step(step: BundleDiff) -> bytes:
    """What all who take a step are told, put together once."""
    return b"".join(_delta_parts(step.resources.values()))


def _delta_parts(pieces: Iterable[XdsResource]) -> Iterator[bytes]:
    for piece in pieces:
        head = _delta_head if names.is_of_one(piece.name) else _kept_head
        yield head(piece.type, piece.name, piece.version, len(piece.body))
        yield piece.body


def sotw_bytes(response: SotwResponse) -> bytes:
    """A response of the older form (`DiscoveryResponse`)."""
    parts = [
        string_field(1, response.version),
        string_field(4, TYPE_URLS[response.type]),
        string_field(5, response.nonce),
    ]
    for piece in response.resources:
        parts += (_sotw_head(piece.type, len(piece.body)), piece.body)
    return b"".join(parts)


# What stands before a resource is the same for every proxy that gets it. The bytes of the resource itself are
# not kept here, so a head costs little; more of them than one proxy gets are of little use.
_HEADS_MAX: Final = 1 << 10


def _delta_head(type_: str, name: str, version: str, size: int) -> bytes:
    """The beginning of a `Resource` up to the bytes of the resource itself, which must come last."""
    any_head = _any_head(type_, size)
    inner = string_field(3, name) + string_field(1, version) + len_head(2, len(any_head) + size) + any_head
    return len_head(2, len(inner) + size) + inner


_kept_head = lru_cache(maxsize=_HEADS_MAX)(_delta_head)


@lru_cache(maxsize=_HEADS_MAX)
def _sotw_head(type_: str, size: int) -> bytes:
    any_head = _any_head(type_, size)
    return len_head(2, len(any_head) + size) + any_head


def _any_head(type_: str, size: int) -> bytes:
    """The beginning of an `Any` up to its value."""
    return string_field(1, TYPE_URLS[type_]) + len_head(2, size)


_NONCE_MAX: Final = 0x7F
_DELTA_TYPES: Final[Mapping[str, bytes]] = {word: string_field(4, url) for word, url in TYPE_URLS.items()}
# How such a request begins: the field of the type, then the tag of the nonce.
_TAKEN: Final[Mapping[bytes, str]] = {
    string_field(2, url) + tag(6, WireType.LEN): word for word, url in TYPE_URLS.items()
}
