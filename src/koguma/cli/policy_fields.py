"""Policy fields: the paths of the fields that policies set for calls, for `koguma explain --field`."""

from collections.abc import Iterator
from typing import Any

from msgspec import inspect as shape

from koguma.cli import kind_lookup
from koguma.model.kind import Kind


def outbound(word: str = "") -> list[str]:
    """The fields of one kind, or of all."""
    known = kind_lookup.local_kinds()
    kinds = [known.word(word)] if word else [kind for kind in known if kind.policy is not None]
    return sorted({field for kind in kinds for field in _of_kind(kind)})


def _of_kind(kind: Kind) -> Iterator[str]:
    """The fields below `to[].default`, and for routes those below `to[].rules[].default`."""
    spec = shape.type_info(kind.spec)
    for entry in _below(spec, "to"):
        for conf in _below(entry, "default"):
            yield from _leaves(conf, "")
        for rule in _below(entry, "rules"):
            for conf in _below(rule, "default"):
                yield from _leaves(conf, "")


def _below(info: Any, name: str) -> Iterator[Any]:
    """The types of a field of a struct, inside unions, tuples and metadata."""
    for struct in _structs(info):
        yield from (field.type for field in struct.fields if field.encode_name == name)


def _structs(info: Any) -> Iterator[shape.StructType]:
    match info:
        case shape.StructType():
            yield info
        case shape.Metadata(type=inner) | shape.VarTupleType(item_type=inner):
            yield from _structs(inner)
        case shape.UnionType(types=types):
            for member in types:
                yield from _structs(member)
        case _:
            return


def _leaves(info: Any, path: str) -> Iterator[str]:
    """The dotted paths of the fields that a policy sets; a list is set as a whole."""
    structs = list(_structs(info)) if not _is_list(info) else []
    if not structs and path:
        yield path
    for struct in structs:
        for field in struct.fields:
            yield from _leaves(field.type, f"{path}.{field.encode_name}".lstrip("."))


def _is_list(info: Any) -> bool:
    match info:
        case shape.VarTupleType():
            return True
        case shape.Metadata(type=inner):
            return _is_list(inner)
        case shape.UnionType(types=types):
            return any(map(_is_list, types))
        case _:
            return False
