"""Calls to addresses that objects name: only where the operator allows it, verified, limited."""

import asyncio

import pytest

from koguma.model.errors import Invalid
from koguma.runtime import allowed_hosts, settings
from koguma.runtime.outgoing_calls import RESPONSE_BYTES_MAX, CallFailed, OutgoingCalls
from tests.https_server import HttpsServer, Reply

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path_factory):
    with HttpsServer(tmp_path_factory.mktemp("h")) as server:
        yield server


@pytest.fixture
async def calls(request):
    calls = OutgoingCalls(allowed_hosts.of(getattr(request, "param", ("127.0.0.0/8",))))
    yield calls
    await calls.close()
    await asyncio.sleep(0.1)  # the loop closes the sockets in its next rounds


async def failure(calls: OutgoingCalls, server: HttpsServer, url: str = "", **more) -> str:
    with pytest.raises(CallFailed) as failed:
        await calls.post_json(url or server.url, b"{}", **{"ca_bundle": server.ca, **more})
    return failed.value.detail


async def test_a_call_has_its_answer_and_a_connection_serves_many(server, calls):
    server.reply = lambda asked: Reply(b"<" + asked.body + b">")
    answers = [await calls.post_json(f"{server.url}/a?b=c", b"1", ca_bundle=server.ca) for _ in range(3)]
    assert answers == [b"<1>"] * 3
    assert {asked.path for asked in server.requests} == {"/a?b=c"}
    assert len({asked.connection for asked in server.requests}) == 1
    assert server.requests[0].headers["Content-Type"] == "application/json"


async def test_a_connection_that_the_server_closed_is_opened_again(server, calls):
    server.reply = lambda _asked: Reply(closes=True)
    for _ in range(4):
        assert await calls.post_json(server.url, b"{}", ca_bundle=server.ca) == b"{}"
    assert len({asked.connection for asked in server.requests}) == 4


@pytest.mark.parametrize("calls", [()], indirect=True)
async def test_nothing_is_called_unless_the_operator_allows_it(server, calls):
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"):
        message = await failure(calls, server, f"https://{host}:{server.port}/x")
        assert "may not call" in message, host
        assert "setting outgoingHosts" in message
    assert server.requests == []


@pytest.mark.parametrize("calls", [("localhost:1", "10.0.0.0/8", "*.localhost")], indirect=True)
async def test_other_ports_and_addresses_stay_closed(server, calls):
    assert "may not call" in await failure(calls, server)
    assert "may not call" in await failure(calls, server, f"https://localhost:{server.port}")


@pytest.mark.parametrize("calls", [("localhost", "hooks.localhost")], indirect=True)
async def test_a_name_is_not_trusted_for_loopback_but_localhost_is(server, calls, monkeypatch):
    assert await calls.post_json(f"https://localhost:{server.port}", b"{}", ca_bundle=server.ca) == b"{}"
    # The name resolves to loopback by the rules for *.localhost (RFC 6761); a foreign DNS could say so too.
    message = await failure(calls, server, f"https://hooks.localhost:{server.port}")
    assert "may not call" in message or "cannot be resolved" in message
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1", "only https addresses"),
        ("https://user@127.0.0.1", "only https addresses"),
        ("ftp://127.0.0.1", "only https addresses"),
        ("https://127.0.0.1:99999", "cannot be read"),
        ("https://[::", "cannot be read"),
        ("https://127.1", "cannot be read"),
        ("https://2130706433", "cannot be read"),
    ],
)
async def test_addresses_that_are_not_called(server, calls, url, reason):
    assert reason in await failure(calls, server, url)


async def test_a_server_of_another_ca_is_not_trusted(server, calls):
    assert "not trusted" in await failure(calls, server, ca_bundle=b"")
    assert "holds no certificates" in await failure(calls, server, ca_bundle=b"nonsense")
    assert server.requests == []


async def test_redirects_errors_large_and_late_answers_fail(server, calls):
    server.reply = lambda _asked: Reply(status=302, headers=(("Location", server.url + "/there"),))
    assert "status 302" in await failure(calls, server)
    server.reply = lambda _asked: Reply(b"the password is x", status=500)
    assert await failure(calls, server) == "it answers with status 500"
    server.reply = lambda _asked: Reply(b"x" * (RESPONSE_BYTES_MAX + 1))
    assert "more than" in await failure(calls, server)
    server.reply = lambda _asked: server.ended.wait(20) and Reply()
    assert await failure(calls, server, timeout_seconds=0.3) == "no answer within 0.3s"
    assert [asked.path for asked in server.requests] == ["/"] * 4
    server.ended.set()


async def test_a_port_where_nobody_listens_fails(server, calls, unused_tcp_port):
    assert "Connect" in await failure(calls, server, f"https://127.0.0.1:{unused_tcp_port}")


@pytest.mark.parametrize("calls", [("127.0.0.0/8",)], indirect=True)
async def test_proxies_of_the_environment_are_not_used(server, calls, monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert await calls.post_json(server.url, b"{}", ca_bundle=server.ca) == b"{}"


def allows(entry: str, host: str, address: str, port: int = 443) -> bool:
    return bool(allowed_hosts.of([entry]).addresses(host, port, [address]))


def test_what_an_entry_allows():
    assert allows("Hooks.Example", "hooks.example.", "10.0.0.1")
    assert not allows("hooks.example", "evil.example", "10.0.0.1")
    assert allows("*.svc", "hook.team.svc", "10.0.0.1")
    assert not allows("*.svc", "svc", "10.0.0.1")
    assert not allows("*.example", "notexample", "10.0.0.1")
    assert allows("10.0.0.0/8:8443", "any.name", "10.2.3.4", 8443)
    assert not allows("10.0.0.0/8:8443", "any.name", "10.2.3.4", 443)
    assert allows("10.0.0.0/8", "any.name", "::ffff:10.2.3.4")
    assert allows("fd00::/8", "any.name", "fd00::1")
    assert allows("[fd00::1]:8443", "any.name", "fd00::1", 8443)
    assert allows("127.0.0.1", "any.name", "127.0.0.1")
    for own in (
        "127.0.0.1",
        "169.254.169.254",
        "::1",
        "fe80::1%eth0",
        "0.0.0.0",
        "224.0.0.1",
        "::ffff:127.0.0.1",
    ):
        assert not allows("hooks.example", "hooks.example", own), own


@pytest.mark.parametrize(
    "text", ["", "http://x", "a b", "host:0", "host:99999", "host:x", "10.0.0.0/99", "-a", "*"]
)
def test_a_wrong_entry_is_named(text):
    with pytest.raises(Invalid) as refused:
        settings.load(None, {}, {"outgoing_hosts": ("fine.example", text)})
    assert refused.value.violations[0].field == "--outgoing-hosts[1]"
