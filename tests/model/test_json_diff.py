"""The patch between two values makes one of the other, whatever they are."""

import copy

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st

from koguma.model import json_diff

NAMES = st.sampled_from(["a", "b", "a/b", "m~n", ""])
VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["x", "y"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)


@given(OBJECTS, OBJECTS)
def test_the_patch_leads_from_one_to_the_other(before, after):
    patch = json_diff.patch(before, after)
    assert jsonpatch.apply_patch(copy.deepcopy(before), patch) == after
    assert (patch == []) == (before == after)


def test_what_changes_is_tested_first():
    assert json_diff.patch({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == [
        {"op": "test", "path": "/a/1/b", "value": 2},
        {"op": "remove", "path": "/a/1/b"},
        {"op": "add", "path": "/a/1/b", "value": 3},
    ]
