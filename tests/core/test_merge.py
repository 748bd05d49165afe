"""Merging configurations: what comes out, who set each leaf of it, and who lost and why."""

import copy

import merge_items
import pytest
from hypothesis import given
from hypothesis import strategies as st
from merge_items import at, confs, item, ranked_items, steps, written

from koguma.core import merge
from koguma.core.merge import Origin
from koguma.core.order import Tier
from koguma.core.role import PolicyRole

# Each line: configurations in ascending precedence, and what they make together.
MERGES = {
    "nothing": ([], {}),
    "one alone": ([{"a": 1}], {"a": 1}),
    "fields add up": ([{"a": 1}, {"b": 2}], {"a": 1, "b": 2}),
    "the later scalar wins": ([{"a": 1}, {"a": 2}, {"a": 3}], {"a": 3}),
    "false and zero and empty text are values": (
        [{"a": True, "b": 1, "c": "x"}, {"a": False, "b": 0, "c": ""}],
        {"a": False, "b": 0, "c": ""},
    ),
    "objects merge inside": (
        [{"http": {"a": 1, "b": {"c": 1}}}, {"http": {"b": {"d": 2}}}],
        {"http": {"a": 1, "b": {"c": 1, "d": 2}}},
    ),
    "a list replaces a list": ([{"a": [1, 2]}, {"a": [3]}], {"a": [3]}),
    "an empty list empties": ([{"a": [1, 2]}, {"a": []}], {"a": []}),
    "null says nothing": ([{"a": 1, "b": {"c": 2}}, {"a": None, "b": {"c": None}}], {"a": 1, "b": {"c": 2}}),
    "null alone leaves no field": ([{"a": None}], {}),
    "an object of nulls is an empty object": ([{"a": {"b": None}}], {"a": {}}),
    "an empty object takes nothing away": ([{"a": {"b": 1}}, {"a": {}}], {"a": {"b": 1}}),
    "lists named append are joined": (
        [{"appendMatch": [1]}, {"appendMatch": [2, 1]}, {"appendMatch": [3]}],
        {"appendMatch": [1, 2, 1, 3]},
    ),
    "also deep inside": (
        [{"a": {"b": {"appendProfiles": ["x"]}}}, {"a": {"b": {"appendProfiles": ["y"]}}}],
        {"a": {"b": {"appendProfiles": ["x", "y"]}}},
    ),
    "nothing can be taken from a joined list": ([{"appendX": [1]}, {"appendX": []}], {"appendX": [1]}),
    "an object replaces a scalar and the other way round": (
        [{"a": 1, "b": {"c": 1}}, {"a": {"c": 1}, "b": 1}],
        {"a": {"c": 1}, "b": 1},
    ),
    "what is no object says nothing": ([{"a": 1}, None], {"a": 1}),
}


def items_of(configurations):
    return [item(f"p{n}", conf, display_name="same") for n, conf in enumerate(configurations)]


@pytest.mark.parametrize(("configurations", "expected"), MERGES.values(), ids=MERGES)
def test_configurations_merge_field_by_field(configurations, expected):
    before = copy.deepcopy(configurations)
    assert merge.merged(items_of(configurations)) == expected
    assert configurations == before


def test_a_merged_configuration_can_be_merged_on_without_changing_its_parts():
    low, high = {"http": {"a": 1}, "appendX": [1]}, {"http": {"b": 2}, "appendX": [2]}
    first = merge.merged(items_of([low]))
    second = merge.merged(items_of([first, high]))
    assert second == {"http": {"a": 1, "b": 2}, "appendX": [1, 2]}
    assert first == low == {"http": {"a": 1}, "appendX": [1]}


def test_a_mesh_wide_a_producers_and_a_consumers_policy_each_leave_what_they_alone_set():
    on_mesh = item("one", {"request": "10s", "idle": "1h"}, to_kind="Mesh")
    of_producer = item("two", {"request": "5s"}, role=PolicyRole.PRODUCER)
    of_consumer = item("three", {"idle": "5m"}, role=PolicyRole.CONSUMER, to_kind="Mesh")
    for_backend = merge_items.ascending([of_consumer, of_producer, on_mesh])
    assert [each.source.name for each in for_backend] == ["one", "two", "three"]
    assert merge.merged(for_backend) == {"request": "5s", "idle": "5m"}
    assert merge.merged(merge_items.ascending([of_consumer, on_mesh])) == {"request": "10s", "idle": "5m"}


