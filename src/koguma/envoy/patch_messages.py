"""Patch messages: messages parsed from what users wrote, merged, and changed by JSON patches.

A value is merged into a message as protobuf does: lists are appended, fields are replaced, messages are
merged, and of a oneof the later field stays. There are two differences. Messages that are one value in JSON,
such as durations and wrappers, are replaced as a whole, so that `0` and `false` can be set. And a message
inside an Any is merged with one of the same type instead of being replaced.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import EncodeError

from koguma.envoy.conversion import ConversionError
from koguma.envoy.schema import Schema
from koguma.envoy.tables import Tables
from koguma.model import json_patch
from koguma.model.errors import KogumaError
from koguma.model.schema import Json
from koguma.model.violation import Violation, item

_ANY: Final = "google.protobuf.Any"
_ONE_VALUE: Final = re.compile(r"google\.protobuf\.(Duration|Timestamp|FieldMask|\w+Value)")
_APPENDED: Final = ("google.protobuf.ListValue",)  # a list, which is appended as others are


class Unpatchable(ValueError):
    """A modification that cannot be applied: its violations, with paths relative to the modification."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        super().__init__("; ".join(f"{each.field}: {each.message}" for each in self.violations))


def unpatchable(message: str, field: str = "") -> Unpatchable:
    """An error with one violation."""
    return Unpatchable((Violation(field, message, "patch"),))


class Messages:
    """Parses and changes the messages of one Envoy. Messages have the type `Any` for the type checker."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._tables = Tables(schema)

    def parsed(self, full_name: str, body: bytes) -> Any:
        """A message from its bytes."""
        return self._schema.message_class(full_name).FromString(body)

    def read(self, full_name: str, data: Json) -> Any:
        """A message from plain data, without Envoy's rules, which a part of a message seldom fulfils."""
        try:
            return self.parsed(full_name, self._tables.pack(full_name, checked=False)(data))
        except ConversionError as error:
            raise Unpatchable(error.violations) from None
        except RecursionError:
            raise unpatchable("is nested too deeply") from None
        except (ValueError, TypeError, OverflowError, EncodeError) as error:
            raise unpatchable(str(error)) from error

    def plain(self, message: Any, *, as_in_proto: bool = True) -> dict[str, Any]:
        """A message as plain data, with proto names or with JSON names."""
        data = json_format.MessageToDict(
            message, preserving_proto_field_name=as_in_proto, descriptor_pool=self._schema.pool
        )
        return dict(data)

    def unpacked(self, packed: Any) -> Any:
        """The message in an Any."""
        return self._schema.resolve(packed.type_url).FromString(packed.value)

    def repack(self, packed: Any, message: Any) -> None:
        """Put a changed message of the same type back into its Any."""
        packed.value = message.SerializeToString(deterministic=True)

    def merge(self, into: Any, over: Any) -> None:
        """Merge a message into another one of its type."""
        for field, value in over.ListFields():
            there = getattr(into, field.name)
            if _is_map(field):
                self._merge_map(there, value, field.message_type.fields_by_name["value"])
            elif field.is_repeated:
                there.MergeFrom(value)
            elif field.message_type is None:
                setattr(into, field.name, value)
            else:
                self._merge_message(there, value)

    def _merge_message(self, into: Any, over: Any) -> None:
        into.SetInParent()  # an empty message that is set differs from none
        full_name = over.DESCRIPTOR.full_name
        if full_name == _ANY:
            self.merge_any(into, over)
        elif _ONE_VALUE.fullmatch(full_name) and full_name not in _APPENDED:
            into.CopyFrom(over)
        else:
            self.merge(into, over)

    def _merge_map(self, into: Any, over: Any, value: FieldDescriptor) -> None:
        for key in over:
            if value.message_type is None:
                into[key] = over[key]
            elif value.message_type.full_name == _ANY and key in into:
                self.merge_any(into[key], over[key])
            else:
                into[key].CopyFrom(over[key])

    def merge_any(self, into: Any, over: Any) -> None:
        """Merge a packed message into another one of the same type, or replace one of another type."""
        if into.type_url != over.type_url:
            into.CopyFrom(over)
            return
        message = self.unpacked(into)
        self.merge(message, self.unpacked(over))
        self.repack(into, message)

    def json_patched(self, message: Any, patches: Sequence[Json]) -> None:
        """Apply JSON patches (RFC 6902) to the JSON form of a message."""
        data: Json = self.plain(message, as_in_proto=False)
        # In a policy that was parsed, absent fields of an operation are null.
        written = [
            {name: value for name, value in operation.items() if value is not None} for operation in patches
        ]
        try:
            data = json_patch.json_patched(data, written, json_patch.KUMA)
        except json_patch.UnfitPatch as error:
            raise unpatchable(
                _leads_nowhere(patches[error.index]), item("jsonPatches", error.index)
            ) from None
        except json_patch.PatchTooLarge as error:
            words = f"makes more than {json_patch.KUMA.result_bytes_max} characters of it"
            raise unpatchable(words, item("jsonPatches", error.index)) from None
        except KogumaError as error:
            raise unpatchable(error.detail, "jsonPatches") from None
        try:
            message.CopyFrom(self.read(message.DESCRIPTOR.full_name, data))
        except Unpatchable as error:
            # The paths are those of the result; which operation caused it is unknown.
            raise Unpatchable(_below("jsonPatches", error.violations)) from None


def _below(name: str, violations: Iterable[Violation]) -> Iterator[Violation]:
    for each in violations:
        words = f"{each.field}: {each.message}" if each.field else each.message
        yield Violation(name, words, each.rule)


def _leads_nowhere(operation: Json) -> str:
    """The error of an operation; the library's own would show the whole message, which may hold secrets."""
    place = f"{operation.get('op')} {operation.get('path')}"
    if operation.get("from"):
        place += f" from {operation['from']}"
    hint = "use add for what is not set" if operation.get("op") == "replace" else "look at its JSON form"
    return f"cannot {place}: there is no such place in it; {hint}"


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
