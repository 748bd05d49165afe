"""Strategic merge patches: what merges, what is replaced, and what the directives do."""

import contextlib
import copy

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from koguma.kube import strategic
from koguma.model.errors import BadRequest, Invalid, KogumaError

ACCOUNT = strategic.hints_of("ServiceAccount")
# A kind of our own with lists in lists, so that a rule is shown once and not by chance.
SHOP = {("tags",): "", ("shelves",): "name", ("shelves", "goods"): "id", ("shelves", "marks"): ""}

CASES = """
objects merge, null removes, other values replace:
  value: {a: {b: 1, c: 2}, d: 3, e: 4}
  patch: {a: {b: 5, x: {y: null, z: 1}}, d: null, e: {f: 1}, gone: null}
  result: {a: {b: 5, c: 2, x: {z: 1}}, e: {f: 1}}
a list that nobody merges is replaced:
  value: {list: [{name: a}, {name: b}]}
  patch: {list: [{name: c}]}
  result: {list: [{name: c}]}
a list with a merge key merges by it:
  value: {shelves: [{name: top, height: 3}, {name: low, height: 1}]}
  patch: {shelves: [{name: low, height: 2}]}
  result: {shelves: [{name: top, height: 3}, {name: low, height: 2}]}
a new element comes after those that were there:
  value: {shelves: [{name: top}, {name: low}]}
  patch: {shelves: [{name: attic}]}
  result: {shelves: [{name: top}, {name: low}, {name: attic}]}
elements of the patch keep the order of the patch:
  value: {shelves: [{name: a}, {name: b}, {name: c}]}
  patch: {shelves: [{name: c}, {name: a}]}
  result: {shelves: [{name: b}, {name: c}, {name: a}]}
lists in lists merge as well:
  value: {shelves: [{name: top, goods: [{id: 1, price: 5}, {id: 2}], marks: [x]}]}
  patch: {shelves: [{name: top, goods: [{id: 1, price: 6}, {id: 3}], marks: [y, x]}]}
  result: {shelves: [{name: top, goods: [{id: 1, price: 6}, {id: 2}, {id: 3}], marks: [y, x]}]}
plain values merge as a set:
  value: {tags: [a, b]}
  patch: {tags: [c, b, c]}
  result: {tags: [a, c, b]}
a list that was not there is taken:
  value: {}
  patch: {tags: [a], shelves: [{name: top, goods: null}], new: {tags: [b]}}
  result: {tags: [a], shelves: [{name: top}], new: {tags: [b]}}
a list in the place of something else is taken:
  value: {tags: nothing, shelves: {name: odd}}
  patch: {tags: [a], shelves: [{name: top}]}
  result: {tags: [a], shelves: [{name: top}]}
an element is deleted by its key:
  value: {shelves: [{name: top}, {name: low}]}
  patch: {shelves: [{name: top, $patch: delete}, {name: never, $patch: delete}]}
  result: {shelves: [{name: low}]}
an element that is deleted and set is new in its old place:
  value: {shelves: [{name: top, height: 3}, {name: low}]}
  patch: {shelves: [{name: top, $patch: delete}, {name: top, width: 1}]}
  result: {shelves: [{name: top, width: 1}, {name: low}]}
an element is replaced as a whole:
  value: {shelves: [{name: top, height: 3}]}
  patch: {shelves: [{name: top, a: {$patch: replace, b: 1}}]}
  result: {shelves: [{name: top, height: 3, a: {b: 1}}]}
a list is replaced as a whole:
  value: {shelves: [{name: top}, {name: low}], tags: [a]}
  patch: {shelves: [{$patch: replace}, {name: only, $retainKeys: [name]}], tags: [{$patch: replace}, b]}
  result: {shelves: [{name: only}], tags: [b]}
a list is emptied:
  value: {shelves: [{name: top}]}
  patch: {shelves: [{$patch: replace}]}
  result: {shelves: []}
an object is replaced:
  value: {a: {b: 1, c: {d: 2}}}
  patch: {a: {$patch: replace, x: 1, y: null}}
  result: {a: {x: 1}}
an object is emptied:
  value: {a: {b: 1}, c: 1}
  patch: {a: {$patch: delete}}
  result: {a: {}, c: 1}
merging may be said:
  value: {a: {b: 1}, shelves: [{name: top, height: 3}]}
  patch: {$patch: merge, a: {$patch: merge, c: 2}, shelves: [{$patch: merge, name: top, width: 1}]}
  result: {a: {b: 1, c: 2}, shelves: [{name: top, height: 3, width: 1}]}
only the keys to retain stay:
  value: {a: {b: 1, c: 2, d: 3}}
  patch: {a: {$retainKeys: [b, x], x: 4, c: null}}
  result: {a: {b: 1, x: 4}}
plain values are deleted:
  value: {tags: [a, b, c], other: [1, 2]}
  patch: {$deleteFromPrimitiveList/tags: [a, z], $deleteFromPrimitiveList/other: [2]}
  result: {tags: [b, c], other: [1]}
plain values are deleted and added:
  value: {tags: [a, b, c]}
  patch: {$deleteFromPrimitiveList/tags: [a, b], tags: [d]}
  result: {tags: [c, d]}
deleting from a list that is not there does nothing:
  value: {a: 1}
  patch: {$deleteFromPrimitiveList/tags: [a], $setElementOrder/shelves: [{name: a}]}
  result: {a: 1}
an order is set:
  value: {tags: [a, b, c, d]}
  patch: {$setElementOrder/tags: [d, b, a, c]}
  result: {tags: [d, b, a, c]}
an order is set among elements that the client did not know:
  value: {shelves: [{name: a}, {name: server}, {name: b}]}
  patch: {$setElementOrder/shelves: [{name: new}, {name: a}, {name: b}], shelves: [{name: new}]}
  result: {shelves: [{name: server}, {name: new}, {name: a}, {name: b}]}
what stood before an unknown element stays before it:
  value: {shelves: [{name: a}, {name: server}, {name: b}]}
  patch: {$setElementOrder/shelves: [{name: a}, {name: b}], shelves: [{name: b, height: 1}]}
  result: {shelves: [{name: a}, {name: server}, {name: b, height: 1}]}
an order and a deletion go together:
  value: {shelves: [{name: a}, {name: b}, {name: c}]}
  patch: {$setElementOrder/shelves: [{name: c}, {name: a}], shelves: [{name: b, $patch: delete}]}
  result: {shelves: [{name: c}, {name: a}]}
an order for a list that does not merge means nothing:
  value: {list: [b, a]}
  patch: {$setElementOrder/list: [a, b]}
  result: {list: [b, a]}
a stored element without a key is left alone:
  value: {shelves: [{odd: 1}, {name: a}]}
  patch: {shelves: [{name: a, b: 1}]}
  result: {shelves: [{odd: 1}, {name: a, b: 1}]}
text and number are not the same:
  value: {tags: ["1"], shelves: [{name: "1"}]}
  patch: {tags: [1], shelves: [{name: 1}]}
  result: {tags: ["1", 1], shelves: [{name: "1"}, {name: 1}]}
"""
MERGES = yaml.safe_load(CASES)


