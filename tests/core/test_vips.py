"""Virtual addresses: given once, kept, never given twice."""

import itertools
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.core import pipeline, vips
from koguma.core.address_history import REUSE_AFTER, AddressHistory
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


NOW = datetime(2026, 1, 9, tzinfo=UTC)


def plan(db, *resources, ranges=vips.DEFAULT, used=None, freed_at=None, since=NOW - REUSE_AFTER):
    """A step for these; `used` as at the first start, where none is given."""
    used = vips.first_used(db, ranges, {} if used is None else used)
    history = AddressHistory(since, used, freed_at or {})
    return vips.plan(db, [resource.key for resource in resources], ranges, history, NOW)


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
    made = plan(database(here, there), here, used={"241.0.0.0/8": "241.0.0.0"})
    assert made.assigned[here.key] == (("", "241.0.0.2"),)


def test_a_freed_address_is_not_allocated_again_while_others_were_never_used():
    new = stored_service("new")
    made = plan(database(new), new, used={"241.0.0.0/8": "241.0.0.5"})
    assert made.assigned[new.key] == (("", "241.0.0.6"),)
    assert made.used["241.0.0.0/8"] == "241.0.0.6"


def test_what_was_used_as_part_of_another_range_counts_as_used():
    new = stored_service("new")
    for used, expected in (("241.0.0.9", "241.0.0.10"), ("240.0.0.9", "241.0.0.1"), ("no", "241.0.0.1")):
        made = plan(
            database(new), new, used={"240.0.0.0/7": used, "x": "241.0.0.200", "fd00::/64": "fd00::9"}
        )
        assert made.assigned[new.key] == (("", expected),)


FULL = {"241.0.0.0/29": "241.0.0.6"}


def test_after_the_end_of_a_range_those_that_were_freed_first_follow():
    there = [stored_service("low", "241.0.0.1"), stored_service("high", "241.0.0.6")]
    new = [stored_service(name, created=1) for name in "wxyz"]
    freed_at = {
        "241.0.0.2": NOW - 2 * REUSE_AFTER,
        "241.0.0.3": NOW - REUSE_AFTER + timedelta(seconds=1),
        "241.0.0.4": NOW - 3 * REUSE_AFTER,
        "10.0.0.1": NOW - 3 * REUSE_AFTER,
    }
    db = database(*there, *new)
    made = plan(db, *new, ranges=SMALL, used=FULL, freed_at=freed_at)
    found = [[address for _, address in made.assigned[one.key]] for one in new]
    assert found == [["241.0.0.5"], ["241.0.0.4"], ["241.0.0.2"], []]
    assert [problem.about for problem in made.problems] == [new[3].key]
    assert made.used["241.0.0.0/29"] == "241.0.0.6"


def test_what_was_freed_before_a_start_counts_as_freed_by_it():
    new = stored_service("new")
    made = plan(database(new), new, ranges=SMALL, used=FULL, since=NOW - REUSE_AFTER + timedelta(seconds=1))
    assert made.assigned[new.key] == ()


def test_a_range_that_is_used_up_is_a_problem_that_names_the_setting():
    there = [stored_service(f"s{number}", created=number) for number in range(7)]
    made = plan(database(*there), *there, ranges=SMALL)
    assert made.assigned[there[6].key] == ()
    (problem,) = made.problems
    assert (problem.about, problem.rule) == (there[6].key, "vip")
    assert problem.message == (
        "has no virtual address: all of 241.0.0.0/29 are in use, or were less than 24 hours ago; make the"
        " setting meshServiceCidr larger"
    )
    assert len({made.assigned[one.key] for one in there}) == 7


def test_another_range_gives_new_addresses():
    assert assigned(stored_service("web", "241.0.0.9"), ranges=vips.ranges("10.1.0.0/16")) == {
        "web": ["10.1.0.1"]
    }


def test_a_range_may_be_of_ipv6():
    assert assigned(stored_service("web"), ranges=vips.ranges("fd00::/64")) == {"web": ["fd00::1"]}


IPV6 = vips.ranges(ipv6="fd00:fd00::/96")


def test_with_a_range_for_ipv6_every_address_has_a_twin():
    web, db_ = stored_service("web", "241.0.0.9"), stored_external("db", "a.ext", "b.ext")
    assert assigned(web, db_, ranges=IPV6) == {
        "web": ["241.0.0.9", "fd00:fd00::f100:9"],
        "db": ["242.0.0.1", "fd00:fd00::f200:1", "242.0.0.2", "fd00:fd00::f200:2"],
    }


def test_twins_are_kept_and_go_with_the_setting():
    status = {
        "vips": [{"ip": "242.0.0.1", "hostname": "a.ext"}, {"ip": "fd00:fd00::f200:1", "hostname": "a.ext"}]
    }
    one = stored_external("db", "a.ext", "b.ext", status=status)
    db = database(one)
    assert vips.of(db, one.key) == ("242.0.0.1", "fd00:fd00::f200:1")
    assert vips.of_families(vips.of(db, one.key), has_ipv6=False) == ("242.0.0.1",)
    assert plan(db, one, ranges=IPV6).assigned[one.key] == (
        ("a.ext", "242.0.0.1"),
        ("a.ext", "fd00:fd00::f200:1"),
        ("b.ext", "242.0.0.2"),
        ("b.ext", "fd00:fd00::f200:2"),
    )
    assert plan(db, one).assigned[one.key] == (("a.ext", "242.0.0.1"), ("b.ext", "242.0.0.2"))


def test_a_proxy_without_ipv6_uses_ipv6_where_there_is_nothing_else():
    assert vips.of_families(["fd00::1"], has_ipv6=False) == ("fd00::1",)


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
def test_one_step_leads_to_distinct_addresses_and_then_changes_nothing(held, ages, used):
    there = [
        stored_service(f"s{number}", *filter(None, [address]), created=age)
        for number, (address, age) in enumerate(zip(held, ages, strict=False))
    ]
    used = {"241.0.0.0/29": f"241.0.0.{used}"}
    first = plan(database(*there), *there, ranges=SMALL, used=used)
    assert not first.problems
    found = list(itertools.chain.from_iterable(first.assigned.values()))
    assert len(found) == len(set(found)) == len(there)
    after = [
        msgspec.structs.replace(one, status={"vips": [{"ip": a} for _, a in first.assigned[one.key]]})
        for one in there
    ]
    second = plan(database(*after), *after, ranges=SMALL, used=first.used)
    assert (second.assigned, second.used) == (first.assigned, first.used)
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
