"""The agent's end of the admin channel, against a control plane that asks for what it likes."""

import asyncio
import contextlib
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from koguma.api.server import HttpServer, tls_context
from koguma.dp import admin_channel as agent_end
from koguma.dp.admin_channel import AdminChannelClient
from koguma.dp.control_plane import ControlPlaneClient
from koguma.envoy import admin_channel
from koguma.envoy.admin_channel import FrameType, PageRequest
from koguma.identity import files
from koguma.model.redacted import SHOWN, Redacted

pytestmark = pytest.mark.slow

TOKEN = "a-token-that-nobody-sees"
PROXY = {"mesh": "default", "name": "web-1", "proxyType": "dataplane", "instance": "1"}


class Envoy:
    """Envoy's admin socket: notes what it is asked, and answers with a page."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.page = b"a: 1\n"
        self.answering = asyncio.Event()
        self.answering.set()
        self.socket = Path(tempfile.mkdtemp(prefix="kg")) / "a.sock"

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.asked.append((request.method, request.path_qs))
        await self.answering.wait()
        return web.Response(body=self.page)


class Plane:
    """A control plane that accepts channels and hands them to the test."""

    def __init__(self) -> None:
        self.opened: asyncio.Queue[web.WebSocketResponse] = asyncio.Queue()
        self.requests: list[web.BaseRequest] = []
        self.refused = asyncio.Event()
        self.stopping = asyncio.Event()
        self.status = 101
        self.greeting = '{"spread_seconds": 0.1}'

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        if self.status != 101:
            self.refused.set()
            return web.Response(status=self.status)
        channel = web.WebSocketResponse(max_msg_size=admin_channel.MESSAGE_BYTES_MAX)
        await channel.prepare(request)
        await channel.send_str(self.greeting)
        self.opened.put_nowait(channel)
        await self.stopping.wait()
        return channel


@contextlib.asynccontextmanager
async def running(tmp_path):
    envoy, plane = Envoy(), Plane()
    made = files.server_credentials(tmp_path, (), datetime.now(UTC))
    admin, server = HttpServer(envoy.handle), HttpServer(plane.handle)
    for each in (admin, server):
        await each.start()
    await admin.listen_at(envoy.socket)
    port = await server.listen("127.0.0.1", 0, tls_context(str(made.certificate_path), str(made.key_path)))
    client = ControlPlaneClient([f"https://127.0.0.1:{port}"], str(made.ca_path), lambda: Redacted(TOKEN))
    registered = asyncio.Event()
    channel = AdminChannelClient(client, PROXY, lambda text: text.replace(TOKEN, SHOWN))
    task = asyncio.create_task(channel.run(envoy.socket, registered))
    registered.set()
    try:
        yield envoy, plane, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        plane.stopping.set()
        await server.stop()
        await admin.stop()


async def answered(channel, request):
    await channel.send_str(request if isinstance(request, str) else json.dumps(request))
    chunks = b""
    while True:
        frame = admin_channel.read_frame(await channel.receive_bytes(timeout=60))
        chunks += frame.chunk
        if frame.type is not FrameType.PART:
            return frame.type, chunks


def asking(path, number=1, bytes_max=1_000_000):
    return {"number": number, "path": path, "bytes_max": bytes_max}


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(agent_end, "_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(agent_end, "_RETRY_SECONDS", (0.05, 0.1))
    monkeypatch.setattr(agent_end, "_REFUSED_SECONDS", 0.05)


def test_it_opens_a_channel_with_its_token_and_answers_pages(tmp_path):
    async def talk():
        async with running(tmp_path) as (envoy, plane, _task):
            channel = await plane.opened.get()
            (request,) = plane.requests
            assert (request.path, dict(request.query)) == (admin_channel.PATH, PROXY)
            assert request.headers["Authorization"] == f"Bearer {TOKEN}"
            assert await answered(channel, asking("/stats?usedonly")) == (FrameType.LAST, b"a: 1\n")
            envoy.page = json.dumps({"a": {"private_key": {"inline_string": "k"}}, "b": TOKEN}).encode()
            kind, dump = await answered(channel, asking("/config_dump?include_eds"))
            assert (kind, json.loads(dump)) == (
                FrameType.LAST,
                {"a": {"private_key": {"inline_string": SHOWN}}, "b": SHOWN},
            )
            envoy.page = b"x" * 300_000
            assert await answered(channel, asking("/stats")) == (FrameType.LAST, b"x" * 300_000)
            assert envoy.asked == [
                ("GET", "/stats?usedonly="),
                ("GET", "/config_dump?include_eds="),
                ("GET", "/stats"),
            ]

    asyncio.run(talk())


@pytest.mark.parametrize(
    "path",
    [
        "/quitquitquit",
        "/logging?level=trace",
        "/stats/../quitquitquit",
        "/drain_listeners",
        "/stats?x=1",
        "",
        "x",
    ],
)
def test_it_asks_envoy_for_nothing_else_whatever_the_control_plane_wants(tmp_path, path):
    async def talk():
        async with running(tmp_path) as (envoy, plane, _task):
            kind, words = await answered(await plane.opened.get(), asking(path))
            assert (kind, envoy.asked) == (FrameType.ERROR, [])
            assert words.startswith(b"the agent refuses it")

    asyncio.run(talk())


def test_what_is_too_large_or_does_not_answer_is_said(tmp_path):
    async def talk():
        async with running(tmp_path) as (envoy, plane, _task):
            channel = await plane.opened.get()
            kind, words = await answered(channel, asking("/stats", bytes_max=2))
            assert (kind, b"too large" in words) == (FrameType.ERROR, True)
            envoy.page = b"no JSON"
            kind, words = await answered(channel, asking("/config_dump"))
            assert (kind, b"does not answer" in words) == (FrameType.ERROR, True)
            envoy.socket.unlink()
            kind, words = await answered(channel, asking("/stats"))
            assert (kind, b"does not answer" in words) == (FrameType.ERROR, True)

    asyncio.run(talk())


@pytest.mark.parametrize("message", ["nonsense", "{}", b"bytes"])
def test_a_control_plane_that_talks_nonsense_gets_a_new_channel(tmp_path, message):
    async def talk():
        async with running(tmp_path) as (_envoy, plane, task):
            channel = await plane.opened.get()
            await (channel.send_bytes(message) if isinstance(message, bytes) else channel.send_str(message))
            again = await asyncio.wait_for(plane.opened.get(), 60)
            assert (await answered(again, asking("/stats")))[1] == b"a: 1\n"
            assert not task.done()

    asyncio.run(talk())


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 500, 503])
def test_it_comes_again_after_a_refusal(tmp_path, status):
    async def talk():
        async with running(tmp_path) as (_envoy, plane, task):
            first = await plane.opened.get()
            plane.status = status
            await first.close()
            await asyncio.wait_for(plane.refused.wait(), 60)
            plane.status = 101
            assert await asyncio.wait_for(plane.opened.get(), 60)
            assert not task.done()

    asyncio.run(talk())


def test_while_envoy_hangs_it_takes_few_requests_and_says_so(tmp_path):
    async def talk():
        async with running(tmp_path) as (envoy, plane, _task):
            envoy.answering.clear()
            channel = await plane.opened.get()
            for number in range(10):
                await channel.send_str(json.dumps(asking("/stats", number)))
            for number in range(4, 10):
                frame = admin_channel.read_frame(await channel.receive_bytes(timeout=60))
                assert (frame.number, frame.type) == (number, FrameType.ERROR)
                assert b"has not answered earlier requests" in frame.chunk
            envoy.answering.set()
            numbers = {
                admin_channel.read_frame(await channel.receive_bytes(timeout=60)).number for _ in range(4)
            }
            assert numbers == {0, 1, 2, 3}

    asyncio.run(talk())


def test_agents_of_a_large_fleet_come_back_over_a_longer_time():
    greetings = [admin_channel.greeting(number) for number in (0, 10, 1000, 10_000, 10**9)]
    assert [each.spread_seconds for each in greetings] == [0, 0.1, 10, 100, 120]
    for text, seconds in (("1e9", 120), ("-5", 0), ("3", 3)):
        assert admin_channel.read_greeting(f'{{"spread_seconds": {text}}}').spread_seconds == seconds
    for text in ("", "[]", "NaN", '{"number": 1, "path": "/stats"}', '{"spread_seconds": null}'):
        with pytest.raises(admin_channel.BadChannelMessage):
            admin_channel.read_greeting(text)


def test_a_control_plane_that_does_not_greet_is_left(tmp_path):
    async def talk():
        async with running(tmp_path) as (envoy, plane, _task):
            plane.greeting = json.dumps(asking("/stats"))
            await plane.opened.get()
            await (await plane.opened.get()).close()
            await asyncio.wait_for(plane.opened.get(), 60)
            assert envoy.asked == []

    asyncio.run(talk())


def test_requests_are_read_as_they_are_written():
    request = PageRequest(7, "/stats", 10)
    assert admin_channel.read_request(json.dumps({"number": 7, "path": "/stats", "bytes_max": 10})) == request
