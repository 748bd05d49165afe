"""Arrival: a revision has arrived when every proxy that it touches has acknowledged it, and never earlier."""

import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from koguma.envoy.snapshot import CLUSTER, LISTENER
from koguma.fleet import arrival
from koguma.fleet.bootstrap_request import LOG_DIRECTORIES
from koguma.fleet.proxy_progress import ChangeSpan, ProxyProgress, RefusedSpan, change_at
from koguma.model.resource import Key
from koguma.xds.contract import ProxyStatus, Rejection
from tests.build import dataplane
from tests.control_plane import LocalControlPlane
from tests.proxy_connections import connect, next_offer, report_ack, synced
from tests.waiting import WAIT_SECONDS, until

pytestmark = pytest.mark.slow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WEB = Key("Dataplane", "default", "default", "", "web-1")


def look_each_time(monkeypatch):
    """Whoever asks sees what is so now, not what was seen a moment ago."""
    monkeypatch.setattr(arrival, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(arrival, "_PAUSE_SHARE", 0)


@pytest.fixture(autouse=True)
def _stay_registered_and_look_each_time(monkeypatch):
    look_each_time(monkeypatch)
    monkeypatch.setattr("koguma.fleet.fleet.DEREGISTRATION_SECONDS", 60.0)


@pytest.fixture
def plane(tmp_path):
    with LocalControlPlane(tmp_path) as running:
        yield running


def headers_timeout(seconds, policy="t", /, **target):
    """A MeshTimeout that stands in the inbound listener of the proxies that it selects."""
    rules = [{"default": {"http": {"requestHeadersTimeout": f"{seconds}s"}}}]
    return {
        "type": "MeshTimeout",
        "mesh": "default",
        "name": policy,
        "spec": {"targetRef": {"kind": "Dataplane", **target}, "rules": rules},
    }


def written(plane, policy, plural="meshtimeouts"):
    answer = plane("PUT", f"/meshes/default/{plural}/{policy['name']}", policy)
    assert answer.status in (200, 201), answer.text
    return int(answer.headers["Koguma-Revision"])


def asked(plane, revision, seconds=0, query=""):
    answer = plane("GET", f"/_arrival?revision={revision}&seconds={seconds}{query}")
    assert answer.status == 200, answer.text
    return answer.json


def is_there(plane, revision):
    return asked(plane, revision)["arrived"]


def take(plane, *connections):
    """The proxies acknowledge what they were offered last."""

    async def report():
        for connection in connections:
            connection.report(synced(connection._offer))

    plane.run(report())


def joined(plane, name, address="127.0.0.1", **metadata):
    connection = connect(plane, dataplane(name, address=address), name=name, **metadata)
    plane.run(next_offer(connection))
    take(plane, connection)
    return connection


def settled(plane, *connections):
    """All of them have everything, also what follows from their coming; the revision up to which.

    The control plane's last write about a proxy that came is the number of proxies in its service's status.
    """

    def settled_at():
        take(plane, *connections)
        service = plane("GET", "/meshes/default/meshservices/web")
        status = service.json.get("status", {}) if service.status == 200 else {}
        if not status.get("vips") or status["dataplaneProxies"]["healthy"] != len(connections):
            return 0
        revision = plane.plane.store.state.revision
        return revision if is_there(plane, revision) else 0

    return until(settled_at)


def inbound_of(plane, offer):
    """The inbound listener in an offer, as text."""
    encoder = plane.plane._proxies.fleet._offers._encoder
    return "".join(str(encoder.shown(each)) for each in offer.snapshot.of_type(LISTENER).values())


def refuse(plane, connection, text="no", refused=None):
    """A proxy rejects its inbound listener, of an earlier offer where one is given."""

    async def report():
        offer = refused or connection._offer
        name = next(name for name in offer.snapshot.of_type(LISTENER) if connection.key.name in name)
        version = offer.snapshot.of_type(LISTENER)[name].version
        rejection = Rejection(LISTENER, (name,), text, offer.revision, (version,))
        before = connection.status
        connection.report(
            ProxyStatus(
                "nack",
                connection.offered_revision,
                before.acked,
                (rejection,),
                acked_versions=before.acked_versions,
                acked_snapshot=before.acked_snapshot,
            )
        )

    plane.run(report())


def test_it_waits_for_the_slowest_and_not_for_those_that_it_does_not_touch(plane):
    one, two, other = (joined(plane, name, f"127.0.0.{n}") for n, name in enumerate("abc", 1))
    settled(plane, one, two, other)
    revisions = [connection.offered_revision for connection in (one, two, other)]
    revision = written(plane, headers_timeout(3, labels={"kuma.io/service": "nobody"}))
    until(lambda: is_there(plane, revision), "it touches nobody, so all have it")
    assert asked(plane, revision)["proxies"] == {"total": 3, "affected": 0, "lacking": 0}
    assert [connection.offered_revision for connection in (one, two, other)] == revisions
    for connection in (one, two):
        written(plane, headers_timeout(4, connection.key.name, name=connection.key.name))
    revision = written(plane, headers_timeout(5, "a", name="a"))
    until(lambda: asked(plane, revision)["controlPlanes"] == [])
    answer = asked(plane, revision)
    assert [lack["name"] for lack in answer["lacking"]] == ["a", "b"]
    assert {lack["reason"] for lack in answer["lacking"]} == {"behind"}
    until(lambda: one.offered_revision >= revision)

    def lacking() -> list[str]:
        take(plane, one)  # also what it may be offered meanwhile
        return [lack["name"] for lack in asked(plane, revision)["lacking"]]

    until(lambda: lacking() == ["b"])
    take(plane, two)
    assert asked(plane, revision)["proxies"] == {"total": 3, "affected": 1, "lacking": 0}
    assert is_there(plane, revision)


def test_a_later_offer_does_not_take_back_what_a_proxy_has(plane):
    web = joined(plane, "web-1")
    settled(plane, web)
    first = written(plane, headers_timeout(3, labels={"kuma.io/service": "nobody"}))
    until(lambda: is_there(plane, first))
    second = written(plane, headers_timeout(4, "all"))
    until(lambda: web.offered_revision >= second)
    assert is_there(plane, first), "it did not touch the proxy, which is behind by another change"
    assert not is_there(plane, second)


def test_an_acknowledgement_of_an_older_offer_of_the_same_revision_is_not_one_of_the_newest(plane):
    web = joined(plane, "web-1")
    settled(plane, web)
    older = web._offer

    async def offer_and_report():
        web.offer_again(older.snapshot.__copy__())
        web.report(synced(older))
        return web.has_newest, web.behind_since

    has_newest, behind_since = plane.run(offer_and_report())
    assert not has_newest
    assert behind_since is not None
    take(plane, web)
    assert web.behind_since is None


def test_a_refusal_is_named_with_the_object_and_envoys_words_and_later_changes_arrive(plane):
    web = joined(plane, "web-1")
    before = settled(plane, web)
    revision = written(plane, headers_timeout(3, "bad"))
    until(lambda: web.offered_revision >= revision)
    refuse(plane, web, "Proto constraint validation failed")
    until(lambda: "requestHeadersTimeout', '3s'" not in inbound_of(plane, web._offer))
    take(plane, web)
    (lack,) = asked(plane, revision)["lacking"]
    assert (lack["name"], lack["reason"], lack["isLasting"]) == ("web-1", "refused", True)
    assert lack["objects"] == ["kri_dp_default_default__web-1_10080"]
    assert f"of revision {revision}: Proto constraint validation failed" in lack["text"]
    assert is_there(plane, before), "that one it has"
    until(lambda: (take(plane, web), is_there(plane, plane.plane.store.state.revision))[1])
    other = written(plane, headers_timeout(4, "other", labels={"kuma.io/service": "nobody"}))
    until(lambda: is_there(plane, other), "what it refused before is no part of this one")
    assert not is_there(plane, revision)
    mended = written(plane, headers_timeout(7, "bad"))
    until(lambda: web.offered_revision >= mended)
    assert not is_there(plane, mended)
    take(plane, web)
    assert is_there(plane, mended)


def added_cluster(name):
    """A MeshProxyPatch that touches all proxies, and of each another part than a MeshTimeout does."""
    cluster = {"operation": "Add", "value": f"name: {name}\nconnectTimeout: 5s\ntype: STATIC\n"}
    return {
        "type": "MeshProxyPatch",
        "mesh": "default",
        "name": "adds",
        "spec": {"targetRef": {"kind": "Mesh"}, "default": {"appendModifications": [{"cluster": cluster}]}},
    }


def test_what_is_offered_again_while_a_later_change_waits_is_not_that_change(plane, monkeypatch):
    web = joined(plane, "web-1")
    settled(plane, web)
    monkeypatch.setattr("koguma.fleet.announcements.PAUSE_SECONDS_PER_PROXY", 3.0)
    first = written(plane, headers_timeout(3, "bad"))
    until(lambda: web.offered_revision >= first)
    second = written(plane, added_cluster("later"), "meshproxypatches")
    refused = web._offer
    refuse(plane, web)
    until(lambda: web._offer is not refused)
    again = web._offer
    assert again.snapshot.get((CLUSTER, "later")) is None, "the round after the pause has not begun"
    take(plane, web)
    assert not is_there(plane, second)
    until(lambda: web._offer is not again)
    until(lambda: asked(plane, second)["controlPlanes"] == [])
    assert web._offer.snapshot.get((CLUSTER, "later"))
    assert not is_there(plane, second), "it is offered, and not acknowledged"
    take(plane, web)
    assert is_there(plane, second)


def test_a_refusal_that_comes_after_many_later_offers_is_one_of_its_own_revision(plane):
    web = joined(plane, "web-1")
    settled(plane, web)
    first = written(plane, headers_timeout(3, "bad"))
    until(lambda: web.offered_revision >= first)
    refused = web._offer
    for number in range(6):
        later = written(plane, added_cluster(f"later-{number}"), "meshproxypatches")
        until(lambda later=later: web.offered_revision >= later)
    newest = web._offer
    refuse(plane, web, refused=refused)
    until(lambda: web._offer is not newest, "it is offered what it took last")
    take(plane, web)
    (lack,) = asked(plane, first)["lacking"]
    assert (lack["reason"], f"of revision {first}: no" in lack["text"]) == ("refused", True)
    assert is_there(plane, later)


def refuses_and_goes_on(plane, web, revision):
    """A proxy refuses a revision, gets what it had before in its place, and acknowledges that."""
    until(lambda: web.offered_revision >= revision)
    refused = web._offer
    refuse(plane, web)
    until(lambda: web._offer is not refused)
    take(plane, web)


def test_what_was_refused_has_not_arrived_while_a_change_of_it_is_on_its_way_or_refused_too(plane):
    web = joined(plane, "web-1")
    settled(plane, web)
    first = written(plane, headers_timeout(3, "bad"))
    refuses_and_goes_on(plane, web, first)
    second = written(plane, headers_timeout(4, "bad"))
    until(lambda: web.offered_revision >= second)
    assert not is_there(plane, first), "it has neither"
    assert not is_there(plane, second)
    refuses_and_goes_on(plane, web, second)
    assert not is_there(plane, first)
    third = written(plane, headers_timeout(5, "bad"))
    until(lambda: web.offered_revision >= third)
    take(plane, web)
    until(lambda: is_there(plane, third))
    assert is_there(plane, first), "what it was about is as the last one has it"


def test_a_proxy_keeps_what_it_took_last_also_of_an_offer_that_another_one_followed(plane):
    web = joined(plane, "web-1")
    settled(plane, web)
    (id_,) = [id_ for id_ in (each.id for each in web.offered) if id_[0] == LISTENER and "web-1" in id_[1]]
    first = written(plane, headers_timeout(3, "bad"))
    until(lambda: web.offered_revision >= first)
    taken = web.offered.get(id_)
    second = written(plane, headers_timeout(4, "bad"))
    until(lambda: web.offered_revision >= second)

    async def take_the_listener_of_the_first():
        acked = web.status
        versions = {LISTENER: {id_[1]: taken.version}}
        web.report(
            ProxyStatus(
                "behind",
                web.offered_revision,
                acked.acked,
                acked_versions=versions,
                acked_snapshot=acked.acked_snapshot,
            )
        )

    plane.run(take_the_listener_of_the_first())
    refused = web._offer
    refuse(plane, web)
    until(lambda: web._offer is not refused)
    assert web.offered.get(id_).version == taken.version, "else it would go back to an older one"
    assert not is_there(plane, second)


def test_who_leaves_is_waited_for_until_it_is_back_or_its_object_is_gone(plane):
    web, job = joined(plane, "web-1"), joined(plane, "job-1", "127.0.0.2")
    before = settled(plane, web, job)
    plane.run(web.close())
    revision = written(plane, headers_timeout(3, "all"))
    until(lambda: job.offered_revision >= revision)
    take(plane, job)
    (lack,) = asked(plane, revision)["lacking"]
    assert (lack["name"], lack["reason"], lack["isLasting"]) == ("web-1", "not-connected", False)
    assert lack["since"]
    assert is_there(plane, before), "it left with all of that"
    assert asked(plane, revision, query="&connected=true")["arrived"]
    back = connect(plane, dataplane("web-1"), name="web-1")
    plane.run(next_offer(back))
    assert [lack["reason"] for lack in asked(plane, revision)["lacking"]] == ["behind"]
    assert not asked(plane, revision, query="&connected=true")["arrived"]
    take(plane, back)
    until(lambda: is_there(plane, revision))
    plane.run(back.close())
    again = written(plane, headers_timeout(4, "all"))
    until(lambda: job.offered_revision >= again)
    take(plane, job)
    assert not is_there(plane, again)
    plane("DELETE", "/meshes/default/dataplanes/web-1")
    until(lambda: (take(plane, job), is_there(plane, again))[1])


def test_a_dataplane_that_no_proxy_has_ever_used_is_not_waited_for(plane):
    assert plane("PUT", "/meshes/default/dataplanes/written", dataplane("written")).status == 201
    revision = plane.plane.store.state.revision
    until(lambda: is_there(plane, revision))
    assert asked(plane, revision)["proxies"]["total"] == 0


def test_what_a_proxy_brought_counts_where_no_control_plane_knows_its_proxy(plane):
    web = joined(plane, "brought")
    states = plane.plane._proxies.states

    async def forget():
        states._local._roster.remove(web)

    plane.run(forget())
    revision = plane.plane.store.state.revision
    (lack,) = asked(plane, revision)["lacking"]
    assert (lack["name"], lack["text"]) == ("brought", "no control plane has seen it yet")


@pytest.mark.expected_errors("cannot be built")
def test_what_cannot_be_built_for_a_proxy_has_not_arrived(plane, monkeypatch):
    web = joined(plane, "web-1")
    settled(plane, web)
    compiler = "koguma.fleet.compiler.SnapshotCompiler._spiffe_ids"
    with monkeypatch.context() as broken:
        broken.setattr(compiler, lambda *_: 1 / 0)
        revision = written(plane, headers_timeout(3, "all"))
        until(lambda: web.build_failure is not None)
        until(lambda: asked(plane, revision)["controlPlanes"] == [])
        (lack,) = asked(plane, revision)["lacking"]
        assert (lack["reason"], lack["isLasting"]) == ("unbuildable", True)
        assert "division by zero" in lack["text"]
    mended = written(plane, headers_timeout(4, "all"))
    until(lambda: web.offered_revision >= mended)
    assert not is_there(plane, revision), "it is offered, and not acknowledged"
    take(plane, web)
    assert is_there(plane, mended)


@pytest.mark.expected_errors("cannot be built")
def test_a_part_that_cannot_be_built_is_lacking_of_its_own_change_alone(plane):
    web = joined(plane, "web-1", **{LOG_DIRECTORIES: []})
    settled(plane, web)
    log = {"backends": [{"type": "File", "file": {"path": "/etc/elsewhere"}}]}
    spec = {"rules": [{"default": log}]}
    broken = {"type": "MeshAccessLog", "mesh": "default", "name": "elsewhere", "spec": spec}
    revision = written(plane, broken, "meshaccesslogs")
    until(lambda: web.offered_revision >= revision)
    take(plane, web)
    until(lambda: asked(plane, revision)["controlPlanes"] == [])
    (lack,) = asked(plane, revision)["lacking"]
    assert (lack["reason"], lack["objects"]) == ("unbuildable", ["MeshAccessLog"])
    later = written(plane, headers_timeout(3, "later"))
    until(lambda: web.offered_revision >= later)
    assert not is_there(plane, later), "it is offered, and not acknowledged"
    take(plane, web)
    until(lambda: is_there(plane, later))
    assert asked(plane, later)["proxies"] == {"total": 1, "affected": 1, "lacking": 0}
    assert not is_there(plane, revision)
    log["backends"][0]["file"]["path"] = "/etc/another"
    changed = written(plane, broken, "meshaccesslogs")
    until(lambda: web.offered_revision >= changed)
    take(plane, web)
    until(lambda: asked(plane, changed)["controlPlanes"] == [])
    assert not is_there(plane, changed)
    assert plane("DELETE", "/meshes/default/meshaccesslogs/elsewhere").status == 200


def test_wrong_questions_are_refused(plane, monkeypatch):
    monkeypatch.setattr("koguma.api.arrival._UNKNOWN_SECONDS", 0.1)
    for query, word in (
        ("revision=x", "whole number"),
        ("revision=0", "whole number"),
        (f"revision={10**30}", "whole number"),
        ("seconds=31", "from 0 to 30"),
        ("seconds=nan", "from 0 to 30"),
        ("connected=perhaps", "must be one of"),
        ("object=web", "must be a KRI"),
        ("&".join(["object=kri_mt_a"] * 51), "at most 50"),
        ("&".join(["revision=1"] * 51), "at most 50"),
    ):
        answer = plane("GET", f"/_arrival?{query}")
        assert (answer.status, word in answer.json["detail"]) == (400, True), answer.text
    answer = plane("GET", "/_arrival?revision=999999")
    assert answer.status == 404
    assert "the newest one is" in answer.json["detail"]


ACCESS = """
access:
  roles:
    - name: red-proxies
      rules: [{verbs: [list], resources: [dataplanes], meshes: [red]}]
    - name: proxies-elsewhere
      rules: [{verbs: [list], resources: [dataplanes], meshes: [blue]}]
    - name: timeouts
      rules: [{verbs: [get, list, update, create], resources: [meshtimeouts]}]
  bindings:
    - {role: red-proxies, users: [rita]}
    - {role: proxies-elsewhere, users: [bob]}
    - {role: timeouts, users: [tim]}
"""


def test_the_answer_is_about_proxies_that_the_user_may_list_and_about_no_other(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(ACCESS)
    with LocalControlPlane(tmp_path, str(file), localhost_is_admin=False) as plane:
        admin = {"Authorization": f"Bearer {(plane.data_dir / 'admin-token').read_text()}"}

        def bearer(name):
            token = plane("POST", "/tokens/user", {"name": name, "groups": [], "validFor": "1h"}, **admin)
            return {"Authorization": f"Bearer {token.text}"}

        def arrival_for(**user):
            return plane("GET", "/_arrival", **user)

        assert plane("PUT", "/meshes/red", {"type": "Mesh", "name": "red"}, **admin).status == 201
        token = plane(
            "POST",
            "/tokens/dataplane",
            {"mesh": "default", "tags": {"kuma.io/service": ["web"]}, "validFor": "1h"},
            **admin,
        ).text
        connect(plane, dataplane(), shown=token)

        def compiled_for(**user):
            answer = arrival_for(**user).json
            return answer if answer["controlPlanes"] == [] else None

        whole, part = until(lambda: compiled_for(**admin)), until(lambda: compiled_for(**bearer("rita")))
        assert (whole["arrived"], whole["isPartial"], whole["lacking"][0]["name"]) == (False, False, "web-1")
        assert (part["arrived"], part["isPartial"], part["lacking"]) == (True, True, [])
        assert part["proxies"] == {"total": 0, "affected": 0, "lacking": 0}
        for name in ("tim", "bob"):
            refused = arrival_for(**bearer(name))
            assert (refused.status, "cannot list dataplanes" in refused.json["detail"]) == (403, True)
        assert arrival_for().status == 403


def test_not_too_many_wait_at_once(plane, monkeypatch):
    monkeypatch.setattr("koguma.api.arrival.WAITING_MAX", 0)
    answer = plane("GET", "/_arrival?seconds=30")
    assert answer.status == 503
    assert "waiting already" in answer.json["detail"]


def test_a_request_that_waits_ends_with_the_control_plane(tmp_path, monkeypatch):
    looked, pause = threading.Event(), arrival.Arrivals.pause

    def pause_after_a_look(arrivals):
        looked.set()
        return pause(arrivals)

    monkeypatch.setattr(arrival.Arrivals, "pause", pause_after_a_look)
    with LocalControlPlane(tmp_path) as plane:
        joined(plane, "web-1")
        revision = written(plane, headers_timeout(3, "all"))
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(asked, plane, revision, 30)
            assert looked.wait(WAIT_SECONDS)
            plane.plane._not_ready = "stopping"
            assert waiting.result()["arrived"] is False


@pytest.mark.parametrize(
    ("progress", "lacks"),
    [
        ({"has": 7}, False),
        ({"has": 6}, True),
        ({"has": 9, "is_stuck": True}, True),
        ({"has": 9, "lacks_parts": True, "offered": 6}, False),
        ({"has": 9, "lacks_parts": True, "offered": 7}, True),
        ({"has": 9, "refused": (RefusedSpan(6, 7),)}, True),
        ({"has": 9, "refused": (RefusedSpan(7, 8), RefusedSpan(3, 6))}, False),
        ({"has": 9, "refused": (RefusedSpan(0, 0),)}, False),
    ],
)
def test_what_a_proxy_lacks_of_revision_seven(progress, lacks):
    assert ProxyProgress(WEB, NOW, **progress).lacks(change_at(7)) is lacks


def test_an_object_that_is_refused_has_not_arrived_at_a_later_revision_of_its_status():
    progress = ProxyProgress(WEB, NOW, 9, refused=(RefusedSpan(6, 7, frozenset({"kri_mpp_a"})),))
    assert not progress.lacks(change_at(8))
    assert progress.lacks(change_at(8), ("kri_mpp_a",))
    assert not progress.lacks(change_at(8), ("kri_mpp_b",))


@pytest.mark.parametrize(
    ("progress", "lacks"),
    [
        ({"refused": (RefusedSpan(3, 4),)}, False),
        ({"refused": (RefusedSpan(3, 5),)}, True),
        ({"refused": (RefusedSpan(5, 6),)}, True),
        ({"refused": (RefusedSpan(7, 8),)}, False),
        ({"lacks_parts": True, "offered": 4}, False),
        ({"lacks_parts": True, "offered": 5}, True),
    ],
)
def test_what_a_proxy_lacks_of_a_change_that_was_stored_somewhere_from_revision_five_to_seven(
    progress, lacks
):
    assert ProxyProgress(WEB, NOW, 9, **progress).lacks(ChangeSpan(4, 7)) is lacks


def test_after_an_hour_a_proxy_that_left_counts_as_switched_off(plane, monkeypatch):
    web = joined(plane, "web-1")
    settled(plane, web)
    plane.run(web.close())
    revision = written(plane, headers_timeout(3, "all"))
    until(lambda: asked(plane, revision)["controlPlanes"] == [])
    assert not is_there(plane, revision)
    monkeypatch.setattr(arrival, "ABSENT_MAX", timedelta(seconds=-1))
    assert is_there(plane, revision)


class RandomFleet:
    """Proxies that do what proxies do, in any order: connect, acknowledge late, refuse, leave, move."""

    NAMES = ("a", "b", "c", "d")

    def __init__(self, planes, seed):
        self.planes = planes
        self._random = random.Random(seed)
        self._connections = {}  # by name: where, and the connection
        self._pending = {}  # offers that were not answered yet, the oldest first
        self._holds = dict.fromkeys(self.NAMES, 0)  # the timeout that its Envoy really has
        self._refused = {name: [] for name in self.NAMES}  # the revisions of the offers
        self._writes = []  # revision, name, seconds
        self._seconds = dict.fromkeys(self.NAMES, 0)
        self.n_arrived = self.n_pending = 0

    def step(self):
        """Do something, then compare what is said of each late revision with what is so."""
        weights = {self.write: 3, self.answer: 12, self.come: 2, self.go: 1}
        (doing,) = self._random.choices(list(weights), weights.values())
        doing(self._random.choice(self.NAMES))
        time.sleep(self._random.choice((0, 0.01, 0.03)))
        self.check()

    def write(self, name):
        self._seconds[name] += 1
        seconds = 10 + self._seconds[name]
        revision = written(self._random.choice(self.planes), headers_timeout(seconds, f"t-{name}", name=name))
        self._writes.append((revision, name, seconds))

    def come(self, name):
        plane = self._random.choice(self.planes)
        connection = connect(plane, dataplane(name, port=1000 + self.NAMES.index(name)), name=name)
        self._connections[name], self._pending[name] = (plane, connection), []

        async def watch():
            connection.watch_offers(self._pending[name].append)

        plane.run(watch())

    def go(self, name):
        if name in self._connections:
            plane, connection = self._connections.pop(name)
            plane.run(connection.close())

    def answer(self, name):
        """Acknowledge an offer, at times not the newest, or refuse it."""
        if name not in self._connections or not self._pending[name]:
            return
        plane, connection = self._connections[name]
        offers = self._pending[name]
        chosen = self._random.choice((0, len(offers) - 1))
        offer = offers[chosen]
        del offers[: chosen + 1]  # an Envoy never goes back
        if self._random.random() < 0.1 and offer is connection._offer:
            self._refused[name].append(offer.revision)
            refuse(plane, connection, "no")
            return
        held = self._timeout(offer)

        async def report():
            self._holds[name] = held
            report_ack(connection, offer)

        plane.run(report())

    def _timeout(self, offer):
        found = re.search(r"requestHeadersTimeout', '(\d+)s'", inbound_of(self.planes[0], offer))
        return int(found[1]) if found else 0

    def check(self):
        for revision, _, _ in self._writes[-4:]:
            for plane in self.planes:

                async def ask(plane=plane, revision=revision):
                    return plane.plane._proxies.arrivals.of(change_at(revision)).is_complete

                if not plane.run(ask()):
                    self.n_pending += 1
                    continue
                self.n_arrived += 1
                self._compare(revision)

    def _compare(self, revision):
        known = {key.name for plane in self.planes for key in plane.plane._proxies.states.progress()}
        for at, name, seconds in self._writes:
            # What was refused is no part of later revisions.
            is_left_out = any(at <= refused < revision for refused in self._refused[name])
            if at <= revision and name in known and not is_left_out:
                assert self._holds[name] >= seconds, f"{name} lacks what was written at {at}"

    def settle(self):
        """Let all come and acknowledge everything; then all has arrived."""
        newest = self.planes[0].plane.store.state.revision
        for name in self.NAMES:
            self.come(name)

        def is_settled():
            for plane, connection in self._connections.values():
                plane.run(self._take(connection))
            held = any(
                plane.plane._proxies.fleet.quarantine.of(key) for plane in self.planes for key in self._keys()
            )
            return held or all(is_there(plane, newest) for plane in self.planes)

        until(is_settled)
        self.check()

    async def _take(self, connection):
        """A proxy acknowledges its newest offer, in the moment in which that is looked at."""
        if connection._offer is not None:
            self._holds[connection.key.name] = self._timeout(connection._offer)
            connection.report(synced(connection._offer))

    def _keys(self):
        return [connection.key for _, connection in self._connections.values()]


def test_it_never_says_too_early_that_a_revision_has_arrived(plane):
    for seed in (0, 1, 105, 111):
        fleet = RandomFleet([plane], seed)
        fleet.settle()
        for _ in range(80):
            fleet.step()
        fleet.settle()
        assert fleet.n_pending > 0 < fleet.n_arrived


@pytest.mark.slow
def test_nor_do_two_control_planes_on_one_store(own_postgres, tmp_path):
    store = own_postgres.database()
    with (
        LocalControlPlane(tmp_path / "a", store=store) as first,
        LocalControlPlane(tmp_path / "b", store=store) as second,
    ):
        for seed in range(2):
            fleet = RandomFleet([first, second], seed)
            fleet.settle()
            for _ in range(80):
                fleet.step()
            fleet.settle()
            assert fleet.n_pending > 0 < fleet.n_arrived
