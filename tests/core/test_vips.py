"""Virtual addresses: given once, kept, never given twice."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.core import pipeline, vips
from koguma.model.resource import Key
from tests.core.destinations import (
    database,
    internal_vip,
    stored,
    stored_external,
    stored_multi_zone,
    stored_service,
)

SMALL = vips.ranges("241.0.0.0/29", "242.0.0.0/29", "243.0.0.0/29")  # six usable addresses each


def plan(db, *resources, ranges=vips.DEFAULT, cursors=None):
    """A step for these; cursors as after a start, where none are given."""
    cursors = vips.first_cursors(db, ranges) if cursors is None else dict.fromkeys(ranges, 0) | cursors
    return vips.plan(db, [resource.key for resource in resources], ranges, cursors)


def assigned(*resources, **more):
    """What each of these has after a step, by name."""
    made = plan(database(*resources), *resources, **more)
    return {key.name: [address for _, address in named] for key, named in made.assigned.items()}


def test_each_kind_begins_at_the_first_usable_address_of_its_own_range():
    assert assigned(stored_service("web"), stored_external("mongo"), stored_multi_zone("api")) == {
        "web": ["241.0.0.1"],
        "mongo": ["242.0.0.1"],
        "api": ["243.0.0.1"],
    }


def test_older_objects_come_first():
    found = assigned(
        stored_service("a", created=3), stored_service("b", created=1), stored_service("c", created=1)
    )
    assert found == {"b": ["241.0.0.1"], "c": ["241.0.0.2"], "a": ["241.0.0.3"]}


def test_an_address_stays_with_its_object():
    found = assigned(stored_service("new"), stored_service("old", "241.0.0.9", created=5))
    assert found == {"old": ["241.0.0.9"], "new": ["241.0.0.10"]}


def test_addresses_of_other_meshes_are_taken():
    here, there = stored_service("web"), stored_service("web", "241.0.0.1", mesh="other")
    made = plan(database(here, there), here, cursors={"MeshService": 0})
    assert made.assigned[here.key] == (("", "241.0.0.2"),)


def test_a_freed_address_is_not_allocated_again_while_others_were_never_used():
    freed = stored_service("old", "241.0.0.5")
    cursors = vips.advanced(vips.first_cursors(database(), vips.DEFAULT), vips.DEFAULT, freed)
    new = stored_service("new")
    assert plan(database(new), new, cursors=cursors).assigned[new.key] == (("", "241.0.0.6"),)


def test_an_older_address_moves_no_cursor_back():
    cursors = {"MeshService": 7}
    assert vips.advanced(cursors, vips.DEFAULT, stored_service("old", "241.0.0.5")) == {"MeshService": 7}
    assert vips.advanced(cursors, vips.DEFAULT, stored_service("foreign", "10.0.0.1")) == {"MeshService": 7}
    assert vips.advanced(cursors, vips.DEFAULT, stored("Mesh", "m", {})) == {"MeshService": 7}


def test_after_the_end_of_a_range_the_lowest_free_address_follows():
    there = [stored_service("low", "241.0.0.1"), stored_service("high", "241.0.0.6")]
    new = [stored_service("x", created=1), stored_service("y", created=2)]
    found = assigned(*there, *new, ranges=SMALL)
    assert (found["x"], found["y"]) == (["241.0.0.2"], ["241.0.0.3"])


def test_around_the_end_of_a_range_a_just_freed_address_is_allocated_last():
    cursors = vips.advanced({"MeshService": 6}, SMALL, stored_service("freed", "241.0.0.2"))
    new = stored_service("new")
    assert plan(database(new), new, ranges=SMALL, cursors=cursors).assigned[new.key] == (("", "241.0.0.3"),)


def test_a_range_that_is_used_up_is_a_problem_that_names_the_setting():
    there = [stored_service(f"s{number}", created=number) for number in range(7)]
    made = plan(database(*there), *there, ranges=SMALL)
    assert made.assigned[there[6].key] == ()
    (problem,) = made.problems
    assert (problem.about, problem.rule) == (there[6].key, "vip")
    assert problem.message == (
        "has no virtual address: all of 241.0.0.0/29 are in use; make the setting meshServiceCidr larger"
    )
    assert len({made.assigned[one.key] for one in there}) == 7


def test_another_range_gives_new_addresses():
    assert assigned(stored_service("web", "241.0.0.9"), ranges=vips.ranges("10.1.0.0/16")) == {
        "web": ["10.1.0.1"]
    }


def test_a_range_may_be_of_ipv6():
    assert assigned(stored_service("web"), ranges=vips.ranges("fd00::/64")) == {"web": ["fd00::1"]}


# MeshExternalServices.


def test_each_host_name_of_a_match_has_an_address_of_its_own():
    one = stored_external("db", "a.ext", "b.ext")
    assert plan(database(one), one).assigned[one.key] == (("a.ext", "242.0.0.1"), ("b.ext", "242.0.0.2"))


def test_one_host_name_on_several_ports_has_one_address():
    one = stored(
        "MeshExternalService", "db", {"match": [internal_vip("a.ext", 80), internal_vip("a.ext", 443)]}
    )
    assert plan(database(one), one).assigned[one.key] == (("a.ext", "242.0.0.1"),)


def test_matches_of_what_exists_need_no_address():
    match = [internal_vip("example.com", kind="Domain"), internal_vip("10.0.0.0/8", kind="CIDR")]
    one = stored("MeshExternalService", "db", {"match": match})
    assert plan(database(one), one).assigned[one.key] == ()


def test_a_host_name_keeps_its_address_when_others_come_and_go():
    status = {"vips": [{"ip": "242.0.0.1", "hostname": "a.ext"}, {"ip": "242.0.0.2", "hostname": "b.ext"}]}
    one = stored_external("db", "c.ext", "b.ext", status=status)
    assert plan(database(one), one).assigned[one.key] == (("c.ext", "242.0.0.3"), ("b.ext", "242.0.0.2"))


def test_the_address_in_the_place_that_kuma_released_is_read_too():
    one = stored_external("db", status={"vip": {"ip": "242.0.0.8"}})
    assert plan(database(one), one).assigned[one.key] == (("", "242.0.0.8"),)


@pytest.mark.parametrize(
    "status", [None, {}, [], "", {"vips": None}, {"vips": {"ip": 1}}, {"vips": [None, {}], "vip": []}]
)
def test_a_status_of_any_shape_can_be_read(status):
    assert vips.stored(status) == ()


# Two control planes at the same moment.

WEB, API = stored_service("web", "241.0.0.1"), stored_service("api", "241.0.0.1", created=1)


def test_of_two_objects_with_one_address_the_older_keeps_it():
    assert assigned(WEB, API) == {"web": ["241.0.0.1"], "api": ["241.0.0.2"]}


def test_of_two_that_are_equally_old_the_first_by_key_keeps_it():
    young = msgspec.structs.replace(API, creation_time=WEB.creation_time)
    assert assigned(WEB, young) == {"api": ["241.0.0.1"], "web": ["241.0.0.2"]}


def test_nobody_listens_twice_on_an_address_while_this_is_mended():
    db = database(WEB, API)
    assert vips.of(db, WEB.key) == ("241.0.0.1",)
    assert vips.of(db, API.key) == ()
    pipeline.take(db, [], [WEB.key])
    assert vips.of(db, API.key) == ("241.0.0.1",)


def test_who_keeps_an_address_says_in_which_mesh_another_has_to_give_it_up():
    there = stored_service("api", "241.0.0.1", mesh="other", created=1)
    db = database(WEB, there)
    assert plan(db, WEB).other_meshes == {"other"}
    assert plan(db, there).other_meshes == frozenset()
    assert plan(db, there).assigned[there.key] == (("", "241.0.0.2"),)


def test_an_object_that_says_an_address_twice_has_it_once():
    one = stored_external(
        "db", "a.ext", "b.ext", status={"vips": [{"ip": "242.0.0.1", "hostname": "a.ext"}] * 2}
    )
    assert plan(database(one), one).assigned[one.key] == (("a.ext", "242.0.0.1"), ("b.ext", "242.0.0.2"))


# All of it at random.

ADDRESSES = [f"241.0.0.{number}" for number in range(8)]


@pytest.mark.property
@given(
    st.lists(st.sampled_from(["", *ADDRESSES]), max_size=6),
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
    st.integers(0, 6),
)
def test_one_step_leads_to_distinct_addresses_and_then_changes_nothing(held, ages, mark):
    there = [
        stored_service(f"s{number}", *filter(None, [address]), created=age)
        for number, (address, age) in enumerate(zip(held, ages, strict=False))
    ]
    first = plan(database(*there), *there, ranges=SMALL, cursors={"MeshService": mark})
    assert not first.problems
    found = list(itertools.chain.from_iterable(first.assigned.values()))
    assert len(found) == len(set(found)) == len(there)
    after = [
        msgspec.structs.replace(one, status={"vips": [{"ip": a} for _, a in first.assigned[one.key]]})
        for one in there
    ]
    second = plan(database(*after), *after, ranges=SMALL, cursors=first.cursors)
    assert (second.assigned, second.cursors) == (first.assigned, first.cursors)
    kept = {one.key for one in there if vips.named(database(*there), one.key)}
    for key in kept:  # who rightly had an address that can be used still has it
        ((_, before),) = vips.named(database(*there), key)
        if SMALL["MeshService"].offset(before):
            assert first.assigned[key] == (("", before),)


# What it costs.


def test_a_changed_status_elsewhere_asks_nothing_again():
    others = [stored_service(f"s{number}", f"241.0.1.{number}") for number in range(20)]
    db = database(WEB, *others)
    for one in (WEB, *others):
        db.watch(vips.of, one.key)
    db.reset_counts()
    moved = msgspec.structs.replace(others[0], status={"vips": [{"ip": "241.9.9.9"}]})
    pipeline.take(db, [moved])
    assert [asked.args for asked in db.changed()] == [(moved.key,)]
    assert db.runs == {"vips.named": 1, "vips.of": 1, "vips.holder": 2}  # of the old and the new address


def test_an_unknown_destination_has_no_address():
    nobody = Key("MeshService", "shop", "east", "", "nobody")
    assert vips.of(database(), nobody) == vips.required_names(database(), nobody) == ()
