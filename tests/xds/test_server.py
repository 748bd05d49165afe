"""The xDS server with a plain client over TLS: who is admitted, who is not, how streams end."""

import asyncio
from contextlib import AsyncExitStack
from time import monotonic

import grpc
import pytest
import structlog

from koguma.envoy.snapshot import TYPE_URLS, Snapshot, XdsResource, bundle
from koguma.xds.contract import ProxyStatus
from koguma.xds.limits import XdsLimits
from koguma.xds.server import SERVICE, XdsServer
from tests.xds.fake_gate import TOKEN, Client, FakeGate, authority, client, schema, server_pair, serving
from tests.xds.script_player import snapshot

pytestmark = pytest.mark.slow

NODE = "default.web-1.ns"
ONE = snapshot("cluster:a@1 cluster:b@1")
NAMES = [str(number) for number in range(200)]
LARGE = Snapshot((bundle(XdsResource("endpoints", name, "1", b"x" * 100_000) for name in NAMES),))


def facts(status: ProxyStatus | None) -> tuple[str, int, int]:
    assert status is not None
    return status.state, status.offered, status.acked


async def test_a_proxy_is_admitted_gets_its_clusters_and_is_reported_synced():
    gate = FakeGate(ONE)
    async with serving(gate) as (_, port), client(port) as proxy:
        await proxy.send("cluster", node=NODE)
        assert await proxy.receive_and_ack() == "a b"
        connection = await gate.connection()
        assert (connection.request.mesh, connection.request.name) == ("default", "web-1.ns")
        assert (connection.request.token, connection.request.metadata) == (TOKEN, {"workdir": "somewhere"})
        assert connection.request.peer.startswith("ipv4:127.0.0.1")
        assert facts(await connection.until("synced")) == ("synced", 1, 1)
        assert connection.statuses[-1].acked_versions == {"cluster": {"a": "1", "b": "1"}}
        connection.offer(2, snapshot("cluster:a@2 cluster:b@1"))
        assert await proxy.receive_and_ack() == "a"
        assert facts(await connection.until("synced", acked=2)) == ("synced", 2, 2)
        assert not connection.closed.is_set()
        proxy.cancel()
        await asyncio.wait_for(connection.closed.wait(), 60)


async def test_a_token_may_have_bearer_before_it():
    gate = FakeGate(ONE)
    async with serving(gate) as (_, port), client(port, ("authorization", f"Bearer {TOKEN}")) as proxy:
        await proxy.send("cluster", node=NODE)
        assert await proxy.receive_and_ack() == "a b"


@pytest.mark.parametrize(
    ("node", "metadata", "code", "text"),
    [
        (NODE, [("x", "y")], "UNAUTHENTICATED", "authentication failed: token is not valid"),
        (NODE, [("authorization", "wrong")], "UNAUTHENTICATED", "authentication failed: token is not valid"),
        (
            NODE,
            [("authorization", TOKEN), ("authorization", TOKEN)],
            "UNAUTHENTICATED",
            (
                "could not extract credential from DiscoveryRequest: "
                'request must have exactly 1 "authorization" header, got 2'
            ),
        ),
        ("default.twice", [], "UNAUTHENTICATED", "authentication failed: the token has expired"),
        ("default.stranger", [], "PERMISSION_DENIED", "this token is for another proxy"),
        ("default.nobody", [], "NOT_FOUND", "there is no such Dataplane"),
        ("default.odd", [], "INVALID_ARGUMENT", "networking: cannot be empty"),
        ("", [], "INVALID_ARGUMENT", "request must have a valid Proxy ID: Envoy ID must not be nil"),
        (".web", [], "INVALID_ARGUMENT", "request must have a valid Proxy ID: mesh must not be empty"),
        (
            "web",
            [],
            "INVALID_ARGUMENT",
            "request must have a valid Proxy ID: the name should be provided after the dot",
        ),
        ("default.", [], "INVALID_ARGUMENT", "request must have a valid Proxy ID: name must not be empty"),
    ],
)
async def test_a_proxy_that_is_not_admitted_gets_the_reason(node, metadata, code, text):
    gate = FakeGate(ONE)
    async with serving(gate) as (_, port), client(port, *metadata) as proxy:
        await proxy.send("cluster", node=node)
        assert await proxy.end() == (code, text)
    assert gate.connections == []


