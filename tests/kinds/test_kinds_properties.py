"""Properties: whatever fits a kind's schema can be judged, and msgspec reads it."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect as shape

from koguma.kinds import KINDS
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind, ValidationContext
from koguma.model.violation import Violation

pytestmark = pytest.mark.slow

TEXTS = (
    "",
    "a",
    "a.b",
    "A_b",
    "*",
    "*.a",
    "::1",
    "0.0.0.0",
    "10.0.0.1:80",
    "http://a:1/",
    "/a",
    "{{ .Name }}",
)
TEXTS_BY_FORMAT = {"duration": ("0s", "-1s", "1h30m"), "base64": ("", "YQ==")}
JSON = st.sampled_from([None, True, 1, "a", [1], {"a": "b"}])


def values(info: shape.Type, extra: Mapping[str, Any] | None = None) -> st.SearchStrategy[Any]:
    """JSON that fits a type."""
    match info:
        case shape.Metadata(type=inner, extra=more):
            return values(inner, more or extra)
        case shape.StructType(fields=fields):
            needed = {f.encode_name: values(f.type) for f in fields if f.required}
            optional = {f.encode_name: values(f.type) for f in fields if not f.required}
            return st.fixed_dictionaries(needed, optional=optional)
        case shape.StrType(min_length=least):
            texts = TEXTS_BY_FORMAT.get((extra or {}).get("format", ""), TEXTS)
            return st.sampled_from([text for text in texts if len(text) >= (least or 0)])
        case shape.IntType(ge=low, le=high):
            return st.sampled_from(sorted({low or 0, 1, 80, min(high or 65536, 65536)}))
        case shape.UnionType(types=types):
            return st.one_of([values(each, extra) for each in types])
        case shape.VarTupleType(item_type=inner):
            return st.lists(values(inner), max_size=3)
        case shape.DictType(value_type=inner):
            return st.dictionaries(st.sampled_from(["", "a", "kuma.io/service"]), values(inner), max_size=2)
        case _:
            return scalars(info)


def scalars(info: shape.Type) -> st.SearchStrategy[Any]:
    match info:
        case shape.LiteralType(values=words):
            return st.sampled_from(words)
        case shape.BoolType():
            return st.booleans()
        case shape.FloatType():
            return st.sampled_from([-1.0, 0, 100.5])
        case shape.NoneType():
            return st.none()
        case _:
            return JSON


@pytest.mark.property
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_what_fits_the_schema_can_be_judged(kind: Kind, data: st.DataObject) -> None:
    spec = data.draw(values(shape.type_info(kind.spec)))
    context = ValidationContext(control_plane=ControlPlaneInfo(), name="x", mesh="default", stored=spec)
    assert list(kind.checker(spec)) == []
    judged = list(kind.validate(kind.read(spec), context))
    assert all(isinstance(each, Violation) and each.field and each.message and each.rule for each in judged)
    if not judged:
        assert all(isinstance(each, str) for each in kind.warn(kind.read(spec), context))
