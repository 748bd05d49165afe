"""The structural check: everything at once, in agreement with msgspec."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.model import schema
from koguma.model.schema import UNKNOWN, Checker, Duration, IntOrString, Port, Spec, doc


class Inner(Spec):
    """A part."""

    name: Annotated[str, doc("A name.", min_length=1, max_length=5, pattern="^[a-z]*$")]
    ratio: Annotated[float | None, doc("A share.", ge=0, le=1)] = None


class Outer(Spec):
    """A whole."""

    mode: Annotated[Literal["Strict", "Permissive"], doc("A choice.")]
    request_timeout: Annotated[Duration | None, doc("A time.")] = None
    ports: Annotated[tuple[Port, ...], doc("Ports.", max_length=3)] = ()
    percent: Annotated[IntOrString | None, doc("A number or text.")] = None
    tags: Annotated[Mapping[str, str] | None, doc("Tags.")] = None
    parts: Annotated[tuple[Inner, ...] | None, doc("Parts.")] = None
    enabled: Annotated[bool | None, doc("A switch.")] = None


CHECK = Checker(Outer)


def test_all_that_is_wrong_is_said_at_once_with_its_place():
    wrong = {
        "mode": "Loose",
        "requestTimeout": "5 s",
        "ports": [0, "x", 80, 81],
        "percent": [],
        "tags": {"a": 1},
        "parts": [{"name": ""}, {"name": "Ab"}, {"ratio": 2}, 7],
        "enabled": "yes",
    }
    assert [(v.field, v.message) for v in CHECK(wrong, "spec")] == [
        ("spec.mode", "in body should be one of [Strict Permissive]"),
        ("spec.requestTimeout", 'must be a duration such as "5s", "1m30s" or "250ms"'),
        ("spec.ports", "in body should have at most 3 items"),
        ("spec.ports[0]", "in body should be greater than or equal to 1"),
        ("spec.ports[1]", 'in body must be of type integer: "string"'),
        ("spec.percent", 'in body must be of type integer or string: "array"'),
        ('spec.tags["a"]', 'in body must be of type string: "integer"'),
        ("spec.parts[0].name", "in body should be at least 1 chars long"),
        ("spec.parts[1].name", "in body should match '^[a-z]*$'"),
        ("spec.parts[2].name", "in body is required"),
        ("spec.parts[2].ratio", "in body should be less than or equal to 1"),
        ("spec.parts[3]", 'in body must be of type object: "integer"'),
        ("spec.enabled", 'in body must be of type boolean: "string"'),
    ]


def test_an_unknown_field_is_named_with_the_nearest_known_one():
    (violation,) = CHECK({"mode": "Strict", "requestTimout": "5s"})
    assert violation.rule == UNKNOWN
    assert violation.message == 'unknown field "requestTimout"; did you mean "requestTimeout"?'
    (other,) = CHECK({"mode": "Strict", "zzz": 1})
    assert "known fields are mode, requestTimeout" in other.message


def test_numbers_that_only_look_alike_are_told_apart():
    class Code(Spec):
        """A code."""

        code: Literal[301, 302]
        tags: Mapping[str, str] = {}

    check = Checker(Code)
    assert list(check({"code": 302})) == []
    for wrong in (302.0, True, "302", [302], {}, None):
        assert [v.field for v in check({"code": wrong})] == ["code"]
    assert [v.field for v in check({"code": 301, "tags": {1: "a"}})] == ['tags["1"]']


def test_of_two_shapes_the_nearer_one_is_explained():
    class Either(Spec):
        """One part, or several."""

        parts: Inner | tuple[Inner, ...]

    check = Checker(Either)
    assert [v.field for v in check({"parts": [{"name": 5}]})] == ["parts[0].name"]
    assert [v.field for v in check({"parts": {"name": 5}})] == ["parts.name"]
    assert [v.message for v in check({"parts": 5})] == ['in body must be of type array or object: "integer"']


def test_words_and_limits_of_an_optional_field_reach_its_json_schema():
    _, components = schema.json_schemas({"Outer": Outer}, "#/{name}")
    assert components["Inner"]["properties"]["ratio"]["anyOf"][0]["maximum"] == 1
    assert components["Outer"]["properties"]["parts"]["description"] == "Parts."
    assert components["Outer"]["properties"]["tags"]["description"] == "Tags."


def test_null_counts_as_absent_where_the_type_takes_it():
    assert list(CHECK({"mode": "Strict", "tags": None, "parts": None})) == []
    assert [v.message for v in CHECK({"mode": None})] == ["in body is required"]


def test_a_checked_value_becomes_its_type():
    read = schema.read(Outer, {"mode": "Strict", "ports": [80], "unknown": 1})
    assert read == Outer(mode="Strict", ports=(80,))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 70000)
    | st.floats(0, 2)
    | st.sampled_from(["", "abc", "5s", "Strict"]),
    lambda part: (
        st.lists(part, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "name", "ratio"]), part, max_size=3)
    ),
    max_leaves=8,
)
near_values = st.fixed_dictionaries(
    {"mode": st.sampled_from(["Strict", "Permissive", "no", 1, None])},
    optional={
        "requestTimeout": st.sampled_from(["1s", None, 3]),
        "ports": st.lists(st.integers(-1, 70000) | st.booleans(), max_size=4) | json_values,
        "percent": json_values,
        "tags": json_values,
        "parts": json_values,
        "enabled": json_values,
    },
)


@pytest.mark.property
@given(near_values)
def test_no_violations_exactly_when_msgspec_accepts(value):
    violations = [v for v in CHECK(value) if v.rule != UNKNOWN]
    try:
        msgspec.convert(value, Outer, strict=True)
        accepted = True
    except msgspec.ValidationError:
        accepted = False
    assert accepted == (not violations), violations
