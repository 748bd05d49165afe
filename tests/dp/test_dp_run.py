"""`koguma dp run` with a real Envoy, against a stand-in of the control plane."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from stand_in import TOKEN, Running, StandIn, bootstrap, packed

from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

PORT = free_port()
WEB = ("--name", "web-1", "--service", "web", "--port", str(PORT), "--service-port", "18080")
QUICK = ("--concurrency", "1", "--no-dns")


@pytest.fixture
def plane(tmp_path) -> Iterator[StandIn]:
    with StandIn(tmp_path / "cp") as made:
        yield made


@pytest.fixture
def token_file(tmp_path) -> str:
    file = tmp_path / "web-1.token"
    file.write_text(TOKEN + "\n")
    return str(file)


@pytest.fixture
def start(plane, token_file, tmp_path):
    """Starts a proxy against the stand-in; it is gone after the test, however that ends."""
    running = []

    def started(*words: str, **environment: str) -> Running:
        where = ("--cp-address", plane.address, "--ca-cert-file", plane.ca_file)
        made = Running(
            tmp_path, *WEB, *where, "--dataplane-token-file", token_file, *QUICK, *words, **environment
        )
        running.append(made)
        return made

    yield started
    for each in running:
        each.__exit__()


def call(port: int, **headers: str) -> http.client.HTTPResponse:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/", headers={name.replace("_", "-"): v for name, v in headers.items()})
        response = connection.getresponse()
        response.read()
        return response


def over_unix(path: Path, target: str) -> tuple[int, str]:
    """Status and body of a request over a unix socket; status 0 where nobody answers."""
    with socket.socket(socket.AF_UNIX) as made:
        try:
            made.connect(str(path))
        except OSError:
            return 0, ""
        made.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := made.recv(4096):
            answer += part
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split()[1]), body


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_proxy_becomes_ready_and_keeps_its_token_to_itself(start, plane):
    proxy = start()
    port = proxy.ready()
    assert call(port).status == 200
    assert over_unix(proxy.workdir() / "kuma-readiness-reporter.sock", "/ready") == (200, "READY")

    (asked,) = plane.paths("/bootstrap")
    assert asked.body["dataplaneToken"] == TOKEN
    assert json.loads(asked.body["dataplaneResource"])["networking"]["inbound"][0]["port"] == PORT
    assert asked.body["caCert"] == Path(plane.ca_file).read_text()
    assert asked.body["version"]["envoy"]["version"].startswith("1.")
    assert asked.body["workdir"] == str(proxy.workdir())

    pid = proxy.envoy_pid()
    of_envoy = Path(f"/proc/{pid}")
    assert TOKEN not in (of_envoy / "cmdline").read_text() + (of_envoy / "environ").read_text() + proxy.log
    assert mode(proxy.workdir()) == 0o700
    assert mode(proxy.workdir() / "bootstrap.json") == 0o600

    directory = proxy.workdir()
    assert proxy.ended(signal.SIGTERM) == 0
    assert not directory.exists()
    assert not of_envoy.exists()
    (left,) = plane.paths("/deregister")
    (asked, *_) = plane.paths("/bootstrap")
    brought = json.loads(asked.body["dataplaneResource"])
    instance = brought["labels"]["koguma.io/instance"]
    expected = {"mesh": "default", "name": "web-1", "proxyType": "dataplane", "instance": instance}
    assert left.body == expected
    assert left.authorization == f"Bearer {TOKEN}"


@pytest.mark.expected_errors("Envoy was ended by SIGKILL")
def test_an_envoy_that_crashes_is_told_about_and_started_again_with_a_new_bootstrap(start, plane, token_file):
    proxy = start()
    proxy.ready()
    Path(token_file).write_text("another-token")
    os.kill(proxy.envoy_pid(), signal.SIGKILL)
    proxy.line(r"Envoy was ended by SIGKILL after \d+\.\d s")
    assert over_unix(proxy.workdir() / "kuma-readiness-reporter.sock", "/ready") == (503, "STARTING")
    assert call(proxy.ready(2)).status == 200
    assert [each.body["dataplaneToken"] for each in plane.paths("/bootstrap")] == [TOKEN, "another-token"]
    assert over_unix(proxy.workdir() / "kuma-readiness-reporter.sock", "/ready") == (200, "READY")


@pytest.mark.expected_errors("Envoy was ended by SIGKILL|the control plane refuses the proxy")
def test_a_proxy_that_was_let_in_before_waits_for_another_token_where_it_is_refused(start, plane, token_file):
    def refuses_the_first_token(asked: Any) -> Any:
        is_first_run = len(plane.paths("/bootstrap")) == 1
        if is_first_run or asked["dataplaneToken"] == "another-token":
            return packed(bootstrap(asked))
        return 401, b"authentication failed: token is expired"

    plane.answer = refuses_the_first_token
    proxy = start()
    proxy.ready()
    os.kill(proxy.envoy_pid(), signal.SIGKILL)
    proxy.line("the control plane refuses the proxy")
    Path(token_file).write_text("")  # as while it is being written
    proxy.line("the token cannot be read again")
    Path(token_file).write_text("another-token")
    assert call(proxy.ready(2)).status == 200
    kept = json.loads((proxy.workdir() / "dataplane-token.json").read_text())
    assert kept["resources"][0]["generic_secret"] == {"secret": {"inline_string": "another-token"}}
    assert mode(proxy.workdir() / "dataplane-token.json") == 0o600
    assert TOKEN not in proxy.log
    assert "another-token" not in proxy.log


def test_an_envoy_goes_with_its_agent_even_if_that_is_killed(start):
    proxy = start()
    proxy.ready()
    pid = proxy.envoy_pid()
    assert proxy.ended(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.expected_errors("Envoy refuses its bootstrap")
def test_a_bootstrap_that_envoy_refuses_is_told_in_its_words_and_asked_for_again(start, plane):
    def at_first_refused(asked: Any) -> Any:
        made = bootstrap(asked)
        if len(plane.paths("/bootstrap")) == 1:  # Envoy prints the whole of it, the token too
            made["node"]["metadata"] = {"hidden": TOKEN}
            made["overload_manager"] = {"resource_monitors": [{"name": ""}]}
        return packed(made)

    plane.answer = at_first_refused
    proxy = start()
    proxy.line(
        r"Envoy refuses its bootstrap: Proto constraint validation failed .*Name: value length must be"
    )
    assert call(proxy.ready()).status == 200
    assert TOKEN not in proxy.log


def test_a_control_plane_that_is_away_is_waited_for(token_file, tmp_path):
    with closing(socket.socket()) as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    stand_in = StandIn(tmp_path / "cp", port)
    where = ("--cp-address", stand_in.address, "--ca-cert-file", stand_in.ca_file)
    with Running(tmp_path, *WEB, *where, "--dataplane-token-file", token_file, *QUICK) as proxy:
        proxy.line("waiting for the control plane")
        stand_in.answer = lambda _asked: (404, b"")
        with stand_in:
            proxy.line("it does not know this proxy yet")
            stand_in.answer = lambda asked: packed(bootstrap(asked))
            proxy.ready()
            assert len(re.findall("waiting for the control plane", proxy.log)) == 2
            assert proxy.ended(signal.SIGINT) == 0


def test_a_no_of_the_control_plane_ends_the_proxy_with_its_words(start, plane):
    plane.answer = lambda _asked: (422, b"networking.address: must be set\nmesh: is gone")
    proxy = start()
    assert proxy.ended() == 1
    assert "answers 422: networking.address: must be set; mesh: is gone" in proxy.log
    assert "koguma token dataplane" not in proxy.log


def test_without_a_token_the_error_says_how_to_get_one(plane, tmp_path):
    plane.answer = lambda _asked: (422, b"Dataplane Token is required.")
    where = ("--cp-address", plane.address, "--ca-cert-file", plane.ca_file)
    with Running(tmp_path, *WEB, *where, *QUICK) as proxy:
        assert proxy.ended() == 1
        assert "answers 422: Dataplane Token is required." in proxy.log
        made = "koguma token dataplane --mesh default --name web-1 --service web --valid-for 720h"
        assert f"{made} > web-1.token" in proxy.log


def test_a_call_under_way_ends_before_the_proxy_does(start, plane):
    proxy = start("--drain-time", "60s")
    port = proxy.ready()
    answers: list[http.client.HTTPResponse] = []
    slow = threading.Thread(target=lambda: answers.append(call(port, x_envoy_fault_delay_request="3000")))
    idle = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    idle.request("GET", "/")
    idle.getresponse().read()  # kept alive: nobody waits for those
    slow.start()
    time.sleep(0.3)
    proxy.process.send_signal(signal.SIGTERM)
    readiness = proxy.workdir() / "kuma-readiness-reporter.sock"
    until(lambda: over_unix(readiness, "/ready") == (503, "TERMINATING"))
    until(lambda: plane.paths("/deregister"))
    fresh = call(port)  # who has not heard of it yet is still served, and told to go elsewhere
    assert (fresh.status, fresh.getheader("connection")) == (200, "close")
    assert proxy.ended(seconds=30) == 0, "it waits for calls under way and for nothing else"
    slow.join()
    idle.close()
    assert [answer.status for answer in answers] == [200]
    assert "some requests had not ended" not in proxy.log


def test_a_call_that_does_not_end_is_cut_when_the_time_is_over(start):
    proxy = start("--drain-time", "1500ms")
    with closing(http.client.HTTPConnection("127.0.0.1", proxy.ready(), timeout=30)) as endless:
        endless.request("GET", "/", headers={"x-envoy-fault-delay-request": "60000"})
        time.sleep(0.2)
        assert proxy.ended(signal.SIGTERM) == 0
    assert "some requests had not ended" in proxy.log


def test_a_second_signal_ends_the_proxy_at_once(start):
    proxy = start("--drain-time", "60s")
    with closing(http.client.HTTPConnection("127.0.0.1", proxy.ready(), timeout=30)) as endless:
        endless.request("GET", "/", headers={"x-envoy-fault-delay-request": "60000"})
        proxy.process.send_signal(signal.SIGINT)
        proxy.line("the proxy drains")
        pid = proxy.envoy_pid()
        assert proxy.ended(signal.SIGINT, seconds=30) == 130
        assert not Path(f"/proc/{pid}").exists()
    assert list(proxy.runtime.iterdir()) == []


def test_names_of_the_mesh_are_answered_as_envoy_hands_them_on(start, plane):
    proxy = start("--dns", "--dns-port", "0", "--dns-upstream", "127.0.0.1:9")
    proxy.ready()
    (asked,) = plane.paths("/bootstrap")
    assert "feature-embedded-dns" in asked.body["features"]
    # It is ready, so they are answered by now.
    assert resolved(asked.body["dnsPort"]).endswith(bytes([241, 0, 0, 1]))


def resolved(port: int) -> bytes:
    """What a name server answers when it is asked for `backend.mesh`."""
    question = b"\x07backend\x04mesh\x00\x00\x01\x00\x01"
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as client:
        client.settimeout(2)
        client.connect(("127.0.0.1", port))
        client.send(b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + question)
        return client.recv(512)


@pytest.mark.expected_errors("Envoy was ended by SIGKILL")
def test_a_proxy_is_not_ready_before_names_of_the_mesh_are_answered(start, plane):
    def without_names(asked: Any) -> Any:
        made = bootstrap(asked)
        made["static_resources"]["listeners"].pop()
        return packed(made)

    plane.answer = without_names
    proxy = start("--dns", "--dns-port", "0", "--dns-upstream", "127.0.0.1:9")
    directory = until(lambda: next(proxy.runtime.iterdir(), None))
    until(lambda: over_unix(directory / "envoy-admin.sock", "/ready")[0] == 200)
    assert over_unix(directory / "kuma-readiness-reporter.sock", "/ready") == (503, "STARTING")
    assert " is ready" not in proxy.log
    plane.answer = lambda asked: packed(bootstrap(asked))
    os.kill(proxy.envoy_pid(), signal.SIGKILL)
    port = int(proxy.line(r"is ready: .*; answers DNS at 127\.0\.0\.1:(\d+)")[1])
    assert resolved(port).endswith(bytes([241, 0, 0, 1]))


def test_another_proxy_that_answers_dns_is_no_obstacle_and_the_port_is_said(start, plane):
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # somebody has it already
            taken.bind(("127.0.0.1", 15053))
            taken.listen()
        proxy = start("--dns", "--dns-upstream", "127.0.0.1:9")
        port = int(proxy.line(r"is ready: .*; answers DNS at 127\.0\.0\.1:(\d+)")[1])
        assert port != 15053
        assert resolved(port).endswith(bytes([241, 0, 0, 1]))


def test_a_port_to_which_the_kernel_redirects_queries_is_not_exchanged_for_another(start):
    redirected = ("--redirect-inbound-port", str(free_port()), "--redirect-outbound-port", str(free_port()))
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # somebody has it already
            taken.bind(("127.0.0.1", 15053))
            taken.listen()
        user = ("--user", str(os.getuid()))
        proxy = start("--transparent-proxy", "--address", "192.0.2.7", *redirected, *user, "--dns")
        assert proxy.ended() == 1
    assert "cannot answer DNS on 127.0.0.1:15053: Address already in use; choose another port" in proxy.log


@pytest.mark.parametrize("flag", ["--port", "--outbound"])
def test_a_port_on_which_another_envoy_listens_is_refused_before_anything_starts(start, plane, flag):
    with closing(socket.socket()) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        proxy = start(flag, str(port) if flag == "--port" else f"backend:{port}")
        assert proxy.ended() == 1
    assert f"cannot listen on 127.0.0.1:{port}: " in proxy.log
    assert (
        f"(process {os.getpid()}) listens there already; stop it, or choose another port with {flag} ("
        in proxy.log
    )
    assert plane.paths("/bootstrap") == []


@pytest.mark.expected_errors("Envoy was ended by SIGKILL")
def test_what_the_control_plane_finds_odd_is_said_once(start, plane):
    def answer(asked: Any) -> Any:
        status, found = packed(bootstrap(asked))
        return status, {**found, "warnings": ["the outbound on port 9001 leads nowhere"]}

    plane.answer = answer
    proxy = start()
    proxy.ready()
    os.kill(proxy.envoy_pid(), signal.SIGKILL)
    proxy.ready(2)
    said = "koguma dp: web-1 (mesh default) warning: the outbound on port 9001 leads nowhere"
    assert proxy.log.count(said) == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--dns", "--dns-port"), "choose another port with --dns-port, or do without DNS with --no-dns"),
        (("--readiness-port",), "choose another with --readiness-port, or none with 0"),
    ],
)
def test_a_port_that_is_taken_is_an_error_that_names_the_flag(start, plane, flags, words):
    proxy = start(*flags, str(plane.port))
    assert proxy.ended() == 1
    assert f"127.0.0.1:{plane.port}" in proxy.log
    assert f"Address already in use; {words}" in proxy.log
    assert list(proxy.runtime.iterdir()) == []
