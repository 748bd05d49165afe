"""JSON patches and merge patches: the RFCs, and where Kubernetes' and Kuma's dialects depart from them."""

import contextlib
import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.model import json_patch
from koguma.model.errors import BadRequest, Invalid, KogumaError, TooLarge

KUBERNETES = json_patch.KUBERNETES
OBJECT = {"metadata": {"name": "a", "labels": {"app": "web"}}, "items": [1, 2, 3], "none": None}


def op(word, path, *value, **more):
    return {"op": word, "path": path, **({"value": value[0]} if value else {}), **more}


@pytest.mark.parametrize(
    ("patch", "result"),
    [
        ({}, OBJECT),
        ({"items": None}, {"metadata": OBJECT["metadata"], "none": None}),
        ({"missing": None}, OBJECT),
        ({"metadata": {"labels": {"app": None}}}, {**OBJECT, "metadata": {"name": "a", "labels": {}}}),
        ({"items": [4]}, {**OBJECT, "items": [4]}),
        ({"items": {"x": {"y": None, "z": 1}}}, {**OBJECT, "items": {"x": {"z": 1}}}),
        ({"metadata": "gone"}, {**OBJECT, "metadata": "gone"}),
        ({"items": [{"x": None}]}, {**OBJECT, "items": [{"x": None}]}),
    ],
)
def test_a_merge_patch_changes_what_it_names(patch, result):
    assert json_patch.merge_patched(OBJECT, patch) == result


@pytest.mark.parametrize("patch", [[], [{}], "x", 1, None, True])
def test_a_merge_patch_is_an_object(patch):
    with pytest.raises(BadRequest, match="a JSON merge patch is an object"):
        json_patch.merge_patched(OBJECT, patch)


@pytest.mark.parametrize(
    ("operations", "result"),
    [
        ([], OBJECT),
        ([op("add", "/x", 1)], {**OBJECT, "x": 1}),
        ([op("add", "/items/-", 4), op("remove", "/items/0")], {**OBJECT, "items": [2, 3, 4]}),
        ([op("move", "/kept", **{"from": "/items"}), op("remove", "/none"), op("remove", "/metadata")], None),
        ([op("copy", "/items/0", **{"from": "/items/2"})], {**OBJECT, "items": [3, 1, 2, 3]}),
        ([op("replace", "/items/1", 9)], {**OBJECT, "items": [1, 9, 3]}),
        ([op("replace", "", {"new": 1})], {"new": 1}),
        ([op("test", "/items", [1, 2, 3]), op("test", "/none", None)], OBJECT),
        # Looser than RFC 6902.
        ([op("replace", "/x", 1)], {**OBJECT, "x": 1}),
        (
            [op("replace", "/metadata/labels/new~1one", "y"), op("test", "/metadata/labels/new~1one", "y")],
            ...,
        ),
        ([op("test", "/missing", None)], OBJECT),
        ([op("test", "/metadata/labels/missing", None)], OBJECT),
    ],
)
def test_a_json_patch_is_done_step_by_step(operations, result):
    if result is None:
        result = {"kept": [1, 2, 3]}
    elif result is ...:
        result = {**OBJECT, "metadata": {"name": "a", "labels": {"app": "web", "new/one": "y"}}}
    assert json_patch.json_patched(OBJECT, operations, KUBERNETES) == result


@pytest.mark.parametrize("patch", [{}, {"op": "add"}, "x", None, ["add"], [[]], [op("add", "/x", 1), 5]])
def test_what_is_no_json_patch_is_a_bad_request(patch):
    with pytest.raises(BadRequest, match="a list of operations, each an object"):
        json_patch.json_patched(OBJECT, patch, KUBERNETES)


@pytest.mark.parametrize(
    ("operation", "rule"),
    [
        (op("test", "/items", [1]), "test"),
        (op("test", "/missing", 1), "test"),
        (op("test", "/missing/deeper", None), "test"),
        (op("test", "/items/9", None), "test"),
        (op("test", "/missing"), "test"),
        (op("test", "/items"), "patch"),
        (op("remove", "/missing"), "patch"),
        (op("replace", "/items/9", 1), "patch"),
        (op("replace", "/missing/deeper", 1), "patch"),
        (op("replace", "/x"), "patch"),
        (op("add", "/missing/deeper", 1), "patch"),
        (op("add", "/items/9", 1), "patch"),
        (op("add", "/items/-1", 1), "patch"),
        (op("add", "/items/" + "9" * 5_000, 1), "patch"),
        (op("add", "/items/-/x", 1), "patch"),
        (op("add", "no slash", 1), "patch"),
        (op("add", "/~2", 1), "patch"),
        (op("add", 5, 1), "patch"),
        (op("move", "/x"), "patch"),
        (op("move", "/metadata/x", **{"from": "/metadata"}), "patch"),
        (op("copy", "/x", **{"from": "/missing"}), "patch"),
        (op("copy", "/x", **{"from": "/items/-"}), "patch"),
        (op("copy", "/x", **{"from": 7}), "patch"),
        (op("fly", "/x", 1), "patch"),
        ({"path": "/x"}, "patch"),
        ({"op": "add", "value": 1}, "patch"),
        ({"op": ["add"], "path": "/x"}, "patch"),
        ({}, "patch"),
    ],
)
def test_a_patch_that_does_not_fit_is_invalid_and_says_which_operation(operation, rule):
    with pytest.raises(Invalid) as refused:
        json_patch.json_patched(OBJECT, [op("add", "/y", 1), operation], KUBERNETES)
    assert refused.value.detail == "the patch does not fit the object"
    [violation] = refused.value.violations
    assert (violation.field, violation.rule) == ("[1]", rule)


