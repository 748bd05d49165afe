"""The clean shape: nothing is lost on the way to `koguma.io/v1` and back, and the engine sees the same."""

import copy
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect as shape

from koguma.kube import v1_conversion
from koguma.model.kind import Kind
from koguma.model.violation import Violation
from tests.kube.valid_specs import ABOUT, KINDS, example, examples, is_valid, specs

pytestmark = pytest.mark.slow

BY_NAME = {kind.name: kind for kind in KINDS}

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def shown(kind: Kind, spec: Any) -> Any:
    return v1_conversion.converter(kind).from_storage(spec)


def written(kind: Kind, spec: Any) -> Any:
    return v1_conversion.converter(kind).to_storage(spec)


def nulls(value: Any, info: Any) -> bool:
    """Whether a field that may be null is null somewhere; free JSON is not looked into."""
    match info:
        case shape.Metadata(type=inner):
            return nulls(value, inner)
        case shape.UnionType(types=types):
            return value is not None and any(nulls(value, each) for each in types)
        case shape.StructType(fields=fields) if isinstance(value, dict):
            own = [(f, value[f.encode_name]) for f in fields if f.encode_name in value]
            return any((part is None and _is_optional(f.type)) or nulls(part, f.type) for f, part in own)
        case shape.VarTupleType(item_type=inner) if isinstance(value, list):
            return any(nulls(each, inner) for each in value)
        case _:
            return False


def _is_optional(info: Any) -> bool:
    plain = info.type if isinstance(info, shape.Metadata) else info
    return isinstance(plain, shape.UnionType) and any(isinstance(t, shape.NoneType) for t in plain.types)


@pytest.mark.property
@every_kind
@given(data=st.data())
@settings(max_examples=30)
def test_what_is_written_in_the_clean_shape_is_shown_again_as_it_was(kind: Kind, data: st.DataObject):
    clean_spec = shown(kind, data.draw(specs(kind)))
    before = copy.deepcopy(clean_spec)
    assert list(v1_conversion.refusals(kind, clean_spec)) == []
    assert shown(kind, written(kind, clean_spec)) == clean_spec == before


@pytest.mark.property
@every_kind
@given(data=st.data())
@settings(max_examples=30)
def test_what_is_stored_through_it_is_legal_and_says_the_same(kind: Kind, data: st.DataObject):
    spec = data.draw(specs(kind))
    before = copy.deepcopy(spec)
    stored = written(kind, shown(kind, spec))
    assert spec == before
    assert is_valid(kind, stored)
    assert kind.clean(stored) == stored
    assert shown(kind, stored) == shown(kind, spec) == shown(kind, shown(kind, spec))
    assert not nulls(stored, shape.type_info(kind.spec))


@pytest.mark.property
@every_kind
@given(data=st.data())
@settings(max_examples=30)
def test_it_refuses_only_what_its_tables_and_nulls_say(kind: Kind, data: st.DataObject):
    spec = data.draw(specs(kind))
    known = [older.field for older in v1_conversion.lacks(kind)]
    for violation in v1_conversion.refusals(kind, spec):
        field = re.sub(r"\[\d+\]", "[]", violation.field)
        assert violation.rule == "null" or any(field.startswith(each) for each in known), violation
    if not list(v1_conversion.refusals(kind, spec)):
        assert shown(kind, spec) == spec or written(kind, spec) != spec


@every_kind
def test_the_examples_of_the_manual_are_clean(kind: Kind):
    for spec in examples(kind):
        refused = list(v1_conversion.refusals(kind, spec))
        assert all(each.rule == v1_conversion.OLDER for each in refused)
        assert refused == [] or kind.name == "MeshExternalService", refused


@every_kind
def test_a_field_that_it_lacks_leads_to_one_that_it_has(kind: Kind):
    for older in v1_conversion.lacks(kind):
        assert not older.kept
        assert older.instead
        assert older.becomes == "" or older.becomes not in v1_conversion.deprecated(kind)
    for older in v1_conversion.kept(kind):
        assert older.kept
        assert older.field not in v1_conversion.deprecated(kind)


REFUSED = [
    (
        "MeshTimeout",
        "spec.from",
        {"from": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "1s"}}]},
    ),
    ("MeshTimeout", "spec.targetRef.tag", {"targetRef": {"kind": "MeshSubset", "tag": {"a": "b"}}}),
    ("MeshTimeout", "spec.targetRef.name", {"targetRef": {"kind": "Mesh", "name": None}}),
    (
        "Dataplane",
        "spec.networking.inbound[0].health",
        {"networking": {"inbound": [{"health": {"ready": True}}]}},
    ),
    (
        "MeshHTTPRoute",
        "spec.to[0].rules[0].matches[0].path.type",
        {"to": [{"rules": [{"matches": [{"path": {"type": "Prefix", "value": "/"}}]}]}]},
    ),
    (
        "MeshHTTPRoute",
        "spec.to[0].rules[0].matches[0].path.prefix",
        {"to": [{"rules": [{"matches": [{"path": {"prefix": "/"}}]}]}]},
    ),
    ("MeshHTTPRoute", "spec.to[0].rules[0].matches", {"to": [{"rules": [{"matches": {"method": "GET"}}]}]}),
    ("MeshHTTPRoute", "spec.to[0].rules[0].filters", {"to": [{"rules": [{"filters": []}]}]}),
    (
        "MeshHTTPRoute",
        "spec.to[0].rules[0].default.filters[0].requestHeader",
        {
            "to": [
                {
                    "rules": [
                        {"default": {"filters": [{"requestHeader": {}, "type": "RequestHeaderModifier"}]}}
                    ]
                }
            ]
        },
    ),
    (
        "MeshHTTPRoute",
        "spec.to[0].rules[0].default.filters[0].type",
        {"to": [{"rules": [{"default": {"filters": [{"urlRewrite": {}}]}}]}]},
    ),
    (
        "MeshRetry",
        "spec.to[0].default.http.retryOn[1]",
        {"to": [{"default": {"http": {"retryOn": ["503", "5XX"]}}}]},
    ),
    (
        "MeshLoadBalancingStrategy",
        "spec.to[0].default.hashPolicies[0].type",
        {"to": [{"default": {"hashPolicies": [{"type": "SourceIP"}]}}]},
    ),
    (
        "MeshExternalService",
        "spec.tls.verification.caCert",
        {"tls": {"verification": {"caCert": {"secret": "ca"}}}},
    ),
    (
        "MeshExternalService",
        "spec.destination.tls.version.min",
        {"destination": {"tls": {"version": {"min": "TLSv1_2"}}}},
    ),
    (
        "MeshExternalService",
        "spec.tls.verification.subjectAltNames[0]",
        {"tls": {"verification": {"subjectAltNames": ["a.example.com"]}}},
    ),
]