async def test_a_stream_stays_with_one_proxy():
    gate = FakeGate(ONE)
    async with serving(gate) as (_, port), client(port) as proxy:
        await proxy.send("cluster", node=NODE)
        await proxy.receive_and_ack()
        await proxy.send("listener", node="default.other")
        assert await proxy.end() == (
            "INVALID_ARGUMENT",
            (
                f"stream was authenticated for ID {NODE}. Received request is for node with ID "
                "default.other. Node ID cannot be changed after stream is initialized"
            ),
        )
        assert gate.connections[0].closed.is_set()


async def test_bytes_that_are_no_request_end_the_stream():
    async with serving(FakeGate(ONE)) as (_, port), client(port) as first, client(port) as second:
        await first.write_bytes(b"\xff\xff\xff")
        assert (await first.end())[0] == "INVALID_ARGUMENT"
        await second.send("cluster", node=NODE)
        await second.receive_and_ack()
        await second.write_bytes(b"\xff\xff\xff")
        assert (await second.end())[0] == "INVALID_ARGUMENT"


async def test_a_version_that_cannot_be_read_ends_the_stream_when_there_is_something_to_compare_it_with():
    gate = FakeGate()
    async with serving(gate) as (_, port), client(port) as proxy:
        await proxy.send("cluster", node=NODE, initial_resource_versions={"a": "1"})
        url = TYPE_URLS["routes"].encode()
        await proxy.write_bytes(b"\x12%c%b\x1a\x01r\x2a\x03\x0a\x05r" % (len(url), url))
        connection = await gate.connection()
        connection.offer(1, snapshot("cluster:a@1 routes:r@1"))
        assert (await proxy.end())[0] == "INVALID_ARGUMENT"
        await asyncio.wait_for(connection.closed.wait(), 60)


async def test_a_proxy_that_reconnects_with_everything_is_synced_without_a_response():
    gate = FakeGate(ONE)
    async with serving(gate) as (_, port), client(port) as proxy:
        await proxy.send("cluster", node=NODE, initial_resource_versions={"a": "1", "b": "1"})
        connection = await gate.connection()
        assert facts(await connection.until("synced")) == ("synced", 1, 1)
        connection.offer(2, snapshot("cluster:a@2 cluster:b@1"))
        assert await proxy.receive_and_ack() == "a"


async def test_a_stream_without_a_request_ends():
    async with (
        serving(FakeGate(ONE), XdsLimits(first_request_seconds=0.05)) as (_, port),
        client(port) as proxy,
    ):
        assert await proxy.end() == ("INVALID_ARGUMENT", "no request within 0.05 seconds")


@pytest.mark.usefixtures("info_logs")
async def test_an_unknown_type_is_answered_by_nothing_and_logged_once():
    gate = FakeGate(ONE)
    with structlog.testing.capture_logs() as logs:
        async with serving(gate) as (_, port), client(port) as proxy:
            await proxy.send("type.googleapis.com/some.Type", node=NODE)
            await proxy.send("type.googleapis.com/some.Type")
            await proxy.send("cluster")
            assert await proxy.receive_and_ack() == "a b"
    assert [each["type_url"] for each in logs if "type_url" in each] == ["type.googleapis.com/some.Type"]


@pytest.mark.usefixtures("info_logs")
async def test_a_long_name_of_a_type_is_neither_kept_nor_logged_as_a_whole():
    gate = FakeGate(ONE)
    with structlog.testing.capture_logs() as logs:
        async with serving(gate) as (server, port), client(port) as proxy:
            await proxy.send("cluster", node=NODE)
            await proxy.receive_and_ack()
            await proxy.send("type.example/" + "x" * 1_000_000)
            await proxy.send("endpoints", resource_names_subscribe=["a"])
            await proxy.receive()
            assert max(map(len, server._unknown_types)) == 256
    assert max(len(str(line)) for line in logs) < 1_000