@pytest.mark.parametrize(
    "operation",
    [op("replace", "/x", 1), op("test", "/missing", None), op("remove", "/missing"), op("add", "/a/b", 1)],
)
def test_the_rfc_itself_takes_no_path_that_is_missing(operation):
    with pytest.raises(json_patch.UnfitPatch) as refused:
        json_patch.json_patched(OBJECT, [operation])
    assert refused.value.index == 0


@pytest.mark.parametrize(
    ("operation", "result"),
    [
        (op("add", "/a/b", 1), {**OBJECT, "a": {"b": 1}}),
        (op("add", "/a/-/b", 1), None),
        (op("add", "/a/0", 1), {**OBJECT, "a": [1]}),
        (op("remove", "/missing/deeper"), OBJECT),
        (op("replace", "/x", 1), None),
        (op("test", "/missing", None), None),
    ],
)
def test_kuma_adds_what_is_missing_on_the_way_and_removes_what_is_not_there(operation, result):
    if result is None:
        with pytest.raises(json_patch.UnfitPatch):
            json_patch.json_patched(OBJECT, [operation], json_patch.KUMA)
    else:
        assert json_patch.json_patched(OBJECT, [operation], json_patch.KUMA) == result


def test_a_copy_in_a_proxys_configuration_keeps_it_under_a_size():
    limit = json_patch.KUMA.result_bytes_max
    value = {"a": "x" * (limit - 100), "b": "y" * 100}
    copied = op("copy", "/c", **{"from": "/b"})
    with pytest.raises(json_patch.PatchTooLarge) as refused:
        json_patch.json_patched(value, [op("add", "/d", 1), copied], json_patch.KUMA)
    assert refused.value.index == 1
    assert json_patch.json_patched(value, [copied]) == {**value, "c": value["b"]}


def test_ten_thousand_operations_are_done_and_one_more_is_refused():
    many = [op("replace", "/n", number) for number in range(json_patch.OPERATIONS_MAX)]
    assert json_patch.json_patched({}, many, KUBERNETES) == {"n": json_patch.OPERATIONS_MAX - 1}
    with pytest.raises(TooLarge, match="at most 10000 operations, this one 10001"):
        json_patch.json_patched({}, [*many, op("add", "/n", 1)], KUBERNETES)


def test_copies_of_copies_end_before_they_fill_the_memory():
    doubled = [op("copy", f"/a/{number}", **{"from": "/a"}) for number in range(60)]
    with pytest.raises(TooLarge, match="the copies of a JSON patch add at most"):
        json_patch.json_patched({"a": {}}, doubled, KUBERNETES)


@pytest.mark.parametrize(
    "deeper",
    [
        [op("add", "/a" * (level + 1), {}) for level in range(100)],
        [op("add", "/b", {}), op("move", "/b/a", **{"from": "/a"}), op("move", "/a", **{"from": "/b"})]
        * 3_000,
        [op("copy", "/a/a", **{"from": "/a"})] * 100,
    ],
    ids=["adding", "moving", "copying"],
)
def test_an_object_cannot_be_made_deeper_than_what_can_be_read(deeper):
    with pytest.raises((Invalid, TooLarge)):
        json_patch.json_patched({"a": {}}, deeper, KUBERNETES)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab-0"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("ab-0"), JSON, max_size=4)
PATHS = st.lists(st.sampled_from(["a", "b", "0", "1", "-", "", "~1", "~"]), max_size=3).map(
    lambda parts: "".join(f"/{part}" for part in parts)
)
OPERATIONS = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "odd"]),
        "path": PATHS | JSON,
    },
    optional={"value": JSON, "from": PATHS | JSON},
)


@pytest.mark.property
@given(JSON, st.lists(OPERATIONS | JSON, max_size=5))
def test_any_json_patch_is_done_or_refused_and_changes_no_argument(value, patch):
    before = copy.deepcopy((value, patch))
    with contextlib.suppress(KogumaError):
        json_patch.json_patched(value, patch, KUBERNETES)
    assert (value, patch) == before


@pytest.mark.property
@given(OBJECTS, OBJECTS)
def test_a_merge_patch_done_twice_is_done_once_and_changes_no_argument(value, patch):
    before = copy.deepcopy((value, patch))
    once = json_patch.merge_patched(value, patch)
    assert json_patch.merge_patched(once, patch) == once
    assert (value, patch) == before
    assert all(once.get(name, ...) == value[name] for name in value if name not in patch)
