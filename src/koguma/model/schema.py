"""Schema: types that users' objects must fit, and all that is wrong at once where they do not.

A kind's spec is a frozen `Spec` class. msgspec reads values into it, but stops at the first
mistake; `Checker` walks the same types and yields every violation with its path. A property test
holds the two together: no violations exactly when msgspec accepts.

The sentences are those of Kuma's own schema check (`in body ...`), which its users know.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta
from msgspec import inspect as shape

from koguma.model import duration
from koguma.model.nearest import nearest
from koguma.model.violation import SHOWN_MAX, VIOLATIONS_MAX, Violation, child, cut, item, key

# What JSON can say. It stands at the two edges only: what users send, what Envoy reads.
Json = Any

_NAME_MAX: Final = 100  # characters of a field's name that stand in a message
UNKNOWN: Final = "unknown"  # rule id of the violations that fieldValidation may turn into warnings


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class _SpecMeta(msgspec.StructMeta):
    """Makes every subclass frozen and keyword-only, which msgspec does not hand down, and tells mypy."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Any:
        hints = _annotations(namespace)
        if hints:
            namespace["__annotations__"] = {field: _limits_inside(hint) for field, hint in hints.items()}
        return super().__new__(cls, name, bases, namespace, **{"frozen": True, "kw_only": True, **config})


def _annotations(namespace: dict[str, Any]) -> dict[str, Any]:
    """The annotations of a class that is being made; from Python 3.14 on they are made when asked for."""
    if sys.version_info >= (3, 14):
        import annotationlib  # noqa: PLC0415 - new with that version

        annotate = annotationlib.get_annotate_from_class_namespace(namespace)
        if annotate is not None:
            return dict(annotationlib.call_annotate_function(annotate, annotationlib.Format.VALUE))
    return dict(namespace.get("__annotations__", {}))


_LIMITS: Final = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")


def _limits_inside(hint: Any) -> Any:
    """`Annotated[T | None, limits]` as `Annotated[T, limits] | None`: msgspec limits plain types only."""
    if get_origin(hint) is not Annotated or get_origin(get_args(hint)[0]) not in (Union, UnionType):
        return hint
    base, *extras = get_args(hint)
    parts = [part for part in get_args(base) if part is not NoneType]
    limits = {
        name: getattr(meta, name)
        for meta in extras
        for name in _LIMITS
        if getattr(meta, name, None) is not None
    }
    if len(parts) != 1 or not limits:
        return hint
    words = [
        Meta(description=m.description, extra=m.extra, extra_json_schema=m.extra_json_schema) for m in extras
    ]
    return Annotated[(Annotated[parts[0], Meta(**limits)] | None, *words)]


class Spec(msgspec.Struct, metaclass=_SpecMeta, omit_defaults=True, rename="camel", gc=False):
    """Base of everything a user writes: camelCase outside, snake_case inside, never changed.

    Without cyclic garbage collection, since a value can be no part of a cycle: ten thousand live
    policies then cost a collection of 4 ms instead of 130.
    """


def doc(text: str, **limits: Any) -> Meta:
    """Words for a field, with its limits: min_length, max_length, ge, le, pattern."""
    return Meta(description=text, **limits)


KEY_DEFAULTS: Final = "x-koguma-key-defaults"  # in the Kubernetes form they become `default` of the fields


def keyed_by(*names: str, **defaults: str) -> Meta:
    """A list whose items are told apart by fields, so that two field managers can own one item each.

    Such a field is required, or its default is given.
    """
    keys: dict[str, Json] = {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [*defaults, *names],
    }
    return Meta(extra_json_schema={**keys, **({KEY_DEFAULTS: defaults} if defaults else {})})


