"""`koguma wait`, `apply --wait` and `delete --wait`: what they print, and how they end."""

import io
import json
import socket
import threading

import pytest
import yaml

from koguma.cli import arrival
from tests.build import dataplane
from tests.control_plane import LocalControlPlane
from tests.proxy_connections import connect, next_offer, synced
from tests.test_arrival import headers_timeout, refuse, settled, take
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("cp")) as running:
        yield running


@pytest.fixture
def run(koguma, monkeypatch, plane):
    monkeypatch.setenv("KOGUMA_ADDRESS", plane.address)
    return koguma


@pytest.fixture
def web(plane):
    """A proxy that has everything."""
    connection = connect(plane, dataplane(), name="web-1")
    plane.run(next_offer(connection))
    settled(plane, connection)
    yield connection
    plane.run(connection.close())
    plane("DELETE", "/meshes/default/dataplanes/web-1")
    plane("DELETE", "/meshes/default/meshtimeouts/t")


def taking(plane, connection, revision_before):
    """Acknowledge the next offer a little later, as an Envoy does."""

    def later():
        until(lambda: connection.offered_revision > revision_before)
        plane.run(_report(connection))

    thread = threading.Thread(target=later)
    thread.start()
    return thread


async def _report(connection):
    connection.report(synced(connection._offer))


def test_apply_and_delete_wait_until_the_proxies_have_it(plane, web, run):
    policy = yaml.safe_dump(headers_timeout(3))
    thread = taking(plane, web, web.offered_revision)
    ended = run("apply", "-f", "-", "--wait", given=policy)
    thread.join()
    assert (ended.code, ended.err) == (0, "")
    created, line = ended.out.splitlines()
    assert created == "meshtimeout/t created"
    assert line.startswith(f"revision {web.offered_revision}: 1 of 1 proxy has it (")
    ended = run("apply", "-f", "-", "--wait", given=policy)
    assert (ended.code, ended.out.splitlines()[0]) == (0, "meshtimeout/t unchanged")
    thread = taking(plane, web, web.offered_revision)
    ended = run("delete", "meshtimeout/t", "--wait")
    thread.join()
    assert (ended.code, ended.err) == (0, "")
    assert f"revision {web.offered_revision}: 1 of 1 proxy has it" in ended.out


def test_who_is_not_in_time_is_named_and_the_write_stays(plane, web, run):
    before = web.offered_revision
    ended = run("apply", "-f", "-", "--wait", "--timeout", "100ms", given=yaml.safe_dump(headers_timeout(4)))
    assert ended.code == arrival.NOT_ARRIVED == 2
    assert ended.out == "meshtimeout/t created\n"
    until(lambda: web.offered_revision > before)
    ended = run("wait", "meshtimeout/t", "--timeout", "100ms")
    assert (ended.code, ended.out) == (arrival.NOT_ARRIVED, "")
    first, second = ended.err.splitlines()
    assert "not arrived: revision" in first
    assert "0 of 1 proxy have it; web-1 is behind since 20" in first
    assert second.startswith("  web-1 is behind since 20")
    assert plane("GET", "/meshes/default/meshtimeouts/t").status == 200
    take(plane, web)
    ended = run("wait", "meshtimeout/t")
    assert (ended.code, "1 of 1 proxy has it" in ended.out) == (0, True), ended.err
    answer = json.loads(run("wait", "meshtimeout", "t", "-o", "json").out)
    assert answer["arrived"] is True


def test_a_refusal_ends_it_at_once_with_envoys_words(plane, web, run):
    before = web.offered_revision
    assert plane("PUT", "/meshes/default/meshtimeouts/t", headers_timeout(5)).status == 201
    until(lambda: web.offered_revision > before)
    refused = web._offer
    refuse(plane, web, "field is out of range\x1b[2J")
    until(lambda: web._offer is not refused)
    take(plane, web)
    ended = run("wait", "meshtimeout/t", "--timeout", "1h")
    assert ended.code == 2
    assert "web-1 has refused a part of it (by kri_dp_default_default__web-1_10080): listener" in ended.err
    assert "field is out of range?[2J" in ended.err, "what a proxy says does not control the terminal"


def refused_and_followed(plane, web):
    """The proxy refuses what was written last and takes what it had, then it takes another change."""
    refused = web._offer
    refuse(plane, web, "no")
    until(lambda: web._offer is not refused)
    take(plane, web)
    later = headers_timeout(7, "other", labels={"kuma.io/service": "nobody"})
    assert plane("PUT", "/meshes/default/meshtimeouts/other", later).status in (200, 201)
    return later


