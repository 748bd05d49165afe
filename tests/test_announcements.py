"""When connected proxies get what has changed: at once, but endpoints that come in a crowd wait."""

from itertools import pairwise

import msgspec
import pytest

from koguma.access.user import SYSTEM
from koguma.fleet.announcements import (
    ADDITION_SECONDS_PER_PROXY,
    ARRIVAL_SECONDS_MAX,
    CROWD_MIN,
    CROWD_SECONDS_MAX,
    GATHERING_SECONDS_MAX,
    PAUSE_SECONDS_PER_PROXY,
    QUIET_SECONDS,
    Announcements,
    is_patient,
)
from koguma.model import labels
from koguma.model.resource import Key
from koguma.store.contract import Change, Op
from tests import build

MESH_SERVICE = build.resource(build.mesh_service("web"))
STARTING = build.resource(build.dataplane(labels={labels.REGISTERED_BY: "proxy"}))
READY = msgspec.structs.replace(STARTING, annotations={labels.READY: labels.ready_mark(STARTING.labels)})
N_PROXIES = 100


def change(resource, op=Op.UPDATE, author=SYSTEM) -> Change:
    return Change(7, op, resource, "2026-01-01T00:00:00Z", author, "", "id")


def with_state(resource, state):
    networking = resource.spec["networking"]
    inbounds = [{**inbound, "state": state} for inbound in networking["inbound"]]
    spec = {**resource.spec, "networking": {**networking, "inbound": inbounds}}
    return msgspec.structs.replace(resource, spec=spec)


def replaced(resource, **fields):
    return msgspec.structs.replace(resource, **fields)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (STARTING, READY),
        (with_state(READY, "NotReady"), with_state(READY, "Ready")),
        (READY, replaced(READY, annotations={**READY.annotations, "koguma.io/connected-to": "cp-2"})),
        (MESH_SERVICE, replaced(MESH_SERVICE, status={"vips": [{"ip": "241.0.0.1"}]})),
    ],
)
def test_what_adds_something_is_patient(before, after):
    assert is_patient(change(after), before)
    assert not is_patient(change(after, author="somebody"), before)
    assert not is_patient(change(after), None)  # it is not known what it was


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (READY, STARTING),
        (with_state(READY, "Ready"), with_state(READY, "NotReady")),
        (READY, replaced(READY, labels={**READY.labels, "team": "b"})),
        (READY, build.resource(build.dataplane(address="127.0.0.9", labels=dict(READY.labels)))),
        (READY, replaced(READY, spec={**READY.spec, "networking": {}})),
        (MESH_SERVICE, replaced(MESH_SERVICE, spec={**MESH_SERVICE.spec, "ports": []})),
    ],
)
def test_what_takes_something_away_or_changes_it_is_not(before, after):
    assert not is_patient(change(after), before)


def test_a_new_object_is_patient_and_a_deleted_one_is_not():
    assert is_patient(change(READY, Op.CREATE), None)
    assert not is_patient(change(READY, Op.DELETE), READY)


def announced(now: float = 100.0) -> Announcements:
    """After a change for all proxies, when nothing else has happened."""
    announcements = Announcements()
    announcements.begin()
    announcements.finish(now, N_PROXIES, N_PROXIES)
    return announcements


def key(number: int) -> Key:
    return Key("Dataplane", "default", "", "", f"dp-{number}")


def crowded(now: float = 100.1, n_arriving: int = CROWD_MIN) -> Announcements:
    """Just after a change for all proxies, when many more wait for their first configuration."""
    announcements = announced()
    for number in range(n_arriving):
        announcements.join(key(number), now)
    return announcements


def note(announcements: Announcements, after, before, now: float = 100.1) -> None:
    announcements.note([change(after)], lambda _revision: before, now)


def test_a_change_that_comes_alone_goes_out_at_once():
    announcements = announced()
    note(announcements, READY, STARTING, now := 200.0)
    assert announcements.due_at(now, N_PROXIES) <= now


def test_endpoints_of_a_crowd_at_another_control_plane_go_out_at_a_pace():
    announcements, times = announced(), []
    for tick in range(300):
        note(announcements, READY, STARTING, now := 200 + tick / 100)
        if announcements.due_at(now, N_PROXIES) <= now:
            announcements.begin()
            announcements.finish(now, N_PROXIES, N_PROXIES)
            times.append(now)
    assert times[0] == 200.0
    pace = N_PROXIES * ADDITION_SECONDS_PER_PROXY
    assert all(later - earlier == pytest.approx(pace, abs=0.02) for earlier, later in pairwise(times))


