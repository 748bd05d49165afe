"""FieldsV1 is read and written without loss, and sets of places behave as sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.kube import field_set
from koguma.kube.field_set import EMPTY, LEAF, FieldSet

ELEMENTS = st.sampled_from(
    ["f:a", "f:b", "f:.", "f:kuma.io/mesh", 'k:{"name":"x"}', 'k:{"a":1,"b":"y"}', 'v:"t"', "v:1", "i:0"]
)
PATHS = st.lists(ELEMENTS, min_size=1, max_size=4).map(tuple)
SETS = st.lists(PATHS, max_size=8).map(FieldSet.of)


def the_set(*paths: str) -> FieldSet:
    """A set of paths such as `a b c`, where each word is a field."""
    return FieldSet.of(tuple(f"f:{name}" for name in path.split()) for path in paths)


@pytest.mark.property
@given(SETS)
def test_what_is_written_is_read_back(fields):
    assert field_set.from_fields_v1(fields.json()) == fields


@pytest.mark.property
@given(SETS)
def test_a_set_is_made_of_its_paths(fields):
    assert FieldSet.of(fields.paths()) == fields
    assert FieldSet.of(reversed(list(fields.paths()))).json() == fields.json()


@pytest.mark.property
@given(SETS, SETS)
def test_a_union_has_the_paths_of_both(one, other):
    assert set((one | other).paths()) == {*one.paths(), *other.paths()}
    assert one | other == other | one


@pytest.mark.property
@given(SETS, SETS)
def test_what_is_taken_away_is_gone_and_the_rest_is_left(one, other):
    left = one - other
    assert {*left.paths()} <= {*one.paths()} - {*other.paths()}
    below = [path for path in other.paths() if path in {*other.leaves.paths()}]
    gone = {path for path in one.paths() if any(path[: len(leaf)] == leaf for leaf in below)}
    assert {*left.paths()} == {*one.paths()} - {*other.paths()} - gone


@pytest.mark.property
@given(SETS, SETS)
def test_what_is_shared_is_in_the_other_and_below_its_leaves_nothing_else(one, other):
    shared = {*(one & other).paths()}
    assert shared <= {*other.paths()}
    assert {*one.paths()} & {*other.paths()} <= shared


@pytest.mark.property
@given(SETS)
def test_leaves_are_places_with_nothing_below(fields):
    every = {*fields.paths()}
    assert {*fields.leaves.paths()} == {
        path for path in every if not any(other[: len(path)] == path and other != path for other in every)
    }


def test_taking_nothing_away_gives_the_set_itself():
    fields = the_set("a", "b c")
    assert fields - the_set("d", "b e") is fields


def test_who_replaces_a_whole_value_takes_it_from_those_who_own_parts():
    assert the_set("a b c", "a d", "e") - the_set("a") == the_set("e")
    assert the_set("a b c", "e") & the_set("a") == the_set("a")


def test_who_owns_a_container_does_not_own_what_others_put_into_it():
    assert the_set("a") - the_set("a b") == the_set("a")
    assert not the_set("a") & the_set("a b")


def test_equal_places_written_differently_are_one():
    fields_v1 = {'k:{"b": "y",  "a": 1}': {"f:x": {}}, 'k:{"a":1,"b":"y"}': {".": {}}, 'v: "t"': {}}
    assert field_set.from_fields_v1(fields_v1).json() == {
        'k:{"a":1,"b":"y"}': {".": {}, "f:x": {}},
        'v:"t"': {},
    }


def test_the_order_of_what_is_written_is_always_the_same():
    fields_v1 = {'v:"t"': {}, "f:b": {}, "f:a": {"f:z": {}, ".": {}, "f:y": {}}}
    assert list(field_set.from_fields_v1(fields_v1).json()) == ["f:a", "f:b", 'v:"t"']
    assert list(field_set.from_fields_v1(fields_v1).json()["f:a"]) == [".", "f:y", "f:z"]


@pytest.mark.parametrize("fields_v1", [{}, {"f:a": {}}, {"f:a": {".": {}}}, {".": {}, "f:a": {}}])
def test_a_place_itself_is_written_where_something_else_stands_beside_it(fields_v1):
    short = {name: {} for name in fields_v1}
    assert field_set.from_fields_v1(fields_v1).json() == short


@pytest.mark.parametrize(
    "fields_v1",
    [
        [],
        "x",
        None,
        {"a": {}},
        {"f:a": 1},
        {"f:a": None},
        {"k:[1]": {}},
        {"k:{}": {}},
        {"v:{": {}},
        {"i:x": {}},
        {"i:-1": {}},
        {"": {}},
        {"f:a": {"g:b": {}}},
    ],
    ids=str,
)
def test_what_is_no_fields_v1_is_refused(fields_v1):
    with pytest.raises(ValueError, match=r"must be an object|is not an element"):
        field_set.from_fields_v1(fields_v1)


def test_nothing_is_empty_and_a_leaf_is_not():
    assert not EMPTY
    assert LEAF
    assert EMPTY.json() == {}


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (("f:spec", "f:size"), ".spec.size"),
        (("f:metadata", "f:labels", "f:kuma.io/mesh"), ".metadata.labels.kuma.io/mesh"),
        (("f:ports", 'k:{"port":80,"protocol":"tcp"}', "f:name"), '.ports[port=80,protocol="tcp"].name'),
        (("f:tags", 'v:"a"'), '.tags[="a"]'),
        (("f:list", "i:3"), ".list[3]"),
    ],
)
def test_a_path_is_shown_as_people_know_it(path, shown):
    assert field_set.path_text(path) == shown
