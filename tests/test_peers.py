"""Control planes that ask each other: who is believed, who is asked, and what is passed on."""

import contextlib
import ssl
from datetime import UTC, datetime, timedelta

import aiohttp
import jwt
import msgspec
import pytest

from koguma.fleet.envoy_views import NoChannel, NotConnected
from koguma.fleet.peers import PATH, PeerError, PeerRequest, Peers
from koguma.fleet.proxy_state import InstanceState, ProxyState
from koguma.identity import peer_tokens
from koguma.model.errors import BadGateway, KogumaError, NotSupported, Unauthenticated, Unavailable
from koguma.model.redacted import Redacted
from koguma.model.resource import Key
from koguma.reconcile import peer_key
from koguma.runtime.peer_calls import PeerCalls, PeerTrust
from tests.control_plane import LocalControlPlane
from tests.https_server import HttpsServer, Reply

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
SECRET = Redacted("k" * 64)
WEB = Key("Dataplane", "default", "default", "", "web-1")


def test_a_token_is_for_one_control_plane_and_half_a_minute():
    token = peer_tokens.issue(SECRET, "a", "b", NOW).reveal()
    assert peer_tokens.asking(SECRET, token, "b", NOW) == "a"
    assert peer_tokens.asking(SECRET, token, "b", NOW + timedelta(seconds=59)) == "a"
    for key, asked, seconds in (
        (SECRET, "c", 0),
        (Redacted("x" * 64), "b", 0),
        (SECRET, "b", 61),
        (SECRET, "b", -31),
    ):
        with pytest.raises(Unauthenticated):
            peer_tokens.asking(key, token, asked, NOW + timedelta(seconds=seconds))


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "a.b.c",
        "x" * 5000,
        jwt.encode({"iss": "a", "aud": "b", "iat": 0, "exp": 9e12}, "", algorithm="none"),
        jwt.encode({"iss": "a", "aud": "b", "iat": 0, "exp": 9e12}, SECRET.reveal(), algorithm="HS256"),
        jwt.encode({"iss": "a", "aud": "b", "iat": "x", "exp": "y"}, SECRET.reveal(), algorithm="HS256"),
        jwt.encode({"iss": "a", "aud": "b"}, SECRET.reveal(), algorithm="HS256"),
        jwt.encode({"aud": "b", "iat": NOW, "exp": NOW}, SECRET.reveal(), algorithm="HS256"),
    ],
)
def test_a_token_of_another_sort_is_refused(forged):
    with pytest.raises(Unauthenticated):
        peer_tokens.asking(SECRET, forged, "b", NOW)


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("p")) as plane:
        yield plane


async def sent(plane, token, body=b"{}", method="POST"):
    tls = ssl.create_default_context(cafile=plane.data_dir / "ca.pem")
    url = f"https://127.0.0.1:{plane.plane.ports['dp']}{PATH}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, data=body, headers=headers, ssl=tls) as response,
    ):
        return response.status, await response.read()


def good_token(plane):
    key = peer_key.stored_in(plane.plane.store.state)
    assert key is not None
    instance = plane("GET", "/").json["instanceId"]
    return peer_tokens.issue(key, "another", instance, datetime.now(UTC)).reveal()


def request(path="/stats", **fields):
    return (
        msgspec.json.encode(PeerRequest(WEB, path, 1000, 1.0)) if not fields else msgspec.json.encode(fields)
    )


def test_nobody_else_gets_pages_from_the_port_for_control_planes(plane):
    admin = (plane.data_dir / "admin-token").read_text()
    proxys = plane.dataplane_token(name="web-1")
    for token in ("", "nonsense", admin, proxys, good_token(plane)[:-2]):
        status, body = plane.run(sent(plane, token, request()))
        assert (status, b"stats" in body) == (401, False)


def test_a_control_plane_of_the_store_is_told_what_is_known_here(plane):
    token = good_token(plane)
    status, body = plane.run(sent(plane, token, request()))
    assert (status, msgspec.json.decode(body, type=PeerError).error) == (503, "NotConnected")
    status, body = plane.run(sent(plane, token, request("/quitquitquit")))
    assert (status, msgspec.json.decode(body, type=PeerError).error) == (400, "BadRequest")
    for wrong in (b"", b"[]", b"{}", request(key="x"), b"[" * 9000):
        assert plane.run(sent(plane, token, wrong))[0] == 400
    assert plane.run(sent(plane, token, b"x" * 20_000))[0] == 413
    assert plane.run(sent(plane, token, None, "GET"))[0] == 405


def test_the_key_is_served_by_no_endpoint(plane):
    key = peer_key.stored_in(plane.plane.store.state)
    assert key is not None
    for path in (
        "/control-plane-key",
        "/control-plane-key/peers",
        "/_kri/kri_cpk____peers_",
        "/globalsecrets",
    ):
        assert key.reveal() not in plane("GET", path).text