async def test_a_newer_stream_of_a_proxy_takes_the_place_of_the_older_one():
    gate = FakeGate(ONE)
    async with serving(gate) as (_, port), client(port) as older, client(port) as newer:
        await older.send("cluster", node=NODE)
        await older.receive_and_ack()
        await newer.send("cluster", node=NODE)
        assert await newer.receive_and_ack() == "a b"
        assert await older.end() == ("ABORTED", "a newer stream of the same proxy took its place")
        assert [connection.closed.is_set() for connection in gate.connections] == [True, False]
        gate.connections[1].offer(2, snapshot("cluster:a@2 cluster:b@1"))
        assert await newer.receive_and_ack() == "a"


async def test_a_stream_without_a_valid_token_replaces_no_other():
    gate = FakeGate(ONE)
    async with (
        serving(gate) as (_, port),
        client(port) as proxy,
        client(port, ("authorization", "wrong")) as stranger,
    ):
        await proxy.send("cluster", node=NODE)
        await proxy.receive_and_ack()
        await stranger.send("cluster", node=NODE)
        assert (await stranger.end())[0] == "UNAUTHENTICATED"
        gate.connections[0].offer(2, snapshot("cluster:a@2 cluster:b@1"))
        assert await proxy.receive_and_ack() == "a"


async def test_when_the_server_stops_not_all_streams_end_in_one_moment():
    gate = FakeGate(ONE)
    async with serving(gate, XdsLimits(ends_a_second=100)) as (server, port), AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(client(port)) for _ in range(60)]
        for number, proxy in enumerate(proxies):
            await proxy.send("cluster", node=f"default.web-{number}")
            await proxy.receive_and_ack()
        stopping = asyncio.create_task(server.stop(5))
        assert (await proxies[0].end())[0] == "UNAVAILABLE"
        ended = [connection.closed.is_set() for connection in gate.connections]
        assert not all(ended)
        await stopping
        for proxy in proxies[1:]:
            assert await proxy.end() == ("UNAVAILABLE", "the control plane is stopping")


async def test_when_the_server_stops_streams_end_in_order():
    gate = FakeGate(ONE)
    async with serving(gate) as (server, port), client(port) as proxy, client(port) as silent:
        await proxy.send("cluster", node=NODE)
        await proxy.receive_and_ack()
        await silent.open()
        async with asyncio.timeout(60):
            while not server._admission.n_waiting:  # noqa: ASYNC110 - it is connected before the server hears of it
                await asyncio.sleep(0.01)
        async with asyncio.timeout(60):
            await server.stop(600)
        assert await proxy.end() == ("UNAVAILABLE", "the control plane is stopping")
        assert (await silent.end())[0] == "UNAVAILABLE"
        assert all(connection.closed.is_set() for connection in gate.connections)


@pytest.mark.usefixtures("info_logs")
async def test_a_nack_is_logged_with_names_and_message_and_no_token_is():
    gate = FakeGate(ONE)
    with structlog.testing.capture_logs() as logs:
        async with serving(gate) as (_, port), client(port) as proxy:
            await proxy.send("cluster", node=NODE)
            response = await proxy.receive()
            words = {"message": "Error adding/updating cluster(s) b: boom"}
            await proxy.send("cluster", response_nonce=response.nonce, error_detail=words)
            assert await proxy.receive_and_ack() == "a"
            status = await (await gate.connection()).until("nack")
            assert [(each.type, each.names) for each in status.rejections] == [("cluster", ("b",))]
    events = {each["event"]: each for each in logs}
    assert set(events) == {"proxy connected", "proxy rejected configuration", "proxy disconnected"}
    refused = events["proxy rejected configuration"]
    assert (refused["names"], refused["text"]) == (("b",), "Error adding/updating cluster(s) b: boom")
    assert (refused["mesh"], refused["proxy"]) == ("default", "web-1.ns")
    assert TOKEN not in str(logs)


