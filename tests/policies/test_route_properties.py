"""Whatever JSON arrives, reading and checking it gives values, never an exception."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind, ValidationContext
from koguma.policies import (
    mesh_gateway_http_route,
    mesh_http_route,
    mesh_load_balancing_strategy,
    mesh_retry,
    mesh_tcp_route,
    mesh_timeout,
)

pytestmark = [pytest.mark.property, pytest.mark.slow]

KINDS = (
    mesh_gateway_http_route.KIND,
    mesh_http_route.KIND,
    mesh_load_balancing_strategy.KIND,
    mesh_retry.KIND,
    mesh_tcp_route.KIND,
    mesh_timeout.KIND,
)
# The words of the schemas make random objects look like specs, so that the search goes deep.
_, COMPONENTS = msgspec.json.schema_components([kind.spec for kind in KINDS], ref_template="{name}")
KEYS = sorted(
    {name for component in COMPONENTS.values() for name in component["properties"]} | {"tag", "prefix"}
)
ENUMS = {
    word
    for component in COMPONENTS.values()
    for field in component["properties"].values()
    for branch in [field, *field.get("anyOf", ())]
    for word in branch.get("enum", ())
    if isinstance(word, str)
}
ODD = ["/v1", "/v1/", "(", "X-Name", "host", "5XX", "503", "10s", "-1s", "0s", "12.5", "SourceIP", "10.0.0.1"]
WORDS = [*sorted(ENUMS), *ODD]

scalars: SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-5, max_value=600),
    st.integers(),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(alphabet=st.characters(), max_size=8),  # with half surrogates, as JSON escapes can write them
)
json_values: SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=5)), inner),
    ),
    max_leaves=30,
)

refs = st.fixed_dictionaries(
    {"kind": st.sampled_from(["Mesh", "MeshService", "MeshServiceSubset", "MeshHTTPRoute", "MeshGateway"])},
    optional={"name": st.just("backend"), "tag": st.just({"a": "b"}), "weight": st.integers(0, 2**33)},
)
TEXTS = ["/", "/v1", "/v1/", "v1", "(", "a\n", "", "x" * 5000, "\ud800", "10.0.0.1", "5xx", "50", "-0.5"]
texts = st.sampled_from(TEXTS)
paths = st.one_of(
    st.fixed_dictionaries({"prefix": texts}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["Prefix", "Exact", "PathPrefix", "RegularExpression"]), "value": texts}
    ),
)
headers = st.fixed_dictionaries(
    {"name": st.sampled_from(["X-A", "x-a", "host"])},
    optional={"type": st.sampled_from(["Exact", "Present", "RegularExpression"]), "value": texts},
)
matches = st.fixed_dictionaries({}, optional={"path": paths, "headers": st.lists(headers, max_size=2)})
rewrites = st.fixed_dictionaries(
    {},
    optional={
        "path": st.fixed_dictionaries({}, optional={"replaceFullPath": texts, "replacePrefixMatch": texts}),
        "hostname": texts,
    },
)
modifiers = st.fixed_dictionaries(
    {}, optional={"set": st.lists(headers, max_size=2), "remove": st.lists(texts)}
)
bodies = st.fixed_dictionaries({}, optional={"inlineString": texts, "inlineBytes": texts, "filename": texts})
filters = st.fixed_dictionaries(
    {},
    optional={
        "requestRedirect": rewrites,
        "urlRewrite": rewrites,
        "requestHeader": modifiers,
        "requestMirror": st.fixed_dictionaries({"backendRef": refs}, optional={"percentage": texts}),
        "directResponse": st.fixed_dictionaries({"status": st.integers(190, 610)}, optional={"body": bodies}),
    },
)
rules = st.fixed_dictionaries(
    {"matches": st.one_of(matches, st.lists(matches, max_size=2))},
    optional={
        "default": st.fixed_dictionaries(
            {}, optional={"filters": st.lists(filters, max_size=2), "backendRefs": st.lists(refs, max_size=2)}
        ),
        "filters": st.lists(filters, max_size=1),
    },
)
route_specs = st.one_of(
    st.fixed_dictionaries({"targetRef": refs, "rules": st.lists(rules, max_size=2)}),
    st.fixed_dictionaries(
        {"to": st.lists(st.fixed_dictionaries({"targetRef": refs, "rules": st.lists(rules, max_size=2)}))},
        optional={"targetRef": refs},
    ),
)
specs = st.one_of(route_specs, json_values)


def fitting(schema: dict[str, Any]) -> SearchStrategy[Any]:
    """Values of a JSON schema, so that the search goes past the shape to the meaning."""
    if "$ref" in schema:
        return st.deferred(lambda: fitting(COMPONENTS[schema["$ref"]]))
    if "anyOf" in schema:
        return st.one_of([fitting(branch) for branch in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "object" if "properties" in schema:
            needed = set(schema["required"])
            fields = {name: fitting(inner) for name, inner in schema["properties"].items()}
            return st.fixed_dictionaries(
                {name: field for name, field in fields.items() if name in needed},
                optional={name: field for name, field in fields.items() if name not in needed},
            )
        case "object":
            return st.dictionaries(st.sampled_from(WORDS), st.sampled_from(WORDS), max_size=2)
        case "array":
            return st.lists(fitting(schema["items"]), min_size=schema.get("minItems", 0), max_size=2)
        case "integer":
            return st.integers(schema.get("minimum", -1), schema.get("maximum", 2**33))
        case "string":
            return st.sampled_from(["10s", "-1s", "0s"] if schema.get("format") == "duration" else TEXTS)
        case "boolean":
            return st.booleans()
        case _:
            return st.none()


every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@every_kind
@given(written=specs)
def test_reading_twice_is_reading_once_and_changes_nothing_written(kind: Kind, written: Any) -> None:
    before = copy.deepcopy(written)
    read = kind.clean(written)
    assert kind.clean(read) is read
    assert repr(written) == repr(before)


@every_kind
@given(data=st.data())
def test_checking_never_raises_and_a_legal_spec_can_be_warned_about(kind: Kind, data: st.DataObject) -> None:
    written = data.draw(st.one_of(specs, fitting({"$ref": kind.spec.__name__})))
    namespace = data.draw(st.sampled_from(["", "backend-ns"]))
    context = ValidationContext(
        control_plane=ControlPlaneInfo(), name="a", mesh="default", namespace=namespace
    )
    found = list(kind.violations(written, context))
    assert all(violation.field.startswith("spec") and violation.message for violation in found)
    if not found:
        assert all(kind.warn(kind.read(kind.clean(written)), context))
