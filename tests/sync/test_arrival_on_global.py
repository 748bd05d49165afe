"""Arrival on Global: a revision of its store has arrived once every proxy of every zone has it."""

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from koguma.fleet.lack_view import Lack
from koguma.fleet.zone_arrival import LackingProxy, ZoneArrivalAnswer, ZoneArrivalQuestion
from koguma.model import names
from koguma.model.resource import Key
from tests.build import dataplane
from tests.control_plane import LocalControlPlane
from tests.proxy_connections import connect
from tests.sync.test_zones import OF_ZONE, URL, Federation, _has_mesh
from tests.test_arrival import (
    ACCESS,
    asked,
    headers_timeout,
    inbound_of,
    is_there,
    joined,
    look_each_time,
    refuse,
    settled,
    take,
    written,
)
from tests.waiting import until

pytestmark = pytest.mark.slow


class TwoZones(NamedTuple):
    """Global, and two zones with a proxy each that has everything."""

    federation: Federation
    top: LocalControlPlane
    east: LocalControlPlane
    west: LocalControlPlane
    web: Any  # of east
    job: Any  # of west

    def take(self) -> None:
        take(self.east, self.web)
        take(self.west, self.job)

    def wait_until_there(self, revision: int) -> None:
        def has_arrived() -> bool:
            self.take()
            return bool(is_there(self.top, revision))

        until(has_arrived, f"revision {revision} has arrived")


@pytest.fixture(autouse=True)
def _stay_registered_and_look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    look_each_time(monkeypatch)
    monkeypatch.setattr("koguma.fleet.fleet.DEREGISTRATION_SECONDS", 60.0)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoZones]:
    federation = Federation(tmp_path_factory.mktemp("z"))
    with federation.stack, federation.zone("east") as east, federation.zone("west") as west:
        for zone in (east, west):
            until(lambda zone=zone: _has_mesh(zone), "the mesh comes from Global")
        web, job = joined(east, "web-1"), joined(west, "job-1")
        yield TwoZones(federation, federation.top, east, west, web, job)


@pytest.fixture
def zones(both: TwoZones) -> TwoZones:
    """Both, with everything that was written before."""
    settled(both.east, both.web)
    settled(both.west, both.job)
    both.wait_until_there(both.top.plane.store.state.revision)
    return both


def _zones(answer: Any) -> dict[str, str]:
    return {zone["name"]: zone["reason"] for zone in answer["zones"]}


def _lacking(answer: Any) -> dict[str, str]:
    return {lack["zone"]: lack["reason"] for lack in answer["lacking"]}


def _named(plane: LocalControlPlane, name: str) -> list[str]:
    return [each["name"] for each in plane("GET", "/meshtimeouts").json["items"] if name in each["name"]]


def test_it_waits_for_the_proxies_of_all_zones_and_names_them_with_their_zone(zones: TwoZones) -> None:
    top = zones.top
    revision = written(top, headers_timeout(3))
    until(
        lambda: _lacking(asked(top, revision)) == {"east": "behind", "west": "behind"}, "both have to take it"
    )
    take(zones.east, zones.web)
    until(lambda: _lacking(asked(top, revision)) == {"west": "behind"}, "west is left")
    answer = asked(top, revision)
    assert answer["proxies"] == {"total": 2, "affected": 2, "lacking": 1}
    assert (answer["arrived"], answer["zones"], answer["isPartial"]) == (False, [], False)
    (lack,) = answer["lacking"]
    assert (lack["kri"], lack["mesh"]) == ("kri_dp_default_west__job-1_", "default")
    assert lack["name"] == top("GET", f"/_kri/{lack['kri']}").json["name"], "the name that Global has for it"
    assert lack["instance"] == zones.west("GET", "/").json["instanceId"]
    take(zones.west, zones.job)
    until(lambda: is_there(top, revision), "all have it")
    assert asked(top, revision)["proxies"] == {"total": 2, "affected": 2, "lacking": 0}


