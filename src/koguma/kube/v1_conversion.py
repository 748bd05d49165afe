"""Conversion between `koguma.io/v1` and `kuma.io/v1alpha1`, the storage version, and what v1 does not accept.

Objects are stored as users of Kuma write them. `koguma.io/v1` is the same API without its alternative
spellings: what a kind reads as one (`Kind.clean`), what has an exact replacement (`Kind.v1`), and nulls,
which mean nothing. A deprecated field without an exact replacement stays, since a conversion must not lose
it; `kept` has the reasons. Values stay as they are: `60s` and `1m` are both accepted.

For a spec `c` that v1 accepts, `from_storage(to_storage(c)) == c`. For a spec `s` that v1alpha1 accepts, the
engine reads `s` and `to_storage(from_storage(s))` as the same, and v1 accepts `from_storage(s)`.
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
OLDER: Final = "older"  # rule id of what v1 writes in another way

_RANK: Final = "it ranks above Dataplane, and selects single inbounds by their tags"
_TIER: Final = "it ranks below a route in spec.to"
_DATAPLANE: Final = "write Dataplane with labels"
# For every policy of ours, beside what its own Kind says.
POLICY_LACKS: Final = (Deprecation("spec.targetRef.tag", "write tags; so in every other reference"),)
POLICY_KEEPS: Final = (
    Deprecation("spec.targetRef.kind", _DATAPLANE, value="MeshSubset", kept=_RANK),
    Deprecation("spec.targetRef.kind", _DATAPLANE, value="MeshService", kept=_RANK),
    Deprecation("spec.targetRef.kind", _DATAPLANE, value="MeshServiceSubset", kept=_RANK),
    Deprecation("spec.targetRef.kind", "write the route in spec.to", value="MeshHTTPRoute", kept=_TIER),
    Deprecation("spec.targetRef.kind", "write the route in spec.to", value="MeshTCPRoute", kept=_TIER),
)

_SpecReader = Callable[[Json], Json]


def converter(kind: Kind) -> Converter:
    """The converter between a kind's stored specs and those of v1; its arguments are not changed."""
    without_nulls = _null_remover_of(kind.spec)

    def from_storage(spec: Json) -> Json:
        return without_nulls(kind.v1.to_v1(kind.clean(spec)))

    return Converter(from_storage, kind.v1.from_v1)


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
    """What v1 does not accept in a spec: whatever would read back differently.

    The rest is checked by `kind.violations(to_storage(spec), ...)`, whose fields `relocated` translates.
    """
    conversion = converter(kind)
    back = conversion.from_storage(conversion.to_storage(spec))
    instead = {older.field: older.instead for older in lacks(kind) if not older.value}
    differences = list(_differences(spec, back, _FieldPath("spec", "spec"), instead))
    removed = {violation.field for violation in differences}
    replacements = tuple(older.becomes for older in kind.v1.lacks if older.becomes and older.field in removed)
    differences = (
        [difference for difference in differences if not difference.field.startswith(replacements)]
        if replacements
        else differences
    )
    if not differences and spec != back:
        differences = [
            Violation("spec", f"is written in another way in {VERSION}; see docs/clean-shape.md", OLDER)
        ]
    yield from differences


def relocated(kind: Kind, violations: Iterable[Violation]) -> Iterator[Violation]:
    """Violations of a stored spec, with the fields at which they stand in v1."""
    replaced_by = {older.field: older.becomes for older in kind.v1.lacks if older.becomes}
    for violation in violations:
        field, bracket, rest = violation.field.partition("[")
        yield Violation(f"{replaced_by.get(field, field)}{bracket}{rest}", violation.message, violation.rule)


class _FieldPath(msgspec.Struct, frozen=True):
    """A field: its path with the indices of list elements, and without them."""

    path: str
    field: str

    def child(self, name: str) -> "_FieldPath":
        return _FieldPath(child(self.path, name), child(self.field, name))

    def item(self, index: int) -> "_FieldPath":
        return _FieldPath(item(self.path, index), f"{self.field}[]")


def _differences(
    before: Json, after: Json, at: _FieldPath, instead: Mapping[str, str]
) -> Iterator[Violation]:
    """Each field in which two specs differ, in the order of the first one."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from _object_differences(before, after, at, instead)
    elif isinstance(before, list) and isinstance(after, list):
        for index, (old_item, new_item) in enumerate(zip(before, after, strict=False)):
            yield from _differences(old_item, new_item, at.item(index), instead)
    elif before != after:
        yield Violation(at.path, f"is written {_text(after)} in {VERSION}", OLDER)


def _object_differences(
    before: Mapping[str, Json], after: Mapping[str, Json], at: _FieldPath, instead: Mapping[str, str]
) -> Iterator[Violation]:
    added = [name for name in after if name not in before]
    violations: list[Violation] = []
    for name, value in before.items():
        if name in after:
            violations += _differences(value, after[name], at.child(name), instead)
        else:
            violations.append(_removed_field(value, added, at.child(name), instead))
    if not violations:  # else the new fields replace the ones that were reported
        violations = [
            Violation(child(at.path, name), f"must be set to {_text(after[name])}", OLDER) for name in added
        ]
    yield from violations


def _removed_field(value: Json, added: list[str], at: _FieldPath, instead: Mapping[str, str]) -> Violation:
    if value is None:
        return Violation(at.path, "must not be null; leave the field out", "null")
    hint = instead.get(at.field) or (f"write {added[0]}" if len(added) == 1 else "")
    return Violation(at.path, f"does not exist in {VERSION}{'; ' if hint else ''}{hint}", OLDER)


def _text(value: Json) -> str:
    """A value for people; what is larger than a word is named by its type, and may be a secret."""
    if isinstance(value, list):
        return "as a list"
    return "as an object" if isinstance(value, Mapping) else json.dumps(value, ensure_ascii=False)


@cache
def _null_remover_of(spec: type[Spec]) -> _SpecReader:
    """Removes nulls from specs of a type; made once, since every write through v1 needs it."""
    return _without_nulls(shape.type_info(spec)) or _same


def _same(spec: Json) -> Json:
    return spec


def _without_nulls(info: shape.Type) -> _SpecReader | None:
    """Removes fields that are null where the type allows null; None where there are no such fields."""
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


def _of_struct(fields: Iterable[shape.Field]) -> _SpecReader:
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


def _of_list(inner: _SpecReader | None) -> _SpecReader | None:
    if inner is None:
        return None
    return lambda value: [inner(each) for each in value] if isinstance(value, list) else value


def _of_map(inner: _SpecReader | None) -> _SpecReader | None:
    if inner is None:
        return None

    def read(value: Json) -> Json:
        return {name: inner(part) for name, part in value.items()} if isinstance(value, Mapping) else value

    return read


def _of_any(readings: list[_SpecReader]) -> _SpecReader:
    """For a union: at most one of the readers applies to a value."""

    def read(value: Json) -> Json:
        for reading in readings:
            value = reading(value)
        return value

    return read


def _may_be_null(info: shape.Type) -> bool:
    if isinstance(info, shape.Metadata):
        return _may_be_null(info.type)
    return isinstance(info, shape.UnionType) and any(isinstance(t, shape.NoneType) for t in info.types)
