"""Typed parts: the values inside an object that have a certain type, found by its schema and not by names.

What must be known about a value (that it is secret, that it refers to a Secret) is said once, where its type
is declared. A new kind or field of that type is then covered without another list to keep.

A field of free JSON may say how it is to be read: `doc(..., extra={READ_AS: MeshProvidedConf})`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect as shape

from koguma.model.redacted import SHOWN
from koguma.model.schema import Json
from koguma.model.violation import child, item, key

READ_AS: Final = "read_as"
SENSITIVE: Final = "sensitive"
PROXY_FILE: Final = "proxy_file"  # a file that Envoy writes on the machine of a proxy
PROXY_ADDRESS: Final = "proxy_address"  # what Envoy connects to: with unix:// a socket on that machine


class TypedPart(NamedTuple):
    """A value of the type that was looked for, and where it stands."""

    path: str
    value: Json


# What is looked for: a class, or a word that a type has among its `extra`.
PartTypes = frozenset[type | str]


def parts_of(type_: type, value: Json, sought: PartTypes, path: str = "") -> Iterator[TypedPart]:
    """The parts of a value that are of one of these types, as JSON."""
    return _parts(_info(type_), value, path, sought)


def _parts(info: shape.Type, value: Json, path: str, sought: PartTypes) -> Iterator[TypedPart]:
    if value is None or not _holds(info, sought):
        return
    match info:
        case shape.Metadata(extra=extra) if not sought.isdisjoint(extra or ()):
            yield TypedPart(path, value)
        case shape.StructType(cls=cls) if cls in sought and isinstance(value, Mapping):
            yield TypedPart(path, value)
    for inner, part, at in _inside(info, value, path):
        yield from _parts(inner, part, at, sought)


def _inside(info: shape.Type, value: Json, path: str) -> Iterator[tuple[shape.Type, Json, str]]:
    """What a value consists of, each part with its type and its place."""
    match info:
        case shape.Metadata(type=inner, extra=extra):
            yield _read_as(inner, extra), value, path
        case shape.StructType(fields=fields) if isinstance(value, Mapping):
            names = ((field.encode_name, field.type) for field in fields)
            yield from ((type_, value.get(name), child(path, name)) for name, type_ in names)
        case shape.ListType() | shape.VarTupleType() if isinstance(value, list | tuple):
            yield from ((info.item_type, entry, item(path, index)) for index, entry in enumerate(value))
        case shape.DictType() if isinstance(value, Mapping):
            yield from ((info.value_type, entry, key(path, str(name))) for name, entry in value.items())
        case shape.UnionType(types=types):
            yield from ((each, value, path) for each in types)


class SecretPart(NamedTuple):
    """A text that is secret by its type, and where it stands."""

    path: str
    text: str
    is_base64: bool


ReplaceSecret = Callable[[SecretPart], str]


def masked(type_: type, value: Json, mask: str = SHOWN) -> Json:
    """The value with every text hidden whose type says that it is secret."""
    return secrets_replaced(type_, value, lambda _: mask)


def secrets_replaced(type_: type, value: Json, replace: ReplaceSecret, path: str = "") -> Json:
    """The value with another text for every text whose type says that it is secret."""
    return _replaced(_info(type_), value, path, replace, {})


def _replaced(
    info: shape.Type, value: Json, path: str, replace: ReplaceSecret, marks: Mapping[str, Any]
) -> Json:
    """`marks` are what the types around this value say about it, up to the field that it is in."""
    if value is None:
        return None
    match info:
        case shape.Metadata(type=inner, extra=extra):
            return _replaced(_read_as(inner, extra), value, path, replace, {**marks, **(extra or {})})
        case shape.StructType() if isinstance(value, Mapping):
            types = {field.encode_name: field.type for field in info.fields}
            return {
                name: _replaced(types[name], part, child(path, name), replace, {}) if name in types else part
                for name, part in value.items()
            }
        case shape.ListType() | shape.VarTupleType() if isinstance(value, list | tuple):
            return [
                _replaced(info.item_type, part, item(path, index), replace, marks)
                for index, part in enumerate(value)
            ]
        case shape.DictType() if isinstance(value, Mapping):
            return {
                name: _replaced(info.value_type, part, key(path, str(name)), replace, marks)
                for name, part in value.items()
            }
        case shape.UnionType(types=types):
            for each in types:  # of several only one fits the value, and changes it
                changed = _replaced(each, value, path, replace, marks)
                if changed != value:
                    return changed
            return value
        case shape.StrType() if marks.get(SENSITIVE) and isinstance(value, str):
            return replace(SecretPart(path, value, marks.get("format") == "base64"))
    return value


@cache
def _info(type_: Any) -> shape.Type:
    return shape.type_info(type_)


def _read_as(inner: shape.Type, extra: Mapping[str, Any] | None) -> shape.Type:
    other = (extra or {}).get(READ_AS)
    return inner if other is None else _info(other)


@cache
def _struct_holds(cls: type[msgspec.Struct], sought: PartTypes) -> bool:
    info = _info(cls)
    assert isinstance(info, shape.StructType), cls
    return cls in sought or any(_holds(field.type, sought) for field in info.fields)


def _holds(info: shape.Type, sought: PartTypes) -> bool:
    """Whether a value of this type can have such a part; most cannot, and are not looked into."""
    match info:
        case shape.Metadata(type=inner, extra=extra):
            return not sought.isdisjoint(extra or ()) or _holds(_read_as(inner, extra), sought)
        case shape.StructType(cls=cls):
            return _struct_holds(cls, sought)
        case shape.ListType() | shape.VarTupleType():
            return _holds(info.item_type, sought)
        case shape.DictType():
            return _holds(info.value_type, sought)
        case shape.UnionType(types=types):
            return any(_holds(each, sought) for each in types)
    return False


def holds(type_: type, sought: PartTypes) -> bool:
    """Whether values of a type can have parts of these types."""
    return _holds(_info(type_), sought)
