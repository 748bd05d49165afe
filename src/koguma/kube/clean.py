"""Clean: how `koguma.io/v1` shows what is stored as `kuma.io/v1alpha1`, and what it does not take.

Objects are stored as users of Kuma write them. The clean shape is that language without its second
spellings: what a kind reads as one (`Kind.clean`), what has an exact replacement (`Kind.v1`), and nulls,
which say nothing. Where a deprecated field has no exact replacement it stays, since a shape that cannot say
everything would lose it; `kept` has the reasons. Values stay as they are: `60s` and `1m` are both clean.

For a spec `c` that v1 takes, `shown(written(c)) == c`. For a spec `s` that v1alpha1 takes, the engine reads
`s` and `written(shown(s))` as the same, and v1 takes `shown(s)`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Final

import msgspec
from msgspec import inspect as shape

from koguma.kube.registry import Converter
from koguma.model.kind import Deprecation, Kind
from koguma.model.schema import Json, Spec
from koguma.model.violation import Violation, child, item

VERSION: Final = "koguma.io/v1"
OLDER: Final = "older"  # rule id of what v1 says in another way

_RANK: Final = "it ranks above Dataplane, and selects single inbounds by their tags"
_TIER: Final = "it ranks below a route in spec.to"
_DATAPLANE: Final = "write Dataplane with labels"
# What holds for every policy of ours, beside what its own record says.
POLICY_LACKS: Final = (Deprecation("spec.targetRef.tag", "write tags; so in every other reference"),)
POLICY_KEEPS: Final = (
    Deprecation("spec.targetRef.kind", _DATAPLANE, value="MeshSubset", kept=_RANK),
    Deprecation("spec.targetRef.kind", _DATAPLANE, value="MeshService", kept=_RANK),
    Deprecation("spec.targetRef.kind", _DATAPLANE, value="MeshServiceSubset", kept=_RANK),
    Deprecation("spec.targetRef.kind", "write the route in spec.to", value="MeshHTTPRoute", kept=_TIER),
    Deprecation("spec.targetRef.kind", "write the route in spec.to", value="MeshTCPRoute", kept=_TIER),
)

_Reading = Callable[[Json], Json]


def converter(kind: Kind) -> Converter:
    """Between a kind's stored specs and those of v1; neither way changes what it is given."""
    without_nulls = _reading_of(kind.spec)

    def shown(spec: Json) -> Json:
        return without_nulls(kind.v1.shown(kind.clean(spec)))

    return Converter(shown, kind.v1.written)


def lacks(kind: Kind) -> tuple[Deprecation, ...]:
    """What v1 does not have."""
    return (*(POLICY_LACKS if kind.policy else ()), *kind.v1.lacks)


def kept(kind: Kind) -> tuple[Deprecation, ...]:
    """What is deprecated and in v1 all the same, with the reason."""
    return (*(POLICY_KEEPS if kind.policy else ()), *kind.v1.keeps)


def deprecated(kind: Kind) -> frozenset[str]:
    """The fields that do not exist in v1: dotted paths from `spec`, elements of lists as `[]`."""
    return frozenset(older.field for older in lacks(kind) if not older.value)


def refusals(kind: Kind, spec: Json) -> Iterator[Violation]:
    """What v1 does not take of a spec that was written through it: whatever it would not show again as it is.

    What remains is for `kind.violations(written(spec), ...)` to judge, whose places `seen` translates.
    """
    to_and_fro = converter(kind)
    back = to_and_fro.shown(to_and_fro.written(spec))
    instead = {older.field: older.instead for older in lacks(kind) if not older.value}
    found = list(_differences(spec, back, _FieldPath("spec", "spec"), instead))
    gone = {violation.field for violation in found}
    mixed = tuple(older.becomes for older in kind.v1.lacks if older.becomes and older.field in gone)
    found = [each for each in found if not each.field.startswith(mixed)] if mixed else found
    if not found and spec != back:
        found = [Violation("spec", f"is written in another way in {VERSION}; see docs/clean-shape.md", OLDER)]
    yield from found


def seen(kind: Kind, violations: Iterable[Violation]) -> Iterator[Violation]:
    """Violations of what is stored, at the places where the writer of v1 finds them."""
    moved = {older.field: older.becomes for older in kind.v1.lacks if older.becomes}
    for each in violations:
        field, bracket, rest = each.field.partition("[")
        yield Violation(f"{moved.get(field, field)}{bracket}{rest}", each.message, each.rule)


