"""Documents: places for people, and nothing that can hurt."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.model import documents
from koguma.model.documents import BadDocument


def test_values_are_what_they_look_like():
    (document,) = documents.load("a: [1, 2.5, yes, on, '3', null, ~, true, 0755, 12:30:45, 1e3]")
    assert document.value == {"a": [1, 2.5, "yes", "on", "3", None, None, True, 755, "12:30:45", 1000.0]}


def test_every_field_knows_its_line_and_column():
    first, second = documents.load("a: 1\n---\n---\nspec:\n  to:\n    - targetRef: {kind: Mesh}\n", "f.yaml")
    assert first.position("a") == (1, 4)
    assert second.position("spec.to[0].targetRef.kind") == (6, 25)
    assert second.position("spec.to[0].missing.part") == (6, 7)
    assert second.position('spec["to"][0]') == (6, 7)


def test_anchors_and_merge_keys_work():
    (document,) = documents.load("base: &b {x: 1, y: 2}\nmade: {<<: *b, y: 3}\nlist: [*b]\n")
    assert document.value["made"] == {"y": 3, "x": 1}
    assert document.value["list"] == [{"x": 1, "y": 2}]


BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)
)


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("a: [", 2, 1, "did not find expected node content"),
        ("a: 1\nb: 2\na: 3", 3, 1, 'key "a" is given twice'),
        (b"a: 1\nb: \xff", 2, 4, "byte 8 is not valid UTF-8"),
        ("a: !!python/object:os.system x", 1, 4, "is not supported"),
        ("[" * 100_000, 1, 66, "nested deeper than 64 levels"),
        ("- " * 5_000, 1, 131, "nested deeper than 64 levels"),
        ("a: *nowhere", 1, 4, 'alias "*nowhere" has no anchor'),
        ("a\x00b", 1, 2, "a character that YAML does not allow"),
        (BOMB, 6, 26, "more than 500000 values"),
        ("? [1]\n: 2", 1, 3, "a key must be text"),
        ('a: {"\\uD800": 1}', 1, 8, "invalid Unicode character escape code"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text, line, column, problem):
    with pytest.raises(BadDocument) as caught:
        documents.load(text, "f.yaml")
    assert (caught.value.line, caught.value.column) == (line, column)
    assert problem in caught.value.problem
    assert caught.value.detail.startswith(f"f.yaml:{line}:{column}: ")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'{"a": 1, "a": 2}', 'key "a" is given twice'),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": 1e999}', "is too large for a number"),
        (b"1" * 5000, "digits is too long"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
        (b"[" * 100_000, "nested deeper"),
        (b"[" * 70 + b"]" * 70, "nested deeper"),
        (b'{"a":}', "Expecting value"),
        (b"\xff\xfe", "is not valid UTF-8"),
        (b"", "Expecting value"),
    ],
)
def test_json_that_others_let_pass_is_refused(data, problem):
    with pytest.raises(BadDocument) as caught:
        documents.load_json(data)
    assert problem in caught.value.problem


def test_a_key_given_twice_in_json_is_found():
    with pytest.raises(BadDocument) as caught:
        documents.load_json(b'{\n "a": 1,\n "a": 2}')
    assert (caught.value.line, caught.value.column) == (3, 2)


@pytest.mark.property
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_input_does_more_than_be_refused(data):
    for load in (documents.load, documents.load_json):
        with contextlib.suppress(BadDocument):
            assert load(data) is not NotImplemented
