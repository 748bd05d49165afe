"""Schemas become shapes: what is merged field by field, item by item, or as a whole."""

import pytest

from koguma.kube import typed
from koguma.kube.merge_schema import MergeSchema, MergeStrategy, merge_schema_of
from tests.kube.ownership import SCHEMA, config, places

OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}
LIST = {"type": "array", "items": OBJECT}
LIST_MAP = {**LIST, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}


def form(schema) -> MergeStrategy:
    definitions = {"#/one": OBJECT, "#/list": LIST, "#/whole": {**OBJECT, "x-kubernetes-map-type": "atomic"}}
    return merge_schema_of({"properties": {"spec": schema}}, definitions.__getitem__).child("f:spec").strategy


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, MergeStrategy.SCALAR),
        ({"type": ["integer", "null"]}, MergeStrategy.SCALAR),
        ({"x-kubernetes-int-or-string": True}, MergeStrategy.SCALAR),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, MergeStrategy.SCALAR),
        (OBJECT, MergeStrategy.STRUCT),
        ({"properties": {"a": {}}}, MergeStrategy.STRUCT),
        ({"$ref": "#/one"}, MergeStrategy.STRUCT),
        ({"allOf": [{"$ref": "#/one"}], "default": {}}, MergeStrategy.STRUCT),
        ({"anyOf": [{"$ref": "#/one"}, {"type": "null"}]}, MergeStrategy.STRUCT),
        ({**OBJECT, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, MergeStrategy.STRUCT),
        ({"type": "object", "additionalProperties": {"type": "string"}}, MergeStrategy.MAP),
        ({"type": "object"}, MergeStrategy.MAP),
        ({"type": "object", "additionalProperties": True}, MergeStrategy.MAP),
        ({"x-kubernetes-preserve-unknown-fields": True}, MergeStrategy.MAP),
        ({"anyOf": [OBJECT, LIST]}, MergeStrategy.MAP),
        ({}, MergeStrategy.MAP),
        ({**OBJECT, "x-kubernetes-map-type": "atomic"}, MergeStrategy.ATOMIC),
        ({"$ref": "#/one", "x-kubernetes-map-type": "atomic"}, MergeStrategy.ATOMIC),
        ({"$ref": "#/whole"}, MergeStrategy.ATOMIC),
        ({"$ref": "#/whole", "x-kubernetes-map-type": "granular"}, MergeStrategy.STRUCT),
        ({"type": "object", "x-kubernetes-map-type": "granular"}, MergeStrategy.MAP),
        (LIST, MergeStrategy.ATOMIC),
        ({**LIST, "x-kubernetes-list-type": "atomic"}, MergeStrategy.ATOMIC),
        ({**LIST, "x-kubernetes-list-type": "set"}, MergeStrategy.SET),
        ({"$ref": "#/list", "x-kubernetes-list-type": "set"}, MergeStrategy.SET),
        (LIST_MAP, MergeStrategy.LIST_MAP),
        ({"anyOf": [LIST_MAP, {"type": "null"}]}, MergeStrategy.LIST_MAP),
    ],
    ids=str,
)
def test_a_schema_says_how_its_values_merge(schema, expected):
    assert form(schema) is expected


def test_a_schema_that_refers_to_itself_is_followed_as_far_as_a_value_goes():
    tree = {"type": "object", "properties": {"left": {"$ref": "#/tree"}, "size": {"type": "integer"}}}
    shape = merge_schema_of({"properties": {"spec": {"$ref": "#/tree"}}}, {"#/tree": tree}.__getitem__)
    value = {"spec": {"left": {"left": {"size": 1}}}}
    assert places(typed.field_set_of(value, shape).json()) == [".spec.left.left.size"]


def test_a_shape_is_made_once_for_each_place():
    assert SCHEMA.child("f:spec") is SCHEMA.child("f:spec")
    assert SCHEMA.child("f:spec").child("f:ports").rest is SCHEMA.child("f:spec").child("f:ports").rest


@pytest.mark.parametrize("schema", [None, {}, {"type": "object"}, {"type": "string"}], ids=str)
def test_without_a_schema_objects_are_taken_apart_and_lists_stay_whole(schema):
    value = {"spec": {"a": {"b": [1, {"c": 2}], "d": 3}}}
    assert places(typed.field_set_of(value, merge_schema_of(schema)).json()) == [".spec.a.b", ".spec.a.d"]


@pytest.mark.parametrize("shape", [SCHEMA, merge_schema_of(None)], ids=["schema", "none"])
def test_metadata_has_its_own_shape(shape: MergeSchema):
    owner = {"uid": "u", "kind": "Mesh", "name": "m"}
    metadata = {
        "labels": {"a": "1"},
        "annotations": {"b": "2"},
        "finalizers": ["c"],
        "ownerReferences": [owner],
    }
    assert places(typed.field_set_of({"metadata": metadata}, shape).json()) == [
        ".metadata.annotations.b",
        '.metadata.finalizers[="c"]',
        ".metadata.labels.a",
        '.metadata.ownerReferences[uid="u"]',
    ]


def test_a_key_that_an_item_leaves_out_has_its_default():
    ports = SCHEMA.child("f:spec").child("f:ports")
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
    assert [(each.field, each.rule) for each in typed.violations(config(spec), SCHEMA)] == expected
