"""Shaping: prune what a schema does not name, and fill in its defaults.

Neither changes the value that it is given, and both return that very value where nothing is to be done. Doing
it twice is the same as doing it once.
"""

import copy
from collections.abc import Callable

from koguma.kube.structural.words import (
    EMBEDDED,
    OBJECT_FIELDS,
    properties,
    takes_anything,
    values,
)
from koguma.model.schema import Json
from koguma.model.violation import child, item

Unknown = Callable[[str], None]  # is told the path of a field that was left out


def pruned(value: Json, schema: Json, unknown: Unknown = lambda _path: None) -> Json:
    """An object without the fields that its schema does not name; its own type and metadata stay."""
    return _pruned(value, schema, "", unknown, is_object=True)


def _pruned(value: Json, schema: Json, path: str, unknown: Unknown, *, is_object: bool = False) -> Json:
    if isinstance(value, list):
        items = schema.get("items")
        if not isinstance(items, dict):
            return value
        return _same_or(value, [_pruned(v, items, item(path, i), unknown) for i, v in enumerate(value)])
    if not isinstance(value, dict):
        return value
    kept: dict[str, Json] = {}
    named, others = properties(schema), values(schema)
    is_object = is_object or bool(schema.get(EMBEDDED))
    for name, field in value.items():
        at = child(path, name)
        if is_object and name in OBJECT_FIELDS:
            kept[name] = field
        elif name in named:
            kept[name] = _pruned(field, named[name], at, unknown)
        elif others is not None:
            kept[name] = _pruned(field, others, at, unknown)
        elif takes_anything(schema):
            kept[name] = field
        else:
            unknown(at)
    return _same_or(value, kept)


def defaulted(value: Json, schema: Json) -> Json:
    """A value with the defaults of its schema; null where it may not stand counts as absent."""
    if isinstance(value, list):
        items = schema.get("items")
        if not isinstance(items, dict):
            return value
        return _same_or(value, [defaulted(each, items) for each in value])
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    named, others = properties(schema), values(schema)
    for name, field_schema in named.items():
        if "default" in field_schema and _is_absent(filled, name, field_schema):
            filled[name] = copy.deepcopy(field_schema["default"])
        if name in filled:
            filled[name] = defaulted(filled[name], field_schema)
    if others is not None:
        for name in value:
            if name in named:
                continue
            if "default" in others and _is_absent(filled, name, others):
                filled[name] = copy.deepcopy(others["default"])
            filled[name] = defaulted(filled[name], others)
    return _same_or(value, filled)


def _is_absent(fields: dict[str, Json], name: str, schema: Json) -> bool:
    return name not in fields or (fields[name] is None and not schema.get("nullable"))


def _same_or(value: Json, made: Json) -> Json:
    """The value itself where the one that was made of it has the very same parts."""
    if len(value) != len(made):
        return made
    if isinstance(value, list):
        return value if all(a is b for a, b in zip(value, made, strict=True)) else made
    return value if all(name in value and value[name] is made[name] for name in made) else made
