"""The server around the protocol: who comes in, who does not, how it ends. Over TLS, with a plain client."""

import asyncio
from contextlib import AsyncExitStack
from time import monotonic

import grpc
import pytest
import structlog

from koguma.envoy.snapshot import TYPE_URLS, Snapshot, XdsResource, bundle
from koguma.xds.contract import ProxyStatus
from koguma.xds.server import SERVICE, Limits, XdsServer
from tests.xds.fake_gate import TOKEN, Client, House, authority, client, schema, server_pair, serving
from tests.xds.script_player import snapshot

NODE = "default.web-1.ns"
ONE = snapshot("cluster:a@1 cluster:b@1")


def facts(status: ProxyStatus | None) -> tuple[str, int, int]:
    assert status is not None
    return status.state, status.offered, status.acked


async def test_a_proxy_comes_in_gets_its_clusters_and_is_reported_synced():
    house = House(ONE)
    async with serving(house) as (_, port), client(port) as proxy:
        await proxy.say("cluster", node=NODE)
        assert await proxy.heard() == "a b"
        room = await house.room()
        assert (room.hello.mesh, room.hello.name) == ("default", "web-1.ns")
        assert (room.hello.token, room.hello.metadata) == (TOKEN, {"workdir": "somewhere"})
        assert room.hello.peer.startswith("ipv4:127.0.0.1")
        assert facts(await room.until("synced")) == ("synced", 1, 1)
        assert room.statuses[-1].acked_versions == {"cluster": {"a": "1", "b": "1"}}
        room.offer(2, snapshot("cluster:a@2 cluster:b@1"))
        assert await proxy.heard() == "a"
        assert facts(await room.until("synced", acked=2)) == ("synced", 2, 2)
        assert not room.closed.is_set()
        proxy.leave()
        await asyncio.wait_for(room.closed.wait(), 5)


async def test_a_token_may_have_a_word_before_it():
    house = House(ONE)
    async with serving(house) as (_, port), client(port, ("authorization", f"Bearer {TOKEN}")) as proxy:
        await proxy.say("cluster", node=NODE)
        assert await proxy.heard() == "a b"


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
async def test_who_may_not_come_in_is_told_why(node, metadata, code, text):
    house = House(ONE)
    async with serving(house) as (_, port), client(port, *metadata) as proxy:
        await proxy.say("cluster", node=node)
        assert await proxy.end() == (code, text)
    assert house.rooms == []


async def test_a_stream_stays_with_one_proxy():
    house = House(ONE)
    async with serving(house) as (_, port), client(port) as proxy:
        await proxy.say("cluster", node=NODE)
        await proxy.heard()
        await proxy.say("listener", node="default.other")
        assert await proxy.end() == (
            "INVALID_ARGUMENT",
            (
                f"stream was authenticated for ID {NODE}. Received request is for node with ID "
                "default.other. Node ID cannot be changed after stream is initialized"
            ),
        )
        assert house.rooms[0].closed.is_set()


async def test_bytes_that_are_no_request_end_the_stream():
    async with serving(House(ONE)) as (_, port), client(port) as first, client(port) as second:
        await first.write_bytes(b"\xff\xff\xff")
        assert (await first.end())[0] == "INVALID_ARGUMENT"
        await second.say("cluster", node=NODE)
        await second.heard()
        await second.write_bytes(b"\xff\xff\xff")
        assert (await second.end())[0] == "INVALID_ARGUMENT"


async def test_a_version_that_cannot_be_read_ends_the_stream_when_there_is_something_to_compare_it_with():
    house = House()
    async with serving(house) as (_, port), client(port) as proxy:
        await proxy.say("cluster", node=NODE, initial_resource_versions={"a": "1"})
        url = TYPE_URLS["routes"].encode()
        await proxy.write_bytes(b"\x12%c%b\x1a\x01r\x2a\x03\x0a\x05r" % (len(url), url))
        room = await house.room()
        room.offer(1, snapshot("cluster:a@1 routes:r@1"))
        assert (await proxy.end())[0] == "INVALID_ARGUMENT"
        await asyncio.wait_for(room.closed.wait(), 5)


