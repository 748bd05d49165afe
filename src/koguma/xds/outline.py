"""Outline: the message of a proxy that asks for resources, described so that its larger parts stay bytes.

It has the field numbers of `DeltaDiscoveryRequest`. Protobuf reads it a good deal faster than the real one:
an entry of the map of versions is a piece of bytes here, and so is whatever else only has to be seen to be
there. What stands there several times comes several times, joined it means the same.
"""

from functools import cache
from typing import Final

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

_NAME: Final = "koguma.RequestOutline"
_ONE, _MANY = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
_TEXT, _BYTES = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BYTES
_FIELDS: Final = (
    ("node", 1, _MANY, _BYTES),
    ("type_url", 2, _ONE, _TEXT),
    ("subscribe", 3, _MANY, _TEXT),
    ("unsubscribe", 4, _MANY, _BYTES),
    ("versions", 5, _MANY, _BYTES),
    ("nonce", 6, _ONE, _BYTES),
    ("error", 7, _MANY, _BYTES),
)


@cache
def outline_class() -> type[Message]:
    """The class of the outline."""
    package, _, name = _NAME.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(name="koguma/outline.proto", package=package, syntax="proto3")
    message = file.message_type.add(name=name)
    for field, number, label, type_ in _FIELDS:
        message.field.add(name=field, number=number, label=label, type=type_)
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(_NAME))
