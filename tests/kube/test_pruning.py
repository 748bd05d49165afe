"""Pruning: fields that do not exist are found and removed at any depth, and nothing else is."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koguma.kube import catalog, pruning
from koguma.kube.kinds import NATIVE_KINDS
from koguma.main import all_kinds
from koguma.model.pruning import pruner
from koguma.model.schema import UNKNOWN, Checker, Spec
from tests.kube.valid_specs import KINDS, valid

pytestmark = pytest.mark.slow

CATALOG = catalog.of(all_kinds())
OLDER = CATALOG.registry.of_kind("kuma.io/v1alpha1", "MeshTimeout")
NEWER = CATALOG.registry.of_kind("koguma.io/v1", "MeshTimeout")
CONFIG_MAP = CATALOG.registry.of_kind("v1", "ConfigMap")


def unknown_paths(kind, spec):
    return [violation.field for violation in kind.checker(kind.clean(spec)) if violation.rule == UNKNOWN]


def other_violations(kind, spec):
    """What else is wrong: where any key may stand, an unknown field is an entry of the wrong type."""
    return [violation for violation in kind.checker(kind.clean(spec)) if violation.rule != UNKNOWN]


def with_unknown_fields(value, draw):
    """The same with a field that no type has, in every object or only in some."""
    if isinstance(value, list):
        return [with_unknown_fields(part, draw) for part in value]
    if not isinstance(value, dict):
        return value
    changed = {name: with_unknown_fields(part, draw) for name, part in value.items()}
    return {**changed, "colour": {"of": ["nothing"]}} if draw(st.booleans()) else changed


@given(st.data())
@settings(max_examples=300)
def test_what_is_pruned_has_no_unknown_field_and_means_the_same(data):
    kind = data.draw(st.sampled_from(KINDS))
    spec = data.draw(valid(kind))
    assert pruning.stored_spec(kind, spec) is spec
    written = with_unknown_fields(copy.deepcopy(spec), data.draw)
    pruned = pruning.stored_spec(kind, written)
    assert unknown_paths(kind, pruned) == []
    assert (pruned is written) == (unknown_paths(kind, written) == [])
    assert other_violations(kind, pruned) == other_violations(kind, written)
    assert pruning.stored_spec(kind, pruned) is pruned


def test_an_older_spelling_beside_an_unknown_field_is_kept():
    kind = all_kinds()["MeshTimeout"]
    spec = {"targetRef": {"kind": "MeshSubset", "tag": {"a": "b"}}, "colour": "red"}
    assert pruning.stored_spec(kind, spec) == {"targetRef": {"kind": "MeshSubset", "tags": {"a": "b"}}}


def test_one_item_in_place_of_a_list_is_pruned_too():
    kind = all_kinds()["MeshHTTPRoute"]
    rule = {"matches": {"path": {"type": "Exact", "value": "/", "colour": "red"}}, "default": {}}
    spec = {"to": [{"targetRef": {"kind": "MeshService", "name": "a"}, "rules": [rule]}]}
    assert unknown_paths(kind, spec) == ["to[0].rules[0].matches[0].path.colour"]
    assert unknown_paths(kind, pruning.stored_spec(kind, spec)) == []
    assert pruning.stored_spec(kind, spec) is not spec


class Tree(Spec):
    """A type that contains itself."""

    name: str | None = None
    branches: tuple["Tree", ...] | None = None


def test_a_type_that_contains_itself_is_pruned_all_the_way_down():
    tree = {"branches": [{"branches": [{"name": "leaf", "x": 1}], "y": 2}, {"name": "other"}]}
    assert pruner(Tree)(tree) == {"branches": [{"branches": [{"name": "leaf"}]}, {"name": "other"}]}


@pytest.mark.parametrize("kind", [*all_kinds(), *NATIVE_KINDS], ids=lambda kind: kind.stored_as)
@pytest.mark.parametrize("junk", [None, 1, "a", [], [1, {"a": 1}], {"a": {"b": None}}])
def test_what_fits_no_type_is_left_for_the_check(kind, junk):
    pruned = pruner(kind.spec)(junk)
    assert [v for v in Checker(kind.spec)(pruned) if v.rule != UNKNOWN] == [
        v for v in Checker(kind.spec)(junk) if v.rule != UNKNOWN
    ]


@pytest.mark.parametrize("endpoint", [OLDER, NEWER], ids=["kuma.io", "koguma.io"])
def test_every_part_of_a_document_is_pruned_and_named(endpoint):
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1", "since": "2001"}
    default = {"idleTimeout": "5s", "http": {"requestTimeout": "1s", "shape": "round"}}
    document = {
        "metadata": {"name": "a", "colour": "red", "ownerReferences": [owner]},
        "spec": {"to": [{"targetRef": {"kind": "Mesh"}, "default": default}], "size": 1},
        "extra": True,
    }
    pruned = pruning.pruned(document, endpoint)
    assert [violation.field for violation in pruned.unknown] == [
        "extra",
        "metadata.colour",
        "metadata.ownerReferences[0].since",
        "spec.to[0].default.http.shape",
        "spec.size",
    ]
    del owner["since"], default["http"]["shape"]
    assert pruned.document == {
        "metadata": {"name": "a", "ownerReferences": [owner]},
        "spec": {"to": [{"targetRef": {"kind": "Mesh"}, "default": default}]},
    }
    assert pruning.pruned(pruned.document, endpoint) == (pruned.document, ())


def test_a_field_that_a_version_gave_up_is_refused_and_not_dropped():
    spec = {"from": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "5s"}}], "size": 1}
    assert pruning.pruned({"spec": spec}, NEWER).document["spec"] == spec
    assert [violation.field for violation in NEWER.conversion.refusals(spec)] == ["spec.from"]


def test_a_kind_without_a_spec_is_pruned_at_its_root():
    pruned = pruning.pruned({"kind": "ConfigMap", "data": {"a": "b"}, "status": {"kopf": {}}}, CONFIG_MAP)
    assert pruned.document == {"kind": "ConfigMap", "data": {"a": "b"}}
    assert [violation.field for violation in pruned.unknown] == ["status"]


def test_words_of_another_version_are_unknown_in_this_one():
    events = CATALOG.registry.of_kind("events.k8s.io/v1", "Event")
    document = {"note": "it happened", "message": "in older words", "regarding": {"name": "a", "x": 1}}
    pruned = pruning.pruned(document, events)
    assert pruned.document == {"note": "it happened", "regarding": {"name": "a"}}
    assert sorted(violation.field for violation in pruned.unknown) == ["message", "regarding.x"]
