"""The admin channel: who may open one, what is taken from it, and who may see what it answers."""

import asyncio
import contextlib
import json
import ssl
from base64 import b64decode, b64encode

import aiohttp
import pytest

from koguma.envoy import admin_channel
from koguma.envoy.admin_channel import Frame, FrameType
from koguma.fleet import admin_channels, envoy_views
from koguma.model.errors import BadGateway, BadRequest, KogumaError, Unavailable
from koguma.model.redacted import SHOWN
from koguma.model.resource import Key
from tests import build
from tests.control_plane import LocalControlPlane
from tests.kube_client import bind_role, create_role
from tests.proxy_connections import connect
from tests.waiting import until

OURS = ["feature-access-log-pipe", admin_channel.FEATURE]
WEB = Key("Dataplane", "default", "default", "", "web-1")
STATS = b'{"stats":[]}'


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("p")) as plane:
        for name in ("web-1", "web-2", "old", "kumas", "quiet"):
            document = build.dataplane(name, address="127.0.0.1", inbound=[build.inbound("web", 80)])
            assert plane("PUT", f"/meshes/default/dataplanes/{name}", document).status == 201
        yield plane


@pytest.fixture(scope="module")
def token(plane):
    return plane.dataplane_token(name="web-1")


@pytest.fixture(autouse=True)
def _at_any_pace(monkeypatch):
    monkeypatch.setattr(admin_channels, "PACE_SECONDS", 0.0)


def views(plane):
    return plane.plane._proxies.views


class Agent:
    """An agent that answers as a test says, over a real connection; on the loop of the control plane."""

    def __init__(self, plane: LocalControlPlane, token: str, **query: str) -> None:
        self._plane = plane
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._query = {"mesh": "default", "name": "web-1", **query}

    @contextlib.asynccontextmanager
    async def connected(self):
        tls = ssl.create_default_context(cafile=self._plane.data_dir / "ca.pem")
        url = f"https://127.0.0.1:{self._plane.plane.ports['dp']}{admin_channel.PATH}"
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, params=self._query, headers=self._headers, ssl=tls) as channel,
        ):
            assert admin_channel.read_greeting(await channel.receive_str()).spread_seconds < 1
            yield channel


async def asked(plane, path="/stats?format=json", **limits):
    """What the control plane gets; a small page, unless a test says otherwise."""
    return await views(plane).ask(WEB, path, **{"seconds_max": 10.0, "bytes_max": 1_000_000, **limits})


async def request_of(channel):
    return admin_channel.read_request((await channel.receive(10)).data)


async def send(channel, *frames):
    for frame in frames:
        await channel.send_bytes(admin_channel.encoded(frame))


async def open_for(plane, token, talk):
    """Open a channel, wait until the control plane has it, and let `talk` use it."""
    async with Agent(plane, token).connected() as channel:
        return await talk(channel)


def test_a_proxy_is_asked_over_its_channel_and_several_at_once(plane, token):
    async def talk(channel):
        first = asyncio.create_task(asked(plane))
        second = asyncio.create_task(asked(plane, "/clusters"))
        requests = sorted([await request_of(channel), await request_of(channel)], key=lambda r: r.path)
        clusters, stats = requests
        assert (clusters.path, stats.path) == ("/clusters", "/stats?format=json")
        await send(
            channel,
            Frame(stats.number, FrameType.PART, STATS[:3]),
            Frame(clusters.number, FrameType.LAST, b"a::b"),
            Frame(stats.number, FrameType.LAST, STATS[3:]),
        )
        assert (await first, await second) == (STATS, b"a::b")

    plane.run(open_for(plane, token, talk))


def test_an_answer_that_comes_while_its_asker_leaves_closes_no_channel(plane, token):
    async def talk(channel):
        asking = asyncio.create_task(asked(plane))
        request = await request_of(channel)
        asking.cancel()
        # Before the cancelled task has its turn.
        here = plane.plane._proxies._channels.of(WEB)
        here.receive(admin_channel.encoded(Frame(request.number, FrameType.LAST, STATS)))
        await asyncio.gather(asking, return_exceptions=True)
        again = asyncio.create_task(asked(plane))
        request = await request_of(channel)
        await send(channel, Frame(request.number, FrameType.LAST, STATS))
        assert await again == STATS

    plane.run(open_for(plane, token, talk))


@pytest.mark.parametrize(
    ("claims", "query", "status"),
    [
        (None, {}, 401),
        ({"name": "web-2"}, {}, 403),
        ({"name": "web-1"}, {"name": "web-2"}, 403),
        ({"name": "web-1"}, {"name": ""}, 403),
        ({"tags": {"kuma.io/service": ["other"]}}, {}, 403),
        ({"name": "nobody"}, {"name": "nobody"}, 404),
        ({"name": "web-1"}, {"mesh": "other"}, 401),
        ({"name": "web-1"}, {"proxyType": "egress"}, 401),
        ({"name": "web-1"}, {"proxyType": "nonsense"}, 400),
    ],
)
def test_a_channel_is_only_for_the_proxy_of_its_token(plane, claims, query, status):
    token = plane.dataplane_token(**claims) if claims else ""

    async def attempt():
        async with Agent(plane, token, **query).connected():
            pass

    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        plane.run(attempt())
    assert refused.value.status == status


