"""When connected proxies get what has changed: at once, but endpoints that come in a crowd wait."""

import msgspec
import pytest

from koguma.access.user import SYSTEM
from koguma.fleet.announcements import (
    ARRIVAL_SECONDS_MAX,
    CROWD_MIN,
    CROWD_SECONDS_MAX,
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


def note(announcements: Announcements, after, before) -> None:
    announcements.note([change(after)], lambda _revision: before)


def test_a_change_that_comes_alone_goes_out_at_once():
    announcements = announced()
    note(announcements, READY, STARTING)
    assert announcements.due_at(200.0, N_PROXIES) <= 200.0


def test_the_next_change_waits_until_the_last_had_time_to_reach_all():
    announcements = announced()
    announcements.hurry()
    assert announcements.due_at(100.0, N_PROXIES) == 100.0 + N_PROXIES * PAUSE_SECONDS_PER_PROXY


def test_endpoints_wait_while_a_crowd_connects_but_not_for_ever():
    announcements = crowded(now := 100.1)
    note(announcements, READY, STARTING)
    assert announcements.due_at(now, N_PROXIES) > now
    for second in range(1, int(CROWD_SECONDS_MAX)):
        announcements.join(key(0), now + second)
        assert announcements.due_at(now + second, N_PROXIES) > now + second
    end = 100.0 + CROWD_SECONDS_MAX
    announcements.join(key(0), end)
    assert announcements.due_at(end, N_PROXIES) <= end


def test_endpoints_go_out_when_their_number_has_grown_by_half():
    announcements = crowded(n_arriving=N_PROXIES)
    n_settled = 0
    while announcements.due_at(100.2, N_PROXIES) > 100.2:
        assert announcements.settle(key(n_settled), 100.2)
        n_settled += 1
    assert n_settled == N_PROXIES // 2


@pytest.mark.parametrize("before", [READY, None])
def test_an_endpoint_that_goes_waits_for_no_crowd(before):
    announcements = crowded()
    note(announcements, STARTING, before)
    assert announcements.due_at(100.1, N_PROXIES) <= 100.1
    announcements.begin()
    assert announcements.due_at(100.1, N_PROXIES) > 100.1


def test_endpoints_go_out_when_the_crowd_ends():
    announcements = crowded()
    for number in range(CROWD_MIN):
        assert announcements.is_crowded(100.5, N_PROXIES) == (number == 0)
        announcements.settle(key(number), 100.5)
    assert announcements.due_at(100.5, N_PROXIES) <= 100.5


def test_a_proxy_that_is_synced_again_or_leaves_is_no_endpoint_more():
    announcements = crowded()
    announcements.leave(key(1))
    assert [announcements.settle(key(number), 100.5) for number in (0, 0, 1)] == [True, False, False]


def test_endpoints_go_out_when_nothing_has_happened_for_a_while():
    announcements = crowded()
    assert announcements.due_at(101.0, N_PROXIES) <= 100.1 + QUIET_SECONDS + 0.01


def test_proxies_that_are_never_synced_are_no_crowd():
    announcements = crowded()
    assert announcements.is_crowded(100.2, N_PROXIES)
    assert not announcements.is_crowded(100.2 + ARRIVAL_SECONDS_MAX, N_PROXIES)