# JSON Schema's own "duration" format is ISO 8601's; Go's is described by its pattern.
Duration = Annotated[
    str,
    Meta(
        description="A duration as Go writes it.",
        examples=["15s"],
        extra={"format": "duration"},
        extra_json_schema={"format": "go-duration", "pattern": duration.PATTERN},
    ),
]
Base64 = Annotated[str, Meta(extra={"format": "base64"}, extra_json_schema={"contentEncoding": "base64"})]
SecretText = Annotated[str, Meta(extra={"sensitive": True}, extra_json_schema={"format": "password"})]
SecretBase64 = Annotated[
    str,
    Meta(
        extra={"format": "base64", "sensitive": True},
        extra_json_schema={"contentEncoding": "base64", "format": "password"},
    ),
]
Port = Annotated[int, Meta(ge=1, le=65535)]
IntOrString = int | str

_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_FORMATS: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "duration": (duration.is_duration, duration.MESSAGE),
    "base64": (lambda text: _BASE64.fullmatch(text) is not None, "must be base64"),
}

Check = Callable[[Json, str], Iterator[Violation]]


class Checker:
    """Yields all that is wrong with a value of one type. Made once per type, used for every object."""

    def __init__(self, type_: Any) -> None:
        self._check = _compile(shape.type_info(type_), declared_orders(type_))
        self.type = type_

    def __call__(self, value: Json, path: str = "") -> Iterator[Violation]:
        """The violations, with paths that begin at `path`; of very many only the first.

        Fields that do not exist are counted apart, since some callers let them pass: however many there are,
        what is broken beside them is found.
        """
        n_broken = n_unknown = 0
        for violation in self._check(value, path):
            if isinstance(violation, _UnknownField):
                n_unknown += 1
                if n_unknown <= VIOLATIONS_MAX:
                    yield violation.in_words(is_hinted=n_unknown <= SHOWN_MAX)
                continue
            yield violation
            n_broken += 1
            if n_broken >= VIOLATIONS_MAX:
                return


@cache
def checker(type_: type[Spec]) -> Checker:
    """The checker of a type, made once."""
    return Checker(type_)


def read(type_: type[msgspec.Struct], value: Json) -> Any:
    """A checked value as an instance of its type; unknown fields are left out."""
    return msgspec.convert(value, type_, strict=True)


