"""Pruning: values without the fields that their type does not have.

A value without such fields comes back as it is, and so does whatever does not fit its type: that is for the
`Checker` to name.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect as shape

from koguma.model.schema import Json

Prune = Callable[[Json], Json]


@cache
def pruner(type_: Any) -> Prune:
    """What removes unknown fields from values of a type; made once per type."""
    return _of(shape.type_info(type_)) or _unchanged


def _unchanged(value: Json) -> Json:
    return value


def _of(info: shape.Type) -> Prune | None:
    """None for types whose values have no fields that could be unknown."""
    match info:
        case shape.Metadata(type=inner):
            return _of(inner)
        case shape.StructType(cls=cls):
            return _of_struct(cls)
        case shape.ListType(item_type=inner) | shape.VarTupleType(item_type=inner):
            return _of_list(_of(inner))
        case shape.DictType(value_type=inner):
            return _of_map(_of(inner))
        case shape.UnionType(types=types):
            return _of_union(types)
        case _:
            return None


@cache
def _of_struct(cls: type[msgspec.Struct]) -> Prune:
    info = shape.type_info(cls)
    assert isinstance(info, shape.StructType), cls
    known = frozenset(field.encode_name for field in info.fields)
    # Made on first use, since a type may contain itself.
    inner: list[tuple[str, Prune]] | None = None

    def prune(value: Json) -> Json:
        nonlocal inner
        if not _is_object(value):
            return value
        if inner is None:
            inner = [(field.encode_name, p) for field in info.fields if (p := _of(field.type)) is not None]
        changes = {}
        for name, prune_field in inner:
            part = value.get(name)
            if part is not None and (after := prune_field(part)) is not part:
                changes[name] = after
        if not changes and known.issuperset(value):
            return value
        return {name: changes.get(name, part) for name, part in value.items() if name in known}

    return prune


def _of_list(prune_item: Prune | None) -> Prune | None:
    if prune_item is None:
        return None

    def prune(value: Json) -> Json:
        if not isinstance(value, list | tuple):
            return prune_item(value) if _is_object(value) else value  # some kinds take one item for a list
        items = [prune_item(part) for part in value]
        return value if _is_same(items, value) else items

    return prune


def _of_map(prune_value: Prune | None) -> Prune | None:
    if prune_value is None:
        return None

    def prune(value: Json) -> Json:
        if not _is_object(value):
            return value
        entries = {name: prune_value(part) for name, part in value.items()}
        return value if _is_same(entries.values(), value.values()) else entries

    return prune


def _of_union(types: Iterable[shape.Type]) -> Prune | None:
    """For `T | None` and choices between JSON types: each branch leaves what does not fit it alone."""
    branches = [branch for each in types if (branch := _of(each)) is not None]
    if not branches:
        return None

    def prune(value: Json) -> Json:
        for branch in branches:
            value = branch(value)
        return value

    return prune


def _is_object(value: Json) -> bool:
    return type(value) is dict or isinstance(value, Mapping)  # the first is ten times as fast


def _is_same(after: Iterable[Json], before: Iterable[Json]) -> bool:
    return all(new is old for new, old in zip(after, before, strict=True))
