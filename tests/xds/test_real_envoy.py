"""A real Envoy, over the real server with TLS, in both forms of xDS."""

import asyncio

import pytest

from koguma.xds.limits import XdsLimits
from tests.ports import free_port
from tests.xds.fake_gate import FakeGate, serving
from tests.xds.real_envoy import (
    backend,
    bad_cluster,
    broken_cluster,
    call,
    cluster,
    endpoints,
    envoy,
    listener,
    routes,
    whole,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("api_type", ["DELTA_GRPC", "GRPC"]),
]
TIMEOUTS = "/stats?filter=init_fetch_timeout$"
TAKEN = ("cluster_manager.cds.update_success", "listener_manager.lds.update_success")


async def test_an_envoy_starts_follows_changes_and_resumes(tmp_path, api_type):
    port = free_port()
    async with backend("one") as one, backend("two") as two:
        clusters = [cluster("a"), cluster("b"), endpoints("a", one), endpoints("b", two)]
        first = whole([*clusters, listener("l", port, "r"), routes("r", to="a")])
        second = whole([*clusters, listener("l", port, "r"), routes("r", to="b")])
        gate = FakeGate(first)
        async with serving(gate) as (server, ads_port), envoy(tmp_path, ads_port, api_type) as proxy:
            await proxy.until_live()
            connection = await gate.connection()
            assert connection.request.version == "1.40.0"
            await connection.until("synced", acked=1)
            assert await call(port, until="one") == "one"

            connection.offer(2, second)
            await connection.until("synced", acked=2)
            assert await call(port, until="two") == "two"

            # Another control plane takes over, and has nothing new to say.
            before = await proxy.counts(*TAKEN)
            await server.stop(1)
            gate.snapshot = second
            async with serving(gate, port=ads_port):
                connection = await gate.connection(1)
                await connection.until("synced", acked=1)
                assert await proxy.counts(*TAKEN) == before
                assert await call(port, until="two") == "two"
                connection.offer(2, first)
                await connection.until("synced", acked=2)
                assert await call(port, until="one") == "one"


async def test_a_bad_cluster_is_refused_and_the_rest_applies(tmp_path, api_type):
    port = free_port()
    async with backend("one") as one:
        good = [cluster("a"), endpoints("a", one), listener("l", port, "r"), routes("r", to="a")]
        gate = FakeGate(whole(good))
        async with serving(gate) as (_, ads_port), envoy(tmp_path, ads_port, api_type) as proxy:
            await proxy.until_live()
            connection = await gate.connection()
            await connection.until("synced", acked=1)

            more = [*good[1:], cluster("a", connect_timeout="2s"), cluster("b"), endpoints("b", one)]
            connection.offer(2, whole([*more, bad_cluster("bad")]))
            status = await connection.until("nack")
            assert [(each.type, each.names) for each in status.rejections] == [("cluster", ("bad",))]
            assert "bad" in status.rejections[0].text

            connection.offer(3, whole([*more, routes("r2", to="b"), listener("m", free_port(), "r2")]))
            await connection.until("synced", acked=3)
            assert await proxy.clusters() == {"a", "b"}
            assert await call(port, until="one") == "one"
            # A changed cluster whose endpoints were not sent again would have kept all waiting for 15 s.
            waited = dict(line.split(": ") for line in (await proxy.ask(TIMEOUTS)).splitlines())
            assert waited
            assert set(waited.values()) == {"0"}


async def test_those_who_came_with_an_unnamed_culprit_apply(tmp_path, api_type):
    async with backend("one") as one:
        good = [cluster("a"), cluster("b"), endpoints("a", one), endpoints("b", one)]
        gate = FakeGate(whole([*good, broken_cluster("bad")]))
        async with serving(gate) as (_, ads_port), envoy(tmp_path, ads_port, api_type) as proxy:
            connection = await gate.connection()
            await connection.until_rejected("cluster", "bad")
            await proxy.until_live()
            assert await proxy.clusters() == {"a", "b"}


async def test_a_listener_that_was_refused_for_its_address_comes_when_the_other_one_goes(tmp_path, api_type):
    port = free_port()
    async with backend("one") as one:
        rest = [cluster("a"), endpoints("a", one), routes("r", to="a")]
        gate = FakeGate(whole([*rest, listener("l", port, "r")]))
        async with serving(gate) as (_, ads_port), envoy(tmp_path, ads_port, api_type) as proxy:
            await proxy.until_live()
            connection = await gate.connection()
            await connection.until("synced", acked=1)
            connection.offer(2, whole([*rest, listener("l", port, "r"), listener("m", port, "r")]))
            await connection.until_rejected("listener", "m")
            connection.offer(3, whole([*rest, listener("m", port, "r")]))
            status = await connection.until("synced", acked=3)
            assert list(status.acked_versions["listener"]) == ["m"]
            assert await call(port, until="one") == "one"


async def test_a_listener_takes_the_address_of_another_and_an_old_cluster_goes_last(tmp_path, api_type):
    port = free_port()
    async with backend("one") as one, backend("two") as two:
        gate = FakeGate(
            whole([cluster("a"), endpoints("a", one), listener("l", port, "r"), routes("r", to="a")])
        )
        limits = XdsLimits(drain_seconds=1.0)
        async with serving(gate, limits) as (_, ads_port), envoy(tmp_path, ads_port, api_type) as proxy:
            await proxy.until_live()
            connection = await gate.connection()
            await connection.until("synced", acked=1)
            connection.offer(
                2, whole([cluster("b"), endpoints("b", two), listener("m", port, "s"), routes("s", to="b")])
            )
            status = await connection.until("synced", acked=2)
            assert await proxy.clusters() == {"a", "b"}
            assert await call(port, until="two") == "two"
            for _ in range(3000):
                if "a" not in status.acked_versions["cluster"]:
                    break
                await asyncio.sleep(0.02)
            assert await proxy.clusters() == {"b"}
            assert {each.state for each in connection.statuses} == {"connecting", "synced", "behind"}
