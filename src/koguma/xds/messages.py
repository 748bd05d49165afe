"""Messages: decodes requests into plain values, and encodes responses from encoded resources.

A response is never built with protobuf. Its parts are written by hand as protobuf would write them (the tags
are those of `envoy/service/discovery/v3/discovery.proto`), so that the bytes of a resource are only copied,
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
from koguma.xds.partial_request import partial_request_class
from koguma.xds.protocol.bundle_diff import BundleDiff
from koguma.xds.protocol.delta import DeltaRequest, DeltaResponse
from koguma.xds.protocol.opening import UnparsedVersions
from koguma.xds.sotw import SotwRequest, SotwResponse

_TYPES: Final[Mapping[str, str]] = {url: type_ for type_, url in TYPE_URLS.items()}
NODE_BYTES_MAX: Final = 128 * 1024  # with the Dataplane that the proxy registers
NODE_TOO_LARGE: Final = f"the node of the request is larger than {NODE_BYTES_MAX} bytes"
_NO_REASON: Final = "the proxy gave no reason"
_ERROR_LENGTH_MAX: Final = 4096  # characters that are kept
_ERROR_MASKED_MAX: Final = 16 * 1024  # characters that are searched for secrets
_DIFFS_MAX: Final = 32  # whose bytes are cached; all proxies that get a diff get it at about the same time

Request = TypeVar("Request")


class XdsNode(msgspec.Struct, frozen=True):
    """The node of a request: which proxy it claims to be."""

    id: str
    version: str  # of Envoy, for example 1.40.0
    metadata: Mapping[str, Json]


class DecodedRequest(msgspec.Struct, Generic[Request], frozen=True):
    """A decoded request; `request` is None where its type is not served."""

    type_url: str
    request: Request | None
    node: XdsNode | None = None


class DeltaRequestDecoder:
    """Decodes DeltaDiscoveryRequests. Names are interned, since many proxies subscribe to the same ones.

    The initial_resource_versions of a reconnecting proxy stay unparsed, because often nobody reads them.
    """

    def __init__(self, schema: Schema) -> None:
        self._class = schema.message_class("envoy.service.discovery.v3.DeltaDiscoveryRequest")
        self._node_class = schema.message_class("envoy.config.core.v3.Node")
        self._partial_class: Any = partial_request_class()

    def decode(self, data: bytes) -> DecodedRequest[DeltaRequest]:
        """The decoded request, or DecodeError."""
        ack = _plain_ack(data)
        if ack is not None:
            return DecodedRequest(TYPE_URLS[ack.type], ack)
        return self._subscription(data) or self._parsed(data)

    def _parsed(self, data: bytes) -> DecodedRequest[DeltaRequest]:
        message: Any = self._class.FromString(data)
        return DecodedRequest(message.type_url, self._request(message), _node(message))

    def _subscription(self, data: bytes) -> DecodedRequest[DeltaRequest] | None:
        """A request that only subscribes; None for any other."""
        try:
            partial = self._partial_class.FromString(data)
            node = self._node_class.FromString(b"".join(partial.node)) if partial.node else None
        except DecodeError:
            return None  # parsing all of it raises the error that is reported
        type_, entries = _TYPES.get(partial.type_url), partial.initial_resource_versions[:]
        has_more = partial.resource_names_unsubscribe or partial.response_nonce or partial.error_detail
        if type_ is None or has_more:
            return None
        subscribed = tuple(partial.resource_names_subscribe)
        if entries:
            versions = UnparsedVersions(entries, lambda: self._versions(data))
            request = DeltaRequest(type_, subscribe=subscribed, initial_versions=versions)
        else:
            request = DeltaRequest(type_, subscribe=tuple(map(intern, subscribed)))
        return DecodedRequest(partial.type_url, request, decode_node(node) if node is not None else None)

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


def _versions(versions: Any) -> dict[str, str]:
    # One look-up per name is twice as fast as `items` of a protobuf map, and proxies name a thousand.
    return {intern(name): versions[name] for name in versions}


class SotwRequestDecoder:
    """Decodes DiscoveryRequests, of the state-of-the-world variant."""

    def __init__(self, schema: Schema) -> None:
        self._class = schema.message_class("envoy.service.discovery.v3.DiscoveryRequest")

    def decode(self, data: bytes) -> DecodedRequest[SotwRequest]:
        """The decoded request, or DecodeError."""
        message: Any = self._class.FromString(data)
        return DecodedRequest(message.type_url, self._request(message), _node(message))

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


def _plain_ack(data: bytes) -> DeltaRequest | None:
    """The most common request, decoded by hand: a type and a short nonce, in that order; else None."""
    at = data[1] + 2 if len(data) > 1 else 0
    type_ = _ACK_PREFIXES.get(data[: at + 1])
    # Our nonces are short, so one byte holds the length of the rest.
    if type_ is None or len(data) < at + 2 or data[at + 1] != len(data) - at - 2 or data[at + 1] > _NONCE_MAX:
        return None
    return DeltaRequest(type_, nonce=data[at + 2 :].decode(errors="replace"))


def _error(message: Any) -> str:
    if not message.HasField("error_detail"):
        return ""
    # Envoy quotes what it rejects, and this text is logged, stored and shown, so secrets in it are masked.
    # The sender decides its length. More is masked than is kept, so that no key is cut before it is found.
    masked = masked_text(message.error_detail.message[:_ERROR_MASKED_MAX])
    return cut(masked, _ERROR_LENGTH_MAX) or _NO_REASON


def _node(message: Any) -> XdsNode | None:
    return decode_node(message.node) if message.HasField("node") else None


def decode_node(node: Any) -> XdsNode:
    """A protobuf Node as a plain value. Converting its metadata is slow, so its size is limited."""
    if node.ByteSize() > NODE_BYTES_MAX:
        raise BadRequest(NODE_TOO_LARGE)
    build = node.user_agent_build_version.version
    version = f"{build.major_number}.{build.minor_number}.{build.patch}"
    metadata: dict[str, Json] = json_format.MessageToDict(node.metadata)
    return XdsNode(node.id, "" if version == "0.0.0" else version, metadata)


def encode_delta_response(response: DeltaResponse) -> bytes:
    """A DeltaDiscoveryResponse."""
    head = _DELTA_TYPE_FIELDS[response.type] + string_field(5, response.nonce)
    if response.diff is not None:
        return head + _delta_diff(response.diff)
    removed = (string_field(6, name) for name in response.removed)
    return b"".join((head, *_delta_resources(response.resources), *removed))


@lru_cache(maxsize=_DIFFS_MAX)
def _delta_diff(diff: BundleDiff) -> bytes:
    """The resources of a diff, encoded once for all proxies that get it."""
    return b"".join(_delta_resources(diff.resources.values()))


def _delta_resources(resources: Iterable[XdsResource]) -> Iterator[bytes]:
    for resource in resources:
        header = _delta_header if names.is_proxy_own(resource.name) else _cached_delta_header
        yield header(resource.type, resource.name, resource.version, len(resource.body))
        yield resource.body


def encode_sotw_response(response: SotwResponse) -> bytes:
    """A DiscoveryResponse, of the state-of-the-world variant."""
    type_url = TYPE_URLS[response.type]
    parts = [string_field(1, response.version), string_field(4, type_url), string_field(5, response.nonce)]
    for resource in response.resources:
        parts += (_sotw_header(resource.type, len(resource.body)), resource.body)
    return b"".join(parts)


# The bytes before a resource are the same for every proxy that gets it. The resource itself is not cached
# here, so a header is small. Caching more headers than one proxy gets helps little.
_HEADERS_MAX: Final = 1 << 11


def _delta_header(type_: str, name: str, version: str, size: int) -> bytes:
    """The beginning of a `Resource` up to the bytes of the resource itself, which come last."""
    any_header = _any_header(type_, size)
    head = string_field(3, name) + string_field(1, version)
    inner = head + len_head(2, len(any_header) + size) + any_header
    return len_head(2, len(inner) + size) + inner


_cached_delta_header = lru_cache(maxsize=_HEADERS_MAX)(_delta_header)


@lru_cache(maxsize=_HEADERS_MAX)
def _sotw_header(type_: str, size: int) -> bytes:
    any_header = _any_header(type_, size)
    return len_head(2, len(any_header) + size) + any_header


def _any_header(type_: str, size: int) -> bytes:
    """The beginning of an `Any` up to its value."""
    return string_field(1, TYPE_URLS[type_]) + len_head(2, size)


_NONCE_MAX: Final = 0x7F
_DELTA_TYPE_FIELDS: Final[Mapping[str, bytes]] = {
    type_: string_field(4, url) for type_, url in TYPE_URLS.items()
}
# How a plain ACK begins: the type_url field, then the tag of response_nonce.
_ACK_PREFIXES: Final[Mapping[bytes, str]] = {
    string_field(2, url) + tag(6, WireType.LEN): type_ for type_, url in TYPE_URLS.items()
}
