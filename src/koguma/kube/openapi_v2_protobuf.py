"""OpenAPI 2 as protobuf: the message `openapi.v2.Document` of gnostic, which clients up to 1.28 insist on.

Only fields that our own documents have are known; any other keyword is a mistake and raises, so that nothing
is lost on the way. Values without a type of their own (enums, vendor extensions) travel as YAML text, and
JSON is YAML. Field numbers: gnostic, openapiv2/OpenAPIv2.proto.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from koguma.model.protobuf_wire import bytes_field, double_field, string_field, varint_field
from koguma.model.schema import Json

FieldEncoder = Callable[[int, Json], bytes]  # the number and the value of a field to its bytes


def encoded(document: Json) -> bytes:
    """A document of version 2 as the message."""
    return _DOCUMENT(document)


class _Message:
    """A message: the numbers and types of its fields, and the number under which extensions stand."""

    def __init__(self, fields: Mapping[str, tuple[int, FieldEncoder]], extensions: int = 0) -> None:
        self._fields = dict(fields)
        self._extensions = extensions

    def __call__(self, value: Json) -> bytes:
        return b"".join(self._field(name, member) for name, member in value.items())

    def field(self, number: int, value: Json) -> bytes:
        """As a field of another message."""
        return bytes_field(number, self(value))

    def extend(self, fields: Mapping[str, tuple[int, FieldEncoder]]) -> None:
        """Add fields that could not be named before the message itself."""
        self._fields |= fields

    def _field(self, name: str, value: Json) -> bytes:
        if name.startswith("x-") and self._extensions:
            return _named(_yaml)(self._extensions, {name: value})
        number, field = self._fields[name]
        return field(number, value)


def _strings(number: int, values: Json) -> bytes:
    return b"".join(string_field(number, value) for value in values)


def _yaml(number: int, value: Json) -> bytes:
    return bytes_field(number, bytes_field(2, msgspec.json.encode(value)))


def _yamls(number: int, values: Json) -> bytes:
    return b"".join(_yaml(number, value) for value in values)


def _named(of: FieldEncoder) -> FieldEncoder:
    """A repeated field of names and values, which is how gnostic writes maps."""

    def field(number: int, value: Json) -> bytes:
        return b"".join(
            bytes_field(number, string_field(1, name) + of(2, member)) for name, member in value.items()
        )

    return field


def _inside(number: int, of: FieldEncoder) -> FieldEncoder:
    """A field that stands, under that number, in a message of its own."""

    def field(outer: int, value: Json) -> bytes:
        return bytes_field(outer, of(number, value))

    return field


_SCHEMA: Final = _Message(
    {
        "$ref": (1, string_field),
        "format": (2, string_field),
        "title": (3, string_field),
        "description": (4, string_field),
        "default": (5, _yaml),
        "multipleOf": (6, double_field),
        "maximum": (7, double_field),
        "exclusiveMaximum": (8, varint_field),
        "minimum": (9, double_field),
        "exclusiveMinimum": (10, varint_field),
        "maxLength": (11, varint_field),
        "minLength": (12, varint_field),
        "pattern": (13, string_field),
        "maxItems": (14, varint_field),
        "minItems": (15, varint_field),
        "uniqueItems": (16, varint_field),
        "maxProperties": (17, varint_field),
        "minProperties": (18, varint_field),
        "required": (19, _strings),
        "enum": (20, _yamls),
        "type": (22, _inside(1, string_field)),
        "readOnly": (27, varint_field),
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
        "description": (1, string_field),
        "name": (2, string_field),
        "in": (3, string_field),
        "required": (4, varint_field),
        "schema": (5, _SCHEMA.field),
    }
)
_QUERY: Final = _Message(
    {
        "required": (1, varint_field),
        "in": (2, string_field),
        "description": (3, string_field),
        "name": (4, string_field),
        "type": (6, string_field),
    }
)
_PATH: Final = _Message(
    {
        "required": (1, varint_field),
        "in": (2, string_field),
        "description": (3, string_field),
        "name": (4, string_field),
        "type": (5, string_field),
    }
)


_PARAMETER: Final = {  # each is a choice in a choice, by where it stands in the request
    "body": _inside(1, _inside(1, _BODY.field)),
    "query": _inside(1, _inside(2, _inside(3, _QUERY.field))),
    "path": _inside(1, _inside(2, _inside(4, _PATH.field))),
}


def _parameters(number: int, values: Json) -> bytes:
    return b"".join(_PARAMETER[value["in"]](number, value) for value in values)


_RESPONSE: Final = _Message({"description": (1, string_field), "schema": (2, _inside(1, _SCHEMA.field))})
_OPERATION: Final = _Message(
    {
        "description": (3, string_field),
        "operationId": (5, string_field),
        "produces": (6, _strings),
        "consumes": (7, _strings),
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
_INFO: Final = _Message(
    {"title": (1, string_field), "version": (2, string_field), "description": (3, string_field)}
)
_DOCUMENT: Final = _Message(
    {
        "swagger": (1, string_field),
        "info": (2, _INFO.field),
        "paths": (8, _inside(2, _named(_PATH_ITEM.field))),
        "definitions": (9, _inside(1, _named(_SCHEMA.field))),
    }
)