async def test_a_proxy_that_comes_back_with_all_is_synced_without_a_word():
    house = House(ONE)
    async with serving(house) as (_, port), client(port) as proxy:
        await proxy.say("cluster", node=NODE, initial_resource_versions={"a": "1", "b": "1"})
        room = await house.room()
        assert facts(await room.until("synced")) == ("synced", 1, 1)
        room.offer(2, snapshot("cluster:a@2 cluster:b@1"))
        assert await proxy.heard() == "a"


async def test_a_stream_that_says_nothing_is_not_waited_for():
    async with serving(House(ONE), Limits(hello_seconds=0.05)) as (_, port), client(port) as proxy:
        assert await proxy.end() == ("INVALID_ARGUMENT", "no request within 0.05 seconds")


@pytest.mark.usefixtures("info_logs")
async def test_an_unknown_type_is_answered_by_nothing_and_logged_once():
    house = House(ONE)
    with structlog.testing.capture_logs() as logs:
        async with serving(house) as (_, port), client(port) as proxy:
            await proxy.say("type.googleapis.com/some.Type", node=NODE)
            await proxy.say("type.googleapis.com/some.Type")
            await proxy.say("cluster")
            assert await proxy.heard() == "a b"
    assert [each["type_url"] for each in logs if "type_url" in each] == ["type.googleapis.com/some.Type"]


@pytest.mark.usefixtures("info_logs")
async def test_a_long_name_of_a_type_is_neither_kept_nor_logged_as_a_whole():
    house = House(ONE)
    with structlog.testing.capture_logs() as logs:
        async with serving(house) as (server, port), client(port) as proxy:
            await proxy.say("cluster", node=NODE)
            await proxy.heard()
            await proxy.say("type.example/" + "x" * 1_000_000)
            await proxy.say("endpoints", resource_names_subscribe=["a"])
            await proxy.hear()
            assert max(map(len, server._unknown_types)) == 256
    assert max(len(str(line)) for line in logs) < 1_000


async def test_a_newer_stream_of_a_proxy_takes_the_place_of_the_older_one():
    house = House(ONE)
    async with serving(house) as (_, port), client(port) as older, client(port) as newer:
        await older.say("cluster", node=NODE)
        await older.heard()
        await newer.say("cluster", node=NODE)
        assert await newer.heard() == "a b"
        assert await older.end() == ("ABORTED", "a newer stream of the same proxy took its place")
        assert [room.closed.is_set() for room in house.rooms] == [True, False]
        house.rooms[1].offer(2, snapshot("cluster:a@2 cluster:b@1"))
        assert await newer.heard() == "a"


async def test_a_stranger_takes_nobodys_place():
    house = House(ONE)
    async with (
        serving(house) as (_, port),
        client(port) as proxy,
        client(port, ("authorization", "wrong")) as stranger,
    ):
        await proxy.say("cluster", node=NODE)
        await proxy.heard()
        await stranger.say("cluster", node=NODE)
        assert (await stranger.end())[0] == "UNAUTHENTICATED"
        house.rooms[0].offer(2, snapshot("cluster:a@2 cluster:b@1"))
        assert await proxy.heard() == "a"


async def test_when_the_server_stops_streams_end_in_order():
    house = House(ONE)
    async with serving(house) as (server, port), client(port) as proxy, client(port) as silent:
        await proxy.say("cluster", node=NODE)
        await proxy.heard()
        await silent.open()
        async with asyncio.timeout(10):
            while not server._arriving:  # noqa: ASYNC110 - it is connected before the server hears of it
                await asyncio.sleep(0.01)
        began = monotonic()
        await server.stop(5)
        assert monotonic() - began < 2
        assert await proxy.end() == ("UNAVAILABLE", "the control plane is stopping")
        assert (await silent.end())[0] == "UNAVAILABLE"
        assert all(room.closed.is_set() for room in house.rooms)