def test_the_next_change_waits_until_the_last_had_time_to_reach_all():
    announcements = announced()
    announcements.hurry()
    assert announcements.due_at(100.0, N_PROXIES) == 100.0 + N_PROXIES * PAUSE_SECONDS_PER_PROXY


def times_of_announcements(announcements: Announcements, began_at: float, seconds: int) -> list[float]:
    """When endpoints go out while a crowd comes: one proxy joins, and another one is synced, all the time."""
    times = []
    for tick in range(10 * seconds):
        now = began_at + tick / 10
        announcements.join(key(tick + CROWD_MIN), now)
        announcements.settle(key(tick), now)
        if announcements.due_at(now, N_PROXIES) <= now:
            announcements.begin()
            announcements.finish(now, N_PROXIES, N_PROXIES)
            times.append(now)
    return times


def test_endpoints_go_out_when_a_crowd_has_been_coming_twice_as_long():
    times = times_of_announcements(crowded(100.1), 100.1, seconds=64)
    ages = [time - 100.1 for time in times if time > 105]
    assert ages == sorted(ages)
    assert 2 <= len(ages) <= 4
    for earlier, later in pairwise(ages):
        assert later == pytest.approx(earlier + min(earlier, CROWD_SECONDS_MAX), abs=0.2)


def test_no_endpoint_waits_for_ever_while_a_crowd_connects():
    times = times_of_announcements(crowded(100.1), 100.1, seconds=400)
    assert all(later - earlier <= CROWD_SECONDS_MAX + 0.2 for earlier, later in pairwise(times))
    assert len(times) < 25


def test_a_crowd_that_came_is_told_to_all_at_once():
    announcements = crowded(100.1)
    assert announcements.due_at(100.1, N_PROXIES) > 100.1
    announcements.finish(now := 101.0, N_PROXIES, N_PROXIES)
    for number in range(CROWD_MIN - 1):
        assert not announcements.settle(key(number), now)
        assert announcements.due_at(now, N_PROXIES) >= now + 0.9
    assert announcements.settle(key(CROWD_MIN - 1), now)
    assert now < announcements.due_at(now, N_PROXIES) < now + 0.5  # they are about to be stored as ready


def test_after_a_crowd_an_endpoint_goes_out_as_before_it():
    announcements = crowded(100.1)
    announcements.due_at(100.1, N_PROXIES)
    for number in range(CROWD_MIN):
        announcements.settle(key(number), 100.5)
    announcements.begin()
    announcements.finish(100.8, N_PROXIES, N_PROXIES)
    announcements.join(key(1), 110.0)
    announcements.settle(key(1), 110.1)
    note(announcements, READY, STARTING, 110.1)
    assert announcements.due_at(110.1, N_PROXIES) <= 110.1


@pytest.mark.parametrize("before", [READY, None])
def test_an_endpoint_that_goes_waits_for_no_crowd(before):
    announcements = crowded()
    note(announcements, STARTING, before)
    assert announcements.due_at(100.1, N_PROXIES) <= 100.1
    announcements.begin()
    assert announcements.due_at(100.1, N_PROXIES) > 100.1


def test_a_proxy_that_is_synced_again_or_leaves_is_no_endpoint_more():
    announcements = crowded()
    for number in range(1, CROWD_MIN):
        announcements.leave(key(number))
    assert [announcements.settle(key(number), 100.5) for number in (1, 0, 0)] == [False, True, False]


def test_endpoints_go_out_when_nothing_has_happened_for_a_while():
    announcements = crowded()
    assert announcements.due_at(101.0, N_PROXIES) <= 100.1 + QUIET_SECONDS + 0.01


def test_an_announcement_that_slows_down_a_crowd_is_not_the_end_of_it():
    n_proxies = 2000
    announcements = crowded(now := 100.1, n_arriving=n_proxies)
    announcements.due_at(now, n_proxies)
    announcements.finish(now, n_proxies, n_proxies)
    assert announcements.due_at(now + QUIET_SECONDS, n_proxies) > now + QUIET_SECONDS


def test_few_proxies_get_their_first_configuration_at_once_and_many_together():
    few, many = Announcements(), Announcements()
    for announcements in (few, many):
        announcements.begin()
        for number in range(CROWD_MIN - 1 if announcements is few else 1000):
            announcements.join(key(number), 100.0)
    assert few.gathering_seconds() == 0
    assert 0 < many.gathering_seconds() <= GATHERING_SECONDS_MAX
    many.hurry()
    assert many.gathering_seconds() == 0  # people wait for nobody


def test_proxies_that_are_never_synced_are_no_crowd():
    announcements = crowded()
    assert announcements.is_crowded(100.2, N_PROXIES)
    assert not announcements.is_crowded(100.2 + ARRIVAL_SECONDS_MAX, N_PROXIES)
