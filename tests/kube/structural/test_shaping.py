"""Values are pruned and given defaults by their schema; they are judged as a JSON Schema library does it."""

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koguma.kube.structural import schema_rules, shaping, validation

pytestmark = pytest.mark.slow

NAMES = st.sampled_from(["a", "b", "c"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.sampled_from(["", "a", "bb"]), st.just(1.5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)


def _scalar(draw):
    kind = draw(st.sampled_from(["string", "integer", "number", "boolean"]))
    schema = {"type": kind}
    if kind == "string":
        schema |= draw(
            st.sampled_from([{}, {"minLength": 1}, {"maxLength": 1}, {"pattern": "^a"}, {"enum": ["a"]}])
        )
    elif kind in ("integer", "number"):
        limits = [{}, {"minimum": 0}, {"maximum": 2}, {"multipleOf": 2}]
        schema |= draw(st.sampled_from(limits))
    return schema


@st.composite
def schemas(draw, depth=3):
    """A structural schema, as a definition may have it."""
    shape = draw(st.sampled_from(["scalar", "object", "map", "array", "open"] if depth else ["scalar"]))
    if shape == "scalar":
        schema = _scalar(draw)
    elif shape == "object":
        schema = {
            "type": "object",
            "properties": draw(st.dictionaries(NAMES, schemas(depth - 1), max_size=3)),
        }
        schema |= draw(st.sampled_from([{}, {"required": ["a"]}, {"maxProperties": 2}]))
        if draw(st.booleans()):
            schema["x-kubernetes-preserve-unknown-fields"] = True
    elif shape == "map":
        schema = {"type": "object", "additionalProperties": draw(schemas(depth - 1))}
    elif shape == "array":
        schema = {
            "type": "array",
            "items": draw(schemas(depth - 1)),
            **draw(st.sampled_from([{}, {"minItems": 1}])),
        }
    else:
        return {"x-kubernetes-preserve-unknown-fields": True}
    if draw(st.integers(0, 3)) == 0:
        schema["nullable"] = True
    if draw(st.integers(0, 2)) == 0:
        value = draw(VALUES)
        if validation.is_valid(value, schema):
            schema["default"] = shaping.defaulted(shaping.pruned(value, schema), schema)
    return schema


@st.composite
def objects(draw):
    return {"type": "object", "properties": draw(st.dictionaries(NAMES, schemas(), min_size=1, max_size=3))}


@settings(max_examples=200, deadline=None)
@given(objects(), st.dictionaries(NAMES, VALUES, max_size=3))
def test_shaping_twice_is_shaping_once(schema, value):
    once = shaping.defaulted(shaping.pruned(value, schema), schema)
    assert shaping.pruned(once, schema) == once
    assert shaping.defaulted(once, schema) == once
    assert shaping.pruned(shaping.defaulted(value, schema), schema) == once


@settings(max_examples=300, deadline=None)
@given(objects(), st.dictionaries(NAMES, VALUES, max_size=3))
def test_the_walker_agrees_with_a_library(schema, value):
    """The library knows neither `nullable` nor extensions; both are said in its words."""
    known = shaping.pruned(value, schema)
    expected = jsonschema_rs.validator_for(_standard(schema)).is_valid(known)
    assert validation.is_valid(known, schema) == expected, list(validation.violations(known, schema))


def _standard(schema):
    """The same in plain JSON Schema."""
    if "type" not in schema:
        return {}
    words = {key: value for key, value in schema.items() if not key.startswith("x-") and key != "nullable"}
    if "properties" in words:
        words["properties"] = {name: _standard(field) for name, field in words["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in words:
            words[key] = _standard(words[key])
    if schema.get("nullable"):
        return {"anyOf": [{"type": "null"}, words]}
    return words


@settings(max_examples=100, deadline=None)
@given(objects())
def test_generated_schemas_are_structural(schema):
    assert list(schema_rules.violations(schema, "s")) == []


def test_unknown_fields_are_named_and_kept_where_the_schema_says_so():
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"a": {"type": "string"}}},
            "open": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
                "properties": {"in": {"type": "object", "properties": {"a": {"type": "string"}}}},
            },
            "list": {"type": "array", "items": {"type": "object", "properties": {}}},
            "pod": {
                "type": "object",
                "x-kubernetes-embedded-resource": True,
                "properties": {"spec": {"type": "object"}},
            },
        },
    }
    value = {
        "apiVersion": "v1",
        "kind": "K",
        "metadata": {"name": "n"},
        "spec": {"a": "x", "b": 1},
        "open": {"any": {"thing": 1}, "in": {"a": "x", "b": 1}},
        "list": [{"x": 1}],
        "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"x": 1}, "spec": {}, "y": 1},
        "other": 1,
    }
    unknown = []
    kept = shaping.pruned(value, schema, unknown.append)
    assert unknown == ["spec.b", "open.in.b", "list[0].x", "pod.y", "other"]
    assert kept["open"] == {"any": {"thing": 1}, "in": {"a": "x"}}
    assert kept["pod"] == {"apiVersion": "v1", "kind": "Pod", "metadata": {"x": 1}, "spec": {}}
    assert (kept["metadata"], kept["list"]) == ({"name": "n"}, [{}])


def test_defaults_fill_what_is_absent_or_wrongly_null():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "default": "x"},
            "n": {"type": "string", "default": "x", "nullable": True},
            "o": {"type": "object", "default": {}, "properties": {"b": {"type": "integer", "default": 1}}},
            "p": {"type": "object", "properties": {"b": {"type": "integer", "default": 1}}},
            "m": {"type": "object", "additionalProperties": {"type": "integer", "default": 7}},
        },
    }
    filled = shaping.defaulted({"a": None, "n": None, "m": {"k": None}}, schema)
    assert filled == {"a": "x", "n": None, "o": {"b": 1}, "m": {"k": 7}}
    filled["o"]["b"] = 2
    assert shaping.defaulted({}, schema)["o"] == {"b": 1}, "a default is not shared"
