"""Tables: how the fields of each message type are read, checked and built; made once per type.

By field a table holds how a value is read, which rules of Envoy it must keep, and what protobuf's constructor
takes for it. One walk over the data does all three, and protobuf builds the whole tree in one call. That is
several times as fast as protobuf's own JSON reader, and tells everything that is wrong at once.

Where nothing is wrong no path is ever put together: what is wrong travels up as an exception, and each level
adds its own part.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from koguma.envoy import values
from koguma.envoy.constraints import DURATION, NO_RULES, REFUSED, REQUIRED, Constraints, Rules
from koguma.envoy.conversion import (
    Convert,
    Wrong,
    boxed,
    held_to,
    listed,
    mapped,
    must_be,
    remembered,
    shown,
    text,
    wrong,
)
from koguma.envoy.schema import Schema, UnknownType
from koguma.envoy.validate_rules import Check
from koguma.model import violation
from koguma.model.schema import Json
from koguma.model.violation import Violation

TYPE: Final = "@type"
_GOOGLE: Final = "google.protobuf."
_WRAPPERS: Final = tuple(
    f"{name}Value"
    for name in ("Bool", "Int32", "UInt32", "Int64", "UInt64", "Float", "Double", "String", "Bytes")
)
_OWN_FORMS: Final = frozenset(
    (*_WRAPPERS, "Any", "Duration", "Timestamp", "FieldMask", "Struct", "ListValue", "Value")
)

Pack = Callable[[Json], bytes]
# The field's name in the proto, the exact type of values that need no look, and how to convert all others.
Entry = tuple[str, type, Convert]


class _Never:
    """No value is of this type."""


class Tables:
    """All tables of a schema that were needed so far."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.constraints = Constraints(schema)
        self._tables: dict[tuple[str, bool], _Table] = {}
        self._packs: dict[tuple[str, bool], Pack] = {}
        made = values.JsonMessages(schema)
        self.null_takers: Final = frozenset((made.value, values.null))
        self._own_forms: dict[str, tuple[Convert, Convert | None]] = {
            "Duration": (values.duration_ns, values.duration),
            "Timestamp": (values.timestamp_ns, values.timestamp),
            "FieldMask": (values.field_mask, None),
            "Struct": (made.struct, None),
            "ListValue": (made.list_value, None),
            "Value": (made.value, None),
        }

    def pack(self, full_name: str, *, checked: bool = True) -> Pack:
        """How a message of that name becomes bytes; `UnknownType` where there is none."""
        key = (full_name, checked)
        if key not in self._packs:
            described = self._schema.descriptor(full_name)
            convert = self._one_message(described, NO_RULES, checked=checked)
            self._packs[key] = _pack(self._schema.message_class(full_name), convert)
        return self._packs[key]

    def _table(self, described: Descriptor, *, checked: bool) -> "_Table":
        """The table of a message type; `checked` is false below fields whose rules say so."""
        key = (described.full_name, checked)
        if key not in self._tables:
            self._tables[key] = _Table(
                self, described, checked=checked and not self.constraints.off(described)
            )
        return self._tables[key]

    def field(self, field: FieldDescriptor, rules: Rules, *, checked: bool) -> Convert:
        """How the value of a field is converted."""
        if rules.refused:
            return _refuse
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
            keys = self._one(key, rules.keys or NO_RULES, checked=checked)
            return mapped(keys, self._one(value, rules.items or NO_RULES, checked=checked), rules.checks)
        if field.is_repeated:
            return listed(self._one(field, rules.items or NO_RULES, checked=checked), rules.checks)
        return self._one(field, rules, checked=checked)

    def _one(self, field: FieldDescriptor, rules: Rules, *, checked: bool) -> Convert:
        """How one value is converted: of a field, or of an item of one."""
        if field.enum_type is not None:
            if field.enum_type.full_name == f"{_GOOGLE}NullValue":
                return values.null
            return remembered(held_to(values.enum(field.enum_type), rules.checks))
        if field.message_type is None:
            return held_to(values.SCALARS[field.type], rules.checks)
        return self._one_message(field.message_type, rules, checked=checked and not rules.skip)

    def _one_message(self, described: Descriptor, rules: Rules, *, checked: bool) -> Convert:
        name = described.full_name.removeprefix(_GOOGLE)
        if not _has_own_form(described):
            return self._table(described, checked=checked).made
        if name == "Any":
            return self._any(rules.checks, checked=checked)
        if name in _WRAPPERS:
            return boxed(held_to(values.SCALARS[described.fields_by_name["value"].type], rules.checks))
        parse, build = self._own_forms[name]
        convert = held_to(parse, (*(DURATION if name == "Duration" else ()), *rules.checks))
        return convert if build is None else remembered(lambda value: build(convert(value)))

    def _any(self, checks: tuple[Check, ...], *, checked: bool) -> Convert:
        """A message of any type, which is packed by itself."""
        known: dict[str, Pack] = {}
        url_of = held_to(text, checks)

        def convert(data: Json) -> dict[str, Any]:
            if type(data) is not dict and not isinstance(data, Mapping):
                raise must_be(f"a map with {TYPE}", data)
            url: Any = data.get(TYPE)
            pack = known.get(url) if type(url) is str else None
            if pack is None:
                pack = known[url] = self._pack_of_url(url_of, url, checked=checked)
            rest = dict(data)
            del rest[TYPE]
            return {"type_url": url, "value": pack(rest)}

        return convert

    def _pack_of_url(self, url_of: Convert, url: Any, *, checked: bool) -> Pack:
        if url is None:
            raise wrong(f'needs "{TYPE}", the type URL of the message', "required", TYPE)
        try:
            full_name = self._schema.resolve(url_of(url)).DESCRIPTOR.full_name
        except UnknownType as error:
            raise wrong(str(error), "any", TYPE) from None
        except Wrong as found:
            raise Wrong(violation.under(TYPE, found.violations)) from None
        pack = self.pack(full_name, checked=checked)
        return _of_value(pack) if _has_own_form(self._schema.descriptor(full_name)) else pack


