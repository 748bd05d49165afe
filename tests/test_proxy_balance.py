"""Proxy balance: who has too many sends some away, never all at once, and never for nothing."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from koguma.fleet.proxy_balance import ProxyBalance, surplus
from koguma.fleet.proxy_state import InstanceState
from tests.xds.fake_gate import FakeGate, client, serving
from tests.xds.script_player import snapshot

AGE = 1800.0


def instances(here: int, *others: int | None) -> list[InstanceState]:
    """This control plane and others, by the numbers of their proxies; None: one that is gone."""
    found = [InstanceState(id="here", is_here=True, n_proxies=here, address="https://10.0.0.1:5678")]
    for number, n_proxies in enumerate(others):
        gone = n_proxies is None
        address = f"https://10.0.1.{number}:5678"
        found.append(InstanceState(id=str(number), n_proxies=n_proxies or 0, is_gone=gone, address=address))
    return found


@pytest.mark.parametrize(
    ("here", "others", "expected"),
    [
        (5000, (), 0),
        (5000, (None,), 0),
        (5000, (0,), 2500),
        (5000, (5000, 0), 1666),
        (2, (0,), 1),
        (1, (0,), 0),
        (3, (2,), 0),
        (110, (100,), 0),
        (100, (110,), 0),
        (0, (5000,), 0),
        (120, (90, 90), 20),
    ],
)
def test_only_clearly_more_than_others_is_too_many(here, others, expected):
    assert surplus(instances(here, *others)) == expected


def test_one_that_serves_no_proxies_is_no_place_to_go():
    people_only = InstanceState(id="other", n_proxies=0)
    assert surplus([*instances(5000), people_only]) == 0


@pytest.mark.parametrize(("here", "leaving"), [(5000, 100), (100, 2), (10, 1), (4, 1)])
def test_a_few_leave_at_a_time(here, leaving):
    asked = []
    balance = ProxyBalance(lambda: instances(here, 0), lambda *ask: asked.append(ask) or 0, AGE)
    balance.tick()
    assert asked == [(leaving, AGE)]


async def test_streams_of_age_are_ended_and_the_others_stay():
    gate = FakeGate(snapshot("cluster:a@1"))
    async with serving(gate) as (server, port), AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(client(port)) for _ in range(10)]
        for number, proxy in enumerate(proxies):
            await proxy.send("cluster", node=f"default.web-{number}")
            await proxy.receive_and_ack()

        def n_open():
            return sum(not connection.closed.is_set() for connection in gate.connections)

        assert server.end_old(10, AGE) == 0, "none is old enough"
        balance = ProxyBalance(lambda: instances(n_open(), 10 - n_open()), server.end_old, 0.0)
        for _ in range(1200):
            balance.tick()
            await asyncio.sleep(0.05)
            if n_open() == 5:
                break
        for _ in range(5):
            balance.tick()
            await asyncio.sleep(0.05)
        assert n_open() == 5
        ended = [proxy for proxy, each in zip(proxies, gate.connections, strict=True) if each.closed.is_set()]
        code, text = await ended[0].end()
        assert (code, text) == ("UNAVAILABLE", "another control plane has fewer proxies; connect to that one")


async def test_not_all_come_of_age_in_one_moment():
    gate = FakeGate(snapshot("cluster:a@1"))
    async with serving(gate) as (server, port), AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(client(port)) for _ in range(40)]
        for number, proxy in enumerate(proxies):
            await proxy.send("cluster", node=f"default.web-{number}")
            await proxy.receive_and_ack()
        now = server._clock()
        server._clock = lambda: now + AGE
        assert 0 < server.end_old(40, AGE) < 40