def test_a_run_that_was_replaced_gets_no_channel(plane):
    brought = build.dataplane(
        "twice", address="127.0.0.1", inbound=[build.inbound("web", 80)], labels={"koguma.io/instance": "new"}
    )
    connect(plane, brought, name="twice")
    token = plane.dataplane_token(tags={"kuma.io/service": ["web"]})

    async def attempt(instance):
        async with Agent(plane, token, name="twice", instance=instance).connected():
            return 101

    assert plane.run(attempt("new")) == 101
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        plane.run(attempt("old"))
    assert refused.value.status == 409


def test_a_page_is_masked_here_too(plane, token):
    async def talk(channel):
        asking = asyncio.create_task(asked(plane, "/config_dump"))
        number = (await request_of(channel)).number
        dump = json.dumps({"configs": [{"private_key": {"inline_string": "k"}}]}).encode()
        await send(channel, *admin_channel.frames(number, dump))
        assert json.loads(await asking)["configs"] == [{"private_key": {"inline_string": SHOWN}}]
        asking = asyncio.create_task(asked(plane, "/config_dump"))
        await send(channel, *admin_channel.frames((await request_of(channel)).number, b"no JSON"))
        with pytest.raises(BadGateway, match="no JSON"):
            await asking

    plane.run(open_for(plane, token, talk))


async def closed_with(channel):
    message = await channel.receive(10)
    assert message.type is aiohttp.WSMsgType.CLOSE
    return message.data


def _flood(number):
    chunk = b"x" * admin_channel.CHUNK_BYTES
    return [Frame(number, FrameType.PART, chunk)] * 4


@pytest.mark.parametrize(
    "messages",
    [
        lambda _number: [b""],
        lambda _number: [b"\0\0\0\0\7"],
        lambda number: [admin_channel.encoded(frame) for frame in _flood(number + 1)],
        lambda number: [admin_channel.encoded(frame) for frame in _flood(number)],
        lambda number: [admin_channel.encoded(Frame(number, FrameType.PART, b""))] * 5000,
    ],
    ids=["empty", "no type", "for a request that nobody made", "too much", "without end"],
)
def test_an_agent_that_sends_what_was_not_asked_for_loses_its_channel(plane, token, messages):
    async def talk(channel):
        asking = asyncio.create_task(asked(plane, bytes_max=100_000))
        request = await request_of(channel)
        with contextlib.suppress(ConnectionError):
            for message in messages(request.number):
                await channel.send_bytes(message)
        assert await closed_with(channel) == aiohttp.WSCloseCode.POLICY_VIOLATION
        with pytest.raises(Unavailable, match="disconnected"):
            await asking

    plane.run(open_for(plane, token, talk))


def test_an_agent_that_answers_too_late_keeps_its_channel_and_disturbs_no_later_answer(plane, token):
    async def talk(channel):
        with pytest.raises(Unavailable, match=r"did not answer within 0\.2 s"):
            await asked(plane, seconds_max=0.2)
        late = await request_of(channel)
        await send(channel, Frame(late.number, FrameType.LAST, b"late"))
        asking = asyncio.create_task(asked(plane))
        await send(channel, *admin_channel.frames((await request_of(channel)).number, STATS))
        assert await asking == STATS
        asking = asyncio.create_task(asked(plane))
        await send(channel, admin_channel.failure((await request_of(channel)).number, "Envoy is away"))
        with pytest.raises(BadGateway, match="Envoy is away"):
            await asking

    plane.run(open_for(plane, token, talk))


def test_a_later_channel_takes_the_place_of_an_earlier_one(plane, token):
    async def talk(first):
        async with Agent(plane, token).connected() as second:
            assert await closed_with(first) == aiohttp.WSCloseCode.GOING_AWAY
            asking = asyncio.create_task(asked(plane))
            await send(second, *admin_channel.frames((await request_of(second)).number, STATS))
            assert await asking == STATS

    plane.run(open_for(plane, token, talk))
    until(lambda: not [*plane.plane._proxies._channels], "all channels have ended")


def test_a_proxy_that_opens_channels_all_the_time_is_refused(plane, token, monkeypatch):
    monkeypatch.setattr(admin_channels, "PACE_SECONDS", 5.0)

    async def talk(first):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with Agent(plane, token).connected():
                pass
        assert refused.value.status == 409
        asking = asyncio.create_task(asked(plane))
        await send(first, *admin_channel.frames((await request_of(first)).number, STATS))
        assert await asking == STATS

    plane.run(open_for(plane, token, talk))


def test_an_agent_that_hangs_takes_few_turns_of_others(plane, token):
    async def talk(channel):
        hanging = [asyncio.create_task(asked(plane, seconds_max=0.4)) for _ in range(50)]
        for _ in range(10):
            await asyncio.sleep(0)
        n_free = views(plane)._small._value
        assert n_free == envoy_views.SMALL_AT_ONCE - admin_channel.REQUESTS_MAX
        errors = await asyncio.gather(*hanging, return_exceptions=True)
        assert {type(error) for error in errors} == {Unavailable}
        assert views(plane)._small._value == envoy_views.SMALL_AT_ONCE
        assert not channel.closed

    plane.run(open_for(plane, token, talk))