def _has_own_form(described: Descriptor) -> bool:
    """Whether JSON writes this message in its own way, and not field by field."""
    package, _, name = described.full_name.rpartition(".")
    return f"{package}." == _GOOGLE and name in _OWN_FORMS


def _refuse(_value: Any) -> Any:
    raise wrong(REFUSED, "refused")


def _pack(make: type[Message], convert: Convert) -> Pack:
    def pack(data: Json) -> bytes:
        made = convert(data)
        message = make(**made) if type(made) is dict else made
        body = message.SerializeToString(deterministic=True)
        try:
            make.FromString(body)  # a hundred levels can be written, and not be read
        except DecodeError:
            raise wrong("is nested too deeply", "depth") from None
        return body

    return pack


def _of_value(pack: Pack) -> Pack:
    """Messages that JSON writes in its own way: in an Any they stand in a field of their own, `value`."""

    def pack_value(data: Json) -> bytes:
        value = data.pop("value", None)
        for name in data:
            raise wrong("there is no such field; all of it stands in `value`", "unknown", str(name))
        try:
            return pack(value)
        except Wrong as found:
            raise Wrong(violation.under("value", found.violations)) from None

    return pack_value


class _Table:
    """One message type: `made` gives what the constructor takes for plain data."""

    def __init__(self, tables: Tables, described: Descriptor, *, checked: bool) -> None:
        self._tables = tables
        self._described = described
        self._checked = checked
        self._is_complete = False
        self._null_takers: set[str] = set()
        # All of these are filled when the first data comes, as types contain each other.
        self._fields: dict[str, Entry] = {}
        self._absent: dict[str, Violation] = {}  # what breaks a rule by not being there
        self._oneofs: list[tuple[frozenset[str], bool, str]] = []  # of which only one may be there
        self.made: Final = self._walk()

    def _walk(self) -> Convert:
        """The walk over data in which nothing is wrong; whatever is odd goes on in `_rest`."""
        fields, absent, oneofs = self._fields, self._absent, self._oneofs

        def made(data: Json) -> dict[str, Any]:
            if not fields:
                self._complete()
            if type(data) is not dict and not isinstance(data, Mapping):
                raise must_be("a map", data)
            out: dict[str, Any] = {}
            key = None
            try:
                for key, value in data.items():
                    name, plain, convert = fields[key]
                    out[name] = value if type(value) is plain else convert(value)
            except (KeyError, Wrong) as odd:
                return self._rest(data, out, key, odd)
            for name in absent:
                if name not in out:
                    return self._judged(data, out, [])
            for members, required, _ in oneofs:
                n_set = len(members.intersection(out))
                if n_set != 1 and (n_set or required):
                    return self._judged(data, out, [])
            return out if len(out) == len(data) else self._judged(data, out, [])

        return made

    def _rest(
        self, data: Mapping[str, Any], out: dict[str, Any], odd_key: Any, odd: Exception
    ) -> dict[str, Any]:
        """The walk from the first odd field on: null, unknown, or wrong. No field is converted twice."""
        found: list[Violation] = []
        keys = list(data)
        for key in keys[keys.index(odd_key) :]:
            entry, value = self._fields.get(key), data[key]
            if entry is None:
                found.append(self._unknown(key))
            elif value is not None or entry[0] in self._null_takers:
                try:
                    if key is odd_key:
                        raise odd
                    out[entry[0]] = entry[2](value)
                except Wrong as error:
                    out[entry[0]] = None  # it is there, which other rules ask
                    found.extend(violation.under(key, error.violations))
        return self._judged(data, out, found)

    def _judged(self, data: Mapping[str, Any], out: dict[str, Any], found: list[Violation]) -> dict[str, Any]:
        """What was made, unless something is missing, said twice, or beside something that excludes it."""
        found.extend(self._said_twice(data))
        found.extend(missing for name, missing in self._absent.items() if name not in out)
        for members, required, oneof in self._oneofs:
            n_set = len(members.intersection(out))
            if n_set != 1 and (n_set or required):
                found.append(_wrong_choice(oneof, members, out))
        if found:
            raise Wrong(found)
        return out

    def _complete(self) -> None:
        """Read the description of the type."""
        if self._is_complete:
            return
        fields: dict[str, Entry] = {}
        for field in self._described.fields:
            rules = self._tables.constraints.of_field(field) if self._checked else NO_RULES
            convert = self._tables.field(field, rules, checked=self._checked)
            if convert in self._tables.null_takers:
                self._null_takers.add(field.name)
            if (missing := _missing(field, rules)) is not None:
                self._absent[field.name] = missing
            fields[field.name] = fields[field.json_name] = (
                field.name,
                _PLAIN.get(convert, _Never),
                convert,
            )
        self._oneofs[:] = self._choices()
        self._fields.update(fields)  # last and at once: another thread may be here too
        self._is_complete = True

    def _choices(self) -> Iterator[tuple[frozenset[str], bool, str]]:
        for oneof in self._described.oneofs:
            required = self._checked and self._tables.constraints.required(oneof)
            if required or len(oneof.fields) > 1:
                yield frozenset(field.name for field in oneof.fields), required, oneof.name

    def _unknown(self, key: Any) -> Violation:
        near = difflib.get_close_matches(str(key), self._fields, 1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        name = shown(str(key))
        return Violation(str(key), f"{self._described.full_name} has no field {name}{hint}", "unknown")

    def _said_twice(self, data: Mapping[str, Any]) -> Iterator[Violation]:
        """Fields that stand there in both spellings."""
        seen: dict[str, str] = {}
        for key, value in data.items():
            entry = self._fields.get(key)
            if entry is not None and value is not None:
                before = seen.setdefault(entry[0], key)
                if before != key:
                    yield Violation(key, f'is also written as "{before}"; keep one of them', "twice")


# Conversions that leave values of one type as they are.
_PLAIN: Final[Mapping[Convert, type]] = {text: str, values.boolean: bool}


def _missing(field: FieldDescriptor, rules: Rules) -> Violation | None:
    """What to say where a field is not there: protobuf cannot tell that from an empty or zero value."""
    if field.containing_oneof is not None:
        return None  # another one may be there instead
    if rules.required:
        return Violation(field.name, REQUIRED, "required")
    if field.has_presence:
        return None
    zero: Any = [] if field.is_repeated else field.default_value
    for check in rules.checks:
        if not check.fits(zero):
            return Violation(field.name, check.words, check.rule)
    return None


def _wrong_choice(oneof: str, members: frozenset[str], out: Mapping[str, Any]) -> Violation:
    several = [name for name in out if name in members]
    if several:
        return Violation(several[1], f"only one of {' and '.join(several)} can be there", "oneof")
    names = sorted(members)
    return Violation(oneof, f"{REQUIRED}; set one of {', '.join(names)}", "required")
