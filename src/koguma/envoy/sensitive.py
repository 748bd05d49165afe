"""Sensitive: hides secrets in configuration that is shown to people.

Envoy's messages mark sensitive fields (`udpa.annotations.sensitive`), which its admin interface hides too. In
addition, inline data of TLS contexts is hidden: a MeshExternalService has secrets there, even if only a CA.
"""

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from koguma.envoy.schema import Schema, UnknownType
from koguma.model.redacted import SHOWN

_DATA_SOURCE: Final = "envoy.config.core.v3.DataSource"
_ANY: Final = "google.protobuf.Any"
_TLS: Final = "envoy.extensions.transport_sockets.tls.v3."
_INLINE: Final = ("inline_bytes", "inline_string")


class SensitiveFields:
    """Hides the sensitive fields of messages of one Envoy."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._mark = schema.extension("udpa.annotations.sensitive")
        self._options = schema.message_class("google.protobuf.FieldOptions")
        self._known: dict[str, bool] = {}  # by the field's full name

    def mask(self, message: Any) -> None:
        """Hide sensitive fields in a message, at any depth."""
        for field, value in message.ListFields():
            if self._is_sensitive(field):
                self._hide(message, field, value)
                continue
            for each in _messages(field, value):
                if each.DESCRIPTOR.full_name == _ANY:
                    self._mask_any(each)
                else:
                    self.mask(each)

    def _is_sensitive(self, field: FieldDescriptor) -> bool:
        is_sensitive = self._known.get(field.full_name)
        if is_sensitive is None:
            options: Any = self._options.FromString(field.GetOptions().SerializeToString())
            is_inline = field.full_name.startswith(_TLS) and _type_name(field) == _DATA_SOURCE
            is_sensitive = self._known[field.full_name] = is_inline or bool(options.Extensions[self._mark])
        return is_sensitive

    def _hide(self, message: Any, field: FieldDescriptor, value: Any) -> None:
        """Hide a field's value; of a data source only inline data: a path is no secret."""
        if _type_name(field) == _DATA_SOURCE:
            for source in value if _is_repeated(field) else (value,):
                if source.WhichOneof("specifier") in _INLINE:
                    source.inline_string = SHOWN
        elif field.type == FieldDescriptor.TYPE_STRING and not _is_repeated(field):
            setattr(message, field.name, SHOWN)
        else:
            message.ClearField(field.name)

    def _mask_any(self, packed: Any) -> None:
        try:
            inside: Message = self._schema.resolve(packed.type_url).FromString(packed.value)
        except (UnknownType, DecodeError):  # it cannot be decoded, so it is not shown
            packed.Clear()
            return
        self.mask(inside)
        packed.value = inside.SerializeToString(deterministic=True)


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _type_name(field: FieldDescriptor) -> str:
    """The full name of the message that a field holds; empty where it holds none."""
    return str(field.message_type.full_name) if field.message_type is not None else ""


def _messages(field: FieldDescriptor, value: Any) -> Iterable[Any]:
    """The messages in a field: one, those of a list, the values of a map; none where it holds others."""
    of = field.message_type
    if of is None:
        return ()
    if not _is_repeated(field):
        return (value,)
    if of.GetOptions().map_entry:
        return tuple(value.values()) if of.fields_by_name["value"].message_type is not None else ()
    return tuple(value)
