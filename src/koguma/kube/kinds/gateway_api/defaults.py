"""Defaults: what the server fills into an object of the Gateway API, as its types have it."""

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect as shape

from koguma.kube.kinds import parts
from koguma.model.schema import Json, Spec

_Fill = Callable[[Json], Json]


def cleaned(type_: type[Spec]) -> _Fill:
    """Makes a spec of this type one to store: without nulls, and with the defaults of absent fields."""

    def clean(spec: Json) -> Json:
        return _filler(type_)(parts.without_nulls(spec))

    return clean


@cache
def _filler(type_: type[Spec]) -> _Fill:
    return _compiled(shape.type_info(type_))


def _compiled(info: shape.Type) -> _Fill:
    match info:
        case shape.Metadata(type=inner):
            return _compiled(inner)
        case shape.StructType():
            return _object(info)
        case shape.ListType() | shape.VarTupleType():
            return _list(_compiled(info.item_type))
        case shape.UnionType(types=types):
            return _compiled(next(each for each in types if not isinstance(each, shape.NoneType)))
        case _:
            return _as_it_is


def _as_it_is(value: Json) -> Json:
    return value


def _list(fill: _Fill) -> _Fill:
    if fill is _as_it_is:
        return fill

    def filled(value: Json) -> Json:
        return [fill(each) for each in value] if isinstance(value, list) else value

    return filled


def _object(info: shape.StructType) -> _Fill:
    fields = [(field.encode_name, _default(field.default), _compiled(field.type)) for field in info.fields]

    def filled(value: Json) -> Json:
        if not isinstance(value, dict):
            return value
        result = dict(value)
        for name, default, fill in fields:
            if name in result or default is not None:
                result[name] = fill(result.get(name, default))
        return result

    return filled


def _default(default: Any) -> Json:
    return None if default is msgspec.NODEFAULT else msgspec.json.decode(msgspec.json.encode(default))