@pytest.mark.parametrize("asked_max", [50, 1])
def test_an_unchanged_object_that_was_refused_has_not_arrived_beside_a_later_one(
    plane, web, run, monkeypatch, asked_max
):
    monkeypatch.setattr(arrival, "_ASKED_MAX", asked_max)
    before, refused = web.offered_revision, headers_timeout(5)
    assert plane("PUT", "/meshes/default/meshtimeouts/t", refused).status == 201
    until(lambda: web.offered_revision > before)
    later = refused_and_followed(plane, web)
    assert run("wait", "meshtimeout/other").code == 0
    for ended in (
        run("apply", "-f", "-", "--wait", given=yaml.safe_dump_all([refused, later])),
        run("wait", "meshtimeout/other", "meshtimeout/t"),
        run("wait", "meshtimeout/t", "meshtimeout/other"),
    ):
        assert (ended.code, "web-1 has refused a part of it" in ended.err) == (2, True), ended.out
    plane("DELETE", "/meshes/default/meshtimeouts/other")


def test_each_of_several_deletions_has_to_arrive(plane, web, run):
    before = web.offered_revision
    assert plane("PUT", "/meshes/default/meshtimeouts/t", headers_timeout(5)).status == 201
    later = headers_timeout(7, "other", labels={"kuma.io/service": "nobody"})
    assert plane("PUT", "/meshes/default/meshtimeouts/other", later).status == 201
    until(lambda: web.offered_revision > before)
    take(plane, web)
    offered = web._offer

    def refuse_the_first():
        until(lambda: web._offer is not offered)
        refused = web._offer
        refuse(plane, web, "no")
        until(lambda: web._offer is not refused)
        take(plane, web)

    thread = threading.Thread(target=refuse_the_first)
    thread.start()
    ended = run("delete", "meshtimeout/t", "meshtimeout/other", "--wait")
    thread.join()
    assert (ended.code, "web-1 has refused a part of it" in ended.err) == (2, True), ended.out


def test_a_server_that_stands_still_ends_it_in_time(koguma, monkeypatch):
    monkeypatch.setattr(arrival, "_PATIENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as still:
        address = f"http://127.0.0.1:{still.getsockname()[1]}"
        ended = koguma("wait", "--address", address, "--timeout", "100ms")
    assert ended.code == 3
    assert "no answer in time" in ended.err


def test_who_has_left_is_named_and_may_be_left_out(plane, run):
    web = connect(plane, dataplane("gone"), name="gone")
    plane.run(next_offer(web))
    settled(plane, web)
    plane.run(web.close())
    assert plane("PUT", "/meshes/default/meshtimeouts/t", headers_timeout(6)).status == 201
    ended = run("wait", "--timeout", "100ms")
    assert ended.code == 2
    assert "gone is not connected since 20" in ended.err
    ended = run("wait", "--connected")
    assert ended.code == 0
    assert "there are no proxies" in ended.out
    plane("DELETE", "/meshes/default/dataplanes/gone")
    plane("DELETE", "/meshes/default/meshtimeouts/t")


def test_ctrl_c_leaves_the_write_and_says_how_to_go_on(plane, web, run, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(arrival, "_is_over", interrupted)
    ended = run("apply", "-f", "-", "--wait", given=yaml.safe_dump(headers_timeout(8)))
    assert ended.code == 130
    revision = plane("GET", "/meshes/default/meshtimeouts/t").headers["ETag"].strip('"')
    assert ended.err == f"interrupted: what was written stays; `koguma wait {revision}` waits again\n"


def test_on_a_terminal_there_is_a_live_line(plane, web, run, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("koguma.cli.terminal._COLUMNS", 60)
    monkeypatch.setenv("NO_COLOR", "1")
    before = web.offered_revision
    assert plane("PUT", "/meshes/default/meshtimeouts/t", headers_timeout(9)).status == 201
    until(lambda: web.offered_revision > before)
    run("wait", "meshtimeout/t", "--timeout", "200ms")
    drawn = screen.getvalue().split("\r\x1b[K")
    assert any("0 of 1 proxy have it; web-1 is behind" in line for line in drawn[1:])
    assert max(map(len, drawn[1:-1])) == 60 - 1, "a line that wraps could not be drawn over"


def test_wrong_words_are_refused(run, monkeypatch):
    monkeypatch.setattr("koguma.api.arrival._UNKNOWN_SECONDS", 0.1)
    for words, text in (
        (("wait", "7", "meshtimeout/t"), "must be KIND/NAME"),
        (("wait", "meshtimeout"), "name the meshtimeout to wait for"),
        (("wait", "--timeout", "soon"), "must be a duration"),
        (("wait", "--timeout", "-1s"), "must not be negative"),
        (("wait", "meshtimeout/nowhere"), "meshtimeout/nowhere"),
        (("wait", "99999999"), "there is no revision 99999999: the newest one is"),
        (("wait", "meshinsight/default"), "computed"),
    ):
        ended = run(*words)
        assert ended.code in (1, 2), words
        assert text in ended.err, words


def test_without_a_server_it_fails_at_once(koguma):
    ended = koguma("wait", "--address", "http://127.0.0.1:9", "--timeout", "1h")
    assert ended.code == 3
