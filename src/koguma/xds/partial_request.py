"""A partial DeltaDiscoveryRequest: a message with its field numbers in which large parts stay bytes.

Protobuf parses it much faster than the real message: an entry of the map of versions stays raw bytes, and so
does every field that only has to be seen to be present. A submessage that occurs several times on the wire is
a repeated field here; joining the occurrences gives the merged submessage, as protobuf defines it.
"""

from functools import cache
from typing import Final

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

_NAME: Final = "koguma.PartialDeltaDiscoveryRequest"
_OPTIONAL, _REPEATED = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
_STRING, _BYTES = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BYTES
_FIELDS: Final = (
    ("node", 1, _REPEATED, _BYTES),
    ("type_url", 2, _OPTIONAL, _STRING),
    ("resource_names_subscribe", 3, _REPEATED, _STRING),
    ("resource_names_unsubscribe", 4, _REPEATED, _BYTES),
    ("initial_resource_versions", 5, _REPEATED, _BYTES),
    ("response_nonce", 6, _OPTIONAL, _BYTES),
    ("error_detail", 7, _REPEATED, _BYTES),
)


@cache
def partial_request_class() -> type[Message]:
    """The message class."""
    package, _, name = _NAME.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(
        name="koguma/partial_request.proto", package=package, syntax="proto3"
    )
    message = file.message_type.add(name=name)
    for field, number, label, type_ in _FIELDS:
        message.field.add(name=field, number=number, label=label, type=type_)
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(_NAME))
