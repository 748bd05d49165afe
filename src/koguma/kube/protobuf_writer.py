"""Protobuf answers: documents of Kubernetes' own kinds as the messages that its Go clients ask for.

The tables are those that requests are read with. What a table has no number for is left out, as is a value
that does not fit its field: what is stored may be older than today's rules.
"""

import base64
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import msgspec

from koguma.kube import times
from koguma.kube.protobuf import MAGIC
from koguma.kube.protobuf_tables import (
    LIST_META,
    MESSAGES,
    FieldLabel,
    ProtobufField,
    ProtobufMessage,
    ProtobufType,
)
from koguma.model.protobuf_wire import bytes_field, len_head, string_field, varint_field
from koguma.model.schema import Json

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNFIT: Final = (AttributeError, TypeError, ValueError)
_ITEMS: Final = 2  # in every list, as is the content of the envelope around an object


def has_message(api_version: str, kind: str) -> bool:
    """Whether objects of a kind can be written in protobuf."""
    return (api_version, kind) in MESSAGES


def encoded(document: Mapping[str, Json]) -> bytes:
    """A document of a kind that has a message, in the envelope that names the kind."""
    api_version, kind = document["apiVersion"], document["kind"]
    raw = message(document, MESSAGES[api_version, kind])
    return envelope_head(api_version, kind) + bytes_field(_ITEMS, raw)


def envelope_head(api_version: str, kind: str) -> bytes:
    """How all objects of a kind begin. The rest is a field 2, which is what an item of a list is too."""
    return MAGIC + bytes_field(1, string_field(1, api_version) + string_field(2, kind))


def encoded_list(
    api_version: str, kind: str, meta: Mapping[str, Json], items: Sequence[bytes]
) -> list[bytes]:
    """A list in parts, of objects that were encoded by `encoded`."""
    start = len(envelope_head(api_version, kind))
    parts = [bytes_field(1, message(meta, LIST_META)), *(item[start:] for item in items)]
    size = sum(map(len, parts))
    parts[0] = envelope_head(api_version, f"{kind}List") + len_head(_ITEMS, size) + parts[0]
    return parts


def watch_event(type_: str, encoded_object: bytes) -> bytes:
    """An event of a watch: its length in four bytes, then a message around the object in its envelope."""
    event = string_field(1, type_) + bytes_field(2, bytes_field(1, encoded_object))
    return struct.pack(">I", len(event)) + event


def message(document: Mapping[str, Json], table: ProtobufMessage) -> bytes:
    """The fields of a message, without an envelope."""
    parts = []
    for number, field in table.items():
        value = document.get(field.name)
        if value is not None:
            with suppress(*_UNFIT):
                parts.append(_field(number, field, value))
    return b"".join(parts)


def _field(number: int, field: ProtobufField, value: Json) -> bytes:
    label = field.label
    if label is FieldLabel.REPEATED:
        return b"".join([_single(number, field, each) for each in _items(value)])
    if label is FieldLabel.MAP:
        return b"".join([_entry(number, field, key, each) for key, each in sorted(value.items())])
    if label is FieldLabel.IMPLICIT and value in ("", 0, False):
        return b""
    return _single(number, field, value)


def _items(value: Json) -> Sequence[Json]:
    if not isinstance(value, list | tuple):
        raise TypeError("not a list")
    return value


def _entry(number: int, field: ProtobufField, key: str, value: Json) -> bytes:
    return bytes_field(number, string_field(1, key) + _single(2, field, value))


def _single(number: int, field: ProtobufField, value: Json) -> bytes:
    if isinstance(field.type, ProtobufType):
        return _SCALARS[field.type](number, value)
    if not isinstance(value, Mapping):
        raise TypeError("not an object")
    return bytes_field(number, message(value, field.type))


def _string(number: int, value: Json) -> bytes:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return string_field(number, value)


def _int(number: int, value: Json) -> bytes:
    if not isinstance(value, int):
        raise TypeError("not a number")
    return varint_field(number, value)


def _bytes(number: int, value: Json) -> bytes:
    return bytes_field(number, value)


def _base64(number: int, value: Json) -> bytes:
    return bytes_field(number, base64.b64decode(value or "", validate=True))


def _string_list(number: int, value: Json) -> bytes:
    return bytes_field(number, b"".join(_string(1, text) for text in _items(value)))


def _json(number: int, value: Json) -> bytes:
    return bytes_field(number, bytes_field(1, msgspec.json.encode(value)))


def _int_or_string(number: int, value: Json) -> bytes:
    is_text = isinstance(value, str)
    content = varint_field(1, 1) + string_field(3, value) if is_text else varint_field(1, 0) + _int(2, value)
    return bytes_field(number, content)


def _quantity(number: int, value: Json) -> bytes:
    return bytes_field(number, string_field(1, str(value)))


def _time(number: int, value: Json) -> bytes:
    moment = times.read(value)
    if moment is None:
        raise ValueError("not a time")
    since = moment - _EPOCH
    seconds = since.days * 86_400 + since.seconds
    return bytes_field(number, varint_field(1, seconds) + varint_field(2, since.microseconds * 1000))


_SCALARS: Final[Mapping[ProtobufType, Callable[[int, Json], bytes]]] = {
    ProtobufType.STRING: _string,
    ProtobufType.BOOL: _int,
    ProtobufType.INT32: _int,
    ProtobufType.INT64: _int,
    ProtobufType.BYTES: _bytes,
    ProtobufType.BASE64: _base64,
    ProtobufType.STRING_LIST: _string_list,
    ProtobufType.TIME: _time,
    ProtobufType.MICRO_TIME: _time,
    ProtobufType.INT_OR_STRING: _int_or_string,
    ProtobufType.QUANTITY: _quantity,
    ProtobufType.JSON: _json,
}
