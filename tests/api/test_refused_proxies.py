"""Proxies that were not let in: who, since when, how often, why, and what to do; never without bounds."""

from datetime import UTC, datetime, timedelta

import pytest

from koguma.fleet.refused_proxies import AGE_MAX, REFUSED_MAX, RefusedProxies
from koguma.model.errors import Conflict, Forbidden, NotFound, Unauthenticated, Unavailable

START = datetime(2026, 1, 1, tzinfo=UTC)
EXPIRED = Unauthenticated("authentication failed: token is expired")


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def refused(clock) -> RefusedProxies:
    return RefusedProxies(clock)


def test_who_knocks_is_shown_with_since_when_how_often_why_and_the_next_step(refused, clock):
    for _ in range(3):
        refused.refuse("xds", "shop", "web-1", "ipv4:10.0.0.7:51234", EXPIRED)
        clock.now += timedelta(seconds=4)
    assert list(refused.as_json()) == [
        {
            "name": "web-1",
            "mesh": "shop",
            "address": "10.0.0.7",
            "door": "xds",
            "reason": "authentication failed: token is expired",
            "hint": "`koguma token dataplane --mesh shop --name web-1 --service SERVICE --valid-for 720h`"
            " makes a token for it; write it to the file of --dataplane-token-file, which is read again"
            " without a restart",
            "since": "2026-01-01T00:00:00Z",
            "lastSeen": "2026-01-01T00:00:08Z",
            "count": 3,
        }
    ]
    (check,) = refused.checks()
    assert (check.name, check.status) == ("refused proxies", "error")
    assert "web-1 (mesh shop, from 10.0.0.7) was refused 3 times since 2026-01-01T00:00:00Z" in check.message
    assert [(name, value) for name, _, _, value in refused.gauges()] == [
        ("koguma_proxies_refused", 1),
        ("koguma_proxy_refusals", 3),
    ]


def test_a_proxy_goes_when_it_gets_in_or_is_not_heard_any_more(refused, clock):
    for name in ("web-1", "web-2"):
        refused.refuse("xds", "shop", name, "", EXPIRED)
    refused.admit("shop", "web-1")
    assert [each.name for each in refused] == ["web-2"]
    clock.now += AGE_MAX + timedelta(seconds=1)
    assert len(refused) == 0
    assert list(refused.checks()) == []


def test_the_log_says_it_once_for_each_reason(refused, logged):
    for error in (EXPIRED, EXPIRED, Forbidden("not this name"), Forbidden("not this name"), EXPIRED):
        refused.refuse("xds", "shop", "web-1", "ipv6:%5B::1%5D:9", error)
    assert [(line["proxy"], line["address"], line["reason"]) for line in logged] == [
        ("web-1", "::1", "authentication failed: token is expired"),
        ("web-1", "::1", "not this name"),
        ("web-1", "::1", "authentication failed: token is expired"),
    ]


def test_names_without_end_push_out_no_real_proxy_and_fill_neither_memory_nor_log(refused, logged):
    for _ in range(2):
        refused.refuse("xds", "shop", "web-1", "10.0.0.7", EXPIRED)
    for number in range(3 * REFUSED_MAX):
        refused.refuse("xds", "shop", f"{number}-" + "x" * 100_000, "10.6.6.6", EXPIRED)
    assert len(refused) == REFUSED_MAX + 1
    assert "web-1" in {each.name for each in refused}
    assert max(len(each.name) for each in refused) <= 253
    assert len(logged) <= REFUSED_MAX + 1
    assert len(list(refused.checks())) == 11


def test_what_a_stranger_sends_commands_neither_a_terminal_nor_a_shell(refused):
    refused.refuse("bootstrap", "shop", "a\x1b[2J; rm -rf ~", "nowhere", Forbidden("x\ny"))
    (each,) = refused
    assert (each.name, each.reason) == ("a?[2J; rm -rf ~", "x?y")
    assert "--name 'a?[2J; rm -rf ~' " in each.hint


@pytest.mark.parametrize(
    ("error", "reason", "hint"),
    [
        (NotFound(""), 'there is no Dataplane "web-1" in mesh "shop"', "apply the Dataplane, or "),
        (Conflict("a later run has its place"), "a later run has its place", "stop one of the two, or "),
    ],
)
def test_each_reason_has_its_next_step(refused, error, reason, hint):
    refused.refuse("xds", "shop", "web-1", "", error)
    (each,) = refused
    assert each.reason == reason
    assert each.hint.startswith(hint)


def test_a_control_plane_that_cannot_serve_now_has_refused_nobody(refused):
    refused.refuse("xds", "shop", "web-1", "", Unavailable("the store is away"))
    assert (len(refused), refused.n_attempts) == (0, 0)
