"""Schema rules: whether a schema is structural, so that values can be pruned, defaulted and merged by it.

Each part of an object has one type, and conditions (`allOf`, `anyOf`, `oneOf`, `not`) only restrict what is
described outside of them.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from koguma.kube import field_errors
from koguma.kube.structural import cel_rules, schema_form, shaping, validation
from koguma.kube.structural.words import (
    EMBEDDED,
    INT_OR_STRING,
    JUNCTIONS,
    LIST_KEYS,
    LIST_TYPE,
    MAP_TYPE,
    PRESERVE,
    RULES,
    properties,
    values,
)
from koguma.model.schema import Json
from koguma.model.violation import Violation, item

_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
_SCALARS: Final = ("boolean", "integer", "number", "string")
_NOT_IN_JUNCTION: Final = (
    "additionalProperties",
    "default",
    "description",
    "nullable",
    "title",
    "type",
    EMBEDDED,
    INT_OR_STRING,
    LIST_KEYS,
    LIST_TYPE,
    MAP_TYPE,
    PRESERVE,
    RULES,
)
_INT_OR_STRING_CHOICE: Final = [{"type": "integer"}, {"type": "string"}]


def violations(schema: Json, path: str) -> Iterator[Violation]:
    """Why a schema is not structural; what is found wrong in its form hides what follows from it."""
    malformed = list(schema_form.violations(schema, path))
    yield from malformed
    if malformed:
        return
    kind = schema.get("type")
    if not kind:
        yield field_errors.required(f"{path}.type", "must not be empty at the root")
    elif kind != "object":
        yield field_errors.invalid(f"{path}.type", kind, "must be object at the root")
    if schema.get("nullable"):
        yield field_errors.forbidden(f"{path}.nullable", "nullable cannot be true at the root")
    yield from _metadata(properties(schema).get("metadata"), f"{path}.properties[metadata]")
    structure = [*_structure(schema, path, is_root=True)]
    yield from structure
    if not structure:
        yield from _defaults(schema, path)
        yield from cel_rules.schema_violations(schema, path)


def _metadata(schema: Json | None, path: str) -> Iterator[Violation]:
    if schema is None:
        return
    if schema.get("type") != "object":
        yield field_errors.invalid(f"{path}.type", schema.get("type") or "", "must be object")
    extra = set(properties(schema)) - {"name", "generateName"}
    if extra or set(schema) - {"type", "properties", "description"}:
        what = (
            "must not specify anything other than name and generateName, but metadata is implicitly specified"
        )
        yield field_errors.forbidden(path, what)


def _structure(schema: Json, path: str, *, is_root: bool = False) -> Iterator[Violation]:
    """The rules of every part that has a type of its own."""
    kind = schema.get("type")
    if kind and kind not in _TYPES:
        yield field_errors.unsupported(f"{path}.type", kind, _TYPES)
        return
    yield from _flags(schema, path, kind)
    yield from _children(schema, path, is_root=is_root)
    yield from _list(schema, path, kind)
    if schema.get(MAP_TYPE) is not None:
        yield from _map(schema, path, kind)
    for word in (*JUNCTIONS, "not"):
        found = schema.get(word)
        parts = found if isinstance(found, list) else [found] if found else []
        for index, part in enumerate(parts):
            at = f"{path}.{word}" if word == "not" else item(f"{path}.{word}", index)
            if schema.get(INT_OR_STRING) and _is_int_or_string_choice(schema, word, part):
                continue
            yield from _condition(part, schema, at, path)


def _is_int_or_string_choice(schema: Json, word: str, part: Json) -> bool:
    """`anyOf: [{type: integer}, {type: string}]`, by itself or in `allOf`, is what int-or-string means."""
    if word == "anyOf":
        return bool(schema["anyOf"] == _INT_OR_STRING_CHOICE)
    return word == "allOf" and part.get("anyOf") == _INT_OR_STRING_CHOICE and set(part) == {"anyOf"}


def _flags(schema: Json, path: str, kind: str | None) -> Iterator[Violation]:
    if schema.get("uniqueItems"):
        what = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield field_errors.forbidden(f"{path}.uniqueItems", what)
    if schema.get("additionalProperties") is False:
        yield field_errors.forbidden(
            f"{path}.additionalProperties", "additionalProperties cannot be set to false"
        )
    if schema.get("additionalProperties") and schema.get("properties"):
        what = "additionalProperties and properties are mutual exclusive"
        yield field_errors.forbidden(f"{path}.additionalProperties", what)
    if schema.get(INT_OR_STRING) and kind:
        what = f"must be empty if {INT_OR_STRING} is true"
        yield field_errors.invalid(f"{path}.type", kind, what)
    if schema.get(PRESERVE) is False:
        yield field_errors.invalid(f"{path}.{PRESERVE}", value=False, detail="must be true or undefined")
    if schema.get(EMBEDDED):
        if kind != "object":
            what = f"must be object if {EMBEDDED} is true"
            yield field_errors.invalid(f"{path}.type", kind or "", what)
        if not schema.get(PRESERVE) and not schema.get("properties"):
            what = f"must not be empty if {EMBEDDED} is true without {PRESERVE}"
            yield field_errors.required(f"{path}.properties", what)


def _children(schema: Json, path: str, *, is_root: bool) -> Iterator[Violation]:
    for name, field in properties(schema).items():
        at = f"{path}.properties[{name}]"
        if is_root and name == "metadata":  # it has rules of its own
            continue
        yield from _typed(field, at, "must not be empty for specified object fields")
        yield from _structure(field, at)
    others = values(schema)
    if others is not None:
        at = f"{path}.additionalProperties"
        yield from _typed(others, at, "must not be empty for specified object fields")
        yield from _structure(others, at)
    items = schema.get("items")
    if isinstance(items, dict):
        yield from _typed(items, f"{path}.items", "must not be empty for specified array items")
        yield from _structure(items, f"{path}.items")
    elif schema.get("type") == "array":
        yield field_errors.required(f"{path}.items", "must be specified")


def _typed(schema: Json, path: str, detail: str) -> Iterator[Violation]:
    if not (schema.get("type") or schema.get(INT_OR_STRING) or schema.get(PRESERVE)):
        yield field_errors.required(f"{path}.type", detail)


def _list(schema: Json, path: str, kind: str | None) -> Iterator[Violation]:
    listed, keys = schema.get(LIST_TYPE), schema.get(LIST_KEYS)
    items = schema.get("items") if isinstance(schema.get("items"), dict) else {}
    if listed is not None and kind != "array":
        yield field_errors.invalid(f"{path}.type", kind or "", f"must be array if {LIST_TYPE} is specified")
    if listed is not None and listed not in ("atomic", "map", "set"):
        yield field_errors.unsupported(f"{path}.{LIST_TYPE}", listed, ("atomic", "map", "set"))
    if keys is not None and listed != "map":
        what = f"must be map if {LIST_KEYS} is non-empty"
        yield field_errors.invalid(f"{path}.{LIST_TYPE}", listed or "", what)
    if listed == "set" and items.get("nullable"):
        yield field_errors.forbidden(f"{path}.items.nullable", f"cannot be nullable when {LIST_TYPE} is set")
    if (
        listed == "set"
        and items.get("type") in ("object", "array")
        and "atomic"
        not in (
            items.get(MAP_TYPE),
            items.get(LIST_TYPE),
        )
    ):
        what = f"must be atomic as item of a list with {LIST_TYPE}=set"
        yield field_errors.invalid(f"{path}.items.{MAP_TYPE}", items.get(MAP_TYPE) or "", what)
    if listed == "map":
        yield from _list_keys(keys or [], items, path)


def _list_keys(keys: list[str], items: Json, path: str) -> Iterator[Violation]:
    if not keys:
        yield field_errors.required(f"{path}.{LIST_KEYS}", f"must not be empty if {LIST_TYPE} is map")
    if items.get("type") != "object":
        what = f"must be object if parent array's {LIST_TYPE} is map"
        yield field_errors.invalid(f"{path}.items.type", items.get("type") or "", what)
        return
    for index, name in enumerate(keys):
        at = item(f"{path}.{LIST_KEYS}", index)
        field = properties(items).get(name)
        if field is None:
            yield field_errors.invalid(at, name, "entries must all be names of item properties")
        elif field.get("type") not in _SCALARS:
            yield field_errors.invalid(at, name, "must be a scalar type if it is a key of a list map")
        elif name not in (items.get("required") or ()) and "default" not in field:
            what = f"this property is in {LIST_KEYS}, so it must have a default or be a required property"
            yield field_errors.required(f"{path}.items.properties[{name}].default", what)
        if name in keys[:index]:
            yield field_errors.duplicate(at, name)


def _map(schema: Json, path: str, kind: str | None) -> Iterator[Violation]:
    if schema[MAP_TYPE] not in ("atomic", "granular"):
        yield field_errors.unsupported(f"{path}.{MAP_TYPE}", schema[MAP_TYPE], ("atomic", "granular"))
    if kind != "object":
        yield field_errors.invalid(f"{path}.type", kind or "", f"must be object if {MAP_TYPE} is specified")


def _condition(schema: Json, outside: Json, path: str, outside_path: str) -> Iterator[Violation]:
    """A part of a condition: it restricts fields that are described outside of it, and describes none."""
    for name in _NOT_IN_JUNCTION:
        if schema.get(name) is not None:
            yield field_errors.forbidden(f"{path}.{name}", "must be empty to be structural")
    named: Mapping[str, Json] = properties(outside)
    for name, field in properties(schema).items():
        at = f"{path}.properties[{name}]"
        if name not in named and values(outside) is None:
            where = f"{outside_path}.properties[{name}]"
            yield field_errors.required(where, f"because it is defined in {at}")
            continue
        yield from _condition(
            field, named.get(name, values(outside)), at, f"{outside_path}.properties[{name}]"
        )
    if isinstance(schema.get("items"), dict):
        if not isinstance(outside.get("items"), dict):
            yield field_errors.required(f"{outside_path}.items", f"because it is defined in {path}.items")
        else:
            yield from _condition(schema["items"], outside["items"], f"{path}.items", f"{outside_path}.items")
    for word in (*JUNCTIONS, "not"):
        found = schema.get(word)
        for index, part in enumerate(found if isinstance(found, list) else [found] if found else []):
            at = f"{path}.{word}" if word == "not" else item(f"{path}.{word}", index)
            yield from _condition(part, outside, at, outside_path)


def _defaults(schema: Json, path: str) -> Iterator[Violation]:
    """Defaults that the schema itself would not take."""
    for name, field in properties(schema).items():
        yield from _default(field, f"{path}.properties[{name}]")
    others = values(schema)
    if others is not None:
        yield from _default(others, f"{path}.additionalProperties")
    if isinstance(schema.get("items"), dict):
        yield from _default(schema["items"], f"{path}.items")


def _default(schema: Json, path: str) -> Iterator[Violation]:
    if "default" in schema:
        value, at = schema["default"], f"{path}.default"
        unknown: list[str] = []
        if value is None and not schema.get("nullable"):
            yield field_errors.invalid(at, None, "must not be null where the field is not nullable")
        else:
            shaped = shaping.defaulted(shaping.pruned(value, schema, unknown.append), schema)
            for each in unknown:
                yield field_errors.invalid(f"{at}.{each}", value, "must not have unknown fields")
            yield from validation.violations(shaped, schema, at)
    yield from _defaults(schema, path)