@pytest.mark.usefixtures("info_logs")
async def test_a_refusal_is_logged_with_names_and_words_and_no_token_is():
    house = House(ONE)
    with structlog.testing.capture_logs() as logs:
        async with serving(house) as (_, port), client(port) as proxy:
            await proxy.say("cluster", node=NODE)
            response = await proxy.hear()
            words = {"message": "Error adding/updating cluster(s) b: boom"}
            await proxy.say("cluster", response_nonce=response.nonce, error_detail=words)
            assert await proxy.heard() == "a"
            status = await (await house.room()).until("nack")
            assert [(each.type, each.names) for each in status.rejections] == [("cluster", ("b",))]
    events = {each["event"]: each for each in logs}
    assert set(events) == {"proxy connected", "proxy refused configuration", "proxy disconnected"}
    refused = events["proxy refused configuration"]
    assert (refused["names"], refused["text"]) == (("b",), "Error adding/updating cluster(s) b: boom")
    assert (refused["mesh"], refused["proxy"]) == ("default", "web-1.ns")
    assert TOKEN not in str(logs)


async def test_what_is_due_later_comes_without_a_word_from_the_proxy():
    house = House(snapshot("cluster:a@1 cluster:b@1 routes:r@1[cluster:a]"))
    async with serving(house, Limits(drain_seconds=0.05)) as (_, port), client(port) as proxy:
        await proxy.say("cluster", node=NODE)
        await proxy.heard()
        await proxy.say("routes", resource_names_subscribe=["r"])
        await proxy.heard()
        (await house.room()).offer(2, snapshot("cluster:b@1 routes:r@2[cluster:b]"))
        assert await proxy.heard() == "r"
        assert await proxy.heard() == "-a"


@pytest.mark.usefixtures("info_logs")
async def test_a_house_that_gives_up_a_proxy_ends_its_stream():
    class Fickle(House):
        async def connect(self, hello):
            room = await super().connect(hello)

            def watch_offers(_on_offer):
                raise KeyError("a mistake of ours")

            room.watch_offers = watch_offers
            return room

    with structlog.testing.capture_logs() as logs:
        async with serving(Fickle()) as (_, port), client(port) as proxy:
            await proxy.say("cluster", node=NODE)
            code, text = await proxy.end()
    assert (code, text) == ("INTERNAL", "internal error; the log of the control plane says more")
    assert "stream failed" in [each["event"] for each in logs]


async def test_a_message_over_the_limit_ends_the_stream():
    async with serving(House(ONE), Limits(message_bytes_max=1_000)) as (_, port), client(port) as proxy:
        await proxy.say("endpoints", node=NODE, resource_names_subscribe=["x" * 2_000])
        assert (await proxy.end())[0] == "RESOURCE_EXHAUSTED"


async def test_proxies_that_do_not_read_keep_nobody_waiting():
    names = [str(number) for number in range(200)]
    house = House(Snapshot((bundle(XdsResource("endpoints", name, "1", b"x" * 100_000) for name in names),)))
    limits = Limits(places=1, places_for_new=1, patience_seconds=0.05)
    async with serving(house, limits) as (_, port), client(port) as deaf, client(port) as quick:
        await deaf.say("endpoints", node="default.deaf", resource_names_subscribe=names)
        await house.room()
        await quick.say("endpoints", node="default.quick", resource_names_subscribe=names[:1])
        assert await quick.heard() == "0"
        deaf.leave()


@pytest.mark.parametrize("how", ["has everything", "refuses", "leaves"])
async def test_a_new_proxy_is_not_begun_with_before_the_one_before_it(how):
    house, limits = House(ONE), Limits(places_for_new=1, answer_seconds=60)
    async with serving(house, limits) as (_, port), client(port) as first, client(port) as second:
        await first.say("cluster", node="default.first")
        nonce = (await first.hear()).nonce
        await second.say("cluster", node="default.second")
        room = await house.room(1)
        await asyncio.sleep(0.1)
        assert {status.offered for status in room.statuses} == {0}
        if how == "leaves":
            first.leave()
        else:
            error = {"error_detail": {"message": "cluster a is bad"}} if how == "refuses" else {}
            await first.say("cluster", response_nonce=nonce, **error)
        assert await second.heard() == "a b"
        assert facts(await room.until("synced")) == ("synced", 1, 1)


async def test_a_new_proxy_that_does_not_answer_keeps_nobody_waiting():
    house, limits = House(ONE), Limits(places_for_new=1, answer_seconds=0.05)
    async with serving(house, limits) as (_, port), client(port) as first, client(port) as second:
        await first.say("cluster", node="default.first")
        nonce = (await first.hear()).nonce
        await second.say("cluster", node="default.second")
        assert await second.heard() == "a b"
        await first.say("cluster", response_nonce=nonce)
        assert facts(await (await house.room()).until("synced")) == ("synced", 1, 1)