@pytest.mark.parametrize(("kind", "field", "spec"), REFUSED, ids=[f"{k}-{f}" for k, f, _ in REFUSED])
def test_an_older_spelling_is_refused_at_its_place(kind: str, field: str, spec: Any):
    [violation] = v1_conversion.refusals(BY_NAME[kind], spec)
    assert violation.field == field
    assert violation.rule == (
        "null" if spec == {"targetRef": {"kind": "Mesh", "name": None}} else v1_conversion.OLDER
    )


def test_a_refusal_names_the_replacement():
    [violation] = v1_conversion.refusals(BY_NAME["MeshTimeout"], REFUSED[0][2])
    assert violation.message == (
        "does not exist in koguma.io/v1; write its entries in spec.rules, without targetRef"
    )
    [violation] = v1_conversion.refusals(BY_NAME["MeshHTTPRoute"], REFUSED[4][2])
    assert violation.message == 'is written "PathPrefix" in koguma.io/v1'


def test_a_refusal_shows_no_secret():
    spec = {"tls": {"verification": {"clientKey": {"inlineString": "hidden"}}}}
    assert "hidden" not in repr(list(v1_conversion.refusals(BY_NAME["MeshExternalService"], spec)))


def test_rules_beside_to_are_stored_as_from_since_kuma_takes_no_others_there():
    kind, conf = BY_NAME["MeshTimeout"], {"default": {"idleTimeout": "1s"}}
    spec = {"to": [{"targetRef": {"kind": "Mesh"}, **conf}], "rules": [conf]}
    assert not is_valid(kind, spec)
    assert written(kind, spec)["from"] == [{"targetRef": {"kind": "Mesh"}, **conf}]
    assert is_valid(kind, written(kind, spec))
    assert list(v1_conversion.refusals(kind, spec)) == []


def test_a_violation_of_what_is_stored_is_seen_where_it_was_written():
    kind, bad = BY_NAME["MeshTimeout"], {"default": {"connectionTimeout": "0s"}}
    spec = {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "1s"}}], "rules": [bad]}
    [found] = v1_conversion.relocated(kind, kind.violations(written(kind, spec), ABOUT))
    assert found.field == "spec.rules[0].default.connectionTimeout"
    [other] = v1_conversion.relocated(kind, [Violation("spec.to[0].targetRef", "x", "y")])
    assert other == Violation("spec.to[0].targetRef", "x", "y")


def test_from_that_names_some_callers_stays():
    spec = {
        "from": [{"targetRef": {"kind": "MeshSubset", "tags": {"a": "b"}}, "default": {"action": "Allow"}}]
    }
    kind = BY_NAME["MeshTrafficPermission"]
    assert shown(kind, spec) == spec
    assert list(v1_conversion.refusals(kind, spec)) == []


@pytest.mark.parametrize(
    ("inbound", "state"),
    [
        ({"health": {"ready": False}}, "NotReady"),
        ({"health": {"ready": True}}, "Ready"),
        ({"health": {"ready": False}, "state": "Ready"}, "NotReady"),
        ({"health": {"ready": True}, "state": "NotReady"}, "NotReady"),
        ({"health": {"ready": False}, "state": "Ignored"}, "Ignored"),
        ({"health": {}}, None),
        ({"health": None}, None),
    ],
)
def test_the_health_of_an_inbound_is_its_state(inbound: Any, state: str | None):
    spec = example(BY_NAME["Dataplane"])
    spec["networking"]["inbound"][0] |= inbound
    [found] = shown(BY_NAME["Dataplane"], spec)["networking"]["inbound"]
    assert "health" not in found
    assert found.get("state") == state


def test_free_json_keeps_its_nulls():
    patch = {"cluster": {"operation": "Add", "value": {"a": None}, "jsonPatches": None}}
    [made] = shown(BY_NAME["MeshProxyPatch"], {"default": {"appendModifications": [patch]}})["default"][
        "appendModifications"
    ]
    assert made == {"cluster": {"operation": "Add", "value": {"a": None}}}


@pytest.mark.parametrize(
    "spec", [None, 1, "x", [], {"from": 1}, {"from": [1]}, {"rules": {}, "to": 1, "tls": [1]}]
)
@every_kind
def test_what_is_no_spec_passes_through(kind: Kind, spec: Any):
    assert shown(kind, spec) == spec
    assert written(kind, spec) == spec