async def test_a_removal_that_is_due_later_comes_without_a_request():
    gate = FakeGate(snapshot("cluster:a@1 cluster:b@1 routes:r@1[cluster:a]"))
    async with serving(gate, XdsLimits(drain_seconds=0.05)) as (_, port), client(port) as proxy:
        await proxy.send("cluster", node=NODE)
        await proxy.receive_and_ack()
        await proxy.send("routes", resource_names_subscribe=["r"])
        await proxy.receive_and_ack()
        (await gate.connection()).offer(2, snapshot("cluster:b@1 routes:r@2[cluster:b]"))
        assert await proxy.receive_and_ack() == "r"
        assert await proxy.receive_and_ack() == "-a"


@pytest.mark.usefixtures("info_logs")
async def test_a_gate_that_fails_ends_the_stream():
    class FailingGate(FakeGate):
        async def connect(self, request):
            connection = await super().connect(request)

            def watch_offers(_on_offer):
                raise KeyError("a mistake of ours")

            connection.watch_offers = watch_offers
            return connection

    with structlog.testing.capture_logs() as logs:
        async with serving(FailingGate()) as (_, port), client(port) as proxy:
            await proxy.send("cluster", node=NODE)
            code, text = await proxy.end()
    assert (code, text) == ("INTERNAL", "internal error; the log of the control plane says more")
    assert "stream failed" in [each["event"] for each in logs]


async def test_a_message_over_the_limit_ends_the_stream():
    async with serving(FakeGate(ONE), XdsLimits(message_bytes_max=1_000)) as (_, port), client(port) as proxy:
        await proxy.send("endpoints", node=NODE, resource_names_subscribe=["x" * 2_000])
        assert (await proxy.end())[0] == "RESOURCE_EXHAUSTED"


async def test_proxies_that_do_not_read_keep_nobody_waiting():
    names = [str(number) for number in range(200)]
    gate = FakeGate(
        Snapshot((bundle(XdsResource("endpoints", name, "1", b"x" * 100_000) for name in names),))
    )
    limits = XdsLimits(write_slots=1, write_slots_for_new=1, write_seconds_max=0.05)
    async with serving(gate, limits) as (_, port), client(port) as deaf, client(port) as quick:
        await deaf.send("endpoints", node="default.deaf", resource_names_subscribe=NAMES)
        await gate.connection()
        await quick.send("endpoints", node="default.quick", resource_names_subscribe=NAMES[:1])
        assert await quick.receive_and_ack() == "0"
        deaf.cancel()


@pytest.mark.parametrize("how", ["has everything", "refuses", "leaves"])
async def test_a_new_proxy_waits_for_the_write_slot_of_the_one_before_it(how):
    gate, limits = FakeGate(ONE), XdsLimits(write_slots_for_new=1, ack_seconds_max=60)
    async with serving(gate, limits) as (_, port), client(port) as first, client(port) as second:
        await first.send("cluster", node="default.first")
        nonce = (await first.receive()).nonce
        await second.send("cluster", node="default.second")
        connection = await gate.connection(1)
        await asyncio.sleep(0.1)
        assert {status.offered for status in connection.statuses} == {0}
        if how == "leaves":
            first.cancel()
        else:
            error = {"error_detail": {"message": "cluster a is bad"}} if how == "refuses" else {}
            await first.send("cluster", response_nonce=nonce, **error)
        assert await second.receive_and_ack() == "a b"
        assert facts(await connection.until("synced")) == ("synced", 1, 1)


async def test_a_new_proxy_that_does_not_answer_keeps_nobody_waiting():
    gate, limits = FakeGate(ONE), XdsLimits(write_slots_for_new=1, ack_seconds_max=0.05)
    async with serving(gate, limits) as (_, port), client(port) as first, client(port) as second:
        await first.send("cluster", node="default.first")
        nonce = (await first.receive()).nonce
        await second.send("cluster", node="default.second")
        assert await second.receive_and_ack() == "a b"
        await first.send("cluster", response_nonce=nonce)
        assert facts(await (await gate.connection()).until("synced")) == ("synced", 1, 1)