async def test_a_proxy_that_does_not_read_gives_its_place_to_a_newer_stream():
    names = [str(number) for number in range(200)]
    house = House(Snapshot((bundle(XdsResource("endpoints", name, "1", b"x" * 100_000) for name in names),)))
    limits = Limits(farewell_seconds=0.1)
    async with serving(house, limits) as (_, port), client(port) as deaf, client(port) as newer:
        await deaf.say("endpoints", node=NODE, resource_names_subscribe=names)
        await house.room()
        await newer.say("endpoints", node=NODE, resource_names_subscribe=names[:1])
        assert await newer.heard() == "0"
        await asyncio.wait_for(house.rooms[0].closed.wait(), 5)
        assert not house.rooms[1].closed.is_set()


async def test_a_proxy_that_does_not_read_and_says_something_wrong_is_cut_off():
    names = [str(number) for number in range(200)]
    house = House(Snapshot((bundle(XdsResource("endpoints", name, "1", b"x" * 100_000) for name in names),)))
    async with serving(house, Limits(farewell_seconds=0.1)) as (_, port), client(port) as deaf:
        await deaf.say("endpoints", node=NODE, resource_names_subscribe=names)
        room = await house.room()
        await asyncio.sleep(0.1)  # it is being written to by now
        await deaf.say("endpoints", node="default.other")
        await asyncio.wait_for(room.closed.wait(), 5)


async def test_a_port_that_is_taken_is_an_error():
    async with serving(House()) as (_, port):
        other = XdsServer(House(), schema(), monotonic)
        pair = server_pair()
        with pytest.raises(OSError, match="cannot listen on"):
            await other.listen("127.0.0.1", port, pair.certificate, pair.key)


async def test_a_unix_socket_needs_no_certificate(tmp_path):
    server = XdsServer(House(ONE), schema(), monotonic)
    await server.start()
    await server.listen(f"unix:{tmp_path}/ads.sock", 0)
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/ads.sock") as channel:
        await asyncio.wait_for(channel.channel_ready(), 5)
    await server.stop(0)


class TickingHouse(House):
    """A house that notes in which turn of the event loop each proxy came."""

    def __init__(self) -> None:
        super().__init__(ONE)
        self.turns: list[int] = []
        self._turn = 0

    async def tick(self) -> None:
        while True:
            self._turn += 1
            await asyncio.sleep(0)

    async def connect(self, hello):
        self.turns.append(self._turn)
        return await super().connect(hello)


async def test_between_two_new_streams_everybody_else_has_a_turn():
    house = TickingHouse()
    n_streams = 60
    async with serving(house) as (_, port), AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(client(port)) for _ in range(n_streams)]
        ticking = asyncio.create_task(house.tick())
        for proxy in proxies:
            await proxy.open()
        await asyncio.gather(
            *(proxy.say("cluster", node=f"default.web-{number}") for number, proxy in enumerate(proxies))
        )
        await house.room(n_streams - 1)
        ticking.cancel()
    assert len(set(house.turns)) == n_streams


async def test_a_connection_has_few_streams_at_a_time():
    house = House(ONE)
    credentials = grpc.ssl_channel_credentials(authority().certificate.encode())
    async with (
        serving(house, Limits(streams_of_one_max=3)) as (_, port),
        grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel,
    ):
        call = channel.stream_stream(f"/{SERVICE}/DeltaAggregatedResources")
        proxies = []
        for number in range(3):  # the server's limit is known to the client after the first answer
            proxies.append(Client(call(metadata=(("authorization", TOKEN),))))
            await proxies[number].say("cluster", node=f"default.web-{number}")
            assert await proxies[number].heard() == "a b"
        fourth = Client(call(metadata=(("authorization", TOKEN),)))
        late = asyncio.create_task(fourth.say("cluster", node="default.web-3"))
        await asyncio.wait((late,), timeout=0.2)
        assert len(house.rooms) == 3
        proxies[0].leave()
        await late
        assert await fourth.heard() == "a b"
