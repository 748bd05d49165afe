"""Plan, undo and can on Global: the zones answer for their proxies, by the rights on Global."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from koguma.access.authorizer import REST_GROUP
from koguma.application.visible_objects import SentRights
from koguma.cli import main
from koguma.fleet.zone_questions import PLAN, PlanQuestion
from koguma.model.errors import KogumaError
from koguma.model.resource import Resource
from koguma.sync import mapping
from koguma.sync.protocol import messages
from koguma.sync.protocol.messages import (
    SMALL_QUESTION_BYTES_MAX,
    Ack,
    AnswerPart,
    Entries,
    EntriesWanted,
    NoAnswer,
    Objects,
    ZoneQuestion,
)
from tests import build
from tests.control_plane import LocalControlPlane
from tests.kube_client import RBAC, KubeClient, accepted
from tests.sync.lying_zone import LyingZone
from tests.sync.test_zones import Federation, _token
from tests.waiting import until

pytestmark = pytest.mark.slow

READ = {"apiGroups": [REST_GROUP], "verbs": ["get", "list"]}
PLACES = {"east": ("web", "backend"), "west": ("web", "job")}


class TwoZones(NamedTuple):
    """Global, and two zones with two proxies each."""

    federation: Federation
    top: LocalControlPlane
    zones: dict[str, LocalControlPlane]


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoZones]:
    federation = Federation(tmp_path_factory.mktemp("plans"))
    top = federation.top
    with federation.stack as stack:
        mesh = build.mesh(mtls=build.builtin_mtls(), skipCreatingInitialPolicies=["*"])
        assert top("PUT", "/meshes/default", mesh).status == 200
        for item in top("GET", "/meshes/default/meshtimeouts").json["items"]:
            assert top("DELETE", f"/meshes/default/meshtimeouts/{item['name']}").status == 200
        everybody = [timeout("slow", 9), permission("everybody", "spiffe://default/")]
        assert top("POST", "/_apply", {"objects": everybody}).status == 200
        zones = {name: stack.enter_context(federation.zone(name)) for name in PLACES}
        for number, (name, zone) in enumerate(zones.items(), start=1):
            until(lambda zone=zone: "everybody" in zone("GET", "/meshtrafficpermissions").text)
            for index, service in enumerate(PLACES[name]):
                written = dataplane(service, f"10.{number}.0.{index}")
                assert zone("PUT", f"/meshes/default/dataplanes/{service}-1", written).status == 201
        for plane in zones.values():
            until(lambda plane=plane: len(addressed(plane)) == 4, "all services have addresses everywhere")
        until(lambda: len(items(top, "dataplanes")) == 4, "Global has all proxies")
        yield TwoZones(federation, top, zones)


def items(plane: LocalControlPlane, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane("GET", f"/meshes/default/{kind}").json["items"]
    return found


def addressed(plane: LocalControlPlane) -> list[str]:
    return [each["name"] for each in items(plane, "meshservices") if (each.get("status") or {}).get("vips")]


def dataplane(service: str, address: str) -> Any:
    inbound = build.inbound(service, 8080, name="main")
    return build.dataplane(f"{service}-1", labels={"app": service}, address=address, inbound=[inbound])


def timeout(name: str, seconds: int, **top: Any) -> Any:
    conf = {"http": {"requestTimeout": f"{seconds}s"}}
    return build.document(
        "MeshTimeout", name, "default", spec={**top, "to": [{"targetRef": build.ANY, "default": conf}]}
    )


def of_app(name: str) -> dict[str, Any]:
    return {"targetRef": {"kind": "Dataplane", "labels": {"app": name}}}


def permission(name: str, prefix: str) -> Any:
    rules = [{"default": {"allow": [{"spiffeID": {"type": "Prefix", "value": prefix}}]}}]
    return build.document("MeshTrafficPermission", name, "default", spec={"rules": rules})


def planned(top: LocalControlPlane, *objects: Any, query: str = "", user: str = "", **envelope: Any) -> Any:
    headers = {"Impersonate-User": user} if user else {}
    answer = top("POST", f"/_plan{query}", {"objects": list(objects), **envelope}, **headers)
    assert answer.status == 200, answer.body
    return answer.json


def proxies(plan: Any) -> dict[tuple[str, str], str]:
    """What happens to each proxy, by zone and its name there."""
    return {
        (each["zone"], each["name"].rpartition("-")[0]): group["action"]
        for group in plan["groups"]
        for each in group["proxies"]
    }


ALL = {("east", "web-1"), ("east", "backend-1"), ("west", "web-1"), ("west", "job-1")}


def test_every_zone_says_what_becomes_of_its_proxies(planes: TwoZones) -> None:
    plan = planned(planes.top, timeout("slow", 3), query="?envoy=true")
    assert (plan["total"], plan["changed"], plan["unknownZones"]) == (4, 4, [])
    assert set(proxies(plan)) == ALL
    names = {item["name"] for item in items(planes.top, "dataplanes")}
    assert {each["name"] for group in plan["groups"] for each in group["proxies"]} == names
    for group in plan["groups"]:
        for value in group["values"]:
            assert (value["field"], value["before"], value["after"]) == ("http.requestTimeout", "9s", "3s")
            assert value["setBy"]["kri"] == "kri_mt_default___slow_"
        assert any(each["fields"] for each in group["resources"])
    (written,) = plan["objects"]
    assert (written["name"], written["action"], written["proxies"]) == ("slow", "configured", 4)
    for plane in (planes.top, *planes.zones.values()):
        assert "3s" not in plane("GET", "/meshtimeouts").text, "nothing is written"


def test_groups_of_zones_for_which_the_same_changes_are_one(planes: TwoZones) -> None:
    plan = planned(planes.top, timeout("quick", 2, **of_app("web")))
    (group,) = plan["groups"]
    assert [each["zone"] for each in group["proxies"]] in (["east", "west"], ["west", "east"])
    assert (group["total"], plan["changed"]) == (2, 2)


def test_an_object_is_without_effect_where_no_zone_has_one(planes: TwoZones) -> None:
    plan = planned(
        planes.top, timeout("of-one", 3, **of_app("job")), timeout("of-none", 3, **of_app("nobody"))
    )
    assert set(proxies(plan)) == {("west", "job-1")}
    by_name = {each["name"]: each for each in plan["objects"]}
    assert (by_name["of-one"]["proxies"], "why" in by_name["of-one"]) == (1, False)
    assert by_name["of-none"]["proxies"] == 0
    assert "selects no proxy" in by_name["of-none"]["why"]
    assert [each["objects"] for each in plan["newProblems"]] == [['MeshTimeout "of-none" (mesh default)']]
    stays = timeout("stays", 3)
    stays["labels"] = {"kuma.io/kds-sync": "disabled"}
    (kept,) = planned(planes.top, stays)["objects"]
    assert (kept["proxies"], kept["why"]) == (0, "no zone gets it")


def test_deletions_and_risks(planes: TwoZones) -> None:
    named = {"type": "MeshTrafficPermission", "name": "everybody", "mesh": "default"}
    plan = planned(planes.top, delete=[named])
    assert set(proxies(plan)) == ALL
    rules = {(risk["rule"], risk.get("zone")) for risk in plan["risks"]}
    assert rules == {("no-callers", "east"), ("no-callers", "west"), ("no-permission", None)}
    (deleted,) = plan["objects"]
    assert (deleted["action"], deleted["proxies"]) == ("deleted", 4)
    assert "every call between its proxies is denied" in deleted["warnings"][0]


def test_a_set_that_is_pruned(planes: TwoZones) -> None:
    top = planes.top
    both = [timeout("p-a", 4, **of_app("web")), timeout("p-b", 5, **of_app("job"))]
    assert top("POST", "/_apply", {"objects": both, "set": "shop"}).status == 200
    # Asked at once: what zones have not got yet is waited for.
    plan = planned(top, both[0], set="shop", prune=True)
    assert set(proxies(plan)) == {("west", "job-1")}
    assert {each["name"]: each["action"] for each in plan["objects"]} == {
        "p-a": "unchanged",
        "p-b": "deleted",
    }
    assert top("POST", "/_apply", {"objects": [], "set": "shop", "prune": True}).status == 200


def test_what_apply_would_refuse(planes: TwoZones) -> None:
    wrong = timeout("slow", 3)
    wrong["spec"]["to"][0]["default"]["http"]["requestTimeout"] = "soon"
    answers = [planes.top("POST", path, {"objects": [wrong]}) for path in ("/_plan", "/_apply?dryRun=All")]
    assert [each.status for each in answers] == [400, 400]
    assert answers[0].fields == answers[1].fields != []


def test_the_command_line(planes: TwoZones, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "change.json"

    def koguma(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main([*words, "--address", planes.top.address])
        return code, capsys.readouterr().out

    file.write_text(json.dumps(timeout("of-one", 3, **of_app("job"))))
    code, text = koguma("plan", "-f", str(file))
    assert (code, text.splitlines()[0]) == (2, "1 of 4 proxies change")
    assert " in zone west\n" in text
    assert "meshtimeout/of-one created: changes 1 proxy" in text
    assert f"{file}:1:" in text, "the line of the file"
    code, text = koguma("plan", "-f", str(file), "-o", "markdown")
    assert (code, " in zone west</summary>" in text) == (2, True)
    file.write_text(json.dumps(timeout("of-two", 3, **of_app("web"))))
    title = koguma("plan", "-f", str(file))[1].splitlines()[2]
    assert title.endswith(" (2 proxies in 2 zones)")
    assert title.count(" in zone ") == 2
    file.write_text(json.dumps(timeout("of-one", 3, **of_app("nobody"))))
    assert koguma("plan", "-f", str(file))[0] == 0


def test_undo_shows_its_plan(planes: TwoZones, capsys: pytest.CaptureFixture[str]) -> None:
    top = planes.top
    written = top("POST", "/_apply", {"objects": [timeout("quick", 2, **of_app("web"))]})
    assert written.status == 200
    revision = str(written.json["revision"])
    assert main(["undo", revision, "--dry-run", "--address", top.address]) == 0
    shown = capsys.readouterr().out
    assert "2 of 4 proxies change" in shown
    assert "MeshTimeout http.requestTimeout: 2s → 9s" in shown
    assert main(["undo", revision, "--yes", "--address", top.address]) == 0
    assert top("GET", "/meshes/default/meshtimeouts/quick").status == 404


def test_a_zone_that_is_switched_off_loses_what_others_have_of_it(planes: TwoZones) -> None:
    """Its services go from the other zone, and its own proxies keep what they have."""
    plan = planned(planes.top, {"type": "Zone", "name": "west", "enabled": False})
    assert {zone for zone, _ in proxies(plan)} == {"east"}
    gone = {port["port"] for group in plan["groups"] for port in group["ports"] if not port["isAdded"]}
    assert {port.split("_")[3] for port in gone} == {"west"}


def test_a_new_mesh_comes_to_all_zones_with_what_global_makes_for_it(planes: TwoZones) -> None:
    plan = planned(planes.top, build.mesh("fresh", mtls=build.builtin_mtls()))
    assert (plan["total"], plan["changed"], plan["unknownZones"]) == (4, 0, [])
    assert [(risk["rule"], risk.get("zone")) for risk in plan["risks"]] == [("no-permission", None)]
    mesh, *made = plan["objects"]
    assert (mesh["type"], mesh["action"], mesh.get("isGenerated", False)) == ("Mesh", "created", False)
    assert {each["isGenerated"] for each in made} == {True}
    names = [(each["type"], each["name"]) for each in plan["objects"]]
    assert len(set(names)) == len(names), "each once, however many zones get it"
    assert "PRIVATE KEY" not in json.dumps(plan)
    assert planes.top("GET", "/meshes/fresh").status == 404


def test_a_change_of_many_objects(planes: TwoZones) -> None:
    many = [timeout(f"many-{number}", 1 + number, **of_app("job")) for number in range(100)]
    assert len(json.dumps(many)) > SMALL_QUESTION_BYTES_MAX
    plan = planned(planes.top, *many)
    assert (set(proxies(plan)), plan["unknownZones"]) == ({("west", "job-1")}, [])
    assert [each["name"] for each in plan["objects"] if each["proxies"]] == ["many-0"]


def test_a_zone_says_what_it_would_refuse(planes: TwoZones) -> None:
    """Global has checked what it sends; a zone of another version may see it otherwise."""
    east = planes.zones["east"]
    odd = Resource(
        kind="MeshWeather", mesh="default", name="odd", core_name="odd", labels={"kuma.io/origin": "global"}
    )
    own = msgspec.structs.replace(odd, kind="MeshTimeout", zone="east", name="own")

    def asked(*objects: Resource, rights: SentRights) -> Any:
        contents = tuple(msgspec.Raw(mapping.content(each)) for each in objects)
        question = PlanQuestion(tuple(each.key for each in objects), contents, (), rights)
        return json.loads(answered(msgspec.json.encode(question)))

    def answered(body: bytes) -> bytes:
        answers = east.plane._sync.client.duties.answers
        answer: bytes = east.run(answers(ZoneQuestion(1, PLAN, body, 1_000_000, 10.0)))
        return answer

    plan = asked(odd, own, rights=SentRights(is_everything=True))
    assert [risk["rule"] for risk in plan["risks"]] == ["refused", "refused"]
    words = ("has no kind MeshWeather", "it is this zone's own")
    assert all(any(word in risk["message"] for risk in plan["risks"]) for word in words)
    assert plan["changed"] == 0
    hidden = asked(odd, rights=SentRights(kinds={"default": ("Dataplane",)}))
    assert (hidden["risks"], hidden["objects"]) == ([], [])
    for wrong in (b"", b"{}", b"nonsense", b'{"keys": [], "contents": [7], "removed": [], "rights": {}}'):
        with pytest.raises(KogumaError):
            answered(wrong)


# Rights.


@pytest.fixture(scope="module")
def readers(planes: TwoZones) -> str:
    """Some users and what they may read; gives the name of the one proxy that `one` may read."""
    roles = KubeClient(planes.top, "", RBAC, "ClusterRole")
    bindings = KubeClient(planes.top, "", RBAC, "ClusterRoleBinding")
    policies = ["meshes", "meshtimeouts", "meshtrafficpermissions", "meshservices"]
    one = next(item["name"] for item in items(planes.top, "dataplanes") if item["name"].startswith("job-1"))
    zone_kinds = ["zones", "zoneingresses", "zoneegresses"]
    rules = {
        "all": [{**READ, "resources": [*policies, "dataplanes", *zone_kinds]}],
        "few": [{**READ, "resources": policies}],
        "one": [
            {**READ, "resources": policies},
            {**READ, "resources": ["dataplanes"], "resourceNames": [one]},
        ],
        "none": [{**READ, "resources": ["meshretries"]}],
        "writer": [{**READ, "verbs": ["get", "list", "update", "delete"], "resources": ["meshtimeouts"]}],
        "lister": [{**READ, "resources": ["meshes", "dataplanes", "meshservices"]}],
    }
    for user, granted in rules.items():
        accepted(roles.create(user, rules=granted))
        ref = {"apiGroup": RBAC.partition("/")[0], "kind": "ClusterRole", "name": user}
        accepted(bindings.create(user, roleRef=ref, subjects=[{"kind": "User", "name": user}]))
    return one


def test_a_plan_is_about_what_its_reader_may_read_on_global(planes: TwoZones, readers: str) -> None:
    change = timeout("slow", 3)
    whole = planned(planes.top, change, user="all")
    assert (whole["total"], whole["changed"], whole["isPartial"]) == (4, 4, False)
    few = planned(planes.top, change, user="few")
    assert (few["total"], few["changed"], few["groups"], few["isPartial"]) == (0, 0, [], True)
    one = planned(planes.top, change, user="one")
    assert (one["total"], one["changed"], one["isPartial"]) == (1, 1, True)
    assert [each["name"] for group in one["groups"] for each in group["proxies"]] == [readers]
    for name in PLACES:
        assert f'"zone":"{name}"' not in json.dumps(few, separators=(",", ":"))
    for path in ("/_plan", "/_apply"):
        refused = planes.top("POST", path, {"objects": [change]}, **{"Impersonate-User": "none"})
        assert refused.status == 403, path


def test_nobody_can_ask_by_labels_which_proxies_there_are(planes: TwoZones, readers: str) -> None:
    """The answers for labels of proxies that are there, in one zone or in none, are the same."""
    assert readers

    def asked(app: str, user: str) -> Any:
        plan = planned(planes.top, timeout("asked", 3, **of_app(app)), user=user)
        return json.loads(json.dumps(plan).replace(app, "APP"))

    assert asked("web", "few") == asked("backend", "few") == asked("job", "few") == asked("nobody", "few")

    def undone(app: str) -> Any:
        url = "/meshes/default/meshtimeouts/asked"
        written = planes.top("PUT", url, timeout("asked", 3, **of_app(app)))
        revision = written.headers["Koguma-Revision"]
        path = f"/_undo?revision={revision}&dryRun=All&plan=true"
        answer = planes.top("POST", path, **{"Impersonate-User": "writer"})
        assert answer.status == 200, answer.text
        assert planes.top("DELETE", url).status == 200
        return answer.json["plan"]

    plans = [undone(app) for app in ("web", "backend", "job", "nobody")]
    assert plans == [plans[0]] * 4
    assert (plans[0]["total"], plans[0]["risks"], plans[0]["newProblems"]) == (0, [], [])
    assert asked("web", "one") == asked("backend", "one") == asked("nobody", "one") != asked("job", "one")


# Whether one may call another.


def can(planes: TwoZones, caller: str, to: str, **headers: str) -> Any:
    return planes.top("GET", f"/meshes/default/_can?from={caller}&to={to}", **headers)


def test_the_zones_of_the_callers_say_whether_they_may_call(planes: TwoZones) -> None:
    answer = can(planes, "backend", "web").json
    assert (answer["verdict"], [group["zone"] for group in answer["groups"]]) == ("yes", ["east"])
    assert "kri_mtp_default___everybody_" in answer["groups"][0]["outcomes"][0]["reason"]
    both = can(planes, "web", "web").json
    assert (both["verdict"], [group["zone"] for group in both["groups"]]) == ("yes", ["east", "west"])
    # Names as Global has them: of a proxy, and of a service of one zone.
    proxy = next(item["name"] for item in items(planes.top, "dataplanes") if item["name"].startswith("job-1"))
    service = next(
        item["name"]
        for item in items(planes.top, "meshservices")
        if item["name"].startswith("web") and item["labels"]["kuma.io/zone"] == "west"
    )
    answer = can(planes, proxy, service).json
    assert (answer["from"], answer["to"], answer["verdict"]) == (proxy, service, "yes")
    (group,) = answer["groups"]
    assert (group["zone"], group["port"]) == ("west", "kri_msvc_default_west__web_main")


def test_a_gateway_of_one_zone_is_asked_there(planes: TwoZones) -> None:
    west, tags = planes.zones["west"], {"kuma.io/service": "edge"}
    gateway = {
        "type": "MeshGateway",
        "name": "edge",
        "mesh": "default",
        "selectors": [{"match": tags}],
        "conf": {"listeners": [{"port": 8080, "protocol": "HTTP", "hostname": "*"}]},
    }
    networking = {"address": "10.2.0.9", "gateway": {"type": "BUILTIN", "tags": tags}}
    proxy = build.document("Dataplane", "edge-1", "default", networking=networking)
    assert planes.top("PUT", "/meshes/default/meshgateways/edge", gateway).status == 201
    assert can(planes, "outside", "edge").status == 400, "no proxy serves it"
    assert west("PUT", "/meshes/default/dataplanes/edge-1", proxy).status == 201
    until(lambda: can(planes, "outside", "edge").status == 200, "Global and the zone have both")
    (group,) = can(planes, "outside", "edge").json["groups"]
    assert (group["zone"], group["callers"]["names"]) == ("west", ["edge-1"])
    assert west("DELETE", "/meshes/default/dataplanes/edge-1").status == 200
    assert planes.top("DELETE", "/meshes/default/meshgateways/edge").status == 200
    until(lambda: len(items(planes.top, "dataplanes")) == 4, "it is gone")


def test_wrong_questions_about_calls(planes: TwoZones) -> None:
    assert can(planes, "nobody", "web").status == 404
    wrong = can(planes, "job", "nothing")
    assert (wrong.status, 'zone "west" answers: ' in wrong.json["detail"]) == (404, True)
    assert can(planes, "job", "web", **{"Impersonate-User": "stranger"}).status == 403


def test_who_may_not_read_policies_is_not_told_of_them(planes: TwoZones, readers: str) -> None:
    assert readers
    answer = can(planes, "backend", "web", **{"Impersonate-User": "lister"})
    assert (answer.status, answer.json["verdict"]) == (200, "yes")
    assert "everybody" not in answer.text
    assert "a MeshTrafficPermission that you may not read" in answer.text
    assert can(planes, "backend", "web", **{"Impersonate-User": "few"}).status == 403


# Zones that do not answer.


def greeted(planes: TwoZones, name: str) -> contextlib.AbstractContextManager[LyingZone]:
    """A zone that answers as a test says."""
    ca = (planes.federation.directory / "global" / "ca.pem").read_bytes()
    return LyingZone(planes.federation.sync_port, ca, f"Bearer {_token(planes.top, name)}", name)


def test_a_zone_that_does_not_know_the_question_or_lies_is_unknown(planes: TwoZones) -> None:
    top = planes.top
    replies = {
        "does not know": lambda number: NoAnswer(number, "NotSupported", "it does not know this"),
        "is no plan": lambda number: AnswerPart(number, b'{"total": "many"}', is_last=True),
        "is broken": lambda number: NoAnswer(number, "BadGateway", "something is broken"),
    }
    word = ""

    def is_unknown() -> bool:
        plan = planned(top, timeout("slow", 3))
        (unknown,) = plan["unknownZones"]
        assert (unknown["zone"], plan["changed"], plan["total"]) == ("north", 4, 4)
        return word in unknown["reason"]

    with greeted(planes, "north") as zone:
        zone.greet(kinds=("MeshTimeout",), features=(messages.QUESTIONS,))
        respond(zone, lambda question: replies[word](question.number))
        until(lambda: top("GET", "/zones/north").status == 200, "it is there")
        for word in replies:
            until(is_unknown, f"the reason is that it {word}")
        large = timeout("slow", 3)
        large["spec"]["to"] *= 1 + SMALL_QUESTION_BYTES_MAX // 60
        assert "takes no such question" in str(planned(top, large)["unknownZones"])
        # What does not concern a zone is not asked there.
        assert planned(top, permission("everybody", "spiffe://default/web"))["unknownZones"] == []
    until(lambda: top("DELETE", "/zones/north").status == 200, "it is forgotten")


def respond(zone: LyingZone, answers: Any) -> None:
    """Let a zone acknowledge what it gets, and answer questions, in a thread."""

    def run() -> None:
        with contextlib.suppress(Exception):
            for message in zone.heard():
                if isinstance(message, EntriesWanted):
                    zone.say(Entries((), is_last=True))
                elif isinstance(message, Objects):
                    zone.say(Ack(message.number))
                elif isinstance(message, ZoneQuestion):
                    zone.say(answers(message))

    threading.Thread(target=run, daemon=True).start()


@pytest.mark.expected_errors("zone is gone", "stream of a zone ended")
def test_an_offline_zone_is_named(
    planes: TwoZones, readers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    top = planes.top
    with planes.federation.zone("south") as south:
        until(lambda: "everybody" in south("GET", "/meshtrafficpermissions").text, "it has the mesh")
        for index, service in enumerate(("web", "far")):
            written = dataplane(service, f"10.9.0.{index}")
            assert south("PUT", f"/meshes/default/dataplanes/{service}-1", written).status == 201
        until(lambda: len(items(top, "meshservices")) == 6, "Global has its services")
        until(lambda: len(items(top, "dataplanes")) == 6, "and its proxies")
    until(lambda: 'zone "south" is offline' in str(top("GET", "/_check").json), "it is known to be away")
    plan = planned(top, timeout("slow", 3))
    (unknown,) = plan["unknownZones"]
    assert (unknown["zone"], 'zone "south" is offline since ' in unknown["reason"]) == ("south", True)
    assert (plan["total"], plan["changed"]) == (4, 4)
    (written,) = plan["objects"]
    assert written["proxies"] == 4
    # What it would not get does not make it unknown.
    assert planned(top, timeout("slow", 9))["unknownZones"] == []
    # Who may neither read zones nor a proxy of it is not told.
    assert planned(top, timeout("slow", 3), user="one")["unknownZones"] == []
    assert [each["zone"] for each in planned(top, timeout("slow", 3), user="all")["unknownZones"]] == [
        "south"
    ]

    file = tmp_path / "change.json"
    file.write_text(json.dumps(timeout("of-none", 3, **of_app("nobody"))))
    for form in ("json", "markdown", "text"):
        capsys.readouterr()
        words = () if form == "text" else ("-o", form)
        assert main(["plan", "-f", str(file), *words, "--address", top.address]) == 2, "it may change"
        shown = capsys.readouterr().out
        assert "is offline since" in shown
        assert form == "json" or "0 of 4 proxies change; 1 zone is unknown" in shown
        assert "selects no proxy" not in shown or "changes no proxy" not in shown

    offline = can(planes, "far", "web")
    assert (offline.status, 'zone "south" is offline since ' in offline.json["detail"]) == (503, True)
    some = can(planes, "web", "backend").json
    assert (some["verdict"], [each["zone"] for each in some["unknownZones"]]) == ("unknown", ["south"])
    capsys.readouterr()
    assert main(["can", "web", "backend", "--address", top.address]) == 2
    assert 'unknown: zone "south" is offline since ' in capsys.readouterr().out
    assert top("DELETE", "/zones/south").status == 200