class States:
    """The fleet as a test describes it."""

    def __init__(self, *instances, connected_to=""):
        self._instances = instances
        self._connected_to = connected_to

    def of(self, key):
        if not self._connected_to:
            return None
        return ProxyState(key=key, core_name=key.name, instance=self._connected_to, connected_at=NOW)

    def instances(self):
        return (InstanceState(id="here", address="https://127.0.0.1:1", is_here=True), *self._instances)


@pytest.fixture
def servers(tmp_path):
    with contextlib.ExitStack() as stack:
        folders = [tmp_path / name for name in ("one", "two")]
        for folder in folders:
            folder.mkdir()
        yield [stack.enter_context(HttpsServer(folder)) for folder in folders]


def asked(plane, states, ca, certificate="", bytes_max=1000, times=1):
    async def ask():
        calls = PeerCalls(PeerTrust(ca, certificate))
        peers = Peers(states, calls, lambda asked: peer_tokens.issue(SECRET, "here", asked, NOW))
        try:
            for _ in range(times):
                page = await peers.ask(WEB, "/stats", bytes_max, 1.0)
        finally:
            await calls.close()
        return page

    return plane.run(ask())


def failing(error):
    status = error.status
    return lambda _asked: Reply(msgspec.json.encode(PeerError(type(error).__name__, error.detail)), status)


def test_the_control_plane_of_the_stream_is_asked_first_and_then_the_others(plane, servers):
    one, two = servers
    ca = (one.ca + two.ca).decode()
    states = States(
        InstanceState(id="one", address=one.url), InstanceState(id="two", address=two.url), connected_to="two"
    )
    one.reply = lambda _asked: Reply(b"page")
    two.reply = failing(NoChannel("not yet"))
    assert asked(plane, states, ca, times=2) == b"page"
    assert (len(two.requests), len(one.requests)) == (1, 2)  # where it was found is asked first the next time
    token = one.requests[0].headers["Authorization"].removeprefix("Bearer ")
    assert peer_tokens.asking(SECRET, token, "one", NOW) == "here"
    assert one.requests[0].json["path"] == "/stats"
    one.reply = failing(NotConnected("it is not connected"))
    with pytest.raises(NoChannel, match="not yet"):
        asked(plane, states, ca)


@pytest.mark.parametrize(
    "error", [NotSupported("Kuma's agent"), BadGateway("no JSON"), Unavailable("too slow")]
)
def test_an_answer_about_the_proxy_itself_is_passed_on(plane, servers, error):
    one, two = servers
    states = States(InstanceState(id="one", address=one.url), InstanceState(id="two", address=two.url))
    one.reply = failing(error)
    with pytest.raises(type(error), match=error.detail):
        asked(plane, states, (one.ca + two.ca).decode())
    assert two.requests == []


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(b"x" * 1001), "more than 1000 bytes"),
        (Reply(b"nonsense", 500), "it answers 500: nonsense"),
        (Reply(b"", 302, (("Location", "https://127.0.0.1:1/"),)), "it answers 302"),
        (Reply(b"no", 401), "it answers 401: no"),
    ],
)
def test_a_control_plane_that_gives_no_usable_answer_is_named(plane, servers, reply, words):
    one, _ = servers
    one.reply = lambda _asked: reply
    states = States(InstanceState(id="one", address=one.url), connected_to="one")
    with pytest.raises(Unavailable, match=words) as raised:
        asked(plane, states, one.ca.decode())
    assert f'the control plane "one", which does not answer at {one.url}' in raised.value.detail


def test_whom_the_ca_of_the_store_does_not_verify_gets_no_token(plane, servers):
    one, two = servers
    for address, words in ((one.url, "not trusted"), (one.url.replace("https", "http"), "no https address")):
        states = States(InstanceState(id="one", address=address), connected_to="one")
        with pytest.raises(Unavailable, match=words):
            asked(plane, states, two.ca.decode())
    assert one.requests == []


def test_an_operators_certificates_are_trusted_by_their_own_chain_and_name(plane, servers):
    one, two = servers
    one.reply = lambda _asked: Reply(b"page")
    at = {
        address: States(InstanceState(id="one", address=address))
        for address in (one.url, "https://localhost:1")
    }
    assert asked(plane, at[one.url], "", certificate=one.ca.decode()) == b"page"
    with pytest.raises(NotConnected):
        asked(plane, at[one.url], "", certificate=two.ca.decode())
    assert len(one.requests) == 1


def test_only_control_planes_that_live_are_asked(plane, servers):
    one, two = servers
    states = States(
        InstanceState(id="one", address=one.url, is_gone=True), InstanceState(id="two"), connected_to="one"
    )
    with pytest.raises(NotConnected) as raised:
        asked(plane, states, (one.ca + two.ca).decode())
    assert isinstance(raised.value, KogumaError)
    assert (one.requests, two.requests) == ([], [])
