"""A page shows an object as the command line prints it, and knows the line of each field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.cli import output
from koguma.model.printed_yaml import PrintedYaml, yaml_text
from koguma.model.violation import child, item

POLICY = {
    "type": "MeshTimeout",
    "spec": {
        "targetRef": {"kind": "Mesh"},
        "to": [
            {"targetRef": {"kind": "Mesh"}, "default": {"http": {"requestTimeout": "2s"}}},
            {"default": {"list": ["a", ["b"]], "empty": [], "nothing": {}, "text": "one\ntwo\n", "x": 1}},
        ],
    },
}


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("type", "type: MeshTimeout"),
        ("spec", "spec:"),
        ("spec.to", "  to:"),
        ("spec.to[0]", "  - targetRef:"),
        ("spec.to[0].targetRef", "  - targetRef:"),
        ("spec.to[0].default.http", "      http:"),
        ("spec.to[0].default.http.requestTimeout", "        requestTimeout: 2s"),
        ("spec.to[0].default.http.other", "      http:"),
        ("spec.to[1].default.list", "      list:"),
        ("spec.to[1].default.list[0]", "      - a"),
        ("spec.to[1].default.list[1]", "      - - b"),
        ("spec.to[1].default.empty", "      empty: []"),
        ("spec.to[1].default.nothing", "      nothing: {}"),
        ("spec.to[1].default.text", "      text: 'one"),
        ("spec.to[1].default.x", "      x: 1"),
        ("", "type: MeshTimeout"),
    ],
)
def test_a_field_stands_where_its_key_does(field, line):
    assert yaml_text(POLICY).splitlines()[PrintedYaml(POLICY).line(field) - 1] == line


def fields(value, path=""):
    """Every field of an object with its name."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield child(path, name), name
            yield from fields(part, child(path, name))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from fields(part, item(path, index))


names = st.text("abc", min_size=1, max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=130),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
)


@given(st.dictionaries(names, values, min_size=1))
def test_the_line_of_every_field_names_it(value):
    page, lines = PrintedYaml(value), yaml_text(value).splitlines()
    for path, name in fields(value):
        assert f"{name}:" in lines[page.line(path) - 1], path


@given(values)
def test_the_command_line_prints_the_same(value):
    assert yaml_text(value) == output.yaml_text(value)
