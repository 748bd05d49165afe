"""What is wrong with a value by its schema, in Kubernetes' words."""

import pytest

from koguma.kube.structural import validation
from koguma.kube.structural.words import MISSING

NESTED = {"type": "object", "properties": {"a": {"type": "integer"}}}
PORTS = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["port", "protocol"],
    "items": {
        "type": "object",
        "required": ["port"],
        "properties": {
            "port": {"type": "integer", "maximum": 10},
            "protocol": {"type": "string", "default": "TCP"},
        },
    },
}


def told(value, schema, old=MISSING):
    return [f"{each.field}: {each.message}" for each in validation.violations(value, schema, "f", old)]


@pytest.mark.parametrize(
    ("schema", "good", "bad", "message"),
    [
        ({"type": "integer"}, 5, "5", 'Invalid value: "string": f in body must be of type integer: "string"'),
        (
            {"type": "integer"},
            5.0,
            5.5,
            'Invalid value: "number": f in body must be of type integer: "number"',
        ),
        (
            {"type": "number"},
            1.5,
            True,
            'Invalid value: "boolean": f in body must be of type number: "boolean"',
        ),
        ({"type": "string"}, "", None, 'Invalid value: "null": f in body must be of type string: "null"'),
        (
            {"type": "boolean"},
            True,
            1,
            'Invalid value: "integer": f in body must be of type boolean: "integer"',
        ),
        ({"type": "object"}, {}, [], 'Invalid value: "array": f in body must be of type object: "array"'),
        (
            {"x-kubernetes-int-or-string": True},
            "80%",
            1.5,
            'Invalid value: "number": f in body must be of type integer,string: "number"',
        ),
        (
            {"type": "integer", "minimum": 1},
            1,
            0,
            "Invalid value: 0: f in body should be greater than or equal to 1",
        ),
        (
            {"type": "integer", "minimum": 1, "exclusiveMinimum": True},
            2,
            1,
            "Invalid value: 1: f in body should be greater than 1",
        ),
        (
            {"type": "number", "maximum": 2.5},
            2.5,
            3,
            "Invalid value: 3: f in body should be less than or equal to 2.5",
        ),
        (
            {"type": "integer", "maximum": 2, "exclusiveMaximum": True},
            1,
            2,
            "Invalid value: 2: f in body should be less than 2",
        ),
        (
            {"type": "integer", "multipleOf": 3},
            9,
            10,
            "Invalid value: 10: f in body should be a multiple of 3",
        ),
        (
            {"type": "integer", "format": "int32"},
            2**31 - 1,
            2**31,
            "Invalid value: 2147483648: f in body must be of type integer with format int32",
        ),
        (
            {"type": "string", "minLength": 2},
            "ab",
            "a",
            'Invalid value: "a": f in body should be at least 2 chars long',
        ),
        ({"type": "string", "maxLength": 2}, "ab", "abc", "Too long: may not be more than 2 bytes"),
        (
            {"type": "string", "pattern": "^a+$"},
            "aa",
            "b",
            "Invalid value: \"b\": f in body should match '^a+$'",
        ),
        (
            {"type": "string", "enum": ["a", "b"]},
            "a",
            "c",
            'Unsupported value: "c": supported values: "a", "b"',
        ),
        (
            {"type": "string", "format": "ipv4"},
            "10.0.0.1",
            "x",
            'Invalid value: "x": f in body must be of type ipv4: "x"',
        ),
        (
            {"type": "array", "items": {"type": "string"}, "maxItems": 1},
            ["a"],
            ["a", "b"],
            "Too many: 2: must have at most 1 items",
        ),
        (
            {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
            {"a": "b"},
            {},
            "Invalid value: 0: f in body should have at least 1 properties",
        ),
        (
            {"type": "string", "not": {"enum": ["x"]}},
            "y",
            "x",
            'Invalid value: "": "f" must not validate the schema (not)',
        ),
    ],
)
def test_a_value_is_judged_by_its_schema(schema, good, bad, message):
    assert told(good, schema) == []
    assert told(bad, schema) == [f"f: {message}"]


def test_null_may_stand_where_the_schema_says_so():
    assert told(None, {"type": "string", "nullable": True}) == []
    assert (
        told(
            {"a": None},
            {"type": "object", "properties": {"a": {"x-kubernetes-preserve-unknown-fields": True}}},
        )
        == []
    )


def test_paths_name_fields_items_and_keys():
    schema = {
        "type": "object",
        "required": ["needed"],
        "properties": {
            "needed": {"type": "string"},
            "list": {"type": "array", "items": NESTED},
            "map": {"type": "object", "additionalProperties": NESTED},
        },
    }
    value = {"list": [{"a": 1}, {"a": "x"}], "map": {"k": {"a": "x"}}}
    fields = [each.field for each in validation.violations(value, schema)]
    assert fields == ["needed", "list[1].a", "map.k.a"]
    assert told({}, schema) == ["f.needed: Required value"]


def test_choices_name_what_does_not_fit():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    assert told({"a": "x"}, schema) == []
    assert told({"a": "x", "b": "x"}, schema) == [
        'f: Invalid value: "": "f" must validate one and only one schema (oneOf). Found 2 valid alternatives'
    ]
    assert told({}, schema) == [
        'f: Invalid value: "": "f" must validate one and only one schema (oneOf). Found none valid',
        "f.a: Required value",
    ]
    assert told({}, {**schema, "oneOf": [], "anyOf": schema["oneOf"]})[0] == (
        'f: Invalid value: "": "f" must validate at least one schema (anyOf)'
    )


def test_sets_and_list_maps_have_each_item_once():
    tags = {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}
    assert told(["a", "b"], tags) == []
    assert told(["a", "b", "a"], tags) == ['f[2]: Duplicate value: "a"']
    assert told([{"port": 1}, {"port": 1, "protocol": "UDP"}], PORTS) == []
    assert told([{"port": 1}, {"port": 1, "protocol": "TCP"}], PORTS) == [
        'f[1]: Duplicate value: {"port":1,"protocol":"TCP"}'
    ]


def test_an_embedded_resource_says_what_it_is():
    schema = {
        "type": "object",
        "x-kubernetes-embedded-resource": True,
        "x-kubernetes-preserve-unknown-fields": True,
    }
    assert told({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {}}, schema) == []
    assert told({"kind": 5}, schema) == [
        "f.apiVersion: Required value: must not be empty",
        'f.kind: Invalid value: "integer": f.kind in body must be of type string: "integer"',
    ]


def test_what_did_not_change_is_not_judged_again():
    """Ratcheting: a stricter schema is in nobody's way until somebody changes what breaks it."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 5}, "b": {"type": "string"}},
    }
    old = {"a": 9, "b": "x"}
    assert told({"a": 9, "b": "y"}, schema, old) == []
    assert len(told({"a": 8, "b": "x"}, schema, old)) == 1
    ports = [{"port": 99}, {"port": 1}]
    assert told([{"port": 2}, {"port": 99}], PORTS, ports) == [], "items are known by their keys"
    assert len(told([{"port": 98}], PORTS, ports)) == 1


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("byte", "YQ==", "a"),
        ("cidr", "10.0.0.0/8", "10.0.0.0"),
        ("creditcard", "4012888888881881", "4012888888881882"),
        ("date", "2026-11-16", "16.11.2026"),
        ("date-time", "2026-11-16T10:00:00Z", "2026-11-16"),
        ("duration", "1h30m", "1 fortnight"),
        ("email", "a@example.com", "a"),
        ("hexcolor", "#ff0000", "red"),
        ("hostname", "a.example.com", "a_b!"),
        ("ipv6", "::1", "1.2.3.4"),
        ("isbn10", "0306406152", "0306406153"),
        ("isbn13", "9780306406157", "9780306406158"),
        ("mac", "01:23:45:67:89:ab", "01:23"),
        ("rgbcolor", "rgb(1,2,3)", "rgb(1,2,300)"),
        ("uri", "https://example.com/a", "no uri"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
    ],
)
def test_formats(name, good, bad):
    schema = {"type": "string", "format": name}
    assert told(good, schema) == []
    assert told(bad, schema) == [f'f: Invalid value: "{bad}": f in body must be of type {name}: "{bad}"']
    assert told("anything", {"type": "string", "format": "of-nobody"}) == []