def test_a_revoked_token_ends_the_channel(plane):
    token = plane.dataplane_token(name="web-1")
    claims = json.loads(b64decode(token.split(".")[1] + "=="))

    async def talk(channel):
        secret = build.secret(
            "dataplane-token-revocations-default", b64encode(claims["jti"].encode()).decode()
        )
        path = f"/meshes/default/secrets/{secret['name']}"
        assert (await asyncio.to_thread(plane, "PUT", path, secret)).status == 201
        assert await closed_with(channel) == aiohttp.WSCloseCode.GOING_AWAY
        assert (await asyncio.to_thread(plane, "DELETE", path)).status == 200

    plane.run(open_for(plane, token, talk))


def test_it_takes_nothing_but_a_websocket(plane, token):
    async def plain(method):
        tls = ssl.create_default_context(cafile=plane.data_dir / "ca.pem")
        url = f"https://127.0.0.1:{plane.plane.ports['dp']}{admin_channel.PATH}"
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, url, params={"mesh": "default", "name": "web-1"}, headers=headers, ssl=tls
            ) as response,
        ):
            return response.status

    assert plane.run(plain("GET")) == 400
    assert plane.run(plain("POST")) == 405


def test_a_page_that_is_not_listed_is_asked_of_nobody(plane, token):
    async def talk(_channel):
        with pytest.raises(BadRequest, match="only /config_dump"):
            await asked(plane, "/quitquitquit")

    plane.run(open_for(plane, token, talk))


def page(plane, name, page="stats", **headers):
    return plane("GET", f"/meshes/default/dataplanes/{name}/{page}", **headers)


@pytest.mark.parametrize(
    ("name", "features", "status", "words"),
    [
        ("web-2", None, 503, "is not connected"),
        ("kumas", [], 501, "Kuma's agent"),
        ("old", OURS[:1], 501, "older version"),
        ("quiet", OURS, 503, "has not opened its channel yet"),
    ],
)
def test_why_a_proxy_cannot_be_asked(plane, name, features, status, words):
    if features is not None:
        connect(plane, name=name, shown=plane.dataplane_token(name=name), features=features)
    answer = page(plane, name)
    assert answer.status == status
    assert answer.json["title"] == "Could not execute admin operation"
    assert words in answer.json["detail"]
    assert f'Dataplane "{name}" of mesh "default"' in answer.json["detail"]


def test_of_many_proxies_each_has_its_answer_or_its_error(plane, token):
    keys = [WEB, Key("Dataplane", "default", "default", "", "web-2")]

    async def collect():
        return {answer.key.name: answer async for answer in views(plane).ask_all(keys, "/stats", at_once=1)}

    async def talk(channel):
        asking = asyncio.create_task(collect())
        await send(channel, *admin_channel.frames((await request_of(channel)).number, b"a: 1"))
        return await asking

    answers = plane.run(open_for(plane, token, talk))
    assert answers["web-1"].page == b"a: 1"
    assert isinstance(answers["web-2"].error, KogumaError)


def test_figures_come_with_the_right_to_read_proxies_and_dumps_do_not(plane):
    bind_role(plane, "viewer", "view")
    bind_role(plane, "keeper", "admin")
    create_role(
        plane, "reader", {"verbs": ["get"], "apiGroups": ["rest.koguma.io"], "resources": ["dataplanes"]}
    )
    bind_role(plane, "reader", "reader")
    create_role(
        plane,
        "dumper",
        {"verbs": ["get"], "apiGroups": ["rest.koguma.io"], "resources": ["dataplanes", "dataplanes/xds"]},
    )
    bind_role(plane, "dumper", "dumper")
    statuses = {
        (user, word): page(plane, "web-2", word, Impersonate_User=user).status
        for user in ("viewer", "keeper", "reader", "dumper")
        for word in ("xds", "stats", "clusters")
    }
    allowed = {key for key, status in statuses.items() if status == 503}  # it is not connected
    assert {status for key, status in statuses.items() if key not in allowed} == {403}
    assert allowed == {
        *(("viewer", word) for word in ("stats", "clusters")),
        *(("keeper", word) for word in ("xds", "stats", "clusters")),
        ("dumper", "xds"),
    }
    refused = page(plane, "web-2", "xds", Impersonate_User="viewer")
    assert "get dataplanes/xds.rest.koguma.io" in refused.json["detail"]


@pytest.mark.parametrize(
    "query", ["stats?format=yaml", "stats?usedonly=perhaps", "xds?include_eds=2", "stats?x=1"]
)
def test_wrong_parameters_are_named(plane, query):
    answer = page(plane, "web-1", query)
    assert answer.status == 400
    assert query.partition("?")[2].partition("=")[0] in answer.text


def test_a_zone_proxy_of_another_zone_is_asked_there(plane):
    for path in ("zoneingresses/nobody/xds", "zoneegresses/nobody/stats"):
        assert plane("GET", f"/{path}").status == 404