def json_type(value: Json) -> str:
    """The JSON word for a value's type, as it stands in messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list() | tuple():
            return "array"
        case _:
            return "object"


def _wrong_type(path: str, expected: str, value: Json) -> Violation:
    return Violation(path, f'in body must be of type {expected}: "{json_type(value)}"', "type")


# Choices by their values. msgspec sorts them; people read them in the order in which they were declared.
_Orders = Mapping[frozenset[Any], tuple[Any, ...]]


def declared_orders(type_: Any) -> _Orders:
    """The choices in a type, or in the fields of a class, by their values."""
    hints = get_type_hints(type_, include_extras=True).values() if isinstance(type_, type) else (type_,)
    return {frozenset(values): values for hint in hints for values in literals(hint)}


def literals(hint: Any) -> Iterator[tuple[Any, ...]]:
    """The closed choices in a type, each in the order in which it was declared."""
    if get_origin(hint) is Literal:
        yield get_args(hint)
    else:
        for part in get_args(hint):
            yield from literals(part)


def _compile(info: shape.Type, orders: _Orders, extra: Mapping[str, Any] | None = None) -> Check:
    match info:
        case shape.Metadata(type=inner, extra=more):
            return _compile(inner, orders, {**(extra or {}), **(more or {})})
        case shape.StructType():
            return _struct(info, orders)
        case shape.StrType():
            return _string(info, (extra or {}).get("format"))
        case shape.IntType() | shape.FloatType():
            return _number(info)
        case shape.BoolType():
            return _boolean
        case shape.LiteralType(values=values):
            return _literal(orders.get(frozenset(values), values))
        case shape.ListType() | shape.VarTupleType():
            return _array(info, _compile(info.item_type, orders, extra))
        case shape.DictType():
            return _map(info, _compile(info.value_type, orders, extra))
        case shape.UnionType(types=types):
            return _union(types, orders, extra)
        case shape.AnyType() | shape.RawType():
            return _anything
        case _:
            msg = f"a schema cannot use {info}"
            raise TypeError(msg)


def _anything(_value: Json, _path: str) -> Iterator[Violation]:
    return iter(())


def _boolean(value: Json, path: str) -> Iterator[Violation]:
    if not isinstance(value, bool):
        yield _wrong_type(path, "boolean", value)


def _literal(values: tuple[Any, ...]) -> Check:
    words = " ".join(str(value) for value in values)
    legal = frozenset((type(value), value) for value in values)  # 302.0 is not 302, true is not 1

    def check(value: Json, path: str) -> Iterator[Violation]:
        if isinstance(value, (list, dict)) or (type(value), value) not in legal:
            near = (
                nearest(value, (word for word in values if isinstance(word, str)))
                if isinstance(value, str)
                else None
            )
            hint = f'; did you mean "{near}"?' if near else ""
            yield Violation(path, f"in body should be one of [{words}]{hint}", "enum")

    return check


def _string(info: shape.StrType, format_name: str | None) -> Check:
    pattern = re.compile(info.pattern) if info.pattern else None
    fits, message = _FORMATS[format_name] if format_name else (None, "")

    def check(value: Json, path: str) -> Iterator[Violation]:
        if not isinstance(value, str):
            yield _wrong_type(path, "string", value)
        elif info.min_length is not None and len(value) < info.min_length:
            yield Violation(path, f"in body should be at least {info.min_length} chars long", "length")
        elif info.max_length is not None and len(value) > info.max_length:
            yield Violation(path, f"in body should be at most {info.max_length} chars long", "length")
        elif pattern is not None and not pattern.search(value):
            yield Violation(path, f"in body should match '{pattern.pattern}'", "pattern")
        elif fits is not None and not fits(value):
            yield Violation(path, message, "format")

    return check


def _number(info: shape.IntType | shape.FloatType) -> Check:
    expected = "integer" if isinstance(info, shape.IntType) else "number"
    kinds = int if isinstance(info, shape.IntType) else (int, float)

    def check(value: Json, path: str) -> Iterator[Violation]:
        if isinstance(value, bool) or not isinstance(value, kinds):
            yield _wrong_type(path, expected, value)
        elif info.ge is not None and value < info.ge:
            yield Violation(path, f"in body should be greater than or equal to {info.ge}", "range")
        elif info.le is not None and value > info.le:
            yield Violation(path, f"in body should be less than or equal to {info.le}", "range")
        elif info.gt is not None and value <= info.gt:
            yield Violation(path, f"in body should be greater than {info.gt}", "range")
        elif info.lt is not None and value >= info.lt:
            yield Violation(path, f"in body should be less than {info.lt}", "range")

    return check


def _array(info: shape.ListType | shape.VarTupleType, element: Check) -> Check:
    def check(value: Json, path: str) -> Iterator[Violation]:
        if not isinstance(value, (list, tuple)):
            yield _wrong_type(path, "array", value)
            return
        if info.min_length is not None and len(value) < info.min_length:
            yield Violation(path, f"in body should have at least {info.min_length} items", "length")
        if info.max_length is not None and len(value) > info.max_length:
            yield Violation(path, f"in body should have at most {info.max_length} items", "length")
        for index, entry in enumerate(value):
            yield from element(entry, item(path, index))

    return check


def _map(info: shape.DictType, element: Check) -> Check:
    def check(value: Json, path: str) -> Iterator[Violation]:
        if not isinstance(value, Mapping):
            yield _wrong_type(path, "object", value)
            return
        if info.max_length is not None and len(value) > info.max_length:
            yield Violation(path, f"in body should have at most {info.max_length} properties", "length")
        for name, entry in value.items():
            if isinstance(name, str):
                yield from element(entry, key(path, name))
            else:
                yield _wrong_type(key(path, str(name)), "string", name)

    return check


def _union(types: tuple[shape.Type, ...], orders: _Orders, extra: Mapping[str, Any] | None) -> Check:
    """`T | None`, or scalars of different JSON types: the value's own type picks the branch."""
    branches = [t for t in types if not isinstance(t, shape.NoneType)]
    checks = [_compile(branch, orders, extra) for branch in branches]
    may_be_null = len(branches) != len(types)
    words = " or ".join(sorted({_json_word(branch) for branch in branches}))

    def check(value: Json, path: str) -> Iterator[Violation]:
        if value is None and may_be_null:
            return
        if len(checks) == 1:  # lazily, so that the caller can stop early
            yield from checks[0](value, path)
            return
        found = [list(each(value, path)) for each in checks]
        if not all(found):
            return
        fitting = [f for f in found if f[0].rule != "type" or f[0].field != path]
        if fitting:
            yield from min(fitting, key=len)
        else:
            yield _wrong_type(path, words, value)

    return check


