"""Rules in CEL: compiled with the definition, asked of every object, and bounded."""

import pytest

from koguma.kube.structural import cel_rules
from koguma.kube.structural.words import MISSING


def broken(value, schema, old=MISSING):
    return [f"{each.field}: {each.message}" for each in cel_rules.violations(value, schema, "f", old)]


def with_rules(*rules, **schema):
    return {"type": "object", **schema, "x-kubernetes-validations": list(rules)}


NUMBERS = {"a": {"type": "integer"}, "b": {"type": "number"}, "t": {"type": "string", "format": "date-time"}}
NUMBERS["d"] = {"type": "string", "format": "duration"}


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ("self.a > 1", {"a": 2}, {"a": 1}),
        ("self.b > 1.0", {"b": 2}, {"b": 1}),
        ("!has(self.a) || self.a == 1", {}, {"a": 2}),
        ("self.?a.orValue(5) == 5", {}, {"a": 1}),
        (
            "self.t > timestamp('2026-01-01T00:00:00Z')",
            {"t": "2026-06-01T00:00:00Z"},
            {"t": "2025-06-01T00:00:00Z"},
        ),
        ("self.d > duration('1m')", {"d": "1h"}, {"d": "5s"}),
        ("self.exists(k, k.startsWith('a'))", {"a": 1}, {"b": 1}),
        ("cel.bind(x, self.a, x * x == 4)", {"a": 2}, {"a": 3}),
    ],
)
def test_a_rule_is_asked_of_a_value(rule, good, bad):
    schema = with_rules({"rule": rule}, properties=NUMBERS)
    assert list(cel_rules.schema_violations(schema, "s")) == []
    assert broken(good, schema) == []
    assert broken(bad, schema) == [f'f: Invalid value: "object": failed rule: {rule}']


def test_names_that_cel_cannot_write_are_escaped():
    names = ("a-b", "a.b", "a/b", "a__b", "namespace")
    schema = with_rules(
        {
            "rule": "self.a__dash__b + self.a__dot__b + self.a__slash__b + self.a__underscores__b"
            " + self.__namespace__ == 15"
        },
        properties={name: {"type": "integer"} for name in names},
    )
    assert broken({name: index + 1 for index, name in enumerate(names)}, schema) == []


def test_transition_rules_are_asked_of_changes_alone():
    schema = with_rules({"rule": "self.a >= oldSelf.a", "message": "grows"}, properties=NUMBERS)
    assert broken({"a": 1}, schema) == []
    assert broken({"a": 2}, schema, {"a": 1}) == []
    assert broken({"a": 1}, schema, {"a": 2}) == ['f: Invalid value: "object": grows']
    optional = with_rules(
        {"rule": "oldSelf.hasValue() || self.a == 1", "optionalOldSelf": True}, properties=NUMBERS
    )
    assert list(cel_rules.schema_violations(optional, "s")) == []
    assert (broken({"a": 1}, optional), broken({"a": 5}, optional, {"a": 1})) == ([], [])
    assert len(broken({"a": 5}, optional)) == 1


def test_items_of_a_list_map_are_compared_by_their_keys():
    item = with_rules(
        {"rule": "self.v >= oldSelf.v"}, properties={"k": {"type": "string"}, "v": {"type": "integer"}}
    )
    keys = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}
    schema = {"type": "array", "items": item, **keys}
    old = [{"k": "a", "v": 1}, {"k": "b", "v": 5}]
    assert broken([{"k": "b", "v": 6}, {"k": "c", "v": 0}, {"k": "a", "v": 1}], schema, old) == []
    assert broken([{"k": "b", "v": 4}], schema, old) == [
        'f[0]: Invalid value: "object": failed rule: self.v >= oldSelf.v'
    ]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"rule": ""}, "rule: Required value"),
        ({"rule": "self.a +"}, "rule: Invalid value"),
        ({"rule": "1 + 1"}, "it gives a value of type int, and bool is needed"),
        ({"rule": "ip('1.2.3.4').family() == 4"}, "Kubernetes' own libraries"),
        ({"rule": "true", "messageExpression": "1"}, "messageExpression: Invalid value"),
        ({"rule": "true", "reason": "Because"}, "reason: Unsupported value"),
        ({"rule": "true", "fieldPath": ".nowhere"}, "fieldPath: Invalid value"),
        ({"rule": "x" * 6000}, "rule: Too long"),
        ({"rule": "true &&\ntrue"}, "message must be specified if rule contains line breaks"),
    ],
)
def test_a_rule_that_cannot_hold_is_refused_with_the_definition(rule, message):
    told = [
        f"{each.field}: {each.message}"
        for each in cel_rules.schema_violations(with_rules(rule, properties=NUMBERS), "s")
    ]
    assert len(told) == 1
    assert message in told[0]


@pytest.mark.parametrize(
    ("schema", "rule", "fits"),
    [
        ({"type": "string"}, "self.startsWith('a')", True),
        ({"type": "string"}, "self > 5", False),
        ({"type": "boolean"}, "!self", True),
        ({"type": "boolean"}, "self.size() > 1", False),
        ({"type": "integer"}, "self > 5.5", True),
        ({"type": "number"}, "self > 5", True),
        ({"type": "array", "items": {"type": "string"}}, "self.all(x, x > 5)", False),
        ({"type": "array", "items": {"type": "integer"}}, "self.all(x, x > 5)", True),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "self.all(k, self[k] != k)", True),
        ({"type": "object"}, "self > 5", False),
        ({"type": "string", "format": "date-time"}, "self.getFullYear() > 2000", True),
        ({"type": "string", "nullable": True}, "self == null || self == 'a'", True),
    ],
)
def test_the_type_of_a_part_is_known_to_its_rules(schema, rule, fits):
    found = list(cel_rules.schema_violations({**schema, "x-kubernetes-validations": [{"rule": rule}]}, "s"))
    assert (found == []) is fits, found


def test_rules_are_bounded_whatever_an_object_has():
    endless = with_rules(
        {"rule": "self.l.all(x, self.l.all(y, x + y >= 0))"}, properties={"l": {"type": "array"}}
    )
    assert "budget exceeded" in broken({"l": list(range(1000))}, endless)[0]
    item = {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= 0"}]}
    told = broken(list(range(cel_rules.EVALUATIONS_MAX + 10)), {"type": "array", "items": item})
    assert len(told) == 1
    assert "evaluated more than" in told[0]