def test_a_deletion_and_a_change_that_no_proxy_sees_arrive(zones: TwoZones) -> None:
    top = zones.top
    written(top, headers_timeout(4, "gone"))
    deleted = top("DELETE", "/meshes/default/meshtimeouts/gone")
    revision = int(deleted.headers["Koguma-Revision"])
    zones.wait_until_there(revision)
    assert not _named(zones.east, "gone")
    for policy in (
        headers_timeout(5, "for-nobody", labels={"kuma.io/service": "nobody"}),
        {**headers_timeout(6, "stays"), "labels": {"kuma.io/kds-sync": "disabled"}},
    ):
        seconds = itertools.count(5)

        def touches_nobody(policy: Any = policy, seconds: Iterator[int] = seconds) -> bool:
            """Offers of what came before are counted, too, while they are still being compiled."""
            spec = headers_timeout(next(seconds))["spec"]
            changed = {**policy, "spec": {**policy["spec"], "rules": spec["rules"]}}
            answer = asked(top, written(top, changed), 20)
            assert answer["arrived"], answer
            return bool(answer["proxies"]["affected"] == 0)

        until(touches_nobody, "no proxy is touched")
    assert not _named(zones.east, "stays")


def test_what_the_end_of_another_zones_services_does_is_waited_for(zones: TwoZones) -> None:
    top, east = zones.top, zones.east

    def of_west() -> list[str]:
        return [each["kri"] for each in east("GET", "/meshservices").json["items"] if "_west_" in each["kri"]]

    assert of_west()
    switched = top("PUT", "/zones/west", {"type": "Zone", "name": "west", "enabled": False})
    zones.wait_until_there(int(switched.headers["Koguma-Revision"]))
    assert not of_west(), (
        "the write is that of a Zone, and east has lost the services of west when it arrives"
    )
    switched = top("PUT", "/zones/west", {"type": "Zone", "name": "west", "enabled": True})
    zones.wait_until_there(int(switched.headers["Koguma-Revision"]))
    assert of_west()