class _FieldPath(msgspec.Struct, frozen=True):
    """Where something stands: with the numbers of elements, and without them."""

    path: str
    field: str

    def child(self, name: str) -> "_FieldPath":
        return _FieldPath(child(self.path, name), child(self.field, name))

    def item(self, index: int) -> "_FieldPath":
        return _FieldPath(item(self.path, index), f"{self.field}[]")


def _differences(was: Json, now: Json, at: _FieldPath, instead: Mapping[str, str]) -> Iterator[Violation]:
    """Each place at which two specs differ, in the order of the first one."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        yield from _of_object(was, now, at, instead)
    elif isinstance(was, list) and isinstance(now, list):
        for index, (before, after) in enumerate(zip(was, now, strict=False)):
            yield from _differences(before, after, at.item(index), instead)
    elif was != now:
        yield Violation(at.path, f"is written {_text(now)} in {VERSION}", OLDER)


def _of_object(
    was: Mapping[str, Json], now: Mapping[str, Json], at: _FieldPath, instead: Mapping[str, str]
) -> Iterator[Violation]:
    new = [name for name in now if name not in was]
    found: list[Violation] = []
    for name, value in was.items():
        if name in now:
            found += _differences(value, now[name], at.child(name), instead)
        else:
            found.append(_gone(value, new, at.child(name), instead))
    if not found:  # else what is new comes from what was found
        found = [Violation(child(at.path, name), f"must be set to {_text(now[name])}", OLDER) for name in new]
    yield from found


def _gone(value: Json, new: list[str], at: _FieldPath, instead: Mapping[str, str]) -> Violation:
    if value is None:
        return Violation(at.path, "must not be null; leave the field out", "null")
    hint = instead.get(at.field) or (f"write {new[0]}" if len(new) == 1 else "")
    return Violation(at.path, f"does not exist in {VERSION}{'; ' if hint else ''}{hint}", OLDER)


def _text(value: Json) -> str:
    """A value for people; what is larger than a word is named by its type, and may be a secret."""
    if isinstance(value, list):
        return "as a list"
    return "as an object" if isinstance(value, Mapping) else json.dumps(value, ensure_ascii=False)


@cache
def _reading_of(spec: type[Spec]) -> _Reading:
    """How specs of a type lose their nulls; worked out once, since every write through v1 asks."""
    return _without_nulls(shape.type_info(spec)) or _same


def _same(spec: Json) -> Json:
    return spec


def _without_nulls(info: shape.Type) -> _Reading | None:
    """Leaves out fields that are null where the type says that null is nothing; None if there are none."""
    match info:
        case shape.Metadata(type=inner):
            return _without_nulls(inner)
        case shape.StructType(fields=fields):
            return _of_struct(fields)
        case shape.ListType(item_type=inner) | shape.VarTupleType(item_type=inner):
            return _of_list(_without_nulls(inner))
        case shape.DictType(value_type=inner):
            return _of_map(_without_nulls(inner))
        case shape.UnionType(types=types):
            readings = [reading for each in types if (reading := _without_nulls(each))]
            return _of_any(readings) if readings else None
        case _:
            return None


def _of_struct(fields: Iterable[shape.Field]) -> _Reading:
    inner = {field.encode_name: _without_nulls(field.type) or _same for field in fields}
    nullable = frozenset(field.encode_name for field in fields if _may_be_null(field.type))

    def read(value: Json) -> Json:
        if not isinstance(value, Mapping):
            return value
        return {
            name: inner.get(name, _same)(part)
            for name, part in value.items()
            if part is not None or name not in nullable
        }

    return read


def _of_list(inner: _Reading | None) -> _Reading | None:
    if inner is None:
        return None
    return lambda value: [inner(each) for each in value] if isinstance(value, list) else value


def _of_map(inner: _Reading | None) -> _Reading | None:
    if inner is None:
        return None

    def read(value: Json) -> Json:
        return {name: inner(part) for name, part in value.items()} if isinstance(value, Mapping) else value

    return read


def _of_any(readings: list[_Reading]) -> _Reading:
    """A list, an object or a word: at most one of the readings finds what it is for."""

    def read(value: Json) -> Json:
        for reading in readings:
            value = reading(value)
        return value

    return read


def _may_be_null(info: shape.Type) -> bool:
    if isinstance(info, shape.Metadata):
        return _may_be_null(info.type)
    return isinstance(info, shape.UnionType) and any(isinstance(t, shape.NoneType) for t in info.types)
