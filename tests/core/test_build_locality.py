"""Endpoints in groups: which come first, which take over, and who gets how much."""

from collections.abc import Iterable
from typing import Any

import pytest
from building import encoder
from hypothesis import given
from hypothesis import strategies as st

from koguma.core.build import locality
from koguma.core.build.addresses import Endpoint
from koguma.envoy.snapshot import ENDPOINTS
from koguma.policies.mesh_load_balancing_strategy.locality_awareness import locality as preference

ZONES = ("east", "west", "north", "south")
OF_ZONES = tuple(Endpoint(f"10.0.0.{number}", 80, zone) for number, zone in enumerate(ZONES))


def grouped(endpoints: Iterable[Endpoint], said: Any = None, affinity: dict[str, str] | None = None) -> Any:
    """Addresses by priority, zone and part of the zone, with the group's weight."""
    data = locality.assignment(
        "it", endpoints, "east", tuple(sorted((affinity or {}).items())), preference(said)
    )
    found = {}
    for group in data["endpoints"]:
        where = group.get("locality", {})
        key = group.get("priority", 0), where.get("zone", ""), where.get("sub_zone", "")
        addresses = [
            each["endpoint"]["address"]["socket_address"]["address"] for each in group["lb_endpoints"]
        ]
        assert key not in found
        found[key] = (addresses, group.get("load_balancing_weight"))
    return found


def zones(said: Any, without: Iterable[str] = ()) -> dict[str, int]:
    """The priority of each zone that is called at all."""
    there = [each for each in OF_ZONES if each.zone not in without]
    return {zone: priority for priority, zone, _ in grouped(there, said)}


def failover(*steps: Any, **more: Any) -> Any:
    return {"crossZone": {"failover": list(steps), **more}}


def to(type_: str, *named: str, of: tuple[str, ...] = ()) -> Any:
    step: dict[str, Any] = {"to": {"type": type_, **({"zones": list(named)} if named else {})}}
    return {**step, "from": {"zones": list(of)}} if of else step


REST = {"west": 1, "north": 1, "south": 1}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, {"east": 0, **REST}),
        ({}, {"east": 0, **REST}),
        ({"disabled": True}, dict.fromkeys(ZONES, 0)),
        (failover(to("Any")), {"east": 0, **REST}),
        (failover(to("None")), {"east": 0}),
        (failover(to("Only", "west")), {"east": 0, "west": 1}),
        (failover(to("Only", "west"), to("AnyExcept", "south")), {"east": 0, "west": 1, "north": 2}),
        (failover(to("Only", "west"), to("None"), to("Any")), {"east": 0, "west": 1}),
        (failover(to("Only", "west", of=("north",))), {"east": 0, **REST}),
        (failover(to("Only", "west", of=("north",)), to("Only", "south")), {"east": 0, "south": 1}),
        (
            failover(to("Only", "west", of=("east",)), to("Any")),
            {"east": 0, "west": 1, "north": 2, "south": 2},
        ),
    ],
)
def test_zones_take_over_in_the_order_that_the_policy_says(said: Any, expected: dict[str, int]):
    assert zones(said) == expected


def test_a_step_without_endpoints_leaves_no_gap():
    said = failover(to("Only", "west"), to("Only", "north"), to("Any"))
    assert zones(said, without=["west"]) == {"east": 0, "north": 1, "south": 2}
    assert zones(said, without=["east", "west"]) == {"north": 0, "south": 1}


def tagged(address: str, zone: str = "east", **tags: str) -> Endpoint:
    return Endpoint(address, 80, zone, tuple(sorted(tags.items())))


NEAR = (
    tagged("10.0.0.1", node="n1", rack="r1"),
    tagged("10.0.0.2", node="n2", rack="r1"),
    tagged("10.0.0.3", node="n3", rack="r3"),
    tagged("10.0.0.4"),
    tagged("10.0.0.5", "west", node="n1"),
)