def test_what_a_zone_has_not_received_has_not_arrived(
    zones: TwoZones, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = zones.top
    with monkeypatch.context() as slow:
        slow.setattr("koguma.sync.protocol.publisher.WINDOW_BYTES", 0)
        revision = written(top, headers_timeout(7, "for-nobody", labels={"kuma.io/service": "nobody"}))
        answer = asked(top, revision, 1)
        assert (answer["arrived"], _zones(answer)) == (
            False,
            {"east": "not-received", "west": "not-received"},
        )
        assert answer["zones"][0]["since"]
    later = written(top, headers_timeout(8, "for-nobody", labels={"kuma.io/service": "nobody"}))
    zones.wait_until_there(revision)
    zones.wait_until_there(later)


def test_what_a_zone_refuses_is_named_with_the_reason_and_later_changes_arrive(zones: TwoZones) -> None:
    top, east = zones.top, zones.east
    taken = names.hashed("default", "taken", "", "")  # which is how a zone calls the one of Global
    assert east("PUT", f"{URL}/{taken}", {**headers_timeout(8, taken), "labels": OF_ZONE}).status == 201
    revision = written(top, headers_timeout(9, "taken"))
    until(lambda: _zones(asked(top, revision)) == {"east": "refused"}, "east refuses it")
    (lack,) = asked(top, revision)["zones"]
    assert (lack["isLasting"], lack["objects"]) == (True, ["kri_mt_default___taken_"])
    assert f'its name "{taken}" is taken' in lack["text"]
    later = written(top, headers_timeout(10))
    zones.wait_until_there(later)
    assert not is_there(top, revision)
    about = asked(top, later, query="&object=kri_mt_default___taken_")
    assert (about["arrived"], _zones(about)) == (False, {"east": "refused"}), "nor has the object itself"
    assert east("DELETE", f"{URL}/{taken}").status == 200
    zones.wait_until_there(written(top, headers_timeout(11, "taken")))
    assert top("DELETE", f"{URL}/taken").status == 200


def test_what_an_envoy_refused_is_known_however_late_the_zone_is_asked(zones: TwoZones) -> None:
    top, east, web = zones.top, zones.east, zones.web
    revision = written(top, headers_timeout(15, "bad"))
    until(lambda: "requestHeadersTimeout', '15s'" in inbound_of(east, web._offer), "it is offered")
    refused = web._offer
    refuse(east, web, "no such thing")
    until(lambda: web._offer is not refused, "it is offered what it had")
    for number in range(3):  # which are later revisions of the zone's, and of Global's, too
        own = {**headers_timeout(number, f"own-{number}", name="nobody"), "labels": OF_ZONE}
        assert east("PUT", f"{URL}/own-{number}", own).status == 201
        zones.take()

    def answer_of_east() -> Any:
        zones.take()
        answer = asked(top, revision)
        return answer if _lacking(answer) == {"east": "refused"} else None

    (lack,) = until(answer_of_east, "it is refused, and west has it")["lacking"]
    assert (lack["isLasting"], "no such thing" in lack["text"]) == (True, True)
    zones.wait_until_there(written(top, headers_timeout(16, "for-nobody", name="nobody")))
    assert not is_there(top, revision)
    zones.wait_until_there(written(top, headers_timeout(17, "bad")))


def test_a_zone_of_an_older_version_cannot_answer(zones: TwoZones, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr("koguma.fleet.zone_questions.ARRIVAL", "arrival of later")
        answer = asked(zones.top, zones.top.plane.store.state.revision)
    assert _zones(answer) == {"east": "too-old", "west": "too-old"}
    assert {
        (each["isLasting"], "does not know the question" in each["text"]) for each in answer["zones"]
    } == {(True, True)}


def test_a_zone_that_answers_by_nonsense_or_not_at_all_has_nothing(
    zones: TwoZones, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = zones.top.plane.store.state.revision
    for broken in (b"[]", b'{"own": 1, "n_proxies": -1, "n_affected": 0, "n_lacking": 0}'):
        with monkeypatch.context() as lying:
            asking = zones.top.plane._zones.questions
            lying.setattr(asking, "_ask_zone", _answers_with(broken))
            answer = asked(zones.top, revision)
        assert _zones(answer) == {"east": "no-answer", "west": "no-answer"}
        assert "answers with something else" in answer["zones"][0]["text"]
    zones.wait_until_there(revision)


def test_in_a_busy_zone_the_mark_does_not_move_on(zones: TwoZones, monkeypatch: pytest.MonkeyPatch) -> None:
    questions, marks = zones.top.plane._zones.questions, []
    ask = questions._ask_zone

    async def noted(zone: str, name: str, body: bytes, *more: Any) -> bytes:
        if zone == "east":
            marks.append(msgspec.json.decode(body, type=ZoneArrivalQuestion).own)
        return bytes(await ask(zone, name, body, *more))

    monkeypatch.setattr(questions, "_ask_zone", noted)
    revision = written(zones.top, headers_timeout(18, "a-first-one"))
    until(
        lambda: _lacking(asked(zones.top, revision)) == {"east": "behind", "west": "behind"}, "both lack it"
    )
    for number in range(3):
        own = {**headers_timeout(number, f"own-{number}", name="none"), "labels": OF_ZONE}
        assert east_revision(zones, own) > max(marks)
        assert not is_there(zones.top, revision)
    first, *later = marks
    assert (first, len(set(later)), len(later) > 2) == (0, 1, True)
    zones.wait_until_there(revision)


def east_revision(zones: TwoZones, policy: Any) -> int:
    """The revision of east's own store at which it has a policy of its own."""
    answer = zones.east("PUT", f"{URL}/{policy['name']}", policy)
    assert answer.status in (200, 201), answer.text
    return int(answer.headers["Koguma-Revision"])


def test_a_zone_speaks_of_its_own_proxies_alone_and_not_at_length(
    zones: TwoZones, monkeypatch: pytest.MonkeyPatch
) -> None:
    lack = Lack("r" * 5000, "t" * 5000, objects=("o" * 5000,) * 50)
    key = Key("Dataplane", "default", "east", "", "web-1")
    wrong = (key._replace(kind="Mesh"), key._replace(name="n" * 5000))
    lacking = (LackingProxy(key, lack, "i" * 5000), *(LackingProxy(each, lack) for each in wrong))

    async def answer(zone: str, _name: str, body: bytes, *_: object) -> bytes:
        asked = msgspec.json.decode(body, type=ZoneArrivalQuestion)
        own = asked.own or getattr(zones, zone).plane.store.state.revision
        long = ("c" * 5000,) * 99
        return msgspec.json.encode(ZoneArrivalAnswer(own, 1, 1, 1, lacking, long, "p" * 5000, "k" * 5000))

    revision = zones.top.plane.store.state.revision
    with monkeypatch.context() as lying:
        lying.setattr(zones.top.plane._zones.questions, "_ask_zone", answer)
        shown = asked(zones.top, revision)
    assert not shown["arrived"]
    assert [each["zone"] for each in shown["lacking"]] == ["east"], "west speaks of a proxy of east"
    assert {each["reason"] for each in shown["zones"]} == {"kept"}
    assert len(json.dumps(shown)) < 60_000
    zones.wait_until_there(revision)


def _answers_with(body: bytes) -> Any:
    async def answer(*_: object) -> bytes:
        return body

    return answer


@pytest.mark.expected_errors("zone is gone", "stream of a zone ended")
def test_zones_that_are_not_connected_are_waited_for_unless_they_are_switched_off(zones: TwoZones) -> None:
    top = zones.top
    never = {"type": "Zone", "name": "never-there", "enabled": True}
    assert top("PUT", "/zones/never-there", never).status == 201
    with zones.federation.zone("north") as north:
        until(lambda: _has_mesh(north), "the mesh comes from Global")
        zones.wait_until_there(written(top, headers_timeout(12)))
    revision = written(top, headers_timeout(13))

    def only_north() -> Any:
        zones.take()
        answer = asked(top, revision)
        return answer if not answer["lacking"] and _zones(answer) == {"north": "offline"} else None

    (lack,) = until(only_north, "all but north have it")["zones"]
    assert (lack["isLasting"], lack["since"][:2]) == (False, "20")
    assert lack["text"] == f'zone "north" is offline since {lack["since"]}'
    assert asked(top, revision, query="&connected=true")["arrived"]
    off = top("PUT", "/zones/north", {"type": "Zone", "name": "north", "enabled": False})
    zones.wait_until_there(int(off.headers["Koguma-Revision"]))
    on = top("PUT", "/zones/north", {"type": "Zone", "name": "north", "enabled": True})
    assert not is_there(top, int(on.headers["Koguma-Revision"]))
    assert top("DELETE", "/zones/north").status == 200
    zones.wait_until_there(revision)


@pytest.mark.expected_errors("zone is gone", "stream of a zone ended", "kept")
def test_a_zone_that_was_restored_from_a_backup_has_to_receive_it_again(zones: TwoZones) -> None:
    federation, top = zones.federation, zones.top
    database = federation.directory / "south.db"
    with federation.zone("south") as south:
        until(lambda: _has_mesh(south), "the mesh comes from Global")
        web = joined(south, "web-9")
        settled(south, web)
        zones.wait_until_there(top.plane.store.state.revision)
        south.run(south.plane.store.close())
        shutil.copy(database, federation.directory / "backup.db")
    with federation.zone("south") as south:
        back = joined(south, "web-9")
        revision = written(top, headers_timeout(14))

        def has_arrived() -> bool:
            zones.take()
            take(south, back)
            return bool(is_there(top, revision))

        until(has_arrived, "south has it, too")
    shutil.copy(federation.directory / "backup.db", database)
    with federation.zone("south") as south:

        def lacks() -> Any:
            zones.take()
            answer = asked(top, revision)
            assert not answer["arrived"], "its proxies are not there yet, or have not taken it"
            return _lacking(answer).get("south")

        until(lacks, "it is received, and web-9 has not got it")
        back = joined(south, "web-9")
        until(has_arrived, "south has it again")
    assert top("DELETE", "/zones/south").status == 200


@pytest.mark.expected_errors("another history", "zone is gone", "stream of a zone ended")
def test_a_zone_whose_store_has_another_history_is_compared_again(zones: TwoZones) -> None:
    server = zones.top.plane._sync.server
    before = server.receipt("east").connection
    zones.east.run(zones.east.plane.store._replica.load())
    until(
        lambda: server.receipt("east") not in (None, before) and server.receipt("east").connection != before
    )
    zones.wait_until_there(zones.top.plane.store.state.revision)


def test_the_answer_is_about_proxies_that_the_user_may_list_on_global(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(ACCESS)
    federation = Federation(tmp_path, file=str(file))
    top = federation.top
    with federation.stack, federation.zone("east") as east:
        assert top("PUT", "/meshes/red", {"type": "Mesh", "name": "red"}).status == 201
        until(lambda: east("GET", "/meshes/red").status == 200, "both meshes come from Global")
        joined(east, "web-1")
        token = east.dataplane_token("red", tags={"kuma.io/service": ["web"]})
        red = connect(east, dataplane("red-1", mesh="red"), "red-1", "red", token)
        taken = names.hashed("default", "taken", "", "")
        assert east("PUT", f"{URL}/{taken}", {**headers_timeout(8, taken), "labels": OF_ZONE}).status == 201
        revision = written(top, headers_timeout(9, "taken"))
        for name, seen in (("rita", "red"), ("admin", "")):

            def answer_for(name: str = name) -> Any:
                user = {"Impersonate-User": name} if name == "rita" else {}
                answer = top("GET", f"/_arrival?revision={revision}", **user)
                assert answer.status == 200, answer.text
                return answer.json if _zones(answer.json) == {"east": "refused"} else None

            answer = until(answer_for, "the answer of east")
            assert answer["proxies"]["total"] == (1 if seen else 2)
            assert {lack["mesh"] for lack in answer["lacking"]} <= ({"red"} if seen else {"red", "default"})
            assert answer["isPartial"] is bool(seen)
            (lack,) = answer["zones"]
            hidden = ("it has refused an object that you may not read", [])
            assert ((lack["text"], lack["objects"]) == hidden) is bool(seen), lack
        assert top("GET", "/_arrival", **{"Impersonate-User": "tim"}).status == 403
        east.run(red.close())


@pytest.mark.slow
def test_proxies_of_all_control_planes_of_a_zone_count_and_the_one_of_global_that_can_ask_is_named(
    own_postgres: Any, tmp_path: Path
) -> None:
    federation = Federation(tmp_path, store=own_postgres.database())
    top, store = federation.top, own_postgres.database()
    with (
        federation.stack,
        federation.zone("east", number="-1", store=store) as one,
        federation.zone("east", number="-2", store=store) as two,
        LocalControlPlane(tmp_path / "other", mode="global", store=top.settings.store_url) as other,
    ):
        planes = {"web-1": one, "web-2": two}
        until(lambda: _has_mesh(one) and _has_mesh(two), "the mesh comes from Global")
        proxies = {name: joined(plane, name, f"127.0.0.{name[-1]}") for name, plane in planes.items()}

        def has_arrived(revision: int, *names: str) -> bool:
            for name in names:
                take(planes[name], proxies[name])
            return bool(is_there(top, revision))

        def only_lacks(name: str, revision: int) -> bool:
            assert not has_arrived(revision, *(set(planes) - {name}))
            lacking = [lack["kri"] for lack in asked(top, revision)["lacking"]]
            return lacking == [f"kri_dp_default_east__{name}_"]

        def arrives_last_at(name: str, revision: int) -> None:
            until(lambda: only_lacks(name, revision), f"only {name} lacks it")
            until(lambda: has_arrived(revision, *planes), "both have it")

        first = written(top, headers_timeout(3))
        until(lambda: has_arrived(first, *planes), "both have it")
        arrives_last_at("web-1", written(top, headers_timeout(4)))
        arrives_last_at("web-2", written(top, headers_timeout(5)))
        (zone,) = until(lambda: _of_another(other, first), "the other one knows where the zone is")
        instance = top("GET", "/").json["instanceId"]
        assert zone["text"] == f'it is connected to the control plane "{instance}" of Global; ask that one'


def _of_another(plane: LocalControlPlane, revision: int) -> Any:
    answer = asked(plane, revision)
    assert not answer["arrived"]
    return answer["zones"] if _zones(answer) == {"east": "elsewhere"} else None
