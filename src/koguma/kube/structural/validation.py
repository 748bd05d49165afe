"""Validation: all that is wrong with a value by its schema, in Kubernetes' words.

With the value that it replaces at hand, parts that did not change are not judged again (ratcheting), so that
a stricter schema is in nobody's way until somebody changes what breaks it.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import re2

from koguma.kube import field_errors
from koguma.kube.structural import formats
from koguma.kube.structural.words import (
    EMBEDDED,
    INT_OR_STRING,
    LIST_KEYS,
    LIST_TYPE,
    MISSING,
    OBJECT_FIELDS,
    list_key,
    properties,
    values,
)
from koguma.model.resource import is_same
from koguma.model.schema import Json, json_type
from koguma.model.violation import Violation, child, item


def violations(value: Json, schema: Json, path: str = "", old: Json = MISSING) -> Iterator[Violation]:
    """What is wrong with a value; what is the same in `old` is taken as it is."""
    if old is not MISSING and is_same(value, old):
        return
    if value is None and (schema.get("nullable") or not _types(schema)):
        return
    wrong = _wrong_type(value, schema, path)
    if wrong is not None:
        yield wrong
        return
    yield from _limits(value, schema, path)
    if isinstance(value, dict):
        yield from _fields(value, schema, path, old)
    elif isinstance(value, list):
        yield from _items(value, schema, path, old)
    yield from _junctions(value, schema, path)


def is_valid(value: Json, schema: Json) -> bool:
    """Whether nothing is wrong with a value."""
    return next(violations(value, schema), None) is None


def _types(schema: Json) -> tuple[str, ...]:
    if schema.get(INT_OR_STRING):
        return ("integer", "string")
    return (schema["type"],) if schema.get("type") else ()


def _is_of(value: Json, name: str) -> bool:
    match name:
        case "integer":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return whole and not isinstance(value, bool)
        case "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
    return json_type(value) == name


def _wrong_type(value: Json, schema: Json, path: str) -> Violation | None:
    types = _types(schema)
    is_float = bool(schema.get(INT_OR_STRING)) and isinstance(value, float)
    if not types or (any(_is_of(value, name) for name in types) and not is_float):
        return None
    expected = ",".join(types)
    return _mistyped(path, json_type(value), f'must be of type {expected}: "{json_type(value)}"')


def _mistyped(path: str, value: Json, words: str) -> Violation:
    return field_errors.invalid(path or "<nil>", value, f"{path} in body {words}", "type")


def _limits(value: Json, schema: Json, path: str) -> Iterator[Violation]:
    enum = schema.get("enum")
    if enum is not None and not any(is_same(value, each) for each in enum):
        yield field_errors.unsupported(path, value, enum)
    if isinstance(value, str):
        yield from _string_limits(value, schema, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _number_limits(value, schema, path)
    elif isinstance(value, list):
        yield from _size_limits(value, schema, path, ("minItems", "maxItems", "items"))
    elif isinstance(value, dict):
        yield from _size_limits(value, schema, path, ("minProperties", "maxProperties", "properties"))


def _string_limits(value: str, schema: Json, path: str) -> Iterator[Violation]:
    low, high, text = schema.get("minLength"), schema.get("maxLength"), schema.get("pattern")
    if high is not None and len(value) > high:
        yield field_errors.too_long(path, high)
    if low is not None and len(value) < low:
        yield _out_of(path, value, f"should be at least {low} chars long")
    if text and not pattern(text).search(value):
        yield _out_of(path, value, f"should match '{text}'")
    named = schema.get("format")
    if named and not formats.fits(value, named):
        yield _mistyped(path, value, f"must be of type {named}: {field_errors.shown(value)}")


def _number_limits(value: float, schema: Json, path: str) -> Iterator[Violation]:
    low, high, step = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf")
    if low is not None:
        if schema.get("exclusiveMinimum") and value <= low:
            yield _out_of(path, value, f"should be greater than {_number(low)}")
        elif value < low:
            yield _out_of(path, value, f"should be greater than or equal to {_number(low)}")
    if high is not None:
        if schema.get("exclusiveMaximum") and value >= high:
            yield _out_of(path, value, f"should be less than {_number(high)}")
        elif value > high:
            yield _out_of(path, value, f"should be less than or equal to {_number(high)}")
    if step and not float(value / step).is_integer():
        yield _out_of(path, value, f"should be a multiple of {_number(step)}")
    named = schema.get("format")
    if named and not formats.in_range(value, named):
        words = f"must be of type {schema.get('type', 'integer')} with format {named}"
        yield field_errors.invalid(path, value, f"{path} in body {words}", "range")


def _size_limits(value: Any, schema: Json, path: str, words: tuple[str, str, str]) -> Iterator[Violation]:
    least, most, what = words
    low, high = schema.get(least), schema.get(most)
    if high is not None and len(value) > high:
        yield field_errors.too_many(path, len(value), high)
    if low is not None and len(value) < low:
        yield _out_of(path, len(value), f"should have at least {low} {what}")


def _out_of(path: str, value: Json, words: str) -> Violation:
    return field_errors.invalid(path, value, f"{path} in body {words}", "range")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


@lru_cache(maxsize=4096)
def pattern(text: str) -> Any:
    """A compiled pattern; re2.error where it is none."""
    options = re2.Options()
    options.log_errors = False
    return re2.compile(text, options=options)


def _fields(value: dict[str, Json], schema: Json, path: str, old: Json) -> Iterator[Violation]:
    before = old if isinstance(old, dict) else {}
    for name in schema.get("required") or ():
        if name not in value:
            yield field_errors.required(child(path, name))
    if schema.get(EMBEDDED):
        yield from _embedded(value, path)
    named, others = properties(schema), values(schema)
    for name, field in value.items():
        if schema.get(EMBEDDED) and name in OBJECT_FIELDS and name not in named:
            continue
        field_schema = named.get(name, others)
        if field_schema is not None:
            yield from violations(field, field_schema, child(path, name), before.get(name, MISSING))


def _embedded(value: dict[str, Json], path: str) -> Iterator[Violation]:
    for name in ("apiVersion", "kind"):
        found = value.get(name)
        if not found:
            yield field_errors.required(child(path, name), "must not be empty")
        elif not isinstance(found, str):
            yield _mistyped(
                child(path, name), json_type(found), f'must be of type string: "{json_type(found)}"'
            )


def _items(value: list[Json], schema: Json, path: str, old: Json) -> Iterator[Violation]:
    items = schema.get("items")
    keys = schema.get(LIST_KEYS) or []
    before: dict[Json, Json] = {}
    if schema.get(LIST_TYPE) == "map" and isinstance(old, list) and isinstance(items, dict):
        before = {list_key(each, keys, items): each for each in old}
    for index, each in enumerate(value):
        if isinstance(items, dict):
            replaced = before.get(list_key(each, keys, items), MISSING) if before else MISSING
            yield from violations(each, items, item(path, index), replaced)
    yield from _duplicates(value, schema, path)


def _duplicates(value: list[Json], schema: Json, path: str) -> Iterator[Violation]:
    """Items of a set, or keys of a list map, that stand in it twice."""
    seen: set[Any] = set()
    kind, items, keys = schema.get(LIST_TYPE), schema.get("items") or {}, schema.get(LIST_KEYS) or []
    if kind not in ("set", "map"):
        return
    for index, each in enumerate(value):
        key: Any = list_key(each, keys, items) if kind == "map" else _identity(each)
        if key is None:
            continue
        if key in seen:
            shown = {name: each[name] for name in keys if name in each} if kind == "map" else each
            yield field_errors.duplicate(item(path, index), shown)
        seen.add(key)


def _identity(value: Json) -> Json:
    if isinstance(value, dict):
        return tuple(sorted((name, _identity(each)) for name, each in value.items()))
    if isinstance(value, list):
        return tuple(_identity(each) for each in value)
    return (json_type(value), str(value)) if not isinstance(value, (int, float)) else ("number", str(value))


def _junctions(value: Json, schema: Json, path: str) -> Iterator[Violation]:
    quoted = f'"{path}"'
    for part in schema.get("allOf") or ():
        yield from violations(value, part, path)
    for word, needed in (("anyOf", "at least one schema"), ("oneOf", "one and only one schema")):
        choices: Sequence[Json] = schema.get(word) or ()
        if not choices:
            continue
        found = [list(violations(value, each, path)) for each in choices]
        n_valid = sum(1 for each in found if not each)
        if n_valid == 1 or (n_valid and word == "anyOf"):
            continue
        how = (
            ""
            if word == "anyOf"
            else ". Found none valid"
            if not n_valid
            else f". Found {n_valid} valid alternatives"
        )
        yield field_errors.invalid(
            path or "<nil>", "", f"{quoted} must validate {needed} ({word}){how}", word
        )
        if not n_valid:
            yield from min(found, key=len)
    if schema.get("not") is not None and is_valid(value, schema["not"]):
        yield field_errors.invalid(path or "<nil>", "", f"{quoted} must not validate the schema (not)", "not")