@pytest.mark.parametrize("case", MERGES)
def test_in_a_strategic_merge(case):
    given_ = copy.deepcopy(MERGES[case])
    assert strategic.merged(given_["value"], given_["patch"], SHOP) == MERGES[case]["result"]
    assert given_ == MERGES[case]


REFUSED = """
a patch that is a list: {patch: [], error: "is an object with the fields to change"}
an unknown word: {patch: {a: {$patch: fly}}, error: "a: $patch is replace, delete or merge, not 'fly'"}
a word that is no text: {patch: {$patch: [delete]}, error: "is replace, delete or merge"}
an element without its key: {patch: {shelves: [{height: 1}]}, error: "each element needs the merge key name"}
an element whose key is an object: {patch: {shelves: [{name: {}}]}, error: "each element needs the merge key"}
plain values where objects merge: {patch: {shelves: [top]}, error: "each element needs the merge key name"}
a deletion without a key: {patch: {shelves: [{$patch: delete}]}, error: "each element needs the merge key"}
a list of lists: {patch: {tags: [[a]]}, error: "tags: elements are plain values"}
retained keys that are no list: {patch: {$retainKeys: a}, error: "$retainKeys at the top is a list"}
retained keys that leave out what is set: {patch: {$retainKeys: [a], b: 1}, error: "leaves out b"}
an order that is no list: {patch: {$setElementOrder/tags: a}, error: "/tags at tags is a list"}
an order without an element: {patch: {$setElementOrder/tags: [a], tags: [b]}, error: "all elements of tags"}
an order against the patch: {patch: {$setElementOrder/tags: [a, b], tags: [b, a]}, error: "in the same order"}
deletions that are no list: {patch: {$deleteFromPrimitiveList/tags: a}, error: "at tags is a list"}
"""
REFUSALS = yaml.safe_load(REFUSED)


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_is(case):
    value = {"tags": ["a", "b"], "shelves": [{"name": "top"}]}
    with pytest.raises((BadRequest, Invalid)) as refused:
        strategic.merged(value, REFUSALS[case]["patch"], SHOP)
    assert REFUSALS[case]["error"] in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "value", "patch", "result"),
    [
        (
            "ConfigMap",
            {"metadata": {"finalizers": ["a"], "ownerReferences": [{"uid": "1", "name": "x"}]}},
            {"metadata": {"finalizers": ["b"], "ownerReferences": [{"uid": "1", "controller": True}]}},
            {
                "metadata": {
                    "finalizers": ["a", "b"],
                    "ownerReferences": [{"uid": "1", "name": "x", "controller": True}],
                }
            },
        ),
        (
            "ServiceAccount",
            {"secrets": [{"name": "a"}], "imagePullSecrets": [{"name": "a"}]},
            {"secrets": [{"name": "b"}], "imagePullSecrets": [{"name": "b"}]},
            {"secrets": [{"name": "a"}, {"name": "b"}], "imagePullSecrets": [{"name": "b"}]},
        ),
        (
            "Namespace",
            {"spec": {"finalizers": ["a"]}, "status": {"conditions": [{"type": "A", "status": "True"}]}},
            {"spec": {"finalizers": ["b"]}, "status": {"conditions": [{"type": "A", "status": "False"}]}},
            {"spec": {"finalizers": ["b"]}, "status": {"conditions": [{"type": "A", "status": "False"}]}},
        ),
        (
            "RoleBinding",
            {"subjects": [{"kind": "User", "name": "ann"}], "metadata": {"labels": {"a": "b"}}},
            {"subjects": [{"kind": "User", "name": "bob"}], "metadata": {"labels": {"c": "d"}}},
            {"subjects": [{"kind": "User", "name": "bob"}], "metadata": {"labels": {"a": "b", "c": "d"}}},
        ),
    ],
)
def test_the_lists_of_a_kind_merge_as_published(kind, value, patch, result):
    assert strategic.merged(value, patch, strategic.hints_of(kind)) == result


