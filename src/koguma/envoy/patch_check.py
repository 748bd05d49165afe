"""Patch check: violations of a modification against Envoy's schema, before it is applied.

A value has to be a message, or a part of one, of the type that it is merged into; what is added as a whole is
also checked against Envoy's rules. The pointer of a JSON patch has to lead through existing fields, and its
value has to fit there. What depends on the patched configuration (whether a field is set, how long a list is,
what an Any holds) is unknown here, and is reported when the patch is applied.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import jsonpointer
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from koguma.envoy.encode import Encoder
from koguma.envoy.patch_messages import Messages, Unpatchable, unpatchable
from koguma.envoy.patch_modifications import MESSAGES, ModificationParser, PolicyModification
from koguma.envoy.schema import Schema
from koguma.model import documents, json_patch, violation
from koguma.model.documents import BadDocument
from koguma.model.schema import Json
from koguma.model.violation import Violation, child, item

_RULE: Final = "envoy"  # not the rule of unknown fields, which a request may ask to ignore
# JSON patches of a filter start in its configuration. Only of these filters its type is known.
_FILTERS: Final[Mapping[str, str]] = {
    "envoy.filters.network.http_connection_manager": (
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    ),
    "envoy.filters.network.tcp_proxy": "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
    "envoy.filters.http.router": "envoy.extensions.filters.http.router.v3.Router",
}
_GOOGLE: Final = "google.protobuf."
_FREE_FORM: Final = frozenset(f"{_GOOGLE}{name}" for name in ("Any", "Struct", "Value", "ListValue"))
_TAKES_VALUE: Final = ("add", "replace")


_NOTHING: Final = object()


class PatchChecker:
    """Checks modifications with the message types of one Envoy."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._messages = Messages(schema)
        self._parser = ModificationParser(Encoder(schema), self._messages)

    def violations(self, modification: Json, path: str) -> Iterator[Violation]:
        """The violations of a modification at a path; its schema was checked before."""
        kind = next(name for name in MESSAGES if modification.get(name))
        conf, at = modification[kind], child(path, kind)
        try:
            self._parser.parsed(PolicyModification(modification, "", ""))
        except Unpatchable as error:
            yield from violation.under(at, _with_lines(error.violations, conf.get("value")))
        message = MESSAGES[kind]
        if kind in ("networkFilter", "httpFilter"):
            message = _FILTERS.get((conf.get("match") or {}).get("name") or "", "")
        for index, operation in enumerate(conf.get("jsonPatches") or () if message else ()):
            yield from self._operation(operation, message, item(child(at, "jsonPatches"), index))

    def _operation(self, operation: Json, message: str, path: str) -> Iterator[Violation]:
        for name in ("path", "from"):
            if operation.get(name) is None:
                continue
            # Only `add` may use the proto name of a field: the others look it up in the message's JSON form.
            is_add = name == "path" and operation.get("op") == "add"
            problems = list(self._problems(message, operation[name], _NOTHING, in_json=not is_add))
            yield from (Violation(child(path, name), text, _RULE) for text in problems)
            if name == "path" and not problems and operation.get("op") in _TAKES_VALUE:
                for text in self._problems(message, operation[name], operation.get("value")):
                    yield Violation(child(path, "value"), text, _RULE)

    def _problems(self, message: str, pointer: str, value: Any, *, in_json: bool = False) -> Iterator[str]:
        """The problems of a message that has nothing but a value at a pointer."""
        try:
            steps = jsonpointer.JsonPointer(pointer).parts
            data = _NestedValue(value, in_json=in_json).message(self._schema.descriptor(message), steps)
            if data is not _NOTHING:
                self._messages.read(message, data)
        except jsonpointer.JsonPointerException:
            yield f"{pointer}: is no JSON pointer; write ~0 for '~' and ~1 for '/'"
        except Unpatchable as error:
            # The pointer says where in the message it is.
            yield from (f"{pointer}: {each.message}" for each in error.violations)


def _with_lines(violations: Iterable[Violation], value: Json) -> Iterator[Violation]:
    """The violations of a value, with their lines in it where it is a text."""
    document = None
    if isinstance(value, str):
        try:
            (document,) = documents.load(value)
        except (BadDocument, ValueError):  # then that is the violation, and it has its line
            document = None
    for each in violations:
        text = each.message
        if document is not None:
            text = f"line {document.position(each.field.removeprefix('value.'))[0]}: {text}"
        yield Violation(each.field, text, _RULE)


class _NestedValue:
    """Builds plain data that has nothing but a value at a path; _NOTHING where the type there is unknown."""

    def __init__(self, value: Any, *, in_json: bool) -> None:
        self._value = value
        self._in_json = in_json

    def message(self, described: Descriptor, steps: Sequence[str]) -> Any:
        """Data of a message."""
        if not steps:
            return self._value
        if described.full_name in _FREE_FORM:
            return _NOTHING
        if described.full_name.startswith(_GOOGLE):
            raise _nothing_below(described.full_name, steps[0])
        name, *rest = steps
        field = next((each for each in described.fields if name in (each.json_name, each.name)), None)
        if field is None:
            return {name: {}}  # the parser reports it, and suggests a name
        if self._in_json and name != field.json_name:
            raise unpatchable(f'"{name}" is "{field.json_name}" in JSON, which a pointer leads through')
        inner = self._field(field, rest)
        return {} if inner is _NOTHING else {name: inner}

    def _field(self, field: FieldDescriptor, steps: Sequence[str]) -> Any:
        if not steps:
            return self._value
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            inner = self._one(entry.fields_by_name["value"], steps[1:])
            return _NOTHING if inner is _NOTHING else {steps[0]: inner}
        if field.is_repeated:
            if not json_patch.LIST_INDEX.fullmatch(steps[0]):
                words = f'"{field.json_name}" is a list; write an index, or "-" for its end'
                raise unpatchable(f'{words}, not "{steps[0]}"')
            inner = self._one(field, steps[1:])
            return _NOTHING if inner is _NOTHING else [inner]
        return self._one(field, steps)

    def _one(self, field: FieldDescriptor, steps: Sequence[str]) -> Any:
        """One value of a field."""
        if not steps:
            return self._value
        if field.message_type is None:
            raise _nothing_below(field.json_name, steps[0])
        return self.message(field.message_type, steps)


def _nothing_below(name: str, step: str) -> Unpatchable:
    return unpatchable(f'"{name}" is one value, and has no "{step}" in it')
