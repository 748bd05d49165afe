"""gnostic's message of an OpenAPI 2 document, as much of it as matters here, read back as JSON.

The fields are written down once more, apart from the encoder, so that the two check each other.
"""

from typing import Any

import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields

from koguma.model.schema import Json

_MESSAGES = """
AdditionalPropertiesItem: schema=1 Schema, boolean=2 bool
Any: yaml=2 string
BodyParameter: description=1 string, name=2 string, in=3 string, required=4 bool, schema=5 Schema
Definitions: additional_properties=1 *NamedSchema
Document: swagger=1 string, info=2 Info, paths=8 Paths, definitions=9 Definitions
Info: title=1 string, version=2 string, description=3 string
ItemsItem: schema=1 *Schema
NamedAny: name=1 string, value=2 Any
NamedPathItem: name=1 string, value=2 PathItem
NamedResponseValue: name=1 string, value=2 ResponseValue
NamedSchema: name=1 string, value=2 Schema
NonBodyParameter: query_parameter_sub_schema=3 QueryParameterSubSchema, path_parameter_sub_schema=4 PathParameterSubSchema
Operation: description=3 string, operation_id=5 string, produces=6 *string, consumes=7 *string, parameters=8 *ParametersItem, responses=9 Responses, vendor_extension=13 *NamedAny
Parameter: body_parameter=1 BodyParameter, non_body_parameter=2 NonBodyParameter
ParametersItem: parameter=1 Parameter
PathItem: get=2 Operation, put=3 Operation, post=4 Operation, delete=5 Operation, patch=8 Operation, parameters=9 *ParametersItem
PathParameterSubSchema: required=1 bool, in=2 string, description=3 string, name=4 string, type=5 string
Paths: path=2 *NamedPathItem
Properties: additional_properties=1 *NamedSchema
QueryParameterSubSchema: required=1 bool, in=2 string, description=3 string, name=4 string, allow_empty_value=5 bool, type=6 string
Response: description=1 string, schema=2 SchemaItem
ResponseValue: response=1 Response
Responses: response_code=1 *NamedResponseValue
Schema: _ref=1 string, format=2 string, title=3 string, description=4 string, default=5 Any, multiple_of=6 double, maximum=7 double, exclusive_maximum=8 bool, minimum=9 double, exclusive_minimum=10 bool, max_length=11 int64, min_length=12 int64, pattern=13 string, max_items=14 int64, min_items=15 int64, unique_items=16 bool, max_properties=17 int64, min_properties=18 int64, required=19 *string, enum=20 *Any, additional_properties=21 AdditionalPropertiesItem, type=22 TypeItem, items=23 ItemsItem, properties=25 Properties, read_only=27 bool, vendor_extension=31 *NamedAny
SchemaItem: schema=1 Schema
TypeItem: value=1 *string
"""  # noqa: E501 - one message a line
_SCALARS = {"string": 9, "bool": 8, "int64": 3, "double": 1}
_MESSAGE, _ONE, _MANY = 11, 1, 3


def _document_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="gnostic.proto", package="openapi.v2", syntax="proto3")
    for line in _MESSAGES.strip().splitlines():
        name, _, fields = line.partition(": ")
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            called, _, rest = field.partition("=")
            number, kind = rest.split(" ")
            made = message.field.add(name=called, number=int(number))
            made.label = _MANY if kind.startswith("*") else _ONE
            kind = kind.removeprefix("*")
            made.type = _SCALARS.get(kind, _MESSAGE)
            if made.type == _MESSAGE:
                made.type_name = f".openapi.v2.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("openapi.v2.Document"))


_DOCUMENT = _document_class()
_KEYS = {"_ref": "$ref"}


def read(encoded: bytes) -> Json:
    """The document that these bytes are."""
    message = _DOCUMENT()
    message.ParseFromString(encoded)
    assert not _unknown(message), "a field that the message does not have"
    return _json(message)


def _unknown(message: Any) -> bool:
    if len(unknown_fields.UnknownFieldSet(message)):
        return True
    parts = [
        part
        for field, value in message.ListFields()
        if field.type == _MESSAGE
        for part in (value if hasattr(value, "add") else [value])
    ]
    return any(_unknown(part) for part in parts)


def _json(message: Any) -> Json:
    """A message as the JSON that it stands for, its wrappers taken off."""
    match message.DESCRIPTOR.name:
        case "Any":
            return yaml.safe_load(message.yaml)
        case "TypeItem":
            return message.value[0]
        case "ItemsItem":
            return _json(message.schema[0])
        case "Definitions" | "Properties":
            return _named(message.additional_properties)
        case "Paths":
            return _named(message.path)
        case "Responses":
            return _named(message.response_code)
        case "AdditionalPropertiesItem" | "SchemaItem" | "ResponseValue":
            return _only(message)
        case "ParametersItem" | "Parameter" | "NonBodyParameter":
            return _only(message)
        case _:
            return _fields(message)


def _only(message: Any) -> Json:
    ((_, value),) = message.ListFields()
    return _json(value)


def _named(entries: Any) -> Json:
    return {entry.name: _json(entry.value) for entry in entries}


def _fields(message: Any) -> Json:
    found: dict[str, Json] = {}
    for field, value in message.ListFields():
        if field.name == "vendor_extension":
            found |= _named(value)
            continue
        first, *rest = field.name.split("_")
        key = _KEYS.get(field.name) or first + "".join(word.capitalize() for word in rest)
        if field.type != _MESSAGE:
            found[key] = list(value) if hasattr(value, "append") else value
        else:
            found[key] = [_json(each) for each in value] if hasattr(value, "add") else _json(value)
    return found
