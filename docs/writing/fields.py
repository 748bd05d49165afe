"""Fields: every field of a type in a table, by its path, with its words and limits."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect as shape

from docs.writing import tables
from koguma.model import schema


def table(spec: type[msgspec.Struct], root_path: str) -> Iterator[str]:
    """The fields of a type, with paths that begin at `root_path`."""
    rows = list(_fields(shape.type_info(spec), root_path, {}))
    if not rows:
        yield "It has none."
        yield ""
        return
    yield from tables.table(("Field", "Type", "Required", "Description", "Limits"), rows)


def _fields(info: shape.Type, path: str, seen: dict[type, str]) -> Iterator[Sequence[str]]:
    """A row for each field; a type that stands on the page already is referred to."""
    found = _struct(info)
    if found is None or found[0].cls in seen:
        return
    struct, steps = found
    seen[struct.cls] = path + steps
    orders = schema.declared_orders(struct.cls)
    for field in struct.fields:
        at = f"{path}{steps}.{field.encode_name}".removeprefix(".")
        below = _struct(field.type)
        known = seen.get(below[0].cls) if below else None
        limits = [*_limits(field.type, orders), *_default(field)]
        if known is not None:
            limits.append(f"fields as in {tables.code(known or 'the root')}")
        required = "yes" if field.required else ""
        yield (
            tables.code(at),
            type_words(field.type),
            required,
            tables.text(description(field.type)),
            ", ".join(limits),
        )
        yield from _fields(field.type, at, seen)


def _struct(info: shape.Type, steps: str = "") -> tuple[shape.StructType, str] | None:
    """The object inside a type, and the steps to it: `[]` for a list's entry, `.*` for a map's."""
    match info:
        case shape.StructType():
            return info, steps
        case shape.Metadata(type=inner):
            return _struct(inner, steps)
        case shape.ListType(item_type=inner) | shape.VarTupleType(item_type=inner):
            return _struct(inner, f"{steps}[]")
        case shape.DictType(value_type=inner):
            return _struct(inner, f"{steps}.*")
        case shape.UnionType(types=types):
            return next((found for each in types if (found := _struct(each, steps))), None)
        case _:
            return None


def description(info: shape.Type) -> str:
    """A field's words: its own, else those of its type."""
    match info:
        case shape.Metadata(type=inner, extra_json_schema=schema):
            return str((schema or {}).get("description") or "") or description(inner)
        case shape.UnionType(types=types):
            return next((words for each in types if (words := description(each))), "")
        case _:
            return ""


_PLURALS: Final = {"any value": "values", "base64": "base64 texts"}


def type_words(info: shape.Type) -> str:
    """A type in the words of JSON, with durations and base64 beside them."""
    match info:
        case shape.Metadata(type=inner, extra=extra):
            return str((extra or {}).get("format") or type_words(inner))
        case shape.StrType() | shape.LiteralType():
            return "string" if isinstance(info, shape.StrType) else _literal_word(info)
        case shape.IntType():
            return "integer"
        case shape.FloatType():
            return "number"
        case shape.BoolType():
            return "boolean"
        case shape.ListType(item_type=inner) | shape.VarTupleType(item_type=inner):
            return f"list of {_plural(type_words(inner))}"
        case shape.DictType(value_type=inner):
            return f"map of {_plural(type_words(inner))}"
        case shape.UnionType(types=types):
            words = [type_words(each) for each in types if not isinstance(each, shape.NoneType)]
            return " or ".join(dict.fromkeys(words))
        case shape.StructType():
            return "object"
        case _:
            return "any value"


def _literal_word(info: shape.LiteralType) -> str:
    return "string" if all(isinstance(value, str) for value in info.values) else "integer"


def _plural(words: str) -> str:
    if words.startswith(("list of ", "map of ")):
        kind, _, rest = words.partition(" ")
        return f"{kind}s {rest}"
    return " or ".join(_PLURALS.get(word, f"{word}s") for word in words.split(" or "))


def _limits(info: shape.Type, orders: Mapping[frozenset[Any], tuple[Any, ...]]) -> Iterator[str]:
    match info:
        case shape.Metadata(type=inner, extra=extra):
            yield from _limits(inner, orders)
            if (extra or {}).get("sensitive"):
                yield "secret"
        case shape.LiteralType(values=values):
            yield "one of " + ", ".join(tables.code(v) for v in orders.get(frozenset(values), values))
        case shape.StrType(min_length=low, max_length=high, pattern=pattern):
            yield from _size("character", "characters", low, high)
            if pattern:
                yield f"matches {tables.code(pattern)}"
        case shape.IntType() | shape.FloatType():
            yield from _range(info)
        case shape.ListType() | shape.VarTupleType():
            yield from _size("entry", "entries", info.min_length, info.max_length)
            yield from (f"each {limit}" for limit in _limits(info.item_type, orders))
        case shape.DictType():
            yield from _size("entry", "entries", info.min_length, info.max_length)
            yield from (f"each {limit}" for limit in _limits(info.value_type, orders))
        case shape.UnionType(types=types):
            yield from (limit for each in types for limit in _limits(each, orders))


def _size(one: str, many: str, low: int | None, high: int | None) -> Iterator[str]:
    if low is not None and high is not None:
        yield f"{low} to {high} {many}"
    elif low is not None or high is not None:
        bound = low if low is not None else high
        yield f"at {'least' if high is None else 'most'} {bound} {one if bound == 1 else many}"


def _range(info: shape.IntType | shape.FloatType) -> Iterator[str]:
    if info.ge is not None and info.le is not None:
        yield f"{info.ge} to {info.le}"
        return
    signs = ((info.ge, "≥"), (info.gt, ">"), (info.le, "≤"), (info.lt, "<"))
    yield from (f"{sign} {bound}" for bound, sign in signs if bound is not None)


def _default(field: shape.Field) -> Iterator[str]:
    if isinstance(field.default, bool | int | float | str) and field.default != "":
        yield f"default {tables.code(shown(field.default))}"


def shown(value: object) -> str:
    """A default as it would be written."""
    return str(value).lower() if isinstance(value, bool) else str(value)