def on_service(name, conf, **rank):
    return item(name, {"http": conf}, to_kind="MeshService", **rank)


def on_route(name, conf, **rank):
    return item(name, {"http": conf}, tier=Tier.ROUTE, to_kind="MeshHTTPRoute", **rank)


# The founding document's example, once by namespaces and once by tags. On Universal its result shows the
# values of the first form, although the policies beside it repeat the old ones; the result is meant.
OVERRIDES = {
    "by role": ({"role": PolicyRole.PRODUCER}, {"role": PolicyRole.CONSUMER}),
    "by top-level targetRef": ({"top_kind": "Mesh"}, {"top_kind": "MeshSubset"}),
}


@pytest.mark.parametrize(("owner", "client"), OVERRIDES.values(), ids=OVERRIDES)
def test_a_route_inherits_what_only_the_services_policies_set(owner, client):
    service = on_service("service", {"requestTimeout": "2s", "streamIdleTimeout": "1h"}, **owner)
    route = on_route("route", {"requestTimeout": "10s"}, **owner)
    client_service = on_service("client-service", {"streamIdleTimeout": "2h"}, **client)
    client_route = on_route("client-route", {"requestTimeout": "15s"}, **client)

    def http(*items):
        return merge.merged(merge_items.ascending(items))["http"]

    assert http(route, service) == {"requestTimeout": "10s", "streamIdleTimeout": "1h"}
    assert http(client_service, service) == {"requestTimeout": "2s", "streamIdleTimeout": "2h"}
    everything = http(client_route, client_service, route, service)
    assert everything == {"requestTimeout": "15s", "streamIdleTimeout": "2h"}


def traced(*configurations):
    return merge.traced(items_of(configurations))


def origins(found):
    return {path: f"{origin.source.name} {origin.path}" for path, origin in found.origins.items()}


def test_every_leaf_knows_the_policy_and_the_place_that_set_it():
    found = traced({"a": 1, "http": {"b": 1, "c": [1]}}, {"http": {"b": 2, "d": {}}})
    assert found.conf == {"a": 1, "http": {"b": 2, "c": [1], "d": {}}}
    assert origins(found) == {
        "a": "p0 spec.to[0].default.a",
        "http.b": "p1 spec.to[0].default.http.b",
        "http.c": "p0 spec.to[0].default.http.c",
        "http.d": "p1 spec.to[0].default.http.d",
    }


def test_the_elements_of_a_joined_list_have_an_origin_each():
    found = traced({"appendMatch": [10, 11]}, {"appendMatch": []}, {"appendMatch": [20]})
    assert origins(found) == {
        "appendMatch[0]": "p0 spec.to[0].default.appendMatch[0]",
        "appendMatch[1]": "p0 spec.to[0].default.appendMatch[1]",
        "appendMatch[2]": "p2 spec.to[0].default.appendMatch[0]",
    }
    assert set(found.losers.values()) == {()}


def test_an_empty_joined_list_is_a_leaf_itself():
    assert origins(traced({"appendX": []}, {"appendX": []})) == {"appendX": "p1 spec.to[0].default.appendX"}


def test_a_name_that_is_no_fields_is_written_as_a_maps_key():
    found = traced({"tags": {"kuma.io/zone": "east", 'a"b': 1}})
    assert set(found.origins) == {'tags["kuma.io/zone"]', r'tags["a\"b"]'}


def losers(found, path):
    return [(lost.origin.source.name, lost.origin.path, lost.value) for lost in found.losers[path]]