def test_without_weights_each_tag_counts_for_nine_of_ten_of_what_is_left():
    said = {"localZone": {"affinityTags": [{"key": "node"}, {"key": "rack"}]}}
    assert grouped(NEAR, said, {"node": "n1", "rack": "r1"}) == {
        (0, "east", "node=n1"): (["10.0.0.1"], 90),
        (0, "east", "rack=r1"): (["10.0.0.2"], 9),
        (0, "east", ""): (["10.0.0.3", "10.0.0.4"], 1),
        (1, "west", ""): (["10.0.0.5"], None),
    }


def test_written_weights_are_the_weights():
    said = {"localZone": {"affinityTags": [{"key": "node", "weight": 70}, {"key": "rack", "weight": 20}]}}
    found = grouped(NEAR, said, {"node": "n1", "rack": "r1"})
    assert {part: weight for (_, zone, part), (_, weight) in found.items() if zone == "east"} == {
        "node=n1": 70,
        "rack=r1": 20,
        "": 1,
    }


def test_a_caller_without_the_tag_is_near_to_nobody():
    said = {"localZone": {"affinityTags": [{"key": "node"}]}}
    assert set(grouped(NEAR, said)) == {(0, "east", ""), (1, "west", "")}


@pytest.mark.parametrize(
    ("said", "factor"),
    [
        (None, None),
        ({"disabled": True}, None),
        (failover(to("Any")), 200),
        (failover(failoverThreshold={"percentage": 50}), 200),
        (failover(failoverThreshold={"percentage": "25.5"}), 392),
        (failover(failoverThreshold={"percentage": 100}), 100),
    ],
)
def test_a_zone_takes_over_below_the_share_of_live_endpoints(said: Any, factor: int | None):
    data = locality.assignment("it", OF_ZONES, "east", (), preference(said))
    assert data.get("policy", {}).get("overprovisioning_factor") == factor


names = st.sampled_from(["a", "b", "c"])
endpoints = st.lists(
    st.builds(
        lambda number, zone, own: Endpoint(f"10.0.0.{number}", 80, zone, tuple(sorted(own.items()))),
        st.integers(1, 9),
        st.sampled_from(ZONES),
        st.dictionaries(st.sampled_from(["node", "rack"]), names),
    ),
    unique=True,
)
steps = st.builds(
    lambda type_, some, of: to(type_, *(some if type_ in ("Only", "AnyExcept") else ()), of=tuple(of)),
    st.sampled_from(["None", "Only", "Any", "AnyExcept"]),
    st.sets(st.sampled_from(ZONES), min_size=1),
    st.sets(st.sampled_from(ZONES)),
)
policies = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "disabled": st.booleans(),
        "localZone": st.builds(
            lambda keys: {"affinityTags": [{"key": key} for key in keys]},
            st.lists(st.sampled_from(["node", "rack"]), unique=True),
        ),
        "crossZone": st.lists(steps, max_size=3).map(lambda found: {"failover": found}),
    },
)


@pytest.mark.property
@given(endpoints, policies, st.dictionaries(st.sampled_from(["node", "rack"]), names), st.randoms())
def test_whatever_a_policy_says_groups_are_legal_and_nobody_near_is_lost(found, said, affinity, random):
    groups = grouped(found, said, affinity)
    priorities = sorted({priority for priority, _, _ in groups})
    assert priorities == list(range(len(priorities)))
    shown = sorted(address for addresses, _ in groups.values() for address in addresses)
    everybody = sorted(each.address for each in found)
    near = sorted(each.address for each in found if each.zone == "east")
    assert len(shown) <= len(everybody)
    assert [each for each in near if each not in shown] == []
    # Envoy looks at weights of a priority only if all its groups have one.
    for priority in priorities:
        weights = {weight is None for (at, _, _), (_, weight) in groups.items() if at == priority}
        assert len(weights) == 1
    shuffled = random.sample(found, len(found))
    pair = tuple(sorted(affinity.items()))
    first, second = (
        locality.assignment("it", some, "east", pair, preference(said)) for some in (found, shuffled)
    )
    assert encoder().resource(ENDPOINTS, "it", first) == encoder().resource(ENDPOINTS, "it", second)
