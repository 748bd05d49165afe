"""The one order: each step in turn, what people get wrong about it, and that it never ends in a draw."""

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from merge_items import rank, ranks

from koguma.core import order
from koguma.core.order import Tier
from koguma.core.role import PolicyRole

DATAPLANE = {"top_kind": "Dataplane"}
GATEWAY = {"top_kind": "MeshGateway"}

# Each step: its ladder from the weakest to the strongest.
LADDERS = {
    "tier": [{"tier": Tier.SERVICE}, {"tier": Tier.OLD_ROUTE}, {"tier": Tier.ROUTE}],
    "top-level kind": [
        {"top_kind": kind}
        for kind in (
            "Mesh",
            "Dataplane",
            "MeshSubset",
            "MeshGateway",
            "MeshService",
            "MeshExternalService",
            "MeshMultiZoneService",
            "MeshServiceSubset",
            "MeshHTTPRoute",
        )
    ],
    "labels or name": [{**DATAPLANE, "top_by_name": False}, {**DATAPLANE, "top_by_name": True}],
    "inbound": [{**DATAPLANE, "top_section": False}, {**DATAPLANE, "top_section": True}],
    "origin": [{"origin": "global"}, {"origin": ""}, {"origin": "zone"}],
    "gateway tags": [{**GATEWAY, "gateway_tags": n} for n in range(3)],
    "role": [
        {"role": role}
        for role in (PolicyRole.SYSTEM, PolicyRole.PRODUCER, PolicyRole.CONSUMER, PolicyRole.WORKLOAD_OWNER)
    ],
    "kind in to": [
        {"to_kind": kind}
        for kind in (
            "",
            "Mesh",
            "MeshSubset",
            "MeshService",
            "MeshExternalService",
            "MeshMultiZoneService",
            "MeshServiceSubset",
            "MeshTCPRoute",
        )
    ],
    "port": [{"to_section": False}, {"to_section": True}],
    "age": [{"created": time} for time in ("", "2026-02-01T00:00:00Z", "2026-01-01T00:00:00Z")],
    "display name": [{"display_name": name} for name in ("b", "ab", "aa", "a", "")],
    "core name": [{"core_name": name} for name in ("a", "a.east", "b")],
    "index": [{"index": index} for index in (0, 1, 2, 10)],
}
PAIRS = [
    pytest.param(step, weak, strong, id=f"{step}: {list(weak.values())[-1]} < {list(strong.values())[-1]}")
    for step, ladder in LADDERS.items()
    for weak, strong in itertools.pairwise(ladder)
]


@pytest.mark.parametrize(("step", "weak", "strong"), PAIRS)
def test_each_step_of_a_ladder_wins_against_the_one_before(step, weak, strong):
    assert order.key(rank(**weak)) < order.key(rank(**strong))


@pytest.mark.parametrize(("step", "weak", "strong"), PAIRS)
def test_no_later_step_can_make_up_for_an_earlier_one(step, weak, strong):
    later = list(LADDERS)[list(LADDERS).index(step) + 1 :]
    best = {name: value for each in later for name, value in LADDERS[each][-1].items() if name != "top_kind"}
    worst = {name: value for each in later for name, value in LADDERS[each][0].items() if name != "top_kind"}
    assert order.key(rank(**{**best, **weak})) < order.key(rank(**{**worst, **strong}))


@pytest.mark.parametrize("field", [{"top_by_name": True}, {"top_section": True}, {"gateway_tags": 3}])
def test_what_belongs_to_another_kind_of_target_does_not_count(field):
    assert order.key(rank(top_kind="MeshService", **field)) == order.key(rank(top_kind="MeshService"))


def test_a_consumer_on_a_route_wins_then_a_producer_there_then_a_consumer_and_a_producer_on_the_service():
    keys = [
        order.key(rank(tier=tier, role=role, to_kind=kind))
        for tier, kind in ((Tier.SERVICE, "MeshService"), (Tier.ROUTE, "MeshHTTPRoute"))
        for role in (PolicyRole.PRODUCER, PolicyRole.CONSUMER)
    ]
    assert all(weak < strong for weak, strong in itertools.pairwise(keys))


