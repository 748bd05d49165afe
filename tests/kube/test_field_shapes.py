"""Schemas become shapes: what is merged field by field, item by item, or as a whole."""

import pytest

from koguma.kube import typed
from koguma.kube.shape import Form, Shape, shape_of
from tests.kube.ownership import SHAPE, config, places

OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}
LIST = {"type": "array", "items": OBJECT}
LIST_MAP = {**LIST, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}


def form(schema) -> Form:
    definitions = {"#/one": OBJECT, "#/list": LIST, "#/whole": {**OBJECT, "x-kubernetes-map-type": "atomic"}}
    return shape_of({"properties": {"spec": schema}}, definitions.__getitem__).child("f:spec").form


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, Form.SCALAR),
        ({"type": ["integer", "null"]}, Form.SCALAR),
        ({"x-kubernetes-int-or-string": True}, Form.SCALAR),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, Form.SCALAR),
        (OBJECT, Form.STRUCT),
        ({"properties": {"a": {}}}, Form.STRUCT),
        ({"$ref": "#/one"}, Form.STRUCT),
        ({"allOf": [{"$ref": "#/one"}], "default": {}}, Form.STRUCT),
        ({"anyOf": [{"$ref": "#/one"}, {"type": "null"}]}, Form.STRUCT),
        ({**OBJECT, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, Form.STRUCT),
        ({"type": "object", "additionalProperties": {"type": "string"}}, Form.MAP),
        ({"type": "object"}, Form.MAP),
        ({"type": "object", "additionalProperties": True}, Form.MAP),
        ({"x-kubernetes-preserve-unknown-fields": True}, Form.MAP),
        ({"anyOf": [OBJECT, LIST]}, Form.MAP),
        ({}, Form.MAP),
        ({**OBJECT, "x-kubernetes-map-type": "atomic"}, Form.ATOMIC),
        ({"$ref": "#/one", "x-kubernetes-map-type": "atomic"}, Form.ATOMIC),
        ({"$ref": "#/whole"}, Form.ATOMIC),
        ({"$ref": "#/whole", "x-kubernetes-map-type": "granular"}, Form.STRUCT),
        ({"type": "object", "x-kubernetes-map-type": "granular"}, Form.MAP),
        (LIST, Form.ATOMIC),
        ({**LIST, "x-kubernetes-list-type": "atomic"}, Form.ATOMIC),
        ({**LIST, "x-kubernetes-list-type": "set"}, Form.SET),
        ({"$ref": "#/list", "x-kubernetes-list-type": "set"}, Form.SET),
        (LIST_MAP, Form.KEYED),
        ({"anyOf": [LIST_MAP, {"type": "null"}]}, Form.KEYED),
    ],
    ids=str,
)
def test_a_schema_says_how_its_values_merge(schema, expected):
    assert form(schema) is expected


def test_a_schema_that_refers_to_itself_is_followed_as_far_as_a_value_goes():
    tree = {"type": "object", "properties": {"left": {"$ref": "#/tree"}, "size": {"type": "integer"}}}
    shape = shape_of({"properties": {"spec": {"$ref": "#/tree"}}}, {"#/tree": tree}.__getitem__)
    value = {"spec": {"left": {"left": {"size": 1}}}}
    assert places(typed.fields_of(value, shape).json()) == [".spec.left.left.size"]


def test_a_shape_is_made_once_for_each_place():
    assert SHAPE.child("f:spec") is SHAPE.child("f:spec")
    assert SHAPE.child("f:spec").child("f:ports").rest is SHAPE.child("f:spec").child("f:ports").rest


@pytest.mark.parametrize("schema", [None, {}, {"type": "object"}, {"type": "string"}], ids=str)
def test_without_a_schema_objects_are_taken_apart_and_lists_stay_whole(schema):
    value = {"spec": {"a": {"b": [1, {"c": 2}], "d": 3}}}
    assert places(typed.fields_of(value, shape_of(schema)).json()) == [".spec.a.b", ".spec.a.d"]


@pytest.mark.parametrize("shape", [SHAPE, shape_of(None)], ids=["schema", "none"])
def test_metadata_has_its_own_shape(shape: Shape):
    owner = {"uid": "u", "kind": "Mesh", "name": "m"}
    metadata = {
        "labels": {"a": "1"},
        "annotations": {"b": "2"},
        "finalizers": ["c"],
        "ownerReferences": [owner],
    }
    assert places(typed.fields_of({"metadata": metadata}, shape).json()) == [
        ".metadata.annotations.b",
        '.metadata.finalizers[="c"]',
        ".metadata.labels.a",
        '.metadata.ownerReferences[uid="u"]',
    ]


def test_a_key_that_an_item_leaves_out_has_its_default():
    ports = SHAPE.child("f:spec").child("f:ports")
    assert ports.element({"port": 80}, 0) == ports.element({"protocol": "tcp", "port": 80}, 5)
    assert ports.element({"port": 80}, 0) == 'k:{"port":80,"protocol":"tcp"}'
    assert ports.element("odd", 3) == "i:3"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("{tags: [a, b], ports: [{port: 1}, {port: 1, protocol: udp}]}", []),
        ("{tags: [a, b, a]}", [("spec.tags[2]", "duplicate")]),
        ("{steps: [a, a]}", []),
        ("{ports: [{port: 1}, {port: 1, protocol: tcp}]}", [("spec.ports[1]", "duplicate")]),
        ("{ports: [{name: a}]}", [("spec.ports[0].port", "required")]),
        ("{ports: [5]}", [("spec.ports[0]", "type")]),
        ("{ports: 5, tags: 5}", []),
    ],
)
def test_items_that_cannot_be_told_apart_are_named(spec, expected):
    assert [(each.field, each.rule) for each in typed.violations(config(spec), SHAPE)] == expected