def _json_word(info: shape.Type) -> str:
    match info:
        case shape.Metadata(type=inner):
            return _json_word(inner)
        case shape.IntType():
            return "integer"
        case shape.FloatType():
            return "number"
        case shape.BoolType():
            return "boolean"
        case shape.ListType() | shape.VarTupleType():
            return "array"
        case shape.StructType() | shape.DictType():
            return "object"
        case _:
            return "string"


def _struct(info: shape.StructType, orders: _Orders) -> Check:
    orders = declared_orders(info.cls)
    fields = [(field.encode_name, field.required, _compile(field.type, orders)) for field in info.fields]
    names = tuple(name for name, _, _ in fields)
    known = frozenset(names)

    def check(value: Json, path: str) -> Iterator[Violation]:
        if not isinstance(value, Mapping):
            yield _wrong_type(path, "object", value)
            return
        for name, required, each in fields:
            entry = value.get(name)
            if entry is None:
                if required:
                    yield Violation(child(path, name), "in body is required", "required")
                elif name in value:  # null where the type does not take it
                    yield from each(None, child(path, name))
            else:
                yield from each(entry, child(path, name))
        for name in value:
            if name not in known:
                yield _UnknownField(child(path, str(name)), "", UNKNOWN, str(name), names)

    return check


class _UnknownField(Violation, frozen=True):
    """A field that does not exist. Looking for the nearest one is slow, so only shown ones get it."""

    name: str = ""
    names: tuple[str, ...] = ()

    def in_words(self, *, is_hinted: bool) -> Violation:
        """The same with its message."""
        return Violation(self.field, unknown_field(self.name, self.names if is_hinted else ()), UNKNOWN)


def unknown_fields(
    names_given: Iterable[Any], names: tuple[str, ...], prefix: str = ""
) -> Iterator[Violation]:
    """A violation for each of the given fields that does not exist; of very many only the first."""
    unknown = (str(name) for name in names_given if name not in names)
    for number, name in enumerate(islice(unknown, VIOLATIONS_MAX)):
        yield Violation(f"{prefix}{name}", unknown_field(name, names if number < SHOWN_MAX else ()), UNKNOWN)


def unknown_field(name: str, names: tuple[str, ...]) -> str:
    """The sentence for a field that does not exist, with the nearest one that does."""
    near = nearest(name, names)
    hint = f'; did you mean "{near}"?' if near else f"; known fields are {', '.join(names)}" if names else ""
    return f'unknown field "{cut(name, _NAME_MAX)}"{hint}'


def json_schemas(types: Mapping[str, Any], ref_template: str) -> tuple[dict[str, Json], dict[str, Json]]:
    """JSON schemas of the named types, and the components that they refer to."""
    schemas, components = msgspec.json.schema_components(types.values(), ref_template=ref_template)
    return dict(zip(types, schemas, strict=True)), components
