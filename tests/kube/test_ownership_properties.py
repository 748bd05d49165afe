"""What holds after any sequence of writes by anybody."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koguma.kube import field_managers, field_set, typed
from koguma.kube.field_set import LEAF
from koguma.kube.merge_schema import merge_schema_of
from koguma.kube.server_side_apply import FieldConflicts
from tests.kube.ownership import SCHEMA, Thing, all_owned, config

SMALL = st.integers(0, 2)
NAMES = st.sampled_from(["a", "b"])
OPEN = st.recursive(
    st.one_of(SMALL, st.booleans(), st.none(), st.lists(SMALL, max_size=2)),
    lambda inner: st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
PORT = st.fixed_dictionaries(
    {"port": SMALL},
    optional={
        "protocol": st.just("udp"),  # a key with its default is never taken away
        "name": NAMES,
        "deep": st.fixed_dictionaries({}, optional={"note": NAMES}),
    },
)
PORTS = st.lists(PORT, max_size=3, unique_by=lambda port: (port["port"], port.get("protocol", "tcp")))
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "size": SMALL,
        "color": st.one_of(st.none(), NAMES),
        "limits": st.fixed_dictionaries({}, optional={"low": SMALL, "high": SMALL}),
        "selector": st.dictionaries(NAMES, SMALL, max_size=2),
        "tags": st.lists(NAMES, unique=True),
        "steps": st.lists(NAMES, max_size=2),
        "ports": PORTS,
        "extra": st.dictionaries(NAMES, st.dictionaries(NAMES, SMALL, max_size=2), max_size=2),
        "free": OPEN,
    },
)
LABELS = st.dictionaries(NAMES, NAMES, max_size=2).map(lambda labels: {"labels": labels} if labels else {})
CONFIGS = st.builds(config, st.one_of(st.none(), SPECS), LABELS)
WRITES = st.lists(
    st.tuples(
        st.sampled_from(["apply", "force", "update"]), st.sampled_from(["one", "two", "three"]), CONFIGS
    ),
    min_size=1,
    max_size=8,
)

pytestmark = [pytest.mark.property, pytest.mark.slow]


def content(document):
    return field_managers.tracked(document)


def unordered(value, schema=SCHEMA):
    """A value with its lists of named items as mappings, for comparisons in which their order is nothing."""
    parts = typed.parts(value, schema)
    if parts is None:
        return value
    return {element: unordered(part, schema.child(element)) for element, part in parts.items()}


def written(writes) -> Thing:
    thing = Thing()
    for how, who, sent in writes:
        try:
            if how == "update":
                thing.update(who, sent)
            else:
                thing.apply(who, sent, force=how == "force")
        except FieldConflicts:
            pass
    return thing


@given(CONFIGS)
def test_an_apply_that_creates_stores_what_it_says(sent):
    assert content(Thing().apply("one", sent).document) == content(sent)


@given(WRITES, CONFIGS)
def test_applying_twice_changes_nothing(writes, sent):
    thing = written(writes)
    once = thing.apply("one", sent, force=True).document
    assert thing.apply("one", sent).document == once
    assert thing.update("two", once).document == once


@given(CONFIGS, CONFIGS)
def test_what_the_only_applier_says_last_is_all_there_is(first, then):
    thing = Thing().apply("one", first).apply("one", then)
    assert content(thing.document) == content(then)
    assert [each["fieldsV1"] for each in thing.entries] == [
        each["fieldsV1"] for each in Thing().apply("one", then).entries
    ]


@given(st.data(), CONFIGS)
def test_two_appliers_of_different_fields_never_conflict_and_their_order_is_nothing(data, whole):
    every = [
        path for path in typed.field_set_of(content(whole), SCHEMA).leaves.paths() if path[-1] != "f:metadata"
    ]
    own = {path for path in every if data.draw(st.booleans())}
    halves = [
        {**whole, **typed.extracted(content(whole), field_set.FieldSet.of(paths), SCHEMA)}
        for paths in (own, {*every} - own)
    ]
    halves = [{**half, "metadata": {"name": "x", **half.get("metadata", {})}} for half in halves]
    there = Thing().apply("one", halves[0]).apply("two", halves[1])
    back = Thing().apply("two", halves[1]).apply("one", halves[0])
    assert unordered(content(there.document)) == unordered(content(back.document))
    assert there.owners == back.owners


@given(WRITES, CONFIGS)
def test_force_gets_all_it_says(writes, sent):
    thing = written(writes).apply("boss", sent, force=True)
    after = content(thing.document)
    assert typed.comparison(after, typed.merged(after, content(sent), SCHEMA), SCHEMA) == typed.NO_DIFFERENCE
    expected = Thing().apply("boss", sent).entries
    found = [each for each in thing.entries if each["manager"] == "boss"]
    assert [each["fieldsV1"] for each in found] == [each["fieldsV1"] for each in expected]


@given(WRITES)
def test_every_leaf_that_somebody_wrote_has_an_owner(writes):
    thing = written(writes)
    if thing.document is None:
        return
    leaves, owned = typed.field_set_of(content(thing.document), SCHEMA).leaves, all_owned(thing.entries)
    unowned = [path for path in (leaves - owned).paths() if not is_free(content(thing.document), path, owned)]
    assert [field_set.path_text(path) for path in unowned] == []


def is_free(document, path, owned) -> bool:
    """Whether nobody needs to own it: a container that was emptied, or a key of an item that is owned."""
    value, schema = document, SCHEMA
    for element in path:
        value, schema = typed.parts(value, schema)[element], schema.child(element)
    if value in ({}, []):
        return True
    is_key = ("", *path)[-2].startswith("k:") and path[-1] in ("f:port", "f:protocol")
    return is_key and any(other[: len(path) - 1] == path[:-1] for other in owned.paths())


@given(WRITES)
def test_every_place_that_is_owned_is_there(writes):
    thing = written(writes)
    if thing.document is None:
        return
    present = typed.field_set_of(content(thing.document), SCHEMA, containers=True)
    owned = all_owned(thing.entries)
    assert {*owned.paths()} - {*present.paths()} == set()


@given(WRITES)
def test_what_a_manager_owns_can_be_applied_again_without_a_change(writes):
    thing = written(writes)
    for each in [each for each in thing.entries if each["operation"] == "Apply"]:
        owned = field_set.from_fields_v1(each["fieldsV1"])
        sent = typed.extracted(content(thing.document), owned, SCHEMA)
        before = content(thing.document)
        again = {**config(), **sent, "metadata": {"name": "x", **sent.get("metadata", {})}}
        assert unordered(content(thing.apply(each["manager"], again).document)) == unordered(before)


@given(CONFIGS, CONFIGS)
def test_what_is_compared_says_how_to_get_from_one_to_the_other(old, new):
    changes = typed.comparison(content(old), content(new), SCHEMA)
    assert (changes == typed.NO_DIFFERENCE) == typed.same(unordered(content(old)), unordered(content(new)))
    before, after = (typed.field_set_of(content(each), SCHEMA, containers=True) for each in (old, new))
    assert before - changes.written - changes.removed | changes.written == after


@given(OPEN, OPEN)
@settings(max_examples=200)
def test_without_a_schema_all_of_it_holds_too(first, then):
    schema = merge_schema_of(None)
    old, new = {"spec": first}, {"spec": then}
    changes = typed.comparison(old, new, schema)
    assert (changes == typed.NO_DIFFERENCE) == typed.same(old, new)
    assert typed.merged(old, new, schema) == typed.merged(typed.merged(old, new, schema), new, schema)
    assert typed.pruned(old, field_set.FieldSet(children={"f:spec": LEAF}), field_set.EMPTY, schema) == {}
