"""Typed parts: the values inside an object that have a certain type, found by its schema and not by names.

That a value is secret, or refers to a Secret, is declared once, with its type. A new kind or field of that
type is then covered without another list to maintain.

A field of free JSON may say how it is to be read: `doc(..., extra={READ_AS: MeshProvidedConf})`. Or it says
which field beside it names its type, `doc(..., extra={NAMED_BY: "type"})`; the types of these names come from
the kind (`Kind.named_types`), since packages add to them.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect as type_info

from koguma.model.redacted import SHOWN
from koguma.model.schema import Json
from koguma.model.violation import child, item, key

READ_AS: Final = "read_as"
NAMED_BY: Final = "named_by"
SENSITIVE: Final = "sensitive"
PROXY_FILE: Final = "proxy_file"  # a file that Envoy writes on the machine of a proxy
PROXY_ADDRESS: Final = "proxy_address"  # what Envoy connects to: with unix:// a socket on that machine


class TypedPart(NamedTuple):
    """A value of one of the given types, and its path."""

    path: str
    value: Json


# Types to look for: a class, or a key of a type's `extra`.
PartTypes = frozenset[type | str]
# The types that a field beside free JSON can name.
NamedTypes = tuple[tuple[str, type], ...]


def parts_of(
    type_: type, value: Json, types: PartTypes, path: str = "", named: NamedTypes = ()
) -> Iterator[TypedPart]:
    """The parts of a value that are of one of these types, as JSON."""
    return _parts(_info(type_), value, path, types, named)


def _parts(
    info: type_info.Type, value: Json, path: str, types: PartTypes, named: NamedTypes
) -> Iterator[TypedPart]:
    if value is None or not _holds(info, types, named):
        return
    match info:
        case type_info.Metadata(extra=extra) if not types.isdisjoint(extra or ()):
            yield TypedPart(path, value)
        case type_info.StructType(cls=cls) if cls in types and isinstance(value, Mapping):
            yield TypedPart(path, value)
    for inner, part, at in _inside(info, value, path, named):
        yield from _parts(inner, part, at, types, named)


def _inside(
    info: type_info.Type, value: Json, path: str, named: NamedTypes
) -> Iterator[tuple[type_info.Type, Json, str]]:
    """The values inside of a value, each with its type and its path."""
    match info:
        case type_info.Metadata(type=inner, extra=extra):
            yield _read_as(inner, extra), value, path
        case type_info.StructType(fields=fields) if isinstance(value, Mapping):
            names = ((field.encode_name, _chosen(field.type, value, named)) for field in fields)
            yield from ((type_, value.get(name), child(path, name)) for name, type_ in names)
        case type_info.ListType() | type_info.VarTupleType() if isinstance(value, list | tuple):
            yield from ((info.item_type, entry, item(path, index)) for index, entry in enumerate(value))
        case type_info.DictType() if isinstance(value, Mapping):
            yield from ((info.value_type, entry, key(path, str(name))) for name, entry in value.items())
        case type_info.UnionType(types=branches):
            yield from ((branch, value, path) for branch in branches)


class SecretPart(NamedTuple):
    """A text that is secret by its type, and its path."""

    path: str
    text: str
    is_base64: bool


ReplaceSecret = Callable[[SecretPart], str]


def masked(type_: type, value: Json, mask: str = SHOWN, named: NamedTypes = ()) -> Json:
    """The value with every text hidden whose type says that it is secret."""
    return secrets_replaced(type_, value, lambda _: mask, named=named)


def secrets_replaced(
    type_: type, value: Json, replace: ReplaceSecret, path: str = "", named: NamedTypes = ()
) -> Json:
    """The value with another text for every text whose type says that it is secret."""
    return _replaced(_info(type_), value, path, _Replacement(replace, named), {})


class _Replacement(NamedTuple):
    """What a secret text becomes, and the types that fields can name."""

    replace: ReplaceSecret
    named: NamedTypes


def _replaced(
    info: type_info.Type, value: Json, path: str, by: _Replacement, marks: Mapping[str, Any]
) -> Json:
    """`marks` are the `extra` of the types around this value, up to the field that it is in."""
    if value is None:
        return None
    match info:
        case type_info.Metadata(type=inner, extra=extra):
            return _replaced(_read_as(inner, extra), value, path, by, {**marks, **(extra or {})})
        case type_info.StructType() if isinstance(value, Mapping):
            types = {field.encode_name: _chosen(field.type, value, by.named) for field in info.fields}
            return {
                name: _replaced(types[name], part, child(path, name), by, {}) if name in types else part
                for name, part in value.items()
            }
        case type_info.ListType() | type_info.VarTupleType() if isinstance(value, list | tuple):
            return [
                _replaced(info.item_type, part, item(path, index), by, marks)
                for index, part in enumerate(value)
            ]
        case type_info.DictType() if isinstance(value, Mapping):
            return {
                name: _replaced(info.value_type, part, key(path, str(name)), by, marks)
                for name, part in value.items()
            }
        case type_info.UnionType(types=branches):
            for branch in branches:  # of several only one fits the value, and changes it
                changed = _replaced(branch, value, path, by, marks)
                if changed != value:
                    return changed
            return value
        case type_info.StrType() if marks.get(SENSITIVE) and isinstance(value, str):
            return by.replace(SecretPart(path, value, marks.get("format") == "base64"))
    return value


@cache
def _info(type_: Any) -> type_info.Type:
    return type_info.type_info(type_)


def _read_as(inner: type_info.Type, extra: Mapping[str, Any] | None) -> type_info.Type:
    other = (extra or {}).get(READ_AS)
    return inner if other is None else _info(other)


def _chosen(info: type_info.Type, around: Mapping[str, Json], named: NamedTypes) -> type_info.Type:
    """The type of a field in its object: where another field of the object names it, that one."""
    beside = (info.extra or {}).get(NAMED_BY) if isinstance(info, type_info.Metadata) else None
    if beside is None:
        return info
    return next((_info(type_) for name, type_ in named if name == around.get(beside)), info)


@cache
def _struct_holds(cls: type[msgspec.Struct], types: PartTypes, named: NamedTypes) -> bool:
    info = _info(cls)
    assert isinstance(info, type_info.StructType), cls
    return cls in types or any(_holds(field.type, types, named) for field in info.fields)


def _holds(info: type_info.Type, types: PartTypes, named: NamedTypes) -> bool:
    """Whether a value of this type can contain such a part; most cannot, and are skipped."""
    match info:
        case type_info.Metadata(extra=extra) if NAMED_BY in (extra or {}):
            return NAMED_BY in types or any(_holds(_info(type_), types, ()) for _, type_ in named)
        case type_info.Metadata(type=inner, extra=extra):
            return not types.isdisjoint(extra or ()) or _holds(_read_as(inner, extra), types, named)
        case type_info.StructType(cls=cls):
            return _struct_holds(cls, types, named)
        case type_info.ListType() | type_info.VarTupleType():
            return _holds(info.item_type, types, named)
        case type_info.DictType():
            return _holds(info.value_type, types, named)
        case type_info.UnionType(types=branches):
            return any(_holds(branch, types, named) for branch in branches)
    return False


def holds(type_: type, types: PartTypes, named: NamedTypes = ()) -> bool:
    """Whether values of a type can have parts of these types."""
    return _holds(_info(type_), types, named)
