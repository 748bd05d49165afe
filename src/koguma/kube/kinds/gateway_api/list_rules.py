"""List rules: lists whose items are told apart by fields, or stand once each, have no item twice."""

from collections.abc import Callable, Iterator
from functools import cache

import msgspec
from msgspec import inspect as shape

from koguma.kube import field_errors
from koguma.model.schema import Json, Spec
from koguma.model.violation import Violation, child, item

_Check = Callable[[Json, str], Iterator[Violation]]
_TYPE = "x-kubernetes-list-type"
_KEYS = "x-kubernetes-list-map-keys"


def violations(spec: Spec) -> Iterator[Violation]:
    """Items that stand twice in a spec."""
    return _checker(type(spec))(msgspec.to_builtins(spec), "spec")


@cache
def _checker(type_: type[Spec]) -> _Check:
    return _compiled(shape.type_info(type_), {})


def _compiled(info: shape.Type, extra: dict[str, Json]) -> _Check:
    match info:
        case shape.Metadata(type=inner):
            return _compiled(inner, {**extra, **(info.extra_json_schema or {})})
        case shape.StructType():
            return _object(info)
        case shape.ListType() | shape.VarTupleType():
            return _list(_compiled(info.item_type, {}), extra)
        case shape.UnionType(types=types):
            return _compiled(next(each for each in types if not isinstance(each, shape.NoneType)), extra)
        case _:
            return _nothing


def _nothing(_value: Json, _path: str) -> Iterator[Violation]:
    return iter(())


def _object(info: shape.StructType) -> _Check:
    fields = [(field.encode_name, _compiled(field.type, {})) for field in info.fields]
    checked = [(name, check) for name, check in fields if check is not _nothing]

    def check(value: Json, path: str) -> Iterator[Violation]:
        for name, each in checked:
            if name in value:
                yield from each(value[name], child(path, name))

    return check if checked else _nothing


def _list(inner: _Check, extra: dict[str, Json]) -> _Check:
    keys: tuple[str, ...] = tuple(extra.get(_KEYS, ()))
    is_unique = extra.get(_TYPE) in ("map", "set")
    if inner is _nothing and not is_unique:
        return _nothing

    def check(value: Json, path: str) -> Iterator[Violation]:
        seen: list[Json] = []
        for index, each in enumerate(value):
            at = item(path, index)
            if is_unique:
                identity = {key: each.get(key) for key in keys} if keys else each
                if identity in seen:
                    yield field_errors.duplicate(at, identity)
                seen.append(identity)
            yield from inner(each, at)

    return check