def test_the_older_way_to_target_a_route_loses_to_the_newer_one_from_a_weaker_policy():
    older = rank(tier=Tier.OLD_ROUTE, top_kind="MeshHTTPRoute", role=PolicyRole.CONSUMER)
    assert order.key(older) < order.key(rank(tier=Tier.ROUTE, to_kind="MeshHTTPRoute", origin="global"))


def test_proxies_named_at_the_top_count_more_than_a_named_destination():
    for_some_proxies = rank(top_kind="Dataplane", to_kind="Mesh")
    assert order.key(rank(to_kind="MeshService")) < order.key(for_some_proxies)


def test_a_consumer_of_everything_counts_more_than_the_producer_of_one_service():
    producer = rank(role=PolicyRole.PRODUCER, to_kind="MeshService")
    assert order.key(producer) < order.key(rank(role=PolicyRole.CONSUMER, to_kind="Mesh"))


REASONS = [
    (
        {"tier": Tier.SERVICE},
        {"tier": Tier.ROUTE},
        "it targets a mesh or service, one that targets a route in to[] wins",
    ),
    (
        {"tier": Tier.OLD_ROUTE},
        {"tier": Tier.ROUTE},
        "it targets a route by its top-level targetRef, one that targets a route in to[] wins",
    ),
    ({"top_kind": "Mesh"}, {"top_kind": "MeshSubset"}, "its targetRef is Mesh, MeshSubset wins"),
    (DATAPLANE, {**DATAPLANE, "top_by_name": True}, "it selects proxies by labels, one by name wins"),
    (
        DATAPLANE,
        {**DATAPLANE, "top_section": True},
        "it selects whole proxies, one for a single inbound wins",
    ),
    (GATEWAY, {**GATEWAY, "top_section": True}, "it selects the whole gateway, one with a sectionName wins"),
    ({"origin": "global"}, {"origin": "zone"}, "its origin is global, zone wins"),
    ({"origin": ""}, {"origin": "zone"}, "its origin is unknown, zone wins"),
    (
        {**GATEWAY, "gateway_tags": 1},
        {**GATEWAY, "gateway_tags": 2},
        "its targetRef has 1 tag, one with 2 wins",
    ),
    ({"role": PolicyRole.PRODUCER}, {"role": PolicyRole.CONSUMER}, "its role is producer, consumer wins"),
    ({"to_kind": "Mesh"}, {"to_kind": "MeshService"}, "its to[].targetRef is Mesh, MeshService wins"),
    ({}, {"to_section": True}, "it targets all ports, one for a single port wins"),
    (
        {"created": "2026-02-01T00:00:00Z"},
        {"created": "2026-01-01T00:00:00Z"},
        "it is younger, on a gateway the older route wins",
    ),
    (
        {"display_name": "b"},
        {"display_name": "a"},
        'its name is "b", "a" comes first in the alphabet and wins',
    ),
    (
        {"core_name": "same.east"},
        {"core_name": "same.west"},
        'it is stored as "same.east", "same.west" comes later and wins',
    ),
    ({"index": 0}, {"index": 1}, "it is item 0 of the policy, the later item 1 wins"),
    ({}, {}, "it ranks the same, the later one wins"),
]


@pytest.mark.parametrize(("weak", "strong", "expected"), REASONS)
def test_the_reason_names_the_step_that_decided_and_both_values(weak, strong, expected):
    assert order.reason(rank(**strong), rank(**weak)) == expected


def test_a_reason_for_the_wrong_winner_is_a_bug():
    with pytest.raises(AssertionError, match="wins against"):
        order.reason(rank(index=0), rank(index=1))


@pytest.mark.property
@given(ranks, ranks)
def test_two_items_of_different_policies_or_indexes_never_rank_equal(one, other):
    assume((one.core_name, one.index) != (other.core_name, other.index))
    weak, strong = sorted((one, other), key=order.key)
    assert order.key(weak) < order.key(strong)
    assert "ranks the same" not in order.reason(strong, weak)


@pytest.mark.property
@given(st.lists(st.text(alphabet=st.characters()), max_size=5, unique=True))
def test_names_of_any_script_sort_the_other_way_round(names):
    by_rank = sorted(names, key=lambda name: order.key(rank(display_name=name)))
    assert by_rank == sorted(names, reverse=True)
