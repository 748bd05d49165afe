"""OpenAPI 2 as protobuf: the message `openapi.v2.Document` of gnostic, which clients up to 1.28 insist on.

Only fields that our own documents have are known; any other keyword is a mistake and raises, so that nothing
is lost on the way. Values without a type of their own (enums, vendor extensions) travel as YAML text, and
JSON is YAML. Field numbers: gnostic, openapiv2/OpenAPIv2.proto.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from koguma.model.schema import Json

Field = Callable[[int, Json], bytes]  # the number and the value of a field to its bytes
_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2


def encoded(document: Json) -> bytes:
    """A document of version 2 as the message."""
    return _DOCUMENT(document)


class _Message:
    """A message: the numbers and types of its fields, and the number under which extensions stand."""

    def __init__(self, fields: Mapping[str, tuple[int, Field]], extensions: int = 0) -> None:
        self._fields = dict(fields)
        self._extensions = extensions

    def __call__(self, value: Json) -> bytes:
        return b"".join(self._field(name, each) for name, each in value.items())

    def field(self, number: int, value: Json) -> bytes:
        """As a field of another message."""
        return _bytes(number, self(value))

    def extend(self, fields: Mapping[str, tuple[int, Field]]) -> None:
        """Add fields that could not be named before the message itself."""
        self._fields |= fields

    def _field(self, name: str, value: Json) -> bytes:
        if name.startswith("x-") and self._extensions:
            return _named(_yaml)(self._extensions, {name: value})
        number, field = self._fields[name]
        return field(number, value)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits in each byte
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _bytes(number: int, value: bytes) -> bytes:
    return _tag(number, _LENGTH) + _varint(len(value)) + value


def _text(number: int, value: Json) -> bytes:
    return _bytes(number, value.encode())


def _texts(number: int, values: Json) -> bytes:
    return b"".join(_text(number, value) for value in values)


def _whole(number: int, value: Json) -> bytes:
    return _tag(number, _VARINT) + _varint(int(value))


def _double(number: int, value: Json) -> bytes:
    return _tag(number, _FIXED64) + struct.pack("<d", value)


def _yaml(number: int, value: Json) -> bytes:
    return _bytes(number, _bytes(2, msgspec.json.encode(value)))


def _yamls(number: int, values: Json) -> bytes:
    return b"".join(_yaml(number, value) for value in values)


def _named(of: Field) -> Field:
    """A repeated field of names and values, which is how gnostic writes maps."""

    def field(number: int, value: Json) -> bytes:
        return b"".join(_bytes(number, _text(1, name) + of(2, each)) for name, each in value.items())

    return field


def _inside(number: int, of: Field) -> Field:
    """A field that stands, under that number, in a message of its own."""

    def field(outer: int, value: Json) -> bytes:
        return _bytes(outer, of(number, value))

    return field


_SCHEMA: Final = _Message(
    {
        "$ref": (1, _text),
        "format": (2, _text),
        "description": (4, _text),
        "multipleOf": (6, _double),
        "maximum": (7, _double),
        "exclusiveMaximum": (8, _whole),
        "minimum": (9, _double),
        "exclusiveMinimum": (10, _whole),
        "maxLength": (11, _whole),
        "minLength": (12, _whole),
        "pattern": (13, _text),
        "maxItems": (14, _whole),
        "minItems": (15, _whole),
        "uniqueItems": (16, _whole),
        "maxProperties": (17, _whole),
        "minProperties": (18, _whole),
        "required": (19, _texts),
        "enum": (20, _yamls),
        "type": (22, _inside(1, _text)),
        "readOnly": (27, _whole),
    },
    extensions=31,
)
_SCHEMA.extend(
    {
        "additionalProperties": (21, _inside(1, _SCHEMA.field)),
        "items": (23, _inside(1, _SCHEMA.field)),
        "properties": (25, _inside(1, _named(_SCHEMA.field))),
    }
)

_BODY: Final = _Message(
    {
        "description": (1, _text),
        "name": (2, _text),
        "in": (3, _text),
        "required": (4, _whole),
        "schema": (5, _SCHEMA.field),
    }
)
_QUERY: Final = _Message(
    {
        "required": (1, _whole),
        "in": (2, _text),
        "description": (3, _text),
        "name": (4, _text),
        "type": (6, _text),
    }
)
_PATH: Final = _Message(
    {
        "required": (1, _whole),
        "in": (2, _text),
        "description": (3, _text),
        "name": (4, _text),
        "type": (5, _text),
    }
)


_PARAMETER: Final = {  # each is a choice in a choice, by where it stands in the request
    "body": _inside(1, _inside(1, _BODY.field)),
    "query": _inside(1, _inside(2, _inside(3, _QUERY.field))),
    "path": _inside(1, _inside(2, _inside(4, _PATH.field))),
}


def _parameters(number: int, values: Json) -> bytes:
    return b"".join(_PARAMETER[value["in"]](number, value) for value in values)


_RESPONSE: Final = _Message({"description": (1, _text), "schema": (2, _inside(1, _SCHEMA.field))})
_OPERATION: Final = _Message(
    {
        "description": (3, _text),
        "operationId": (5, _text),
        "produces": (6, _texts),
        "consumes": (7, _texts),
        "parameters": (8, _parameters),
        "responses": (9, _inside(1, _named(_inside(1, _RESPONSE.field)))),
    },
    extensions=13,
)
_PATH_ITEM: Final = _Message(
    {
        "get": (2, _OPERATION.field),
        "put": (3, _OPERATION.field),
        "post": (4, _OPERATION.field),
        "delete": (5, _OPERATION.field),
        "patch": (8, _OPERATION.field),
        "parameters": (9, _parameters),
    }
)
_INFO: Final = _Message({"title": (1, _text), "version": (2, _text), "description": (3, _text)})
_DOCUMENT: Final = _Message(
    {
        "swagger": (1, _text),
        "info": (2, _INFO.field),
        "paths": (8, _inside(2, _named(_PATH_ITEM.field))),
        "definitions": (9, _inside(1, _named(_SCHEMA.field))),
    }
)