async def test_a_proxy_that_does_not_read_gives_its_place_to_a_newer_stream():
    names = [str(number) for number in range(200)]
    gate = FakeGate(
        Snapshot((bundle(XdsResource("endpoints", name, "1", b"x" * 100_000) for name in names),))
    )
    limits = XdsLimits(last_write_seconds=0.1)
    async with serving(gate, limits) as (_, port), client(port) as deaf, client(port) as newer:
        await deaf.send("endpoints", node=NODE, resource_names_subscribe=NAMES)
        await gate.connection()
        await newer.send("endpoints", node=NODE, resource_names_subscribe=NAMES[:1])
        assert await newer.receive_and_ack() == "0"
        await asyncio.wait_for(gate.connections[0].closed.wait(), 60)
        assert not gate.connections[1].closed.is_set()


async def test_a_proxy_that_does_not_read_and_says_something_wrong_is_cut_off():
    names = [str(number) for number in range(200)]
    gate = FakeGate(
        Snapshot((bundle(XdsResource("endpoints", name, "1", b"x" * 100_000) for name in names),))
    )
    async with serving(gate, XdsLimits(last_write_seconds=0.1)) as (_, port), client(port) as deaf:
        await deaf.send("endpoints", node=NODE, resource_names_subscribe=NAMES)
        connection = await gate.connection()
        await asyncio.sleep(0.1)  # it is being written to by now
        await deaf.send("endpoints", node="default.other")
        await asyncio.wait_for(connection.closed.wait(), 60)


async def test_a_port_that_is_taken_is_an_error():
    async with serving(FakeGate()) as (_, port):
        other = XdsServer(FakeGate(), schema(), monotonic)
        pair = server_pair()
        with pytest.raises(OSError, match="cannot listen on"):
            await other.listen("127.0.0.1", port, pair.certificate, pair.key)


async def test_a_unix_socket_needs_no_certificate(tmp_path):
    server = XdsServer(FakeGate(ONE), schema(), monotonic)
    await server.start()
    await server.listen(f"unix:{tmp_path}/ads.sock", 0)
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/ads.sock") as channel:
        await asyncio.wait_for(channel.channel_ready(), 60)
    await server.stop(0)


class TickingGate(FakeGate):
    """A gate that notes in which turn of the event loop each proxy connected."""

    def __init__(self) -> None:
        super().__init__(ONE)
        self.turns: list[int] = []
        self._turn = 0

    async def tick(self) -> None:
        while True:
            self._turn += 1
            await asyncio.sleep(0)

    async def connect(self, request):
        self.turns.append(self._turn)
        return await super().connect(request)


async def test_between_two_new_streams_everybody_else_has_a_turn():
    gate = TickingGate()
    n_streams = 60
    async with serving(gate) as (_, port), AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(client(port)) for _ in range(n_streams)]
        ticking = asyncio.create_task(gate.tick())
        for proxy in proxies:
            await proxy.open()
        await asyncio.gather(
            *(proxy.send("cluster", node=f"default.web-{number}") for number, proxy in enumerate(proxies))
        )
        await gate.connection(n_streams - 1)
        ticking.cancel()
    assert len(set(gate.turns)) == n_streams


async def test_a_connection_has_few_streams_at_a_time():
    gate = FakeGate(ONE)
    credentials = grpc.ssl_channel_credentials(authority().certificate.encode())
    async with (
        serving(gate, XdsLimits(streams_per_connection_max=3)) as (_, port),
        grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel,
    ):
        call = channel.stream_stream(f"/{SERVICE}/DeltaAggregatedResources")
        proxies = []
        for number in range(3):  # the server's limit is known to the client after the first answer
            proxies.append(Client(call(metadata=(("authorization", TOKEN),))))
            await proxies[number].send("cluster", node=f"default.web-{number}")
            assert await proxies[number].receive_and_ack() == "a b"
        fourth = Client(call(metadata=(("authorization", TOKEN),)))
        late = asyncio.create_task(fourth.send("cluster", node="default.web-3"))
        await asyncio.wait((late,), timeout=0.2)
        assert len(gate.connections) == 3
        proxies[0].cancel()
        await late
        assert await fourth.receive_and_ack() == "a b"
