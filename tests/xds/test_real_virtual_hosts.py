"""A real Envoy whose virtual hosts come apart from their routes (VHDS), and one that cannot have them so."""

import asyncio
from collections.abc import Iterable

import aiohttp
import pytest

from koguma.envoy import virtual_hosts
from koguma.envoy.snapshot import Snapshot, XdsResource
from koguma.xds.limits import XdsLimits
from tests.ports import free_port
from tests.xds.fake_gate import FakeGate, serving
from tests.xds.real_envoy import backend, cluster, encoder, endpoints, envoy, listener, whole

pytestmark = pytest.mark.slow


def discovering(name: str) -> XdsResource:
    return virtual_hosts.discovering(encoder().resource("routes", name, {"name": name}))


def host(routes: str, domain: str, answer: str = "", to: str = "", name: str = "") -> XdsResource:
    """A virtual host that answers itself, or calls a cluster."""
    action = (
        {"route": {"cluster": to}}
        if to
        else {"direct_response": {"status": 200, "body": {"inline_string": answer}}}
    )
    full_name = f"{routes}/{name or domain}"
    data = {"name": full_name, "domains": [domain], "routes": [{"match": {"prefix": "/"}, **action}]}
    return encoder().resource("virtual_host", full_name, data, [("cluster", to)] if to else [])


async def answers(port: int, hosts: Iterable[str], expected: str) -> None:
    """Call with these Host headers until the answers are as expected, one letter for each."""
    found = ""
    async with aiohttp.ClientSession() as session:
        for _ in range(3000):
            found = "".join([await answer(session, port, each) for each in hosts])
            if found == expected:
                return
            await asyncio.sleep(0.02)
    assert found == expected


async def answer(session: aiohttp.ClientSession, port: int, host_header: str) -> str:
    try:
        async with session.get(f"http://127.0.0.1:{port}/", headers={"Host": host_header}) as response:
            return await response.text() if response.status == 200 else "-"
    except aiohttp.ClientError:
        return "!"


async def test_virtual_hosts_come_change_and_go_one_by_one(tmp_path):
    port, other_port = free_port(), free_port()
    async with backend("b") as one:
        rest = [cluster("b"), endpoints("b", one), listener("l", port, "r"), discovering("r")]
        first = [host("r", "x.com", "x"), host("r", "*.y.com", "y"), host("r", "*", "*")]
        gate = FakeGate(whole([*rest, *first]))
        limits = XdsLimits(drain_seconds=1.0)
        async with (
            serving(gate, limits) as (server, ads_port),
            envoy(tmp_path, ads_port, "DELTA_GRPC") as proxy,
        ):
            await proxy.until_live()
            connection = await gate.connection()
            await connection.until("synced", acked=1)
            await answers(port, ("x.com", "a.y.com", "z"), "xy*")

            # One changes, one is new and needs a new cluster's routes, one goes; the others are not sent.
            second = [host("r", "x.com", "X"), host("r", "v.com", to="b"), host("r", "*", "*")]
            connection.offer(2, whole([*rest, *second]))
            status = await connection.until("synced", acked=2)
            assert sorted(status.acked_versions["virtual_host"]) == ["r/*", "r/v.com", "r/x.com"]
            await answers(port, ("x.com", "a.y.com", "v.com", "z"), "X*b*")

            # Another listener has the same host names in other routes, and then goes with them.
            more = [listener("m", other_port, "s"), discovering("s"), host("s", "x.com", "s")]
            connection.offer(3, whole([*rest, *second, *more]))
            await connection.until("synced", acked=3)
            await answers(other_port, ("x.com", "z"), "s-")
            connection.offer(4, whole([*rest, *second]))
            await connection.until("synced", acked=4)
            await answers(other_port, ("x.com",), "!")
            connection.offer(5, whole([*rest, *second, *more]))
            await connection.until("synced", acked=5)
            await answers(other_port, ("x.com", "z"), "s-")
            await answers(port, ("x.com", "v.com", "z"), "Xb*")

            # One that is refused hurts no other: Envoy names the domain, and not the virtual host.
            bad = host("r", "x.com", "bad", name="twice")
            third = [host("r", "x.com", "3"), *second[1:], host("r", "n.com", "n"), bad]
            connection.offer(6, whole([*rest, *third, *more]))
            await connection.until_rejected("virtual_host", "r/twice")
            await answers(port, ("x.com", "n.com", "v.com", "z"), "3nb*")

            # Another control plane takes over and knows what has changed meanwhile.
            await server.stop(1)
            gate.snapshot = whole([*rest, *third[1:-1], *more])
            async with serving(gate, port=ads_port):
                connection = await gate.connection(1)
                await connection.until("synced", acked=1)
                await answers(port, ("x.com", "n.com", "v.com", "z"), "*nb*")
        log = (tmp_path / "envoy.log").read_text()
        assert "timed out" not in log


async def test_the_older_variant_gets_them_inside_their_routes(tmp_path):
    port = free_port()
    rest = [listener("l", port, "r"), discovering("r")]

    def inlined(*hosts: XdsResource) -> Snapshot:
        return virtual_hosts.inlined(whole([*rest, *hosts]))

    gate = FakeGate(inlined(host("r", "x.com", "x"), host("r", "*", "*")))
    async with serving(gate) as (_, ads_port), envoy(tmp_path, ads_port, "GRPC") as proxy:
        await proxy.until_live()
        connection = await gate.connection()
        assert not connection.request.is_delta
        await connection.until("synced", acked=1)
        await answers(port, ("x.com", "z"), "x*")
        connection.offer(2, inlined(host("r", "*", "+")))
        await connection.until("synced", acked=2)
        await answers(port, ("x.com", "z"), "++")