def test_what_kubectl_apply_sends_to_take_a_secret_away():
    value = {"secrets": [{"name": "token"}, {"name": "mine"}, {"name": "other"}]}
    patch = {
        "$setElementOrder/secrets": [{"name": "mine"}],
        "secrets": [{"$patch": "delete", "name": "other"}],
    }
    assert strategic.merged(value, patch, ACCOUNT) == {"secrets": [{"name": "token"}, {"name": "mine"}]}


PLAIN = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["a", "b", "replace", "delete"])
NAMES = st.sampled_from(
    [
        *("a", "tags", "shelves", "goods", "name", "id", "$patch", "$retainKeys", "$setElementOrder/tags"),
        *("$setElementOrder/shelves", "$deleteFromPrimitiveList/tags", "$deleteFromPrimitiveList/shelves"),
    ]
)
JSON = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.property
@given(st.dictionaries(NAMES, JSON, max_size=4), st.dictionaries(NAMES, JSON, max_size=4) | JSON)
def test_any_patch_is_done_or_refused_and_changes_no_argument(value, patch):
    before = copy.deepcopy((value, patch))
    with contextlib.suppress(KogumaError):
        assert isinstance(strategic.merged(value, patch, SHOP), dict)
    assert (value, patch) == before


SHELVES = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("abcd")}, optional={"height": st.integers(0, 3)}),
    unique_by=lambda shelf: shelf["name"],
)


@pytest.mark.property
@given(SHELVES, SHELVES)
def test_after_a_merge_each_key_stands_once_and_those_of_the_patch_in_its_order(value, patch):
    merged = strategic.merged({"shelves": value}, {"shelves": patch}, SHOP)["shelves"]
    names = [shelf["name"] for shelf in merged]
    assert sorted(names) == sorted({shelf["name"] for shelf in (*value, *patch)})
    assert [name for name in names if name in {p["name"] for p in patch}] == [p["name"] for p in patch]
    before = {shelf["name"]: shelf for shelf in value}
    for shelf in patch:
        assert {**before.get(shelf["name"], {}), **shelf} in merged


@pytest.mark.property
@given(SHELVES, SHELVES)
def test_a_merge_done_twice_is_done_once(value, patch):
    once = strategic.merged({"shelves": value}, {"shelves": patch}, SHOP)
    assert strategic.merged(once, {"shelves": patch}, SHOP) == once
