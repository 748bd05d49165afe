"""Constraints: the rules of Envoy's messages about the values of their fields, checked before sending.

Envoy rejects a whole discovery response, valid resources included, when a resource breaks such a rule. The
rules are options of the fields (`validate.rules`), and are read from Envoy's binary with the messages.
"""

from typing import Any, Final

import msgspec
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, OneofDescriptor
from google.protobuf.message import Message

from koguma.envoy import validate_rules
from koguma.envoy.schema import Schema
from koguma.envoy.validate_rules import RuleCheck


class Rules(msgspec.Struct, frozen=True):
    """The rules of one field; of a list also those of its items, of a map those of its keys and values."""

    checks: tuple[RuleCheck, ...] = ()
    required: bool = False
    skip: bool = False  # nothing below the field is validated
    refused: bool = False  # deprecated, and rejected by Envoy
    items: "Rules | None" = None
    keys: "Rules | None" = None


NO_RULES: Final = Rules()
REQUIRED: Final = "value is required"
# Envoy validates every duration of a message, whatever the rules of the field.
DURATION: Final = (
    RuleCheck(lambda ns: ns >= 0, "Invalid duration: Expected positive duration", "positive"),
    RuleCheck(
        lambda ns: ns < 9_223_372_036 * 10**9, "Invalid duration: Duration out-of-range", "out_of_range"
    ),
)
REFUSED: Final = "is deprecated, and Envoy refuses it unless its runtime says otherwise; use what replaced it"


class Constraints:
    """The rules of a schema's messages."""

    def __init__(self, schema: Schema) -> None:
        self._field_options = schema.message_class("google.protobuf.FieldOptions")
        self._oneof_options = schema.message_class("google.protobuf.OneofOptions")
        self._message_options = schema.message_class("google.protobuf.MessageOptions")
        self._value_options = schema.message_class("google.protobuf.EnumValueOptions")
        self._rules = schema.extension("validate.rules")
        self._oneof_required = schema.extension("validate.required")
        self._off = tuple(schema.extension(f"validate.{name}") for name in ("disabled", "ignored"))
        self._refused = schema.extension("envoy.annotations.disallowed_by_default")
        self._refused_value = schema.extension("envoy.annotations.disallowed_by_default_enum")

    def of_field(self, field: FieldDescriptor) -> Rules:
        """The rules of a field."""
        options = _read(self._field_options, field)
        rules = NO_RULES
        if options.HasExtension(self._rules):
            rules = _rules(options.Extensions[self._rules], field)
        if options.HasExtension(self._refused) and options.Extensions[self._refused]:
            rules = msgspec.structs.replace(rules, refused=True)
        if field.enum_type is not None and (refused := self._refused_values(field.enum_type)):
            check = RuleCheck(lambda value: value not in refused, REFUSED, "refused")
            rules = msgspec.structs.replace(rules, checks=(*rules.checks, check))
        return rules

    def required(self, oneof: OneofDescriptor) -> bool:
        """Whether one of these fields must be set."""
        options = _read(self._oneof_options, oneof)
        return bool(options.Extensions[self._oneof_required])

    def is_disabled(self, message: Descriptor) -> bool:
        """Whether the message is not validated."""
        options = _read(self._message_options, message)
        return any(options.Extensions[each] for each in self._off)

    def _refused_values(self, enum: EnumDescriptor) -> frozenset[int]:
        values = ((each.number, _read(self._value_options, each)) for each in enum.values)
        return frozenset(number for number, options in values if options.Extensions[self._refused_value])


def _read(options: type[Message], described: Any) -> Any:
    """Options with extensions: those that a descriptor gives do not know the extensions of this schema."""
    return options.FromString(described.GetOptions().SerializeToString())


def _rules(rules: Any, field: FieldDescriptor) -> Rules:
    """The rules for a field, or for the items, keys or values of one."""
    kind = rules.WhichOneof("type")
    if kind is None:
        return Rules(required=rules.message.required, skip=rules.message.skip)
    part = getattr(rules, kind)
    items = keys = None
    if kind == "repeated" and part.HasField("items"):
        items = _rules(part.items, field)
    elif kind == "map" and field.message_type is not None:
        of = field.message_type.fields_by_name
        keys = _rules(part.keys, of["key"]) if part.HasField("keys") else None
        items = _rules(part.values, of["value"]) if part.HasField("values") else None
    return Rules(
        validate_rules.checks(kind, part, field),
        required=rules.message.required or bool(getattr(part, "required", False)),
        skip=rules.message.skip,
        items=items,
        keys=keys,
    )
