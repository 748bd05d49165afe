"""Values with a secret wherever a type has one, for tests of who may read them."""

from typing import Any

from msgspec import inspect as shape

from koguma.model import typed_parts


def with_secrets(info: shape.Type, secret: str, *, is_secret: bool = False) -> Any:
    """A value of a type with this text in every field that is secret by its type; None where it has none."""
    match info:
        case shape.Metadata(type=inner, extra=extra):
            other = (extra or {}).get(typed_parts.READ_AS)
            inner = shape.type_info(other) if other else inner
            marked = is_secret or bool((extra or {}).get("sensitive"))
            return with_secrets(inner, secret, is_secret=marked)
        case shape.StructType(fields=fields):
            parts = {field.encode_name: with_secrets(field.type, secret) for field in fields}
            return {name: part for name, part in parts.items() if part is not None} or None
        case shape.ListType() | shape.VarTupleType():
            part = with_secrets(info.item_type, secret, is_secret=is_secret)
            return None if part is None else [part]
        case shape.DictType():
            part = with_secrets(info.value_type, secret, is_secret=is_secret)
            return None if part is None else {"a": part}
        case shape.UnionType(types=types):
            parts = (with_secrets(member, secret, is_secret=is_secret) for member in types)
            return next((part for part in parts if part), None)
        case shape.StrType() if is_secret:
            return secret
    return None
