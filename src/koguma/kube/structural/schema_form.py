"""Schema form: whether a value is a schema at all, with keywords that exist and values of their types."""

from collections.abc import Callable, Iterator
from typing import Final

import re2

from koguma.kube import field_errors
from koguma.kube.structural import validation
from koguma.kube.structural.words import (
    EMBEDDED,
    INT_OR_STRING,
    JUNCTIONS,
    LIST_KEYS,
    LIST_TYPE,
    MAP_TYPE,
    PRESERVE,
    RULES,
)
from koguma.model.schema import Json, json_type
from koguma.model.violation import Violation, item

DEPTH_MAX: Final = 60
_TEXTS: Final = ("description", "format", "pattern", "title", "type", LIST_TYPE, MAP_TYPE)
_NUMBERS: Final = ("maximum", "minimum", "multipleOf")
_COUNTS: Final = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
_FLAGS: Final = (
    "exclusiveMaximum",
    "exclusiveMinimum",
    "nullable",
    "uniqueItems",
    EMBEDDED,
    INT_OR_STRING,
    PRESERVE,
)
_LISTS: Final = ("required", LIST_KEYS)
_FREE: Final = ("default", "enum", "example", "externalDocs", RULES)
_SCHEMAS: Final = ("properties", "additionalProperties", "items", "not", *JUNCTIONS)
_FORBIDDEN: Final = (
    "$ref",
    "definitions",
    "dependencies",
    "patternProperties",
    "additionalItems",
    "id",
    "$schema",
)
_KNOWN: Final = frozenset((*_TEXTS, *_NUMBERS, *_COUNTS, *_FLAGS, *_LISTS, *_FREE, *_SCHEMAS, *_FORBIDDEN))


def known_only(schema: Json, path: str, unknown: Callable[[str], None]) -> Json:
    """A schema without keywords that do not exist."""
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Json] = {}
    for name, value in schema.items():
        at = f"{path}.{name}"
        if name not in _KNOWN:
            unknown(at)
        elif name == "properties" and isinstance(value, dict):
            kept[name] = {key: known_only(field, f"{at}[{key}]", unknown) for key, field in value.items()}
        elif name in JUNCTIONS and isinstance(value, list):
            kept[name] = [known_only(part, item(at, index), unknown) for index, part in enumerate(value)]
        elif name in ("items", "additionalProperties", "not"):
            kept[name] = known_only(value, at, unknown)
        else:
            kept[name] = value
    return kept


def violations(schema: Json, path: str, depth: int = 0) -> Iterator[Violation]:
    """What is no schema at all."""
    if not isinstance(schema, dict):
        yield _mistyped(path, "object", schema)
        return
    if depth > DEPTH_MAX:
        yield field_errors.forbidden(path, f"schemas may not be nested deeper than {DEPTH_MAX} levels")
        return
    for name, value in schema.items():
        at = f"{path}.{name}"
        if name in _FORBIDDEN and value is not None:
            yield field_errors.forbidden(at, f"{name} is not supported")
        elif value is not None:
            yield from _keyword(name, value, at, depth)


def _keyword(name: str, value: Json, at: str, depth: int) -> Iterator[Violation]:
    expected = _expected(name, value)
    if expected:
        yield _mistyped(at, expected, value)
    elif name == "pattern":
        yield from _pattern(value, at)
    elif name == "properties":
        for field, schema in value.items():
            yield from violations(schema, f"{at}[{field}]", depth + 1)
    elif name in JUNCTIONS:
        for index, each in enumerate(value):
            yield from violations(each, item(at, index), depth + 1)
    elif name == "items" and isinstance(value, list):
        yield field_errors.forbidden(at, "items must be a schema object and not an array")
    elif name in ("items", "not") or (name == "additionalProperties" and not isinstance(value, bool)):
        yield from violations(value, at, depth + 1)


def _expected(name: str, value: Json) -> str:
    """The type that a keyword needs and its value is not of; empty where it fits."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_list = isinstance(value, list)
    fits, expected = True, ""
    if name in _TEXTS:
        fits, expected = isinstance(value, str), "string"
    elif name in _FLAGS:
        fits, expected = isinstance(value, bool), "boolean"
    elif name in _NUMBERS:
        fits, expected = is_number, "number"
    elif name in _COUNTS:
        fits, expected = is_number and isinstance(value, int) and value >= 0, "integer, and not negative"
    elif name in _LISTS:
        fits, expected = is_list and all(isinstance(each, str) for each in value), "array of strings"
    elif name == "enum" or name in JUNCTIONS:
        fits, expected = is_list, "array"
    elif name == "properties":
        fits, expected = isinstance(value, dict), "object"
    return "" if fits else expected


def _pattern(value: str, at: str) -> Iterator[Violation]:
    try:
        validation.pattern(value)
    except re2.error as error:
        yield field_errors.invalid(at, value, f"must be a valid regular expression: {error}")


def _mistyped(path: str, expected: str, value: Json) -> Violation:
    return field_errors.invalid(path, json_type(value), f"must be of type {expected}", "type")