def test_losers_come_most_important_first_with_what_they_wanted_and_why_not():
    items = merge_items.ascending(
        [
            item("c", {"a": 1}, role=PolicyRole.PRODUCER, to_kind="Mesh"),
            item("b", {"a": 2}, role=PolicyRole.PRODUCER),
            item("other", {"b": 2}, role=PolicyRole.CONSUMER),
            item("a", {"a": 3}, role=PolicyRole.CONSUMER),
        ]
    )
    found = merge.traced(items)
    assert [(lost.origin.source.name, lost.value, lost.reason) for lost in found.losers["a"]] == [
        ("b", 2, "its role is producer, consumer wins"),
        ("c", 1, "its role is producer, consumer wins"),
    ]
    assert found.losers["b"] == ()


def test_who_says_the_same_less_importantly_has_still_lost():
    assert losers(traced({"a": 1}, {"a": 1}), "a") == [("p0", "spec.to[0].default.a", 1)]


def test_who_says_null_has_not_lost():
    assert losers(traced({"a": None, "b": None}, {"a": 1, "b": {"c": 1}}), "b.c") == []


@pytest.mark.parametrize(
    ("low", "high", "path", "expected"),
    [
        ({"a": 1}, {"a": {"b": {"c": 2}}}, "a.b.c", ("p0", "spec.to[0].default.a", 1)),
        ({"a": {"b": 1, "c": None}}, {"a": 2}, "a", ("p0", "spec.to[0].default.a", {"b": 1})),
        ({"appendX": 1}, {"appendX": [2]}, "appendX[0]", ("p0", "spec.to[0].default.appendX", 1)),
    ],
)
def test_something_of_another_shape_loses_as_a_whole(low, high, path, expected):
    assert losers(traced(low, high), path) == [expected]


def test_the_caller_may_have_its_own_reasons():
    found = merge.traced(items_of([{"a": 1}, {"a": 2}]), lambda won, lost: f"{won.path} and {lost.conf}")
    assert found.losers["a"][0].reason == "spec.to[0].default and {'a': 1}"


def leaves(value, names=()):
    """The leaves by another way: names and values, joined lists as a whole."""
    if isinstance(value, dict) and (value or not names):
        return {
            at: leaf for name, inner in value.items() for at, leaf in leaves(inner, (*names, name)).items()
        }
    return {names: value}


def plain(value):
    """Objects without nulls."""
    if not isinstance(value, dict):
        return value
    return {name: plain(inner) for name, inner in value.items() if inner is not None}


random_items = ranked_items(confs, "spec.to[{index}].default")


@pytest.mark.property
@given(random_items, st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(items, random):
    shuffled = random.sample(items, len(items))
    assert merge_items.ascending(shuffled) == merge_items.ascending(items)
    assert merge.traced(merge_items.ascending(shuffled)) == merge.traced(merge_items.ascending(items))


@pytest.mark.property
@given(random_items)
def test_traced_equals_untraced_and_leaves_its_items_alone(items):
    items = merge_items.ascending(items)
    before = copy.deepcopy(items)
    found = merge.traced(items)
    assert found.conf == merge.merged(items)
    assert found.origins.keys() == found.losers.keys()
    assert items == before


@pytest.mark.property
@given(random_items)
def test_every_leaf_has_one_origin_which_really_contains_its_value(items):
    items = merge_items.ascending(items)
    found = merge.traced(items)
    missing = leaves(found.conf)
    for path, origin in found.origins.items():
        source = items[inside(items, origin)]
        assert plain(at(written(source), origin.path)) == plain(at(found.conf, path))
        missing.pop(tuple(step for step in steps(path) if isinstance(step, str)), None)
    assert not missing or not found.conf


def inside(items, origin: Origin) -> int:
    """The place of the item that an origin lies in."""
    (found,) = (
        place
        for place, each in enumerate(items)
        if origin.source == each.source and origin.path.startswith(each.path)
    )
    return found


@pytest.mark.property
@given(random_items)
def test_losers_have_the_values_that_are_shown_most_important_first(items):
    items = merge_items.ascending(items)
    found = merge.traced(items)
    for path, lost in found.losers.items():
        sources = [inside(items, each.origin) for each in lost[::-1]]
        places = [*sources, inside(items, found.origins[path])]
        assert places == sorted(set(places))
        for each in lost:
            said = at(written(items[inside(items, each.origin)]), each.origin.path)
            assert plain(said) == each.value
            assert each.reason.endswith("wins")
