"""Media: how objects, lists and events are written, as JSON or as protobuf.

Bytes of an object are cached by whoever asks for them; lists and events are made of such bytes.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec
from aiohttp.payload import Payload

from koguma.api.call import JSON
from koguma.api.compression import ChunkedBody
from koguma.kube import protobuf_writer
from koguma.kube.protobuf import MEDIA_TYPE
from koguma.kube.registry import KubeEndpoint
from koguma.model.schema import Json

CHUNK_SIZE: Final = 64  # objects that are joined and sent at a time


class Media(Protocol):
    """A way to write answers."""

    content_type: str
    stream_type: str  # the content type of a watch

    def object(self, document: Json) -> bytes:
        """One object, in itself."""

    def list(self, endpoint: KubeEndpoint, meta: Json, objects: Iterable[bytes]) -> bytes | Payload:
        """A list of objects that `object` has written."""

    def event(self, type_: str, written: bytes) -> bytes:
        """An event of a watch, about an object that `object` has written."""


class JsonMedia:
    """JSON; the events of a watch are lines."""

    content_type = JSON
    stream_type = JSON

    def object(self, document: Json) -> bytes:
        """One object."""
        return msgspec.json.encode(document)

    def list(self, endpoint: KubeEndpoint, meta: Json, objects: Iterable[bytes]) -> bytes | Payload:
        """A list, joined from encoded objects."""
        list_meta = {
            "kind": endpoint.list_kind,
            "apiVersion": endpoint.api_version,
            "metadata": meta,
        }
        head = b'%b,"items":[' % msgspec.json.encode(list_meta)[:-1]
        items = _untyped(objects, endpoint) if endpoint.strategic else [*objects]
        if not items:
            return head + b"]}"
        items[0] = head + items[0]
        items[-1] += b"]}"
        return _joined(items, b",", JSON)

    def event(self, type_: str, written: bytes) -> bytes:
        """An event, as a line."""
        return b'{"type":"%b","object":%b}\n' % (type_.encode(), written)


def _untyped(objects: Iterable[bytes], endpoint: KubeEndpoint) -> list[bytes]:
    """Objects without `apiVersion` and `kind`, as they are in lists of Kubernetes' own kinds."""
    type_ = {"apiVersion": endpoint.api_version, "kind": endpoint.kind_name}
    start = len(msgspec.json.encode(type_))  # with a closing brace, where the objects have a comma
    return [b"{" + item[start:] for item in objects]


class ProtobufMedia:
    """Kubernetes' protobuf, for kinds that have a message."""

    content_type = MEDIA_TYPE
    stream_type = f"{MEDIA_TYPE};stream=watch"

    def object(self, document: Json) -> bytes:
        """One object."""
        return protobuf_writer.encoded(document)

    def list(self, endpoint: KubeEndpoint, meta: Json, objects: Iterable[bytes]) -> bytes | Payload:
        """A list, joined from encoded objects."""
        parts = protobuf_writer.encoded_list(endpoint.api_version, endpoint.kind_name, meta, [*objects])
        return _joined(parts, b"", MEDIA_TYPE)

    def event(self, type_: str, written: bytes) -> bytes:
        """An event, after its length."""
        return protobuf_writer.watch_event(type_, written)


def _joined(parts: Sequence[bytes], separator: bytes, content_type: str) -> bytes | Payload:
    if len(parts) <= CHUNK_SIZE:
        return separator.join(parts)
    return ChunkedBody(parts, separator, CHUNK_SIZE, content_type)


JSON_MEDIA: Final = JsonMedia()
PROTOBUF_MEDIA: Final = ProtobufMedia()
